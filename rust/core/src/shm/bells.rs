//! Event loops that wait: a set of participants that want to be rung.
//!
//! An event loop cannot sleep on a word. It sets its bit, looks again, and goes on with other things
//! until its bell rings. Whoever publishes what such a loop waits for empties the set and rings them
//! all: each looks for itself, and sets its bit again if others were faster. That is one half of the
//! same pair as with the sleepers in [`super::wait`]: "set the bit, then look for messages" and
//! "publish, then look for bits".
//!
//! A process that dies between emptying the set and ringing leaves nobody who knows who has to be
//! rung. The sweep after a death therefore rings everybody who lives.

use super::queue::Queue;
use super::sync::{self, AtomicU64, Ordering};
use super::wait::Futex;
use super::word::Owner;

/// One word under loom, where each costs a search.
const WORDS: usize = if cfg!(loom) { 1 } else { 4 };

/// Participants by their index, one bit each. None beyond the last bit can be rung.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Bells([AtomicU64; WORDS]);

impl Bells {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn bit(&self, participant: Owner) -> Option<(&AtomicU64, u64)> {
        let index = participant.index();
        Some((self.0.get(index / 64)?, 1 << (index % 64)))
    }

    /// Whether it can be rung, and will be.
    fn add(&self, participant: Owner) -> bool {
        let Some((word, bit)) = self.bit(participant) else {
            return false;
        };
        // ORDER: SeqCst, and a fence, as in `Queue::wait`: the bit, then a look at the queue.
        word.fetch_or(bit, Ordering::SeqCst);
        sync::fence(Ordering::SeqCst);
        true
    }

    fn remove(&self, participant: Owner) {
        if let Some((word, bit)) = self.bit(participant) {
            // ORDER: Relaxed: it only spares a ring.
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// How many are to be rung.
    pub(super) fn count(&self) -> u32 {
        // ORDER: Relaxed: it is told, and nothing follows from it.
        self.0
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum()
    }

    /// Rings all; the caller has published what they wait for, and a fence stands between.
    #[inline]
    pub(super) fn ring<F: Futex>(&self, futex: &F) {
        // ORDER: Relaxed: the fence before it orders it, as in `wake`.
        if self.0.iter().any(|word| word.load(Ordering::Relaxed) != 0) {
            self.empty(futex);
        }
    }

    #[cold]
    fn empty<F: Futex>(&self, futex: &F) {
        for (word, first) in self.0.iter().zip((0..).step_by(64)) {
            // ORDER: AcqRel, so that rounds follow on each other; the bell needs nothing of it.
            let bits = word.swap(0, Ordering::AcqRel);
            (first..first + 64)
                .filter(|index| bits >> (index - first) & 1 == 1)
                .filter_map(Owner::new)
                .for_each(|participant| futex.ring(participant));
        }
    }
}

impl<F: Futex> Queue<'_, F> {
    /// From now on this participant is rung ([`Futex::ring`]) when there is something to take: once,
    /// after which it has to be armed again.
    ///
    /// What was there before rings nothing: look, by [`Queue::is_takeable`] or a take, after this
    /// and before waiting. False: its index is too high, it will not be rung.
    #[must_use = "where it cannot be rung it must not wait"]
    pub fn arm_take(&self) -> bool {
        self.ring.waits().takers.add(self.me)
    }

    /// As [`Queue::arm_take`], for room, or the end of the queue; look by [`Queue::is_puttable`] or a
    /// put.
    #[must_use = "where it cannot be rung it must not wait"]
    pub fn arm_put(&self) -> bool {
        self.ring.waits().putters.add(self.me)
    }

    /// This participant is not to be rung any more, for either. A ring may be on its way.
    pub fn disarm(&self) {
        self.ring.waits().takers.remove(self.me);
        self.ring.waits().putters.remove(self.me);
    }
}
