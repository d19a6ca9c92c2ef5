//! The queue under weak memory: loom runs every interleaving, with every value that a load may see.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p shoal-shm --test loom
//! ```
//!
//! Loom treats SeqCst accesses as AcqRel and does not reorder a load with a later store. The first
//! makes it stricter than the machine; the second is left to the stress test.
//!
//! A search is complete if its bound is None; otherwise it has at most that many preemptions. Tried
//! once with more: `two_sleeping_consumers_are_woken` is complete for 3 (70 s),
//! `closing_ends_every_wait` (50 s) and `two_sweepers_bring_a_message_back_once` without a bound.
#![cfg(loom)]

mod bytes;
mod exchange;
mod leases;
mod looks;
mod support;
mod sweeps;
mod waits;
