//! Sleeping and waking: a futex word with a waiting bit and an epoch.
//!
//! ```text
//! 31..1  epoch     incremented by each wake-up
//! 0      waiting   somebody sleeps, or is about to
//! ```
//!
//! The bit is no count, because a count is wrong for ever once a sleeper is killed. Whoever clears
//! it wakes; a woken sleeper sets it again for those who may still sleep, and wakes one of them
//! itself when there is something left. Who waits for weight, or for room in bytes, wakes nobody:
//! all of them are woken each time. Where a process died in between, a sleeper comes back by itself after a slice.

use std::time::{Duration, Instant};

use super::error::Corrupt;
use super::lane::Lane;
use super::put::Refusal;
use super::queue::{Claim, Queue};
use super::sync::{self, AtomicU32, Ordering};
use super::take::{Keep, Message, Taken, Want};
use super::word::Owner;

/// Somebody sleeps on the word, or is about to.
pub(super) const WAITING: u32 = 1;

/// What puts a process to sleep, and wakes others.
pub trait Futex {
    /// Sleeps while the word is as expected, no longer than `limit` ([`Duration::MAX`] is none).
    ///
    /// Whether it was woken, or did not sleep because the word is another; false: the time is over,
    /// or a signal came.
    fn wait(&self, word: &AtomicU32, expected: u32, limit: Duration) -> bool;

    /// Wakes as many who sleep on the word.
    fn wake(&self, word: &AtomicU32, count: u32);

    /// Rings the bell of a participant whose event loop asked for it ([`Queue::arm_take`]), or who
    /// may have; where there are no event loops, nothing.
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

        // A limit beyond what the kernel can count is none.
        let limit = futex::Timespec::try_from(limit).ok();
        let flags = futex::Flags::empty(); // not PRIVATE: other processes wake
        match futex::wait(sync::plain(word), flags, expected, limit.as_ref()) {
            Ok(()) | Err(Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    fn wake(&self, word: &AtomicU32, count: u32) {
        // The kernel reads a signed number, and wakes one where it is negative.
        let count = count.min(i32::MAX.unsigned_abs());
        // It fails only on an address that cannot be, and nobody sleeps there.
        let _ = rustix::thread::futex::wake(
            sync::plain(word),
            rustix::thread::futex::Flags::empty(),
            count,
        );
    }
}

/// Wakes up to `count` sleepers, if any; the caller has published what they wait for, and a fence
/// stands between.
pub(super) fn wake<F: Futex>(word: &AtomicU32, count: u32, futex: &F) {
    // ORDER: Relaxed: the fence before it orders it. Either this sees the bit, or the sleeper, who
    // sets the bit before its own fence, sees what was published.
    let mut value = word.load(Ordering::Relaxed);
    while value & WAITING != 0 {
        let next = value.wrapping_add(2) & !WAITING;
        // ORDER: AcqRel, so that wake-ups follow on each other; the futex needs nothing of it.
        match word.compare_exchange(value, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return futex.wake(word, count),
            Err(now) => value = now,
        }
    }
}

/// A wait in progress; one for each call that waits.
#[derive(Debug, Default)]
#[must_use = "who was woken may have to wake the next"]
pub struct Vigil {
    woken: bool,
}

/// How long to wait.
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub struct Until<'f> {
    /// When to give up; None is never.
    pub deadline: Option<Instant>,
    /// How long to sleep at most, before `idle` is asked again; [`Duration::MAX`] is for ever.
    pub slice: Duration,
    /// Asked before each sleep whether to go on. The place to look for signals, and for the dead.
    pub idle: &'f mut dyn FnMut() -> bool,
}

impl Until<'_> {
    /// How long the next sleep may be; None where it is time to give up.
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
    /// Where the shared memory is damaged.
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

    /// Puts messages in their order, and waits for room; leaves those that it did not put.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
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

    /// Waits until there is something to take, but no longer than `limit`. It takes nothing; false:
    /// the time is over.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
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

    /// Waits until there is room for a message of a length (see [`Queue::length`]), or the queue is
    /// closed, but no longer than `limit`; false: the time is over.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn wait_to_put(
        &self,
        length: u64,
        vigil: &mut Vigil,
        limit: Duration,
    ) -> Result<bool, Corrupt> {
        let word = &self.ring.waits().not_full;
        self.wait(word, vigil, limit, || self.is_puttable(length))
    }

    /// Ends a wait, whatever came of it: one who was woken wakes the next if something is left.
    pub fn done_taking(&self, want: Want, vigil: Vigil) {
        if vigil.woken && matches!(want, Want::Count(_)) {
            // What is closed stays so: who comes to know of it tells one more, who tells one more.
            self.chain(self.take_word(want), || self.is_takeable(want));
        }
    }

    /// Ends a wait, whatever came of it: one who was woken wakes the next if there is room left.
    pub fn done_putting(&self, vigil: Vigil) {
        // Where it depends on their length who fits in, all were woken.
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

    /// Whether a put of a message of a length would come to something other than "full".
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
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
        if self.patience.look(limit, &ready)? {
            return Ok(true);
        }
        let begin = Instant::now();
        // ORDER: SeqCst, and a fence: one half of the pair of "wait, then look for messages" and
        // "publish, then look for sleepers". One of the two sees the other.
        let seen = word.fetch_or(WAITING, Ordering::SeqCst) | WAITING;
        sync::fence(Ordering::SeqCst);
        if ready()? {
            return Ok(true);
        }
        let woken = self.futex.wait(word, seen, limit);
        if woken {
            self.patience.woken_after(begin.elapsed());
        }
        vigil.woken |= woken;
        Ok(woken)
    }

    /// The next link of the chain of wake-ups.
    ///
    /// The bit was cleared when this sleeper was woken, so that others may sleep behind a cleared
    /// one; and what was put meanwhile woke nobody.
    fn chain(&self, word: &AtomicU32, left: impl Fn() -> Result<bool, Corrupt>) {
        // ORDER: as in `wait`.
        word.fetch_or(WAITING, Ordering::SeqCst);
        sync::fence(Ordering::SeqCst);
        // Who finds damage wakes everybody; so does this.
        match left() {
            Ok(true) => wake(word, 1, &self.futex),
            Ok(false) => (),
            Err(_) => self.wake_everybody(),
        }
    }
}
