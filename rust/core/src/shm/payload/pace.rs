//! How often to try again what is dear and was in vain.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// It takes no more than about one part in so many of the time.
const PARTS: u32 = 16;

/// Something that may be in vain.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// When it begins; None where it was in vain so lately that it is too early.
    pub(super) fn begin(&self) -> Option<Instant> {
        let now = Instant::now();
        let next = *self.next();
        next.is_none_or(|next| next <= now).then_some(now)
    }

    /// It came to nothing.
    pub(super) fn in_vain(&self, begin: Instant) {
        *self.next() = Some(Instant::now() + begin.elapsed() * PARTS);
    }

    /// Something has changed: it may not be in vain now.
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
    fn what_was_in_vain_is_not_tried_again_at_once() {
        let pace = Pace::default();
        let begin = pace.begin().expect("the first time");
        assert!(pace.begin().is_some(), "another may try as well");
        pace.in_vain(
            begin
                .checked_sub(Duration::from_secs(1))
                .expect("no overflow"),
        );
        assert_eq!(pace.begin(), None, "for 16 s");
        pace.again();
        assert!(pace.begin().is_some());
    }
}
