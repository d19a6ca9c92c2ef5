//! Puts and takes that another thread cancels.

use std::thread;

use shoal_lane::client::{Cancel, Client, Error, Parcel, Target};
use shoal_lane::frame::Policy;
use shoal_shm::Want;

use crate::support::*;

fn take_unless(client: &Client, cancel: &Cancel) -> Result<Vec<Vec<u8>>, Error> {
    let target = target(b"q");
    let taken = client.take(&target, Want::Count(1), LATER, cancel, &mut || true)?;
    let bytes = bytes_of(&taken);
    taken.keep(&mut || true)?;
    Ok(bytes)
}

#[test]
fn a_cancelled_take_takes_nothing_that_is_put_afterwards() {
    let node = Node::new();
    let queue = node.queue(b"q", 0);
    let client = node.client();
    for number in 0..50 {
        let cancel = Cancel::default();
        thread::scope(|scope| {
            let taking = scope.spawn(|| take_unless(&client, &cancel));
            if number % 2 == 0 {
                eventually("it waits", || {
                    queue.stats().is_ok_and(|it| it.consumers_waiting > 0)
                });
            }
            cancel.cancel();
            put(&client, b"q", b"next").expect("room");
            assert_eq!(take_and_keep(&client, 1), [b"next"]);
            let taken = taking.join().expect("no panic");
            assert!(matches!(taken, Err(Error::Interrupted)), "{taken:?}");
        });
    }
    let cancel = Cancel::default();
    cancel.cancel();
    let taken = take_unless(&client, &cancel);
    assert!(matches!(taken, Err(Error::Interrupted)), "{taken:?}");
    eventually("all is settled", || is_all_settled(&node));
}

#[test]
fn a_message_that_came_together_with_a_cancellation_is_in_the_queue_again_at_once() {
    let node = Node::new();
    let queue = node.queue(b"q", 0);
    let client = node.client();
    for number in 0..200 {
        let cancel = Cancel::default();
        let sent = message(number, 9);
        let taken = thread::scope(|scope| {
            let taking = scope.spawn(|| take_unless(&client, &cancel));
            eventually("it waits", || {
                queue.stats().is_ok_and(|it| it.consumers_waiting > 0)
            });
            put_here(&queue, std::slice::from_ref(&sent));
            cancel.cancel();
            taking.join().expect("no panic")
        });
        let taken = taken.unwrap_or_else(|_| take_and_keep(&client, 1));
        assert_eq!(taken, [sent]);
    }
    eventually("all is settled", || is_all_settled(&node));
}

#[test]
fn a_cancelled_put_is_in_the_channel_or_ends_interrupted() {
    let node = Node::new();
    let queue = node.queue(b"q", 1);
    let client = node.client();
    let parcel = parcel(&[b"one"]);
    for has_room in [true, false].repeat(50) {
        put(&client, b"q", b"first").expect("room");
        let cancel = Cancel::default();
        let end = thread::scope(|scope| {
            let putting = scope.spawn(|| {
                let parcels = std::slice::from_ref(&parcel);
                client.put_many(&target(b"q"), parcels, LATER, &cancel, &mut || true)
            });
            eventually("it waits", || {
                queue.stats().is_ok_and(|it| it.producers_waiting > 0)
            });
            if has_room {
                assert_eq!(take_and_keep(&client, 1), [b"first"]);
            }
            cancel.cancel();
            putting.join().expect("no panic")
        });
        let left = take_all(&queue);
        match end {
            Ok(()) => assert_eq!(left, [b"one"]),
            Err(failed) => {
                assert!(matches!(failed.error, Error::Interrupted), "{failed}");
                assert_eq!(left.len(), usize::from(!has_room), "{left:?}");
            }
        }
    }
}

#[test]
fn a_put_that_is_cancelled_before_sends_nothing_and_leaves_its_connection_to_others() {
    let node = Node::new();
    let queue = node.queue(b"q", 1);
    let client = node.client();
    let cancel = Cancel::default();
    cancel.cancel();
    let parcels = &[Parcel::default()];
    let full = Target {
        policy: Policy::Error,
        ..target(b"q")
    };
    // On a connection after a put, and after one that failed, of which the server tells again.
    for has_room in [true, false] {
        let end = client.put_many(&full, parcels, LATER, &Cancel::default(), &mut || true);
        assert_eq!(end.is_ok(), has_room);
        let failed = client
            .put_many(&target(b"q"), parcels, LATER, &cancel, &mut || true)
            .expect_err("it is cancelled");
        assert!(matches!(failed.error, Error::Interrupted), "{failed}");
        assert_eq!(client.idle_connections(), 1);
    }
    assert_eq!(take_all(&queue).len(), 1);
    put(&client, b"q", b"next").expect("room");
    assert_eq!(take_all(&queue), [b"next"]);
}
