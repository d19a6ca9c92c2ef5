//! From messages that were taken to objects.

use std::sync::Arc;

use pyo3::exceptions::{PyException, PyOSError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use shoal_core::shm::session::Held;
use shoal_core::shm::{Descriptor, Intent, Keep, Loan, Payload, Want};

use super::aside::{Kept, Later};
use super::codec::{decode_block, decode_inline};
use super::errors::not_rebuilt;
use super::here::Here;
use super::loan::Lent;
use super::message::PyShmMessage;
use super::queue::PyShmQueue;
use super::taking::{Get, Took};

/// Why there is no object.
enum Failure {
    /// The message cannot be rebuilt, and is gone.
    Spoilt(PyErr),
    /// A signal came, say; the message is as good as before.
    Interrupted(PyErr, Box<Kept>),
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
            return self.get_later(py, later, get.keep);
        }
        let here = self.here(py, get.operation)?;
        let mut bytes = [0; Descriptor::INLINE];
        let (mut took, mut loan) = (None, None);
        self.take(py, here, get, &mut |message| {
            message.copy(&mut bytes);
            took = Some(Took::of(&message));
            loan = message.loan();
        })?;
        let took = took.ok_or_else(nothing_taken)?;
        if let (Payload::Inline(len), None) = (took.payload, &loan) {
            let bytes = bytes.get(..len).unwrap_or_default();
            return decode_inline(py, took.label.kind, bytes)
                .map_err(|error| self.raised(self.failure(py, took, None, bytes, error)));
        }
        self.get_held(py, here, get.keep, took, loan, &bytes)
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
        let redelivered = took.redelivered;
        let rebuilt = self
            .hold(py, here, took, loan)
            .and_then(|held| Ok((self.rebuild(py, took, held.clone(), bytes)?, held)));
        let (object, held) = rebuilt.map_err(|failure| self.raised(failure))?;
        handed_out(object, keep, redelivered, held)
    }

    /// What an earlier get left.
    #[cold]
    fn get_later<'py>(
        &self,
        py: Python<'py>,
        later: Later,
        keep: Keep,
    ) -> PyResult<Bound<'py, PyAny>> {
        match later {
            Later::Error(error) => Err(error),
            Later::Object(object) => handed_out(object.into_bound(py), keep, false, None),
            Later::Message(Kept { took, held, bytes }) => {
                let object = self.rebuild(py, took, held.clone(), &bytes);
                let object = object.map_err(|failure| self.raised(failure))?;
                if let Some(held) = &held
                    && keep != Keep::Lease
                {
                    // It was taken as a lease, and is handed out as if it were none.
                    let _ = held.acknowledge();
                }
                handed_out(object, keep, took.redelivered, held)
            }
        }
    }

    /// Takes several: all are copied before the first is rebuilt.
    pub(super) fn get_several<'py>(
        &self,
        py: Python<'py>,
        get: &Get<'_, '_>,
    ) -> PyResult<Bound<'py, PyList>> {
        if let Some(later) = self.aside.take() {
            return self.get_several_later(py, later, get.want);
        }
        let here = self.here(py, get.operation)?;
        let mut bytes = Vec::new();
        let mut all = Vec::new();
        self.take(py, here, get, &mut |message| {
            let start = bytes.len();
            if let Payload::Inline(len) = message.payload() {
                bytes.resize(start + len, 0);
                message.copy(&mut bytes[start..]);
            }
            all.push((Took::of(&message), message.loan(), start));
        })?;
        let (mut objects, mut errors) = (Vec::with_capacity(all.len()), Vec::new());
        let mut all = all.into_iter();
        while let Some((took, loan, start)) = all.next() {
            let bytes_of = |start| bytes.get(start..).unwrap_or_default();
            let held = self.hold(py, here, took, loan);
            match held.and_then(|held| self.rebuild(py, took, held, bytes_of(start))) {
                Ok(object) => objects.push(object),
                Err(Failure::Spoilt(error)) => errors.push(Later::Error(error)),
                Err(Failure::Interrupted(error, kept)) => {
                    let rest =
                        all.map(
                            |(took, loan, start)| match self.hold(py, here, took, loan) {
                                Ok(held) => Later::Message(kept_of(took, held, bytes_of(start))),
                                Err(failure) => Later::Error(self.raised(failure)),
                            },
                        );
                    let done = objects.into_iter().map(Bound::unbind).map(Later::Object);
                    let kept = [Later::Message(*kept)];
                    let left: Vec<_> = errors
                        .into_iter()
                        .chain(done)
                        .chain(kept)
                        .chain(rest)
                        .collect();
                    self.aside.add(left);
                    return Err(error);
                }
            }
        }
        if objects.is_empty() {
            let mut errors = errors.into_iter();
            let first = errors.next();
            self.aside.add(errors);
            return match first {
                Some(Later::Error(error)) => Err(error),
                _ => Err(nothing_taken()),
            };
        }
        if !errors.is_empty() {
            self.aside.add(errors);
        }
        PyList::new(py, objects)
    }

    /// What earlier gets left, as many as are wanted: they were taken together already.
    #[cold]
    fn get_several_later<'py>(
        &self,
        py: Python<'py>,
        first: Later,
        want: Want,
    ) -> PyResult<Bound<'py, PyList>> {
        let most = match want {
            Want::Count(count) => count,
            Want::Weight { .. } => Intent::MAX_TAKE,
        };
        let list = PyList::empty(py);
        let mut next = Some(first);
        while let Some(later) = next {
            match self.get_later(py, later, Keep::Copy) {
                Ok(object) => list.append(object)?,
                Err(error) if list.is_empty() => return Err(error),
                Err(error) if error.is_instance_of::<PyException>(py) => {
                    self.aside.put_back(Later::Error(error));
                    break;
                }
                Err(interruption) => {
                    for at in (0..list.len()).rev() {
                        let object = list.get_item(at)?.unbind();
                        self.aside.put_back(Later::Object(object));
                    }
                    return Err(interruption);
                }
            }
            let more = u32::try_from(list.len()).is_ok_and(|count| count < most);
            next = more.then(|| self.aside.take_message()).flatten();
        }
        Ok(list)
    }

    /// What keeps a message where it is, if something has to.
    fn hold(
        &self,
        py: Python<'_>,
        here: &Here,
        took: Took,
        loan: Option<Loan>,
    ) -> Result<Option<Arc<Held>>, Failure> {
        let Some(loan) = loan else {
            return Ok(None);
        };
        match here.queue.hold(loan, took.payload) {
            Ok(held) => Ok(Some(Arc::new(held))),
            Err(error) => {
                let error = PyOSError::new_err(error.to_string());
                Err(self.failure(py, took, None, &[], error))
            }
        }
    }

    /// The object of a message; `bytes` begin with those that were copied.
    fn rebuild<'py>(
        &self,
        py: Python<'py>,
        took: Took,
        held: Option<Arc<Held>>,
        bytes: &[u8],
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let kind = took.label.kind;
        let object = match (took.payload, &held) {
            (Payload::Block(_), Some(held)) => decode_block(py, kind, &Lent(Arc::clone(held))),
            (Payload::Inline(len), _) => {
                decode_inline(py, kind, bytes.get(..len).unwrap_or_default())
            }
            (Payload::Block(_), None) => Err(nothing_taken()),
        };
        object.map_err(|error| self.failure(py, took, held, bytes, error))
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
        if !error.is_instance_of::<PyException>(py) {
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
    fn raised(&self, failure: Failure) -> PyErr {
        match failure {
            Failure::Spoilt(error) => error,
            Failure::Interrupted(error, kept) => {
                self.aside.put_back(Later::Message(*kept));
                error
            }
        }
    }
}

fn kept_of(took: Took, held: Option<Arc<Held>>, bytes: &[u8]) -> Kept {
    let bytes = match took.payload {
        Payload::Inline(len) => bytes.get(..len).unwrap_or_default().to_vec(),
        Payload::Block(_) => Vec::new(),
    };
    Kept { took, held, bytes }
}

/// The object, or the lease of it.
fn handed_out(
    object: Bound<'_, PyAny>,
    keep: Keep,
    redelivered: bool,
    held: Option<Arc<Held>>,
) -> PyResult<Bound<'_, PyAny>> {
    if keep != Keep::Lease {
        return Ok(object);
    }
    let py = object.py();
    Ok(Bound::new(py, PyShmMessage::new(object, redelivered, held))?.into_any())
}

#[cold]
fn nothing_taken() -> PyErr {
    PyOSError::new_err("a message was taken that is not there")
}
