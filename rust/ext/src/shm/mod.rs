//! The shared-memory core for Python: sessions, queues, and the conversion of objects to messages.
//!
//! No Python code runs in the middle of an operation on a queue: objects are encoded before it and
//! rebuilt after it. Calls that wait are detached from the interpreter for one slice at a time;
//! between slices they attach and handle signals. Messages are taken while attached, so that no
//! taken message is lost when a signal is handled.

mod arguments;
mod channel_base;
mod errors;
mod get;
mod get_many;
mod interrupted_gets;
mod lane;
mod loan;
mod message;
mod parcel;
mod peek;
mod per_process;
mod process;
mod process_queue;
mod put;
mod put_many;
mod queue;
mod rebuild;
mod reservation;
mod session;
mod taken_batch;
mod wait;
mod worker_base;

pub(crate) use channel_base::PyChannelBase;
pub(crate) use lane::{PyLaneCancel, PyLaneClient, PyLaneMessage, PyLaneQueue, PyLaneServer};
pub(crate) use message::PyShmMessage;
pub(crate) use parcel::PyShmParcel;
pub(crate) use peek::shm_queues;
pub(crate) use process::watch;
pub(crate) use queue::PyShmQueue;
pub(crate) use reservation::PyShmReservation;
pub(crate) use session::{PyShmSession, shm_gc};
pub(crate) use worker_base::PyWorkerBase;
