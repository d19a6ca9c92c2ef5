//! `Descriptor` and `Participant`, the entries of the two tables of a session: messages and
//! intent records.

use super::clock;
use super::error::Corrupt;
use super::prefetch::prefetch;
use super::word::Word;
use crate::sync::{self, AtomicU32, AtomicU64, Ordering};

/// Number of words of an inline payload; one under loom, because each word enlarges the search.
const INLINE_WORDS: usize = if cfg!(loom) { 1 } else { 26 };

/// The first word of the inline payload that is on the second cache line of a descriptor.
const SECOND_LINE: usize = 2;

/// Number of bits of the kind in its word; the other bits are a time.
const KIND_BITS: u32 = u32::BITS - clock::BITS;
const KIND_MASK: u32 = (1 << KIND_BITS) - 1;

/// Number of intent records of a process: how many of its threads can be in the middle of an
/// operation at once.
pub const INTENT_RECORDS: usize = if cfg!(loom) { 1 } else { 8 };

/// The intent records of a participant, on a cache line of their own.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Participant {
    pub(crate) records: [AtomicU64; INTENT_RECORDS],
}

impl Participant {
    /// A participant that announces nothing.
    pub fn new() -> Self {
        Self {
            records: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Default for Participant {
    fn default() -> Self {
        Self::new()
    }
}

/// Data about a message: its weight, its kind and its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The weight of the message, for takes by weight.
    pub weight: u64,
    /// The format of its bytes, below 256; the queue does not use it.
    pub kind: u32,
    /// The process that put it, as the number that users know it by; for texts of errors.
    pub sender: u32,
}

/// The location of a payload outside of the descriptors.
///
/// The queue passes it on unchecked. The code that maps the memory has to check that the block is
/// within it, because damage may have produced any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The index of the extent, a piece of memory, that contains it; not [`Block::NO_EXTENT`].
    pub extent: u32,
    /// The offset of its start in the extent, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

impl Block {
    /// The value of `extent` in a descriptor whose payload is inline.
    pub const NO_EXTENT: u32 = u32::MAX;
}

/// The location of the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// In its descriptor, with this length: at most [`Descriptor::INLINE`].
    Inline(usize),
    /// Outside, in memory that belongs to its producer until the descriptor is free.
    Block(Block),
}

impl Payload {
    /// The length in bytes, as the message claims.
    pub fn length(&self) -> u64 {
        match self {
            Self::Inline(length) => *length as u64,
            Self::Block(block) => block.length,
        }
    }
}

/// The entry of one message.
///
/// The payload consists of atomics too. The protocol lets only one process at a time use it; a
/// process that breaks this rule then spoils a message and nothing else.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Descriptor {
    word: AtomicU64,
    weight: AtomicU64,
    /// The index of the ring that it was put into, for sweepers.
    ring: AtomicU32,
    /// The kind in the low byte, and above it the time at which the message was written.
    kind: AtomicU32,
    /// The length of the payload in bytes, wherever it is.
    length: AtomicU64,
    /// The number of bytes that had been put into its ring before it: see [`super::byte_bound`].
    before: AtomicU64,
    /// The extent of the payload's block, or [`Block::NO_EXTENT`].
    extent: AtomicU32,
    sender: AtomicU32,
    /// The payload, or the offset of its block in the first word.
    inline: [AtomicU64; INLINE_WORDS],
}

impl Descriptor {
    /// The length of the longest payload that fits in, in bytes.
    pub const INLINE: usize = INLINE_WORDS * size_of::<u64>();

    /// A free descriptor, all zero.
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(Word::FREE.bits()),
            weight: AtomicU64::new(0),
            ring: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            length: AtomicU64::new(0),
            before: AtomicU64::new(0),
            extent: AtomicU32::new(0),
            sender: AtomicU32::new(0),
            inline: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Its word.
    pub fn word(&self) -> Word {
        // ORDER: Acquire, pairs with `set_word` and `exchange_word`: what was done to the
        // descriptor under the previous word is seen.
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Hands the descriptor on: a process that sees this word sees what was done to the descriptor
    /// before.
    pub(crate) fn set_word(&self, word: Word) {
        // ORDER: Release. QUEUED (E4) makes the payload visible, and the announced intent. FREE
        // (D7) ends the reads of the payload, before another process may write it.
        sync::overwrite(&self.word, word.bits(), Ordering::Release);
    }

    /// Claims a free descriptor; returns whether it was free and now has the new word.
    pub(super) fn claim(&self, new: Word) -> bool {
        // ORDER: Acquire, pairs with the Release of the previous owner: its reads are over.
        self.word
            .compare_exchange(
                Word::FREE.bits(),
                new.bits(),
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Replaces the word if it is `old`; returns whether it did.
    pub(super) fn exchange_word(&self, old: Word, new: Word) -> bool {
        // ORDER: AcqRel. The end of a loan ends reads (Release). A sweeper sees the message that it
        // puts back (Acquire); if it announced that, its intent is seen with the new word
        // (Release).
        self.word
            .compare_exchange(old.bits(), new.bits(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Prefetches the cache lines of a short message.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.word);
        if let Some(second) = self.inline.get(SECOND_LINE) {
            prefetch(second);
        }
    }

    pub(crate) fn ring(&self) -> u32 {
        self.ring.load(Ordering::Relaxed)
    }

    pub(super) fn weight(&self) -> u64 {
        // ORDER: Relaxed. If read before the message is taken, it is valid only if `head` has not
        // moved.
        self.weight.load(Ordering::Relaxed)
    }

    pub(crate) fn label(&self) -> Label {
        Label {
            weight: self.weight(),
            kind: self.kind.load(Ordering::Relaxed) & KIND_MASK,
            sender: self.sender.load(Ordering::Relaxed),
        }
    }

    /// The time since it was written, in units of the `clock`.
    pub(super) fn age(&self) -> u32 {
        clock::since(self.kind.load(Ordering::Relaxed) >> KIND_BITS)
    }

    /// Every word in which damage can do harm.
    #[cfg(test)]
    pub(super) fn words_for_tests(&self) -> [&AtomicU64; 2] {
        [&self.word, &self.weight]
    }

    /// Writes a message; only the process that claimed the descriptor may call this.
    ///
    /// Returns false, and writes nothing, if the payload does not fit in.
    pub(super) fn fill(&self, ring: u32, label: Label, payload: &[u8]) -> bool {
        if payload.len() > Self::INLINE {
            return false;
        }
        self.fill_head(ring, label, Block::NO_EXTENT, payload.len() as u64);
        let (words, rest) = payload.as_chunks::<8>();
        for (to, from) in self.inline.iter().zip(words) {
            to.store(u64::from_le_bytes(*from), Ordering::Relaxed);
        }
        if let Some(to) = self.inline.get(words.len()).filter(|_| !rest.is_empty()) {
            // Built by shifts, because the load of a word soon after stores of its single bytes
            // waits for the memory.
            let last = match payload.last_chunk() {
                Some(last) => u64::from_le_bytes(*last) >> (u64::BITS as usize - rest.len() * 8),
                None => rest
                    .iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte)),
            };
            to.store(last, Ordering::Relaxed);
        }
        true
    }

    /// Same as `fill`, for a payload outside of the descriptor; returns false if the block has no
    /// extent.
    pub(crate) fn fill_external(&self, ring: u32, label: Label, block: Block) -> bool {
        if block.extent == Block::NO_EXTENT {
            return false;
        }
        self.fill_head(ring, label, block.extent, block.length);
        self.inline[0].store(block.offset, Ordering::Relaxed);
        true
    }

    fn fill_head(&self, ring: u32, label: Label, extent: u32, length: u64) {
        // ORDER: Release fence, pairs with the Acquire fence of a peek: a process that reads a part
        // of this message sees that the previous one is gone. No instruction on x86.
        sync::fence(Ordering::Release);
        // ORDER: Relaxed, same as the payload: E4 releases it.
        self.ring.store(ring, Ordering::Relaxed);
        // ORDER: Release: another process may read it as the weight of the previous message (D1),
        // and then has to see the `head` that was moved past that message. See `set_before`.
        self.weight.store(label.weight, Ordering::Release);
        let kind = clock::now() << KIND_BITS | label.kind & KIND_MASK;
        self.kind.store(kind, Ordering::Relaxed);
        self.sender.store(label.sender, Ordering::Relaxed);
        self.extent.store(extent, Ordering::Relaxed);
        // ORDER: Release: see `set_before`.
        self.length.store(length, Ordering::Release);
    }

    /// The length of the message in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    /// The number of bytes that had been put into its ring before it, if the ring has a bound in
    /// bytes.
    pub(super) fn before(&self) -> u64 {
        self.before.load(Ordering::Relaxed)
    }

    pub(super) fn set_before(&self, bytes: u64) {
        // ORDER: Release. Another process may read it as that of the previous message of the
        // descriptor; it then has to see that the previous message was taken.
        self.before.store(bytes, Ordering::Release);
    }

    /// The location of the payload.
    pub(crate) fn payload(&self, index: u32) -> Result<Payload, Corrupt> {
        let length = self.length();
        let extent = self.extent.load(Ordering::Relaxed);
        if extent != Block::NO_EXTENT {
            let offset = self.inline[0].load(Ordering::Relaxed);
            return Ok(Payload::Block(Block {
                extent,
                offset,
                length,
            }));
        }
        match usize::try_from(length) {
            Ok(fits) if fits <= Self::INLINE => Ok(Payload::Inline(fits)),
            _ => Err(Corrupt::Length { index, length }),
        }
    }

    /// Copies the beginning of an inline payload.
    pub(super) fn copy(&self, to: &mut [u8]) {
        let (words, rest) = to.as_chunks_mut::<8>();
        let last = self.inline.get(words.len());
        self.copy_words(words);
        if let Some(from) = last.filter(|_| !rest.is_empty()) {
            let word = from.load(Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
    }

    /// Same as `copy`, in whole words.
    #[inline]
    pub(super) fn copy_words(&self, to: &mut [[u8; 8]]) {
        for (to, from) in to.iter_mut().zip(&self.inline) {
            *to = from.load(Ordering::Relaxed).to_le_bytes();
        }
    }
}

impl Default for Descriptor {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Participant>() == 128);
    assert!(size_of::<Descriptor>() == 256);
    assert!(std::mem::offset_of!(Descriptor, word) == 0);
    assert!(std::mem::offset_of!(Descriptor, inline) == 0x30);
    assert!(std::mem::offset_of!(Descriptor, inline) + SECOND_LINE * size_of::<u64>() == 0x40);
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_payload_comes_out_as_it_went_in(
            payload in proptest::collection::vec(any::<u8>(), 0..=Descriptor::INLINE),
            weight: u64, kind in 0..256_u32, sender: u32,
        ) {
            let descriptor = Descriptor::new();
            prop_assert!(descriptor.fill(9, Label::default(), &[0xff; Descriptor::INLINE]));
            let label = Label { weight, kind, sender };
            prop_assert!(descriptor.fill(4, label, &payload));
            prop_assert_eq!(descriptor.payload(0), Ok(Payload::Inline(payload.len())));
            let mut out = vec![0; payload.len()];
            descriptor.copy(&mut out);
            prop_assert_eq!(out, payload);
            prop_assert_eq!((descriptor.ring(), descriptor.label()), (4, label));
        }

        #[test]
        fn a_block_comes_out_as_it_went_in(
            extent in 0..Block::NO_EXTENT, offset: u64, length: u64, weight: u64,
        ) {
            let descriptor = Descriptor::new();
            let label = Label { weight, kind: 1, sender: 2 };
            let block = Block { extent, offset, length };
            prop_assert!(descriptor.fill_external(4, label, block));
            prop_assert_eq!(descriptor.payload(0), Ok(Payload::Block(block)));
            prop_assert_eq!(descriptor.label(), label);
            prop_assert!(descriptor.fill(4, label, b"inline again"));
            prop_assert_eq!(descriptor.payload(0), Ok(Payload::Inline(12)));
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_and_changes_nothing() {
        let descriptor = Descriptor::new();
        assert!(descriptor.fill(0, Label::default(), b"before"));
        assert!(!descriptor.fill(1, Label::default(), &[0; Descriptor::INLINE + 1]));
        let nowhere = Block {
            extent: Block::NO_EXTENT,
            offset: 0,
            length: 1,
        };
        assert!(!descriptor.fill_external(1, Label::default(), nowhere));
        assert_eq!(descriptor.payload(0), Ok(Payload::Inline(6)));
    }

    #[test]
    fn a_length_that_cannot_be_is_an_error() {
        let descriptor = Descriptor::new();
        assert!(descriptor.fill(0, Label::default(), b""));
        let length = Descriptor::INLINE as u64 + 1;
        descriptor.length.store(length, Ordering::Relaxed);
        assert_eq!(
            descriptor.payload(5),
            Err(Corrupt::Length { index: 5, length })
        );
    }
}
