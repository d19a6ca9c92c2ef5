//! Wake-ups of event loops: a set of participants that want their bells to be rung.
//!
//! An event loop cannot sleep on a word. It sets its bit, looks again, and goes on with other work
//! until its bell rings. A process that publishes what such loops wait for empties the set and
//! rings all of them. Each loop then looks for itself, and sets its bit again if others were
//! faster. The two sides pair up as for the sleepers in [`super::wait`]: "set the bit, then look
//! for messages" and "publish, then look for bits".
//!
//! If a process dies between emptying the set and ringing, no process knows which participants to
//! ring. Therefore the sweep after a death rings all living participants.

use super::queue::Queue;
use super::wait::Futex;
use super::word::Owner;
use crate::sync::{self, AtomicU64, Ordering};

/// Number of words of the set; one under loom, because each word enlarges the search.
const WORDS: usize = if cfg!(loom) { 1 } else { 4 };

/// A set of participants, one bit for each index. Participants beyond the last bit cannot be rung.
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

    /// Adds a participant; returns false if its index is too high for it to be rung.
    fn add(&self, participant: Owner) -> bool {
        let Some((word, bit)) = self.bit(participant) else {
            return false;
        };
        // ORDER: SeqCst, and a fence, as in `Queue::wait`: set the bit, then look at the queue.
        word.fetch_or(bit, Ordering::SeqCst);
        sync::fence(Ordering::SeqCst);
        true
    }

    /// The number of participants in the set.
    pub(super) fn count(&self) -> u32 {
        // ORDER: Relaxed: the number is only reported, and nothing depends on it.
        self.0
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum()
    }

    /// Rings all participants in the set. The caller has published what they wait for, followed by
    /// a fence.
    #[inline]
    pub(crate) fn ring<F: Futex>(&self, futex: &F) {
        // ORDER: Relaxed: the fence before orders it, as in `wake`.
        if self.0.iter().any(|word| word.load(Ordering::Relaxed) != 0) {
            self.empty(futex);
        }
    }

    #[cold]
    fn empty<F: Futex>(&self, futex: &F) {
        for (word, first) in self.0.iter().zip((0..).step_by(64)) {
            // ORDER: AcqRel, so that successive rounds are ordered; the bell itself does not need
            // it.
            let bits = word.swap(0, Ordering::AcqRel);
            (first..first + 64)
                .filter(|index| bits >> (index - first) & 1 == 1)
                .filter_map(Owner::new)
                .for_each(|participant| futex.ring(participant));
        }
    }
}

impl<F: Futex> Queue<'_, F> {
    /// Asks for this participant to be rung ([`Futex::ring`]) once, when there is something to
    /// take. After a ring it has to be armed again.
    ///
    /// A message that is already there does not ring: after this call, and before waiting, look by
    /// [`Queue::is_takeable`] or a take. Returns false if the participant's index is too high: it
    /// will not be rung.
    #[must_use = "a participant that cannot be rung must not wait"]
    pub fn arm_take(&self) -> bool {
        self.ring.waits().takers.add(self.me)
    }

    /// Same as [`Queue::arm_take`], for room in the queue or its close; look by
    /// [`Queue::is_puttable`] or a put.
    #[must_use = "a participant that cannot be rung must not wait"]
    pub fn arm_put(&self) -> bool {
        self.ring.waits().putters.add(self.me)
    }
}
