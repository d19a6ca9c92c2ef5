//! A message that was taken and is not free yet.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::super::descriptor::{Block, Payload};
use super::super::memory::Mapping;
use super::super::take::Loan;
use super::{Error, Session};

/// A message in use: a payload that is read where it lies, a lease, or both.
///
/// Dropping it gives the message back, but for a lease that was not acknowledged: that stays until
/// this process ends or leaves, and is delivered again then. In a child of the process that took
/// it, it does nothing.
#[derive(Debug)]
pub struct Held {
    session: Arc<Session>,
    /// None once it is given back.
    loan: Mutex<Option<Loan>>,
    /// None where the payload was in the descriptor, and was copied.
    block: Option<Block>,
    /// Where the block lies, once it was reached.
    mapping: OnceLock<Arc<Mapping>>,
    /// The queue that it came from, and goes back to if it is a lease: which then stays in use.
    queue: u32,
}

impl Held {
    /// The loan is a use of the session already, which ends with this.
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

    /// Maps where its bytes lie; it has none before. Again is nothing.
    ///
    /// # Errors
    ///
    /// Where the payload does not lie where it should, or the system does not map it: it may do so
    /// later, see [`Error::is_passing`].
    pub fn reach(&self) -> Result<(), Error> {
        if let Some(block) = &self.block
            && self.mapping.get().is_none()
        {
            let mapping = self.session.mapping(block.extent)?;
            // Once and for all: what is read later lies within.
            mapping.pointer(block.offset, block.length)?;
            // Another thread may be faster, with the same.
            let _ = self.mapping.set(mapping);
        }
        Ok(())
    }

    /// How many bytes lie in its block; 0 where the payload was copied, or was not reached yet.
    pub fn len(&self) -> u64 {
        self.place().map_or(0, |(_, block)| block.length)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a part of its bytes lies in this process: nobody else reads or writes there while this
    /// lives.
    ///
    /// # Errors
    ///
    /// Where the message has no such part.
    pub fn pointer(&self, offset: u64, length: u64) -> Result<NonNull<u8>, Error> {
        let (mapping, at) = self.part(offset, length)?;
        Ok(mapping.pointer(at, length)?)
    }

    /// Copies a part of its bytes.
    ///
    /// # Errors
    ///
    /// Where the message has no such part.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let (mapping, at) = self.part(offset, to.len() as u64)?;
        Ok(mapping.read(at, to)?)
    }

    fn place(&self) -> Option<(&Mapping, &Block)> {
        Some((self.mapping.get()?, self.block.as_ref()?))
    }

    fn part(&self, offset: u64, length: u64) -> Result<(&Mapping, u64), Error> {
        let outside = super::super::memory::Outside {
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

    /// In which process it was taken.
    pub fn is_here(&self) -> bool {
        self.session.origin().is_here()
    }

    /// Acknowledges a lease: from now on dropping it gives it back, and so does the death of this
    /// process. Again is nothing.
    ///
    /// # Errors
    ///
    /// Where this process did not take it, or was taken for dead meanwhile.
    pub fn acknowledge(&self) -> Result<(), Error> {
        self.session.check_here()?;
        let mut loan = self.loan.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leased) = loan.take_if(|loan| loan.is_lease()) {
            *loan = Some(leased.acknowledge(&self.session.control().table())?);
            self.session.let_go(self.queue);
        }
        Ok(())
    }

    /// Gives a lease back: the message is delivered again, to anybody. From now on its bytes are not
    /// this process's any more. Again, or after the acknowledgement, is nothing.
    ///
    /// Whether it was given back.
    ///
    /// # Errors
    ///
    /// Where this process did not take it, or was taken for dead meanwhile; or there is damage.
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
            // It fails where this process was taken for dead: then it is given back already.
            let _ = loan.release(&self.session.control().table());
            self.session.freed();
        }
        self.session.end_use();
    }
}
