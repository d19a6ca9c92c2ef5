//! Looks at messages that stay in the queue, and statistics of a queue.

use super::*;

const DEAD: u16 = 0;
const ALIVE: u16 = 1;

fn numbers(process: &Process<'_>) -> Vec<u64> {
    let (mut at, end) = process.queue.span();
    let mut seen = Vec::new();
    while at != end {
        match process.queue.peek_at(at).expect("undamaged") {
            PeekOutcome::Message(copy) => {
                assert!(process.queue.is_there(&copy));
                seen.push(match copy.payload() {
                    Payload::Inline(8) => {
                        u64::from_ne_bytes(copy.bytes().try_into().expect("8 bytes"))
                    }
                    Payload::Inline(other) => panic!("{other} bytes"),
                    Payload::Block(block) => {
                        assert!(copy.bytes().is_empty());
                        block.offset
                    }
                });
            }
            PeekOutcome::Gone => (),
            PeekOutcome::End => break,
        }
        at = at.wrapping_add(1);
    }
    seen
}

#[test]
fn a_look_sees_what_a_take_gives_and_takes_nothing() {
    let heap = Heap::new(8, 4).with_ring(64, 5);
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), ALIVE);
    for round in 0..100 {
        for number in 0..round % 6 {
            let claim = if number % 2 == 0 {
                process.claim_outside(number, 1)
            } else {
                process.claim(number, 1)
            };
            let put = process.queue.put(&mut process.record, claim);
            assert!(put.expect("undamaged").is_ok());
        }
        let expected = (0..round % 6).collect::<Vec<_>>();
        assert_eq!(numbers(&process), expected);
        assert_eq!(numbers(&process), expected, "nothing was taken");
        let lengths = expected
            .iter()
            .map(|n| if n % 2 == 0 { length(*n) } else { 8 });
        assert_eq!(process.queue.load().expect("undamaged").0, lengths.sum());
        let (taken, loans) = process.take(Want::Count(9), Keep::Copy, &mut Vec::new());
        assert!(matches!(taken, Taken::Messages { .. } | Taken::Empty));
        for loan in loans {
            process.queue.release(loan).expect("in use");
        }
    }
    assert_eq!(process.queue.counts(), (246, 246));
}

#[test]
fn peek_misses_a_message_taken_meanwhile() {
    let heap = Heap::new(1, 4).with_ring(64, 5);
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), ALIVE);
    process.put(7).expect("room");
    let (head, _) = process.queue.span();
    let PeekOutcome::Message(copy) = process.queue.peek_at(head).expect("undamaged") else {
        panic!("there is one");
    };
    let mut out = Vec::new();
    process.drain(&mut out);
    assert!(!process.queue.is_there(&copy));
    // The same descriptor, at another position.
    process.put(8).expect("room");
    assert!(!process.queue.is_there(&copy));
    assert!(matches!(process.queue.peek_at(head), Ok(PeekOutcome::Gone)));
    assert!(matches!(
        process.queue.peek_at(head + 1),
        Ok(PeekOutcome::Message(_))
    ));
    assert!(matches!(
        process.queue.peek_at(head + 2),
        Ok(PeekOutcome::End)
    ));
    process.queue.close().expect("undamaged");
    assert!(matches!(
        process.queue.peek_at(head + 2),
        Ok(PeekOutcome::End)
    ));
    assert_eq!(process.queue.counts(), (2, 1), "the end is not a message");
}

#[test]
fn a_redelivered_message_keeps_its_age() {
    let heap = Heap::new(2, 4).with_ring(64, 5);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let mut dead = Process::new(view, DEAD);
    dead.put(7).expect("room");
    let (_, loans) = dead.take(Want::Count(1), Keep::Lease, &mut Vec::new());
    drop(loans);
    let alive = Process::new(view, ALIVE);
    assert_eq!(alive.queue.counts(), (1, 1));
    std::thread::park_timeout(std::time::Duration::from_millis(100));
    sweep(view, ALIVE, &[DEAD]);
    assert_eq!(numbers(&alive), [7]);
    assert_eq!(alive.queue.counts(), (2, 1));
    let (bytes, age) = alive.queue.load().expect("undamaged");
    assert_eq!(bytes, 8);
    // It slept for 0.1 s; the clock may be late by a hundredth.
    assert!(age >= clock::PER_SECOND / 20, "{age}");
}

#[test]
fn damage_is_found_and_nothing_worse() {
    let heap = Heap::new(1, 4).with_ring(64, 5);
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), ALIVE);
    process.put(7).expect("room");
    let (head, _) = process.queue.span();
    // A slot that names a descriptor that does not exist.
    let slot = Slot::new(rings[0].lap(head), 99);
    let words = rings[0].words_for_tests().skip(2).collect::<Vec<_>>();
    for word in words {
        if word.load(crate::sync::Ordering::Relaxed) != 0 {
            word.store(slot.bits(), crate::sync::Ordering::Relaxed);
        }
    }
    assert!(matches!(
        process.queue.peek_at(head),
        Err(Corrupt::NoSuchDescriptor { index: 99, .. })
    ));
}
