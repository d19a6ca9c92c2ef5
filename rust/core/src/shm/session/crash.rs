//! Where a process of a test kills itself: in the middle of what it does, with its locks.

#[cfg(test)]
use super::super::failpoint;

/// In tests: ends this process as SIGKILL does, if it was told to die at this point.
#[cfg(test)]
pub(in crate::shm) fn crash_point(name: &str) {
    // One of the places that are counted, too.
    failpoint::change();
    if std::env::var_os(POINT).is_some_and(|point| point == name) {
        failpoint::end_this_process();
    }
}

/// The variable that names the point to die at.
#[cfg(test)]
pub(super) const POINT: &str = "SHOAL_TEST_CRASH_POINT";

/// Otherwise: nothing.
#[cfg(not(test))]
#[inline]
pub(in crate::shm) fn crash_point(_name: &str) {}
