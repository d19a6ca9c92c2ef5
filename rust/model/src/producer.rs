//! The producer: fills descriptors, announces, publishes by one compare-and-swap, advances `tail`,
//! wakes.

use crate::protocol::{Mutant, Protocol, Role, Seen};
use crate::state::{Entry, Intent, Pc, Process, State, Word};
use crate::waiting::Which;

impl Protocol {
    pub(crate) fn producer(&self, state: &State, me: Process, out: &mut Vec<State>) {
        let Role::Producer { puts, batch, waits } = self.roles[usize::from(me)] else {
            return;
        };
        let id = usize::from(me);
        let old = state.registers[id];
        let mut next = state.clone();
        let r = &mut next.registers[id];
        let descriptor = usize::from(old.hand[usize::from(old.at).min(1)]);
        match old.pc {
            Pc::Idle => {
                (r.count, r.at, r.woken) = (0, 0, false);
                r.pc = if old.left == 0 { Pc::Done } else { Pc::Claim };
            }
            Pc::Claim => return self.claim(state, me, puts, batch, out),
            Pc::Announce => {
                // The first message of a batch, and one that waited, start at `tail`; the others
                // start behind the previous message.
                r.pc = if old.at == 0 || old.woken {
                    Pc::LoadTail
                } else {
                    self.first_look()
                };
                next.intent_records[id] = Intent::Enqueue(old.hand[usize::from(old.at)]);
            }
            Pc::LoadTail => {
                r.position = state.tail;
                r.pc = self.first_look();
            }
            Pc::Room => {
                // `head` only grows, so the private copy can only be too careful.
                let room =
                    |head: u8| i16::from(old.position) - i16::from(head) < self.maxsize.into();
                if !room(old.head) {
                    r.head = state.head;
                }
                r.pc = if !room(r.head) {
                    Pc::Refuse
                } else if self.is(Mutant::FullBeforeClosed) {
                    Pc::LoadSlot
                } else {
                    Pc::Mark
                };
            }
            Pc::LoadSlot => {
                let slot = self.slot(state, old.position);
                r.slot = Some(slot);
                r.pc = match self.seen(slot, old.position) {
                    Seen::Unpublished if self.is(Mutant::FullBeforeClosed) => Pc::Mark,
                    Seen::Unpublished => Pc::Room,
                    Seen::PublishedUpTo(next) => {
                        r.position = next;
                        self.first_look()
                    }
                    Seen::Closed => {
                        r.left = 0; // it will put nothing more
                        Pc::Refuse
                    }
                };
            }
            Pc::Mark => {
                r.pc = Pc::Publish;
                let marked = matches!(state.words[descriptor], Word::Queued { .. });
                if !(marked && self.is(Mutant::WordNotRemarked)) {
                    next.words[descriptor] = Word::Queued {
                        by: me,
                        at: old.position,
                        again: false,
                    };
                }
            }
            Pc::Publish => {
                if Some(self.slot(state, old.position)) == old.slot {
                    r.at += 1;
                    r.position += 1;
                    r.pc = if r.at < r.count {
                        Pc::Announce
                    } else {
                        Pc::LoadTailToFix
                    };
                    self.publish(&mut next, old.position, descriptor);
                    if state.closed {
                        next.fault = Some("a put succeeded after the close");
                    }
                } else {
                    r.pc = self.first_look();
                }
            }
            Pc::Refuse => {
                r.pc = Pc::LoadTailToFix;
                next.words[descriptor] = Word::Writing(me);
            }
            Pc::LoadTailToFix | Pc::FixTail => Self::fix_tail(state, me, &mut next),
            Pc::ClearRecord => {
                next.intent_records[id] = Intent::Idle;
                next.registers[id].pc = Pc::Wake;
            }
            Pc::Wake => {
                let chains = old.woken && old.at > 0 && !self.is(Mutant::NoChain);
                r.pc = if chains {
                    Pc::Chain
                } else {
                    self.go_on(state, me, waits)
                };
                if old.at > 0 {
                    return out.extend(self.wake(&next, Which::NotEmpty, old.at));
                }
            }
            Pc::Chain => {
                next.not_full.waiting = true;
                r.pc = Pc::ChainTail;
            }
            Pc::ChainTail => {
                r.epoch = state.tail; // a free register here; `position` is still needed
                r.pc = Pc::ChainHead;
            }
            Pc::ChainHead => {
                // Room that is left after this waiter belongs to the next one.
                r.pc = self.go_on(state, me, waits);
                if i16::from(old.epoch) - i16::from(state.head) < self.maxsize.into() {
                    return out.extend(self.wake(&next, Which::NotFull, 1));
                }
            }
            Pc::Unclaim => {
                next.words[descriptor] = Word::Free;
                r.at += 1;
                r.pc = if r.at < r.count {
                    Pc::Unclaim
                } else {
                    Pc::Idle
                };
            }
            Pc::SetWaiting => {
                r.pc = Pc::Recheck;
                r.epoch = state.not_full.epoch;
                next.not_full.waiting = true;
            }
            Pc::Recheck => {
                r.position = state.tail;
                r.pc = if self.is(Mutant::NoRecheck) {
                    Pc::Sleep
                } else {
                    Pc::RecheckHead
                };
            }
            Pc::RecheckHead => {
                let full = i16::from(old.position) - i16::from(state.head) >= self.maxsize.into();
                let slot = self.slot(state, old.position);
                let closed = slot.entry == Entry::Plug && slot.lap == self.lap(old.position);
                r.woken = true;
                r.pc = if full && !closed {
                    Pc::Sleep
                } else {
                    Pc::Announce
                };
            }
            Pc::Sleep => return out.push(Self::sleep(state, me, Which::NotFull)),
            _ => return,
        }
        out.push(next);
    }

    /// The first check of a put: "closed" before "full", so that a producer that waits for room
    /// learns of the close.
    fn first_look(&self) -> Pc {
        if self.is(Mutant::FullBeforeClosed) {
            Pc::Room
        } else {
            Pc::LoadSlot
        }
    }

    fn claim(&self, state: &State, me: Process, puts: u8, batch: u8, out: &mut Vec<State>) {
        let old = state.registers[usize::from(me)];
        let free = (0..self.descriptors).filter(|&d| state.words[usize::from(d)] == Word::Free);
        let enough = old.count == batch.min(old.count + old.left);
        if enough || (old.count > 0 && free.clone().next().is_none()) {
            let mut next = state.clone();
            next.registers[usize::from(me)].pc = Pc::Announce;
            return out.push(next);
        }
        for descriptor in free {
            let mut next = state.clone();
            let r = &mut next.registers[usize::from(me)];
            r.hand[usize::from(old.count)] = descriptor;
            r.count += 1;
            r.left -= 1;
            next.words[usize::from(descriptor)] = Word::Writing(me);
            next.content[usize::from(descriptor)] = self.first_message(me) + puts - old.left;
            out.push(next);
        }
    }

    /// Writes a descriptor into the slot of a position. At this moment its message enters the
    /// queue.
    pub(crate) fn publish(&self, next: &mut State, at: u8, descriptor: usize) {
        if at != next.published {
            next.fault = Some("a message was published out of order");
        }
        self.set_slot(
            next,
            at,
            Entry::Descriptor(u8::try_from(descriptor).unwrap_or(u8::MAX)),
        );
        next.published = at + 1;
        next.histories[usize::from(next.content[descriptor])].published = true;
    }

    /// Moves `tail` behind the messages that this process has seen published, in two steps.
    pub(crate) fn fix_tail(state: &State, me: Process, next: &mut State) {
        let old = state.registers[usize::from(me)];
        let r = &mut next.registers[usize::from(me)];
        if old.pc == Pc::LoadTailToFix {
            // The loaded tail is kept in a register that is free here.
            r.epoch = state.tail;
            r.pc = if state.tail < old.position {
                Pc::FixTail
            } else {
                Pc::ClearRecord
            };
        } else if state.tail == old.epoch {
            next.tail = old.position;
            r.pc = Pc::ClearRecord;
        } else {
            r.pc = Pc::LoadTailToFix;
        }
    }

    /// The next step of a put after its wake-ups: it is complete, waits for room, or gives up.
    fn go_on(&self, state: &State, me: Process, waits: bool) -> Pc {
        let r = state.registers[usize::from(me)];
        if r.at == r.count {
            Pc::Idle
        } else if waits && !self.plugged(state, me) {
            Pc::SetWaiting
        } else {
            Pc::Unclaim
        }
    }

    /// Whether this process has found the queue closed.
    fn plugged(&self, state: &State, me: Process) -> bool {
        let r = state.registers[usize::from(me)];
        r.slot
            .is_some_and(|slot| slot.entry == Entry::Plug && slot.lap == self.lap(r.position))
    }
}
