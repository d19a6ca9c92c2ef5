//! Producers and servers that are killed or stopped.

use std::thread;

use rustix::process::Signal;
use shoal_lane::client::{Error, Loss};
use shoal_shm::session::Bounds;

use crate::processes::*;
use crate::support::*;

#[test]
fn items_noted_by_a_killed_producer_are_in_the_channel_once_in_order() {
    let node = Node::new();
    let queue = node.queue(b"q", 0);
    for round in 0..6 {
        let mut producer = Process::start("producer", node.server.address());
        eventually("it puts", || producer.noted().len() > 20 + 17 * round);
        producer.kill();
        eventually("its thread ends", || node.server.usage().connections == 0);
        let noted = producer.noted();
        let all = take_all(&queue);
        // The one under way may be there too.
        assert!((noted.len()..=noted.len() + 1).contains(&all.len()));
        assert_eq!(all, numbered(u32::try_from(all.len()).expect("few"), 40));
    }
}

#[test]
fn a_put_that_waits_ends_with_its_process_and_puts_nothing() {
    let node = Node::new();
    let queue = node.queue(b"q", 1);
    let client = node.client();
    for role in ["producer", "long"] {
        put(&client, b"q", b"first").expect("room");
        let before = node.server.usage().connections;
        let mut producer = Process::start(role, node.server.address());
        eventually("it is there", || node.server.usage().connections > before);
        // It waits, and of a long message more bytes are sent than the kernels keep.
        thread::sleep(BRIEF * 4);
        producer.kill();
        eventually("the wait ends", || {
            node.server.usage().connections == before
        });
        assert_eq!(take_all(&queue), [b"first"]);
        assert!(queue.is_empty() && producer.noted().is_empty());
    }
}

#[test]
fn a_producer_that_is_stopped_in_a_wait_goes_on_with_its_connection() {
    let (_node, queue, relay) = relayed(1, Cut::Never);
    let producer = Process::start("producer", relay.address);
    for number in 0..3 {
        eventually("it has put", || producer.noted().len() == number + 1);
        thread::sleep(BRIEF);
        producer.stop();
        thread::sleep(BRIEF * 3);
        producer.signal(Signal::CONT);
        wait_and_take(&queue);
    }
    eventually("it goes on", || producer.noted().len() == 4);
    assert_eq!(relay.made(), 1);
}

#[test]
fn items_put_before_a_server_was_killed_are_in_the_channel() {
    let mut far = FarNode::start();
    let queue = far.session.queue(b"q", Bounds::default()).expect("room");
    let client = client_with(far.address, |limits| limits.reconnect = BRIEF * 4);
    thread::scope(|scope| {
        let putting = scope.spawn(|| {
            (0..).find_map(|number| {
                let put = put(&client, b"q", &message(number, 40));
                put.err().map(|failed| (number, failed))
            })
        });
        eventually("it puts", || queue.len() > 100);
        far.process.kill();
        let (number, failed) = putting.join().expect("no panic").expect("it was killed");
        match &failed.error {
            Error::Lost { why, .. } => assert!(matches!(why, Loss::Gone { .. })),
            // Between two puts.
            Error::Unreachable { .. } => (),
            _ => panic!("{failed}"),
        }
        let text = failed.to_string();
        assert!(text.contains(&far.address.to_string()), "{text}");
        let all = take_all(&queue);
        let count = u32::try_from(all.len()).expect("few");
        assert!((number..=number + 1).contains(&count));
        assert_eq!(all, numbered(count, 40));
    });
}
