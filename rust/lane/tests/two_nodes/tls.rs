//! Puts and takes over TLS: as those without, and what is refused.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use shoal_lane::client::{Cancel, Client, Error};
use shoal_lane::handshake;
use shoal_lane::server::{Limits, Server};
use shoal_lane::tls::Tls;
use shoal_shm::session::{MemoryPolicy, Session};
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::support::*;

const HERE: &str = "127.0.0.1";
const LONG: usize = 3 << 20;

/// A node whose server encrypts.
struct Encrypted {
    node: Node,
    tls: Tls,
}

impl Encrypted {
    fn new() -> Self {
        let tls = Authority::new("ca").tls(HERE);
        let node = Node::encrypted(tls.clone());
        Self { node, tls }
    }

    fn client(&self) -> Client {
        self.client_at(self.node.server.address())
    }

    fn client_at(&self, address: SocketAddr) -> Client {
        Client::new(address, key(), patient_client(), Some(self.tls.clone()))
    }
}

#[test]
fn messages_short_and_long_arrive_and_are_taken() {
    let there = Encrypted::new();
    let queue = there.node.queue(b"q", 0);
    let client = there.client();
    let messages: Vec<_> = [0, 4, 100, 16 * 1024, 40_000, LONG, 5, LONG + 1]
        .iter()
        .zip(0..)
        .map(|(length, number)| message(number, *length))
        .collect();
    for message in &messages {
        put(&client, b"q", message).expect("room");
    }
    put_many(&client, &target(b"q"), &messages, LATER).expect("room");
    assert_eq!(
        take_all(&queue),
        [messages.clone(), messages.clone()].concat()
    );
    put_here(&queue, &messages);
    let mut taken = Vec::new();
    while taken.len() < messages.len() {
        taken.extend(take_and_keep(&client, 3));
    }
    assert_eq!(taken, messages);
    assert_eq!(client.idle_connections(), 1);
    eventually("all is settled", || is_all_settled(&there.node));
}

#[test]
fn a_long_put_that_waits_for_room_goes_on_when_there_is_some() {
    let there = Encrypted::new();
    let queue = there.node.queue(b"q", 1);
    let client = there.client();
    let sent = message(1, LONG);
    put(&client, b"q", b"first").expect("room");
    thread::scope(|scope| {
        let putting = scope.spawn(|| put(&client, b"q", &sent));
        eventually("it waits", || {
            queue.stats().is_ok_and(|it| it.producers_waiting > 0)
        });
        thread::sleep(Duration::from_millis(50));
        assert_eq!(wait_and_take(&queue), b"first");
        putting.join().expect("no panic").expect("room");
    });
    assert_eq!(take_all(&queue), [sent]);
}

#[test]
fn a_cancelled_put_is_not_in_the_channel_and_a_cancelled_take_takes_nothing() {
    let there = Encrypted::new();
    let queue = there.node.queue(b"q", 1);
    let client = there.client();
    let bytes = message(1, LONG);
    let parts = [bytes.as_slice()];
    let parcel = parcel(&parts);
    for _ in 0..5 {
        put(&client, b"q", b"first").expect("room");
        let cancel = Cancel::default();
        thread::scope(|scope| {
            let putting = scope.spawn(|| {
                let parcels = std::slice::from_ref(&parcel);
                client.put_many(&target(b"q"), parcels, LATER, &cancel, &mut || true)
            });
            eventually("it waits", || {
                queue.stats().is_ok_and(|it| it.producers_waiting > 0)
            });
            cancel.cancel();
            let failed = putting.join().expect("no panic").expect_err("cancelled");
            assert!(matches!(failed.error, Error::Interrupted), "{failed}");
        });
        assert_eq!(take_all(&queue), [b"first"]);
        let cancel = Cancel::default();
        thread::scope(|scope| {
            let taking = scope.spawn(|| {
                let want = shoal_shm::Want::Count(1);
                let taken = client.take(&target(b"q"), want, LATER, &cancel, &mut || true);
                assert!(matches!(taken, Err(Error::Interrupted)), "{taken:?}");
            });
            eventually("it waits", || {
                queue.stats().is_ok_and(|it| it.consumers_waiting > 0)
            });
            cancel.cancel();
            put(&client, b"q", b"next").expect("room");
            assert_eq!(take_and_keep(&client, 1), [b"next"]);
            taking.join().expect("no panic");
        });
    }
    eventually("all is settled", || is_all_settled(&there.node));
}

#[test]
fn every_message_arrives_once_and_in_order_over_connections_that_are_cut() {
    for (seed, most) in [(1, 5_000), (2, 15_000), (3, 60_000)] {
        let there = Encrypted::new();
        let queue = there.node.queue(b"q", 0);
        let relay = Relay::new(there.node.server.address(), Cut::random(seed, most));
        let client = there.client_at(relay.address);
        let sent: Vec<_> = (0..200)
            .map(|number| message(number, if number % 7 == 0 { 3_000 } else { 50 }))
            .collect();
        for (number, messages) in sent.chunks(5).enumerate() {
            if number % 2 == 0 {
                put_many(&client, &target(b"q"), messages, LATER).expect("it goes on");
            } else {
                for message in messages {
                    put(&client, b"q", message).expect("it goes on");
                }
            }
        }
        assert_eq!(take_all(&queue), sent);
        put_here(&queue, &sent);
        let mut taken = Vec::new();
        while taken.len() < sent.len() {
            let next = take_from(&client, 4, LATER).expect("it goes on");
            let bytes = bytes_of(&next);
            assert!(next.keep(&mut || true).expect("not interrupted"));
            taken.extend(bytes);
        }
        assert_eq!(taken, sent);
        assert!(relay.cuts() > 2, "{}", relay.cuts());
    }
}

#[test]
fn a_client_with_another_key_is_refused_also_over_tls() {
    let there = Encrypted::new();
    let key = handshake::Key::new([8; 32]);
    let address = there.node.server.address();
    let client = Client::new(address, key, patient_client(), Some(there.tls.clone()));
    let failed = put(&client, b"q", b"x").expect_err("it is refused");
    let text = failed.to_string();
    assert!(
        text.ends_with("the peer does not know the key of this job"),
        "{text}"
    );
}

#[test]
fn a_connection_that_says_nothing_ends_with_the_time_of_its_handshake() {
    let folder = TempDir::new().expect("a folder");
    let session: Arc<Session> = session(&folder, 1 << 20, MemoryPolicy::Block);
    let limits = Limits {
        handshake: Duration::from_millis(50),
        ..patient()
    };
    let tls = Some(Authority::new("ca").tls(HERE));
    let here = (Ipv4Addr::LOCALHOST, 0).into();
    let server = Server::start(session, here, key(), limits, tls).expect("a port");
    let _silent = std::net::TcpStream::connect(server.address()).expect("it listens");
    eventually("it came", || server.usage().connections == 1);
    eventually("it has gone", || server.usage().connections == 0);
}
