//! Processes that are killed or stopped.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use shoal_lane::client::{Client, Error, Limits, Loss};
use shoal_lane::server::Server;
use shoal_shm::blocking::Deadline;
use shoal_shm::session::{MemoryPolicy, Session, SessionQueue};
use tempfile::TempDir;

use crate::support::*;

const ROLE: &str = "LANE_TEST_ROLE";
const ADDRESS: &str = "LANE_TEST_ADDRESS";
const FOLDER: &str = "LANE_TEST_FOLDER";
const BRIEF: Duration = Duration::from_millis(50);

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).and_then(|value| value.into_string().ok())
}

/// The programs of the other processes: this test, run by another test.
#[test]
#[ignore = "a program that other tests start"]
fn program() {
    let Some(role) = variable(ROLE) else { return };
    let folder = PathBuf::from(variable(FOLDER).expect("set"));
    if role == "server" {
        serve(&folder);
    } else {
        let length = if role == "long" { 32 << 20 } else { 40 };
        produce(&folder, &variable(ADDRESS).expect("set"), length);
    }
}

/// Puts numbers one after the other, and notes each that is in the channel.
fn produce(folder: &Path, address: &str, length: usize) {
    let client = client_of(address.parse().expect("an address"));
    let mut noted = fs::File::create(folder.join("noted")).expect("space");
    for number in 0_u32.. {
        put(&client, b"q", &message(number, length)).expect("room comes");
        noted.write_all(&number.to_le_bytes()).expect("space");
    }
}

/// Owns a session and serves it until its parent ends.
fn serve(folder: &Path) {
    let owner = tempfile::tempdir_in(folder).expect("a folder");
    let session = session(&owner, 4 << 20, MemoryPolicy::Block);
    let here = std::net::Ipv4Addr::LOCALHOST.into();
    let server = Server::start(Arc::clone(&session), here, key(), patient()).expect("a port");
    let text = format!("{}\n{}", session.token(), server.address());
    fs::write(folder.join("started"), text).expect("space");
    fs::rename(folder.join("started"), folder.join("ready")).expect("the same folder");
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process of this test, which does not outlive it.
struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    fn start(role: &str, address: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let child = Command::new(std::env::current_exe().expect("known"))
            .args(["--ignored", "--exact", "deaths::program"])
            .env(ROLE, role)
            .env(ADDRESS, address.to_string())
            .env(FOLDER, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        Self { child, folder }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Stops it, and waits until each of its threads has stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        eventually("it has stopped", || {
            let mut states = fs::read_dir(&tasks).expect("it lives").map(|task| {
                let text = fs::read_to_string(task.expect("a thread").path().join("stat"));
                // The state follows the name, which is in parentheses.
                text.is_ok_and(|text| text.contains(") T "))
            });
            states.all(|stopped| stopped)
        });
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was killed");
    }

    /// The numbers that it has noted.
    fn noted(&self) -> Vec<u32> {
        let bytes = fs::read(self.folder.path().join("noted")).unwrap_or_default();
        let numbers = bytes.chunks_exact(4);
        numbers
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four")))
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server in a process of its own, and its session.
struct FarNode {
    process: Process,
    address: SocketAddr,
    session: Arc<Session>,
}

impl FarNode {
    fn start() -> Self {
        let nowhere = ([127, 0, 0, 1], 1).into();
        let process = Process::start("server", nowhere);
        let path = process.folder.path().join("ready");
        eventually("the server is ready", || path.exists());
        let text = fs::read_to_string(path).expect("it is there");
        let (token, address) = text.split_once('\n').expect("two lines");
        Self {
            session: Session::attach(token).expect("it is there"),
            address: address.parse().expect("an address"),
            process,
        }
    }

    fn queue(&self, maxsize: u64) -> SessionQueue {
        let bounds = shoal_shm::session::Bounds {
            maxsize: Some(maxsize),
            max_bytes: None,
        };
        self.session.queue(b"q", bounds).expect("room")
    }
}

#[test]
fn what_a_killed_producer_has_noted_is_in_the_channel_once_and_in_order() {
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
    let node = Node::new();
    let queue = node.queue(b"q", 1);
    let relay = Relay::new(node.server.address(), Cut::Never);
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
fn a_put_to_a_stopped_server_waits_for_it() {
    let far = FarNode::start();
    let (queue, relay) = (far.queue(0), Relay::new(far.address, Cut::Never));
    let client = relay.client();
    put(&client, b"q", b"first").expect("room");
    far.process.stop();
    thread::scope(|scope| {
        let small = scope.spawn(|| put(&client, b"q", b"small"));
        thread::sleep(BRIEF * 5);
        assert!(!small.is_finished());
        far.process.signal(Signal::CONT);
        small.join().expect("no panic").expect("it goes on");
    });
    assert_eq!(take_all(&queue), [b"first", b"small"]);
    assert_eq!(relay.made(), 1);
}

#[test]
fn a_put_to_a_server_that_stays_stopped_ends_after_its_deadline() {
    let far = FarNode::start();
    let limits = Limits {
        late: BRIEF,
        ..patient_client()
    };
    let client = Client::new(far.address, key(), limits);
    put(&client, b"q", b"first").expect("room");
    far.process.stop();
    let failed = put_until(&client, b"q", b"late", Deadline::After(BRIEF));
    let failed = failed.expect_err("it is stopped");
    let silent = Loss::Silent;
    assert!(matches!(failed.error, Error::Lost { why, .. } if why == silent));
    far.process.signal(Signal::CONT);
}

#[test]
fn what_was_put_before_a_server_was_killed_is_in_the_channel() {
    let mut far = FarNode::start();
    let queue = far.queue(0);
    let limits = Limits {
        reconnect: BRIEF * 4,
        ..patient_client()
    };
    let client = Client::new(far.address, key(), limits);
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
