//! The closer, which closes a queue by a plug in the slot that would be published next.
//!
//! The plug is found where a message would be, so neither side pays for a check whether the queue
//! is closed, and a put that races with the close is completely before or completely after it.

use crate::protocol::{Mutant, Protocol, Seen};
use crate::state::{Entry, Pc, Process, State};
use crate::waiting::Which;

impl Protocol {
    pub(crate) fn closer(&self, state: &State, me: Process, out: &mut Vec<State>) {
        let old = state.registers[usize::from(me)];
        let mut next = state.clone();
        let r = &mut next.registers[usize::from(me)];
        match old.pc {
            Pc::Idle => {
                r.position = state.tail;
                r.pc = Pc::LoadSlot;
            }
            Pc::LoadSlot => {
                let slot = self.slot(state, old.position);
                r.slot = Some(slot);
                r.pc = match self.seen(slot, old.position) {
                    Seen::Unpublished => Pc::Publish,
                    Seen::PublishedUpTo(next) => {
                        r.position = next;
                        Pc::LoadSlot
                    }
                    // Another process closed it, and may have died before it woke the sleepers.
                    Seen::Closed => Pc::Wake,
                };
            }
            Pc::Publish => {
                if Some(self.slot(state, old.position)) == old.slot {
                    r.pc = Pc::Wake;
                    next.closed = true;
                    self.set_slot(&mut next, old.position, Entry::Plug);
                    if old.position - state.head >= self.slots {
                        next.fault = Some("a plug destroyed a message");
                    }
                } else {
                    r.pc = Pc::LoadSlot;
                }
            }
            Pc::Wake => {
                r.pc = Pc::Chain;
                if !self.is(Mutant::CloseWithoutWake) {
                    return out.extend(self.wake(&next, Which::NotEmpty, u8::MAX));
                }
            }
            Pc::Chain => {
                r.pc = Pc::Done;
                if !self.is(Mutant::CloseWithoutWake) {
                    return out.extend(self.wake(&next, Which::NotFull, u8::MAX));
                }
            }
            _ => return,
        }
        out.push(next);
    }
}
