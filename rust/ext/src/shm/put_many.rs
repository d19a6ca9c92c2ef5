//! Putting several messages in their order: `put_many`.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use shoal_codec::{Encoded, encode_into};
use shoal_shm::blocking::Lack;
use shoal_shm::session::{Batch, Error, SessionQueue};
use shoal_shm::{Label, WaitState};

use super::arguments::{weight, wrong_type};
use super::errors::bad_value;
use super::parcel::message_of;
use super::process_queue::ProcessQueue;
use super::put::{Put, small, write};
use super::queue::PyShmQueue;
use super::reservation::PyShmReservation;
use crate::convert::items;

/// Maximum number of messages put by one operation: they occupy descriptors until then.
const TOGETHER: usize = 256;

/// Why `put_many` cannot go on.
enum Failure {
    Queue(Error),
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Queue(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

/// The objects of a `put_many`. Each is encoded when there is room for it, once.
struct Objects<'a, 'py> {
    here: &'a ProcessQueue,
    list: Bound<'py, PyList>,
    weights: Option<Vec<u64>>,
    /// Number of objects whose messages are in the batch, or put.
    next: usize,
    /// The label of the next message, if it is in `encoded` already: it waits for memory, or for room
    /// for its bytes.
    pending: Option<Label>,
    /// Buffer for one message at a time.
    encoded: Encoded,
    /// The error of the next object, raised once all objects before it are put.
    failed: Option<PyErr>,
}

impl<'py> Objects<'_, 'py> {
    fn weight(&self) -> u64 {
        let weights = self.weights.as_ref();
        weights.map_or(0, |weights| weights[self.next])
    }

    /// The next object, unless it is at the end or a reservation, which is put by itself.
    fn ordinary(&self) -> Option<Bound<'py, PyAny>> {
        let object = self.list.get_item(self.next).ok()?;
        (!object.is_exact_instance_of::<PyShmReservation>()).then_some(object)
    }

    /// The next object, if it is a reservation.
    fn reserved(&self) -> Option<Bound<'py, PyShmReservation>> {
        self.list.get_item(self.next).ok()?.cast_into_exact().ok()
    }

    /// Whether all objects are put up to the end, or up to a reservation.
    fn is_over(&self, batch: &Batch<'_>) -> bool {
        let none_left = batch.is_empty() && self.pending.is_none() && self.failed.is_none();
        none_left && self.ordinary().is_none()
    }

    /// Encodes the next object.
    fn encode(&mut self, object: &Bound<'_, PyAny>) -> PyResult<Label> {
        self.encoded.clear();
        encode_into(object, &mut self.encoded, message_of)?;
        Ok(self.here.label_of(self.weight(), &self.encoded))
    }

    /// Adds messages to a batch while there is room for them. Returns the resource that the next
    /// one lacks; None if the batch is to be put first, or nothing is left.
    fn fill(
        &mut self,
        batch: &mut Batch<'_>,
        wait_state: &WaitState,
    ) -> Result<Option<Lack>, Failure> {
        let py = self.list.py();
        let queue = &self.here.queue;
        while batch.len() < TOGETHER && self.failed.is_none() {
            let label = if let Some(label) = self.pending {
                label
            } else {
                let Some(object) = self.ordinary() else {
                    break;
                };
                if let Some(lack) = no_room(queue, batch)? {
                    return Ok(Some(lack));
                }
                match self.encode(&object) {
                    Ok(label) => *self.pending.insert(label),
                    Err(error) => {
                        self.failed = Some(error);
                        break;
                    }
                }
            };
            if let Some(bytes) = small(&self.encoded) {
                if !batch.push(label, bytes)? {
                    let length = bytes.len() as u64;
                    return Ok(Some(Lack::Memory { length }));
                }
                self.pending = None;
                self.next += 1;
                continue;
            }
            let length = self.encoded.total_len() as u64;
            if !batch.is_empty() {
                // Its room in bytes is known once the others are put.
                break;
            }
            if !queue.is_puttable(length)? {
                return Ok(Some(Lack::Room { length }));
            }
            queue.pass_on_room(wait_state);
            let Some(draft) = write(py, queue, &self.encoded)? else {
                return Ok(Some(Lack::Memory { length }));
            };
            batch.push_draft(label, draft);
            self.pending = None;
            self.next += 1;
            self.encoded.clear();
            // Put now: its consumer need not wait until the next one is written.
            break;
        }
        match self.failed.take_if(|_| batch.is_empty()) {
            Some(error) => Err(error.into()),
            None => Ok(None),
        }
    }
}

/// Lack of room for one more message than those of a batch.
fn no_room(queue: &SessionQueue, batch: &Batch<'_>) -> Result<Option<Lack>, Error> {
    let ahead = batch.len() as u64;
    if queue.seems_puttable(ahead) || (ahead == 0 && queue.is_puttable(0)?) {
        return Ok(None);
    }
    Ok(Some(Lack::Room { length: 0 }))
}

impl PyShmQueue {
    /// Puts objects in their order, and counts in `done` how many were put.
    pub(super) fn put_objects(
        &self,
        py: Python<'_>,
        put: &mut Put<'_, '_>,
        objects: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        done: &mut usize,
    ) -> PyResult<()> {
        let here = self.process_queue(py, put.operation)?;
        let queue = &here.queue;
        let list = list_of(objects)?;
        let mut objects = Objects {
            here,
            weights: weights_of(weights, &list)?,
            list,
            next: 0,
            pending: None,
            encoded: Encoded::new(),
            failed: None,
        };
        let mut batch = queue.batch();
        let mut producer = queue.producer();
        loop {
            let attempt = |wait_state: &WaitState| -> Result<_, Failure> {
                while !objects.is_over(&batch) {
                    let lack = objects.fill(&mut batch, wait_state)?;
                    let ready = batch.len();
                    let refused = batch.try_put();
                    *done += ready - batch.len();
                    if let Err(lack) = refused? {
                        return Ok(Err(lack));
                    }
                    // After a put, the lack is looked at again.
                    if let Some(lack) = lack
                        && ready == 0
                    {
                        return Ok(Err(lack));
                    }
                }
                Ok(Ok(()))
            };
            let end = put
                .limit
                .wait(py, |until| producer.within(until, attempt))?;
            let end = match end {
                Ok(end) => Ok(end),
                Err(Failure::Queue(error)) => Err(error),
                Err(Failure::Python(error)) => return Err(error),
            };
            self.outcome(py, queue, put, end)?;
            let Some(reserved) = objects.reserved() else {
                return Ok(());
            };
            self.put_reserved(py, put, reserved.get(), objects.weight())?;
            objects.next += 1;
            *done += 1;
        }
    }
}

/// The argument `objs`, as a list.
pub(super) fn list_of<'py>(objects: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let list = objects.py().get_type::<PyList>().call1((objects,));
    let list = list.map_err(|error| no_series(error, objects, "objs", "the objects to put"))?;
    Ok(list.cast_into()?)
}

/// The error for a series of arguments: `error`, unless they are none.
fn no_series(error: PyErr, given: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyErr {
    match given.try_iter() {
        Err(cause) if cause.is_instance_of::<PyTypeError>(given.py()) => {
            wrong_type(given, name, &format!("an iterable, {expected}"))
        }
        _ => error,
    }
}

/// The argument `weights`: one for each object; None if all are 0.
pub(super) fn weights_of(
    weights: Option<&Bound<'_, PyAny>>,
    objects: &Bound<'_, PyList>,
) -> PyResult<Option<Vec<u64>>> {
    let read = |given: &Bound<'_, PyAny>| {
        let series = items(given, weight);
        series.map_err(|error| no_series(error, given, "weights", "an int for each object"))
    };
    let weights = weights.map(read).transpose()?;
    if let Some(weights) = &weights
        && weights.len() != objects.len()
    {
        let (expected, got) = (objects.len(), weights.len());
        let message = format!("weights: expected {expected}, one for each object, got {got}");
        return Err(bad_value(objects.py(), message));
    }
    Ok(weights)
}
