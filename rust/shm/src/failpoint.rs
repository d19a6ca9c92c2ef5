//! Atomics for crash tests: before any access, the thread can end as if by SIGKILL, or its process
//! can be killed by a real SIGKILL.
//!
//! The death of a thread is a panic that no hook prints. No destructor of the queue reacts to it,
//! because none of them touches shared memory.
//!
//! A process dies only before changes: a death before a load leaves the same state as a death
//! before the next change.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{self, Ordering};

struct Died;

thread_local! {
    /// Number of accesses that this thread makes before it dies; None: it does not die.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    /// Number of changes that this thread makes before its process is killed; None: it is not
    /// killed.
    static CHANGES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
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

/// Called before each change that other processes can see: of shared memory, of a file, of a lock.
pub(crate) fn change() {
    step();
    if let Some(left) = CHANGES_LEFT.get() {
        if left == 0 {
            end_this_process();
        }
        CHANGES_LEFT.set(Some(left - 1));
    }
}

/// Kills this process immediately, with all its locks and in the middle of its work.
pub(crate) fn end_this_process() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        // The signal ends the process before the call returns; never go on.
        std::thread::park();
    }
}

/// Runs `work` and returns its result and the number of changes that it made. Kills this process
/// before one change more than `changes`.
pub(crate) fn killed_after<T>(changes: u64, work: impl FnOnce() -> T) -> (T, u64) {
    CHANGES_LEFT.set(Some(changes));
    let result = work();
    let left = CHANGES_LEFT.take().unwrap_or_default();
    (result, changes - left)
}

/// Runs `work` and returns its result, or None if the thread died after this number of accesses.
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
        /// Same as the type of the standard library, with a crash point before each access.
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
                change();
                self.0.store(value, order);
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                change();
                self.0.fetch_or(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                change();
                self.0.compare_exchange(old, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

impl AtomicU64 {
    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        change();
        self.0.fetch_and(value, order)
    }

    pub(super) fn swap(&self, value: u64, order: Ordering) -> u64 {
        change();
        self.0.swap(value, order)
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        change();
        self.0.fetch_add(value, order)
    }
}

impl AtomicU32 {
    pub(crate) fn plain(&self) -> &atomic::AtomicU32 {
        &self.0
    }
}
