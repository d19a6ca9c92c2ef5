//! Takes from another node.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use shoal_lane::client::{Cancel, Error, Loss, Target};
use shoal_shm::Want;
use shoal_shm::blocking::Deadline;
use shoal_shm::session::Shortage;

use crate::processes::*;
use crate::support::*;

// Messages that arrive.

#[test]
fn a_take_returns_the_messages_that_were_put_and_they_are_gone_once_kept() {
    let (node, queue, relay) = relayed(0, Cut::Never);
    let client = relay.client();
    let messages: Vec<Vec<u8>> = [4, 60, 209, 40_000, 3 << 20, 1000]
        .into_iter()
        .enumerate()
        .map(|(number, length)| message(u32::try_from(number).expect("small"), length))
        .collect();
    put_here(&queue, &messages);
    assert_eq!(take_and_keep(&client, 1), messages[..1]);
    let taken = take_from(&client, 10, Deadline::Now).expect("they are there");
    assert!(bytes_of(&taken) == messages[1..]);
    let labels: Vec<_> = taken
        .messages
        .iter()
        .map(|one| {
            (
                one.item.weight,
                one.item.kind,
                one.item.sender,
                one.item.redelivered,
            )
        })
        .collect();
    assert_eq!(labels, [(1, 1, 7, false); 5]);
    assert!(taken.keep(&mut || true).expect("not interrupted"));
    eventually("they are settled", || is_all_settled(&node));
    assert_eq!((relay.made(), client.idle_connections()), (1, 1));
}

#[test]
fn a_batch_is_taken_by_its_weight() {
    let (_node, queue, relay) = relayed(0, Cut::Never);
    put_here(&queue, &numbered(5, 9));
    let client = relay.client();
    let cancel = Cancel::default();
    let take = |target_weight, least| {
        let want = Want::Weight {
            target: target_weight,
            least,
        };
        client.take(&target(b"q"), want, Deadline::Now, &cancel, &mut || true)
    };
    let taken = take(3, None).expect("they are there");
    assert_eq!(numbers_of(&taken), [0, 1, 2]);
    assert!(taken.keep(&mut || true).expect("not interrupted"));
    let error = take(3, None).expect_err("two are left");
    let light = Shortage::Weight { held: 2, bound: 3 };
    assert!(matches!(error, Error::Full(why) if why == light), "{error}");
    assert_eq!(numbers_of(&take(3, Some(2)).expect("enough")), [3, 4]);
}

#[test]
fn messages_that_are_not_kept_go_back_at_once() {
    let (node, queue, relay) = relayed(0, Cut::Never);
    put_here(&queue, &numbered(1, 50_000));
    let client = relay.client();
    take_from(&client, 1, LATER)
        .expect("it is there")
        .give_back();
    eventually("it is back", || queue.len() == 1);
    drop(take_from(&client, 1, LATER).expect("it is there"));
    eventually("it is back", || queue.len() == 1);
    let taken = take_from(&client, 1, LATER).expect("it is there");
    assert!(taken.messages[0].item.redelivered);
    assert!(taken.keep(&mut || true).expect("not interrupted"));
    eventually("it is settled", || is_all_settled(&node));
    assert_eq!(relay.made(), 1);
}

// Takes that fail.

#[test]
fn a_take_that_finds_nothing_says_so_at_once_or_at_its_deadline() {
    let (_node, queue, relay) = relayed(0, Cut::Never);
    let client = relay.client();
    let error = take_from(&client, 1, Deadline::Now).expect_err("empty");
    assert!(matches!(error, Error::Full(Shortage::Empty)), "{error}");
    let error = take_from(&client, 1, Deadline::After(BRIEF)).expect_err("empty");
    assert!(matches!(error, Error::Timeout(Shortage::Empty)), "{error}");
    put_here(&queue, &numbered(1, 9));
    queue.close().expect("sound");
    assert_eq!(take_and_keep(&client, 5), numbered(1, 9));
    let error = take_from(&client, 1, LATER).expect_err("closed");
    assert!(matches!(&error, Error::Closed(text) if text.contains("closed and empty")));
    assert_eq!((relay.made(), client.idle_connections()), (1, 1));
}

#[test]
fn a_queue_with_another_bound_is_named() {
    let (_node, _queue, relay) = relayed(0, Cut::Never);
    let other = Target {
        maxsize: Some(3),
        ..target(b"q")
    };
    let client = relay.client();
    let (want, cancel) = (Want::Count(1), Cancel::default());
    let taken = client.take(&other, want, LATER, &cancel, &mut || true);
    let error = taken.expect_err("it has none");
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("maxsize=0")),
        "{error}"
    );
}

#[test]
fn the_hook_is_called_in_a_wait_and_ends_it_and_takes_nothing() {
    let (node, queue, relay) = relayed(0, Cut::Never);
    let client = relay.client();
    let called = AtomicU32::new(0);
    let mut hook = || called.fetch_add(1, Ordering::SeqCst) < 2;
    let (want, cancel) = (Want::Count(1), Cancel::default());
    let taken = client.take(&target(b"q"), want, LATER, &cancel, &mut hook);
    assert!(matches!(
        taken.expect_err("the hook ends it"),
        Error::Interrupted
    ));
    assert_eq!(called.load(Ordering::SeqCst), 3);
    assert_eq!(client.idle_connections(), 0, "its connection is dropped");
    put_here(&queue, &numbered(1, 9));
    eventually("the wait ends", || node.server.usage().connections == 0);
    assert_eq!(take_all(&queue), numbered(1, 9));
}

// Connections that are cut.

#[test]
fn single_takes_over_random_cuts_get_each_message_once_and_in_order() {
    let cuts = [Cut::random(1, 2000), Cut::replies(2, 2000)];
    for cut in cuts {
        let (node, queue, relay) = relayed(0, cut);
        let messages = numbered(1000, 60);
        put_here(&queue, &messages);
        let client = relay.client();
        for expected in &messages {
            assert!(take_and_keep(&client, 1) == [expected.as_slice()]);
        }
        assert!(relay.cuts() > 50, "{} cuts", relay.cuts());
        drop(take_from(&client, 1, Deadline::Now).expect_err("empty"));
        assert!(is_all_settled(&node));
    }
}

#[test]
fn long_messages_over_random_cuts_are_whole() {
    let (_node, queue, relay) = relayed(0, Cut::replies(3, 6 << 20));
    let messages = numbered(30, 1 << 20);
    let client = relay.client();
    thread::scope(|scope| {
        scope.spawn(|| put_here(&queue, &messages));
        let mut taken = Vec::new();
        while taken.len() < messages.len() {
            taken.append(&mut take_and_keep(&client, 3));
        }
        assert!(taken == messages);
    });
    assert!(relay.cuts() > 2, "{} cuts", relay.cuts());
}

#[test]
fn a_take_that_waits_goes_on_after_a_cut() {
    let (node, queue, relay) = relayed(0, Cut::Never);
    let client = relay.client();
    thread::scope(|scope| {
        let taking = scope.spawn(|| take_and_keep(&client, 1));
        for _ in 0..3 {
            thread::sleep(BRIEF);
            relay.cut();
        }
        put_here(&queue, &numbered(2, 9));
        assert_eq!(taking.join().expect("no panic"), numbered(1, 9));
    });
    assert_eq!(queue.len(), 1, "once");
    assert_eq!(node.server.usage().streams, 1, "on the same stream");
}

#[test]
fn messages_are_kept_after_a_cut_in_between() {
    let (node, queue, relay) = relayed(0, Cut::Never);
    put_here(&queue, &numbered(2, 9));
    let client = relay.client();
    let taken = take_from(&client, 1, LATER).expect("it is there");
    relay.cut();
    eventually("the server has noticed", || {
        node.server.usage().connections == 0
    });
    assert!(taken.keep(&mut || true).expect("not interrupted"));
    assert_eq!(take_and_keep(&client, 1), [message(1, 9)]);
    eventually("both are settled", || is_all_settled(&node));
}

#[test]
fn a_confirmation_that_comes_too_late_is_refused_and_the_message_comes_again() {
    let node = Node::forgetful();
    let queue = node.queue(b"q", 0);
    let relay = Relay::new(node.server.address(), Cut::Never);
    put_here(&queue, &numbered(1, 9));
    let client = relay.client();
    let taken = take_from(&client, 1, LATER).expect("it is there");
    relay.cut();
    eventually("it went back", || queue.len() == 1);
    assert!(!taken.keep(&mut || true).expect("not interrupted"));
    let again = take_from(&client, 1, LATER).expect("it is there");
    assert!(again.messages[0].item.redelivered);
}

#[test]
fn a_take_whose_stream_was_forgotten_asks_again() {
    let node = Node::forgetful();
    let queue = node.queue(b"q", 0);
    let relay = Relay::new(node.server.address(), Cut::Never);
    let client = relay.client();
    thread::scope(|scope| {
        let taking = scope.spawn(|| take_and_keep(&client, 1));
        eventually("it waits", || node.server.usage().streams == 1);
        thread::sleep(BRIEF);
        relay.set_refuses(true);
        relay.cut();
        eventually("it is forgotten", || node.server.usage().streams == 0);
        put_here(&queue, &numbered(1, 9));
        relay.set_refuses(false);
        assert_eq!(taking.join().expect("no panic"), numbered(1, 9));
    });
}

#[test]
fn another_server_at_the_address_is_named() {
    let (_node, _queue, relay) = relayed(0, Cut::Never);
    let other = Node::new();
    let client = relay.client();
    put(&client, b"q", &[0]).expect("room");
    assert_eq!(take_and_keep(&client, 1), [[0]]);
    thread::scope(|scope| {
        let taking = scope.spawn(|| take_from(&client, 1, LATER).expect_err("another server"));
        thread::sleep(BRIEF);
        relay.set_target(other.server.address());
        relay.cut();
        let error = taking.join().expect("no panic");
        let found = Loss::OtherServer;
        assert_eq!(*loss_of(&error), found);
        assert_eq!(error.to_string(), format!("{}: {found}", relay.address));
    });
}

#[test]
fn messages_given_back_over_cuts_are_never_lost() {
    let (node, queue, relay) = relayed(0, Cut::random(5, 400));
    put_here(&queue, &numbered(3, 60));
    let client = relay.client();
    for _ in 0..300 {
        take_from(&client, 1, LATER).expect("it comes").give_back();
    }
    let mut left = Vec::new();
    while left.len() < 3 {
        left.append(&mut take_and_keep(&client, 3));
    }
    left.sort();
    assert_eq!(left, numbered(3, 60));
    drop(take_from(&client, 1, Deadline::Now).expect_err("empty"));
    assert!(is_all_settled(&node));
    assert!(relay.cuts() > 50, "{} cuts", relay.cuts());
}

// Leases.

#[test]
fn leases_are_kept_and_ended_over_cuts() {
    let (node, queue, relay) = relayed(0, Cut::random(4, 700));
    put_here(&queue, &numbered(200, 60));
    let client = relay.client();
    let mut go_on = || true;
    let mut seen = Vec::new();
    for number in 0..200 {
        let taken = take_from(&client, 1, LATER).expect("it comes");
        seen.append(&mut numbers_of(&taken));
        let lease = taken.lease(&mut go_on).expect("not interrupted");
        let lease = lease.expect("the server knows this client");
        client.renew(&[lease], &mut go_on).expect("it answers");
        if number % 2 == 0 {
            client
                .end_leases(&[lease], false, &mut go_on)
                .expect("it answers");
        }
    }
    assert!(seen == (0..200).collect::<Vec<_>>(), "once and in order");
    assert_eq!(node.server.usage().leases, 100);
    for lease in 0..200 {
        // Those of even numbers have ended.
        client
            .end_leases(&[lease], true, &mut go_on)
            .expect("it answers");
    }
    let back: Vec<_> = (0..100).map(|half| message(2 * half + 1, 60)).collect();
    assert!(take_and_keep(&client, 200) == back);
    // The confirmation that was lost with the last connection is repeated before this request.
    drop(take_from(&client, 1, Deadline::Now).expect_err("empty"));
    assert!(is_all_settled(&node));
    assert!(relay.cuts() > 20, "{} cuts", relay.cuts());
}

#[test]
fn a_lease_that_is_not_answered_is_none() {
    let (_node, queue, relay) = relayed(0, Cut::Never);
    let client = client_with(relay.address, |limits| limits.reconnect = BRIEF * 10);
    put_here(&queue, &numbered(1, 9));
    let taken = take_from(&client, 1, LATER).expect("it is there");
    relay.set_down(true);
    let lease = taken.lease(&mut || true).expect("not interrupted");
    assert!(lease.is_none());
    relay.set_down(false);
}

#[test]
fn leases_of_a_client_that_is_not_heard_of_go_back() {
    let node = Node::limited(|limits| limits.lease = Duration::ZERO);
    let queue = node.queue(b"q", 0);
    put_here(&queue, &numbered(1, 9));
    let client = node.client();
    let taken = take_from(&client, 1, LATER).expect("it is there");
    let lease = taken.lease(&mut || true).expect("not interrupted");
    eventually("it is back", || queue.len() == 1);
    let lease = lease.expect("it was in time");
    client
        .end_leases(&[lease], false, &mut || true)
        .expect("it answers");
    assert_eq!(queue.len(), 1);
}

// Clients that take long, stop and die.

#[test]
fn messages_stay_lent_to_a_client_that_takes_long() {
    let node = Node::limited(|limits| limits.idle = Duration::from_millis(1));
    let queue = node.queue(b"q", 0);
    let relay = Relay::new(node.server.address(), Cut::Never);
    put_here(&queue, &numbered(1, 9));
    let client = relay.client();
    let taken = take_from(&client, 1, LATER).expect("it is there");
    thread::sleep(BRIEF);
    assert_eq!(node.server.usage().connections, 1);
    assert!(taken.keep(&mut || true).expect("not interrupted"));
    eventually("it is idle now", || node.server.usage().connections == 0);
    assert!(is_all_settled(&node));
}

#[test]
fn messages_that_killed_consumers_had_not_noted_come_again() {
    let node = Node::limited(|limits| limits.apart = Duration::ZERO);
    let queue = node.queue(b"q", 0);
    put_here(&queue, &numbered(20_000, 40));
    let mut seen = Vec::new();
    for round in 0..6 {
        let mut consumer = Process::start("consumer", node.server.address());
        eventually("it takes", || consumer.noted().len() > 20 + 17 * round);
        consumer.kill();
        eventually("it is forgotten", || node.server.usage().streams == 0);
        seen.append(&mut consumer.noted());
    }
    let client = node.client();
    while let Ok(taken) = take_from(&client, 1000, Deadline::Now) {
        seen.append(&mut numbers_of(&taken));
        assert!(taken.keep(&mut || true).expect("not interrupted"));
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert!(
        seen == (0..20_000).collect::<Vec<_>>(),
        "{} of 20,000",
        seen.len()
    );
    // One that was noted may have been killed before it confirmed.
    assert!(count - seen.len() <= 6, "{} doubled", count - seen.len());
}

#[test]
fn a_consumer_that_is_stopped_in_a_wait_takes_one_message_and_goes_on() {
    let (_node, queue, relay) = relayed(0, Cut::Never);
    let consumer = Process::start("consumer", relay.address);
    for number in 0..3 {
        eventually("it waits", || {
            consumer.noted().len() == 2 * number && relay.made() == 1
        });
        thread::sleep(BRIEF);
        consumer.stop();
        put_here(&queue, &numbered(2, 9));
        eventually("it has one", || queue.len() == 1);
        thread::sleep(BRIEF * 3);
        assert_eq!((queue.len(), consumer.noted().len()), (1, 2 * number));
        consumer.signal(Signal::CONT);
        eventually("it goes on", || consumer.noted().len() == 2 * number + 2);
    }
    assert_eq!(relay.made(), 1);
}

#[test]
fn a_take_from_a_server_that_stays_stopped_ends_after_its_deadline() {
    let far = FarNode::start();
    let client = client_with(far.address, |limits| limits.late = BRIEF);
    put(&client, b"q", b"first").expect("room");
    far.process.stop();
    let error = take_from(&client, 1, Deadline::After(BRIEF)).expect_err("it is stopped");
    assert_eq!(*loss_of(&error), Loss::Silent);
    far.process.signal(Signal::CONT);
    // It sees that the client has gone, and takes nothing for it.
    let other = client_of(far.address);
    let taken = take_from(&other, 1, LATER).expect("it is there");
    assert!(!taken.messages[0].item.redelivered);
}
