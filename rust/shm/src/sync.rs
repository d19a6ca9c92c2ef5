//! The choice of atomics: those of the machine, loom's, or those that count steps in unit tests.
//!
//! The other files take their atomics from here. Loom searches the orderings that weak memory
//! allows. The atomics of the unit tests can kill their thread before any access, so that no crash
//! point is forgotten.

pub(crate) use std::sync::atomic::Ordering;

#[cfg(all(test, not(loom)))]
pub use crate::failpoint::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub use crate::loom_atomics::{AtomicU32, AtomicU64};
#[cfg(not(any(test, loom)))]
pub use std::sync::atomic::{AtomicU32, AtomicU64};

/// Atomics for hints: private to one process, and possibly stale. Loom does not search them.
pub(crate) mod hint {
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::AtomicBool;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// A fence.
pub(crate) fn fence(ordering: Ordering) {
    #[cfg(loom)]
    loom::sync::atomic::fence(ordering);
    #[cfg(not(loom))]
    std::sync::atomic::fence(ordering);
}

/// A full fence between a preceding locked instruction and a load.
///
/// On x86 the locked instruction is that fence already, and a second one would cost 5 ns; only the
/// compiler has to know of it.
pub(crate) fn fence_after_locked() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fence(Ordering::SeqCst);
}

/// A store to a word that another thread may exchange at the same time. Under loom it is an
/// exchange, for the reason given in `loom_atomics`. The ordering has to be Release, and the caller
/// must have acquired the value that it overwrites: the exchange then orders nothing that the store
/// does not.
pub(crate) fn overwrite(word: &AtomicU64, value: u64, ordering: Ordering) {
    #[cfg(loom)]
    word.swap(value, ordering);
    #[cfg(not(loom))]
    word.store(value, ordering);
}

/// Lets another thread make progress, without which this one cannot.
pub(crate) fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// The atomic of the standard library, for system calls.
#[cfg(all(target_os = "linux", not(loom)))]
pub(crate) fn plain(word: &AtomicU32) -> &std::sync::atomic::AtomicU32 {
    #[cfg(test)]
    return word.plain();
    #[cfg(not(test))]
    word
}
