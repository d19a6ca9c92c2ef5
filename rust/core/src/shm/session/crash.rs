//! Where a process of a test kills itself: in the middle of what it does, with its locks.

/// In tests: ends this process as SIGKILL does, if it was told to die at this point.
#[cfg(test)]
pub(super) fn crash_point(name: &str) {
    if std::env::var_os(POINT).is_some_and(|point| point == name) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal ends the process before this returns to the program; never go on.
        std::thread::park();
    }
}

/// The variable that names the point to die at.
#[cfg(test)]
pub(super) const POINT: &str = "SHOAL_TEST_CRASH_POINT";

/// Otherwise: nothing.
#[cfg(not(test))]
#[inline]
pub(super) fn crash_point(_name: &str) {}
