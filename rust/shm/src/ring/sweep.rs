//! Cleaning up after dead processes: inspect every descriptor, then read all intent records, then
//! act.
//!
//! A descriptor that was never published is freed. A message whose consumer died before it handed
//! the message on or acknowledged it is published again. A queued message stays in its queue,
//! whichever process put it; if that process is dead, the message is handed over to
//! [`Owner::NOBODY`], so that another process may get the dead one's index. A sweeper that dies
//! leaves nothing that the next sweep does not find.
//!
//! A message is handed over by exchanging its word for one that differs only in the owner. A
//! consumer that takes the message at the same moment checks only the state and the position, and
//! then stores its own word. The exchange comes before that store and is overwritten, or after it
//! and fails.

use super::descriptor::{Descriptor, Participant};
use super::error::Corrupt;
use super::header::Ring;
use super::intent::{Intent, IntentRecord};
use super::queue::{Table, wake_all};
use super::republish::publish_again;
use super::slot::Entry;
use super::wait::Futex;
use super::word::{Owner, State, Word, distance};
use crate::sync::Ordering;

/// The results of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Descriptors that were claimed or filled but never put; they are free now.
    pub unpublished: u64,
    /// Messages that were on loan to a process that died.
    pub lost: u64,
    /// Messages that were put back into their queue.
    pub redelivered: u64,
    /// Messages to put back for which there was no room: the next sweep tries again.
    pub postponed: u64,
    /// Queued messages of dead producers that were handed over to [`Owner::NOBODY`].
    pub handed_over: u64,
    /// Descriptors that were left alone because a living process is, or seems to be, in the middle
    /// of an operation on them. It only seems so if the announced positions are those of another
    /// ring. The next sweep knows more.
    pub spared: u64,
}

/// A descriptor that may have to change.
#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    index: u32,
    descriptor: &'a Descriptor,
    word: Word,
    what: What<'a>,
    /// Whether it is left alone if an intent record covers it.
    spared_by_records: bool,
}

/// The action for a candidate.
#[derive(Clone, Copy, Debug)]
enum What<'a> {
    Free,
    /// Put it back into this ring.
    Salvage(&'a Ring<'a>),
    /// Leave it in the queue, with [`Owner::NOBODY`] as its owner.
    HandOver,
}

/// Cleans up after dead processes.
///
/// Two processes may sweep at the same time, but not two threads of one process: a sweeper treats a
/// message in state `Salvage` that its own process owns, and that no intent record announces, as
/// left over.
#[derive(Debug)]
pub struct Sweeper<'a, F> {
    table: Table<'a>,
    rings: &'a [Ring<'a>],
    me: Owner,
    futex: F,
}

impl<'a, F: Futex> Sweeper<'a, F> {
    /// A sweeper of these tables, for the process that is participant `me`.
    ///
    /// `rings` has to contain all rings, each at its index, and no ring may be made during a sweep:
    /// a message of a ring that is missing here counts as damage.
    pub fn new(table: Table<'a>, rings: &'a [Ring<'a>], me: Owner, futex: F) -> Self {
        Self {
            table,
            rings,
            me,
            futex,
        }
    }

    /// Cleans up after the participants for which `dead` returns true. Its answers must not change
    /// during the sweep. [`Owner::NOBODY`] always counts as dead.
    ///
    /// No process may get the index of a dead participant before the sweep is over, and then only if
    /// no descriptor names it. One still does if a living process is taking its message, or a
    /// message could not be put back: the next sweep tries again.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn sweep(
        &self,
        record: &mut IntentRecord<'_>,
        dead: impl Fn(Owner) -> bool,
    ) -> Result<Swept, Corrupt> {
        let dead = |owner| owner == Owner::NOBODY || dead(owner);
        let result = self.clean(record, &dead);
        for ring in self.rings {
            if result.is_err() {
                ring.mark_damaged();
            }
            // A dead process may owe a wake-up.
            wake_all(ring, &self.futex);
        }
        // And it may have emptied a set of bells before it rang them.
        for (owner, _) in self.living(&dead) {
            self.futex.ring(owner);
        }
        result
    }

    fn clean(
        &self,
        record: &IntentRecord<'_>,
        dead: &dyn Fn(Owner) -> bool,
    ) -> Result<Swept, Corrupt> {
        let mut candidates = Vec::new();
        for (index, descriptor) in (0..).zip(self.table.descriptors) {
            candidates.extend(self.inspect(index, descriptor, dead)?);
        }
        let all = candidates.len();
        if candidates
            .iter()
            .any(|candidate| candidate.spared_by_records)
        {
            self.spare(&mut candidates, dead);
        }
        let mut swept = Swept {
            spared: (all - candidates.len()) as u64,
            ..Swept::default()
        };
        for candidate in candidates {
            let new = match candidate.what {
                What::Salvage(ring) => {
                    self.salvage(record, &candidate, ring, &mut swept)?;
                    continue;
                }
                What::Free => Word::FREE,
                What::HandOver => candidate.word.handed_over(),
            };
            if candidate.descriptor.exchange_word(candidate.word, new) {
                match candidate.word.state() {
                    _ if new != Word::FREE => swept.handed_over += 1,
                    Some(State::Loaned) => swept.lost += 1,
                    _ => swept.unpublished += 1,
                }
            }
        }
        Ok(swept)
    }

    fn inspect(
        &self,
        index: u32,
        descriptor: &'a Descriptor,
        dead: &dyn Fn(Owner) -> bool,
    ) -> Result<Option<Candidate<'a>>, Corrupt> {
        let word = descriptor.word();
        let by = word.owner();
        let candidate = |what, spared_by_records| {
            Some(Candidate {
                index,
                descriptor,
                word,
                what,
                spared_by_records,
            })
        };
        // The ring was written before the word. If it already belongs to a later message, the word
        // has changed too, and the exchange that follows from this decision fails.
        let ring = || {
            let ring = descriptor.ring();
            let found = self.rings.get(ring as usize);
            found.ok_or(Corrupt::NoSuchRing { index, ring })
        };
        Ok(match word.state() {
            Some(State::Writing | State::Loaned) if dead(by) => candidate(What::Free, false),
            Some(State::Leased) if dead(by) => candidate(What::Salvage(ring()?), false),
            // If its owner is alive, that process may be giving it back right now; this may also be
            // another thread of this process.
            Some(State::Salvage) => candidate(What::Salvage(ring()?), !dead(by)),
            Some(state @ (State::Queued | State::QueuedAgain)) => {
                let ring = ring()?;
                // `head` is loaded before the slot: if a consumer takes the message and the slot is
                // written again in between, the lap of the slot shows it.
                let head = ring.head();
                let at = ring.position_of(word, head);
                let slot = ring.slot(at);
                let ahead = slot.lap().ahead_of(ring.lap(at));
                let here = ahead == 0 && slot.entry() == Entry::Descriptor(index);
                if distance(head, at) > 0 || ahead > 0 {
                    candidate(What::Salvage(ring), true)
                } else if !here && dead(by) {
                    // Its producer never published it and never reported it as put. But a message
                    // that a sweeper did not get to publish again had been put before.
                    let what = match state {
                        State::QueuedAgain => What::Salvage(ring),
                        _ => What::Free,
                    };
                    candidate(what, false)
                } else if here && by != Owner::NOBODY && dead(by) {
                    candidate(What::HandOver, false)
                } else {
                    None
                }
            }
            Some(_) => None,
            None => {
                return Err(Corrupt::WrongWord {
                    index,
                    position: 0,
                    word,
                });
            }
        })
    }

    fn living(
        &self,
        dead: &dyn Fn(Owner) -> bool,
    ) -> impl Iterator<Item = (Owner, &'a Participant)> {
        (0..)
            .map_while(Owner::new)
            .zip(self.table.participants)
            .filter(move |(owner, _)| !dead(*owner))
    }

    /// Removes the candidates on which a living process is in the middle of an operation. All
    /// intent records are read once, after all heads and slots.
    fn spare(&self, candidates: &mut Vec<Candidate<'_>>, dead: &dyn Fn(Owner) -> bool) {
        for (_, participant) in self.living(dead) {
            for record in &participant.records {
                // ORDER: Acquire, pairs with `IntentRecord::clear`. A consumer announces a take
                // before `head` moves, and withdraws only after the word has changed. A sweeper
                // that saw the moved `head` sees the intent, or it sees the changed word when it
                // acts on the old one.
                let intent = Intent::from_bits(record.load(Ordering::Acquire));
                if intent != Intent::Idle {
                    candidates.retain(|candidate| {
                        let queued = matches!(
                            candidate.word.state(),
                            Some(State::Queued | State::QueuedAgain)
                        );
                        let word = queued.then_some(candidate.word);
                        !(candidate.spared_by_records && intent.covers(candidate.index, word))
                    });
                }
            }
        }
    }

    /// Puts a message back at the end of its queue, even if that is full or closed.
    fn salvage(
        &self,
        record: &IntentRecord<'_>,
        candidate: &Candidate<'_>,
        ring: &Ring<'_>,
        swept: &mut Swept,
    ) -> Result<(), Corrupt> {
        let descriptor = candidate.descriptor;
        let mine = Word::new(State::Salvage, self.me, 0);
        record.announce(Intent::Enqueue(candidate.index));
        if !descriptor.exchange_word(candidate.word, mine) {
            record.clear();
            return Ok(());
        }
        let published = publish_again(candidate.index, ring, &self.table, self.me);
        if published != Ok(true) {
            descriptor.set_word(mine);
        }
        record.clear();
        if published? {
            swept.redelivered += 1;
        } else {
            swept.postponed += 1;
        }
        Ok(())
    }
}
