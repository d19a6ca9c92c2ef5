//! Rebuilding objects from messages that were taken, or that earlier gets left.

use std::sync::Arc;

use pyo3::exceptions::{PyGeneratorExit, PyKeyboardInterrupt, PyOSError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use shoal_codec::{LENT, decode_block, decode_inline};
use shoal_shm::session::{self, Held};
use shoal_shm::{Keep, Loan, Payload};

use super::deferred::{DeferredItem, Rebuilt, TakenMessage};
use super::errors::{not_reached, not_rebuilt};
use super::get::MessageInfo;
use super::loan::{Lent, Loan as Memory};
use super::message::{LeaseInfo, PyShmMessage};
use super::parcel::PyShmParcel;
use super::process_queue::ProcessQueue;
use super::queue::PyShmQueue;

/// Why a message could not be rebuilt.
pub(super) enum Failure {
    /// The message can never be rebuilt, and is gone.
    Spoilt(PyErr),
    /// A signal handler raised, or the system lacks a resource now; the message is intact.
    Interrupted(PyErr, Box<TakenMessage>),
}

/// Whether an error does not come from a signal, so that a later get may raise it. `SystemExit`
/// counts as ordinary too: the sender of a message must not end its receiver.
pub(super) fn is_ordinary(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyKeyboardInterrupt>(py) && !error.is_instance_of::<PyGeneratorExit>(py)
}

impl PyShmQueue {
    /// The object, or its lease, of a message that an earlier get left.
    #[cold]
    pub(super) fn get_deferred<'py>(
        &self,
        py: Python<'py>,
        later: DeferredItem,
        keep: Keep,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let rebuilt = self.rebuild_deferred(py, later)?;
        handed_out_deferred(py, rebuilt, keep).map_err(Failure::Spoilt)
    }

    /// The object of a message that an earlier get left.
    #[cold]
    pub(super) fn rebuild_deferred(
        &self,
        py: Python<'_>,
        later: DeferredItem,
    ) -> Result<Rebuilt, Failure> {
        match later {
            DeferredItem::Error(error) => Err(Failure::Spoilt(error)),
            DeferredItem::Object(rebuilt) => Ok(rebuilt),
            DeferredItem::Message(TakenMessage { info, held, bytes }) => {
                let object = self.rebuild(py, info, held.clone(), &bytes)?;
                Ok(Rebuilt {
                    object: object.unbind(),
                    lease_info: LeaseInfo::of(info),
                    held,
                })
            }
        }
    }

    /// The object of a message; `bytes` begin with its payload if that was copied.
    pub(super) fn rebuild<'py>(
        &self,
        py: Python<'py>,
        info: MessageInfo,
        held: Option<Arc<Held>>,
        bytes: &[u8],
    ) -> Result<Bound<'py, PyAny>, Failure> {
        if let Some(held) = &held
            && let Err(error) = held.reach()
        {
            return Err(self.not_reached(py, info, held, &error));
        }
        let kind = info.label.kind;
        let object = match (info.payload, &held) {
            (Payload::Block(_), None) => Err(nothing_taken()),
            _ if self.parcels => parcel(py, info, held.as_ref(), bytes),
            (Payload::Block(_), Some(held)) => decode_block(py, kind, &Lent(Arc::clone(held))),
            (Payload::Inline(len), _) => {
                decode_inline(py, kind, bytes.get(..len).unwrap_or_default())
            }
        };
        object.map_err(|error| self.failure(py, info, held, bytes, error))
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
            let kept = taken_message(info, Some(Arc::clone(held)), &[]);
            let error = not_reached(py, &self.name, info.label.sender, error);
            return Failure::Interrupted(error, Box::new(kept));
        }
        let error = PyOSError::new_err(error.to_string());
        self.failure(py, info, Some(Arc::clone(held)), &[], error)
    }

    #[cold]
    pub(super) fn failure(
        &self,
        py: Python<'_>,
        info: MessageInfo,
        held: Option<Arc<Held>>,
        bytes: &[u8],
        error: PyErr,
    ) -> Failure {
        if !is_ordinary(py, &error) {
            let kept = taken_message(info, held, bytes);
            return Failure::Interrupted(error, Box::new(kept));
        }
        if let Some(held) = held {
            // No other consumer should get a message that cannot be rebuilt. This fails if another
            // process took this one for dead: then another consumer gets the message.
            let _ = held.acknowledge();
        }
        Failure::Spoilt(not_rebuilt(py, &self.name, info.label.sender, error))
    }

    /// The error to be raised. An intact message is left for the next get.
    pub(super) fn raised(&self, failure: Failure) -> PyErr {
        match failure {
            Failure::Spoilt(error) => error,
            Failure::Interrupted(error, kept) => {
                self.deferred.put_back(DeferredItem::Message(*kept));
                error
            }
        }
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
            Bound::new(py, Memory::of_taken(held))?.into_any()
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

/// Keeps the message of a loan in place; None without a loan.
pub(super) fn hold(
    here: &ProcessQueue,
    info: MessageInfo,
    loan: Option<Loan>,
) -> Option<Arc<Held>> {
    Some(Arc::new(here.queue.keep(loan?, info.payload)))
}

pub(super) fn taken_message(
    info: MessageInfo,
    held: Option<Arc<Held>>,
    bytes: &[u8],
) -> TakenMessage {
    let bytes = match info.payload {
        Payload::Inline(len) => bytes.get(..len).unwrap_or_default().to_vec(),
        Payload::Block(_) => Vec::new(),
    };
    TakenMessage { info, held, bytes }
}

/// The object that an earlier get left, or its lease.
pub(super) fn handed_out_deferred(
    py: Python<'_>,
    rebuilt: Rebuilt,
    keep: Keep,
) -> PyResult<Bound<'_, PyAny>> {
    let Rebuilt {
        object,
        lease_info,
        held,
    } = rebuilt;
    if let Some(held) = &held
        && keep != Keep::Lease
    {
        // It was taken with a lease, but this get returns the object without one.
        let _ = held.acknowledge();
    }
    handed_out(object.into_bound(py), keep, lease_info, held)
}

/// The object, or its lease.
pub(super) fn handed_out(
    object: Bound<'_, PyAny>,
    keep: Keep,
    lease_info: LeaseInfo,
    held: Option<Arc<Held>>,
) -> PyResult<Bound<'_, PyAny>> {
    if keep != Keep::Lease {
        return Ok(object);
    }
    let py = object.py();
    Ok(Bound::new(py, PyShmMessage::new(object, lease_info, held))?.into_any())
}

#[cold]
pub(super) fn nothing_taken() -> PyErr {
    PyOSError::new_err(
        "the queue says that it took a message, but returned none: a defect of shoal",
    )
}
