//! The shared-memory core for Python: sessions, queues, and the conversion of objects to messages.
//!
//! No Python code runs in the middle of an operation on a queue: objects are encoded before it and
//! rebuilt after it. Calls that wait are detached from the interpreter for one slice at a time;
//! between slices they attach and handle signals. Messages are taken while attached, so that no
//! taken message is lost when a signal is handled.

mod arguments;
mod aside;
mod channel_base;
mod codec;
mod errors;
mod getting;
mod here;
mod hosts;
mod loan;
mod many;
mod message;
mod parcel;
mod peeking;
mod process;
mod putting;
mod queue;
mod reservation;
mod session;
mod several;
mod taking;

use std::time::Duration;

pub(crate) use channel_base::PyChannelBase;
pub(crate) use message::PyShmMessage;
pub(crate) use parcel::PyShmParcel;
pub(crate) use process::watch;
pub(crate) use queue::PyShmQueue;
pub(crate) use reservation::PyShmReservation;
pub(crate) use session::{PyShmSession, shm_gc};

/// Maximum sleep of a call before it handles signals and looks for dead processes. A little longer
/// than the minimum pause between two such looks, so that a look is due after each slice, and short
/// enough for Ctrl-C and for messages of dead processes. Each slice costs about 0.1 ms.
const SLICE: Duration = Duration::from_millis(90);

/// Number of tries while a call is still attached: detaching and attaching again takes about as
/// long as this many tries.
const SPINS: u32 = 64;
