//! `Spin`: how long a thread polls before it sleeps, adapted to how often polling helps.
//!
//! Sleeping and being woken costs about 25 µs. A thread that polls for about as long before it
//! sleeps waits at most twice as long as a thread that knew the best choice beforehand (Karlin, Li,
//! Manasse, Owicki, SOSP 1991). If polling was in vain lately, a put is unlikely to come soon, and
//! polling is not worth the processor's time.

use std::time::{Duration, Instant};

use super::error::Corrupt;
use crate::sync::hint::{AtomicU32, Ordering};
use crate::sync::spin;

/// Number of polls between two readings of the clock; a reading costs as much as a few polls.
const LOOKS: u32 = 16;
/// The maximum divided by this is the minimum, which is left if all polling was in vain.
const LEAST: u32 = 16;

/// How long a process polls before it sleeps, in nanoseconds. Private to the process, and only a
/// guess.
#[derive(Debug)]
pub(super) struct Spin {
    most: u32,
    now: AtomicU32,
}

impl Spin {
    /// Polls for at most this many nanoseconds; with 0 it never polls.
    pub(super) fn new(most: u32) -> Self {
        let now = AtomicU32::new(most);
        Self { most, now }
    }

    /// Polls until `ready` returns true, or until the time to spin or `limit` is over; returns
    /// whether it is ready.
    pub(super) fn look(
        &self,
        limit: Duration,
        ready: &impl Fn() -> Result<bool, Corrupt>,
    ) -> Result<bool, Corrupt> {
        let now = self.now.load(Ordering::Relaxed);
        let time = Duration::from_nanos(now.into()).min(limit);
        if time.is_zero() {
            return Ok(false);
        }
        let begin = Instant::now();
        while begin.elapsed() < time {
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

    /// Records that the thread slept for this time and was woken. Spins for longer from now on
    /// if that would have been better.
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
    fn without_time_to_spin_it_does_not_poll() {
        let looked = Cell::new(false);
        let ready = || {
            looked.set(true);
            Ok(true)
        };
        assert_eq!(Spin::new(0).look(LONG, &ready), Ok(false));
        assert_eq!(Spin::new(1000).look(Duration::ZERO, &ready), Ok(false));
        assert!(!looked.get());
    }

    #[test]
    fn the_time_shrinks_in_vain_and_is_back_after_a_success() {
        // Long enough that a poll happens before its end, whatever else runs on the machine.
        let spin = Spin::new(16_000_000);
        for left in [8, 4, 2, 1, 1] {
            assert_eq!(spin.look(LONG, &|| Ok(false)), Ok(false));
            assert_eq!(spin.now.load(Ordering::Relaxed), left * 1_000_000);
        }
        assert_eq!(spin.look(LONG, &|| Ok(true)), Ok(true));
        assert_eq!(spin.now.load(Ordering::Relaxed), 16_000_000);
    }

    #[test]
    fn the_time_grows_where_it_would_have_been_shorter_than_sleep() {
        let spin = Spin::new(1600);
        for _ in 0..5 {
            assert_eq!(spin.look(LONG, &|| Ok(false)), Ok(false));
        }
        spin.woken_after(LONG);
        assert_eq!(spin.now.load(Ordering::Relaxed), 100);
        spin.woken_after(Duration::from_nanos(3199));
        assert_eq!(spin.now.load(Ordering::Relaxed), 400);
    }

    #[test]
    fn damage_ends_it() {
        let found = Spin::new(1600).look(LONG, &|| Err(Corrupt::FoundBefore));
        assert_eq!(found, Err(Corrupt::FoundBefore));
    }
}
