//! `peek`, `stats` and `shm_queues`: reading queues without taking messages.

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
use shoal_codec::decode_block;
use shoal_shm::session::{Peeked, QueueStats, list_queues};

use super::arguments::text;
use super::errors::{not_rebuilt, of_attach};
use super::parcel::{PyShmParcel, own};
use super::queue::PyShmQueue;
use super::rebuild::is_ordinary;

impl PyShmQueue {
    /// The weights and objects of the first `most` messages; None: of all.
    pub(super) fn look<'py>(
        &self,
        py: Python<'py>,
        most: Option<u64>,
    ) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        let here = self.process_queue(py, "peek")?;
        let peeked = py.detach(|| here.queue.peek(most.unwrap_or(u64::MAX)));
        let peeked = peeked.map_err(|error| self.failed(py, "peek", &error))?;
        peeked.iter().map(|one| self.looked_at(py, one)).collect()
    }

    fn looked_at<'py>(
        &self,
        py: Python<'py>,
        peeked: &Peeked,
    ) -> PyResult<(u64, Bound<'py, PyAny>)> {
        let label = peeked.label;
        let data = PyByteArray::new(py, &peeked.bytes).into_any();
        let object = if self.parcels {
            PyShmParcel::taken(py, label, data, peeked.bytes.len())
        } else {
            own(&data).and_then(|own| decode_block(py, label.kind, &own))
        };
        match object {
            Ok(object) => Ok((label.weight, object)),
            Err(error) if is_ordinary(py, &error) => {
                Err(not_rebuilt(py, &self.name, label.sender, error))
            }
            Err(error) => Err(error),
        }
    }
}

/// Adds fields of a value to a dict, by their names.
macro_rules! add_fields {
    ($dict:ident, $value:ident: $($name:ident),+) => {
        $( $dict.set_item(stringify!($name), $value.$name)?; )+
    };
}
pub(super) use add_fields;

/// Adds how a queue is used.
pub(super) fn add(dict: &Bound<'_, PyDict>, stats: &QueueStats) -> PyResult<()> {
    add_fields! { dict, stats: messages, bytes, puts, gets, producers_waiting, consumers_waiting }
    dict.set_item("oldest_s", stats.oldest_s)
}

/// Return the queues of a session and how they are used, without taking part in it.
#[pyfunction]
#[pyo3(signature = (token), text_signature = "(token)")]
pub(crate) fn shm_queues<'py>(token: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let py = token.py();
    let token = text(token, "token")?;
    let found = py.detach(|| list_queues(&token));
    let found = found.map_err(|error| of_attach(py, &token, &error))?;
    let each = found.iter().map(|queue| {
        let dict = PyDict::new(py);
        dict.set_item("key", PyBytes::new(py, &queue.key))?;
        dict.set_item("maxsize", queue.maxsize)?;
        dict.set_item("closed", queue.is_closed)?;
        add(&dict, &queue.stats)?;
        Ok(dict)
    });
    each.collect()
}
