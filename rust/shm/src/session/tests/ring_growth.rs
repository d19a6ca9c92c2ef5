//! Rings get memory for their slots when a process first reaches them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::messages::{Kind, drain, put, take};
use super::{open, session};
use crate::failpoint::dies_after;
use crate::ring::put::Refusal;
use crate::ring::take::Keep;
use crate::session::directory::tests::bounds;
use crate::session::{Offer, Session, SessionQueue, folders, queue_table};
use crate::sync::Ordering;

const BACKLOG: u32 = 262_144;
/// Number of slots that a ring with a short key has from the beginning: those in its first page.
const FIRST: u64 = (4096 - 384 - 32 - 128) / 8;

/// Memory of the control segment in bytes.
fn memory(session: &Session) -> u64 {
    let path = Path::new(session.token()).join(folders::CONTROL);
    path.metadata().expect("there").blocks() * 512
}

/// Whether the slot of the next message has memory.
fn has_slot(queue: &SessionQueue) -> bool {
    let ring = queue.queue().ring();
    ring.has_memory(ring.head().wrapping_add(ring.len()))
}

#[test]
fn a_queue_takes_a_page_and_more_only_for_messages() {
    let (_folder, session) = session(BACKLOG);
    let before = memory(&session);
    let keys: Vec<_> = (0..200_u32).map(u32::to_le_bytes).collect();
    let queues: Vec<_> = keys.iter().map(|key| open(&session, key)).collect();
    // The file system may take some memory for itself.
    let pages = |count: u64| count * 4096..count * 4096 + 65_536;
    assert!(pages(200).contains(&(memory(&session) - before)));
    for queue in &queues {
        assert_eq!((queue.bound(), queue.is_empty()), (BACKLOG.into(), true));
        assert!(!queue.is_closed().expect("sound"));
    }
    queues[0].close().expect("sound");
    assert!(pages(200).contains(&(memory(&session) - before)));
    assert_eq!(
        put(&queues[0], 1, Kind::Inline).expect("sound"),
        Err(Refusal::Closed)
    );
}

#[test]
fn it_grows_once_and_is_a_queue_lap_after_lap() {
    let (_folder, session) = session(BACKLOG);
    let queue = session.queue(b"q", bounds(2000)).expect("room");
    let other = session.again().expect("there is a place");
    let consumer = open(&other, b"q");
    let ring = queue.queue().ring();
    assert_eq!(ring.backed(), FIRST);
    let mut steps = vec![FIRST];
    for lap in 0..4_u64 {
        let numbers = lap * 2000..(lap + 1) * 2000;
        for number in numbers.clone() {
            assert_eq!(put(&queue, number, Kind::Inline).expect("sound"), Ok(()));
            if steps.last() != Some(&ring.backed()) {
                steps.push(ring.backed());
            }
        }
        assert_eq!(
            put(&queue, 0, Kind::Inline).expect("sound"),
            Err(Refusal::Full)
        );
        let out = drain(&consumer).expect("sound");
        assert!(out.into_iter().eq(numbers.map(|number| (number, false))));
    }
    assert_eq!(steps, [FIRST, 956, 1980, 2048]);
    drop(consumer);
    other.shut();
}

#[test]
fn a_process_that_dies_while_a_ring_grows_leaves_a_sound_one() {
    let (_folder, session) = session(BACKLOG);
    let mut deaths = 0;
    // Each queue has a ring of its own as long as it is open.
    let mut all = Vec::new();
    for accesses in 0..1000 {
        all.push(open(&session, &accesses.to_string().into_bytes()));
        let queue = &all[accesses];
        let mut number = 0;
        while has_slot(queue) {
            assert_eq!(put(queue, number, Kind::Inline).expect("sound"), Ok(()));
            number += 1;
        }
        assert_eq!(number, FIRST - 1, "one more is for the end");
        let grown = dies_after(accesses as u64, || {
            queue_table::grow(session.control(), queue.index())
        });
        let backed = queue.queue().ring().backed();
        assert!(backed == FIRST || backed == 956, "{backed}");
        assert_eq!(put(queue, number, Kind::Inline).expect("sound"), Ok(()));
        let out = drain(queue).expect("sound");
        assert!(
            out.into_iter()
                .eq((0..=number).map(|number| (number, false)))
        );
        if grown.is_some() {
            break;
        }
        deaths += 1;
    }
    assert!((10..900).contains(&deaths), "{deaths}");
}

/// A message that is given back when there is no memory for its slot is put back by the next
/// recovery, which also gets the memory.
#[test]
fn a_message_that_is_given_back_gets_memory_too() {
    let (_folder, session) = session(BACKLOG);
    let queue = open(&session, b"q");
    let mut number = 0;
    while has_slot(&queue) {
        assert_eq!(put(&queue, number, Kind::Inline).expect("sound"), Ok(()));
        number += 1;
    }
    for one in take(&queue, 1, Keep::Lease, |_| ()).expect("sound") {
        assert!(one.held.expect("leased").give_back().expect("sound"));
    }
    assert_eq!(queue.len(), number - 1);
    let done = session.sweep().expect("sound");
    assert_eq!((done.dead, done.redelivered), (0, 1));
    let out = drain(&queue).expect("sound");
    let expected = (1..number).map(|number| (number, false)).chain([(0, true)]);
    assert!(out.into_iter().eq(expected));
    assert_eq!(session.sweep().expect("sound").recovered, 0);
}

#[test]
fn sizes_in_a_damaged_header_do_no_harm() {
    let (_folder, session) = session(BACKLOG);
    let queue = open(&session, b"q");
    for damage in [0, 1, u64::MAX] {
        queue.queue().ring().set_backed(damage);
        for number in 0..1000 {
            assert_eq!(put(&queue, number, Kind::Inline).expect("sound"), Ok(()));
        }
        let seen = open(&session, b"q");
        assert_eq!(seen.len(), 1000);
        assert_eq!(drain(&seen).expect("sound").len(), 1000);
    }
    let label = crate::ring::descriptor::Label::default();
    assert_eq!(queue.offer(label, b"one").expect("sound"), Offer::Put);
    let used = &session.control().superblock().used.0;
    assert_eq!(used.queues.load(Ordering::Relaxed), 1);
}
