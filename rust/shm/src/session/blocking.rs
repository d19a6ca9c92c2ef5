//! Operations of a [`SessionQueue`] that wait for messages, for room, or for memory.

use std::time::Duration;

use super::draft::{Batch, Draft};
use super::queue::Offer;
use super::{Error, SessionQueue};
use crate::blocking::{Lack, Pause, Producer, Until, WaitQueue, take_within};
use crate::ring::{Keep, Label, Message, Refusal, Taken, WaitState, Want};

impl WaitQueue for SessionQueue {
    type Error = Error;

    fn is_takeable(&self, want: Want) -> Result<bool, Error> {
        self.is_takeable(want)
    }

    fn is_puttable(&self, length: u64) -> Result<bool, Error> {
        self.session().check_open()?;
        self.is_puttable(length)
    }

    fn sleep_to_take(
        &self,
        want: Want,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<(), Error> {
        self.session().tend();
        self.wait_to_take(want, wait_state, limit).map(drop)
    }

    fn sleep_to_put(
        &self,
        lack: Lack,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<(), Error> {
        self.session().tend();
        match lack {
            Lack::Room { length } => self.wait_to_put(length, wait_state, limit).map(drop),
            Lack::Memory { .. } => {
                // Consumers that wait for a weight then take the messages that are there, which
                // frees memory. Reported only now that this put waits: a put that gives up must
                // not stop consumers from waiting for more.
                self.tell_no_room();
                self.session().wait_for_memory(limit);
                Ok(())
            }
        }
    }

    fn end_taking(&self, want: Want, wait_state: WaitState) {
        self.done_taking(want, wait_state);
    }

    fn end_putting(&self, wait_state: WaitState) {
        self.done_putting(wait_state);
    }
}

/// A message on its way into a queue.
pub enum Outgoing<'a> {
    /// It fits into a descriptor.
    Small(&'a [u8]),
    /// It is not in shared memory yet.
    Unwritten {
        /// Number of bytes of the message.
        length: u64,
        /// Writes the message into a draft; None if no memory is free now.
        write: &'a mut dyn FnMut() -> Result<Option<Draft>, Error>,
    },
    /// It is in shared memory; None once it was put.
    Written(Option<Draft>),
}

impl std::fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Self::Small(_) => "Small",
            Self::Unwritten { .. } => "Unwritten",
            Self::Written(_) => "Written",
        };
        f.debug_struct(name)
            .field("length", &self.len())
            .finish_non_exhaustive()
    }
}

impl Outgoing<'_> {
    /// Number of bytes of the message.
    #[expect(clippy::len_without_is_empty, reason = "only its length is asked for")]
    pub fn len(&self) -> u64 {
        match self {
            Self::Small(bytes) => bytes.len() as u64,
            Self::Unwritten { length, .. } => *length,
            Self::Written(draft) => draft.as_ref().map_or(0, Draft::len),
        }
    }
}

impl SessionQueue {
    /// Takes messages, waiting for them: see [`Self::take`]. [`Taken::Empty`] or [`Taken::Short`]
    /// if the wait ended before they came.
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    pub fn take_within(
        &self,
        want: Want,
        keep: Keep,
        until: &mut Until<impl Pause>,
        out: &mut impl FnMut(Message<'_>),
    ) -> Result<Taken, Error> {
        take_within(self, want, until, || self.take(want, keep, out))
    }

    /// A producer of this queue, which waits by [`Producer`]'s methods.
    #[inline]
    pub fn producer(&self) -> Producer<'_, Self> {
        Producer::new(self)
    }

    /// Tries to put a message; one that was written stays in `message` if that fails.
    ///
    /// # Errors
    ///
    /// If the queue is closed, this process left the session, or there is damage.
    pub fn try_put(
        &self,
        label: Label,
        message: &mut Outgoing<'_>,
        wait_state: &WaitState,
    ) -> Result<Result<(), Lack>, Error> {
        let length = message.len();
        match message {
            Outgoing::Small(bytes) => {
                return match self.offer(label, bytes)? {
                    Offer::Put => Ok(Ok(())),
                    Offer::NoMemory => Ok(Err(Lack::Memory { length })),
                    Offer::Refused(refusal) => lack_of(refusal, length).map(Err),
                };
            }
            Outgoing::Unwritten { write, .. } => {
                // The estimate, which is cheaper, is enough for a queue without a bound in bytes.
                let free = self.max_bytes() == 0 && self.seems_puttable(0);
                if !free && !self.is_puttable(length)? {
                    return Ok(Err(Lack::Room { length }));
                }
                self.pass_on_room(wait_state);
                match write()? {
                    Some(draft) => *message = Outgoing::Written(Some(draft)),
                    None => return Ok(Err(Lack::Memory { length })),
                }
            }
            Outgoing::Written(_) => (),
        }
        let Outgoing::Written(slot) = message else {
            return Ok(Err(Lack::Memory { length }));
        };
        let Some(draft) = slot.take() else {
            return Ok(Ok(()));
        };
        match self.put(draft, label)? {
            Ok(()) => Ok(Ok(())),
            Err((draft, refusal)) => {
                *slot = Some(draft);
                if refusal == Refusal::NoSlot && self.grow()? {
                    return self.try_put(label, message, wait_state);
                }
                lack_of(refusal, length).map(Err)
            }
        }
    }
}

impl Producer<'_, SessionQueue> {
    /// Puts a message, and waits for what it lacks. The message is written when there is room for
    /// it, once; a written message that is not put stays in `message`.
    ///
    /// # Errors
    ///
    /// If the queue is closed, this process left the session, or there is damage.
    pub fn put(
        &mut self,
        label: Label,
        message: &mut Outgoing<'_>,
        until: &mut Until<impl Pause>,
    ) -> Result<Result<(), Lack>, Error> {
        let queue = self.queue();
        self.within(until, |wait_state| {
            queue.try_put(label, message, wait_state)
        })
    }

    /// A draft of a given length, which `make` allocates; waits for memory.
    ///
    /// # Errors
    ///
    /// If the queue is closed, a message of this length can never fit, this process left the
    /// session, or there is damage.
    pub fn draft(
        &mut self,
        length: u64,
        until: &mut Until<impl Pause>,
        mut make: impl FnMut() -> Result<Option<Draft>, Error>,
    ) -> Result<Result<Draft, Lack>, Error> {
        let queue = self.queue();
        self.within(until, |_| {
            if queue.is_closed()? {
                return Err(Error::QueueClosed);
            }
            Ok(make()?.ok_or(Lack::Memory { length }))
        })
    }
}

impl Batch<'_> {
    /// Puts as many messages as possible; returns what the first of the others lacks.
    ///
    /// # Errors
    ///
    /// If the queue is closed, this process left the session, or there is damage.
    pub fn try_put(&mut self) -> Result<Result<(), Lack>, Error> {
        loop {
            let Some(refusal) = self.put()? else {
                return Ok(Ok(()));
            };
            if refusal != Refusal::NoSlot || !self.queue().grow()? {
                return lack_of(refusal, self.first_len()).map(Err);
            }
        }
    }
}

/// The shortage for which a put was refused. Waiting does not help if the queue is closed.
fn lack_of(refusal: Refusal, length: u64) -> Result<Lack, Error> {
    match refusal {
        Refusal::Full => Ok(Lack::Room { length }),
        Refusal::NoSlot => Ok(Lack::Memory { length }),
        Refusal::Closed => Err(Error::QueueClosed),
    }
}
