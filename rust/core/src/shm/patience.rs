//! How long to look before sleeping.
//!
//! To sleep and to be woken costs some 25 µs. Who looks for about as long before it sleeps, waits
//! no more than twice as long as who knew beforehand (Karlin, Li, Manasse, Owicki, SOSP 1991). Where
//! looking was in vain lately, nobody is about to put: then it is not worth the processor's time.

use std::time::{Duration, Instant};

use super::error::Corrupt;
use super::sync::hint::{AtomicU32, Ordering};
use super::sync::spin;

/// Looks between two looks at the clock, which costs as much as some.
const LOOKS: u32 = 16;
/// The least part of the patience that is left when all was in vain.
const LEAST: u32 = 16;

/// How long a process looks before it sleeps, in nanoseconds; private to it, and no more than a
/// guess.
#[derive(Debug)]
pub(super) struct Patience {
    most: u32,
    now: AtomicU32,
}

impl Patience {
    /// Looks for so many nanoseconds at most; 0 is not at all.
    pub(super) fn new(most: u32) -> Self {
        let now = AtomicU32::new(most);
        Self { most, now }
    }

    /// Looks until it is ready, or patience or time is over; whether it is.
    pub(super) fn look(
        &self,
        limit: Duration,
        ready: &impl Fn() -> Result<bool, Corrupt>,
    ) -> Result<bool, Corrupt> {
        let now = self.now.load(Ordering::Relaxed);
        let patience = Duration::from_nanos(now.into()).min(limit);
        if patience.is_zero() {
            return Ok(false);
        }
        let begin = Instant::now();
        while begin.elapsed() < patience {
            for _ in 0..LOOKS {
                if ready()? {
                    self.now.store(self.most, Ordering::Relaxed);
                    return Ok(true);
                }
                spin();
            }
        }
        self.now
            .store((now / 2).max(self.most / LEAST), Ordering::Relaxed);
        Ok(false)
    }

    /// It slept for so long and was woken: where looking on would have been better, there is more
    /// patience the next time.
    pub(super) fn woken_after(&self, slept: Duration) {
        if slept < Duration::from_nanos(self.most.into()) * 2 {
            let now = self.now.load(Ordering::Relaxed);
            let more = now.saturating_mul(4).min(self.most);
            self.now.store(more, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_has_no_patience_does_not_look() {
        let looked = Cell::new(false);
        let ready = || {
            looked.set(true);
            Ok(true)
        };
        assert_eq!(Patience::new(0).look(LONG, &ready), Ok(false));
        assert_eq!(Patience::new(1000).look(Duration::ZERO, &ready), Ok(false));
        assert!(!looked.get());
    }

    #[test]
    fn patience_shrinks_in_vain_and_is_back_after_a_success() {
        // Long enough that a look comes before its end, whatever else runs.
        let patience = Patience::new(16_000_000);
        for left in [8, 4, 2, 1, 1] {
            assert_eq!(patience.look(LONG, &|| Ok(false)), Ok(false));
            assert_eq!(patience.now.load(Ordering::Relaxed), left * 1_000_000);
        }
        assert_eq!(patience.look(LONG, &|| Ok(true)), Ok(true));
        assert_eq!(patience.now.load(Ordering::Relaxed), 16_000_000);
    }

    #[test]
    fn patience_grows_where_it_would_have_been_shorter_than_sleep() {
        let patience = Patience::new(1600);
        for _ in 0..5 {
            assert_eq!(patience.look(LONG, &|| Ok(false)), Ok(false));
        }
        patience.woken_after(LONG);
        assert_eq!(patience.now.load(Ordering::Relaxed), 100);
        patience.woken_after(Duration::from_nanos(3199));
        assert_eq!(patience.now.load(Ordering::Relaxed), 400);
    }

    #[test]
    fn damage_ends_it() {
        let found = Patience::new(1600).look(LONG, &|| Err(Corrupt::FoundBefore));
        assert_eq!(found, Err(Corrupt::FoundBefore));
    }
}
