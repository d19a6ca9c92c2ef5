//! Sleeping and waking: a futex word with a waiting bit and an epoch.
//!
//! ```text
//! 31..1  epoch     incremented by each wake-up
//! 0      waiting   a process sleeps, or is about to
//! ```
//!
//! There is a bit and not a count, because a count is wrong forever once a sleeper is killed. A
//! process that clears the bit wakes sleepers. A woken sleeper sets it again for those that may
//! still sleep, and wakes one of them itself if there is something left. Sleepers that wait for
//! weight, or for room in bytes, wake no others, because all of them are woken each time. If a
//! process died in between, a sleeper wakes up by itself after a slice.

use std::time::{Duration, Instant};

use super::error::Corrupt;
use super::queue::{Queue, wake_all};
use super::take::Want;
use super::word::Owner;
use crate::sync::{self, AtomicU32, Ordering};

/// The bit of a word on which a process sleeps, or is about to.
pub(crate) const WAITING: u32 = 1;

/// Puts a thread to sleep on a word, and wakes others.
pub trait Futex {
    /// Sleeps while the word is as expected, for at most `limit` ([`Duration::MAX`] means no
    /// limit).
    ///
    /// Returns true if it was woken, or did not sleep because the word has another value; false if
    /// the time is over, or a signal came.
    fn wait(&self, word: &AtomicU32, expected: u32, limit: Duration) -> bool;

    /// Wakes up to `count` threads that sleep on the word.
    fn wake(&self, word: &AtomicU32, count: u32);

    /// Rings the bell of a participant whose event loop asked for it ([`Queue::arm_take`]), or may
    /// have asked. Without event loops it does nothing.
    fn ring(&self, participant: Owner) {
        let _ = participant;
    }
}

/// The futex of the kernel, for words in memory that processes share.
#[cfg(all(target_os = "linux", not(loom)))]
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFutex;

#[cfg(all(target_os = "linux", not(loom)))]
impl Futex for SystemFutex {
    fn wait(&self, word: &AtomicU32, expected: u32, limit: Duration) -> bool {
        use rustix::io::Errno;
        use rustix::thread::futex;

        // A limit beyond what the kernel can count means no limit.
        let limit = futex::Timespec::try_from(limit).ok();
        let flags = futex::Flags::empty(); // not PRIVATE: other processes wake this one
        match futex::wait(sync::plain(word), flags, expected, limit.as_ref()) {
            Ok(()) | Err(Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    fn wake(&self, word: &AtomicU32, count: u32) {
        // The kernel reads a signed number, and wakes one sleeper if it is negative.
        let count = count.min(i32::MAX.unsigned_abs());
        // It fails only for an invalid address, on which no thread sleeps.
        let _ = rustix::thread::futex::wake(
            sync::plain(word),
            rustix::thread::futex::Flags::empty(),
            count,
        );
    }
}

/// Wakes up to `count` sleepers, if there are any. The caller has published what they wait for,
/// followed by a fence.
pub(crate) fn wake<F: Futex>(word: &AtomicU32, count: u32, futex: &F) {
    // ORDER: Relaxed: the fence before orders it. Either this load sees the bit, or the sleeper,
    // which sets the bit before its own fence, sees what was published.
    let mut value = word.load(Ordering::Relaxed);
    while value & WAITING != 0 {
        let next = value.wrapping_add(2) & !WAITING;
        // ORDER: AcqRel, so that successive wake-ups are ordered; the futex itself does not need
        // it.
        match word.compare_exchange(value, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return futex.wake(word, count),
            Err(now) => value = now,
        }
    }
}

/// A wait in progress; one for each call that waits.
#[derive(Debug, Default)]
#[must_use = "a woken thread may have to wake the next one"]
pub struct WaitState {
    woken: bool,
}

impl<F: Futex> Queue<'_, F> {
    /// Waits until there is something to take, for at most `limit`. Takes nothing. Returns false if
    /// the time is over.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn wait_to_take(
        &self,
        want: Want,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<bool, Corrupt> {
        self.wait(self.take_word(want), wait_state, limit, || {
            self.is_takeable(want)
        })
    }

    /// Waits until there is room for a message of this length (see [`Queue::length`]), or the queue
    /// is closed, for at most `limit`. Returns false if the time is over.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn wait_to_put(
        &self,
        length: u64,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<bool, Corrupt> {
        let word = &self.ring.waits().not_full;
        self.wait(word, wait_state, limit, || self.is_puttable(length))
    }

    /// Ends a wait, whatever its result: a woken thread wakes the next one if something is left.
    pub fn done_taking(&self, want: Want, wait_state: WaitState) {
        if wait_state.woken && matches!(want, Want::Count(_)) {
            // A closed queue stays closed: each woken thread wakes one more, until all have learned
            // of it.
            self.chain(self.take_word(want), || self.is_takeable(want));
        }
    }

    /// Ends a wait, whatever its result: a woken thread wakes the next one if there is room left.
    pub fn done_putting(&self, wait_state: WaitState) {
        // With a bound in bytes all producers were woken.
        if wait_state.woken && self.ring.max_bytes() == 0 {
            self.chain(&self.ring.waits().not_full, || self.is_puttable(0));
        }
    }

    /// Lets other producers wait on while this one, which was woken, prepares its message: the next
    /// room wakes one of them. Room that is there for more than this message wakes one now.
    ///
    /// Without it they would sleep until the end of this put.
    pub fn pass_on_room(&self, wait_state: &WaitState) {
        if wait_state.woken && self.ring.max_bytes() == 0 {
            self.chain(&self.ring.waits().not_full, || self.has_room_for_two());
        }
    }

    fn has_room_for_two(&self) -> Result<bool, Corrupt> {
        let (position, closed) = self.ring.end()?;
        let room = || {
            self.ring
                .room(position, self.ring.head(), self.ring.bound() - 1)
        };
        Ok(closed || room()?)
    }

    fn take_word(&self, want: Want) -> &AtomicU32 {
        match want {
            Want::Count(_) => &self.ring.waits().not_empty,
            Want::Weight { .. } => &self.ring.waits().enough,
        }
    }

    /// Whether a put of a message of this length would return something other than
    /// [`Refusal::Full`].
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn is_puttable(&self, length: u64) -> Result<bool, Corrupt> {
        let fits = self.would_fit(length);
        self.report(fits)
    }

    /// Whether there seems to be room behind the next `ahead` messages: an estimate for a caller
    /// that would prepare a message in vain. It costs two loads, and may be too high.
    #[inline]
    pub fn seems_puttable(&self, ahead: u64) -> bool {
        self.seems_free(self.ring.tail().wrapping_add(ahead))
    }

    fn wait(
        &self,
        word: &AtomicU32,
        wait_state: &mut WaitState,
        limit: Duration,
        ready: impl Fn() -> Result<bool, Corrupt>,
    ) -> Result<bool, Corrupt> {
        if self.spin.look(limit, &ready)? {
            return Ok(true);
        }
        let begin = Instant::now();
        // ORDER: SeqCst, and a fence: one half of the pair "wait, then look for messages" and
        // "publish, then look for sleepers". At least one of the two sees the other.
        let seen = word.fetch_or(WAITING, Ordering::SeqCst) | WAITING;
        sync::fence(Ordering::SeqCst);
        if ready()? {
            return Ok(true);
        }
        let woken = self.futex.wait(word, seen, limit);
        if woken {
            self.spin.woken_after(begin.elapsed());
        }
        wait_state.woken |= woken;
        Ok(woken)
    }

    /// Passes a wake-up on to the next sleeper.
    ///
    /// The bit was cleared when this sleeper was woken, so others may still sleep although the bit
    /// is clear; messages that were put meanwhile woke none of them.
    fn chain(&self, word: &AtomicU32, left: impl Fn() -> Result<bool, Corrupt>) {
        // ORDER: as in `wait`.
        word.fetch_or(WAITING, Ordering::SeqCst);
        sync::fence(Ordering::SeqCst);
        // Every process that finds damage wakes all sleepers; so does this one.
        match left() {
            Ok(true) => wake(word, 1, &self.futex),
            Ok(false) => (),
            Err(_) => wake_all(&self.ring, &self.futex),
        }
    }
}
