//! `UseGuard`: keeps this process in a session during a call.

use super::{Error, Session};

/// Keeps this process in the session while a call is running.
#[must_use = "the process may leave when this is dropped"]
pub(super) struct UseGuard<'a>(&'a Session);

impl<'a> UseGuard<'a> {
    /// Begins a use.
    ///
    /// # Errors
    ///
    /// If this process is leaving, or is not the one that attached.
    pub(super) fn of(session: &'a Session) -> Result<Self, Error> {
        session.begin_use();
        // From now on this process does not leave; if it left before, the check says so.
        let this = Self(session);
        session.check_open()?;
        Ok(this)
    }
}

impl Drop for UseGuard<'_> {
    fn drop(&mut self) {
        self.0.end_use();
    }
}
