//! Putting several messages in their order: `put_many`.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::PyList;
use shoal_shm::session::{Batch, Error};
use shoal_shm::{Label, Refusal};

use super::arguments::weight;
use super::codec::{Encoded, encode_into};
use super::errors::bad_value;
use super::here::{Cargo, Here, Tried, write};
use super::parcel::message_of;
use super::putting::{Lack, Put, Waiter};
use super::queue::PyShmQueue;
use super::reservation::PyShmReservation;
use crate::convert::items;

/// Maximum number of messages put by one operation: they occupy descriptors while they wait for
/// room.
const TOGETHER: usize = 256;

/// A message: its label and its payload.
struct Parcel {
    label: Label,
    body: Body,
}

enum Body {
    /// A range of `small`, the bytes of all small messages.
    Small(Range<usize>),
    Large(Box<Encoded>),
    /// A reservation, whose values are in shared memory already.
    Reserved(Py<PyShmReservation>),
}

/// Encoded messages; the first `ready` of them are in descriptors already.
#[derive(Default)]
pub(super) struct Parcels {
    ready: usize,
    small: Vec<u8>,
    /// Buffer for the message that is being added, reused for the next.
    encoded: Encoded,
    rest: Vec<Parcel>,
}

impl Parcels {
    fn total(&self) -> usize {
        self.ready + self.rest.len()
    }

    /// A message, by its index; None if it is in a descriptor already.
    fn get(&self, index: usize) -> Option<&Parcel> {
        self.rest.get(index.checked_sub(self.ready)?)
    }

    /// The length of a message in bytes; 0 if it does not matter.
    fn len(&self, index: usize) -> u64 {
        match self.get(index).map(|parcel| &parcel.body) {
            Some(Body::Small(range)) => range.len() as u64,
            Some(Body::Large(encoded)) => encoded.total_len() as u64,
            Some(Body::Reserved(_)) | None => 0,
        }
    }

    /// Adds a message. It goes straight into a descriptor if it and all before it can.
    fn add(
        &mut self,
        object: &Bound<'_, PyAny>,
        weight: u64,
        here: &Here,
        batch: &mut Batch<'_>,
    ) -> PyResult<Result<(), Error>> {
        if object.is_exact_instance_of::<PyShmReservation>()
            && let Ok(reserved) = object.cast_exact::<PyShmReservation>()
        {
            let body = Body::Reserved(reserved.clone().unbind());
            let label = here.label(weight, 0);
            self.rest.push(Parcel { label, body });
            return Ok(Ok(()));
        }
        self.encoded.clear();
        encode_into(object, &mut self.encoded, message_of)?;
        let label = here.label_of(weight, &self.encoded);
        let body = match Cargo::of(&self.encoded) {
            Cargo::Small(bytes) => {
                // If the queue limits bytes, each message must be checked first.
                if self.rest.is_empty() && self.ready < TOGETHER && here.queue.max_bytes() == 0 {
                    match batch.push(label, bytes) {
                        Ok(false) => (),
                        Ok(true) => {
                            self.ready += 1;
                            return Ok(Ok(()));
                        }
                        Err(error) => return Ok(Err(error)),
                    }
                }
                let start = self.small.len();
                self.small.extend_from_slice(bytes);
                Body::Small(start..self.small.len())
            }
            _ => Body::Large(Box::new(std::mem::take(&mut self.encoded))),
        };
        self.rest.push(Parcel { label, body });
        Ok(Ok(()))
    }
}

impl PyShmQueue {
    /// Puts objects in their order, and counts in `done` how many were put.
    pub(super) fn put_several(
        &self,
        py: Python<'_>,
        put: &Put<'_, '_>,
        objects: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        done: &mut usize,
    ) -> PyResult<()> {
        let here = self.here(py, put.operation)?;
        let mut batch = here.queue.batch();
        let parcels = self.encode_all(put, objects, weights, here, &mut batch)?;
        let mut waiter = Waiter::new(&here.queue);
        while *done < parcels.total() {
            if let Some(Parcel { label, body }) = parcels.get(*done)
                && let Body::Reserved(reserved) = body
                && batch.is_empty()
            {
                self.put_reserved(py, put, reserved.get(), label.weight)?;
                *done += 1;
                continue;
            }
            let lack = match self.fill(py, here, put, &parcels, *done, &mut batch) {
                Ok(lack) => lack,
                // Put the messages before it first; then the same error comes again.
                Err(error) if batch.is_empty() => return Err(error),
                Err(_) => None,
            };
            let ready = batch.len();
            let refused = batch.put();
            *done += ready - batch.len();
            let lack = match refused {
                Ok(None) => lack,
                Ok(Some(Refusal::Full)) => Some(Lack::Room),
                Ok(Some(Refusal::NoSlot)) => {
                    let grown = here.queue.grow();
                    let grown = grown.map_err(|error| self.failed(py, put.operation, &error))?;
                    (!grown).then_some(Lack::Memory)
                }
                refused => {
                    let tried = refused.map(|_| Tried::Refused(Refusal::Closed));
                    Some(self.lack(py, put, tried)?)
                }
            };
            if let Some(lack) = lack {
                self.wait_for_room(py, put, parcels.len(*done), lack, &mut waiter)?;
            }
        }
        Ok(())
    }

    /// Encodes all objects, each with its weight.
    fn encode_all(
        &self,
        put: &Put<'_, '_>,
        objects: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        here: &Here,
        batch: &mut Batch<'_>,
    ) -> PyResult<Parcels> {
        let py = objects.py();
        let list = py.get_type::<PyList>().call1((objects,))?;
        let list = list.cast_into::<PyList>()?;
        let weights = weights.map(|weights| items(weights, weight)).transpose()?;
        if let Some(weights) = &weights
            && weights.len() != list.len()
        {
            let (expected, got) = (list.len(), weights.len());
            let message = format!("weights: expected {expected}, one for each object, got {got}");
            return Err(bad_value(py, message));
        }
        let mut parcels = Parcels::default();
        for (index, object) in list.iter().enumerate() {
            let weight = weights.as_ref().map_or(0, |weights| weights[index]);
            let added = parcels.add(&object, weight, here, batch)?;
            added.map_err(|error| self.failed(py, put.operation, &error))?;
        }
        Ok(parcels)
    }

    /// Gives descriptors, and memory if necessary, to messages in order, from the first one without
    /// a descriptor. Returns the resource that is lacking for more, if any.
    fn fill(
        &self,
        py: Python<'_>,
        here: &Here,
        put: &Put<'_, '_>,
        parcels: &Parcels,
        done: usize,
        batch: &mut Batch<'_>,
    ) -> PyResult<Option<Lack>> {
        let failed = |error| self.failed(py, put.operation, &error);
        for index in done + batch.len()..parcels.total() {
            if batch.len() >= TOGETHER {
                break;
            }
            let Some(Parcel { label, body }) = parcels.get(index) else {
                break;
            };
            self.check_fits(py, here, put, parcels.len(index))?;
            match body {
                Body::Small(range) => {
                    let bytes = parcels.small.get(range.clone()).unwrap_or_default();
                    if !batch.push(*label, bytes).map_err(failed)? {
                        return Ok(Some(Lack::Memory));
                    }
                }
                Body::Large(encoded) => {
                    let Some(draft) = write(py, &here.queue, encoded).map_err(failed)? else {
                        return Ok(Some(Lack::Memory));
                    };
                    batch.push_draft(*label, draft);
                    // Put now: its consumer need not wait until the next one is written.
                    break;
                }
                Body::Reserved(_) => break,
            }
        }
        Ok(None)
    }
}
