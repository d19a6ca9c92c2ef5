//! The consumer: reads slots, announces, takes by one compare-and-swap, releases, wakes.

use crate::protocol::{Keep, Mutant, Protocol, Role};
use crate::state::{Entry, Intent, NOBODY, Pc, Process, State, Word, has};
use crate::waiting::Which;

impl Protocol {
    pub(crate) fn consumer(&self, state: &State, me: Process, out: &mut Vec<State>) {
        let Role::Consumer {
            batch, keep, waits, ..
        } = self.roles[usize::from(me)]
        else {
            return;
        };
        let id = usize::from(me);
        let old = state.registers[id];
        let mut next = state.clone();
        let r = &mut next.registers[id];
        match old.pc {
            Pc::Idle => {
                r.pc = if old.left == 0 {
                    Pc::Done
                } else {
                    Pc::LoadHead
                }
            }
            Pc::LoadHead => {
                (r.position, r.count, r.at) = (state.head, 0, 0);
                r.pc = Pc::Read;
            }
            Pc::Read => return self.read(state, me, batch, waits, out),
            Pc::AnnounceTake => {
                r.pc = Pc::Take;
                if !self.is(Mutant::NoTakeIntent) {
                    next.intent_records[id] = Intent::Dequeue {
                        head: old.position,
                        count: old.count,
                    };
                }
            }
            Pc::Take => {
                if state.head == old.position {
                    next.head += old.count;
                    r.pc = Pc::CheckWord;
                } else {
                    r.pc = Pc::Withdraw;
                }
            }
            Pc::Withdraw => {
                next.intent_records[id] = Intent::Idle;
                r.pc = Pc::LoadHead;
            }
            Pc::CheckWord => {
                let descriptor = usize::from(old.hand[usize::from(old.at)]);
                r.word = Some(state.words[descriptor]);
                r.pc = Pc::Release;
                let mine = old.position + old.at;
                if !matches!(state.words[descriptor], Word::Queued { at, .. } if at == mine) {
                    next.fault = Some("a consumer lost the message that it had taken");
                }
                if self.is(Mutant::IntentClearedEarly) {
                    next.intent_records[id] = Intent::Idle;
                }
            }
            Pc::Release => Self::release(state, me, keep, &mut next),
            Pc::ClearTake => {
                next.intent_records[id] = Intent::Idle;
                r.pc = Pc::Wake;
            }
            Pc::Wake => {
                r.pc = if old.woken && !self.is(Mutant::NoChain) {
                    Pc::Chain
                } else {
                    after(keep)
                };
                (r.woken, r.at) = (false, 0);
                if r.pc == Pc::Idle {
                    r.left -= old.count.min(old.left);
                }
                return out.extend(self.wake(&next, Which::NotFull, old.count));
            }
            Pc::Chain => {
                next.not_empty.waiting = true;
                r.pc = Pc::ChainHead;
            }
            Pc::ChainHead => {
                r.position = state.head;
                r.pc = Pc::ChainSlot;
            }
            Pc::ChainSlot => {
                r.pc = after(keep);
                if r.pc == Pc::Idle {
                    r.left -= old.count.min(old.left);
                }
                let slot = self.slot(state, old.position);
                if slot.lap >= self.lap(old.position) {
                    let count = if slot.entry == Entry::Plug {
                        u8::MAX
                    } else {
                        1
                    };
                    return out.extend(self.wake(&next, Which::NotEmpty, count));
                }
            }
            Pc::Hold => {
                let descriptor = usize::from(old.hand[usize::from(old.at)]);
                next.words[descriptor] = Word::Free;
                next.histories[usize::from(state.content[descriptor])].leased = false;
                r.at += 1;
                if r.at == r.count {
                    r.left -= old.count.min(old.left);
                    r.pc = Pc::Idle;
                }
            }
            Pc::SetWaiting => {
                r.epoch = state.not_empty.epoch;
                r.pc = if self.is(Mutant::NoRecheck) {
                    Pc::Sleep
                } else {
                    Pc::Recheck
                };
                next.not_empty.waiting = true;
            }
            Pc::Recheck => {
                r.position = state.head;
                r.pc = Pc::LoadSlot;
            }
            Pc::LoadSlot => {
                let older = self.slot(state, old.position).lap < self.lap(old.position);
                r.pc = if older { Pc::Sleep } else { Pc::LoadHead };
            }
            Pc::Sleep => return out.push(Self::sleep(state, me, Which::NotEmpty)),
            _ => return,
        }
        out.push(next);
    }

    fn read(&self, state: &State, me: Process, batch: u8, waits: bool, out: &mut Vec<State>) {
        let old = state.registers[usize::from(me)];
        let at = old.position + old.count;
        let (slot, lap) = (self.slot(state, at), self.lap(at));
        let mut go = |pc: Pc, change: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            next.registers[usize::from(me)].pc = pc;
            change(&mut next);
            out.push(next);
        };
        match slot.entry {
            Entry::Descriptor(descriptor) if slot.lap == lap => {
                let take = |next: &mut State| {
                    let r = &mut next.registers[usize::from(me)];
                    r.hand[usize::from(old.count)] = descriptor;
                    r.count += 1;
                };
                go(Pc::AnnounceTake, &take);
                if old.count + 1 < batch {
                    go(Pc::Read, &take);
                }
            }
            _ if old.count > 0 => go(Pc::AnnounceTake, &|_| ()),
            Entry::Plug if slot.lap == lap => go(Pc::Done, &|_| ()),
            _ if slot.lap + 1 == lap || self.is(Mutant::AnyLapIsEmpty) => {
                let wrong = slot.lap > lap && state.published > state.head;
                go(if waits { Pc::SetWaiting } else { Pc::Idle }, &|next| {
                    if wrong {
                        next.fault = Some("a queue with messages was called empty");
                    }
                });
            }
            // A lap ahead: others have moved `head` since it was loaded.
            _ => go(Pc::LoadHead, &|_| ()),
        }
    }

    fn release(state: &State, me: Process, keep: Keep, next: &mut State) {
        let old = state.registers[usize::from(me)];
        let descriptor = usize::from(old.hand[usize::from(old.at)]);
        let position = old.position + old.at;
        let word = state.words[descriptor];
        // A sweeper may hand the message over to `NOBODY` in between.
        let handed_over = matches!(
            (word, old.word),
            (
                Word::Queued { by: NOBODY, at, again },
                Some(Word::Queued { at: was_at, again: was_again, .. }),
            ) if (at, again) == (was_at, was_again)
        );
        if Some(word) != old.word && !handed_over {
            next.fault = Some("a word changed under the consumer that had taken its message");
        }
        next.words[descriptor] = match keep {
            Keep::Copy => Word::Free,
            Keep::Loan => Word::Loaned(me, position),
            Keep::Lease => Word::Leased(me, position),
        };
        let history = &mut next.histories[usize::from(state.content[descriptor])];
        if history.taken && !(history.leased && has(state.dead, history.by)) {
            next.fault = Some("a message was delivered twice");
        }
        (history.taken, history.leased, history.by) = (true, keep == Keep::Lease, me);
        let r = &mut next.registers[usize::from(me)];
        r.at += 1;
        r.pc = if r.at < r.count {
            Pc::CheckWord
        } else {
            Pc::ClearTake
        };
    }
}

fn after(keep: Keep) -> Pc {
    if keep == Keep::Copy {
        Pc::Idle
    } else {
        Pc::Hold
    }
}
