//! Messages that are made and not put yet.

use std::ptr::NonNull;
use std::sync::Arc;

use super::super::descriptor::Label;
use super::super::memory::Mapping;
use super::super::payload::Placed;
use super::super::put::Refusal;
use super::super::queue::Claim;
use super::handle::SessionQueue;
use super::uses::Use;
use super::{Error, Session};

/// A descriptor and a block of memory for one message, which nobody else has to do with until it is
/// put. Dropping it gives both back.
#[derive(Debug)]
pub struct Draft {
    session: Arc<Session>,
    /// None once it is put.
    claim: Option<Claim>,
    placed: Placed,
}

impl Draft {
    pub(super) fn new(session: &Arc<Session>, length: u64) -> Result<Option<Self>, Error> {
        let _use = Use::of(session)?;
        let Some(claim) = session.claim()? else {
            return Ok(None);
        };
        match session.allocate(length) {
            Ok(Some(placed)) => {
                session.bind(&claim, &placed);
                session.begin_use();
                Ok(Some(Self {
                    session: Arc::clone(session),
                    claim: Some(claim),
                    placed,
                }))
            }
            nothing => {
                session.give_back(claim);
                nothing.map(|_| None)
            }
        }
    }

    /// How many bytes the message has.
    pub fn len(&self) -> u64 {
        self.placed.block().length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes a part of the message.
    ///
    /// # Errors
    ///
    /// Where the message has no such part.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.placed.write(offset, bytes)?)
    }

    /// Where its bytes lie in this process: nobody else reads or writes there until it is put.
    ///
    /// # Errors
    ///
    /// Where the block does not lie in its mapping: never, without damage.
    pub fn pointer(&self) -> Result<NonNull<u8>, Error> {
        Ok(self.placed.pointer()?)
    }

    /// The mapping that its bytes lie in, and from where on: for who keeps them in view.
    pub fn place(&self) -> (Arc<Mapping>, u64) {
        (self.placed.mapping(), self.placed.block().offset)
    }

    /// In which process it was made.
    pub fn is_here(&self) -> bool {
        self.session.origin().is_here()
    }

    pub(super) fn put(
        mut self,
        to: &SessionQueue,
        label: Label,
    ) -> Result<Result<(), (Self, Refusal)>, Error> {
        self.session.check_open()?;
        let Some(claim) = self.claim.take() else {
            return Ok(Ok(()));
        };
        let queue = to.queue();
        queue.fill_external(&claim, label, self.placed.block());
        match self.session.with_lane(|lane| queue.put(lane, claim))? {
            Ok(()) => Ok(Ok(())),
            Err((claim, refusal)) => {
                self.claim = Some(claim);
                Ok(Err((self, refusal)))
            }
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take()
            && self.is_here()
        {
            // Its block comes back with its descriptor.
            self.session.give_back(claim);
        }
        self.session.end_use();
    }
}

/// Messages that are filled, in the order in which they are to be put. Dropping it gives back those
/// that were not.
#[derive(Debug)]
pub struct Batch<'a> {
    to: &'a SessionQueue,
    claims: Vec<Claim>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(to: &'a SessionQueue) -> Self {
        to.session().begin_use();
        let claims = Vec::new();
        Self { to, claims }
    }

    /// How many are not put.
    pub fn len(&self) -> usize {
        self.claims.len()
    }

    /// Whether all are put.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Adds a message that fits into a descriptor; false where there is none left.
    ///
    /// # Errors
    ///
    /// Where this process left the session.
    pub fn push(&mut self, label: Label, payload: &[u8]) -> Result<bool, Error> {
        let session = self.to.session();
        session.check_open()?;
        let Some(claim) = session.claim()? else {
            return Ok(false);
        };
        self.to.queue().fill(&claim, label, payload);
        self.claims.push(claim);
        Ok(true)
    }

    /// Adds a message that was written in place.
    pub fn push_draft(&mut self, label: Label, mut draft: Draft) {
        if let Some(claim) = draft.claim.take() {
            let block = draft.placed.block();
            self.to.queue().fill_external(&claim, label, block);
            self.claims.push(claim);
        }
    }

    /// Puts as many as there is room for, in their order; the others stay.
    ///
    /// # Errors
    ///
    /// Where this process left the session, or there is damage.
    pub fn put(&mut self) -> Result<Option<Refusal>, Error> {
        let session = self.to.session();
        session.check_open()?;
        let queue = self.to.queue();
        Ok(session.with_lane(|lane| queue.put_many(lane, &mut self.claims))?)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let session = self.to.session();
        if session.origin().is_here() {
            for claim in self.claims.drain(..) {
                session.give_back(claim);
            }
        }
        session.end_use();
    }
}
