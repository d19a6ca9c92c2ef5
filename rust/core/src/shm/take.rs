//! Taking messages: look, announce, take by one compare-and-swap of `head`, hand out, wake.
//!
//! The steps D1 to D7 are those of the table in [`super`].

use smallvec::SmallVec;

use super::descriptor::{Descriptor, Label, Payload};
use super::error::Corrupt;
use super::lane::{Intent, Lane};
use super::queue::{Queue, Table};
use super::ring::Turns;
use super::slot::Entry;
use super::sync::{self, Ordering};
use super::wait::{Futex, wake};
use super::word::{State, Word};

/// What to do where the first message is heavier than the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heavy {
    /// Take it, alone.
    Take,
    /// Leave it and say so.
    Refuse,
}

/// How much to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// What is there, up to so many.
    Count(u32),
    /// The most whose weights add up to no more than the target: not before the target is reached,
    /// or the next message would exceed it, or no more can come (the queue is full or closed), or
    /// what is there is enough all the same.
    Weight {
        /// The target.
        target: u64,
        /// From this weight on, and from one message on, what is there is enough. None: it never is.
        least: Option<u64>,
        /// What to do where the first message alone exceeds it.
        heavy: Heavy,
    },
}

/// What becomes of the descriptors of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The payload is copied while the message is handed out, and its descriptor is free at once. A
    /// message outside of its descriptor is a loan all the same: there is more to copy than should
    /// be done in the middle of a take.
    Copy,
    /// The payload is used in place until it is released; lost with its process.
    Loan,
    /// Until it is acknowledged; delivered again if its process dies before.
    Lease,
}

/// What a take came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Messages.
    Messages {
        /// How many.
        count: u32,
        /// What they count for together; more than the target where one alone was too heavy.
        weight: u64,
    },
    /// There was none.
    Empty,
    /// There was not enough weight, and more may come.
    Short,
    /// The first is heavier than the target and was left.
    TooHeavy {
        /// How heavy.
        weight: u64,
    },
    /// There is none and there will be none.
    Closed,
}

/// The descriptors of messages that are about to be taken, without an allocation for a few.
type Hand = SmallVec<[u32; 64]>;

/// A message that is handed out.
#[derive(Debug)]
pub struct Message<'a> {
    descriptor: &'a Descriptor,
    payload: Payload,
    index: u32,
    word: Word,
    /// What it says of itself.
    pub label: Label,
    /// It was delivered before, to a process that died with it.
    pub redelivered: bool,
}

impl Message<'_> {
    /// Where its bytes are, and how many.
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Copies its bytes, as many as `to` takes; none where they lie outside.
    pub fn copy(&self, to: &mut [u8]) {
        let Payload::Inline(all) = self.payload else {
            return;
        };
        let length = to.len().min(all);
        self.descriptor.copy(&mut to[..length]);
    }

    /// Copies its bytes in whole words, as many as `to` takes: what is behind them is of no meaning.
    /// None where they lie outside.
    ///
    /// Faster than [`Self::copy`] where there is room for the longest.
    #[inline]
    pub fn copy_words(&self, to: &mut [[u8; 8]; Descriptor::INLINE / 8]) {
        if let Payload::Inline(length) = self.payload
            && let Some(to) = to.get_mut(..length.div_ceil(8))
        {
            self.descriptor.copy_words(to);
        }
    }

    /// What gives it back; None where it was copied.
    ///
    /// Dropping it gives nothing back: see [`super::Claim`].
    pub fn loan(&self) -> Option<Loan> {
        (self.word != Word::FREE).then_some(Loan {
            index: self.index,
            word: self.word,
        })
    }
}

/// A message in use, or not acknowledged yet.
#[derive(Debug)]
#[must_use = "it stays in use until it is released"]
pub struct Loan {
    index: u32,
    word: Word,
}

impl Loan {
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn word(&self) -> Word {
        self.word
    }

    /// Whether it is delivered again should its process die.
    pub fn is_lease(&self) -> bool {
        self.word.state() == Some(State::Leased)
    }

    /// Acknowledges a lease whose payload is still in use: it is a loan from now on.
    ///
    /// # Errors
    ///
    /// As [`Self::release`].
    pub fn acknowledge(self, table: &Table<'_>) -> Result<Self, Corrupt> {
        let Self { index, word } = self;
        let loaned = word.with_state(State::Loaned);
        let descriptor = table.descriptor(index, 0)?;
        if descriptor.exchange_word(word, loaned) {
            let word = loaned;
            return Ok(Self { index, word });
        }
        Err(wrong(index, 0, descriptor.word()))
    }

    /// Gives back what was taken as a loan, or acknowledges what was taken as a lease.
    ///
    /// Any thread may, and the queue that it came from may be gone.
    ///
    /// # Errors
    ///
    /// Where it is not in use: it was given back before, or this process was taken for dead.
    pub fn release(self, table: &Table<'_>) -> Result<(), Corrupt> {
        let Self { index, word } = self;
        let descriptor = table.descriptor(index, 0)?;
        if descriptor.exchange_word(word, Word::FREE) {
            return Ok(());
        }
        Err(wrong(index, 0, descriptor.word()))
    }
}

/// D1: what there is to take.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Take { head: u64, count: u32, weight: u64 },
    Not(Taken),
}

/// Why the look at the slots ended.
pub(super) enum End {
    /// It has what it wants, or more cannot come.
    Enough,
    /// The next slot is not published.
    NothingYet,
    /// Others moved `head` since it was loaded.
    Stale,
    TooHeavy(u64),
    Closed,
}

impl<F: Futex> Queue<'_, F> {
    /// Takes messages and hands them to `out`, in their order.
    ///
    /// `out` runs in the middle of the operation. It has to be short, and must not use the lane,
    /// unwind, or (with [`Keep::Copy`]) touch the message afterwards.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged. Messages may be lost then.
    #[inline]
    pub fn take(
        &self,
        lane: &mut Lane<'_>,
        want: Want,
        keep: Keep,
        out: &mut impl FnMut(Message<'_>),
    ) -> Result<Taken, Corrupt> {
        let mut turns = Turns::new();
        let mut hand = Hand::new();
        loop {
            let plan = self.plan(want, |at, index| {
                if at == 0 {
                    hand.clear();
                }
                hand.push(index);
            });
            let (head, count, weight) = match self.report(plan)? {
                Plan::Take {
                    head,
                    count,
                    weight,
                } => (head, count, weight),
                Plan::Not(why) => return Ok(why),
            };
            let stamp = self.ring.stamp(head);
            lane.announce(Intent::Dequeue { head: stamp, count }); // D2
            let taken = self.ring.take(head, head.wrapping_add(u64::from(count))); // D3
            if !taken {
                lane.clear();
                self.report(turns.again(head))?;
                continue;
            }
            let handed = (0..).zip(&hand).try_for_each(|(at, &index)| {
                self.hand_out(index, head.wrapping_add(at), keep, out)
            });
            lane.clear(); // D5, after the words
            self.report(handed)?;
            self.wake_putters(count); // D6
            return Ok(Taken::Messages { count, weight });
        }
    }

    /// D4 and D7: one message that was taken.
    #[inline]
    fn hand_out(
        &self,
        index: u32,
        position: u64,
        keep: Keep,
        out: &mut impl FnMut(Message<'_>),
    ) -> Result<(), Corrupt> {
        let descriptor = self.table.descriptor(index, position)?;
        let word = descriptor.word();
        let redelivered = match word.state() {
            Some(State::Queued) => false,
            Some(State::QueuedAgain) => true,
            _ => return Err(wrong(index, position, word)),
        };
        if !word.is_at(self.ring.stamp(position)) {
            return Err(wrong(index, position, word));
        }
        let payload = descriptor.payload(index)?;
        let word = match keep {
            Keep::Copy if matches!(payload, Payload::Inline(_)) => Word::FREE,
            Keep::Copy | Keep::Loan => self.ring.word(State::Loaned, self.me, position),
            Keep::Lease => self.ring.word(State::Leased, self.me, position),
        };
        let message = Message {
            descriptor,
            payload,
            index,
            word,
            label: descriptor.label(),
            redelivered,
        };
        // The word comes to the consumer before or after the word changes. A copy has to be made
        // before others may write there; a loan must not be in use before it is one.
        if word == Word::FREE {
            out(message);
            descriptor.set_word(word); // D7
        } else {
            descriptor.set_word(word);
            out(message);
        }
        Ok(())
    }

    /// As [`Loan::release`], and fails as that.
    pub fn release(&self, loan: Loan) -> Result<(), Corrupt> {
        loan.release(&self.table)
    }

    /// Whether a take would come to something other than "not yet".
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn is_takeable(&self, want: Want) -> Result<bool, Corrupt> {
        let plan = self.plan(want, |_, _| ());
        Ok(!matches!(
            self.report(plan)?,
            Plan::Not(Taken::Empty | Taken::Short)
        ))
    }

    /// D1: reads slots and weights from `head` on, and hands the descriptors with their number to
    /// `pick`.
    ///
    /// They may be taken by others meanwhile. What it finds counts only if `head` is the same
    /// afterwards: `take` proves that by its compare-and-swap, and so does "not enough" here.
    #[inline]
    fn plan(&self, want: Want, mut pick: impl FnMut(u32, u32)) -> Result<Plan, Corrupt> {
        let mut turns = Turns::new();
        loop {
            let head = self.ring.head();
            let (mut count, mut weight) = (0, 0);
            let end = self.look(want, head, &mut count, &mut weight, &mut pick)?;
            let full = || u64::from(count) >= self.ring.maxsize() || self.ring.is_refused_at(head);
            let enough = match want {
                Want::Count(_) => true,
                Want::Weight { least, .. } => least.is_some_and(|least| weight >= least),
            };
            let take = Plan::Take {
                head,
                count,
                weight,
            };
            let not = match end {
                End::Closed if count == 0 => return Ok(Plan::Not(Taken::Closed)),
                End::NothingYet if count == 0 => {
                    self.ring.check_undamaged()?;
                    return Ok(Plan::Not(Taken::Empty));
                }
                End::Enough | End::Closed => return Ok(take),
                End::NothingYet if enough || full() => return Ok(take),
                End::NothingYet => Some(Taken::Short),
                End::TooHeavy(weight) => Some(Taken::TooHeavy { weight }),
                End::Stale => None,
            };
            // ORDER: Acquire fence: the weights are read before `head` is looked at again.
            sync::fence(Ordering::Acquire);
            if let Some(not) = not
                && self.ring.head() == head
            {
                self.ring.check_undamaged()?;
                return Ok(Plan::Not(not));
            }
            turns.again(head)?;
        }
    }

    #[inline]
    pub(super) fn look(
        &self,
        want: Want,
        head: u64,
        count: &mut u32,
        weight: &mut u64,
        pick: &mut impl FnMut(u32, u32),
    ) -> Result<End, Corrupt> {
        let limit = match want {
            Want::Count(count) => count.clamp(1, Intent::MAX_TAKE),
            Want::Weight { .. } => Intent::MAX_TAKE,
        };
        while *count < limit {
            let at = head.wrapping_add(u64::from(*count));
            let slot = self.ring.slot(at);
            match slot.lap().ahead_of(self.ring.lap(at)) {
                0 => (),
                -1 => return Ok(End::NothingYet),
                ahead if ahead > 0 => return Ok(End::Stale),
                _ => return Err(Corrupt::LapBehind { position: at, slot }),
            }
            let Entry::Descriptor(index) = slot.entry() else {
                return Ok(End::Closed);
            };
            let descriptor = self.table.descriptor(index, at)?;
            // It is read soon, and freed.
            descriptor.prefetch();
            let this = descriptor.weight();
            if let Want::Weight { target, heavy, .. } = want {
                if *count == 0 && this > target && heavy == Heavy::Refuse {
                    return Ok(End::TooHeavy(this));
                }
                if *count > 0 && weight.saturating_add(this) > target {
                    return Ok(End::Enough);
                }
            }
            pick(*count, index);
            *weight = weight.saturating_add(this);
            *count += 1;
            if matches!(want, Want::Weight { target, .. } if *weight >= target) {
                return Ok(End::Enough);
            }
        }
        Ok(End::Enough)
    }

    /// D6: wakes as many as there are new places; all where it depends on their length who fits in.
    pub(super) fn wake_putters(&self, count: u32) {
        sync::fence_after_locked();
        let by_bytes = self.ring.max_bytes() > 0;
        let count = if by_bytes { u32::MAX } else { count };
        wake(&self.ring.waits().not_full, count, &self.futex);
        self.ring.waits().putters.ring(&self.futex);
    }
}

pub(super) fn wrong(index: u32, position: u64, word: Word) -> Corrupt {
    Corrupt::WrongWord {
        index,
        position,
        word,
    }
}
