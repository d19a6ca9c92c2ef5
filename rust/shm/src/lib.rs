//! Queues in shared memory between processes, any of which may be killed.
//!
//! [`ring`]: the queue itself: lock-free steps on memory, wherever the memory is. Its page describes
//! the protocol, its guarantees, the ordering of each shared word, and the result of a death before
//! each step.
//!
//! [`segment`]: files, and the memory that processes share through them.
//!
//! [`payload`]: the memory of messages that do not fit into a descriptor of the ring.
//!
//! [`blocking`]: the loops of operations that wait.
//!
//! [`session`]: the processes that share a folder of queues: joining, leaving, deaths, recovery.

pub mod blocking;
#[cfg(loom)]
mod loom_atomics;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod payload;
pub mod ring;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod segment;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod session;
mod sync;

pub use ring::*;
pub use sync::{AtomicU32, AtomicU64};
