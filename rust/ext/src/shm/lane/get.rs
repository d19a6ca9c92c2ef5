//! Gets from a queue of another node: the messages are confirmed once their objects are rebuilt.

use std::mem::take;
use std::sync::Arc;

use pyo3::prelude::*;
use shoal_codec::{decode_block, decode_inline};
use shoal_lane::client::{Bytes, Cancel, Error, Message};
use shoal_lane::frame::Item;
use shoal_shm::{Descriptor, Keep};

use super::super::errors::{not_rebuilt, of_spoilt};
use super::super::get::Get;
use super::super::loan::Source;
use super::super::rebuild::{is_ordinary, nothing_taken};
use super::message::PyLaneMessage;
use super::queue::{PyLaneQueue, raised};

/// Messages that were taken together, with their objects or the errors of those that cannot be rebuilt.
type Rebuilt<'py> = Vec<(Item, PyResult<Bound<'py, PyAny>>)>;

impl PyLaneQueue {
    /// Takes one message and rebuilds its object.
    pub(super) fn get_one<'py>(
        &self,
        py: Python<'py>,
        get: &mut Get<'_, '_>,
        cancel: &Cancel,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut objects = self.get_objects(py, get, cancel)?;
        objects.pop().ok_or_else(nothing_taken)
    }

    /// Takes messages and rebuilds their objects.
    pub(super) fn get_objects<'py>(
        &self,
        py: Python<'py>,
        get: &mut Get<'_, '_>,
        cancel: &Cancel,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (client, target, want) = (&self.client.get().client, self.target(), get.want);
        let leases = get.keep == Keep::Lease;
        let (rebuilt, first) = loop {
            let taken = get.limit.wait_detached(py, |deadline, go_on| {
                client.take(&target, want, deadline, cancel, go_on)
            })?;
            let mut taken = taken.map_err(|error| self.get_failed(py, get, error))?;
            let rebuilt = match self.rebuild(py, take(&mut taken.messages)) {
                Ok(rebuilt) => rebuilt,
                Err(interruption) => {
                    py.detach(|| taken.give_back());
                    return Err(interruption);
                }
            };
            if cancel.is_cancelled() {
                py.detach(|| taken.give_back());
                return Err(self.get_failed(py, get, Error::Interrupted));
            }
            let kept = get.limit.wait_detached(py, |_, go_on| {
                if leases {
                    taken.lease(go_on)
                } else {
                    taken.keep(go_on).map(|kept| kept.then_some(0))
                }
            })?;
            if let Some(first) = kept.map_err(|error| self.get_failed(py, get, error))? {
                break (rebuilt, first);
            }
            // Too late: they are in the queue again.
        };
        let (mut objects, mut errors) = (Vec::with_capacity(rebuilt.len()), Vec::new());
        for (number, (item, object)) in (first..).zip(rebuilt) {
            match object {
                Ok(object) if leases => {
                    let (weight, redelivered) = (item.weight, item.redelivered);
                    let message =
                        PyLaneMessage::new(&self.client, object, number, weight, redelivered);
                    objects.push(Bound::new(py, message)?.into_any());
                }
                Ok(object) => objects.push(object),
                Err(error) => {
                    if leases {
                        // No other consumer should get a message that cannot be rebuilt. If the
                        // server is lost, another one does, and finds the same.
                        let _ = get.limit.wait_detached(py, |_, go_on| {
                            client.end_leases(&[number], false, go_on)
                        })?;
                    }
                    errors.push(error);
                }
            }
        }
        if errors.is_empty() {
            return Ok(objects);
        }
        Err(of_spoilt(py, errors, objects))
    }

    /// Rebuilds the objects of messages.
    ///
    /// # Errors
    ///
    /// The exception of a signal handler. Errors of messages are among the results.
    fn rebuild<'py>(&self, py: Python<'py>, messages: Vec<Message>) -> PyResult<Rebuilt<'py>> {
        let mut all = Vec::with_capacity(messages.len());
        for Message { item, bytes } in messages {
            let kind = item.kind.into();
            let object = match bytes {
                Bytes::Short(bytes) if bytes.len() <= Descriptor::INLINE => {
                    decode_inline(py, kind, &bytes)
                }
                Bytes::Short(bytes) => decode_block(py, kind, &Source::Short(bytes)),
                Bytes::Long(bytes) => decode_block(py, kind, &Source::Long(Arc::new(bytes))),
            };
            all.push(match object {
                Err(error) if is_ordinary(py, &error) => {
                    (item, Err(not_rebuilt(py, self.name(), item.sender, error)))
                }
                object => (item, Ok(object?)),
            });
        }
        Ok(all)
    }

    /// The exception for a get that took nothing.
    #[cold]
    fn get_failed(&self, py: Python<'_>, get: &Get<'_, '_>, error: Error) -> PyErr {
        match error {
            Error::Full(why) | Error::Timeout(why) => get.found_nothing(py, self.name(), &why),
            Error::Closed(_) => get.found_closed(py, self.name()),
            error => raised(py, get.operation, self.name(), error),
        }
    }
}
