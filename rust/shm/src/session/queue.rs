//! `SessionQueue`: a queue of a session, as this process has it open.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self_cell::self_cell;

use super::bells::Signals;
use super::draft::{Batch, Draft};
use super::held_message::Held;
use super::queue_table::{self, Found};
use super::use_guard::UseGuard;
use super::{Error, Session};
use crate::ring::descriptor::{Label, Payload};
use crate::ring::intent::IntentRecord;
use crate::ring::put::Refusal;
use crate::ring::queue::{Claim, Queue};
use crate::ring::take::{Keep, Loan, Message, Taken, Want};
use crate::ring::wait::WaitState;
use crate::sync::Ordering;

type Signalled<'a> = Queue<'a, Signals>;

self_cell!(
    struct Bound {
        owner: Arc<Session>,
        #[covariant]
        dependent: Signalled,
    }
);

/// Time to look before sleeping, in nanoseconds: about as long as going to sleep and waking take,
/// plus half as much again for a message of a megabyte that is just being written. 0 on a machine
/// with one processor, where looking gains nothing.
///
/// It depends on the processors of the machine, not on those that this process may use: a process
/// that is pinned to one processor waits for others that are pinned to others.
fn max_spin_ns() -> u32 {
    static MAX_SPIN_NS: OnceLock<u32> = OnceLock::new();
    *MAX_SPIN_NS.get_or_init(|| {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let several = online.map_or(true, |online| online.contains(['-', ',']));
        if several { 50_000 } else { 0 }
    })
}

/// The result of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The message is in the queue.
    Put,
    /// The queue refused it.
    Refused(Refusal),
    /// The session has no free descriptor, or no memory for the slot.
    NoMemory,
}

/// A queue of a session. It keeps the session's memory mapped, and the queue in use.
pub struct SessionQueue {
    bound: Bound,
    found: Found,
}

impl SessionQueue {
    pub(super) fn new(session: Arc<Session>, found: Found) -> Result<Self, Error> {
        let bound = Bound::try_new(session, |session| {
            let control = session.control();
            let ring = queue_table::ring(control, found.index)?;
            let signals = session.signals();
            Queue::new(
                control.table(),
                ring,
                found.index,
                session.me(),
                signals,
                max_spin_ns(),
            )
            .ok_or(Error::NoRoom {
                what: "participants",
                limit: crate::segment::layout::PARTICIPANTS as u64,
            })
        })?;
        Ok(Self { bound, found })
    }

    #[inline]
    pub(super) fn queue(&self) -> &Signalled<'_> {
        self.bound.borrow_dependent()
    }

    /// The session of the queue.
    #[inline]
    pub fn session(&self) -> &Arc<Session> {
        self.bound.borrow_owner()
    }

    /// Maximum number of messages, 0 if only the session's backlog limits it.
    pub fn maxsize(&self) -> u64 {
        self.found.maxsize
    }

    /// Maximum number of messages: `maxsize`, or the session's backlog.
    pub fn bound(&self) -> u64 {
        self.queue().ring().maxsize()
    }

    /// Maximum number of bytes of its messages, 0 for no limit.
    pub fn max_bytes(&self) -> u64 {
        self.found.max_bytes
    }

    /// Refuses a message that is longer than the queue may ever be.
    ///
    /// # Errors
    ///
    /// [`Error::TooLargeForQueue`].
    #[inline]
    pub fn check_fits(&self, length: u64) -> Result<(), Error> {
        let limit = self.max_bytes();
        if limit == 0 || length <= limit {
            return Ok(());
        }
        Err(Error::TooLargeForQueue { length, limit })
    }

    /// Number of messages that went through its ring before the ring was this queue's.
    pub(super) fn before(&self) -> u64 {
        self.found.before
    }

    /// The queue's index in the session.
    pub fn index(&self) -> u32 {
        self.found.index
    }

    /// Number of messages in it.
    pub fn len(&self) -> u64 {
        self.queue().ring().len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a message that fits into a descriptor.
    ///
    /// # Errors
    ///
    /// If the message does not fit, this process left the session, or there is damage.
    #[inline]
    pub fn offer(&self, label: Label, payload: &[u8]) -> Result<Offer, Error> {
        match self.offer_now(label, payload)? {
            Offer::Refused(Refusal::NoSlot) => self.offer_with_more_slots(label, payload),
            offered => Ok(offered),
        }
    }

    /// Same as `offer`, for a slot that has no memory yet.
    #[cold]
    fn offer_with_more_slots(&self, label: Label, payload: &[u8]) -> Result<Offer, Error> {
        // Other producers may use up the new slots first; but a ring does not grow for ever.
        while self.grow()? {
            let offered = self.offer_now(label, payload)?;
            if offered != Offer::Refused(Refusal::NoSlot) {
                return Ok(offered);
            }
        }
        Ok(Offer::NoMemory)
    }

    /// Gives the ring memory for the next message if it has none: see [`Refusal::NoSlot`]. False if
    /// there is no memory now.
    ///
    /// # Errors
    ///
    /// If there is no memory and the session is not to wait for it; if this process left the
    /// session, or there is damage.
    pub fn grow(&self) -> Result<bool, Error> {
        self.session().grow_ring(self.found.index)
    }

    #[inline]
    fn offer_now(&self, label: Label, payload: &[u8]) -> Result<Offer, Error> {
        let session = self.session();
        let offered = session.operate(|record| match session.claim_own() {
            Some(claim) => self.offer_in(record, claim, label, payload).map(Some),
            None => Ok(None),
        })?;
        match offered {
            Some(offered) => Ok(offered),
            None => self.offer_with_more(label, payload),
        }
    }

    /// Same as `offer_now`, for a process without a free descriptor.
    #[cold]
    fn offer_with_more(&self, label: Label, payload: &[u8]) -> Result<Offer, Error> {
        let session = self.session();
        let _use = UseGuard::of(session)?;
        match session.claim()? {
            Some(claim) => {
                session.with_record(|record| self.offer_in(record, claim, label, payload))
            }
            None => Ok(Offer::NoMemory),
        }
    }

    #[inline]
    fn offer_in(
        &self,
        record: &mut IntentRecord<'_>,
        claim: Claim,
        label: Label,
        payload: &[u8],
    ) -> Result<Offer, Error> {
        let (session, queue) = (self.session(), self.queue());
        if !queue.fill(&claim, label, payload) {
            session.give_back(claim);
            return Err(too_long(payload.len()));
        }
        match queue.put(record, claim)? {
            Ok(()) => Ok(Offer::Put),
            Err((claim, refusal)) => {
                session.give_back(claim);
                Ok(Offer::Refused(refusal))
            }
        }
    }

    /// A message of a given length, to be written in place; None if there is no memory now.
    ///
    /// # Errors
    ///
    /// If it can never fit, or memory is used up and the session's policy is an error.
    pub fn draft(&self, length: u64) -> Result<Option<Draft>, Error> {
        Draft::new(self.session(), length)
    }

    /// Puts a message that was written in place; returns it if the queue refuses it. With
    /// [`Refusal::NoSlot`] there is no memory for its slot: [`Self::grow`] says why.
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    pub fn put(&self, draft: Draft, label: Label) -> Result<Result<(), (Draft, Refusal)>, Error> {
        match draft.put(self, label)? {
            Err((draft, Refusal::NoSlot)) if matches!(self.grow(), Ok(true)) => {
                self.put(draft, label)
            }
            put => Ok(put),
        }
    }

    /// An empty batch: messages that are put together.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// Takes messages and passes them to `out`, in their order: see [`Queue::take`].
    ///
    /// Each message with a loan keeps this process in the session until it is [held](Self::hold)
    /// and given back.
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    #[inline]
    pub fn take(
        &self,
        want: Want,
        keep: Keep,
        out: &mut impl FnMut(Message<'_>),
    ) -> Result<Taken, Error> {
        let session = self.session();
        let queue = self.queue();
        let taken = session.operate(|record| {
            let mut out = |message: Message<'_>| {
                if message.loan().is_some() {
                    session.begin_use();
                }
                out(message);
            };
            Ok(queue.take(record, want, keep, &mut out)?)
        })?;
        if matches!(taken, Taken::Messages { .. }) {
            session.freed();
        }
        Ok(taken)
    }

    /// Drops the oldest message if the queue is full, or all messages if `all` is set: see
    /// [`Queue::displace`]. Returns how many were dropped.
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    pub fn displace(&self, all: bool) -> Result<u64, Error> {
        let session = self.session();
        let queue = self.queue();
        let dropped = session.operate(|record| Ok(queue.displace(record, all)?))?;
        if dropped > 0 {
            let displaced = &session.control().superblock().counters.0.displaced;
            displaced.fetch_add(dropped, Ordering::Relaxed);
            session.freed();
        }
        Ok(dropped)
    }

    /// Holds a message that was taken and is not free yet: its payload is outside of its
    /// descriptor, or it is a lease.
    ///
    /// # Errors
    ///
    /// If the payload is not where it should be. The message is given back then.
    pub fn hold(&self, loan: Loan, payload: Payload) -> Result<Held, Error> {
        let held = self.keep(loan, payload);
        held.reach()?;
        Ok(held)
    }

    /// Same as `hold`, but the caller [reaches](Held::reach) the payload: if it cannot be mapped
    /// now, the message is not given back.
    pub fn keep(&self, loan: Loan, payload: Payload) -> Held {
        Held::new(self.session(), loan, payload, self.found.index)
    }

    /// Waits until there is something to take: see [`Queue::wait_to_take`].
    ///
    /// This process may leave the session meanwhile: a wait changes nothing in its name.
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    pub fn wait_to_take(
        &self,
        want: Want,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<bool, Error> {
        self.session().check_open()?;
        Ok(self.queue().wait_to_take(want, wait_state, limit)?)
    }

    /// Waits until there is room for a message of a given length: see [`Queue::wait_to_put`].
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    pub fn wait_to_put(
        &self,
        length: u64,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<bool, Error> {
        self.session().check_open()?;
        Ok(self.queue().wait_to_put(length, wait_state, limit)?)
    }

    /// Ends a wait, whatever its result: see [`Queue::done_taking`].
    pub fn done_taking(&self, want: Want, wait_state: WaitState) {
        // Needed even if this process has left meanwhile: it may have consumed a wake-up that
        // others need.
        if self.session().check_here().is_ok() {
            self.queue().done_taking(want, wait_state);
        }
    }

    /// Ends a wait, whatever its result: see [`Queue::done_putting`].
    pub fn done_putting(&self, wait_state: WaitState) {
        if self.session().check_here().is_ok() {
            self.queue().done_putting(wait_state);
        }
    }

    /// Lets other producers wait on while a woken one prepares its message: see
    /// [`Queue::pass_on_room`].
    pub fn pass_on_room(&self, wait_state: &WaitState) {
        if self.session().check_here().is_ok() {
            self.queue().pass_on_room(wait_state);
        }
    }

    /// Number of bytes of the messages in it; 0 if it has no bound in bytes.
    ///
    /// # Errors
    ///
    /// If there is damage.
    pub fn bytes(&self) -> Result<u64, Error> {
        Ok(self.queue().queued_bytes()?.unwrap_or(0))
    }

    /// Whether a put would have to wait for a message to be taken.
    ///
    /// # Errors
    ///
    /// If there is damage.
    pub fn is_full(&self) -> Result<bool, Error> {
        Ok(!self.queue().is_puttable(1)?)
    }

    /// Tells those that wait for weight that no more arrives before something is taken: see
    /// [`Queue::tell_no_room`].
    pub fn tell_no_room(&self) {
        if self.session().check_open().is_ok() {
            self.queue().tell_no_room();
        }
    }

    /// Whether a take would return something now.
    ///
    /// # Errors
    ///
    /// If there is damage.
    pub fn is_takeable(&self, want: Want) -> Result<bool, Error> {
        Ok(self.queue().is_takeable(want)?)
    }

    /// Whether there seems to be room behind the next `ahead` messages: see
    /// [`Queue::seems_puttable`].
    #[inline]
    pub fn seems_puttable(&self, ahead: u64) -> bool {
        self.queue().seems_puttable(ahead)
    }

    /// Whether a put of a message of this length would succeed now.
    ///
    /// # Errors
    ///
    /// If there is damage.
    pub fn is_puttable(&self, length: u64) -> Result<bool, Error> {
        Ok(self.queue().is_puttable(length)?)
    }

    /// Asks for the doorbell to be rung, once, when there is something to take; false if this
    /// participant cannot be rung.
    pub fn arm_take(&self) -> bool {
        self.queue().arm_take()
    }

    /// Asks for the doorbell to be rung, once, when there is room.
    pub fn arm_put(&self) -> bool {
        self.queue().arm_put()
    }

    /// Whether it is closed.
    ///
    /// # Errors
    ///
    /// If there is damage.
    pub fn is_closed(&self) -> Result<bool, Error> {
        Ok(self.queue().is_closed()?)
    }

    /// Closes the queue: all further puts, by any process, are refused.
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    pub fn close(&self) -> Result<(), Error> {
        self.session().check_open()?;
        Ok(self.queue().close()?)
    }
}

impl Drop for SessionQueue {
    fn drop(&mut self) {
        self.session().let_go(self.found.index);
    }
}

impl std::fmt::Debug for SessionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionQueue")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

pub(super) fn too_long(length: usize) -> Error {
    Error::TooLarge {
        length: length as u64,
        limit: crate::ring::descriptor::Descriptor::INLINE as u64,
    }
}
