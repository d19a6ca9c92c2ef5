//! The shared-memory core for Python: sessions and queues, and how objects become messages.
//!
//! Nothing of Python runs in the middle of an operation on a queue: objects are encoded before, and
//! rebuilt afterwards. Calls that wait do so detached from the interpreter, in slices; between them
//! they are attached and look for signals. Messages are taken while attached, so that none is in
//! hand when a signal is noticed.

mod arguments;
mod aside;
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
mod port;
mod process;
mod putting;
mod queue;
mod reservation;
mod session;
mod several;
mod taking;

use std::time::Duration;

pub(crate) use message::PyShmMessage;
pub(crate) use parcel::PyShmParcel;
pub(crate) use port::PyShmPort;
pub(crate) use process::watch;
pub(crate) use queue::PyShmQueue;
pub(crate) use reservation::PyShmReservation;
pub(crate) use session::{PyShmSession, shm_gc};

/// How long a call sleeps at most before it looks for signals and for the dead: a little longer than
/// the pause between two looks for these, so that each of its own finds it over, and short enough for
/// Ctrl-C and for a message of the dead. Each slice costs about 0.1 ms.
const SLICE: Duration = Duration::from_millis(90);

/// How often a call looks while it is still attached: to detach and to attach again takes about as
/// long as so many looks.
const SPINS: u32 = 64;
