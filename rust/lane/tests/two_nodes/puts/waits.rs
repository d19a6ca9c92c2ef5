//! Puts that wait, and what may happen meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use shoal_lane::client::{Error, Loss};
use shoal_lane::server;
use shoal_shm::blocking::Deadline;

use crate::support::*;

/// Longer than several slices of a wait.
const SLICES: Duration = Duration::from_millis(350);

#[test]
fn a_wait_of_several_slices_keeps_its_connection() {
    let (_node, queue, relay) = relayed(1, Cut::Never);
    let client = relay.client();
    put(&client, b"q", b"first").expect("room");
    for length in [4, 5000] {
        thread::scope(|scope| {
            let putting = scope.spawn(|| put(&client, b"q", &message(1, length)));
            thread::sleep(SLICES);
            wait_and_take(&queue);
            putting.join().expect("no panic").expect("room comes");
        });
    }
    assert_eq!(relay.made(), 1);
}

#[test]
fn the_hook_is_called_in_a_wait_and_ends_it() {
    let node = Node::new();
    let (client, queue) = (node.client(), node.queue(b"q", 1));
    put(&client, b"q", b"first").expect("room");
    let called = AtomicU32::new(0);
    for bytes in [message(1, 4), message(1, 32 << 20)] {
        called.store(0, Ordering::SeqCst);
        let parts = [bytes.as_slice()];
        let mut hook = || called.fetch_add(1, Ordering::SeqCst) < 2;
        let failed = client.put(&target(b"q"), &parcel(&parts), LATER, &mut hook);
        let failed = failed.expect_err("the hook ends it");
        assert!(matches!(failed.error, Error::Interrupted));
        assert!(failed.error.is_outcome_known() && failed.done == 0);
        assert_eq!(called.load(Ordering::SeqCst), 3);
        assert_eq!(client.idle_connections(), 0, "its connection is dropped");
    }
    eventually("the waits at the server end", || {
        node.server.usage().connections == 0
    });
    assert_eq!(take_all(&queue), [b"first"]);
    put(&client, b"q", b"next").expect("room");
    assert_eq!(take_all(&queue), [b"next"]);
}

#[test]
fn a_long_put_that_waits_longer_than_the_kernel_does_for_a_peer_is_put_once() {
    // Its bytes fill the buffers of both kernels, and the server reads none of them: the kernel of
    // the client takes that for a peer that has gone, and ends the connection.
    let node = Node::new();
    let queue = node.queue(b"q", 1);
    let client = client_with(node.server.address(), |limits| {
        limits.peer_timeout = Duration::from_millis(300);
    });
    put(&client, b"q", b"first").expect("room");
    let long = message(1, 32 << 20);
    thread::scope(|scope| {
        let putting = scope.spawn(|| put(&client, b"q", &long));
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(wait_and_take(&queue), b"first");
        assert!(wait_and_take(&queue) == long);
        putting.join().expect("no panic").expect("room comes");
    });
    assert!(queue.is_empty());
}

#[test]
fn a_server_that_does_not_answer_is_given_up_some_time_after_the_deadline() {
    let (_node, queue, relay) = relayed(1, Cut::Never);
    let client = client_with(relay.address, |limits| {
        limits.late = BRIEF;
        // Enough for a connection on a busy machine.
        limits.reconnect = BRIEF * 20;
    });
    put(&client, b"q", b"first").expect("room");
    for deadline in [Deadline::After(BRIEF), Deadline::Now] {
        put(&client, b"q2", b"second").expect("room");
        relay.set_down(true);
        let failed = put_until(&client, b"q", b"late", deadline).expect_err("no answer");
        let Error::Lost { address, why } = failed.error else {
            panic!("{failed}");
        };
        assert_eq!((address, why), (relay.address, Loss::Silent));
        assert_eq!(client.idle_connections(), 0);
        relay.set_down(false);
    }
    assert_eq!(take_all(&queue)[0], b"first");
}

#[test]
fn an_idle_connection_is_closed_and_the_next_put_makes_another() {
    let node = Node::limited(|limits| limits.idle = BRIEF);
    let queue = node.queue(b"q", 0);
    let relay = Relay::new(node.server.address(), Cut::Never);
    let client = relay.client();
    for number in 0..3_u8 {
        put(&client, b"q", &[number]).expect("room");
        eventually("it is closed", || node.server.usage().connections == 0);
    }
    assert_eq!(take_all(&queue), [[0], [1], [2]]);
    assert!(relay.made() >= 3);
    assert_eq!(server::Limits::default().idle, Duration::from_secs(10));
}

#[test]
fn a_server_that_stops_ends_the_waits_of_its_clients_and_puts_nothing_more() {
    let mut node = Node::new();
    let queue = node.queue(b"q", 1);
    let clients = [(); 2].map(|()| {
        // Enough for a connection on a busy machine.
        let reconnect = BRIEF * 20;
        let client = client_with(node.server.address(), |limits| limits.reconnect = reconnect);
        put(&client, b"other", b"x").expect("room");
        client
    });
    let [client, other] = &clients;
    put(client, b"q", b"first").expect("room");
    thread::scope(|scope| {
        let small = scope.spawn(|| put(client, b"q", b"small"));
        let long = scope.spawn(|| put(other, b"q", &message(1, 8 << 20)));
        let _silent = std::net::TcpStream::connect(node.server.address()).expect("it listens");
        eventually("all are there", || node.server.usage().connections == 3);
        // On connections that were there before.
        eventually("they are used", || {
            clients.iter().all(|one| one.idle_connections() == 0)
        });
        thread::sleep(BRIEF);
        node.server.stop();
        assert_eq!(node.server.usage().connections, 0);
        for putting in [small, long] {
            let failed = putting.join().expect("no panic").expect_err("it stopped");
            let why = loss_of(&failed.error);
            assert!(matches!(why, Loss::Gone { .. }), "{why}");
        }
    });
    assert_eq!(take_all(&queue), [b"first"]);
    let failed = put(client, b"q", b"more").expect_err("it stopped");
    assert!(matches!(failed.error, Error::Unreachable { .. }));
}

#[test]
fn strangers_do_not_keep_a_friend_out() {
    let node = Node::new();
    let (client, queue) = (node.client(), node.queue(b"q", 0));
    let connect = || std::net::TcpStream::connect(node.server.address()).expect("it listens");
    let mut strangers = Vec::new();
    for number in 0..300_u32 {
        let mut stranger = connect();
        if number % 3 == 0 {
            use std::io::Write;
            stranger.write_all(b"babble").expect("connected");
        }
        strangers.push(stranger);
        assert!(node.server.usage().strangers <= 64);
    }
    eventually("they are in", || node.server.usage().strangers == 64);
    put(&client, b"q", b"friend").expect("it gets through");
    assert_eq!(take_all(&queue), [b"friend"]);
    eventually("the oldest are dropped", || {
        node.server.usage().connections <= 65
    });
}

#[test]
fn a_caller_that_ends_the_wait_hears_how_many_are_in_the_channel() {
    let (_node, queue, relay) = relayed(3, Cut::Never);
    for length in [9, 4000] {
        let client = relay.client();
        let messages = numbered(5, length);
        let mut stop = || queue.len() < 3;
        let failed = put_many_while(&client, &target(b"q"), &messages, LATER, &mut stop);
        let failed = failed.expect_err("two have no room");
        assert!(matches!(failed.error, Error::Interrupted), "{failed}");
        assert_eq!(failed.done, 3);
        assert_eq!(take_all(&queue), numbered(3, length));
        thread::sleep(SLICES);
        assert!(queue.is_empty(), "the others are not put later");
    }
}

#[test]
fn a_caller_that_ends_the_wait_while_the_link_is_down_hears_that_the_outcome_is_unknown() {
    let (_node, _queue, relay) = relayed(1, Cut::Never);
    let client = client_with(relay.address, |limits| limits.late = BRIEF);
    put(&client, b"q", b"first").expect("room");
    relay.set_down(true);
    let parcel = parcel(&[b"second"]);
    let failed = client.put(&target(b"q"), &parcel, LATER, &mut || false);
    let failed = failed.expect_err("it was ended");
    assert!(!failed.error.is_outcome_known(), "{failed}");
    relay.set_down(false);
}

#[test]
fn a_caller_that_ends_the_wait_for_a_new_connection_hears_that_the_outcome_is_unknown() {
    let (_node, queue, relay) = relayed(1, Cut::Never);
    let client = client_with(relay.address, |limits| limits.late = BRIEF);
    put(&client, b"q", b"first").expect("room");
    let ends = AtomicBool::new(false);
    let mut go_on = || !ends.load(Ordering::SeqCst);
    let parcel = parcel(&[b"second"]);
    thread::scope(|scope| {
        let putting = scope.spawn(|| client.put(&target(b"q"), &parcel, LATER, &mut go_on));
        thread::sleep(BRIEF);
        relay.set_refuses(true);
        relay.cut();
        thread::sleep(BRIEF);
        ends.store(true, Ordering::SeqCst);
        let failed = putting.join().expect("no panic").expect_err("it was ended");
        assert!(!failed.error.is_outcome_known(), "{failed}");
    });
    assert_eq!(queue.len(), 1);
}
