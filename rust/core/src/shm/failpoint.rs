//! Atomics that kill: before any access a thread can come to its end, as by SIGKILL.
//!
//! Death is a panic that no hook prints and no destructor of the queue takes notice of, because it
//! has none that touch shared memory.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{self, Ordering};

struct Died;

thread_local! {
    /// Accesses that are left to this thread.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

fn step() {
    if let Some(left) = LEFT.get() {
        if left == 0 {
            LEFT.set(None);
            resume_unwind(Box::new(Died));
        }
        LEFT.set(Some(left - 1));
    }
}

/// Runs `work` until it is over (its result) or has made so many accesses (None: it died there).
pub(crate) fn dies_after<T>(accesses: u64, work: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(Some(accesses));
    let result = catch_unwind(AssertUnwindSafe(work));
    LEFT.set(None);
    match result {
        Ok(value) => Some(value),
        Err(panic) if panic.is::<Died>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// As the one of the standard library.
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name(atomic::$name);

        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step();
                self.0.compare_exchange(old, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

impl AtomicU64 {
    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        step();
        self.0.fetch_or(value, order)
    }

    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        step();
        self.0.fetch_and(value, order)
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        step();
        self.0.swap(value, order)
    }
}

impl AtomicU64 {
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        step();
        self.0.fetch_add(value, order)
    }
}

impl AtomicU32 {
    pub(crate) fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
        step();
        self.0.fetch_or(value, order)
    }

    pub(crate) fn plain(&self) -> &atomic::AtomicU32 {
        &self.0
    }
}
