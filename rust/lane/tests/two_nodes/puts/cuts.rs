//! Connections that are cut: nothing is lost, doubled or reordered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use shoal_lane::client::{Error, Loss};
use shoal_shm::blocking::Deadline;

use crate::support::*;

#[test]
fn single_puts_over_random_cuts_are_in_the_channel_once_and_in_order() {
    let (_node, queue, relay) = relayed(0, Cut::random(1, 3000));
    let client = relay.client();
    let messages = numbered(1500, 60);
    for message in &messages {
        put(&client, b"q", message).expect("it goes on");
    }
    assert!(take_all(&queue) == messages);
    assert!(relay.cuts() > 50, "{} cuts", relay.cuts());
}

#[test]
fn chunks_over_random_cuts_and_a_small_queue_are_in_the_channel_once_and_in_order() {
    let (_node, queue, relay) = relayed(7, Cut::random(2, 6000));
    let client = relay.client();
    let lengths = [4, 60, 208, 209, 900];
    let messages: Vec<Vec<u8>> = (0..3000)
        .map(|number| message(number, lengths[number as usize % lengths.len()]))
        .collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for chunk in messages.chunks(100) {
                put_many(&client, &target(b"q"), chunk, LATER).expect("it goes on");
            }
        });
        for expected in &messages {
            assert!(wait_and_take(&queue) == *expected);
        }
    });
    assert!(queue.is_empty());
    assert!(relay.cuts() > 10, "{} cuts", relay.cuts());
}

#[test]
fn long_messages_over_random_cuts_are_whole() {
    let (node, queue, relay) = relayed(4, Cut::random(3, 4 << 20));
    let client = relay.client();
    let messages = numbered(30, 1 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            for message in &messages {
                put(&client, b"q", message).expect("it goes on");
            }
        });
        for expected in &messages {
            assert!(wait_and_take(&queue) == *expected);
        }
    });
    assert!(relay.cuts() > 2, "{} cuts", relay.cuts());
    let usage = node.session.stats().expect("sound");
    assert_eq!(
        (usage.messages, usage.descriptors_in_use),
        (0, 0),
        "no draft is left"
    );
}

#[test]
fn a_link_that_is_cut_inside_each_chunk_gets_it_done() {
    // A chunk has 300 KB: a resend of the whole would never end.
    let (_node, queue, relay) = relayed(0, Cut::Every(20_000));
    let messages = numbered(300, 1000);
    put_many(&relay.client(), &target(b"q"), &messages, LATER).expect("it goes on");
    assert!(take_all(&queue) == messages);
    assert!(relay.cuts() >= 15, "{} cuts", relay.cuts());
}

#[test]
fn a_put_that_waits_goes_on_after_a_cut() {
    let (node, queue, relay) = relayed(1, Cut::Never);
    let client = relay.client();
    put(&client, b"q", b"first").expect("room");
    for length in [4, 5000] {
        let bytes = message(1, length);
        thread::scope(|scope| {
            let putting = scope.spawn(|| put(&client, b"q", &bytes));
            for _ in 0..3 {
                thread::sleep(BRIEF);
                relay.cut();
            }
            wait_and_take(&queue);
            putting.join().expect("no panic").expect("it goes on");
        });
        assert_eq!(queue.len(), 1, "once");
    }
    assert!(relay.made() > 4);
    assert_eq!(node.server.usage().streams, 1, "on the same stream");
}

#[test]
fn a_failure_is_heard_of_after_a_cut() {
    let (_node, queue, relay) = relayed(3, Cut::Never);
    let client = relay.client();
    for length in [9, 1000] {
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(7));
                    relay.cut();
                }
            });
            for _ in 0..10 {
                let failed = put_many(
                    &client,
                    &target(b"q"),
                    &numbered(5, length),
                    Deadline::After(Duration::from_millis(5)),
                );
                let failed = failed.expect_err("no room for all");
                assert!(matches!(failed.error, Error::Timeout(_)), "{failed}");
                assert_eq!(failed.done, 3);
                assert_eq!(take_all(&queue), numbered(3, length));
            }
            ends.store(true, Ordering::SeqCst);
        });
    }
}

#[test]
fn a_put_waits_while_the_link_is_down() {
    let (_node, queue, relay) = relayed(0, Cut::Never);
    let client = relay.client();
    put(&client, b"q", &[0]).expect("room");
    relay.set_down(true);
    thread::scope(|scope| {
        let putting = scope.spawn(|| put(&client, b"q", &[1]));
        thread::sleep(Duration::from_millis(300));
        assert!(!putting.is_finished());
        assert_eq!(queue.len(), 1);
        relay.set_down(false);
        putting.join().expect("no panic").expect("the link is up");
    });
    assert_eq!(take_all(&queue), [[0], [1]]);
}

#[test]
fn a_link_that_is_down_for_ever_ends_a_put_with_an_unknown_outcome() {
    let (node, queue, relay) = relayed(1, Cut::Never);
    let client = client_with(relay.address, |limits| {
        limits.reconnect = Duration::from_millis(300);
    });
    put(&client, b"q", b"first").expect("room");
    thread::scope(|scope| {
        let putting = scope.spawn(|| put(&client, b"q", b"second"));
        eventually("it waits", || node.server.usage().connections == 1);
        thread::sleep(BRIEF);
        relay.set_refuses(true);
        relay.cut();
        let failed = putting.join().expect("no panic").expect_err("no link");
        assert!(matches!(loss_of(&failed.error), Loss::Gone { .. }));
        assert!(!failed.error.is_outcome_known());
        let address = relay.address.to_string();
        assert!(failed.to_string().starts_with(&address), "{failed}");
    });
    assert_eq!(take_all(&queue), [b"first"]);
}

#[test]
fn a_stream_that_the_server_has_forgotten_is_not_put_again() {
    let node = Node::forgetful();
    let queue = node.queue(b"q", 3);
    let relay = Relay::new(node.server.address(), Cut::Never);
    let client = relay.client();
    thread::scope(|scope| {
        let putting = scope.spawn(|| put_many(&client, &target(b"q"), &numbered(5, 9), LATER));
        eventually("some are there", || queue.len() == 3);
        relay.set_refuses(true);
        relay.cut();
        eventually("it is forgotten", || node.server.usage().streams == 0);
        relay.set_refuses(false);
        let failed = putting.join().expect("no panic").expect_err("forgotten");
        assert_eq!(*loss_of(&failed.error), Loss::Forgotten);
        assert!(failed.done <= 3);
    });
    assert_eq!(take_all(&queue), numbered(3, 9), "none of them twice");
    put(&client, b"q", b"next").expect("a new stream");
}

#[test]
fn another_server_at_the_address_gets_nothing_of_what_was_sent_before() {
    let (_node, queue, relay) = relayed(3, Cut::Never);
    let other = Node::new();
    let new = other.queue(b"q", 0);
    let client = relay.client();
    thread::scope(|scope| {
        let putting = scope.spawn(|| put_many(&client, &target(b"q"), &numbered(5, 9), LATER));
        eventually("some are there", || queue.len() == 3);
        relay.set_target(other.server.address());
        relay.cut();
        let failed = putting
            .join()
            .expect("no panic")
            .expect_err("another server");
        assert_eq!(*loss_of(&failed.error), Loss::OtherServer);
    });
    assert!(new.is_empty());
    put(&client, b"q", b"next").expect("a new stream");
    assert_eq!(take_all(&new), [b"next"]);
}
