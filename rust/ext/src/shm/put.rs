//! Putting one message into a queue, when there is room for it.

use pyo3::prelude::*;
use shoal_codec::{Encoded, encode_into};
use shoal_shm::blocking::{Lack, Producer};
use shoal_shm::session::{Draft, Error, Offer, Outgoing, SessionQueue};
use shoal_shm::{Descriptor, Label};

use super::arguments;
use super::parcel::message_of;
use super::process_queue::ProcessQueue;
use super::queue::PyShmQueue;
use super::reservation::PyShmReservation;
use super::wait::Limit;
use crate::convert::Arg;

/// A put: the operation's name for errors, and its time limit.
pub(super) struct Put<'a, 'py> {
    pub(super) operation: &'static str,
    pub(super) limit: Limit<'a, 'py>,
}

impl Put<'_, '_> {
    /// A put that does not wait.
    #[inline]
    pub(super) fn now() -> Self {
        Self {
            operation: "put_nowait",
            limit: Limit::now(),
        }
    }
}

impl PyShmQueue {
    /// Puts an object or a reservation. The object is encoded when there is room for it, once.
    #[inline]
    pub(super) fn put_object(
        &self,
        object: &Bound<'_, PyAny>,
        weight: &Arg<'_>,
        put: &mut Put<'_, '_>,
    ) -> PyResult<()> {
        let py = object.py();
        let weight = weight.or(0, arguments::weight)?;
        // The type is checked before the cast: a cast that fails makes an error, with references.
        if object.is_exact_instance_of::<PyShmReservation>()
            && let Ok(reserved) = object.cast_exact::<PyShmReservation>()
        {
            return self.put_reserved(py, put, reserved.get(), weight);
        }
        let here = self.process_queue(py, put.operation)?;
        // The path of most puts; everything else is in other functions, so that this one is short.
        if !here.queue.seems_puttable(0) {
            return self.put_when_room(here, object, weight, put);
        }
        let mut encoded = Encoded::new();
        encode_into(object, &mut encoded, message_of)?;
        let label = here.label_of(weight, &encoded);
        if let Some(bytes) = small(&encoded)
            && matches!(here.queue.offer(label, bytes), Ok(Offer::Put))
        {
            return Ok(());
        }
        self.put_encoded(py, &mut here.queue.producer(), put, label, &encoded)
    }

    /// Puts an object into a queue that seems to be full.
    #[cold]
    fn put_when_room(
        &self,
        here: &ProcessQueue,
        object: &Bound<'_, PyAny>,
        weight: u64,
        put: &mut Put<'_, '_>,
    ) -> PyResult<()> {
        let py = object.py();
        let mut producer = here.queue.producer();
        self.wait_for_room(py, &mut producer, put)?;
        let mut encoded = Encoded::new();
        encode_into(object, &mut encoded, message_of)?;
        let label = here.label_of(weight, &encoded);
        self.put_encoded(py, &mut producer, put, label, &encoded)
    }

    #[cold]
    pub(super) fn put_encoded(
        &self,
        py: Python<'_>,
        producer: &mut Producer<'_, SessionQueue>,
        put: &mut Put<'_, '_>,
        label: Label,
        encoded: &Encoded,
    ) -> PyResult<()> {
        let queue = producer.queue();
        let mut write = || write(py, queue, encoded);
        let mut message = match small(encoded) {
            Some(bytes) => Outgoing::Small(bytes),
            None => Outgoing::Unwritten {
                length: encoded.total_len() as u64,
                write: &mut write,
            },
        };
        self.put_message(py, producer, put, label, &mut message)
    }

    /// Puts one message. If that fails, a message that was written stays in `message`.
    pub(super) fn put_message(
        &self,
        py: Python<'_>,
        producer: &mut Producer<'_, SessionQueue>,
        put: &mut Put<'_, '_>,
        label: Label,
        message: &mut Outgoing<'_>,
    ) -> PyResult<()> {
        let queue = producer.queue();
        let end = put
            .limit
            .wait(py, |until| producer.put(label, message, until))?;
        self.outcome(py, queue, put, end)
    }

    /// Waits until there is room for some message.
    pub(super) fn wait_for_room(
        &self,
        py: Python<'_>,
        producer: &mut Producer<'_, SessionQueue>,
        put: &mut Put<'_, '_>,
    ) -> PyResult<()> {
        let end = put.limit.wait(py, |until| producer.wait_for_room(until))?;
        self.outcome(py, producer.queue(), put, end)
    }

    /// The result of a wait of a producer, as Python gets it.
    pub(super) fn outcome<T>(
        &self,
        py: Python<'_>,
        queue: &SessionQueue,
        put: &Put<'_, '_>,
        end: Result<Result<T, Lack>, Error>,
    ) -> PyResult<T> {
        match end {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(lack)) => {
                let why = queue.shortage_of_put(lack);
                let (limit, operation) = (&put.limit, put.operation);
                Err(limit.gave_up(py, "ChannelFull", operation, &self.name, &why))
            }
            Err(error) => Err(self.failed(py, put.operation, &error)),
        }
    }
}

/// A message that fits into a descriptor; None if it does not.
#[inline]
pub(super) fn small(encoded: &Encoded) -> Option<&[u8]> {
    let plain = encoded.plain()?;
    (plain.len() <= Descriptor::INLINE).then_some(plain)
}

/// Writes a message into shared memory; None if no memory is free now.
pub(super) fn write(
    py: Python<'_>,
    queue: &SessionQueue,
    encoded: &Encoded,
) -> Result<Option<Draft>, Error> {
    if encoded.is_long() {
        py.detach(|| copy(queue, encoded))
    } else {
        copy(queue, encoded)
    }
}

fn copy(queue: &SessionQueue, encoded: &Encoded) -> Result<Option<Draft>, Error> {
    let Some(draft) = queue.draft(encoded.total_len() as u64)? else {
        return Ok(None);
    };
    fill(&draft, encoded).map(|()| Some(draft))
}

/// Writes a message into its draft.
pub(super) fn fill(draft: &Draft, encoded: &Encoded) -> Result<(), Error> {
    let mut written = Ok(());
    encoded.write_into(&mut |at, bytes| {
        if written.is_ok() {
            written = draft.write(at as u64, bytes);
        }
    });
    written
}
