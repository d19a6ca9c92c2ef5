//! `Backoff`: limits how often an expensive action that failed is tried again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The action takes at most about one part in `PARTS` of the time.
const PARTS: u32 = 16;

/// An action that may fail.
#[derive(Debug, Default)]
pub(super) struct Backoff(Mutex<Option<Instant>>);

impl Backoff {
    /// Begins an attempt; None if the last one failed so recently that it is too early.
    pub(super) fn begin(&self) -> Option<Instant> {
        let now = Instant::now();
        let next = *self.next();
        next.is_none_or(|next| next <= now).then_some(now)
    }

    /// Notes that the attempt failed.
    pub(super) fn in_vain(&self, begin: Instant) {
        *self.next() = Some(Instant::now() + begin.elapsed() * PARTS);
    }

    /// Allows an attempt at once: something has changed, so it may succeed.
    pub(super) fn again(&self) {
        *self.next() = None;
    }

    fn next(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_failed_attempt_is_not_repeated_at_once() {
        let backoff = Backoff::default();
        let begin = backoff.begin().expect("the first time");
        assert!(backoff.begin().is_some(), "another may try as well");
        backoff.in_vain(
            begin
                .checked_sub(Duration::from_secs(1))
                .expect("no overflow"),
        );
        assert_eq!(backoff.begin(), None, "for 16 s");
        backoff.again();
        assert!(backoff.begin().is_some());
    }
}
