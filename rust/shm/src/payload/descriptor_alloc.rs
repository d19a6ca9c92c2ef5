//! `DescriptorAllocator`: the free descriptors of this process, in chunks that other processes do
//! not normally use.

use std::io;
use std::ops::Range;

use crate::ring::descriptor::Descriptor;
use crate::ring::queue::Claim;
use crate::ring::word::{Owner, Word};
use crate::segment::layout::{CHUNK, CHUNKS_LIMIT, Chunk, DESCRIPTORS};
use crate::segment::{Control, Error};
use crate::sync::Ordering;
use crate::sync::hint::{AtomicBool, AtomicU64, AtomicUsize};

/// Number of descriptors of the first chunk that are looked at before going on to another.
const GLANCE: usize = 8;
/// Prefetch distance in descriptors: their latest writers are consumers, whose caches still have
/// them.
const AHEAD: usize = 4;
/// Twice the chunk, so that the place behind a chunk's last descriptor is not a place in the next
/// chunk.
const STRIDE: usize = 2 * CHUNK;
/// Number of failed looks that each claim earns: if fewer than a third of the descriptors are free,
/// it is better to add a chunk.
const EARNED: usize = 2;
const BITS: usize = u64::BITS as usize;

/// The chunks of this process, and where it looks next.
///
/// The compare-and-swap of the descriptor's word decides a claim, whichever processes try. That
/// only the owner looks into a chunk is for speed.
#[derive(Debug)]
pub(crate) struct DescriptorAllocator {
    me: Owner,
    /// One bit for each chunk.
    mine: [AtomicU64; CHUNKS_LIMIT / BITS],
    /// Where the next claim begins: a chunk's index times [`STRIDE`], plus the index within the
    /// chunk.
    place: AtomicUsize,
    /// Number of looks that may fail before another chunk is the better choice. Without this limit,
    /// a process that fills a queue of many chunks would look through all of them before each new
    /// one.
    looks: AtomicUsize,
    /// Set if there can be no more chunks for this process: then it looks into those of others.
    cramped: AtomicBool,
}

impl DescriptorAllocator {
    /// An allocator without any chunk.
    pub(crate) fn new(me: Owner) -> Self {
        Self {
            me,
            mine: std::array::from_fn(|_| AtomicU64::new(0)),
            place: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
            cramped: AtomicBool::new(false),
        }
    }

    /// Claims a descriptor to fill; None if [`Self::grow`] has to get more first, or could not.
    #[inline]
    pub(crate) fn claim(&self, control: &Control) -> Option<Claim> {
        let place = self.place.load(Ordering::Relaxed);
        let (chunk, next) = (place / STRIDE, place % STRIDE);
        if next < CHUNK
            && (self.has(chunk) || self.cramped.load(Ordering::Relaxed))
            && let Some(claim) = self.claim_in(control, chunk, next..CHUNK)
        {
            return Some(claim);
        }
        self.claim_elsewhere(control, chunk)
    }

    /// Claims at the end of a chunk. Looks at the beginning of the first chunk, so that few
    /// messages stay in little memory; then at the next chunks in turn, round to the whole of this
    /// one, until the earned looks are used up.
    #[cold]
    fn claim_elsewhere(&self, control: &Control, chunk: usize) -> Option<Claim> {
        let first = self.next_after(None);
        if let Some(first) = first
            && let Some(claim) = self.claim_in(control, first, 0..GLANCE)
        {
            return Some(claim);
        }
        let cramped = self.cramped.load(Ordering::Relaxed);
        // At most one look at each descriptor: looks that were earned long ago do not accumulate.
        let chunks: u32 = self
            .mine
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum();
        self.looks
            .fetch_min(chunks as usize * CHUNK, Ordering::Relaxed);
        let later = std::iter::successors(self.next_after(Some(chunk)), |&at| {
            self.next_after(Some(at))
        });
        let earlier = std::iter::successors(first, |&at| self.next_after(Some(at)));
        let found = later
            .chain(earlier.take_while(|&at| at <= chunk))
            .take_while(|_| cramped || self.looks.load(Ordering::Relaxed) > 0)
            .find_map(|at| self.claim_in(control, at, 0..CHUNK));
        if found.is_some() || !cramped {
            return found;
        }
        let all = control.descriptors().len() / CHUNK;
        let here = chunk.min(all);
        let mut all_chunks = (here..all).chain(0..here);
        all_chunks.find_map(|at| self.claim_in(control, at, 0..CHUNK))
    }

    #[inline]
    fn claim_in(&self, control: &Control, chunk: usize, range: Range<usize>) -> Option<Claim> {
        let table = control.table();
        let looks = self.looks.load(Ordering::Relaxed);
        let from = range.start;
        for next in range.clone() {
            let at = chunk * CHUNK + next;
            if let Some(claim) = table.claim(u32::try_from(at).ok()?, self.me) {
                self.place
                    .store(chunk * STRIDE + next + 1, Ordering::Relaxed);
                let left = (looks + EARNED).saturating_sub(next - from);
                self.looks.store(left, Ordering::Relaxed);
                if next + AHEAD < CHUNK
                    && let Some(soon) = table.descriptors.get(at + AHEAD)
                {
                    soon.prefetch();
                }
                return Some(claim);
            }
        }
        let left = looks.saturating_sub(range.len());
        self.looks.store(left, Ordering::Relaxed);
        None
    }

    /// Gets one more chunk; the caller holds the structural lock. False if there can be no more:
    /// from then on claims also look among the descriptors of other processes.
    ///
    /// # Errors
    ///
    /// No space for the first chunk, or another error of the system.
    pub(crate) fn grow(&self, control: &Control) -> Result<bool, Error> {
        let chunks = control.chunks();
        let used = control.descriptors().len() / CHUNK;
        for (number, chunk) in chunks.iter().take(used).enumerate() {
            // A chunk without an owner; all of its descriptors may still carry messages of an owner
            // that died, so one must be free.
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
        // ORDER: Release, pairs with `Control::descriptors`: the chunk has memory.
        let count = &control.superblock().used.0.chunks;
        count.store(used as u64 + 1, Ordering::Release);
        Ok(true)
    }

    fn move_in(&self, chunk: &Chunk, number: usize) {
        // ORDER: Relaxed: it is changed only under the structural lock.
        let me = self.me.index() as u64;
        chunk.owner.store(me, Ordering::Relaxed);
        self.mine[number / BITS].fetch_or(1 << (number % BITS), Ordering::Relaxed);
        self.place.store(number * STRIDE, Ordering::Relaxed);
    }

    fn has(&self, chunk: usize) -> bool {
        let word = self.mine.get(chunk / BITS);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (chunk % BITS) & 1 == 1)
    }

    /// This process's first chunk after `chunk`, or its first one of all if that is None.
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
