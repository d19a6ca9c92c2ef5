//! Looking at messages that stay where they are.
//!
//! Nobody is kept from taking them meanwhile: who looks copies what a descriptor says, and then
//! looks at its word again. The word of a message that waits names its position, which does not come
//! again; as long as it is there, so was all that was copied. Who looks writes nothing.

use super::descriptor::{Descriptor, Label, Payload};
use super::error::Corrupt;
use super::queue::Queue;
use super::slot::Entry;
use super::sync::{self, Ordering};
use super::wait::Futex;
use super::word::{State, Word, distance};

/// What there is at a position.
#[derive(Debug)]
pub enum Sight {
    /// A message.
    Message(Box<Glimpse>),
    /// A message that somebody took.
    Gone,
    /// Nothing, and so nothing behind it either.
    End,
}

/// A message that was looked at.
#[derive(Debug)]
pub struct Glimpse {
    index: u32,
    word: Word,
    words: [[u8; 8]; Descriptor::INLINE / 8],
    payload: Payload,
    age: u32,
    /// What it says of itself.
    pub label: Label,
}

impl Glimpse {
    /// Where its bytes are, and how many.
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Its bytes; none where they lie outside.
    pub fn bytes(&self) -> &[u8] {
        match self.payload {
            Payload::Inline(length) => self.words.as_flattened().get(..length),
            Payload::Block(_) => None,
        }
        .unwrap_or_default()
    }

    /// How long ago it was written, in [units](super::clock::PER_SECOND) of time.
    pub fn age(&self) -> u32 {
        self.age
    }
}

impl<F: Futex> Queue<'_, F> {
    /// Looks at a position.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn sight(&self, position: u64) -> Result<Sight, Corrupt> {
        let slot = self.ring.slot(position);
        match slot.lap().ahead_of(self.ring.lap(position)) {
            0 => (),
            -1 => return Ok(Sight::End),
            ahead if ahead > 0 => return Ok(Sight::Gone),
            _ => return Err(Corrupt::LapBehind { position, slot }),
        }
        let Entry::Descriptor(index) = slot.entry() else {
            return Ok(Sight::End);
        };
        let descriptor = self.table.descriptor(index, position)?;
        let word = descriptor.word();
        let waits = matches!(word.state(), Some(State::Queued | State::QueuedAgain));
        if !waits || !word.is_at(self.ring.stamp(position)) {
            return Ok(Sight::Gone);
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
            return Ok(Sight::Gone);
        }
        let payload = payload?;
        Ok(Sight::Message(Box::new(Glimpse {
            index,
            word,
            words,
            payload,
            age,
            label,
        })))
    }

    /// Whether a message is still where it was looked at, so that what was read of its block since
    /// then is of it.
    pub fn is_there(&self, glimpse: &Glimpse) -> bool {
        let descriptor = self.table.descriptors.get(glimpse.index as usize);
        descriptor.is_some_and(|descriptor| still(descriptor, glimpse.word))
    }

    /// The positions of the messages: from the first on, to the one behind the last.
    ///
    /// The first may be taken, and more may come, at any time.
    pub fn span(&self) -> (u64, u64) {
        self.ring.span()
    }

    /// How many messages were put since the ring was made, and how many were taken of them. What is
    /// delivered again is put again.
    pub fn counts(&self) -> (u64, u64) {
        let (head, end) = self.ring.span();
        let start = self.ring.length().cast_unsigned();
        (end.wrapping_sub(start), head.wrapping_sub(start))
    }

    /// How many bytes the messages have that are in the queue, and how long ago the first was
    /// written.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn load(&self) -> Result<(u64, u32), Corrupt> {
        let (head, end) = self.ring.span();
        let (mut bytes, mut oldest) = (0_u64, None);
        let mut at = head;
        while distance(end, at) > 0 {
            if let Sight::Message(glimpse) = self.sight(at)? {
                bytes = bytes.saturating_add(glimpse.payload.length());
                oldest = oldest.or(Some(glimpse.age));
            }
            at = at.wrapping_add(1);
        }
        Ok((bytes, oldest.unwrap_or(0)))
    }

    /// Who waits, producers and consumers: one for all who sleep for the same thing, or did so since
    /// they were last woken, and each event loop that asked to be rung.
    pub fn waiting(&self) -> (u32, u32) {
        let waits = self.ring.waits();
        // ORDER: Relaxed: each is of its own moment.
        let asleep = |word: &sync::AtomicU32| word.load(Ordering::Relaxed) & super::wait::WAITING;
        let putters = asleep(&waits.not_full) + waits.putters.count();
        let takers = asleep(&waits.not_empty) + asleep(&waits.enough) + waits.takers.count();
        (putters, takers)
    }
}

/// Whether a descriptor still has the word that it had before it was read.
fn still(descriptor: &Descriptor, word: Word) -> bool {
    // ORDER: Acquire fence, pairs with the release fence in `fill_head`: whoever read of the message
    // that came after sees that this one is gone.
    sync::fence(Ordering::Acquire);
    descriptor.word() == word
}
