//! A queue of a session, as this process has it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self_cell::self_cell;

use super::super::descriptor::{Label, Payload};
use super::super::lane::Lane;
use super::super::put::Refusal;
use super::super::queue::{Claim, Queue};
use super::super::sync::Ordering;
use super::super::take::{Keep, Loan, Message, Taken, Want};
use super::super::wait::Vigil;
use super::bells::Signals;
use super::draft::{Batch, Draft};
use super::held::Held;
use super::queues::{self, Found};
use super::uses::Use;
use super::{Error, Session};

type Signalled<'a> = Queue<'a, Signals>;

self_cell!(
    struct Bound {
        owner: Arc<Session>,
        #[covariant]
        dependent: Signalled,
    }
);

/// How long to look before sleeping, in nanoseconds: about what sleeping and waking takes, and half
/// as long again for the message of a megabyte that is just being written. Nothing to look for
/// where there is one processor.
///
/// It counts the machine's, not those that this process may use: one who is pinned to a processor
/// waits for others who are pinned to others.
fn patience_ns() -> u32 {
    static PATIENCE: OnceLock<u32> = OnceLock::new();
    *PATIENCE.get_or_init(|| {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let several = online.map_or(true, |online| online.contains(['-', ',']));
        if several { 50_000 } else { 0 }
    })
}

/// What an offer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The message is in the queue.
    Put,
    /// The queue refused it.
    Refused(Refusal),
    /// The session has no descriptor left.
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
            let ring = queues::ring(control, found.index)?;
            let signals = session.signals();
            Queue::new(
                control.table(),
                ring,
                found.index,
                session.me(),
                signals,
                patience_ns(),
            )
            .ok_or(Error::NoRoom {
                what: "participants",
                limit: super::layout::PARTICIPANTS as u64,
            })
        })?;
        Ok(Self { bound, found })
    }

    #[inline]
    pub(super) fn queue(&self) -> &Signalled<'_> {
        self.bound.borrow_dependent()
    }

    /// Its session.
    #[inline]
    pub fn session(&self) -> &Arc<Session> {
        self.bound.borrow_owner()
    }

    /// The most messages it may hold, 0 where only the session's backlog bounds it.
    pub fn maxsize(&self) -> u64 {
        self.found.maxsize
    }

    /// The most messages it may hold in any case.
    pub fn bound(&self) -> u64 {
        self.queue().ring().maxsize()
    }

    /// The most bytes its messages may have, 0 for no limit.
    pub fn max_bytes(&self) -> u64 {
        self.found.max_bytes
    }

    /// How many messages went through its ring before it was this queue's.
    pub(super) fn before(&self) -> u64 {
        self.found.before
    }

    /// Which of the session's queues it is.
    pub fn index(&self) -> u32 {
        self.found.index
    }

    /// How many messages are in it.
    pub fn len(&self) -> u64 {
        self.queue().ring().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a message that fits into a descriptor.
    ///
    /// # Errors
    ///
    /// Where it does not fit in, this process left the session, or there is damage.
    #[inline]
    pub fn offer(&self, label: Label, payload: &[u8]) -> Result<Offer, Error> {
        match self.offer_now(label, payload)? {
            Offer::Refused(Refusal::NoSlot) => self.offer_with_more_slots(label, payload),
            offered => Ok(offered),
        }
    }

    /// The same where its slot has no memory.
    #[cold]
    fn offer_with_more_slots(&self, label: Label, payload: &[u8]) -> Result<Offer, Error> {
        // Others may be so fast that it has to be done again; but no ring grows for ever.
        while self.grow()? {
            let offered = self.offer_now(label, payload)?;
            if offered != Offer::Refused(Refusal::NoSlot) {
                return Ok(offered);
            }
        }
        Ok(Offer::NoMemory)
    }

    /// Gives it memory for the next message, where it has none: see [`Refusal::NoSlot`]. False where
    /// there is none now.
    ///
    /// # Errors
    ///
    /// Where there is none, and the session is not to wait for it; where this process left the
    /// session, or there is damage.
    pub fn grow(&self) -> Result<bool, Error> {
        self.session().grow_ring(self.found.index)
    }

    #[inline]
    fn offer_now(&self, label: Label, payload: &[u8]) -> Result<Offer, Error> {
        let session = self.session();
        let offered = session.operate(|lane| match session.claim_own() {
            Some(claim) => self.offer_in(lane, claim, label, payload).map(Some),
            None => Ok(None),
        })?;
        match offered {
            Some(offered) => Ok(offered),
            None => self.offer_with_more(label, payload),
        }
    }

    /// The same where this process has no free descriptor.
    #[cold]
    fn offer_with_more(&self, label: Label, payload: &[u8]) -> Result<Offer, Error> {
        let session = self.session();
        let _use = Use::of(session)?;
        match session.claim()? {
            Some(claim) => session.with_lane(|lane| self.offer_in(lane, claim, label, payload)),
            None => Ok(Offer::NoMemory),
        }
    }

    #[inline]
    fn offer_in(
        &self,
        lane: &mut Lane<'_>,
        claim: Claim,
        label: Label,
        payload: &[u8],
    ) -> Result<Offer, Error> {
        let (session, queue) = (self.session(), self.queue());
        if !queue.fill(&claim, label, payload) {
            session.give_back(claim);
            return Err(too_long(payload.len()));
        }
        match queue.put(lane, claim)? {
            Ok(()) => Ok(Offer::Put),
            Err((claim, refusal)) => {
                session.give_back(claim);
                Ok(Offer::Refused(refusal))
            }
        }
    }

    /// A message of a length to be written in place; None where there is no memory now.
    ///
    /// # Errors
    ///
    /// Where it can never fit, or memory is used up and the session says that this is an error.
    pub fn draft(&self, length: u64) -> Result<Option<Draft>, Error> {
        Draft::new(self.session(), length)
    }

    /// Puts a message that was written in place; gives it back where it is refused. With
    /// [`Refusal::NoSlot`] there is no memory for it: [`Self::grow`] says why.
    ///
    /// # Errors
    ///
    /// Where this process left the session, or there is damage.
    pub fn put(&self, draft: Draft, label: Label) -> Result<Result<(), (Draft, Refusal)>, Error> {
        match draft.put(self, label)? {
            Err((draft, Refusal::NoSlot)) if matches!(self.grow(), Ok(true)) => {
                self.put(draft, label)
            }
            put => Ok(put),
        }
    }

    /// Messages to be put together.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// Takes messages and hands them to `out`, in their order: see [`Queue::take`].
    ///
    /// Each that has a loan keeps this process in the session until it is [held](Self::hold) and
    /// given back.
    ///
    /// # Errors
    ///
    /// Where this process left the session, or there is damage.
    #[inline]
    pub fn take(
        &self,
        want: Want,
        keep: Keep,
        out: &mut impl FnMut(Message<'_>),
    ) -> Result<Taken, Error> {
        let session = self.session();
        let queue = self.queue();
        let taken = session.operate(|lane| {
            let mut out = |message: Message<'_>| {
                if message.loan().is_some() {
                    session.begin_use();
                }
                out(message);
            };
            Ok(queue.take(lane, want, keep, &mut out)?)
        })?;
        if matches!(taken, Taken::Messages { .. }) {
            session.freed();
        }
        Ok(taken)
    }

    /// Drops the oldest message where the queue is full, or with `all` every one: see
    /// [`Queue::displace`]. How many were dropped.
    ///
    /// # Errors
    ///
    /// Where this process left the session, or there is damage.
    pub fn displace(&self, all: bool) -> Result<u64, Error> {
        let session = self.session();
        let queue = self.queue();
        let dropped = session.operate(|lane| Ok(queue.displace(lane, all)?))?;
        if dropped > 0 {
            let displaced = &session.control().superblock().counters.0.displaced;
            displaced.fetch_add(dropped, Ordering::Relaxed);
            session.freed();
        }
        Ok(dropped)
    }

    /// What was taken and is not free yet: a payload outside of its descriptor, or a lease.
    ///
    /// # Errors
    ///
    /// Where the payload does not lie where it should. It is given back then.
    pub fn hold(&self, loan: Loan, payload: Payload) -> Result<Held, Error> {
        let held = self.keep(loan, payload);
        held.reach()?;
        Ok(held)
    }

    /// The same where the caller has it [reached](Held::reach): what cannot be mapped now is not
    /// given back by that.
    pub fn keep(&self, loan: Loan, payload: Payload) -> Held {
        Held::new(self.session(), loan, payload, self.found.index)
    }

    /// Waits until there is something to take: see [`Queue::wait_to_take`].
    ///
    /// This process may leave the session meanwhile: a wait changes nothing in its name.
    ///
    /// # Errors
    ///
    /// Where this process left the session, or there is damage.
    pub fn wait_to_take(
        &self,
        want: Want,
        vigil: &mut Vigil,
        limit: Duration,
    ) -> Result<bool, Error> {
        self.session().check_open()?;
        Ok(self.queue().wait_to_take(want, vigil, limit)?)
    }

    /// Waits until there is room for a message of a length: see [`Queue::wait_to_put`].
    ///
    /// # Errors
    ///
    /// Where this process left the session, or there is damage.
    pub fn wait_to_put(
        &self,
        length: u64,
        vigil: &mut Vigil,
        limit: Duration,
    ) -> Result<bool, Error> {
        self.session().check_open()?;
        Ok(self.queue().wait_to_put(length, vigil, limit)?)
    }

    /// Ends a wait, whatever came of it: see [`Queue::done_taking`].
    pub fn done_taking(&self, want: Want, vigil: Vigil) {
        // Also where this process left meanwhile: else it took a wake-up along.
        if self.session().check_here().is_ok() {
            self.queue().done_taking(want, vigil);
        }
    }

    /// Ends a wait, whatever came of it: see [`Queue::done_putting`].
    pub fn done_putting(&self, vigil: Vigil) {
        if self.session().check_here().is_ok() {
            self.queue().done_putting(vigil);
        }
    }

    /// How many bytes the messages in it have; 0 where it has no bound for them.
    ///
    /// # Errors
    ///
    /// Where there is damage.
    pub fn bytes(&self) -> Result<u64, Error> {
        Ok(self.queue().queued_bytes()?.unwrap_or(0))
    }

    /// Whether a put would have to wait for a message to be taken.
    ///
    /// # Errors
    ///
    /// Where there is damage.
    pub fn is_full(&self) -> Result<bool, Error> {
        Ok(!self.queue().is_puttable(1)?)
    }

    /// Tells those who wait for weight that no more comes before somebody takes: see
    /// [`Queue::tell_no_room`].
    pub fn tell_no_room(&self) {
        if self.session().check_open().is_ok() {
            self.queue().tell_no_room();
        }
    }

    /// Whether a take would come to something.
    ///
    /// # Errors
    ///
    /// Where there is damage.
    pub fn is_takeable(&self, want: Want) -> Result<bool, Error> {
        Ok(self.queue().is_takeable(want)?)
    }

    /// Whether a put of so many bytes would come to something.
    ///
    /// # Errors
    ///
    /// Where there is damage.
    pub fn is_puttable(&self, length: u64) -> Result<bool, Error> {
        Ok(self.queue().is_puttable(length)?)
    }

    /// Asks for the doorbell to be rung, once, when there is something to take; false where this
    /// participant cannot be rung.
    pub fn arm_take(&self) -> bool {
        self.queue().arm_take()
    }

    /// Asks for the doorbell to be rung, once, when there is room.
    pub fn arm_put(&self) -> bool {
        self.queue().arm_put()
    }

    /// Whether it was closed.
    ///
    /// # Errors
    ///
    /// Where there is damage.
    pub fn is_closed(&self) -> Result<bool, Error> {
        Ok(self.queue().is_closed()?)
    }

    /// Closes it to puts, for everybody.
    ///
    /// # Errors
    ///
    /// Where this process left the session, or there is damage.
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
        limit: super::super::descriptor::Descriptor::INLINE as u64,
    }
}
