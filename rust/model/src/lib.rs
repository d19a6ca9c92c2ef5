//! Models of two protocols, searched exhaustively: that of the shared-memory queue, and in
//! `payload` that of payloads with several readers.
//!
//! A step is one atomic access to shared memory (or one system call). The search interleaves the
//! steps of all processes in every way, under sequential consistency, and lets a process die before
//! any step. It cannot see the effects of weak memory; the loom tests of the implementation search
//! those. A change of the protocol starts here.
//!
//! Messages are stored in descriptors; the ring holds their indices. A producer fills a descriptor
//! before one compare-and-swap of a slot publishes it, so that a dead producer leaves no hole. A
//! consumer takes `n` messages by one compare-and-swap of `head`. Each announces in its intent
//! record what it is about to do, and a sweeper decides what to do with a descriptor whose process
//! died: one that was never published is freed, and one whose consumer died before it handed the
//! message on is published again. A message in the queue stays there, and is handed over to
//! `NOBODY`, so that another process may get the index of the dead one.
//!
//! `Mutant` lists broken variants; the tests prove that the search finds each of them.

mod closer;
mod consumer;
mod payload;
mod producer;
mod properties;
mod protocol;
mod state;
mod sweeper;
mod waiting;

pub use payload::{PayloadAction, PayloadMutant, PayloadState, Payloads};
pub use protocol::{Keep, Mutant, Protocol, Role};
pub use state::State;
