//! The parts of the queue, for programs that use it without a session: the searches of loom, the stress
//! tests, and `examples/limits.rs`, which measures what the machine can do. Not an API: it changes with the protocol.

#[cfg(all(target_os = "linux", not(loom)))]
pub use crate::ring::SystemFutex;
pub use crate::ring::heap;
pub use crate::ring::{
    Block, Claim, Entry, Futex, GivenBack, Header, INTENT_RECORDS, IntentRecord, Lap, MessageCopy,
    Owner, Participant, PeekOutcome, Queue, Ring, Slot, State, Sweeper, Swept, Table, Word,
    slots_for,
};
#[cfg(all(target_os = "linux", not(loom)))]
pub use crate::segment::file;
pub use crate::sync::{AtomicU32, AtomicU64};
