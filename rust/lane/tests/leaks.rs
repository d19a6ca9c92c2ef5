//! What clients leave behind at a server: nothing. In a process of its own, because it counts the
//! threads and descriptors of the process.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shoal_lane::client::{self, Client, Parcel, Target};
use shoal_lane::handshake::Key;
use shoal_lane::server::{Limits, Server};
use shoal_shm::blocking::Deadline;
use shoal_shm::session::{Session, Settings};

fn count(folder: &str) -> usize {
    fs::read_dir(folder).expect("Linux").count()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn put(client: &Client) {
    let target = Target {
        key: b"q",
        ..Target::default()
    };
    let parcel = Parcel {
        parts: &[b"x"],
        ..Parcel::default()
    };
    let put = client.put(&target, &parcel, Deadline::Never, &mut || true);
    put.expect("room");
}

#[test]
fn ten_thousand_connections_leave_no_thread_no_descriptor_and_no_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let session =
        Session::create(&Settings::in_folder(folder.path(), 1 << 20, 10_000)).expect("space");
    let (key, here) = (Key::new([1; 32]), (Ipv4Addr::LOCALHOST, 0).into());
    let limits = Limits {
        apart: Duration::from_millis(200),
        ..Limits::default()
    };
    let bare = (count("/proc/self/task"), count("/proc/self/fd"));
    let server =
        Server::start(Arc::clone(&session), here, key.clone(), limits, None).expect("a port");
    let address = server.address();
    let new = || Client::new(address, key.clone(), client::Limits::default(), None);
    // The queue is open from the first put on.
    put(&new());
    eventually("it has ended", || server.usage().connections == 0);
    let before = (count("/proc/self/task"), count("/proc/self/fd"));
    for number in 0..10_000_u32 {
        match number % 4 {
            0 => drop(TcpStream::connect(address).expect("it listens")),
            1 => {
                let mut stranger = TcpStream::connect(address).expect("it listens");
                stranger
                    .write_all(b"babble, and more of it")
                    .expect("connected");
            }
            _ => put(&new()),
        }
    }
    eventually("all have ended", || server.usage().connections == 0);
    eventually("all are forgotten", || server.usage().streams == 0);
    eventually("no thread and no descriptor is left", || {
        (count("/proc/self/task"), count("/proc/self/fd")) == before
    });
    put(&new());
    drop(server);
    eventually("nothing of the server is left", || {
        (count("/proc/self/task"), count("/proc/self/fd")) == bare
    });
    assert_eq!(session.stats().expect("sound").messages, 5002);
}
