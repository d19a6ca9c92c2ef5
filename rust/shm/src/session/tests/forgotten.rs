//! Queues without users become those of other keys, and no message goes astray.

use std::sync::Arc;

use super::messages::{Kind, Received, drain, put, take};
use super::{open, session};
use crate::ring::take::Keep;
use crate::session::directory::tests::bounds;
use crate::session::{Error, Session, SessionQueue};

const MANY: u32 = 1000;

fn queues(session: &Session) -> u64 {
    session.stats().expect("sound").queues
}

/// Uses many keys, one after the other, each with one message.
fn use_others(session: &Arc<Session>) {
    for number in 0..u64::from(MANY) {
        let queue = open(session, &number.to_le_bytes());
        assert_eq!(put(&queue, number, Kind::Inline).expect("sound"), Ok(()));
        assert_eq!(drain(&queue).expect("sound"), [(number, false)]);
    }
}

fn lease(queue: &SessionQueue) -> Received {
    let mut leased = take(queue, 1, Keep::Lease, |_| ()).expect("sound");
    leased.pop().expect("one")
}

#[test]
fn a_key_that_comes_back_is_a_new_queue() {
    let (_folder, session) = session(63);
    let queue = session.queue(b"k", bounds(3)).expect("room");
    assert_eq!(put(&queue, 1, Kind::Inline).expect("sound"), Ok(()));
    assert_eq!(drain(&queue).expect("sound"), [(1, false)]);
    let stats = queue.stats().expect("sound");
    assert_eq!((stats.puts, stats.gets), (1, 1));
    let other = session.queue(b"k", bounds(4));
    assert!(matches!(other, Err(Error::OtherBounds { .. })));
    drop(queue);
    // Queues with the same bounds take its place.
    for number in 0..MANY {
        session
            .queue(&number.to_le_bytes(), bounds(3))
            .expect("room");
    }
    let queue = session.queue(b"k", bounds(4)).expect("room");
    assert_eq!((queue.maxsize(), queue.len()), (4, 0));
    drop(queue);
    let queue = open(&session, &5_u32.to_le_bytes());
    let stats = queue.stats().expect("sound");
    assert_eq!((stats.puts, stats.gets, stats.messages), (0, 0, 0));
}

#[test]
fn a_queue_with_messages_or_open_elsewhere_is_kept() {
    let (_folder, session) = session(63);
    let other = session.again().expect("there is a place");
    let elsewhere = open(&other, b"elsewhere");
    drop(open(&session, b"elsewhere"));
    let full = open(&session, b"full");
    assert_eq!(put(&full, 7, Kind::Inline).expect("sound"), Ok(()));
    drop(full);
    let closed = open(&session, b"closed");
    closed.close().expect("sound");
    drop(closed);
    use_others(&session);
    assert_eq!(open(&session, b"elsewhere").index(), elsewhere.index());
    assert_eq!(
        drain(&open(&session, b"full")).expect("sound"),
        [(7, false)]
    );
    assert!(open(&session, b"closed").is_closed().expect("sound"));
    let index = elsewhere.index();
    drop(elsewhere);
    let later: Vec<_> = (0..100_u16)
        .map(|number| open(&session, &number.to_le_bytes()).index())
        .collect();
    assert!(
        later.contains(&index),
        "no participant has it open any more"
    );
    other.shut();
}

#[test]
fn a_lease_keeps_its_queue() {
    let (_folder, session) = session(63);
    let queue = open(&session, b"k");
    for number in 0..3 {
        assert_eq!(put(&queue, number, Kind::Block).expect("sound"), Ok(()));
    }
    let [first, second, third] = [lease(&queue), lease(&queue), lease(&queue)];
    let index = queue.index();
    drop(queue);
    use_others(&session);
    let held = first.held.expect("leased");
    assert!(held.give_back().expect("sound"));
    drop(held);
    let queue = open(&session, b"k");
    assert_eq!(queue.index(), index);
    assert_eq!(drain(&queue).expect("sound"), [(0, true)]);
    drop(queue);
    second
        .held
        .expect("leased")
        .acknowledge()
        .expect("not given back");
    use_others(&session);
    assert_eq!(open(&session, b"k").index(), index, "there is a third");
    let held = third.held.expect("leased");
    held.acknowledge().expect("not given back");
    use_others(&session);
    assert_ne!(open(&session, b"k").index(), index, "it is a loan now");
    drop(held);
}

#[test]
fn a_lease_that_was_dropped_comes_back_in_its_own_queue() {
    let (_folder, session) = session(63);
    let other = session.again().expect("there is a place");
    let queue = open(&other, b"k");
    assert_eq!(put(&queue, 1, Kind::Inline).expect("sound"), Ok(()));
    drop(lease(&queue));
    drop(queue);
    use_others(&session);
    other.shut();
    assert_eq!(drain(&open(&session, b"k")).expect("sound"), [(1, true)]);
}

#[test]
fn queues_opened_by_a_process_that_left_are_free() {
    let (_folder, session) = session(63);
    let other = session.again().expect("there is a place");
    let all: Vec<_> = (0..200_u16)
        .map(|number| open(&other, &number.to_le_bytes()))
        .collect();
    other.shut();
    use_others(&session);
    assert_eq!(queues(&session), 200);
    // Another participant may have the index by now, with some queues open.
    let next = session.again().expect("there is a place");
    assert_eq!(next.me(), other.me());
    let kept: Vec<_> = (0..200_u16)
        .map(|number| open(&next, &[&number.to_le_bytes()[..], b"next"].concat()))
        .collect();
    drop(all);
    use_others(&session);
    for queue in &kept {
        let ring = queue.queue().ring();
        assert_eq!(ring.taken(), queue.before(), "no message of another key");
    }
    drop(kept);
    next.shut();
}

#[test]
fn threads_that_open_and_let_go_never_see_the_messages_of_another_key() {
    const THREADS: u64 = 4;
    let (_folder, session) = session(63);
    use_others(&session);
    let work = |thread: u64| {
        let mut random = thread;
        for _ in 0..2000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let key = (random >> 33) % 90;
            let queue = open(&session, format!("race {key}").as_bytes());
            assert_eq!(put(&queue, key, Kind::Inline).expect("sound"), Ok(()));
            // Another thread with the same key may have taken it.
            for one in take(&queue, 1, Keep::Copy, |_| ()).expect("sound") {
                assert_eq!(one.number, key);
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || work(thread));
        }
    });
    let stats = session.stats().expect("sound");
    assert_eq!((stats.messages, stats.descriptors_in_use), (0, 0));
    assert!(stats.queues <= 64 + THREADS, "{}", stats.queues);
}
