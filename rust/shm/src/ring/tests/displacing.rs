//! Displacing messages of a full queue, and the state that a death in the middle leaves.

use super::*;
use crate::failpoint::dies_after;

const VICTIM: u16 = 1;

fn full(heap: &Heap, max_bytes: u64) -> u64 {
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), 0);
    assert_eq!(process.queue.ring().max_bytes(), max_bytes);
    (0..1 << 20)
        .take_while(|&number| process.put(number).is_ok())
        .count() as u64
}

#[test]
fn only_a_full_queue_loses_messages() {
    let heap = Heap::new(8, 2).with_ring(4, 3);
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), 0);
    let mut out = Vec::new();
    for number in 0..3 {
        assert_eq!(process.queue.displace(&mut process.record, true), Ok(0));
        assert_eq!(process.put(number), Ok(()));
    }
    assert_eq!(process.queue.displace(&mut process.record, false), Ok(1));
    assert_eq!(process.queue.displace(&mut process.record, false), Ok(0));
    assert_eq!(process.put(3), Ok(()));
    assert_eq!(process.queue.displace(&mut process.record, true), Ok(3));
    assert_eq!(process.queue.table.in_use(), 0);
    for number in 4..7 {
        assert_eq!(process.put(number), Ok(()));
    }
    process.queue.close().expect("undamaged");
    assert_eq!(process.queue.displace(&mut process.record, false), Ok(0));
    process.drain(&mut out);
    assert_eq!(out, [(4, false), (5, false), (6, false)]);
}

#[test]
fn a_queue_that_is_full_in_bytes_is_not_full() {
    let heap = Heap::new(8, 1).with_ring(4, 3).with_max_bytes(16);
    assert_eq!(full(&heap, 16), 2);
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), 0);
    assert_eq!(process.queue.displace(&mut process.record, true), Ok(0));
    assert_eq!(process.queue.ring().len(), 2);
}

#[test]
fn more_than_one_take_can_have_are_dropped_too() {
    let bound = Intent::MAX_TAKE + 100;
    let heap = Heap::new(bound + 1, 1).with_ring(1 << 15, bound);
    assert_eq!(full(&heap, 0), u64::from(bound));
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), 0);
    let dropped = process.queue.displace(&mut process.record, true);
    assert_eq!((dropped, process.queue.ring().len()), (Ok(bound.into()), 0));
    assert_eq!(process.queue.table.in_use(), 0);
}

/// Runs one death in the middle; returns whether it came before the end.
fn die(start: u64, all: bool, max_bytes: u64, busy: bool, at: u64) -> bool {
    let heap = Heap::new(8, 3)
        .with_ring_at(4, 3, start)
        .with_max_bytes(max_bytes);
    assert_eq!(full(&heap, max_bytes), 3);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let mut survivor = Process::new(view, 0);
    let finished = dies_after(at, || {
        let mut victim = Process::new(view, VICTIM);
        victim.queue.displace(&mut victim.record, all)
    });
    let left = rings[0].len();
    let dropped = if all { 3 } else { 1 };
    assert!(left == 3 || left == 3 - dropped, "all or nothing: {left}");
    let mut out = Vec::new();
    if busy {
        survivor.drain(&mut out);
        assert_eq!(survivor.put(3), Ok(()));
        survivor.drain(&mut out);
    }
    let swept = sweep(view, 0, &[VICTIM]);
    assert_eq!((swept.lost, swept.postponed), (0, 0));
    assert_eq!(sweep(view, 0, &[VICTIM]), Swept::default());
    survivor.drain(&mut out);
    let first: Vec<_> = out
        .iter()
        .filter(|(_, again)| !again)
        .map(|x| x.0)
        .collect();
    assert_eq!(first, (3 - left..3 + u64::from(busy)).collect::<Vec<_>>());
    let again = out.iter().filter(|(_, again)| *again);
    assert!(again.map(|(number, _)| *number).all(|n| n < 3 - left));
    if let Some(result) = &finished {
        assert_eq!((result, left), (&Ok(dropped), 3 - dropped));
        assert_eq!(swept, Swept::default());
    }
    assert_eq!(view.table.in_use(), 0);
    for number in 4..7 {
        assert_eq!(survivor.put(number), Ok(()));
    }
    assert_eq!(survivor.put(7), Err(Refusal::Full));
    finished.is_some()
}

#[test]
fn a_producer_that_dies_while_it_displaces_leaves_nothing_behind() {
    for (start, max_bytes) in [(4, 0), (u64::MAX, 0), (6, 24)] {
        for (all, busy) in [(false, false), (false, true), (true, false), (true, true)] {
            let deaths = (0..1000).find(|&at| die(start, all, max_bytes, busy, at));
            assert!(deaths.expect("it finishes some time") > 10);
        }
    }
}
