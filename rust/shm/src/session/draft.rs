//! `Draft` and `Batch`: messages that are filled but not put yet.

use std::ptr::NonNull;
use std::sync::Arc;

use super::queue::{SessionQueue, too_long};
use super::use_guard::UseGuard;
use super::{Error, Session};
use crate::payload::AllocatedBlock;
use crate::ring::descriptor::Label;
use crate::ring::put::Refusal;
use crate::ring::queue::Claim;
use crate::segment::Mapping;

/// A descriptor and a block of memory for one message, for this process alone until the message is
/// put. Dropping it gives both back.
#[derive(Debug)]
pub struct Draft {
    session: Arc<Session>,
    /// None once it is put.
    claim: Option<Claim>,
    allocated: AllocatedBlock,
}

impl Draft {
    pub(super) fn new(session: &Arc<Session>, length: u64) -> Result<Option<Self>, Error> {
        let _use = UseGuard::of(session)?;
        let Some(claim) = session.claim()? else {
            return Ok(None);
        };
        match session.allocate(length) {
            Ok(Some(allocated)) => {
                session.bind(&claim, &allocated);
                session.begin_use();
                Ok(Some(Self {
                    session: Arc::clone(session),
                    claim: Some(claim),
                    allocated,
                }))
            }
            nothing => {
                session.give_back(claim);
                nothing.map(|_| None)
            }
        }
    }

    /// Number of bytes of the message.
    #[expect(clippy::len_without_is_empty, reason = "only its length is asked for")]
    pub fn len(&self) -> u64 {
        self.allocated.block().length
    }

    /// Writes a part of the message.
    ///
    /// # Errors
    ///
    /// If the message has no such part.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.allocated.write(offset, bytes)?)
    }

    /// Address of its bytes in this process: nothing else reads or writes there until it is put.
    ///
    /// # Errors
    ///
    /// If the block does not lie in its mapping: only after damage.
    pub fn pointer(&self) -> Result<NonNull<u8>, Error> {
        Ok(self.allocated.pointer()?)
    }

    /// The mapping of its bytes, and their offset: for a caller that keeps a view of them.
    pub fn place(&self) -> (Arc<Mapping>, u64) {
        (self.allocated.mapping(), self.allocated.block().offset)
    }

    /// Whether it was made in this process, not in the parent of this one.
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
        queue.fill_external(&claim, label, self.allocated.block());
        match self
            .session
            .with_record(|record| queue.put(record, claim))?
        {
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
            // The block is freed with its descriptor.
            self.session.give_back(claim);
        }
        self.session.end_use();
    }
}

/// Filled messages, in the order of their puts. Dropping it gives back those that were not put.
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

    /// Number of messages that are not put.
    pub fn len(&self) -> usize {
        self.claims.len()
    }

    /// Whether all are put.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The queue that it goes to.
    pub(super) fn queue(&self) -> &'a SessionQueue {
        self.to
    }

    /// Number of bytes of the first message that is not put; 0 if all are put.
    pub(super) fn first_len(&self) -> u64 {
        let first = self.claims.first();
        first.map_or(0, |claim| self.to.queue().length(claim))
    }

    /// Adds a message that fits into a descriptor; false if there is no descriptor left.
    ///
    /// # Errors
    ///
    /// If it does not fit, or this process left the session.
    pub fn push(&mut self, label: Label, payload: &[u8]) -> Result<bool, Error> {
        let session = self.to.session();
        session.check_open()?;
        let Some(claim) = session.claim()? else {
            return Ok(false);
        };
        if !self.to.queue().fill(&claim, label, payload) {
            session.give_back(claim);
            return Err(too_long(payload.len()));
        }
        self.claims.push(claim);
        Ok(true)
    }

    /// Adds a message that was written in place.
    pub fn push_draft(&mut self, label: Label, mut draft: Draft) {
        if let Some(claim) = draft.claim.take() {
            let block = draft.allocated.block();
            self.to.queue().fill_external(&claim, label, block);
            self.claims.push(claim);
        }
    }

    /// Puts as many messages as there is room for, in their order; the others stay. With
    /// [`Refusal::NoSlot`] there is no memory for their slots: [`SessionQueue::grow`] says why.
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    pub fn put(&mut self) -> Result<Option<Refusal>, Error> {
        let session = self.to.session();
        session.check_open()?;
        let queue = self.to.queue();
        loop {
            let refused = session.with_record(|record| queue.put_many(record, &mut self.claims))?;
            let grown = refused == Some(Refusal::NoSlot) && matches!(self.to.grow(), Ok(true));
            if !grown {
                return Ok(refused);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::descriptor::Descriptor;
    use crate::session::tests::{open, session};

    #[test]
    fn a_message_too_large_for_a_descriptor_is_refused_and_the_others_are_put() {
        let (_folder, session) = session(9);
        let queue = open(&session, b"q");
        let mut batch = queue.batch();
        let label = Label::default();
        assert!(batch.push(label, b"one").expect("it fits in"));
        let error = batch.push(label, &[7; Descriptor::INLINE + 1]);
        assert!(matches!(error, Err(Error::TooLarge { length: 209, .. })));
        assert!(batch.push(label, b"two").expect("it fits in"));
        assert_eq!(batch.put().expect("sound"), None);
        drop(batch);
        let stats = session.stats().expect("sound");
        assert_eq!((stats.messages, stats.descriptors_in_use), (2, 2));
    }
}
