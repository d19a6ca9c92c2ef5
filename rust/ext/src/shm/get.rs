//! Getting one object, and taking messages for any kind of get.

use std::sync::Arc;

use pyo3::prelude::*;
use shoal_codec::decode_inline;
use shoal_shm::session::{Error, Held, SessionQueue, Shortage};
use shoal_shm::{Descriptor, Keep, Label, Loan, Message, Payload, Taken, Want};

use super::errors::closed;
use super::process_queue::ProcessQueue;
use super::queue::{PyShmQueue, keep};
use super::rebuild::{Failure, handed_out, nothing_taken};
use super::taken_batch::TakenBatch;
use super::wait::Limit;
use crate::convert::Arg;

/// A get: the operation's name for errors, the wanted messages, whether they are leased, and the
/// time limit.
pub(super) struct Get<'a, 'py> {
    pub(super) operation: &'static str,
    pub(super) want: Want,
    pub(super) keep: Keep,
    pub(super) limit: Limit<'a, 'py>,
}

impl<'a, 'py> Get<'a, 'py> {
    /// A get of one message.
    #[inline]
    pub(super) fn one(operation: &'static str, limit: Limit<'a, 'py>, keep: Keep) -> Self {
        Self {
            operation,
            want: Want::Count(1),
            keep,
            limit,
        }
    }

    /// A get of these messages, with the other arguments as the caller gave them.
    #[inline]
    pub(super) fn read(
        operation: &'static str,
        want: Want,
        timeout: Option<&'a Bound<'py, PyAny>>,
        waiting: Option<&'a Bound<'py, PyAny>>,
        lease: &Arg<'py>,
    ) -> PyResult<Self> {
        let get = Self::one(operation, Limit::new(timeout, waiting)?, keep(lease)?);
        Ok(Self { want, ..get })
    }

    /// The exception of a get that found too little in the queue `name`.
    pub(super) fn found_nothing(&self, py: Python<'_>, name: &str, why: &Shortage) -> PyErr {
        self.limit
            .gave_up(py, "ChannelEmpty", self.operation, name, why)
    }

    /// The exception of a get from the queue `name`, which is closed.
    pub(super) fn found_closed(&self, py: Python<'_>, name: &str) -> PyErr {
        let operation = self.operation;
        closed(py, format!("{operation}: {name} is closed and empty"))
    }
}

/// The properties of a message that was taken.
#[derive(Clone, Copy)]
pub(super) struct MessageInfo {
    pub(super) label: Label,
    pub(super) payload: Payload,
    pub(super) redelivered: bool,
}

impl MessageInfo {
    #[inline]
    pub(super) fn of(message: &Message<'_>) -> Self {
        Self {
            label: message.label,
            payload: message.payload(),
            redelivered: message.redelivered,
        }
    }
}

impl PyShmQueue {
    /// Takes one message and rebuilds its object.
    #[inline]
    pub(super) fn get_one<'py>(
        &self,
        py: Python<'py>,
        get: &mut Get<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let here = self.process_queue(py, get.operation)?;
        if let Some(batch) = here.interrupted.take(&self.key, 1, get.keep) {
            let mut objects = self.rebuild_all(py, here, batch, get.keep)?;
            return objects.pop().ok_or_else(nothing_taken);
        }
        let mut words = [[0; 8]; Descriptor::INLINE / 8];
        let (mut info, mut loan) = (None, None);
        self.take(py, here, get, &mut |message| {
            message.copy_words(&mut words);
            info = Some(MessageInfo::of(&message));
            loan = message.loan();
        })?;
        let info = info.ok_or_else(nothing_taken)?;
        let bytes = words.as_flattened();
        if let (Payload::Inline(len), None) = (info.payload, &loan)
            && !self.parcels
        {
            let bytes = bytes.get(..len).unwrap_or_default();
            return decode_inline(py, info.label.kind, bytes).map_err(|error| {
                let failure = self.failure(py, info, None, error);
                self.raised(here, failure, info, None, bytes)
            });
        }
        self.get_held(py, here, get.keep, info, loan, bytes)
    }

    /// Rebuilds a message that is leased, lies in shared memory, or is returned as a parcel.
    fn get_held<'py>(
        &self,
        py: Python<'py>,
        here: &ProcessQueue,
        keep: Keep,
        info: MessageInfo,
        loan: Option<Loan>,
        bytes: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let held = loan.map(|loan| Arc::new(here.queue.keep(loan, info.payload)));
        match self.rebuild(py, info, held.as_ref(), bytes) {
            Ok(object) => handed_out(object, keep, info, held.as_ref()),
            Err(failure) => Err(self.raised(here, failure, info, held, bytes)),
        }
    }

    /// Takes messages, waiting for them if necessary, and hands them to `out`: see
    /// [`SessionQueue::take`].
    ///
    /// No signal is handled once a message was taken.
    #[inline]
    pub(super) fn take(
        &self,
        py: Python<'_>,
        here: &ProcessQueue,
        get: &mut Get<'_, '_>,
        out: &mut impl FnMut(Message<'_>),
    ) -> PyResult<()> {
        match here.queue.take(get.want, get.keep, out) {
            Ok(Taken::Messages { .. }) => Ok(()),
            taken => self.take_later(py, &here.queue, get, out, taken),
        }
    }

    /// Same as `take`, after a first try in vain.
    #[cold]
    fn take_later(
        &self,
        py: Python<'_>,
        queue: &SessionQueue,
        get: &mut Get<'_, '_>,
        out: &mut impl FnMut(Message<'_>),
        first: Result<Taken, Error>,
    ) -> PyResult<()> {
        let (want, keep) = (get.want, get.keep);
        let taken = match first {
            Ok(Taken::Empty | Taken::Short) => get
                .limit
                .wait(py, |until| queue.take_within(want, keep, until, out))?,
            first => first,
        };
        let (operation, name) = (get.operation, self.name.as_str());
        match taken {
            Ok(Taken::Messages { .. }) => return Ok(()),
            Ok(Taken::Closed) => return Err(get.found_closed(py, name)),
            Ok(_) => (),
            Err(error) => return Err(self.failed(py, operation, &error)),
        }
        Err(get.found_nothing(py, name, &queue.shortage_of_take(get.want)))
    }

    /// The error of a get whose message was not rebuilt. An intact message waits for the next get.
    #[cold]
    fn raised(
        &self,
        here: &ProcessQueue,
        failure: Failure,
        info: MessageInfo,
        held: Option<Arc<Held>>,
        bytes: &[u8],
    ) -> PyErr {
        match failure {
            Failure::Spoilt(error) => error,
            Failure::Interrupted(error) => {
                let batch = TakenBatch::one(info, held, bytes);
                here.interrupted.put_back(&self.key, batch);
                error
            }
        }
    }
}
