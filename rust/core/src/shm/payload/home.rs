//! The descriptors of this process: chunks of its own, so that processes do not meet there.

use std::io;

use super::super::descriptor::Descriptor;
use super::super::queue::Claim;
use super::super::session::layout::{CHUNK, CHUNKS_LIMIT, Chunk, DESCRIPTORS};
use super::super::session::{Control, Error};
use super::super::sync::Ordering;
use super::super::sync::hint::{AtomicBool, AtomicU64, AtomicUsize};
use super::super::word::{Owner, Word};

/// How many descriptors of the first chunk are looked at before going on to a further one.
const GLANCE: usize = 8;
const BITS: usize = u64::BITS as usize;

/// The chunks of this process, and where it looks next.
///
/// A claim is decided by the compare-and-swap of the descriptor's word, whoever else tries: that
/// only its owner looks into a chunk is for speed.
#[derive(Debug)]
pub(crate) struct Home {
    me: Owner,
    /// One bit for each chunk.
    mine: [AtomicU64; CHUNKS_LIMIT / BITS],
    /// The descriptor that the next claim looks at first.
    cursor: AtomicUsize,
    /// There can be no more chunks for this process: it looks into those of others.
    cramped: AtomicBool,
}

impl Home {
    /// A home without any chunk.
    pub(crate) fn new(me: Owner) -> Self {
        Self {
            me,
            mine: std::array::from_fn(|_| AtomicU64::new(0)),
            cursor: AtomicUsize::new(0),
            cramped: AtomicBool::new(false),
        }
    }

    /// A descriptor to fill; None where [`Self::grow`] has to get more first, or where it could not.
    #[inline]
    pub(crate) fn claim(&self, control: &Control) -> Option<Claim> {
        let from = self.cursor.load(Ordering::Relaxed);
        let chunk = from / CHUNK;
        if !from.is_multiple_of(CHUNK)
            && self.has(chunk)
            && let Some(claim) = self.claim_in(control, from..(chunk + 1) * CHUNK)
        {
            return Some(claim);
        }
        self.claim_elsewhere(control, chunk)
    }

    /// At the end of a chunk: the first one, if something is free there, so that few messages stay
    /// in little memory; else the next one, and so on, round to the whole of this one.
    fn claim_elsewhere(&self, control: &Control, chunk: usize) -> Option<Claim> {
        if let Some(first) = self.next_after(None) {
            let from = first * CHUNK;
            if let Some(claim) = self.claim_in(control, from..from + GLANCE) {
                return Some(claim);
            }
        }
        let later = std::iter::successors(self.next_after(Some(chunk)), |&at| {
            self.next_after(Some(at))
        });
        let earlier = std::iter::successors(self.next_after(None), |&at| self.next_after(Some(at)));
        later
            .chain(earlier.take_while(|&at| at <= chunk))
            .find_map(|at| self.claim_in(control, at * CHUNK..(at + 1) * CHUNK))
            .or_else(|| {
                let cramped = self.cramped.load(Ordering::Relaxed);
                let all = control.descriptors().len();
                cramped.then(|| self.claim_in(control, 0..all)).flatten()
            })
    }

    fn claim_in(&self, control: &Control, range: std::ops::Range<usize>) -> Option<Claim> {
        let table = control.table();
        range.into_iter().find_map(|at| {
            let claim = table.claim(u32::try_from(at).ok()?, self.me)?;
            self.cursor.store(at + 1, Ordering::Relaxed);
            Some(claim)
        })
    }

    /// Gets one more chunk; the caller holds the structural lock. False where there can be no more:
    /// from then on claims look among everybody's descriptors too.
    ///
    /// # Errors
    ///
    /// No space for the first one, or whatever else the system says.
    pub(crate) fn grow(&self, control: &Control) -> Result<bool, Error> {
        let chunks = control.chunks();
        let used = control.descriptors().len() / CHUNK;
        for (number, chunk) in chunks.iter().take(used).enumerate() {
            // Nobody's, and of use: messages of one who died may lie in it still.
            let owner = chunk.owner.load(Ordering::Relaxed);
            let descriptors = &control.descriptors()[number * CHUNK..(number + 1) * CHUNK];
            if owner == 0 && descriptors.iter().any(|one| one.word() == Word::FREE) {
                self.move_in(chunk, number);
                return Ok(true);
            }
        }
        let Some(chunk) = chunks.get(used) else {
            self.cramped.store(true, Ordering::Relaxed);
            return Ok(false);
        };
        let length = (CHUNK * size_of::<Descriptor>()) as u64;
        match control.allocate(DESCRIPTORS + used as u64 * length, length) {
            Err(Error::File(error)) if used > 0 && error.kind() == io::ErrorKind::StorageFull => {
                self.cramped.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            result => result?,
        }
        self.move_in(chunk, used);
        // ORDER: Release, pairs with `Control::descriptors`: there is memory.
        let count = &control.superblock().used.0.chunks;
        count.store(used as u64 + 1, Ordering::Release);
        Ok(true)
    }

    fn move_in(&self, chunk: &Chunk, number: usize) {
        // ORDER: Relaxed: all who change it hold the structural lock.
        let me = self.me.index() as u64;
        chunk.owner.store(me, Ordering::Relaxed);
        self.mine[number / BITS].fetch_or(1 << (number % BITS), Ordering::Relaxed);
    }

    fn has(&self, chunk: usize) -> bool {
        let word = self.mine.get(chunk / BITS);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (chunk % BITS) & 1 == 1)
    }

    /// The first chunk of this process behind another, or at all.
    fn next_after(&self, chunk: Option<usize>) -> Option<usize> {
        let from = chunk.map_or(0, |chunk| chunk + 1);
        let masks = std::iter::once(u64::MAX << (from % BITS)).chain(std::iter::repeat(u64::MAX));
        let words = self.mine.iter().enumerate().skip(from / BITS).zip(masks);
        words
            .map(|((at, word), mask)| (at, word.load(Ordering::Relaxed) & mask))
            .find(|(_, bits)| *bits != 0)
            .map(|(at, bits)| at * BITS + bits.trailing_zeros() as usize)
    }
}
