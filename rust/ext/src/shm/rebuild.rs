//! Rebuilding objects from messages that were taken.

use std::sync::Arc;

use pyo3::exceptions::{PyGeneratorExit, PyKeyboardInterrupt, PyOSError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use shoal_codec::{LENT, decode_block, decode_inline};
use shoal_shm::session::{self, Held};
use shoal_shm::{Keep, Payload};

use super::errors::{not_reached, not_rebuilt, of_spoilt};
use super::get::MessageInfo;
use super::loan::{Loan, Owner, Source};
use super::message::PyShmMessage;
use super::parcel::PyShmParcel;
use super::process_queue::ProcessQueue;
use super::queue::PyShmQueue;
use super::taken_batch::TakenBatch;

/// Why a message could not be rebuilt.
pub(super) enum Failure {
    /// The message can never be rebuilt, and is gone.
    Spoilt(PyErr),
    /// A signal handler raised, or the system lacks a resource now; the message is intact.
    Interrupted(PyErr),
}

/// Whether an error does not come from a signal, so that a later get may raise it. `SystemExit`
/// counts as ordinary too: the sender of a message must not end its receiver.
pub(super) fn is_ordinary(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyKeyboardInterrupt>(py) && !error.is_instance_of::<PyGeneratorExit>(py)
}

impl PyShmQueue {
    /// The objects of messages, or their leases.
    ///
    /// # Errors
    ///
    /// If some messages cannot be rebuilt, the error of the first has the objects of the others as
    /// its `items`. If the rebuilding is interrupted, the next get returns all of them.
    pub(super) fn rebuild_all<'py>(
        &self,
        py: Python<'py>,
        here: &ProcessQueue,
        batch: TakenBatch,
        keep: Keep,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (mut objects, mut spoilt) = (Vec::with_capacity(batch.all.len()), Vec::new());
        for message in &batch.all {
            let (info, held) = (message.info, message.held.as_ref());
            match self.rebuild(py, info, held, batch.bytes_of(message)) {
                Ok(object) => objects.push(handed_out(object, keep, info, held)?),
                Err(Failure::Spoilt(error)) => spoilt.push(error),
                Err(Failure::Interrupted(error)) => {
                    drop(objects);
                    here.interrupted.put_back(&self.key, batch);
                    return Err(error);
                }
            }
        }
        if spoilt.is_empty() {
            return Ok(objects);
        }
        Err(of_spoilt(py, spoilt, objects))
    }

    /// The object of a message; `bytes` begin with its payload if that was copied.
    pub(super) fn rebuild<'py>(
        &self,
        py: Python<'py>,
        info: MessageInfo,
        held: Option<&Arc<Held>>,
        bytes: &[u8],
    ) -> Result<Bound<'py, PyAny>, Failure> {
        if let Some(held) = held
            && let Err(error) = held.reach()
        {
            return Err(self.not_reached(py, info, held, &error));
        }
        let kind = info.label.kind;
        let object = match (info.payload, held) {
            (Payload::Block(_), None) => Err(nothing_taken()),
            _ if self.parcels => parcel(py, info, held, bytes),
            (Payload::Block(_), Some(held)) => {
                decode_block(py, kind, &Source::Taken(Arc::clone(held)))
            }
            (Payload::Inline(len), _) => {
                decode_inline(py, kind, bytes.get(..len).unwrap_or_default())
            }
        };
        object.map_err(|error| self.failure(py, info, held, error))
    }

    #[cold]
    fn not_reached(
        &self,
        py: Python<'_>,
        info: MessageInfo,
        held: &Arc<Held>,
        error: &session::Error,
    ) -> Failure {
        if error.is_passing() {
            return Failure::Interrupted(not_reached(py, &self.name, info.label.sender, error));
        }
        let error = PyOSError::new_err(error.to_string());
        self.failure(py, info, Some(held), error)
    }

    #[cold]
    pub(super) fn failure(
        &self,
        py: Python<'_>,
        info: MessageInfo,
        held: Option<&Arc<Held>>,
        error: PyErr,
    ) -> Failure {
        if !is_ordinary(py, &error) {
            return Failure::Interrupted(error);
        }
        if let Some(held) = held {
            // No other consumer should get a message that cannot be rebuilt. This fails if another
            // process took this one for dead: then another consumer gets the message.
            let _ = held.acknowledge();
        }
        Failure::Spoilt(not_rebuilt(py, &self.name, info.label.sender, error))
    }
}

/// A message as a parcel: a long payload stays in shared memory.
fn parcel<'py>(
    py: Python<'py>,
    info: MessageInfo,
    held: Option<&Arc<Held>>,
    bytes: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let length = usize::try_from(info.payload.length())?;
    let data = match (info.payload, held) {
        (Payload::Block(_), Some(held)) if length >= LENT => {
            Loan::of(py, Owner::Taken(Arc::clone(held)), 0, length)?
        }
        (Payload::Block(_), Some(held)) => PyByteArray::new_with(py, length, |to| {
            held.read(0, to)
                .map_err(|error| PyOSError::new_err(error.to_string()))
        })?
        .into_any(),
        _ => PyByteArray::new(py, bytes.get(..length).unwrap_or_default()).into_any(),
    };
    PyShmParcel::taken(py, info.label, data, length)
}

/// The object, or its lease.
pub(super) fn handed_out<'py>(
    object: Bound<'py, PyAny>,
    keep: Keep,
    info: MessageInfo,
    held: Option<&Arc<Held>>,
) -> PyResult<Bound<'py, PyAny>> {
    if keep != Keep::Lease {
        return Ok(object);
    }
    let py = object.py();
    let message = PyShmMessage::new(object, info, held.cloned());
    Ok(Bound::new(py, message)?.into_any())
}

#[cold]
pub(super) fn nothing_taken() -> PyErr {
    PyOSError::new_err(
        "the queue says that it took a message, but returned none: a defect of shoal",
    )
}
