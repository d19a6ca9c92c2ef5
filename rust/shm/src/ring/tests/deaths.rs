//! A process dies before any of its accesses to shared memory, then perhaps the one that recovers
//! too: each message comes as often as it should, nothing leaks, and all others go on.

use super::*;
use crate::failpoint::dies_after;

const VICTIM: u16 = 1;
const SWEEPER: u16 = 2;

/// The act of the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Put,
    PutMany,
    Take(Keep, u32),
    GiveBack,
    Close,
}

const ACTS: [Act; 9] = [
    Act::Put,
    Act::PutMany,
    Act::Take(Keep::Copy, 1),
    Act::Take(Keep::Copy, 2),
    Act::Take(Keep::Loan, 2),
    Act::Take(Keep::Lease, 1),
    Act::Take(Keep::Lease, 2),
    Act::GiveBack,
    Act::Close,
];

/// First position of the ring, number of messages in it, and its bound in bytes; there is room for
/// 3.
const STARTS: [(u64, u64, u64); 6] = [
    (4, 0, 0),
    (4, 1, 24),
    (4, 3, 24),
    (4, 3, 0),
    (6, 2, 0),
    (u64::MAX, 2, 24),
];

/// Number of bytes in the queue, with messages of 8 bytes.
fn bytes(messages: u64, bound: u64) -> Option<u64> {
    (bound > 0).then_some(8 * messages)
}

/// Whether a descriptor names a participant.
fn is_named(view: View<'_>, number: u16) -> bool {
    let mut words = view.table.descriptors.iter().map(Descriptor::word);
    words.any(|word| word != Word::FREE && word.owner() == owner(number))
}

/// Runs the act as far as it gets; `out` receives the messages that it took.
fn act(view: View<'_>, act: Act, accesses: u64, out: &mut Vec<(u64, bool)>) -> bool {
    let finished = dies_after(accesses, || {
        let mut victim = Process::new(view, VICTIM);
        match act {
            Act::Put => drop(victim.put(1)),
            Act::PutMany => {
                let mut claims = vec![victim.claim(1, 1), victim.claim(2, 1)];
                let put = victim.queue.put_many(&mut victim.record, &mut claims);
                put.expect("undamaged");
                for claim in claims {
                    victim.queue.unclaim(claim);
                }
            }
            Act::Take(keep, count) => drop(victim.take(Want::Count(count), keep, out)),
            Act::GiveBack => {
                let (_, leases) = victim.take(Want::Count(1), Keep::Lease, out);
                for lease in leases {
                    let back = victim.give_back(lease).expect("undamaged");
                    assert_eq!(back, GivenBack::Queued);
                }
            }
            Act::Close => victim.queue.close().expect("undamaged"),
        }
    });
    finished.is_some()
}

/// Runs one death, or two; returns whether each came before the end.
fn die(
    what: Act,
    (start, before, max_bytes): (u64, u64, u64),
    at: u64,
    busy: bool,
    sweeper_at: Option<u64>,
) -> (bool, bool) {
    let heap = Heap::new(8, 3)
        .with_ring_at(4, 3, start)
        .with_max_bytes(max_bytes);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let mut survivor = Process::new(view, 0);
    for number in 0..before {
        assert_eq!(survivor.put(100 + number), Ok(()));
    }
    let (mut by_victim, mut out) = (Vec::new(), Vec::new());
    let finished = act(view, what, at, &mut by_victim);
    let queued = rings[0].len();

    // No process waits for the dead one.
    let mut later = Vec::new();
    if busy {
        survivor.drain(&mut out);
        for number in 200..207 {
            if survivor.put(number).is_ok() {
                later.push(number);
                survivor.drain(&mut out);
            }
        }
        if later.last() == Some(&206) && survivor.put(207).is_ok() {
            later.push(207);
        }
    }

    let mut swept = Swept::default();
    let mut sweeper_finished = true;
    if let Some(accesses) = sweeper_at {
        let result = dies_after(accesses, || sweep(view, SWEEPER, &[VICTIM]));
        sweeper_finished = result.is_some();
        swept = result.unwrap_or_default();
    }
    let dead: &[u16] = if sweeper_at.is_some() {
        &[VICTIM, SWEEPER]
    } else {
        &[VICTIM]
    };
    let again = sweep(view, 0, dead);
    assert_eq!(again.postponed + swept.postponed, 0);
    assert_eq!(sweep(view, 0, dead), Swept::default(), "once is enough");
    assert!(!dead.iter().any(|&dead| is_named(view, dead)));
    let queue = &survivor.queue;
    assert_eq!(queue.queued_bytes(), Ok(bytes(rings[0].len(), max_bytes)));
    survivor.drain(&mut out);
    assert_eq!(view.table.in_use(), 0);

    // Each message came out as often as it should, and in order.
    let times = |number| out.iter().filter(|(n, _)| *n == number).count();
    let first: Vec<_> = out
        .iter()
        .filter(|(_, again)| !again)
        .map(|(n, _)| *n)
        .collect();
    let old: Vec<_> = first.iter().filter(|&&n| n < 200).collect();
    let in_order = old.iter().filter(|n| ***n >= 100).is_sorted();
    assert!(
        in_order && first.iter().filter(|n| **n >= 200).eq(&later),
        "{out:?}"
    );
    for number in 100..100 + before {
        let handed_on = by_victim.iter().any(|(n, _)| *n == number);
        let allowed = match what {
            Act::Take(Keep::Copy, _) if handed_on && finished => 0..=0,
            Act::Take(Keep::Copy, _) if handed_on => 0..=1,
            Act::Take(Keep::Loan, _) if handed_on => 0..=0,
            // It died between the loan and the moment when it could use the message.
            Act::Take(Keep::Loan, _) if !finished => 0..=1,
            _ => 1..=1,
        };
        assert!(
            allowed.contains(&times(number)),
            "{number}: {out:?} {by_victim:?}"
        );
        let flagged = out.contains(&(number, true));
        assert!(!handed_on || times(number) == 0 || flagged);
    }
    if let Act::Put | Act::PutMany = what {
        for number in [1, 2] {
            // If it was about to publish a message when the others went on, it is unclear whether
            // it did; the message counts as put.
            let unclear = usize::from(busy && out.contains(&(number, true)));
            let put = usize::from(queued - before >= number).max(unclear);
            assert_eq!(times(number), put, "{number}: {out:?}");
        }
    }
    if sweeper_at.is_none() {
        let new = (times(1) + times(2)) as u64;
        let all = before + new;
        let delivered_or_lost = out.len() as u64 - later.len() as u64 + again.lost;
        let kept = by_victim.iter().filter(|(n, _)| times(*n) == 0).count() as u64;
        let kept = if let Act::Take(Keep::Copy, _) = what {
            kept
        } else {
            0
        };
        assert_eq!(
            delivered_or_lost + kept,
            all,
            "{out:?} {by_victim:?} {again:?}"
        );
    }

    // The queue is as good as new, or closed.
    let put = survivor.put(300);
    if put == Err(Refusal::Closed) {
        assert_eq!(what, Act::Close);
    } else {
        assert_eq!(
            (put, survivor.put(301), survivor.put(302)),
            (Ok(()), Ok(()), Ok(()))
        );
        assert_eq!(survivor.queue.queued_bytes(), Ok(bytes(3, max_bytes)));
        assert_eq!(survivor.put(303), Err(Refusal::Full));
        assert!(!(what == Act::Close && finished));
    }
    (finished, sweeper_finished)
}

#[test]
fn a_process_that_dies_anywhere_leaves_nothing_behind() {
    let mut deaths = 0;
    for what in ACTS {
        for start in STARTS {
            for busy in [false, true] {
                let at = (0..1000).find(|&at| die(what, start, at, busy, None).0);
                deaths += at.expect("it finishes some time");
            }
        }
    }
    assert!(deaths > 1000, "only {deaths}");
}

#[test]
fn a_process_that_cleans_up_may_die_too() {
    let mut deaths = 0;
    for what in ACTS {
        for start in [(4, 3, 0), (u64::MAX, 2, 24)] {
            for at in 0.. {
                let second = (0..1000).find(|&second| die(what, start, at, false, Some(second)).1);
                deaths += second.expect("it finishes some time");
                if die(what, start, at, false, None).0 {
                    break;
                }
            }
        }
    }
    assert!(deaths > 5000, "only {deaths}");
}

/// A dead process's lease goes back into a closed queue; one that finds no room goes back later.
#[test]
fn a_lease_comes_back_into_a_closed_queue_and_into_a_full_one() {
    for close in [false, true] {
        let heap = Heap::new(8, 3).with_ring(4, 3);
        let rings = heap.rings().expect("sound");
        let view = heap.view(&rings);
        let (mut survivor, mut victim) = (Process::new(view, 0), Process::new(view, VICTIM));
        for number in 0..3 {
            assert_eq!(survivor.put(number), Ok(()));
        }
        let mut taken = Vec::new();
        let lease = victim.take(Want::Count(2), Keep::Lease, &mut taken);
        assert_eq!(
            lease.0,
            Taken::Messages {
                count: 2,
                weight: 2
            }
        );
        if close {
            survivor.queue.close().expect("undamaged");
        } else {
            assert_eq!((survivor.put(3), survivor.put(4)), (Ok(()), Ok(())));
        }
        // Three messages fit, and one slot stays for the plug.
        let swept = sweep(view, 0, &[VICTIM]);
        let (now, later) = if close { (2, 0) } else { (0, 2) };
        assert_eq!((swept.redelivered, swept.postponed), (now, later));
        let mut out = Vec::new();
        survivor.drain(&mut out);
        assert_eq!(sweep(view, 0, &[VICTIM]).redelivered, later);
        survivor.drain(&mut out);
        let again = out.split_off(out.len() - 2);
        assert_eq!(again, [(0, true), (1, true)]);
        let end = if close { Err(Refusal::Closed) } else { Ok(()) };
        assert_eq!(survivor.put(9), end);
    }
}

/// A message that is given back goes to the end; if there is no room, the next sweep puts it there,
/// even a sweep by the same process.
#[test]
fn a_lease_is_given_back_into_a_closed_queue_and_into_a_full_one() {
    for close in [false, true] {
        let heap = Heap::new(8, 3).with_ring(4, 3);
        let rings = heap.rings().expect("sound");
        let view = heap.view(&rings);
        let mut process = Process::new(view, 0);
        for number in 0..3 {
            assert_eq!(process.put(number), Ok(()));
        }
        let mut taken = Vec::new();
        let (_, mut leases) = process.take(Want::Count(2), Keep::Lease, &mut taken);
        if close {
            process.queue.close().expect("undamaged");
        } else {
            assert_eq!((process.put(3), process.put(4)), (Ok(()), Ok(())));
        }
        let back = if close {
            GivenBack::Queued
        } else {
            GivenBack::Postponed
        };
        let lease = leases.remove(0);
        assert_eq!(process.give_back(lease), Ok(back));
        let mut out = Vec::new();
        process.drain(&mut out);
        let swept = sweep(view, 0, &[]);
        assert_eq!(swept.redelivered, u64::from(!close));
        process.drain(&mut out);
        assert_eq!(out.pop(), Some((0, true)));
        assert_eq!(sweep(view, 0, &[]), Swept::default());
        assert_eq!(view.table.in_use(), 1, "the other lease");
        let end = if close { Err(Refusal::Closed) } else { Ok(()) };
        assert_eq!(process.put(9), end);
    }
}

#[test]
fn an_ended_lease_cannot_be_given_back() {
    let heap = Heap::new(8, 3).with_ring(4, 3);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let (mut process, mut taken) = (Process::new(view, 0), Vec::new());
    for number in 0..2 {
        assert_eq!(process.put(number), Ok(()));
    }
    let (_, mut loans) = process.take(Want::Count(1), Keep::Loan, &mut taken);
    let (_, mut leases) = process.take(Want::Count(1), Keep::Lease, &mut taken);
    process
        .give_back(loans.remove(0))
        .expect_err("it is not a lease");
    // The process was taken for dead.
    assert_eq!(sweep(view, 1, &[0]).redelivered, 1);
    process
        .give_back(leases.remove(0))
        .expect_err("it was given back already");
    taken.clear();
    process.drain(&mut taken);
    assert_eq!(taken, [(1, true)]);
    assert_eq!(view.table.in_use(), 0);
}

/// A dead process's messages stay in the queue with no owner, and the next process gets its index.
#[test]
fn the_place_of_a_dead_producer_is_free_while_its_messages_are_queued() {
    let heap = Heap::new(8, 3).with_ring(8, 7);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    for (numbers, handed_over) in [([1, 2], 2), ([3, 4], 2)] {
        let mut victim = Process::new(view, VICTIM);
        for number in numbers {
            assert_eq!(victim.put(number), Ok(()));
        }
        assert!(is_named(view, VICTIM));
        let expected = Swept {
            handed_over,
            ..Swept::default()
        };
        assert_eq!(sweep(view, 0, &[VICTIM]), expected);
        assert!(!is_named(view, VICTIM));
    }
    let mut victim = Process::new(view, VICTIM);
    let mut out = Vec::new();
    drop(victim.take(Want::Count(2), Keep::Lease, &mut out));
    assert_eq!(out, [(1, false), (2, false)]);
    assert_eq!(sweep(view, 0, &[VICTIM]).redelivered, 2);
    out.clear();
    Process::new(view, 0).drain(&mut out);
    assert_eq!(out, [(3, false), (4, false), (1, true), (2, true)]);
    assert_eq!(view.table.in_use(), 0);
}
