//! Putting many messages in their order.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::PyList;
use shoal_core::shm::Refusal;
use shoal_core::shm::session::Batch;

use super::arguments::weight;
use super::codec::{Encoded, encode_into};
use super::errors::bad_value;
use super::here::{Cargo, Here, Tried, write};
use super::putting::{Lack, Put, Waiter};
use super::queue::PyShmQueue;
use super::reservation::PyShmReservation;
use crate::convert::items;

/// So many are put by one operation at most: they have descriptors while they wait for room.
const TOGETHER: usize = 256;

/// A message: its weight, and what it is.
struct Parcel {
    weight: u64,
    kind: u32,
    body: Body,
}

enum Body {
    /// A part of the bytes of all small ones.
    Small(Range<usize>),
    Large(Box<Encoded>),
    /// It is in shared memory, where it was made.
    Reserved(Py<PyShmReservation>),
}

/// Messages that are encoded.
#[derive(Default)]
pub(super) struct Parcels {
    small: Vec<u8>,
    parcels: Vec<Parcel>,
}

impl Parcels {
    /// Encodes objects, each with its weight.
    pub(super) fn encode(
        objects: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = objects.py();
        let objects = py
            .get_type::<PyList>()
            .call1((objects,))?
            .cast_into::<PyList>()?;
        let mut parcels = Self::default();
        parcels.parcels.reserve(objects.len());
        let Some(weights) = weights else {
            for object in objects.iter() {
                parcels.add(&object, 0)?;
            }
            return Ok(parcels);
        };
        let weights = items(weights, weight)?;
        if weights.len() != objects.len() {
            let message = format!(
                "weights: expected {}, one for each object, got {}",
                objects.len(),
                weights.len()
            );
            return Err(bad_value(py, message));
        }
        for (object, weight) in objects.iter().zip(weights) {
            parcels.add(&object, weight)?;
        }
        Ok(parcels)
    }

    fn add(&mut self, object: &Bound<'_, PyAny>, weight: u64) -> PyResult<()> {
        if let Ok(reserved) = object.cast_exact::<PyShmReservation>() {
            self.parcels.push(Parcel {
                weight,
                kind: 0,
                body: Body::Reserved(reserved.clone().unbind()),
            });
            return Ok(());
        }
        let mut encoded = Encoded::new();
        encode_into(object, &mut encoded)?;
        let kind = encoded.kind();
        let body = match Cargo::of(&encoded) {
            Cargo::Small(bytes) => {
                let start = self.small.len();
                self.small.extend_from_slice(bytes);
                Body::Small(start..self.small.len())
            }
            _ => Body::Large(Box::new(encoded)),
        };
        self.parcels.push(Parcel { weight, kind, body });
        Ok(())
    }

    fn len(&self, index: usize) -> u64 {
        match self.parcels.get(index).map(|parcel| &parcel.body) {
            Some(Body::Small(range)) => range.len() as u64,
            Some(Body::Large(encoded)) => encoded.total_len() as u64,
            Some(Body::Reserved(_)) | None => 0,
        }
    }
}

impl PyShmQueue {
    /// Puts them, and counts those that are put.
    pub(super) fn put_parcels(
        &self,
        py: Python<'_>,
        put: &Put<'_, '_>,
        parcels: &Parcels,
        done: &mut usize,
    ) -> PyResult<()> {
        let here = self.here(py, put.operation)?;
        let mut waiter = Waiter::new(&here.queue);
        let mut batch = here.queue.batch();
        while let Some(next) = parcels.parcels.get(*done) {
            if let Body::Reserved(reserved) = &next.body
                && batch.is_empty()
            {
                self.put_reserved(py, put, reserved.get(), next.weight)?;
                *done += 1;
                continue;
            }
            let lack = match self.fill(py, here, put, parcels, *done, &mut batch) {
                Ok(lack) => lack,
                // Those before it are to be put first; then it comes again.
                Err(error) if batch.is_empty() => return Err(error),
                Err(_) => None,
            };
            let ready = batch.len();
            let refused = batch.put();
            *done += ready - batch.len();
            let lack = match refused {
                Ok(None) => lack,
                Ok(Some(Refusal::Full)) => Some(Lack::Room),
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

    /// Gives messages descriptors, and memory where they need some: those from the first that is
    /// not put, behind those that have them already. What is lacking for more.
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
        for index in done + batch.len()..parcels.parcels.len() {
            if batch.len() >= TOGETHER {
                break;
            }
            self.check_fits(py, here, put, parcels.len(index))?;
            let Parcel { weight, kind, body } = &parcels.parcels[index];
            let label = here.label(*weight, *kind);
            match body {
                Body::Small(range) => {
                    let bytes = parcels.small.get(range.clone()).unwrap_or_default();
                    if !batch.push(label, bytes).map_err(failed)? {
                        return Ok(Some(Lack::Memory));
                    }
                }
                Body::Large(encoded) => {
                    let Some(draft) = write(py, &here.queue, encoded).map_err(failed)? else {
                        return Ok(Some(Lack::Memory));
                    };
                    batch.push_draft(label, draft);
                    // Its consumer need not wait until the next is written.
                    break;
                }
                Body::Reserved(_) => break,
            }
        }
        Ok(None)
    }
}
