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
use super::intent::Lane;
use super::put::Refusal;
use super::queue::{Claim, Queue};
use super::take::{Keep, Message, Taken, Want};
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
pub struct Vigil {
    woken: bool,
}

/// The limits of a wait.
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub struct Until<'f> {
    /// The time to give up; None means never.
    pub deadline: Option<Instant>,
    /// Maximum time of one sleep, before `idle` is called again; [`Duration::MAX`] means no
    /// maximum.
    pub slice: Duration,
    /// Called before each sleep; returns whether to go on. The place to check for signals and for
    /// dead processes.
    pub idle: &'f mut dyn FnMut() -> bool,
}

impl Until<'_> {
    /// Maximum time of the next sleep; None if it is time to give up.
    fn sleep(&mut self) -> Option<Duration> {
        let left = self.deadline.map_or(Duration::MAX, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        (!left.is_zero() && (self.idle)()).then(|| left.min(self.slice))
    }
}

impl<F: Futex> Queue<'_, F> {
    /// Takes messages, and waits for them.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn take_within(
        &self,
        lane: &mut Lane<'_>,
        want: Want,
        keep: Keep,
        until: &mut Until<'_>,
        out: &mut impl FnMut(Message<'_>),
    ) -> Result<Taken, Corrupt> {
        let mut vigil = Vigil::default();
        let end = loop {
            match self.take(lane, want, keep, out) {
                Ok(not_yet @ (Taken::Empty | Taken::Short)) => {
                    let Some(limit) = until.sleep() else {
                        break Ok(not_yet);
                    };
                    if let Err(corrupt) = self.wait_to_take(want, &mut vigil, limit) {
                        break Err(corrupt);
                    }
                }
                end => break end,
            }
        };
        self.done_taking(want, vigil);
        end
    }

    /// Puts messages in order, and waits for room; leaves in `claims` those that it did not put.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn put_within(
        &self,
        lane: &mut Lane<'_>,
        claims: &mut Vec<Claim>,
        until: &mut Until<'_>,
    ) -> Result<Option<Refusal>, Corrupt> {
        let mut vigil = Vigil::default();
        let end = loop {
            match self.put_many(lane, claims) {
                Ok(Some(Refusal::Full)) => {
                    let Some(limit) = until.sleep() else {
                        break Ok(Some(Refusal::Full));
                    };
                    let next = claims.first().map_or(0, |claim| self.length(claim));
                    if let Err(corrupt) = self.wait_to_put(next, &mut vigil, limit) {
                        break Err(corrupt);
                    }
                }
                end => break end,
            }
        };
        self.done_putting(vigil);
        end
    }

    /// Waits until there is something to take, for at most `limit`. Takes nothing. Returns false if
    /// the time is over.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn wait_to_take(
        &self,
        want: Want,
        vigil: &mut Vigil,
        limit: Duration,
    ) -> Result<bool, Corrupt> {
        self.wait(self.take_word(want), vigil, limit, || {
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
        vigil: &mut Vigil,
        limit: Duration,
    ) -> Result<bool, Corrupt> {
        let word = &self.ring.waits().not_full;
        self.wait(word, vigil, limit, || self.is_puttable(length))
    }

    /// Ends a wait, whatever its result: a woken thread wakes the next one if something is left.
    pub fn done_taking(&self, want: Want, vigil: Vigil) {
        if vigil.woken && matches!(want, Want::Count(_)) {
            // A closed queue stays closed: each woken thread wakes one more, until all have learned
            // of it.
            self.chain(self.take_word(want), || self.is_takeable(want));
        }
    }

    /// Ends a wait, whatever its result: a woken thread wakes the next one if there is room left.
    pub fn done_putting(&self, vigil: Vigil) {
        // With a bound in bytes all producers were woken.
        if vigil.woken && self.ring.max_bytes() == 0 {
            self.chain(&self.ring.waits().not_full, || self.is_puttable(0));
        }
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

    fn wait(
        &self,
        word: &AtomicU32,
        vigil: &mut Vigil,
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
        vigil.woken |= woken;
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
            Err(_) => self.wake_everybody(),
        }
    }
}
