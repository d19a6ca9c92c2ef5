//! Peeking: reading messages without taking them.
//!
//! Consumers may take the messages meanwhile: a peek copies the content of a descriptor, and then
//! reads its word again. The word of a queued message names its position, which does not repeat; if
//! the word is unchanged, everything that was copied belongs to the message. A peek writes nothing.

use super::descriptor::{Descriptor, Label, Payload};
use super::error::Corrupt;
use super::queue::Queue;
use super::slot::Entry;
use super::wait::Futex;
use super::word::{State, Word, distance};
use crate::sync::{self, Ordering};

/// The result of a peek at a position.
#[derive(Debug)]
pub enum PeekOutcome {
    /// A message.
    Message(Box<MessageCopy>),
    /// A message that was taken.
    Gone,
    /// Nothing, and so nothing behind it either.
    End,
}

/// The copy of a message made by a peek.
#[derive(Debug)]
pub struct MessageCopy {
    index: u32,
    word: Word,
    words: [[u8; 8]; Descriptor::INLINE / 8],
    payload: Payload,
    age: u32,
    /// Its weight, kind and sender.
    pub label: Label,
}

impl MessageCopy {
    /// The location and the length of its bytes.
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Its bytes; empty if they are outside of the descriptor.
    pub fn bytes(&self) -> &[u8] {
        match self.payload {
            Payload::Inline(length) => self.words.as_flattened().get(..length),
            Payload::Block(_) => None,
        }
        .unwrap_or_default()
    }

    /// The time since it was written, in units of 1/64 s.
    pub fn age(&self) -> u32 {
        self.age
    }
}

impl<F: Futex> Queue<'_, F> {
    /// Peeks at a position.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn peek_at(&self, position: u64) -> Result<PeekOutcome, Corrupt> {
        let slot = self.ring.slot(position);
        match slot.lap().ahead_of(self.ring.lap(position)) {
            0 => (),
            -1 => return Ok(PeekOutcome::End),
            ahead if ahead > 0 => return Ok(PeekOutcome::Gone),
            _ => return Err(Corrupt::LapBehind { position, slot }),
        }
        let Entry::Descriptor(index) = slot.entry() else {
            return Ok(PeekOutcome::End);
        };
        let descriptor = self.table.descriptor(index, position)?;
        let word = descriptor.word();
        let waits = matches!(word.state(), Some(State::Queued | State::QueuedAgain));
        if !waits || !word.is_at(self.ring.stamp(position)) {
            return Ok(PeekOutcome::Gone);
        }
        let (label, age) = (descriptor.label(), descriptor.age());
        let payload = descriptor.payload(index);
        let mut words = [[0; 8]; Descriptor::INLINE / 8];
        if let Ok(Payload::Inline(length)) = payload
            && let Some(words) = words.get_mut(..length.div_ceil(8))
        {
            descriptor.copy_words(words);
        }
        if !still(descriptor, word) {
            return Ok(PeekOutcome::Gone);
        }
        let payload = payload?;
        Ok(PeekOutcome::Message(Box::new(MessageCopy {
            index,
            word,
            words,
            payload,
            age,
            label,
        })))
    }

    /// Whether a message is still where the peek found it. If so, everything that was read from its
    /// block since then belongs to it.
    pub fn is_there(&self, copy: &MessageCopy) -> bool {
        let descriptor = self.table.descriptors.get(copy.index as usize);
        descriptor.is_some_and(|descriptor| still(descriptor, copy.word))
    }

    /// The position of the first message, and the one behind the last.
    ///
    /// Messages may be taken and put at any time.
    pub fn span(&self) -> (u64, u64) {
        self.ring.span()
    }

    /// The number of messages that were put since the ring was made, and the number of them that
    /// were taken. A message that is delivered again counts as put again.
    pub fn counts(&self) -> (u64, u64) {
        let (head, end) = self.ring.span();
        let start = self.ring.length().cast_unsigned();
        (end.wrapping_sub(start), head.wrapping_sub(start))
    }

    /// The number of bytes of the messages in the queue, and the time since the first was written.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn load(&self) -> Result<(u64, u32), Corrupt> {
        let (head, end) = self.ring.span();
        let (mut bytes, mut oldest) = (0_u64, None);
        let mut at = head;
        while distance(end, at) > 0 {
            if let PeekOutcome::Message(copy) = self.peek_at(at)? {
                bytes = bytes.saturating_add(copy.payload.length());
                oldest = oldest.or(Some(copy.age));
            }
            at = at.wrapping_add(1);
        }
        Ok((bytes, oldest.unwrap_or(0)))
    }

    /// The numbers of waiting producers and consumers. All sleepers that wait for the same thing,
    /// or did so since they were last woken, count as one; each event loop that asked to be rung
    /// counts as one.
    pub fn waiting(&self) -> (u32, u32) {
        let waits = self.ring.waits();
        // ORDER: Relaxed: each value is from its own moment.
        let asleep = |word: &sync::AtomicU32| word.load(Ordering::Relaxed) & super::wait::WAITING;
        let putters = asleep(&waits.not_full) + waits.putters.count();
        let takers = asleep(&waits.not_empty) + asleep(&waits.enough) + waits.takers.count();
        (putters, takers)
    }
}

/// Whether a descriptor still has the word that it had before its content was read.
fn still(descriptor: &Descriptor, word: Word) -> bool {
    // ORDER: Acquire fence, pairs with the Release fence in `fill_head`: if a part of the next
    // message was read, the load below sees that this one is gone.
    sync::fence(Ordering::Acquire);
    descriptor.word() == word
}
