//! Loom's atomics, with two faults of its search mended.
//!
//! Loom tries two accesses in the other order where one of them writes and neither is known to come
//! before the other. Of each atomic it remembers the last access alone. Where `A` loads, then `B`
//! loads and writes, the last access before the write is `B`'s own load, so that the write is never
//! tried before `A`'s load: a consumer that finds nothing would be tried against no producer. Here
//! each load first writes to a companion that nobody reads; two of these are always tried in both
//! orders, and a relaxed write orders nothing else.
//!
//! Where one thread stores and another compares and exchanges, loom lets the exchange find the value
//! before the store, which is right, and then lets the first thread load what was exchanged, which
//! no machine does: its own store comes after that. [`overwrite`](super::sync::overwrite) stores by
//! an exchange, which loom gets right.

use loom::sync::atomic;
use std::sync::atomic::Ordering;

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// As the one of the standard library.
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

            /// As that of the standard library.
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

    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.value.fetch_and(value, order)
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
