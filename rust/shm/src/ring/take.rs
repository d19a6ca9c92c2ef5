//! Taking messages: look, announce, take by one compare-and-swap of `head`, hand out, wake.
//!
//! The steps D1 to D7 are those of the table in [`super`].

use smallvec::SmallVec;

use super::descriptor::{Descriptor, Label, Payload};
use super::error::Corrupt;
use super::header::Turns;
use super::intent::{Intent, IntentRecord};
use super::queue::{Queue, Table};
use super::slot::Entry;
use super::wait::{Futex, wake};
use super::word::{State, Word};
use crate::sync::{self, Ordering};

/// How much to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The messages that are there, up to this number.
    Count(u32),
    /// As many messages as together weigh at most the target. They are taken only once the target
    /// is reached, or the next message would exceed it, or no more can come (the queue is full or
    /// closed), or they weigh at least `least`. A first message that exceeds the target is taken
    /// alone.
    Weight {
        /// The target.
        target: u64,
        /// The weight that is enough without reaching the target, with at least one message. None:
        /// no weight is.
        least: Option<u64>,
    },
}

/// How taken messages are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The payload is copied while the message is handed out, and the descriptor is free at once. A
    /// payload outside of its descriptor becomes a loan nevertheless, because it is too long to be
    /// copied in the middle of a take.
    Copy,
    /// The payload is used in place until it is released; the message is lost if its process dies.
    Loan,
    /// The payload is used in place until it is acknowledged; the message is delivered again if its
    /// process dies before.
    Lease,
}

/// The result of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Messages were taken.
    Messages {
        /// The number of messages.
        count: u32,
        /// Their total weight; more than the target if a single message was too heavy.
        weight: u64,
    },
    /// The queue was empty.
    Empty,
    /// There was not enough weight, and more may come.
    Short,
    /// The queue is empty, and closed.
    Closed,
}

/// The descriptors of messages that are about to be taken; up to 64 need no allocation.
type Hand = SmallVec<[u32; 64]>;

/// A message that is handed out.
#[derive(Debug)]
pub struct Message<'a> {
    descriptor: &'a Descriptor,
    payload: Payload,
    index: u32,
    word: Word,
    /// Its weight, kind and sender.
    pub label: Label,
    /// It was delivered before, to a process that died with it or gave it back.
    pub redelivered: bool,
}

impl Message<'_> {
    /// The location and the length of its bytes.
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Copies its bytes, as many as fit into `to`; none if they are outside of the descriptor.
    pub fn copy(&self, to: &mut [u8]) {
        let Payload::Inline(all) = self.payload else {
            return;
        };
        let length = to.len().min(all);
        self.descriptor.copy(&mut to[..length]);
    }

    /// Copies its bytes in whole words; bytes of `to` behind them have no meaning. Copies nothing
    /// if they are outside of the descriptor.
    ///
    /// Faster than [`Self::copy`], but needs room for the longest payload.
    #[inline]
    pub fn copy_words(&self, to: &mut [[u8; 8]; Descriptor::INLINE / 8]) {
        if let Payload::Inline(length) = self.payload
            && let Some(to) = to.get_mut(..length.div_ceil(8))
        {
            self.descriptor.copy_words(to);
        }
    }

    /// The loan by which the message is released; None if it was copied.
    ///
    /// Dropping the loan releases nothing: see [`super::Claim`].
    pub fn loan(&self) -> Option<Loan> {
        (self.word != Word::FREE).then_some(Loan {
            index: self.index,
            word: self.word,
        })
    }
}

/// A message that is in use, or not acknowledged yet.
#[derive(Debug)]
#[must_use = "it stays in use until it is released"]
pub struct Loan {
    index: u32,
    word: Word,
}

impl Loan {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn word(&self) -> Word {
        self.word
    }

    /// Whether the message is delivered again if its process dies.
    pub fn is_lease(&self) -> bool {
        self.word.state() == Some(State::Leased)
    }

    /// Acknowledges a lease whose payload is still in use: it becomes a loan.
    ///
    /// # Errors
    ///
    /// Same as [`Self::release`].
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

    /// Releases a loan, or acknowledges a lease and releases it.
    ///
    /// Any thread may call it, even after the handle of the queue is gone.
    ///
    /// # Errors
    ///
    /// The message is not in use: it was released before, or this process was declared dead.
    pub fn release(self, table: &Table<'_>) -> Result<(), Corrupt> {
        let Self { index, word } = self;
        let descriptor = table.descriptor(index, 0)?;
        if descriptor.exchange_word(word, Word::FREE) {
            return Ok(());
        }
        Err(wrong(index, 0, descriptor.word()))
    }
}

/// The result of D1: the messages to take, or the reason why there are none.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Take { head: u64, count: u32, weight: u64 },
    Not(Taken),
}

/// Why the look at the slots ended.
pub(super) enum End {
    /// The wanted amount is reached, or the next message does not fit into it.
    Enough,
    /// The next slot is not published.
    NothingYet,
    /// Others moved `head` since it was loaded.
    Stale,
    Closed,
}

impl<F: Futex> Queue<'_, F> {
    /// Takes messages and hands them to `out`, in order.
    ///
    /// `out` runs in the middle of the operation. It has to be short, and must not use the record,
    /// unwind, or (with [`Keep::Copy`]) touch the message afterwards.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged. Messages may be lost then.
    #[inline]
    pub fn take(
        &self,
        record: &mut IntentRecord<'_>,
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
            record.announce(Intent::Dequeue { head: stamp, count }); // D2
            let taken = self.ring.take(head, head.wrapping_add(u64::from(count))); // D3
            if !taken {
                record.clear();
                self.report(turns.again(head))?;
                continue;
            }
            let handed = (0..).zip(&hand).try_for_each(|(at, &index)| {
                self.hand_out(index, head.wrapping_add(at), keep, out)
            });
            record.clear(); // D5, after the words
            self.report(handed)?;
            self.wake_putters(count); // D6
            return Ok(Taken::Messages { count, weight });
        }
    }

    /// D4 and D7 for one message that was taken.
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
        // The message is handed out before or after its word changes. A copy has to be made before
        // others may write there; a loan must not be used before the word says that it is one.
        if word == Word::FREE {
            out(message);
            descriptor.set_word(word); // D7
        } else {
            descriptor.set_word(word);
            out(message);
        }
        Ok(())
    }

    /// Same as [`Loan::release`], with the same errors.
    pub fn release(&self, loan: Loan) -> Result<(), Corrupt> {
        loan.release(&self.table)
    }

    /// Whether a take would return something other than [`Taken::Empty`] or [`Taken::Short`].
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn is_takeable(&self, want: Want) -> Result<bool, Corrupt> {
        let plan = self.plan(want, |_, _| ());
        Ok(!matches!(
            self.report(plan)?,
            Plan::Not(Taken::Empty | Taken::Short)
        ))
    }

    /// D1: reads slots and weights from `head` on, and passes each descriptor, after its number, to
    /// `pick`.
    ///
    /// Others may take the messages meanwhile. The result is valid only if `head` is the same
    /// afterwards: `take` proves that by its compare-and-swap. For "too short" and "too heavy" it
    /// is checked here.
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
                End::Stale => None,
            };
            // ORDER: Acquire fence: the weights are read before `head` is read again.
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
            // It is read soon, and then freed.
            descriptor.prefetch();
            let this = descriptor.weight();
            if let Want::Weight { target, .. } = want
                && *count > 0
                && weight.saturating_add(this) > target
            {
                return Ok(End::Enough);
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

    /// D6: wakes one producer for each message taken, or all producers if the queue has a bound in
    /// bytes: then the length of a message decides whether it fits in.
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
