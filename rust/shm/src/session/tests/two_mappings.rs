//! A session that one process has twice, each time with its own mappings: for ThreadSanitizer.
//!
//! `make test-tsan` runs these tests with it.
//!
//! The sanitizer works on addresses: it finds races between threads that share a mapping, but
//! between two mappings it recognises neither the payload as the same nor the atomics that order
//! it. There the contents of the messages are the proof.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::session::{Bounds, Offer, Session, SessionQueue, Settings};
use crate::sync::hint::{AtomicU64, Ordering};
use crate::{Keep, Label, Payload, Refusal, Taken, WaitState, Want};

const MESSAGES: u64 = 3000;
const PRODUCERS: u64 = 2;
const LENGTH: usize = 3000;
const SLICE: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(100);
const BOUNDS: Bounds = Bounds {
    maxsize: Some(16),
    max_bytes: Some(0),
};

/// The same session twice.
fn twice(base: &std::path::Path) -> [Arc<Session>; 2] {
    let session = Session::create(&Settings::in_folder(base, 64 << 20, 63));
    let session = session.expect("space");
    let again = session.again().expect("there");
    assert_ne!(session.me(), again.me());
    [session, again]
}

/// Every fifth message lies in a block.
fn is_long(number: u64) -> bool {
    number.is_multiple_of(5)
}

fn put(queue: &SessionQueue, number: u64) {
    let (begun, mut wait_state) = (Instant::now(), WaitState::default());
    let label = Label::default();
    let mut draft = None;
    loop {
        let refused = if is_long(number) {
            let this = draft.take().unwrap_or_else(|| {
                let draft = queue.draft(LENGTH as u64).expect("sound").expect("room");
                let bytes = number.to_ne_bytes().repeat(LENGTH / 8);
                draft.write(0, &bytes).expect("it has this length");
                draft
            });
            queue
                .put(this, label)
                .expect("sound")
                .err()
                .map(|(back, refusal)| {
                    draft = Some(back);
                    refusal
                })
        } else {
            match queue.offer(label, &number.to_ne_bytes()).expect("sound") {
                Offer::Put => None,
                Offer::Refused(refusal) => Some(refusal),
                Offer::NoMemory => panic!("no descriptor"),
            }
        };
        match refused {
            None => break,
            Some(refusal) => assert_eq!(refusal, Refusal::Full),
        }
        assert!(begun.elapsed() < LONG, "it did not happen in time");
        let length = if is_long(number) { LENGTH } else { 8 };
        queue
            .wait_to_put(length as u64, &mut wait_state, SLICE)
            .expect("sound");
    }
    queue.done_putting(wait_state);
}

/// Takes a message; None once the queue is closed and empty.
fn take(queue: &SessionQueue) -> Option<u64> {
    let (begun, mut wait_state, want) = (Instant::now(), WaitState::default(), Want::Count(1));
    let mut got = None;
    loop {
        let taken = queue.take(want, Keep::Copy, &mut |message| {
            let mut bytes = [0; 8];
            message.copy(&mut bytes);
            got = Some((bytes, message.loan(), message.payload()));
        });
        match taken.expect("sound") {
            Taken::Messages { .. } | Taken::Closed => break,
            _ => assert!(begun.elapsed() < LONG, "it did not happen in time"),
        }
        queue
            .wait_to_take(want, &mut wait_state, SLICE)
            .expect("sound");
    }
    queue.done_taking(want, wait_state);
    let (bytes, loan, payload) = got?;
    let Some(loan) = loan else {
        return Some(u64::from_ne_bytes(bytes));
    };
    assert!(matches!(payload, Payload::Block(_)));
    let held = queue.hold(loan, payload).expect("sound");
    let mut bytes = [0; LENGTH];
    held.read(0, &mut bytes).expect("it has this length");
    let (numbers, _) = bytes.as_chunks::<8>();
    let number = u64::from_ne_bytes(numbers[0]);
    assert!(numbers.iter().all(|one| u64::from_ne_bytes(*one) == number));
    Some(number)
}

#[test]
fn messages_cross_between_two_mappings_and_among_threads_of_one() {
    let base = tempfile::tempdir().expect("a folder");
    let sessions = twice(base.path());
    let queues = sessions
        .each_ref()
        .map(|session| session.queue(b"q", BOUNDS).expect("room"));
    // Each gets descriptors and memory now: two participants of one process cannot exclude each
    // other from the tables as two processes do.
    for queue in &queues {
        for number in [0, 1] {
            put(queue, number);
            assert_eq!(take(queue), Some(number));
        }
    }
    let left = AtomicU64::new(PRODUCERS * queues.len() as u64);
    let taken: Vec<u64> = std::thread::scope(|scope| {
        let (mut producers, mut consumers) = (Vec::new(), Vec::new());
        for (at, queue) in (0..).zip(&queues) {
            for producer in 0..PRODUCERS {
                let (left, first) = (&left, (at * PRODUCERS + producer) * MESSAGES);
                producers.push(scope.spawn(move || {
                    (first..first + MESSAGES).for_each(|number| put(queue, number));
                    if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                        queue.close().expect("sound");
                    }
                }));
                consumers.push(scope.spawn(move || {
                    let all: Vec<u64> = std::iter::from_fn(|| take(queue)).collect();
                    let mut last = BTreeMap::new();
                    for number in &all {
                        let before = last.insert(number / MESSAGES, *number);
                        assert!(before.is_none_or(|before| before < *number), "out of order");
                    }
                    all
                }));
            }
        }
        // Joined one by one: the sanitizer sees a join, but not how a scope waits for the threads
        // that remain.
        for producer in producers {
            producer.join().expect("no panic");
        }
        let joined = consumers
            .into_iter()
            .map(|one| one.join().expect("no panic"));
        joined.flatten().collect()
    });
    let mut taken = taken;
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..PRODUCERS * 2 * MESSAGES));
    drop(queues);
    let stats = sessions[0].stats().expect("sound");
    assert_eq!((stats.descriptors_in_use, stats.bytes_in_use), (0, 0));
}
