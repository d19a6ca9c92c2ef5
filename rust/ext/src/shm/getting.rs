//! From messages that were taken to objects.

use std::sync::Arc;

use pyo3::exceptions::{PyGeneratorExit, PyKeyboardInterrupt, PyOSError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use shoal_core::shm::session::{self, Held};
use shoal_core::shm::{Descriptor, Keep, Loan, Payload};

use super::aside::{Kept, Later, Rebuilt};
use super::codec::{LENT, decode_block, decode_inline};
use super::errors::{not_reached, not_rebuilt};
use super::here::Here;
use super::loan::{Lent, Loan as Memory};
use super::message::{Parting, PyShmMessage};
use super::parcel::PyShmParcel;
use super::queue::PyShmQueue;
use super::taking::{Get, Took};

/// Why there is no object.
pub(super) enum Failure {
    /// The message cannot be rebuilt, and is gone.
    Spoilt(PyErr),
    /// A signal came, or the system has too little of something; the message is as good as before.
    Interrupted(PyErr, Box<Kept>),
}

/// Whether an error is no signal's: it can be kept from the caller, who gets something else. Also
/// one to end the program: whoever sent the message is not to end who gets it.
pub(super) fn is_ordinary(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyKeyboardInterrupt>(py) && !error.is_instance_of::<PyGeneratorExit>(py)
}

impl PyShmQueue {
    /// Takes one message.
    #[inline]
    pub(super) fn get_one<'py>(
        &self,
        py: Python<'py>,
        get: &Get<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(later) = self.aside.take() {
            let object = self.get_later(py, later, get.keep);
            return object.map_err(|failure| self.raised(failure));
        }
        let here = self.here(py, get.operation)?;
        let mut words = [[0; 8]; Descriptor::INLINE / 8];
        let (mut took, mut loan) = (None, None);
        self.take(py, here, get, &mut |message| {
            message.copy_words(&mut words);
            took = Some(Took::of(&message));
            loan = message.loan();
        })?;
        let took = took.ok_or_else(nothing_taken)?;
        let bytes = words.as_flattened();
        if let (Payload::Inline(len), None) = (took.payload, &loan)
            && !self.parcels
        {
            let bytes = bytes.get(..len).unwrap_or_default();
            return decode_inline(py, took.label.kind, bytes)
                .map_err(|error| self.raised(self.failure(py, took, None, bytes, error)));
        }
        self.get_held(py, here, get.keep, took, loan, bytes)
    }

    /// One message that is not only a copy.
    fn get_held<'py>(
        &self,
        py: Python<'py>,
        here: &Here,
        keep: Keep,
        took: Took,
        loan: Option<Loan>,
        bytes: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let held = hold(here, took, loan);
        let object = self.rebuild(py, took, held.clone(), bytes);
        let object = object.map_err(|failure| self.raised(failure))?;
        handed_out(object, keep, Parting::of(took), held)
    }

    /// What an earlier get left.
    #[cold]
    pub(super) fn get_later<'py>(
        &self,
        py: Python<'py>,
        later: Later,
        keep: Keep,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let rebuilt = self.rebuild_later(py, later)?;
        handed_out_later(py, rebuilt, keep).map_err(Failure::Spoilt)
    }

    /// The object of what an earlier get left.
    #[cold]
    pub(super) fn rebuild_later(&self, py: Python<'_>, later: Later) -> Result<Rebuilt, Failure> {
        match later {
            Later::Error(error) => Err(Failure::Spoilt(error)),
            Later::Object(rebuilt) => Ok(rebuilt),
            Later::Message(Kept { took, held, bytes }) => {
                let object = self.rebuild(py, took, held.clone(), &bytes)?;
                Ok(Rebuilt {
                    object: object.unbind(),
                    parting: Parting::of(took),
                    held,
                })
            }
        }
    }

    /// The object of a message; `bytes` begin with those that were copied.
    pub(super) fn rebuild<'py>(
        &self,
        py: Python<'py>,
        took: Took,
        held: Option<Arc<Held>>,
        bytes: &[u8],
    ) -> Result<Bound<'py, PyAny>, Failure> {
        if let Some(held) = &held
            && let Err(error) = held.reach()
        {
            return Err(self.not_reached(py, took, held, &error));
        }
        let kind = took.label.kind;
        let object = match (took.payload, &held) {
            (Payload::Block(_), None) => Err(nothing_taken()),
            _ if self.parcels => parcel(py, took, held.as_ref(), bytes),
            (Payload::Block(_), Some(held)) => decode_block(py, kind, &Lent(Arc::clone(held))),
            (Payload::Inline(len), _) => {
                decode_inline(py, kind, bytes.get(..len).unwrap_or_default())
            }
        };
        object.map_err(|error| self.failure(py, took, held, bytes, error))
    }

    #[cold]
    fn not_reached(
        &self,
        py: Python<'_>,
        took: Took,
        held: &Arc<Held>,
        error: &session::Error,
    ) -> Failure {
        if error.is_passing() {
            let kept = kept_of(took, Some(Arc::clone(held)), &[]);
            let error = not_reached(py, &self.name, took.label.sender, error);
            return Failure::Interrupted(error, Box::new(kept));
        }
        let error = PyOSError::new_err(error.to_string());
        self.failure(py, took, Some(Arc::clone(held)), &[], error)
    }

    #[cold]
    fn failure(
        &self,
        py: Python<'_>,
        took: Took,
        held: Option<Arc<Held>>,
        bytes: &[u8],
        error: PyErr,
    ) -> Failure {
        if !is_ordinary(py, &error) {
            let kept = kept_of(took, held, bytes);
            return Failure::Interrupted(error, Box::new(kept));
        }
        if let Some(held) = held {
            // Nobody else should get what cannot be rebuilt. Where this process was taken for dead,
            // somebody else does.
            let _ = held.acknowledge();
        }
        Failure::Spoilt(not_rebuilt(py, &self.name, took.label.sender, error))
    }

    /// The error to be raised; a message that is left is for the next get.
    pub(super) fn raised(&self, failure: Failure) -> PyErr {
        match failure {
            Failure::Spoilt(error) => error,
            Failure::Interrupted(error, kept) => {
                self.aside.put_back(Later::Message(*kept));
                error
            }
        }
    }
}

/// A message as it is: what is long stays where it lies.
fn parcel<'py>(
    py: Python<'py>,
    took: Took,
    held: Option<&Arc<Held>>,
    bytes: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let length = usize::try_from(took.payload.length())?;
    let data = match (took.payload, held) {
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
    PyShmParcel::taken(py, took.label, data, length)
}

/// What keeps a message where it is, if something has to.
pub(super) fn hold(here: &Here, took: Took, loan: Option<Loan>) -> Option<Arc<Held>> {
    Some(Arc::new(here.queue.keep(loan?, took.payload)))
}

pub(super) fn kept_of(took: Took, held: Option<Arc<Held>>, bytes: &[u8]) -> Kept {
    let bytes = match took.payload {
        Payload::Inline(len) => bytes.get(..len).unwrap_or_default().to_vec(),
        Payload::Block(_) => Vec::new(),
    };
    Kept { took, held, bytes }
}

/// The object that an earlier get left, or the lease of it.
pub(super) fn handed_out_later(
    py: Python<'_>,
    rebuilt: Rebuilt,
    keep: Keep,
) -> PyResult<Bound<'_, PyAny>> {
    let Rebuilt {
        object,
        parting,
        held,
    } = rebuilt;
    if let Some(held) = &held
        && keep != Keep::Lease
    {
        // It was taken as a lease, and is handed out as if it were none.
        let _ = held.acknowledge();
    }
    handed_out(object.into_bound(py), keep, parting, held)
}

/// The object, or the lease of it.
pub(super) fn handed_out(
    object: Bound<'_, PyAny>,
    keep: Keep,
    parting: Parting,
    held: Option<Arc<Held>>,
) -> PyResult<Bound<'_, PyAny>> {
    if keep != Keep::Lease {
        return Ok(object);
    }
    let py = object.py();
    Ok(Bound::new(py, PyShmMessage::new(object, parting, held))?.into_any())
}

#[cold]
pub(super) fn nothing_taken() -> PyErr {
    PyOSError::new_err("a message was taken that is not there")
}
