//! Sleeping and waking: a futex word with a waiting bit and an epoch.
//!
//! There is a bit and not a count, because a count is wrong forever once a sleeper is killed. A
//! process that clears the bit wakes sleepers. A woken sleeper sets it again for those that may
//! still sleep, and wakes one of them itself if there is something left.

use crate::protocol::Protocol;
use crate::state::{Pc, Process, State, has};

/// One of the two futex words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    NotEmpty,
    NotFull,
}

impl Protocol {
    /// Clears the bit and wakes up to `count` sleepers; returns a successor for every choice of
    /// them.
    ///
    /// In reality the system call is a separate step. A sleeper that comes between the two finds
    /// another epoch and does not sleep, so one step has the same results.
    pub(crate) fn wake(&self, state: &State, which: Which, count: u8) -> Vec<State> {
        let word = match which {
            Which::NotEmpty => state.not_empty,
            Which::NotFull => state.not_full,
        };
        if !word.waiting {
            return vec![state.clone()];
        }
        let mut out = Vec::new();
        for set in 0..=word.sleepers {
            let fits = set & !word.sleepers == 0;
            let wanted = word.sleepers.count_ones().min(u32::from(count));
            if fits && set.count_ones() == wanted {
                out.push(self.woken(state, which, set));
            }
        }
        out
    }

    fn woken(&self, state: &State, which: Which, set: u8) -> State {
        let mut next = state.clone();
        let word = match which {
            Which::NotEmpty => &mut next.not_empty,
            Which::NotFull => &mut next.not_full,
        };
        word.waiting = false;
        word.epoch += 1;
        word.sleepers &= !set;
        for process in self.processes().filter(|&p| has(set, p)) {
            awake(&mut next, process, which);
        }
        next
    }

    /// Sleeps, unless the word changed since the bit was set.
    pub(crate) fn sleep(state: &State, process: Process, which: Which) -> State {
        let mut next = state.clone();
        let seen = next.registers[usize::from(process)].epoch;
        let word = match which {
            Which::NotEmpty => &mut next.not_empty,
            Which::NotFull => &mut next.not_full,
        };
        if word.waiting && word.epoch == seen {
            word.sleepers |= 1 << process;
            next.registers[usize::from(process)].pc = Pc::Asleep;
        } else {
            awake(&mut next, process, which);
        }
        next
    }
}

fn awake(state: &mut State, process: Process, which: Which) {
    let registers = &mut state.registers[usize::from(process)];
    registers.woken = true;
    registers.pc = match which {
        Which::NotEmpty => Pc::LoadHead,
        Which::NotFull => Pc::Announce,
    };
}
