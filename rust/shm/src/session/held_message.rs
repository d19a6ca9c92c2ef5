//! `Held`: a message that was taken and is not free yet.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Error, Session};
use crate::ring::descriptor::{Block, Payload};
use crate::ring::take::Loan;
use crate::segment::Mapping;

/// A message in use: a payload that is read in place, a lease, or both.
///
/// Dropping it gives the message back, unless it is a lease that was not acknowledged: that stays
/// leased until this process ends or leaves, and then it is delivered again. In a forked child of
/// the process that took it, dropping it does nothing.
#[derive(Debug)]
pub struct Held {
    session: Arc<Session>,
    /// None once it is given back.
    loan: Mutex<Option<Loan>>,
    /// None if the payload was in the descriptor, and was copied.
    block: Option<Block>,
    /// The mapping of the block, once `reach` has mapped it.
    mapping: OnceLock<Arc<Mapping>>,
    /// The queue of the message. A lease goes back to it, and so keeps it in use.
    queue: u32,
}

impl Held {
    /// The caller has counted the loan as a use of the session; the use ends when this is dropped.
    pub(super) fn new(session: &Arc<Session>, loan: Loan, payload: Payload, queue: u32) -> Self {
        if loan.is_lease() {
            session.keep_open(queue);
        }
        Self {
            session: Arc::clone(session),
            loan: Mutex::new(Some(loan)),
            block: match payload {
                Payload::Block(block) => Some(block),
                Payload::Inline(_) => None,
            },
            mapping: OnceLock::new(),
            queue,
        }
    }

    /// Maps the payload's bytes; before this call there are none to read. Idempotent.
    ///
    /// # Errors
    ///
    /// If the payload is not where it should be, or the system does not map it: it may do so later,
    /// see [`Error::is_passing`].
    pub fn reach(&self) -> Result<(), Error> {
        if let Some(block) = &self.block
            && self.mapping.get().is_none()
        {
            let mapping = self.session.mapping(block.extent)?;
            // Checked once here: all later reads are within this range.
            mapping.pointer(block.offset, block.length)?;
            // Another thread may have set the same mapping first.
            let _ = self.mapping.set(mapping);
        }
        Ok(())
    }

    /// Number of bytes in its block; 0 if the payload was copied, or was not reached yet.
    #[expect(clippy::len_without_is_empty, reason = "only its length is asked for")]
    pub fn len(&self) -> u64 {
        self.place().map_or(0, |(_, block)| block.length)
    }

    /// Address of a part of its bytes in this process. Nothing else reads or writes there while
    /// this lives.
    ///
    /// # Errors
    ///
    /// If the message has no such part.
    pub fn pointer(&self, offset: u64, length: u64) -> Result<NonNull<u8>, Error> {
        let (mapping, at) = self.part(offset, length)?;
        Ok(mapping.pointer(at, length)?)
    }

    /// Copies a part of its bytes.
    ///
    /// # Errors
    ///
    /// If the message has no such part.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let (mapping, at) = self.part(offset, to.len() as u64)?;
        Ok(mapping.read(at, to)?)
    }

    fn place(&self) -> Option<(&Mapping, &Block)> {
        Some((self.mapping.get()?, self.block.as_ref()?))
    }

    fn part(&self, offset: u64, length: u64) -> Result<(&Mapping, u64), Error> {
        let outside = crate::segment::Outside {
            offset,
            length,
            mapped: self.len(),
        };
        let (mapping, block) = self.place().ok_or(outside)?;
        match offset.checked_add(length) {
            Some(end) if end <= block.length => Ok((mapping, block.offset + offset)),
            _ => Err(outside.into()),
        }
    }

    /// Whether it was taken in this process, not in the parent of this one.
    pub fn is_here(&self) -> bool {
        self.session.origin().is_here()
    }

    /// Acknowledges a lease: from now on dropping it gives it back, and so does the death of this
    /// process. Idempotent.
    ///
    /// # Errors
    ///
    /// If this process did not take it, or was taken for dead meanwhile.
    pub fn acknowledge(&self) -> Result<(), Error> {
        self.session.check_here()?;
        let mut loan = self.loan.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leased) = loan.take_if(|loan| loan.is_lease()) {
            *loan = Some(leased.acknowledge(&self.session.control().table())?);
            self.session.let_go(self.queue);
        }
        Ok(())
    }

    /// Gives a lease back: the message is delivered again, to any consumer, and its bytes no longer
    /// belong to this process. Does nothing if the lease was already given back or acknowledged.
    ///
    /// Returns whether it was given back.
    ///
    /// # Errors
    ///
    /// If this process did not take it, or was taken for dead meanwhile; or if there is damage.
    pub fn give_back(&self) -> Result<bool, Error> {
        self.session.check_here()?;
        let mut loan = self.loan.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(leased) = loan.take_if(|loan| loan.is_lease()) else {
            return Ok(false);
        };
        drop(loan);
        self.session.redeliver(leased)?;
        self.session.let_go(self.queue);
        Ok(true)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let loan = self
            .loan
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(loan) = loan
            && !loan.is_lease()
            && self.is_here()
        {
            // Fails if this process was taken for dead: then the message is given back already.
            let _ = loan.release(&self.session.control().table());
            self.session.freed();
        }
        self.session.end_use();
    }
}
