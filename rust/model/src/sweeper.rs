//! The sweeper: inspects every descriptor, then reads all intent records, then acts.

use crate::protocol::{Mutant, Protocol, Seen};
use crate::state::{Candidate, Entry, Intent, NOBODY, Pc, Process, State, What, Word, has};
use crate::waiting::Which;

impl Protocol {
    pub(crate) fn sweeper(&self, state: &State, me: Process, out: &mut Vec<State>) {
        let id = usize::from(me);
        let old = state.registers[id];
        let mut next = state.clone();
        let r = &mut next.registers[id];
        let position = old.position;
        match old.pc {
            Pc::Idle => {
                if state.dead == 0 {
                    return; // nothing to do: no process sweeps without a reason
                }
                *r = crate::state::Registers {
                    pc: if self.is(Mutant::RecordsReadFirst) {
                        Pc::ReadRecords
                    } else {
                        Pc::Inspect
                    },
                    ..Default::default()
                };
                if self.is(Mutant::RecordsReadFirst) {
                    r.candidates = self.everything(state);
                }
            }
            Pc::Inspect => self.inspect(state, me, &mut next),
            Pc::SweepHead => {
                r.head = state.head;
                r.pc = Pc::SweepSlot;
            }
            Pc::SweepSlot => self.judge(state, me, &mut next),
            Pc::ReadRecords => self.read_records(state, me, &mut next),
            Pc::Apply => self.apply(state, me, &mut next),
            Pc::AnnounceSalvage => {
                r.pc = Pc::ClaimSalvage;
                if let Some(candidate) = old.candidates[usize::from(old.at)] {
                    next.intent_records[id] = Intent::Enqueue(candidate.descriptor);
                }
            }
            Pc::ClaimSalvage => {
                r.pc = Pc::ClearRecord;
                if let Some(candidate) = old.candidates[usize::from(old.at)] {
                    let word = &mut next.words[usize::from(candidate.descriptor)];
                    if *word == candidate.word {
                        *word = if self.is(Mutant::SalvageAsPut) {
                            Word::Writing(me)
                        } else {
                            Word::Salvage(me)
                        };
                        r.hand[0] = candidate.descriptor;
                        r.pc = Pc::LoadTail;
                    }
                }
            }
            Pc::LoadTail => {
                r.position = state.tail;
                r.pc = Pc::Room;
            }
            Pc::Room => {
                // One slot stays free for the plug, whatever the bound of the queue is.
                let room = i16::from(position) - i16::from(state.head) < i16::from(self.slots) - 1;
                r.pc = if room { Pc::LoadSlot } else { Pc::GiveUp };
            }
            Pc::LoadSlot => {
                let slot = self.slot(state, position);
                r.slot = Some(slot);
                r.pc = match self.seen(slot, position) {
                    Seen::Unpublished => Pc::Mark,
                    Seen::PublishedUpTo(next) => {
                        r.position = next;
                        Pc::Room
                    }
                    Seen::Closed if self.is(Mutant::NoSecondPlug) => Pc::Mark,
                    Seen::Closed => Pc::PlugNext,
                };
            }
            Pc::PlugNext => {
                r.pc = Pc::Mark;
                // No process publishes behind the plug; the slot there can only become another
                // plug.
                let behind = self.slot(state, position + 1);
                if behind.lap + 1 == self.lap(position + 1) {
                    self.set_slot(&mut next, position + 1, Entry::Plug);
                }
            }
            Pc::Mark => {
                r.pc = Pc::Publish;
                next.words[usize::from(old.hand[0])] = Word::Queued {
                    by: me,
                    at: position,
                    again: !self.is(Mutant::SalvageAsPut),
                };
            }
            Pc::Publish => {
                if Some(self.slot(state, position)) == old.slot {
                    r.position += 1;
                    r.word = Some(Word::Free); // published: waiters have to be woken
                    r.pc = Pc::LoadTailToFix;
                    next.salvaged += 1;
                    self.publish(&mut next, position, usize::from(old.hand[0]));
                } else {
                    r.pc = Pc::LoadTail;
                }
            }
            Pc::GiveUp => {
                next.words[usize::from(old.hand[0])] = Word::Salvage(me);
                r.pc = Pc::ClearRecord;
            }
            Pc::LoadTailToFix | Pc::FixTail => Self::fix_tail(state, me, &mut next),
            Pc::ClearRecord => {
                next.intent_records[id] = Intent::Idle;
                r.pc = Pc::Wake;
            }
            Pc::Wake => {
                r.at += 1;
                r.pc = Pc::Apply;
                r.word = None;
                if old.word.is_some() {
                    return out.extend(self.wake(&next, Which::NotEmpty, 1));
                }
            }
            _ => return,
        }
        out.push(next);
    }

    fn inspect(&self, state: &State, me: Process, next: &mut State) {
        let r = &mut next.registers[usize::from(me)];
        if r.at == self.descriptors {
            r.at = 0;
            r.pc = if self.is(Mutant::RecordsReadFirst) {
                Pc::Apply
            } else {
                Pc::ReadRecords
            };
            return;
        }
        let word = state.words[usize::from(r.at)];
        let (what, spared_by_records) = match word {
            Word::Writing(by) | Word::Loaned(by, _) if state.is_dead(by) => (What::Free, false),
            Word::Leased(by, _) if state.is_dead(by) => (What::Salvage, false),
            Word::Salvage(by) => (What::Salvage, by != me && !state.is_dead(by)),
            Word::Queued { at, .. } => {
                r.word = Some(word);
                r.position = at;
                r.pc = Pc::SweepHead;
                return;
            }
            _ => {
                r.at += 1;
                return;
            }
        };
        self.note(next, me, word, what, spared_by_records);
    }

    /// Decides whether the message of a queued word is still queued, was taken, or was never
    /// published.
    fn judge(&self, state: &State, me: Process, next: &mut State) {
        let old = state.registers[usize::from(me)];
        let Some(word @ Word::Queued { by, at, again }) = old.word else {
            return;
        };
        let (slot, lap) = (self.slot(state, at), self.lap(at));
        let passed = slot.lap > lap && !self.is(Mutant::SweepByHeadOnly);
        let here = slot.lap == lap && slot.entry == Entry::Descriptor(old.at);
        if old.head > at || passed {
            let what = if self.is(Mutant::TakenIsFreed) {
                What::Free
            } else {
                What::Salvage
            };
            self.note(next, me, word, what, true);
        } else if !here && (state.is_dead(by) || self.is(Mutant::LivingNotPublished)) {
            // Its producer never published it and never reported it as put. But a message that a
            // sweeper did not get to publish again had been put before.
            let what = if again { What::Salvage } else { What::Free };
            self.note(next, me, word, what, false);
        } else if here && has(state.dead, by) && !self.is(Mutant::NotHandedOver) {
            self.note(next, me, word, What::HandOver, false);
        } else {
            let r = &mut next.registers[usize::from(me)];
            r.at += 1;
            r.pc = Pc::Inspect;
        }
    }

    fn note(&self, next: &mut State, me: Process, word: Word, what: What, spared_by_records: bool) {
        let r = &mut next.registers[usize::from(me)];
        let spared = self.is(Mutant::RecordsReadFirst)
            && spared_by_records
            && r.candidates[usize::from(r.at)].is_none();
        r.candidates[usize::from(r.at)] = (!spared).then_some(Candidate {
            descriptor: r.at,
            word,
            what,
            spared_by_records,
        });
        r.at += 1;
        r.pc = Pc::Inspect;
    }

    /// Reads the intent record of one process, which protects the candidates that it covers. `at`
    /// counts the processes here.
    fn read_records(&self, state: &State, me: Process, next: &mut State) {
        let r = &mut next.registers[usize::from(me)];
        let process = usize::from(r.at);
        if process == self.roles.len() {
            r.at = 0;
            r.pc = if self.is(Mutant::RecordsReadFirst) {
                Pc::Inspect
            } else {
                Pc::Apply
            };
            return;
        }
        let intent = state.intent_records[process];
        if !has(state.dead, r.at) {
            for entry in &mut r.candidates {
                if entry.is_some_and(|candidate| {
                    let at = match candidate.word {
                        Word::Queued { at, .. } => Some(at),
                        _ => None,
                    };
                    candidate.spared_by_records && intent.covers(candidate.descriptor, at)
                }) {
                    *entry = None;
                }
            }
        }
        r.at += 1;
    }

    fn apply(&self, state: &State, me: Process, next: &mut State) {
        let r = &mut next.registers[usize::from(me)];
        if r.at == self.descriptors {
            *r = crate::state::Registers::default();
            return;
        }
        match state.registers[usize::from(me)].candidates[usize::from(r.at)] {
            Some(candidate) if candidate.what == What::Salvage => r.pc = Pc::AnnounceSalvage,
            Some(candidate) => {
                let word = &mut next.words[usize::from(candidate.descriptor)];
                let blind = candidate.what == What::HandOver && self.is(Mutant::HandedOverBlindly);
                if *word == candidate.word || blind {
                    *word = match candidate.word {
                        Word::Queued { at, again, .. } if candidate.what == What::HandOver => {
                            let by = NOBODY;
                            Word::Queued { by, at, again }
                        }
                        _ => Word::Free,
                    };
                }
                r.at += 1;
            }
            None => r.at += 1,
        }
    }

    /// Every descriptor as a candidate, for the mutant that reads the intent records first.
    fn everything(&self, state: &State) -> [Option<Candidate>; crate::state::MAX_DESCRIPTORS] {
        std::array::from_fn(|d| {
            let descriptor = u8::try_from(d).unwrap_or(u8::MAX);
            (descriptor < self.descriptors).then(|| Candidate {
                descriptor,
                word: state.words[d],
                what: What::Salvage,
                spared_by_records: true,
            })
        })
    }
}
