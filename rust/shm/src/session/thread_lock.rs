//! `ThreadLock`: a lock between the threads of one process, with a deadline, that is free after a
//! fork.

use std::process;
use std::time::{Duration, Instant};

use crate::sync::hint::{AtomicU32, Ordering};

/// Time between two attempts.
pub(super) const PAUSE: Duration = Duration::from_micros(200);

/// A lock that no child inherits: in a child that is forked while a thread of its parent holds it,
/// it is free. Its value is the id of the process that holds it, or 0.
#[derive(Debug, Default)]
pub(super) struct ThreadLock(AtomicU32);

impl ThreadLock {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock; None if another thread holds it.
    pub(super) fn try_enter(&self) -> Option<Inside<'_>> {
        let (me, inside) = (process::id(), self.0.load(Ordering::Relaxed));
        let free = inside != me;
        // ORDER: Acquire, pairs with the drop of `Inside`.
        let entered = free
            && self
                .0
                .compare_exchange(inside, me, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        entered.then(|| Inside(self))
    }

    /// Takes the lock as soon as it is free; None if it is not free before the deadline.
    pub(super) fn enter(&self, deadline: Instant) -> Option<Inside<'_>> {
        loop {
            let inside = self.try_enter();
            if inside.is_some() || Instant::now() >= deadline {
                return inside;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The lock; dropping this releases it.
#[derive(Debug)]
#[must_use = "it is free again when this is dropped"]
pub(super) struct Inside<'a>(&'a ThreadLock);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // ORDER: Release, pairs with `try_enter`.
        self.0.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_inside_and_the_next_gets_in_after_it() {
        let lock = &ThreadLock::new();
        let inside = lock.enter(Instant::now()).expect("free");
        assert!(lock.try_enter().is_none());
        assert!(lock.enter(Instant::now() + 3 * PAUSE).is_none(), "in time");
        std::thread::scope(|scope| {
            let deadline = Instant::now() + Duration::from_secs(20);
            let waits = scope.spawn(move || lock.enter(deadline).is_some());
            drop(inside);
            assert!(waits.join().expect("no panic"));
        });
        assert!(lock.try_enter().is_some());
    }

    #[test]
    fn a_lock_held_by_the_parent_is_free_in_its_child() {
        let lock = ThreadLock(AtomicU32::new(process::id() + 1));
        let inside = lock.try_enter().expect("the parent's");
        assert!(lock.try_enter().is_none());
        drop(inside);
    }
}
