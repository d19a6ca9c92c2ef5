//! `ShmReservation`: shared memory for an array that the caller fills in place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PySequence, PyString, PyTuple};
use shoal_codec::{self as codec, Encoded, encode};
use shoal_shm::session::{Draft, Outgoing, Session};

use super::arguments::{LARGEST, shown, whole, wrong_type};
use super::errors::bad_value;
use super::loan::{Loan, Owner};
use super::process_queue::ProcessQueue;
use super::put::{Put, fill};
use super::queue::PyShmQueue;

/// Memory for an array that `put` then sends without a copy.
#[pyclass(frozen, weakref, name = "ShmReservation", module = "shoal.shm")]
pub(crate) struct PyShmReservation {
    session: Arc<Session>,
    /// Locked only briefly, and never while Python is called.
    state: Mutex<State>,
}

/// The array and its memory; after its end the word for that, `put` or `cancelled`.
type State = Result<Box<Open>, &'static str>;

struct Open {
    array: Py<PyAny>,
    /// The message that contains the values; None if the array has memory of its own and is encoded
    /// like any other.
    room: Option<Room>,
}

struct Room {
    message: Box<codec::Reservation>,
    draft: Draft,
}

impl PyShmReservation {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the contents, which ends the reservation as `as_what`. If it has ended already,
    /// returns how.
    fn take(&self, as_what: &'static str) -> State {
        let mut state = self.state();
        let how = state.as_ref().err().copied().unwrap_or(as_what);
        std::mem::replace(&mut *state, Err(how))
    }
}

fn ended(py: Python<'_>, how: &str) -> PyErr {
    bad_value(py, format!("the reservation was {how}"))
}

#[pymethods]
impl PyShmReservation {
    /// The memory as a writable numpy array, or as a torch tensor for a torch dtype.
    #[getter]
    fn array(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let how = match &*self.state() {
            Ok(open) => return Ok(open.array.clone_ref(py)),
            Err(how) => *how,
        };
        Err(ended(py, how))
    }

    /// Release the memory. Idempotent; does nothing after the put.
    fn cancel(&self) {
        drop(self.take("cancelled"));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error), text_signature = "(*error)")]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.cancel();
    }
}

impl PyShmQueue {
    /// Allocates memory for an array, waiting for it if necessary.
    pub(super) fn make_reservation(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        put: &mut Put<'_, '_>,
    ) -> PyResult<PyShmReservation> {
        let here = self.open_queue(py, put.operation)?;
        let sizes = sizes(shape)?;
        let made = |open| PyShmReservation {
            session: Arc::clone(here.queue.session()),
            state: Mutex::new(Ok(Box::new(open))),
        };
        let beside = |array: Bound<'_, PyAny>| Open {
            array: array.unbind(),
            room: None,
        };
        let message = match described(&sizes, dtype)? {
            Described::Message(message) => message,
            Described::Array(array) => return Ok(made(beside(array))),
        };
        let Some(encoded) = message.message() else {
            return Ok(made(beside(message.object(py, None)?)));
        };
        let draft = self.draft(py, here, put, encoded)?;
        let (at, len) = message.values();
        let (mapping, start) = draft.place();
        let view = Loan::of(py, Owner::Draft(mapping, start), at, len)?;
        let array = message.object(py, Some(view))?.unbind();
        let room = Some(Room { message, draft });
        Ok(made(Open { array, room }))
    }

    /// Allocates memory and writes a message into it, except for its values.
    fn draft(
        &self,
        py: Python<'_>,
        here: &ProcessQueue,
        put: &mut Put<'_, '_>,
        encoded: &Encoded,
    ) -> PyResult<Draft> {
        let (queue, length) = (&here.queue, encoded.total_len() as u64);
        let mut producer = queue.producer();
        let make = || py.detach(|| queue.draft(length));
        let made = put
            .limit
            .wait(py, |until| producer.draft(length, until, make))?;
        let draft = self.outcome(py, queue, put, made)?;
        fill(&draft, encoded)
            .map(|()| draft)
            .map_err(|error| self.failed(py, put.operation, &error))
    }

    /// Puts a reserved array. If that fails, the reservation stays open.
    pub(super) fn put_reserved(
        &self,
        py: Python<'_>,
        put: &mut Put<'_, '_>,
        reserved: &PyShmReservation,
        weight: u64,
    ) -> PyResult<()> {
        let here = self.process_queue(py, put.operation)?;
        if !Arc::ptr_eq(&reserved.session, here.queue.session()) {
            return Err(bad_value(
                py,
                "the reservation was made by another process, or in another session".to_owned(),
            ));
        }
        let Open { array, room } = *reserved.take("put").map_err(|how| ended(py, how))?;
        let mut producer = here.queue.producer();
        let (put, room) = match room {
            None => {
                let room = self.wait_for_room(py, &mut producer, put);
                let put = room.and_then(|()| {
                    let encoded = encode(array.bind(py))?;
                    let label = here.label(weight, encoded.kind());
                    self.put_encoded(py, &mut producer, put, label, &encoded)
                });
                (put, None)
            }
            Some(Room { message, draft }) => {
                let kind = message.message().map_or(0, Encoded::kind);
                let label = here.label(weight, kind);
                let mut outgoing = Outgoing::Written(Some(draft));
                let put = self.put_message(py, &mut producer, put, label, &mut outgoing);
                let room = match outgoing {
                    Outgoing::Written(Some(draft)) => Some(Room { message, draft }),
                    _ => None,
                };
                (put, room)
            }
        };
        if put.is_err() {
            *reserved.state() = Ok(Box::new(Open { array, room }));
        }
        put
    }
}

/// How an array of a given shape and dtype is made.
enum Described<'py> {
    Message(Box<codec::Reservation>),
    /// An array in memory of its own: its dtype has no fast path.
    Array(Bound<'py, PyAny>),
}

fn sizes<'py>(shape: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let py = shape.py();
    let size = |size: &Bound<'py, PyAny>| whole(size, "shape", 0, LARGEST);
    if shape.is_instance_of::<PyInt>() && !shape.is_instance_of::<PyBool>() {
        return PyTuple::new(py, [size(shape)?]);
    }
    let text = shape.is_instance_of::<PyString>() || shape.is_instance_of::<PyBytes>();
    match shape.cast::<PySequence>() {
        Ok(shape) if !text => {
            let sizes = shape.try_iter()?.map(|one| size(&one?));
            PyTuple::new(py, sizes.collect::<PyResult<Vec<_>>>()?)
        }
        _ => Err(wrong_type(shape, "shape", "an int or a sequence of ints")),
    }
}

fn described<'py>(
    sizes: &Bound<'py, PyTuple>,
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Described<'py>> {
    let py = sizes.py();
    if is_of_torch(dtype)? {
        let name = dtype.str()?;
        if name.to_str()?.starts_with("torch.q") {
            let message = format!(
                "dtype={name}: quantized values cannot be made in place: put a quantized tensor"
            );
            return Err(bad_value(py, message));
        }
        return codec::reserve(sizes, dtype)
            .map(|message| Described::Message(Box::new(message)))
            .or_else(|refused| {
                if !refused.is_instance_of::<PyTypeError>(py) {
                    return Err(refused);
                }
                let keywords = PyDict::new(py);
                keywords.set_item("dtype", dtype)?;
                let torch = py.import("torch")?;
                let array = torch.call_method("empty", (sizes,), Some(&keywords))?;
                Ok(Described::Array(array))
            });
    }
    let numpy = py.import("numpy").map_err(|error| {
        let message = "reserve needs numpy: install it".to_owned();
        let clear = crate::errors::shoal_error(py, "DependencyError", message, None);
        clear.set_cause(py, Some(error));
        clear
    })?;
    let kind = numpy.getattr("dtype")?.call1((dtype,)).map_err(|error| {
        if !error.is_instance_of::<PyTypeError>(py) {
            return error;
        }
        let clear = wrong_type(dtype, "dtype", "one of numpy's or torch's");
        clear.set_cause(py, Some(error));
        clear
    })?;
    if kind.getattr("hasobject")?.is_truthy()? {
        let shown = shown(dtype)?;
        let message = format!("dtype={shown}: objects cannot lie in shared memory");
        return Err(bad_value(py, message));
    }
    codec::reserve(sizes, &kind)
        .map(|message| Described::Message(Box::new(message)))
        .or_else(|refused| match numpy.call_method1("zeros", (sizes, kind)) {
            Ok(array) => Ok(Described::Array(array)),
            Err(_) => Err(refused),
        })
}

/// Whether a dtype is torch's; does not import torch.
fn is_of_torch(dtype: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = dtype.get_type();
    Ok(class.module()?.to_str()? == "torch" && class.name()?.to_str()? == "dtype")
}
