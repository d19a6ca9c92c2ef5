//! Loom's atomics, with workarounds for two faults of its search.
//!
//! Loom tries two accesses in both orders if one of them writes and neither is known to come before
//! the other. But it remembers only the last access to each atomic. If thread `A` loads, and then
//! thread `B` loads and writes, the last access before the write is `B`'s own load. So the write is
//! never tried before `A`'s load: a consumer that finds nothing would never be tried against a
//! producer. Here each load first writes to a companion that no thread reads. Two such writes are
//! always tried in both orders, and a relaxed write orders nothing else.
//!
//! If one thread stores and another compares and exchanges, loom lets the exchange find the value
//! from before the store, which is right. But it then lets the first thread load the exchanged
//! value, which no machine does: its own store comes after that.
//! [`overwrite`](crate::sync::overwrite) stores by an exchange, which loom handles correctly.

use loom::sync::atomic;
use std::sync::atomic::Ordering;

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// Same as the type of the standard library.
        #[derive(Debug)]
        pub struct $name {
            value: atomic::$name,
            loads: atomic::AtomicU32,
        }

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self {
                    value: atomic::$name::new(value),
                    loads: atomic::AtomicU32::new(0),
                }
            }

            /// Same as `load` of the standard library.
            pub fn load(&self, order: Ordering) -> $value {
                self.loads.store(0, Ordering::Relaxed);
                self.value.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.value.store(value, order);
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.value.compare_exchange(old, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

impl AtomicU64 {
    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.value.fetch_or(value, order)
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.value.swap(value, order)
    }
}

impl AtomicU32 {
    pub(crate) fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
        self.value.fetch_or(value, order)
    }
}
