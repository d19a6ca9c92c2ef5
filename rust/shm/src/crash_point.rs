//! Crash points: places where a process of a test kills itself, with its locks held.

#[cfg(test)]
use crate::failpoint;

/// In tests: ends this process as SIGKILL does, if the test asked it to die at this point.
#[cfg(test)]
pub(crate) fn crash_point(name: &str) {
    // A crash point is also one of the counted changes.
    failpoint::change();
    if std::env::var_os(POINT).is_some_and(|point| point == name) {
        failpoint::end_this_process();
    }
}

/// The variable that names the point at which to die.
#[cfg(test)]
pub(super) const POINT: &str = "SHOAL_TEST_CRASH_POINT";

/// Outside of tests: does nothing.
#[cfg(not(test))]
#[inline]
pub(crate) fn crash_point(_name: &str) {}
