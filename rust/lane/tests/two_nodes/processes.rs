//! Other processes: producers, consumers, and a node of its own.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use shoal_lane::server::Server;
use shoal_shm::session::{MemoryPolicy, Session};
use tempfile::TempDir;

use crate::support::*;

const ROLE: &str = "LANE_TEST_ROLE";
const ADDRESS: &str = "LANE_TEST_ADDRESS";
const FOLDER: &str = "LANE_TEST_FOLDER";

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).and_then(|value| value.into_string().ok())
}

/// The programs of the other processes: this test, run by another test.
#[test]
#[ignore = "a program that other tests start"]
fn program() {
    let Some(role) = variable(ROLE) else { return };
    let folder = PathBuf::from(variable(FOLDER).expect("set"));
    let address = variable(ADDRESS).expect("set");
    match role.as_str() {
        "server" => serve(&folder),
        "consumer" => consume(&folder, &address),
        "long" => produce(&folder, &address, 32 << 20),
        _ => produce(&folder, &address, 40),
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

/// Takes numbers one after the other, and notes each that it has.
fn consume(folder: &Path, address: &str) {
    let client = client_of(address.parse().expect("an address"));
    let mut noted = fs::File::create(folder.join("noted")).expect("space");
    loop {
        let taken = take_from(&client, 1, LATER).expect("numbers come");
        let number = numbers_of(&taken)[0];
        noted.write_all(&number.to_le_bytes()).expect("space");
        assert!(taken.keep(&mut || true).expect("not interrupted"));
    }
}

/// Owns a session and serves it until its parent ends.
fn serve(folder: &Path) {
    let owner = tempfile::tempdir_in(folder).expect("a folder");
    let session = session(&owner, 4 << 20, MemoryPolicy::Block);
    let here = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let server = Server::start(Arc::clone(&session), here, key(), patient(), None).expect("a port");
    let text = format!("{}\n{}", session.token(), server.address());
    fs::write(folder.join("started"), text).expect("space");
    fs::rename(folder.join("started"), folder.join("ready")).expect("the same folder");
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process of this test, which does not outlive it.
pub(crate) struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    pub(crate) fn start(role: &str, address: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let child = Command::new(std::env::current_exe().expect("known"))
            .args(["--ignored", "--exact", "processes::program"])
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

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Stops it, and waits until each of its threads has stopped.
    pub(crate) fn stop(&self) {
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

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was killed");
    }

    /// The numbers that it has noted.
    pub(crate) fn noted(&self) -> Vec<u32> {
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
pub(crate) struct FarNode {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) session: Arc<Session>,
}

impl FarNode {
    pub(crate) fn start() -> Self {
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
}
