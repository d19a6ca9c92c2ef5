//! Cleaning up after the dead: inspect every descriptor, then read all lanes, then act.
//!
//! What was never published is freed. What somebody took and died before handing it on, or before
//! acknowledging it, is published again. What is queued stays, whoever put it; where that one is
//! dead it is handed over to [`Owner::NOBODY`], so that another process may get its index. A sweeper
//! that dies leaves nothing that the next sweep does not find.
//!
//! A message is handed over by exchanging its word for one that differs in the owner. The consumer
//! that takes it at the same moment looks at the state and the position alone, and then stores its
//! own word: the exchange comes before that, and is overwritten, or after it, and fails.

use super::again::publish_again;
use super::descriptor::{Descriptor, Participant};
use super::error::Corrupt;
use super::lane::{Intent, Lane};
use super::queue::{Table, wake_all};
use super::ring::Ring;
use super::slot::Entry;
use super::sync::Ordering;
use super::wait::Futex;
use super::word::{Owner, State, Word, distance};

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Descriptors that were filled, and never put.
    pub unpublished: u64,
    /// Messages on loan to somebody who died.
    pub lost: u64,
    /// Messages that are in their queue again.
    pub redelivered: u64,
    /// Messages that have to be, and found no room: the next sweep tries again.
    pub postponed: u64,
    /// Messages in a queue that nobody answers for any more.
    pub handed_over: u64,
    /// What somebody alive is in the middle of, or seems to be: of its dead consumer, where the
    /// positions are those of another ring. The next sweep knows more.
    pub spared: u64,
}

/// A descriptor that may have to change.
#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    index: u32,
    descriptor: &'a Descriptor,
    word: Word,
    what: What<'a>,
    /// Whether a lane that covers it spares it.
    spared_by_lanes: bool,
}

/// What to do with it.
#[derive(Clone, Copy, Debug)]
enum What<'a> {
    Free,
    /// To put it back into this ring.
    Salvage(&'a Ring<'a>),
    /// It stays in the queue, under nobody's name.
    HandOver,
}

/// One who cleans up.
///
/// Two may sweep at a time, but not two threads of one process: a sweeper takes what carries its own
/// name, and no lane announces, for what was left over.
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
    /// `rings`: all of them, each at its index. None is made during a sweep: a message of a ring that
    /// is not among them is taken for damage.
    pub fn new(table: Table<'a>, rings: &'a [Ring<'a>], me: Owner, futex: F) -> Self {
        Self {
            table,
            rings,
            me,
            futex,
        }
    }

    /// Cleans up after the dead. Who is dead does not change meanwhile, nor does anybody get the
    /// index of a dead participant before the sweep is over; and then only where it
    /// [is free](Self::is_free_of). [`Owner::NOBODY`] is dead whatever `dead` says.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn sweep(
        &self,
        lane: &mut Lane<'_>,
        dead: impl Fn(Owner) -> bool,
    ) -> Result<Swept, Corrupt> {
        let dead = |owner| owner == Owner::NOBODY || dead(owner);
        let result = self.clean(lane, &dead);
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

    /// Whether no descriptor names a participant.
    ///
    /// After a sweep one that is dead may still be named, where somebody alive is taking its message
    /// or there was no room to put one back: the next sweep tries again.
    pub fn is_free_of(&self, owner: Owner) -> bool {
        let named = |descriptor: &Descriptor| {
            let word = descriptor.word();
            word != Word::FREE && word.owner() == owner
        };
        !self.table.descriptors.iter().any(named)
    }

    fn clean(&self, lane: &Lane<'_>, dead: &dyn Fn(Owner) -> bool) -> Result<Swept, Corrupt> {
        let mut candidates = Vec::new();
        for (index, descriptor) in (0..).zip(self.table.descriptors) {
            candidates.extend(self.inspect(index, descriptor, dead)?);
        }
        let all = candidates.len();
        if candidates.iter().any(|candidate| candidate.spared_by_lanes) {
            self.spare(&mut candidates, dead);
        }
        let mut swept = Swept {
            spared: (all - candidates.len()) as u64,
            ..Swept::default()
        };
        for candidate in candidates {
            let new = match candidate.what {
                What::Salvage(ring) => {
                    self.salvage(lane, &candidate, ring, &mut swept)?;
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
        let candidate = |what, spared_by_lanes| {
            Some(Candidate {
                index,
                descriptor,
                word,
                what,
                spared_by_lanes,
            })
        };
        // The ring was written before the word. Where it is of a later message already the word has
        // changed too, and what is decided here fails on it.
        let ring = || {
            let ring = descriptor.ring();
            let found = self.rings.get(ring as usize);
            found.ok_or(Corrupt::NoSuchRing { index, ring })
        };
        Ok(match word.state() {
            Some(State::Writing | State::Loaned) if dead(by) => candidate(What::Free, false),
            Some(State::Leased) if dead(by) => candidate(What::Salvage(ring()?), false),
            // Of somebody alive: another thread of this process too may be giving it back just now.
            Some(State::Salvage) => candidate(What::Salvage(ring()?), !dead(by)),
            Some(state @ (State::Queued | State::QueuedAgain)) => {
                let ring = ring()?;
                // The order matters: a consumer that took it may have been lapped since.
                let head = ring.head();
                let at = ring.position_of(word, head);
                let slot = ring.slot(at);
                let ahead = slot.lap().ahead_of(ring.lap(at));
                let here = ahead == 0 && slot.entry() == Entry::Descriptor(index);
                if distance(head, at) > 0 || ahead > 0 {
                    candidate(What::Salvage(ring), true)
                } else if !here && dead(by) {
                    // Its producer never published it, and nobody was told that it was put; what a
                    // sweeper did not get to publish was put before.
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

    /// Strikes out what somebody alive is in the middle of: all lanes are read once, after all
    /// heads and slots.
    fn spare(&self, candidates: &mut Vec<Candidate<'_>>, dead: &dyn Fn(Owner) -> bool) {
        for (_, participant) in self.living(dead) {
            for lane in &participant.lanes {
                // ORDER: Acquire, pairs with `Lane::clear`. Whoever took a message announced it
                // before `head` moved, and withdraws only after the word changed: who saw the
                // moved `head` sees the intent, or the changed word when it acts on the old one.
                let intent = Intent::from_bits(lane.load(Ordering::Acquire));
                if intent != Intent::Idle {
                    candidates.retain(|candidate| {
                        let queued = matches!(
                            candidate.word.state(),
                            Some(State::Queued | State::QueuedAgain)
                        );
                        let word = queued.then_some(candidate.word);
                        !(candidate.spared_by_lanes && intent.covers(candidate.index, word))
                    });
                }
            }
        }
    }

    /// Puts a message back, at the end of its queue, even of one that is full or closed.
    fn salvage(
        &self,
        lane: &Lane<'_>,
        candidate: &Candidate<'_>,
        ring: &Ring<'_>,
        swept: &mut Swept,
    ) -> Result<(), Corrupt> {
        let descriptor = candidate.descriptor;
        let mine = Word::new(State::Salvage, self.me, 0);
        lane.announce(Intent::Enqueue(candidate.index));
        if !descriptor.exchange_word(candidate.word, mine) {
            lane.clear();
            return Ok(());
        }
        let published = publish_again(candidate.index, ring, &self.table, self.me);
        if published != Ok(true) {
            descriptor.set_word(mine);
        }
        lane.clear();
        if published? {
            swept.redelivered += 1;
        } else {
            swept.postponed += 1;
        }
        Ok(())
    }
}
