use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use shoal_shm::session::{Session, Settings};

use super::*;
use crate::server::{self, Server};

#[test]
fn a_child_of_a_fork_closes_an_idle_connection_and_does_not_shut_it_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let session =
        Session::create(&Settings::in_folder(folder.path(), 1 << 20, 100)).expect("space");
    let key = Key::new([1; 32]);
    let here = (Ipv4Addr::LOCALHOST, 0).into();
    let limits = server::Limits::default();
    let server =
        Server::start(Arc::clone(&session), here, key.clone(), limits, None).expect("a port");
    let client = Client::new(server.address(), key, Limits::default(), None);
    let put = || {
        let target = Target {
            key: b"q",
            ..Target::default()
        };
        let parcel = Parcel {
            parts: &[b"x"],
            ..Parcel::default()
        };
        client.put(&target, &parcel, Deadline::Never, &mut || true)
    };
    put().expect("room");
    let connection = client.pool.take().expect("idle");
    let of_parent = connection.socket.copy();
    drop(connection);
    assert!(of_parent.is_idle(), "the parent still uses it");
    // The child has a stream of its own.
    put().expect("room");
    assert_eq!(server.usage().streams, 2);
    assert!(of_parent.is_idle());
}

#[test]
fn a_client_is_connecting_until_the_server_has_welcomed_it() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = silent.local_addr().expect("bound");
    let client = Client::new(address, Key::new([1; 32]), Limits::default(), None);
    let (target, parcel) = (Target::default(), Parcel::default());
    assert!(!client.is_connecting());
    let mut was_connecting = false;
    let put = client.put(&target, &parcel, Deadline::Never, &mut || {
        was_connecting = client.is_connecting();
        false
    });
    assert!(matches!(put, Err(failed) if matches!(failed.error, Error::Interrupted)));
    assert!(was_connecting);
    assert!(!client.is_connecting());
}
