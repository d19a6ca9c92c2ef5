//! The protocol holds in every configuration, and every mutant is found.

mod search;

use search::search;
use shoal_model::{Keep, Mutant, Protocol, Role};
use stateright::HasDiscoveries;

/// A producer that gives up when there is no room.
const fn put(puts: u8) -> Role {
    Role::Producer {
        puts,
        batch: 1,
        waits: false,
    }
}
/// A producer that waits for room.
const fn put_wait(puts: u8, batch: u8) -> Role {
    Role::Producer {
        puts,
        batch,
        waits: true,
    }
}
const fn get(gets: u8) -> Role {
    Role::Consumer {
        gets,
        batch: 2,
        keep: Keep::Copy,
        waits: false,
    }
}
const fn get_wait(gets: u8) -> Role {
    Role::Consumer {
        gets,
        batch: 1,
        keep: Keep::Copy,
        waits: true,
    }
}
const fn get_as(gets: u8, keep: Keep) -> Role {
    Role::Consumer {
        gets,
        batch: 2,
        keep,
        waits: false,
    }
}
const SWEEP: Role = Role::Sweeper;
const CLOSE: Role = Role::Closer;

fn protocol(roles: &[Role], descriptors: u8, mortal: &[u8], deaths: u8) -> Protocol {
    Protocol {
        roles: roles.to_vec(),
        slots: 2,
        descriptors,
        maxsize: 2,
        mortal: mortal.to_vec(),
        deaths,
        mutant: None,
    }
}

fn wide(protocol: Protocol) -> Protocol {
    Protocol {
        slots: 4,
        ..protocol
    }
}

/// A ring of one slot: each message laps the one before it.
fn narrow(protocol: Protocol) -> Protocol {
    Protocol {
        slots: 1,
        maxsize: 1,
        ..protocol
    }
}

/// A producer waits for room that does not come, because the queue is closed.
fn full_and_closed() -> Protocol {
    Protocol {
        maxsize: 1,
        ..protocol(&[put_wait(2, 1), CLOSE], 2, &[], 0)
    }
}

macro_rules! holds {
    ($($name:ident: $protocol:expr;)*) => {$(
        #[test]
        fn $name() {
            assert!(search($protocol, HasDiscoveries::AnyFailures).is_empty());
        }
    )*};
}

holds! {
    two_producers_and_a_consumer: protocol(&[put(1), put(1), get(2), SWEEP], 2, &[0, 1, 2], 2);
    a_producer_and_two_consumers:
        protocol(&[put_wait(2, 2), get(1), get(1), SWEEP], 2, &[0, 1, 2], 2);
    batches: protocol(&[put_wait(3, 2), get(3), SWEEP], 2, &[0, 1], 2);
    dead_producers_leave_tail_a_lap_behind:
        narrow(protocol(&[put(1), put(1), put(1), get(2)], 1, &[0, 1], 2));
    two_sweepers_that_may_die: protocol(&[put(1), get(2), SWEEP, SWEEP], 2, &[0, 1, 2], 2);
    leases: wide(protocol(
        &[put(2), get_as(1, Keep::Lease), get_as(2, Keep::Lease), SWEEP], 2, &[1], 1));
    loans: protocol(&[put_wait(2, 1), get_as(2, Keep::Loan), SWEEP], 2, &[0, 1], 2);
    sleeping_consumers: protocol(&[put_wait(2, 1), get_wait(1), get_wait(1)], 2, &[], 0);
    sleeping_producers: Protocol {
        maxsize: 1,
        ..protocol(&[put_wait(1, 1), put_wait(1, 1), get_wait(2)], 3, &[], 0)
    };
    closing: wide(protocol(&[put_wait(2, 1), get_wait(3), CLOSE], 2, &[], 0));
    closing_a_full_queue: full_and_closed();
    closing_and_redelivery:
        wide(protocol(&[put_wait(2, 1), get_as(1, Keep::Lease), CLOSE, SWEEP], 2, &[1], 1));
}

/// Searches with one error in the protocol; the search must find a property that breaks.
macro_rules! found {
    ($($name:ident: $mutant:ident in $protocol:expr, $expected:expr;)*) => {$(
        #[test]
        fn $name() {
            let protocol = Protocol { mutant: Some(Mutant::$mutant), ..$protocol };
            let found = search(protocol, HasDiscoveries::AnyOf([$expected].into()));
            assert!(found.contains(&$expected), "{found:?}");
        }
    )*};
}

const DAMAGE: &str = "no process sees damage";
const SWEPT: &str = "a sweep loses nothing and leaks nothing";
const ALONE: &str = "a process that runs alone finishes";
const ASLEEP: &str = "no process sleeps forever";

found! {
    mutant_without_take_intents: NoTakeIntent
        in protocol(&[put(1), get(1), get(1), SWEEP], 1, &[2], 1), DAMAGE;
    mutant_that_clears_intents_early: IntentClearedEarly
        in protocol(&[put(1), get(1), get(1), SWEEP], 1, &[2], 1), DAMAGE;
    mutant_that_reads_records_first: RecordsReadFirst
        in protocol(&[put(1), get(1), get(1), SWEEP], 1, &[2], 1), DAMAGE;
    mutant_that_sweeps_by_head_only: SweepByHeadOnly
        in narrow(protocol(&[put(1), put(1), get(2), SWEEP], 2, &[0], 1)), DAMAGE;
    mutant_that_frees_what_is_not_published_yet: LivingNotPublished
        in protocol(&[put(1), put(1), get(2), SWEEP], 2, &[0], 1), "what is queued is intact";
    mutant_that_does_not_mark_again: WordNotRemarked
        in protocol(&[put(1), put(1), get(2), SWEEP], 2, &[], 0), "what is queued is intact";
    mutant_that_calls_any_lap_empty: AnyLapIsEmpty
        in protocol(&[put_wait(3, 2), get(2), get(2)], 2, &[], 0), DAMAGE;
    mutant_that_starts_again_at_tail: TailReloaded
        in narrow(protocol(&[put(1), put(1), put(1), get(2)], 1, &[0, 1], 2)), ALONE;
    mutant_that_salvages_as_a_put: SalvageAsPut
        in protocol(&[put(1), get(1), SWEEP, SWEEP], 1, &[1, 2], 2), SWEPT;
    mutant_that_frees_what_was_taken: TakenIsFreed
        in protocol(&[put(1), get(1), SWEEP], 1, &[1], 1), SWEPT;
    mutant_that_leaves_the_names_of_the_dead: NotHandedOver
        in protocol(&[put(1), get(1), SWEEP], 1, &[0], 1), SWEPT;
    mutant_that_hands_over_blindly: HandedOverBlindly
        in protocol(&[put(1), put(1), get(1), SWEEP], 1, &[0], 1), "what is queued is intact";
    mutant_without_a_second_plug: NoSecondPlug
        in wide(protocol(&[put_wait(2, 1), get_as(1, Keep::Lease), CLOSE, SWEEP], 2, &[1], 1)), DAMAGE;
    mutant_without_a_second_look: NoRecheck
        in protocol(&[put_wait(1, 1), get_wait(1)], 2, &[], 0), ASLEEP;
    mutant_without_the_chain_of_wakes: NoChain
        in protocol(&[put_wait(2, 1), get_wait(1), get_wait(1)], 2, &[], 0), ASLEEP;
    mutant_that_looks_for_room_first: FullBeforeClosed in full_and_closed(), ALONE;
    mutant_that_closes_in_silence: CloseWithoutWake
        in wide(protocol(&[put_wait(1, 1), get_wait(2), CLOSE], 2, &[], 0)), ASLEEP;
}
