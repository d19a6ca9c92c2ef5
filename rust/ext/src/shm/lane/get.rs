//! Gets from a queue of another node: the messages are confirmed once their objects are rebuilt.

use std::mem::take;
use std::sync::Arc;

use pyo3::prelude::*;
use shoal_codec::{decode_block, decode_inline};
use shoal_lane::client::{Bytes, Error, Message};
use shoal_shm::{Descriptor, Keep, Want};

use super::super::deferred::DeferredItem;
use super::super::errors::not_rebuilt;
use super::super::get::Get;
use super::super::loan::Received;
use super::super::rebuild::{is_ordinary, nothing_taken};
use super::super::wait::Limit;
use super::queue::PyLaneQueue;

/// The objects of messages that were taken together, and the errors of those that cannot be rebuilt.
type Rebuilt<'py> = (Vec<Bound<'py, PyAny>>, Vec<PyErr>);

impl PyLaneQueue {
    /// Takes one message and rebuilds its object.
    pub(super) fn get_one<'py>(
        &self,
        py: Python<'py>,
        operation: &'static str,
        limit: Limit<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut get = Get {
            operation,
            want: Want::Count(1),
            keep: Keep::Copy,
            limit,
        };
        let mut objects = self.get_objects(py, &mut get)?;
        objects.pop().ok_or_else(nothing_taken)
    }

    /// Takes messages and rebuilds their objects.
    pub(super) fn get_objects<'py>(
        &self,
        py: Python<'py>,
        get: &mut Get<'_, '_>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        if let Some(DeferredItem::Error(error)) = self.deferred.take() {
            return Err(error);
        }
        let (client, target, want) = (&self.client.get().client, self.target(), get.want);
        loop {
            let taken = get.limit.wait_detached(py, |deadline, go_on| {
                client.take(&target, want, deadline, go_on)
            })?;
            let mut taken = taken.map_err(|error| self.get_failed(py, get, error))?;
            let rebuilt = self.rebuild(py, take(&mut taken.messages));
            let (objects, errors) = match rebuilt {
                Ok(rebuilt) => rebuilt,
                Err(interruption) => {
                    py.detach(|| taken.give_back());
                    return Err(interruption);
                }
            };
            let kept = get
                .limit
                .wait_detached(py, |_, go_on| taken.keep(go_on))?
                .map_err(|error| self.get_failed(py, get, error))?;
            if !kept {
                continue; // too late: they are in the queue again
            }
            let mut errors = errors.into_iter();
            let first = if objects.is_empty() {
                errors.next()
            } else {
                None
            };
            if errors.len() > 0 {
                self.deferred.add(errors.map(DeferredItem::Error));
            }
            return first.map_or(Ok(objects), Err);
        }
    }

    /// Rebuilds the objects of messages.
    ///
    /// # Errors
    ///
    /// The exception of a signal handler. Errors of messages are among the results.
    fn rebuild<'py>(&self, py: Python<'py>, messages: Vec<Message>) -> PyResult<Rebuilt<'py>> {
        let (mut objects, mut errors) = (Vec::with_capacity(messages.len()), Vec::new());
        for Message { item, bytes } in messages {
            let kind = item.kind.into();
            let object = match bytes {
                Bytes::Short(bytes) if bytes.len() <= Descriptor::INLINE => {
                    decode_inline(py, kind, &bytes)
                }
                Bytes::Short(bytes) => decode_block(py, kind, &Received::Short(bytes)),
                Bytes::Long(bytes) => decode_block(py, kind, &Received::Long(Arc::new(bytes))),
            };
            match object {
                Ok(object) => objects.push(object),
                Err(error) if is_ordinary(py, &error) => {
                    errors.push(not_rebuilt(py, self.name(), item.sender, error));
                }
                Err(interruption) => return Err(interruption),
            }
        }
        Ok((objects, errors))
    }

    /// The exception for a get that took nothing.
    #[cold]
    fn get_failed(&self, py: Python<'_>, get: &Get<'_, '_>, error: Error) -> PyErr {
        match error {
            Error::Full(why) | Error::Timeout(why) => get.found_nothing(py, self.name(), &why),
            Error::Closed(_) => get.found_closed(py, self.name()),
            error => self.raised(py, get.operation, error),
        }
    }
}
