//! The protocol of the shared-memory queue, as a model that is searched exhaustively; and in
//! `payload` the one of payloads with several readers.
//!
//! A step is one atomic access to shared memory (or one system call); the search interleaves the
//! steps of all processes in every way, under sequential consistency, and lets a process die before
//! any step. What it cannot see, weak memory, is left to the loom tests of the implementation. A
//! change of the protocol starts here.
//!
//! Messages lie in descriptors; the ring holds their indices. A producer fills a descriptor before
//! one compare-and-swap of a slot publishes it, so that a dead producer leaves no hole. A consumer
//! takes `n` messages by one compare-and-swap of `head`. Each announces in its lane what it is about
//! to do, and a sweeper decides what became of a descriptor whose process died: what was never
//! published is freed, what was taken by somebody who died before handing it on is published again.
//! What is in the queue stays there, and is handed over to nobody, so that another process may get
//! the place of the dead one.
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
