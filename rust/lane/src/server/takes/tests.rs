//! Takes as a client sees them that writes frames of its own.

use std::time::Duration;

use shoal_shm::session::{SessionQueue, Shortage};
use shoal_shm::{Label, Want};

use super::super::Limits;
use super::super::tests::{Node, Raw, eventually, take_all};
use crate::frame::{Item, LeaseName, NEVER, Op, Reply, Request, Status, decode_shortage};

/// The bytes of a request about a take.
fn frame(op: Op, seq: u64, want: Want, deadline: Option<u64>) -> Vec<u8> {
    let (request, payload) = Request::of_take(op, seq, want);
    let key: &[u8] = if op == Op::Take { b"q" } else { b"" };
    let request = Request {
        waits: deadline.is_some(),
        deadline: deadline.unwrap_or(0),
        key_length: u32::try_from(key.len()).expect("short"),
        ..request
    };
    [&request.encode(), key, &payload].concat()
}

fn take(seq: u64, count: u32) -> Vec<u8> {
    frame(Op::Take, seq, Want::Count(count), Some(NEVER))
}

fn settle(op: Op, seq: u64) -> Vec<u8> {
    frame(op, seq, Want::Count(0), None)
}

/// Reads a reply with items: the number of the request, and each item with its payload.
fn items(raw: &Raw) -> (u64, Vec<(Item, Vec<u8>)>) {
    let reply = Reply::decode(&raw.receive::<{ Reply::SIZE }>()).expect("valid");
    assert_eq!(reply.status, Status::Done);
    let mut length = 0;
    let each = (0..reply.count).map(|_| {
        let item = Item::decode(&raw.receive::<{ Item::SIZE }>()).expect("valid");
        let bytes = (0..item.length).map(|_| raw.receive::<1>()[0]).collect();
        length += Item::SIZE as u64 + item.length;
        (item, bytes)
    });
    let found: Vec<_> = each.collect();
    assert_eq!(length, reply.length);
    (reply.seq, found)
}

/// The payloads of a reply, of a byte each.
fn numbers(raw: &Raw) -> (u64, Vec<u8>) {
    let (seq, found) = items(raw);
    (seq, found.into_iter().map(|(_, bytes)| bytes[0]).collect())
}

fn shortage(raw: &Raw) -> (Status, Shortage) {
    let reply = Reply::decode(&raw.receive::<{ Reply::SIZE }>()).expect("valid");
    let body = raw.receive::<{ crate::frame::SHORTAGE }>();
    (reply.status, decode_shortage(&body).expect("valid"))
}

fn put(queue: &SessionQueue, number: u8) {
    let label = Label {
        weight: 0,
        kind: 1,
        sender: 77,
    };
    queue.offer(label, &[number]).expect("sound");
}

fn lent(node: &Node) -> usize {
    node.server.usage().lent
}

fn in_use(node: &Node) -> u64 {
    node.session.usage().descriptors
}

#[test]
fn a_message_given_back_is_delivered_again() {
    let node = Node::patient();
    let queue = node.queue(0);
    put(&queue, 1);
    let (raw, _) = node.connect(false);
    raw.send(&take(1, 1));
    assert_eq!(numbers(&raw), (1, vec![1]));
    raw.send(&settle(Op::GiveBack, 1));
    raw.send(&take(2, 1));
    let (_, found) = items(&raw);
    assert!(found[0].0.redelivered && found[0].1 == [1]);
    // The number of another take settles nothing.
    raw.send(&settle(Op::Keep, 1));
    raw.send(&settle(Op::GiveBack, 2));
    eventually("it is back", || queue.len() == 1);
    eventually("it is not lent", || lent(&node) == 0);
}

#[test]
fn the_next_request_confirms_what_came_before() {
    let node = Node::patient();
    let queue = node.queue(0);
    put(&queue, 1);
    put(&queue, 2);
    let (raw, _) = node.connect(false);
    raw.send(&take(1, 1));
    assert_eq!(numbers(&raw), (1, vec![1]));
    raw.send(&take(2, 1));
    assert_eq!(numbers(&raw), (2, vec![2]));
    assert_eq!(in_use(&node), 1);
}

#[test]
fn the_same_messages_come_again_on_the_next_connection_and_no_others() {
    let node = Node::patient();
    let queue = node.queue(0);
    for number in 1..=3 {
        put(&queue, number);
    }
    let (first, _) = node.connect(false);
    first.send(&take(1, 2));
    assert_eq!(numbers(&first), (1, vec![1, 2]));
    let (second, welcome) = node.connect(true);
    assert_eq!(welcome, node.go(1, false));
    second.send(&take(1, 2));
    assert_eq!(numbers(&second), (1, vec![1, 2]));
    assert_eq!(take_all(&queue), [3]);
}

#[test]
fn unconfirmed_messages_return_when_the_server_stops() {
    let mut node = Node::patient();
    let queue = node.queue(0);
    put(&queue, 1);
    let (raw, _) = node.connect(false);
    raw.send(&take(1, 1));
    assert_eq!(numbers(&raw), (1, vec![1]));
    node.server.stop();
    assert_eq!(take_all(&queue), [1]);
}

#[test]
fn many_are_taken_up_to_a_number() {
    let node = Node::patient();
    let queue = node.queue(0);
    for number in 0..200 {
        put(&queue, number);
    }
    let (raw, _) = node.connect(false);
    raw.send(&take(1, 150));
    assert_eq!(numbers(&raw), (1, (0..150).collect()));
    raw.send(&take(2, 150));
    assert_eq!(numbers(&raw), (2, (150..200).collect()));
}

// Leases.

const HOLDER: u128 = 5;

/// A request to make leases of the messages of the take before, numbered from `first` on.
fn lease_frame(seq: u64, first: u64) -> Vec<u8> {
    let name = LeaseName {
        holder: HOLDER,
        number: first,
    };
    let (request, payload) = Request::of_lease(seq - 1, name);
    let request = Request { seq, ..request };
    [request.encode().as_slice(), payload.as_slice()].concat()
}

fn end_frame(seq: u64, numbers: &[u64], goes_back: bool) -> Vec<u8> {
    let (request, payload) = Request::of_leases(Op::Settle, HOLDER, numbers);
    let request = Request {
        seq,
        kind: goes_back.into(),
        ..request
    };
    [request.encode().as_slice(), payload.as_slice()].concat()
}

/// Takes two messages as the leases 10 and 11.
fn lease_two(raw: &Raw, queue: &SessionQueue) {
    put(queue, 1);
    put(queue, 2);
    raw.send(&take(1, 2));
    assert_eq!(numbers(raw), (1, vec![1, 2]));
    raw.send(&lease_frame(2, 10));
    assert_eq!(raw.reply(), (Status::Done, 2));
}

#[test]
fn leases_outlive_their_connection_and_are_ended_one_by_one() {
    let node = Node::new(Limits {
        apart: Duration::ZERO,
        ..Limits::default()
    });
    let queue = node.queue(0);
    let (raw, _) = node.connect(false);
    lease_two(&raw, &queue);
    drop(raw);
    eventually("the stream is forgotten", || {
        node.server.usage().streams == 0
    });
    let usage = node.server.usage();
    assert_eq!((usage.lent, usage.leases), (2, 2));
    let (raw, _) = node.connect(false);
    raw.send(&end_frame(1, &[10], false));
    assert_eq!(raw.reply(), (Status::Done, 1));
    assert_eq!((in_use(&node), queue.len()), (1, 0));
    // One lease has ended already, the other was never made.
    for (seq, number) in [(2, 10), (3, 12)] {
        raw.send(&end_frame(seq, &[number], false));
        assert_eq!(raw.reply(), (Status::Done, seq));
    }
    raw.send(&end_frame(4, &[11], true));
    assert_eq!(raw.reply(), (Status::Done, 4));
    raw.send(&take(5, 1));
    let (_, found) = items(&raw);
    assert!(found[0].0.redelivered && found[0].1 == [2]);
    assert_eq!(node.server.usage().leases, 0);
}

#[test]
fn the_next_request_confirms_no_lease() {
    let node = Node::patient();
    let queue = node.queue(0);
    let (raw, _) = node.connect(false);
    lease_two(&raw, &queue);
    raw.send(&frame(Op::Take, 3, Want::Count(1), None));
    assert_eq!(shortage(&raw), (Status::Full, Shortage::Empty));
    assert_eq!((in_use(&node), node.server.usage().leases), (2, 2));
}

#[test]
fn a_renewal_keeps_the_leases_that_it_names_for_longer() {
    let node = Node::patient();
    let queue = node.queue(0);
    let (raw, _) = node.connect(false);
    lease_two(&raw, &queue);
    let ends = || [10, 11, 12].map(|number| node.server.shared.leases.ends(HOLDER, number));
    let before = ends();
    let (request, payload) = Request::of_leases(Op::Renew, HOLDER, &[11, 12]);
    let request = Request { seq: 3, ..request };
    raw.send(&[request.encode().as_slice(), payload.as_slice()].concat());
    assert_eq!(raw.reply(), (Status::Done, 3));
    let after = ends();
    assert_eq!((after[0], after[2]), (before[0], None));
    assert!(after[1] > before[1]);
}

#[test]
fn leases_go_back_when_the_server_stops() {
    let mut node = Node::patient();
    let queue = node.queue(0);
    let (raw, _) = node.connect(false);
    lease_two(&raw, &queue);
    node.server.stop();
    assert_eq!(take_all(&queue), [1, 2]);
}

#[test]
fn a_client_that_leaves_in_a_wait_takes_nothing() {
    let node = Node::patient();
    let queue = node.queue(0);
    let (raw, _) = node.connect(false);
    raw.send(&take(1, 1));
    std::thread::sleep(crate::socket::SLICE / 3);
    raw.0.abort();
    put(&queue, 1);
    eventually("it ends", || node.server.usage().connections == 0);
    assert_eq!(take_all(&queue), [1]);
}

#[test]
fn messages_that_are_not_lent_cannot_become_leases() {
    let node = Node::patient();
    let queue = node.queue(0);
    put(&queue, 1);
    let (raw, _) = node.connect(false);
    raw.send(&take(1, 1));
    assert_eq!(numbers(&raw), (1, vec![1]));
    raw.send(&settle(Op::GiveBack, 1));
    raw.send(&lease_frame(2, 10));
    assert_eq!(raw.reply(), (Status::Invalid, 2));
    assert_eq!((queue.len(), node.server.usage().leases), (1, 0));
}
