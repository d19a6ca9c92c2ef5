//! What a put does while nothing goes wrong on the way.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use shoal_lane::client::{Client, Error, Parcel, Target};
use shoal_lane::frame::Policy;
use shoal_lane::handshake::Key;
use shoal_lane::server;
use shoal_shm::Label;
use shoal_shm::blocking::Deadline;
use shoal_shm::session::{Bounds, MemoryPolicy, Shortage};

use crate::support::*;

#[test]
fn a_message_arrives_with_its_bytes_kind_sender_and_weight() {
    let node = Node::new();
    let (client, queue) = (node.client(), node.queue(b"q", 0));
    let long = message(9, 1 << 20);
    for length in [0, 1, 208, 209, 4096, 40_000, 1 << 20] {
        // In as many parts as they lie in.
        let (first, rest) = long[..length].split_at(length / 3);
        let parts = [first, &[], rest];
        let parcel = Parcel {
            kind: 2,
            sender: 77,
            weight: 5,
            parts: &parts,
        };
        let put = client.put(&target(b"q"), &parcel, Deadline::Never, &mut || true);
        put.expect("room");
        let (label, bytes) = take(&queue).expect("a put that returned is in the channel");
        let expected = Label {
            kind: 2,
            sender: 77,
            weight: 5,
        };
        assert_eq!(label, expected);
        assert!(bytes == long[..length], "{length} bytes");
    }
    assert_eq!(client.idle_connections(), 1);
}

#[test]
fn a_put_that_does_not_wait_says_that_the_queue_is_full() {
    let node = Node::new();
    let (client, queue) = (node.client(), node.queue(b"q", 2));
    let failed = put_many(&client, &target(b"q"), &numbered(5, 9), Deadline::Now);
    let failed = failed.expect_err("no room for all");
    let full = Shortage::Messages { held: 2, bound: 2 };
    assert!(matches!(failed.error, Error::Full(shortage) if shortage == full));
    assert_eq!(failed.done, 2);
    for length in [4, 1000] {
        let failed = put_until(&client, b"q", &message(7, length), Deadline::Now);
        let failed = failed.expect_err("no room");
        assert!(matches!(failed.error, Error::Full(shortage) if shortage == full));
        assert!(failed.error.is_outcome_known());
    }
    assert_eq!(take_all(&queue), numbered(2, 9));
    // The connection goes on, and nothing of what failed is put later.
    put(&client, b"q", b"last").expect("room");
    assert_eq!(take_all(&queue), [b"last"]);
}

#[test]
fn a_put_gives_up_at_its_deadline_and_says_how_many_are_in_the_channel() {
    let node = Node::new();
    let (client, queue) = (node.client(), node.queue(b"q", 4));
    for length in [9, 5000] {
        let failed = put_many(
            &client,
            &target(b"q"),
            &numbered(10, length),
            Deadline::After(BRIEF),
        );
        let failed = failed.expect_err("no room for all");
        assert!(matches!(
            failed.error,
            Error::Timeout(Shortage::Messages { .. })
        ));
        assert_eq!(failed.done, 4);
        assert_eq!(take_all(&queue), numbered(4, length));
    }
    let past = std::time::Instant::now();
    put_until(&client, b"q", b"in", Deadline::At(past)).expect("room");
    assert_eq!(take_all(&queue), [b"in"]);
}

#[test]
fn a_put_waits_for_room_and_those_before_it_are_in_the_channel() {
    let node = Node::new();
    let (client, queue) = (node.client(), node.queue(b"q", 4));
    for length in [9, 5000] {
        let messages = numbered(50, length);
        thread::scope(|scope| {
            let putting = scope.spawn(|| {
                put_many(&client, &target(b"q"), &messages, LATER).expect("room comes");
            });
            eventually("it waits", || queue.len() == 4);
            for expected in &messages {
                assert!(wait_and_take(&queue) == *expected);
            }
            putting.join().expect("no panic");
        });
    }
    assert!(queue.is_empty());
}

#[test]
fn the_policies_make_room_or_refuse() {
    let node = Node::new();
    let (client, queue) = (node.client(), node.queue(b"q", 3));
    for (deadline, length) in [
        (Deadline::Now, 9),
        (Deadline::Never, 9),
        (Deadline::Never, 3000),
    ] {
        let with = |policy| Target {
            policy,
            ..target(b"q")
        };
        let put =
            |policy, number| put_many(&client, &with(policy), &[message(number, length)], deadline);
        for number in 0..3 {
            put(Policy::Error, number).expect("room");
        }
        let failed = put(Policy::Error, 3).expect_err("no room");
        assert!(matches!(
            failed.error,
            Error::Full(Shortage::Messages { .. })
        ));
        put(Policy::DropOldest, 4).expect("it makes room");
        let left: Vec<_> = [1, 2, 4].map(|number| message(number, length)).into();
        assert_eq!(take_all(&queue), left);
        for number in 0..3 {
            put(Policy::KeepLatest, number).expect("room");
        }
        put(Policy::KeepLatest, 5).expect("it makes room");
        assert_eq!(take_all(&queue), [message(5, length)]);
    }
}

#[test]
fn a_policy_drops_messages_when_memory_is_used_up_by_the_full_queue() {
    let node = Node::small(4 << 20, MemoryPolicy::Block);
    let (client, queue) = (node.client(), node.queue(b"q", 2));
    let with = Target {
        policy: Policy::DropOldest,
        ..target(b"q")
    };
    for number in 0..8 {
        let long = [message(number, 1_800_000)];
        put_many(&client, &with, &long, Deadline::Never).expect("the oldest makes room");
    }
    assert!(take_all(&queue) == [6, 7].map(|number| message(number, 1_800_000)));
}

#[test]
fn a_closed_queue_refuses_also_puts_that_wait() {
    for length in [4, 5000] {
        let node = Node::new();
        let (client, queue) = (node.client(), node.queue(b"q", 1));
        put(&client, b"q", b"first").expect("room");
        thread::scope(|scope| {
            let putting = scope.spawn(|| put(&client, b"q", &message(1, length)));
            thread::sleep(BRIEF);
            queue.close().expect("sound");
            let failed = putting.join().expect("no panic").expect_err("closed");
            assert!(matches!(failed.error, Error::Closed(_)), "{failed}");
        });
        assert_eq!(take_all(&queue), [b"first"]);
        let failed = put_many(&client, &target(b"q"), &numbered(3, 4), Deadline::Never);
        let failed = failed.expect_err("closed");
        assert!(matches!(failed.error, Error::Closed(_)) && failed.done == 0);
    }
}

#[test]
fn a_message_that_never_fits_into_the_session_is_refused() {
    let node = Node::small(2 << 20, MemoryPolicy::Block);
    let failed = put(&node.client(), b"q", &message(1, 3 << 20)).expect_err("it never fits");
    assert!(matches!(failed.error, Error::TooLarge(_)), "{failed}");
}

#[test]
fn a_message_over_the_bound_of_its_queue_is_put_when_the_queue_is_empty() {
    let node = Node::small(2 << 20, MemoryPolicy::Block);
    let client = node.client();
    let bounds = Bounds {
        maxsize: None,
        max_bytes: Some(100),
    };
    let bounded = node.session.queue(b"bounded", bounds).expect("room");
    put(&client, b"bounded", &message(1, 1)).expect("it fits");
    thread::scope(|scope| {
        let putting = scope.spawn(|| put(&client, b"bounded", &message(2, 101)));
        thread::sleep(BRIEF);
        assert!(take(&bounded).is_some());
        putting
            .join()
            .expect("no panic")
            .expect("the queue is empty");
    });
    assert_eq!(bounded.len(), 1);
}

#[test]
fn memory_that_is_used_up_is_an_error_if_the_session_says_so() {
    let node = Node::small(2 << 20, MemoryPolicy::Error);
    let (client, queue) = (node.client(), node.queue(b"q", 0));
    let long = message(1, 1 << 20);
    let many = vec![long; 4];
    let failed = put_many(&client, &target(b"q"), &many, Deadline::Never);
    let failed = failed.expect_err("no memory");
    assert!(matches!(failed.error, Error::Memory(_)), "{failed}");
    assert_eq!(take_all(&queue).len(), failed.done);
}

#[test]
fn a_put_waits_for_memory_if_the_session_says_so() {
    let node = Node::small(2 << 20, MemoryPolicy::Block);
    let (client, queue) = (node.client(), node.queue(b"q", 0));
    let long = message(1, 1 << 20);
    let many = vec![long.clone(); 4];
    let failed = put_many(&client, &target(b"q"), &many, Deadline::Now);
    let failed = failed.expect_err("no memory");
    assert!(
        matches!(failed.error, Error::Full(Shortage::Memory { .. })),
        "{failed}"
    );
    let there = take_all(&queue).len();
    assert_eq!(there, failed.done);
    thread::scope(|scope| {
        let putting = scope.spawn(|| put_many(&client, &target(b"q"), &many, LATER));
        for _ in 0..4 {
            assert!(wait_and_take(&queue) == long);
        }
        putting.join().expect("no panic").expect("memory comes");
    });
}

#[test]
fn other_bounds_and_keys_that_are_too_long_are_invalid() {
    let node = Node::new();
    let client = node.client();
    let _queue = node.queue(b"q", 5);
    let other = Target {
        maxsize: Some(6),
        ..target(b"q")
    };
    let invalid = |target: &Target<'_>, parcel: &Parcel<'_>| {
        let failed = client.put(target, parcel, Deadline::Now, &mut || true);
        let failed = failed.expect_err("not valid");
        assert!(matches!(failed.error, Error::Invalid(_)), "{failed}");
        failed.to_string()
    };
    let plain = Parcel::default();
    assert!(invalid(&other, &plain).contains('6'));
    let text = invalid(&target(&vec![0; 65_536]), &plain);
    assert_eq!(text, "length of the key=65536: expected at most 65535");
    let heavy = Parcel {
        weight: 1 << 63,
        ..plain
    };
    assert!(invalid(&target(b"q"), &heavy).starts_with("weight="));
    // The server opens the queue with the bounds of the first put.
    let new = Target {
        key: b"new",
        maxsize: Some(1),
        ..Target::default()
    };
    put_many(&client, &new, &numbered(1, 4), Deadline::Now).expect("room");
    let failed = put_many(&client, &new, &numbered(1, 4), Deadline::Now);
    assert!(matches!(failed.expect_err("full").error, Error::Full(_)));
}

#[test]
fn a_server_with_another_key_is_refused_and_gets_nothing() {
    let node = Node::new();
    let queue = node.queue(b"q", 0);
    let address = node.server.address();
    let other = Client::new(address, Key::new([8; 32]), patient_client(), None);
    let failed = put(&other, b"q", b"secret").expect_err("another key");
    assert!(matches!(failed.error, Error::Refused { .. }));
    let text = format!("{address}: the peer does not know the key of this job");
    assert_eq!(failed.to_string(), text);
    assert!(queue.is_empty());
}

#[test]
fn a_server_that_is_not_there_is_unreachable_by_its_address() {
    let nowhere: SocketAddr = (Ipv4Addr::LOCALHOST, 1).into();
    let client = client_with(nowhere, |limits| limits.reconnect = BRIEF);
    let failed = put(&client, b"q", b"x").expect_err("nothing listens");
    assert!(matches!(failed.error, Error::Unreachable { .. }));
    assert!(failed.error.is_outcome_known());
    assert!(
        failed
            .to_string()
            .starts_with("127.0.0.1:1 could not be reached within ")
    );
}

#[test]
fn no_more_queues_are_kept_open_than_the_limit() {
    let node = Node::limited(|limits| limits.queues = 8);
    let client = node.client();
    for round in 0..2_u8 {
        for number in 0..40_u8 {
            put(&client, &[number], &[round]).expect("room");
            assert!(node.server.usage().queues <= 8);
        }
    }
    assert_eq!(server::Limits::default().queues, 1024);
    for number in 0..40_u8 {
        let queue = node.session.queue(&[number], Bounds::default());
        assert_eq!(take_all(&queue.expect("it exists")), [[0], [1]]);
    }
}

#[test]
fn several_threads_use_a_client_at_once() {
    let node = Node::new();
    let (client, queue) = (node.client(), node.queue(b"q", 0));
    thread::scope(|scope| {
        for producer in 0..6_u32 {
            let client = &client;
            scope.spawn(move || {
                for number in 0..100 {
                    put(client, b"q", &message(producer * 1000 + number, 8)).expect("room");
                }
            });
        }
    });
    let mut next = [0; 6];
    for bytes in take_all(&queue) {
        let number = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let producer = (number / 1000) as usize;
        assert_eq!(number % 1000, next[producer], "the order of each producer");
        next[producer] += 1;
    }
    assert_eq!(next, [100; 6]);
}
