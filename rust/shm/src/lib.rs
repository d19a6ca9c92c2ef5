//! Queues in shared memory between the processes of one user on one machine, any of which may be
//! killed at any time.
//!
//! A process makes a [`Session`](session::Session); other processes attach to it by its token. All
//! of them put messages into the [queues](session::SessionQueue) of the session and take them out,
//! each message goes to one consumer, and small ones need neither a lock nor a call of the system.
//! If a process dies, the messages that it had in hand are delivered again, or are counted as lost
//! if they were on loan; no other process waits for it.
//!
//! ```
//! # #[cfg(target_os = "linux")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shoal_shm::payload::choose;
//! use shoal_shm::session::{Bounds, MemoryPolicy, Offer, Session, Settings};
//! use shoal_shm::{Keep, Label, Want};
//!
//! let folder = tempfile::tempdir()?;
//! let chosen = choose(Some(folder.path()), Some(folder.path()), Some(1 << 20))?;
//! let session = Session::create(&Settings {
//!     folder: chosen.folder,
//!     disk: chosen.disk,
//!     payload_on_disk: chosen.payload_on_disk,
//!     max_bytes: chosen.max_bytes,
//!     backlog: 1000,
//!     memory_policy: MemoryPolicy::Block,
//!     overfill: false,
//! })?;
//! let bounds = Bounds { maxsize: Some(8), max_bytes: None };
//! let queue = session.queue(b"numbers", bounds)?;
//! assert!(matches!(queue.offer(Label::default(), b"seven")?, Offer::Put));
//!
//! // Another process attaches with `session.token()`.
//! let mut text = [0; 5];
//! queue.take(Want::Count(1), Keep::Copy, &mut |message| message.copy(&mut text))?;
//! assert_eq!(&text, b"seven");
//! # Ok(())
//! # }
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! ```
//!
//! # Modules
//!
//! Each uses only those above it.
//!
//! | module | contents |
//! |---|---|
//! | `ring` | the queue itself: lock-free steps on memory, wherever the memory is |
//! | [`blocking`] | the loops of operations that wait |
//! | [`segment`] | the files of a session, and the memory that processes share through them |
//! | [`payload`] | the memory of messages that do not fit into a descriptor of the ring |
//! | [`session`] | the processes that share a folder of queues: joining, leaving, deaths, recovery |
//!
//! The page of the private module `ring` describes the protocol, its guarantees, the ordering of
//! each shared word, and the result of a death before each step: `cargo doc -p shoal-shm
//! --document-private-items`.

pub mod blocking;
#[cfg(all(target_os = "linux", not(loom)))]
mod crash_point;
#[cfg(all(test, not(loom)))]
mod failpoint;
#[doc(hidden)]
pub mod internals;
#[cfg(loom)]
mod loom_atomics;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod payload;
mod ring;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod segment;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod session;
mod sync;

pub use ring::{
    Corrupt, Descriptor, Intent, Keep, Label, Loan, Message, Payload, Refusal, Taken, WaitState,
    Want,
};
