//! The properties of the protocol, which hold in every state.

use stateright::Property;

use crate::protocol::{Protocol, Role};
use crate::state::{Entry, Pc, Process, State, Word, has};

pub(crate) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always("no process sees damage", |_, state: &State| {
            state.fault.is_none()
        }),
        Property::always("maxsize is exact", |model: &Protocol, state: &State| {
            state.published - state.head <= model.maxsize + state.salvaged
        }),
        Property::always("what is queued is intact", queued_is_intact),
        Property::always("no process sleeps forever", no_process_sleeps_forever),
        Property::always("a process that runs alone finishes", alone_it_finishes),
        Property::always(
            "a sweep loses nothing and leaks nothing",
            a_sweep_is_complete,
        ),
    ]
}

fn queued_is_intact(model: &Protocol, state: &State) -> bool {
    (state.head..state.published).all(|at| {
        let slot = model.slot(state, at);
        let Entry::Descriptor(descriptor) = slot.entry else {
            return false;
        };
        let word = state.words[usize::from(descriptor)];
        slot.lap == model.lap(at) && matches!(word, Word::Queued { at: there, .. } if there == at)
    })
}

/// If no process is dead and no process can take a step, then no process sleeps although the thing
/// that it waits for is there.
///
/// After a death, sleepers wake up by themselves at the end of a slice, which the model leaves out.
fn no_process_sleeps_forever(model: &Protocol, state: &State) -> bool {
    if state.dead != 0
        || !model
            .processes()
            .all(|p| model.successors(state, p).is_empty())
    {
        return true;
    }
    let plugged = model.slot(state, state.published)
        == (crate::state::Slot {
            lap: model.lap(state.published),
            entry: Entry::Plug,
        });
    let item = state.published > state.head;
    let room = state.published - state.head < model.maxsize;
    (state.not_empty.sleepers == 0 || !(item || plugged))
        && (state.not_full.sleepers == 0 || !(room || plugged))
}

/// Whether a process is between two operations, or waits.
fn is_quiet(state: &State, process: Process) -> bool {
    let pc = state.registers[usize::from(process)].pc;
    matches!(pc, Pc::Idle | Pc::Done | Pc::Asleep | Pc::Hold)
}

/// If all living processes but one are between operations, that one finishes its operation,
/// whatever the dead ones left behind.
fn alone_it_finishes(model: &Protocol, state: &State) -> bool {
    let mut busy = model
        .processes()
        .filter(|&p| !has(state.dead, p) && !is_quiet(state, p));
    match (busy.next(), busy.next()) {
        (Some(one), None) => run_alone(model, state, one).is_some(),
        _ => true,
    }
}

/// Lets one process run to the end of its operation; None if it does not reach it.
fn run_alone(model: &Protocol, state: &State, process: Process) -> Option<State> {
    const MORE_THAN_ENOUGH: usize = 300;
    let mut now = state.clone();
    for _ in 0..MORE_THAN_ENOUGH {
        match model.successors(&now, process).pop() {
            Some(next) => now = next,
            // A producer that waits for a descriptor.
            None => return (now.registers[usize::from(process)].pc == Pc::Claim).then_some(now),
        }
        if is_quiet(&now, process) {
            return Some(now);
        }
    }
    None
}

/// If the living processes are between operations, one sweep by a living sweeper leaves every
/// descriptor free, queued, or owned by a living process; and every message that was put and not
/// taken yet is in the queue.
fn a_sweep_is_complete(model: &Protocol, state: &State) -> bool {
    let sweeper = |role: &Role| *role == Role::Sweeper;
    let living = || model.processes().filter(|&p| !has(state.dead, p));
    let Some(me) = living().find(|&p| sweeper(&model.roles[usize::from(p)])) else {
        return true;
    };
    if state.dead == 0 || living().any(|p| !is_quiet(state, p)) {
        return true;
    }
    let Some(swept) = run_alone(model, state, me) else {
        return false;
    };
    let queued: Vec<u8> = (swept.head..swept.published)
        .filter_map(|at| match model.slot(&swept, at).entry {
            Entry::Descriptor(descriptor) => Some(descriptor),
            Entry::Plug => None,
        })
        .collect();
    let no_room = swept.published - swept.head + 1 >= model.slots;
    let accounted = (0..model.descriptors).all(|d| match swept.words[usize::from(d)] {
        Word::Free => true,
        // No word names a dead process: its index may be given to another.
        Word::Queued { by, .. } => queued.contains(&d) && !has(swept.dead, by),
        Word::Writing(by) | Word::Loaned(by, _) | Word::Leased(by, _) => !swept.is_dead(by),
        Word::Salvage(_) => no_room,
    });
    let present = |message: usize| {
        (0..model.descriptors).any(|d| {
            usize::from(swept.content[usize::from(d)]) == message
                && (queued.contains(&d) || matches!(swept.words[usize::from(d)], Word::Salvage(_)))
        })
    };
    let kept = swept
        .histories
        .iter()
        .enumerate()
        .all(|(message, history)| {
            let due = history.published
                && (!history.taken || history.leased && has(swept.dead, history.by));
            !due || present(message)
        });
    accounted && kept
}
