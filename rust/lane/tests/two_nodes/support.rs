//! A session with its server, a relay between it and the clients, and what is in the queues.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use shoal_lane::client::{self, Bytes, Cancel, Client, Error, Failed, Loss, Parcel, Taken, Target};
use shoal_lane::handshake::Key;
use shoal_lane::server::{self, Server};
use shoal_lane::tls::Tls;
use shoal_shm::blocking::{Deadline, Until};
use shoal_shm::session::{Bounds, MemoryPolicy, Session, SessionQueue, Settings};
use shoal_shm::{Keep, Label, Payload, Want};
use tempfile::TempDir;

/// Long enough for another thread to begin what it does.
pub(crate) const BRIEF: Duration = Duration::from_millis(50);
/// Longer than anything takes; the end of a test that hangs.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);
/// The deadline of puts that wait for as long as it takes.
pub(crate) const LATER: Deadline = Deadline::After(PATIENT);

pub(crate) fn key() -> Key {
    Key::new([7; 32])
}

/// Whether all messages that were taken are confirmed, or in a queue again, and none is left.
pub(crate) fn is_all_settled(node: &Node) -> bool {
    node.session.usage().descriptors == 0
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENT;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The limits of tests in which nothing is lost because the machine is slow.
pub(crate) fn patient() -> server::Limits {
    server::Limits {
        handshake: PATIENT,
        apart: PATIENT,
        cut: PATIENT,
        ..server::Limits::default()
    }
}

/// The limits of clients in such tests.
pub(crate) fn patient_client() -> client::Limits {
    client::Limits {
        connect: PATIENT,
        handshake: PATIENT,
        reconnect: PATIENT,
        late: PATIENT,
        // The kernel does not help.
        peer_timeout: PATIENT * 10,
        ..client::Limits::default()
    }
}

pub(crate) fn session(folder: &TempDir, max_bytes: u64, policy: MemoryPolicy) -> Arc<Session> {
    Session::create(&Settings {
        memory_policy: policy,
        ..Settings::in_folder(folder.path(), max_bytes, 100_000)
    })
    .expect("space")
}

/// A node that owns a session.
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) server: Server,
    _folder: TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::limited(|_| ())
    }

    /// One whose server has other limits.
    pub(crate) fn limited(change: impl FnOnce(&mut server::Limits)) -> Self {
        let mut limits = patient();
        change(&mut limits);
        Self::made(limits, 64 << 20, MemoryPolicy::Block, None)
    }

    /// One whose server forgets a client as soon as its connection ends.
    pub(crate) fn forgetful() -> Self {
        Self::limited(|limits| {
            limits.apart = Duration::ZERO;
            limits.cut = Duration::ZERO;
        })
    }

    /// One whose server encrypts.
    pub(crate) fn encrypted(tls: Tls) -> Self {
        Self::made(patient(), 64 << 20, MemoryPolicy::Block, Some(tls))
    }

    /// One whose session has little memory.
    pub(crate) fn small(max_bytes: u64, policy: MemoryPolicy) -> Self {
        Self::made(patient(), max_bytes, policy, None)
    }

    fn made(
        limits: server::Limits,
        max_bytes: u64,
        policy: MemoryPolicy,
        tls: Option<Tls>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let session = session(&folder, max_bytes, policy);
        let here = (Ipv4Addr::LOCALHOST, 0).into();
        let server = Server::start(Arc::clone(&session), here, key(), limits, tls).expect("a port");
        Self {
            session,
            server,
            _folder: folder,
        }
    }

    pub(crate) fn client(&self) -> Client {
        client_of(self.server.address())
    }

    /// The queue of a key, as a process of this node opens it.
    pub(crate) fn queue(&self, key: &[u8], maxsize: u64) -> SessionQueue {
        let bounds = Bounds {
            maxsize: Some(maxsize),
            max_bytes: None,
        };
        self.session.queue(key, bounds).expect("room")
    }
}

/// A node, its queue `q`, and a relay to it.
pub(crate) fn relayed(maxsize: u64, cut: Cut) -> (Node, SessionQueue, Relay) {
    let node = Node::new();
    let queue = node.queue(b"q", maxsize);
    let relay = Relay::new(node.server.address(), cut);
    (node, queue, relay)
}

pub(crate) fn client_of(address: SocketAddr) -> Client {
    client_with(address, |_| ())
}

/// A client with other limits.
pub(crate) fn client_with(address: SocketAddr, change: impl FnOnce(&mut client::Limits)) -> Client {
    let mut limits = patient_client();
    change(&mut limits);
    Client::new(address, key(), limits, None)
}

/// Why an operation lost its server.
pub(crate) fn loss_of(error: &Error) -> &Loss {
    match error {
        Error::Lost { why, .. } => why,
        _ => panic!("{error}"),
    }
}

pub(crate) fn target(key: &[u8]) -> Target<'_> {
    Target {
        key,
        ..Target::default()
    }
}

/// A message that consists of these parts.
pub(crate) fn parcel<'a>(parts: &'a [&'a [u8]]) -> Parcel<'a> {
    Parcel {
        parts,
        ..Parcel::default()
    }
}

/// Puts bytes and waits for as long as it takes.
pub(crate) fn put(client: &Client, key: &[u8], bytes: &[u8]) -> Result<(), Failed> {
    put_until(client, key, bytes, LATER)
}

pub(crate) fn put_until(
    client: &Client,
    key: &[u8],
    bytes: &[u8],
    deadline: Deadline,
) -> Result<(), Failed> {
    client.put(&target(key), &parcel(&[bytes]), deadline, &mut || true)
}

/// Puts several messages in one exchange.
pub(crate) fn put_many(
    client: &Client,
    target: &Target<'_>,
    messages: &[Vec<u8>],
    deadline: Deadline,
) -> Result<(), Failed> {
    put_many_while(client, target, messages, deadline, &mut || true)
}

pub(crate) fn put_many_while(
    client: &Client,
    target: &Target<'_>,
    messages: &[Vec<u8>],
    deadline: Deadline,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), Failed> {
    let parts: Vec<[&[u8]; 1]> = messages.iter().map(|bytes| [bytes.as_slice()]).collect();
    let parcels: Vec<_> = parts.iter().map(|parts| parcel(parts)).collect();
    client.put_many(target, &parcels, deadline, &Cancel::default(), go_on)
}

/// Takes messages as a process of another node.
pub(crate) fn take_from(
    client: &Client,
    count: u32,
    deadline: Deadline,
) -> Result<Taken<'_>, Error> {
    let (want, cancel) = (Want::Count(count), Cancel::default());
    client.take(&target(b"q"), want, deadline, &cancel, &mut || true)
}

/// The bytes of the messages that were taken.
pub(crate) fn bytes_of(taken: &Taken<'_>) -> Vec<Vec<u8>> {
    let each = taken.messages.iter().map(|message| match &message.bytes {
        Bytes::Short(bytes) => bytes.clone(),
        Bytes::Long(buffer) => {
            let mut bytes = vec![0; buffer.len()];
            buffer.read(0, &mut bytes);
            bytes
        }
    });
    each.collect()
}

/// The numbers that they tell.
pub(crate) fn numbers_of(taken: &Taken<'_>) -> Vec<u32> {
    let each = bytes_of(taken).into_iter();
    each.map(|bytes| u32::from_le_bytes(bytes[..4].try_into().expect("four")))
        .collect()
}

/// Takes the next messages and keeps them.
pub(crate) fn take_and_keep(client: &Client, count: u32) -> Vec<Vec<u8>> {
    let taken = take_from(client, count, LATER).expect("they come");
    let bytes = bytes_of(&taken);
    assert!(taken.keep(&mut || true).expect("not interrupted"));
    bytes
}

/// Puts messages as a process of the queue's node.
pub(crate) fn put_here(queue: &SessionQueue, messages: &[Vec<u8>]) {
    for bytes in messages {
        let label = Label {
            weight: 1,
            kind: 1,
            sender: 7,
        };
        let draft = queue
            .draft(bytes.len() as u64)
            .expect("sound")
            .expect("memory");
        draft.write(0, bytes).expect("it fits");
        assert!(queue.put(draft, label).expect("sound").is_ok());
    }
}

/// Takes the next message; None if there is none now.
pub(crate) fn take(queue: &SessionQueue) -> Option<(Label, Vec<u8>)> {
    take_until(queue, Deadline::Now)
}

/// Takes the next message as soon as it is there.
pub(crate) fn wait_and_take(queue: &SessionQueue) -> Vec<u8> {
    let end = Deadline::At(Instant::now() + PATIENT);
    take_until(queue, end).expect("it comes").1
}

fn take_until(queue: &SessionQueue, deadline: Deadline) -> Option<(Label, Vec<u8>)> {
    let mut taken = None;
    let mut until = Until::new(deadline, || true);
    let mut out = |message: shoal_shm::Message<'_>| {
        let mut bytes = Vec::new();
        if let Payload::Inline(length) = message.payload() {
            bytes.resize(length, 0);
            message.copy(&mut bytes);
        }
        let payload = message.payload();
        taken = Some((
            message.label,
            bytes,
            message.loan().map(|loan| (loan, payload)),
        ));
    };
    let want = Want::Count(1);
    let end = queue.take_within(want, Keep::Copy, &mut until, &mut out);
    end.expect("sound");
    let (label, mut bytes, long) = taken?;
    if let Some((loan, payload)) = long {
        let held = queue.hold(loan, payload).expect("sound");
        bytes.resize(usize::try_from(held.len()).expect("short"), 0);
        held.read(0, &mut bytes).expect("sound");
        held.acknowledge().expect("sound");
    }
    Some((label, bytes))
}

/// All messages that are there now.
pub(crate) fn take_all(queue: &SessionQueue) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| take(queue).map(|(_, bytes)| bytes)).collect()
}

/// Messages that tell their number, of some length.
pub(crate) fn numbered(count: u32, length: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| message(number, length)).collect()
}

pub(crate) fn message(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length.max(4), u8::try_from(number % 251).expect("small"));
    bytes
}

/// When a relay cuts a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    Never,
    /// After this many bytes to the server.
    Every(u64),
    /// After a random number of bytes, at most this many, in a random direction.
    Random {
        seed: u64,
        most: u64,
    },
    /// After a random number of bytes to the client, at most this many.
    Replies {
        seed: u64,
        most: u64,
    },
}

impl Cut {
    pub(crate) fn random(seed: u64, most: u64) -> Self {
        Self::Random { seed, most }
    }

    pub(crate) fn replies(seed: u64, most: u64) -> Self {
        Self::Replies { seed, most }
    }
}

struct Link {
    target: Mutex<SocketAddr>,
    cut: Mutex<Cut>,
    /// Nothing is carried, and nothing is cut.
    is_down: AtomicBool,
    /// Connections are ended as soon as they are made.
    refuses: AtomicBool,
    ends: AtomicBool,
    made: AtomicU64,
    cuts: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

/// A link that can be cut, between clients and a server.
pub(crate) struct Relay {
    link: Arc<Link>,
    pub(crate) address: SocketAddr,
    accepting: Option<thread::JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn new(target: SocketAddr, cut: Cut) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let link = Arc::new(Link {
            target: Mutex::new(target),
            cut: Mutex::new(cut),
            is_down: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            made: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let shared = Arc::clone(&link);
        let accepting = thread::spawn(move || {
            for near in listener.incoming() {
                if shared.ends.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(near) = near {
                    carry(&shared, near);
                }
            }
        });
        Self {
            link,
            address,
            accepting: Some(accepting),
        }
    }

    pub(crate) fn client(&self) -> Client {
        client_of(self.address)
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.link.is_down.store(is_down, Ordering::SeqCst);
    }

    pub(crate) fn set_refuses(&self, refuses: bool) {
        self.link.refuses.store(refuses, Ordering::SeqCst);
    }

    pub(crate) fn set_target(&self, target: SocketAddr) {
        *self.link.target.lock().expect("no panic") = target;
    }

    pub(crate) fn cut(&self) {
        for stream in self.link.open.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Number of connections that were made.
    pub(crate) fn made(&self) -> u64 {
        self.link.made.load(Ordering::SeqCst)
    }

    /// Number of connections that were cut by their number of bytes.
    pub(crate) fn cuts(&self) -> u64 {
        self.link.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.link.ends.store(true, Ordering::SeqCst);
        self.set_down(false);
        self.cut();
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.cut();
    }
}

fn carry(link: &Arc<Link>, near: TcpStream) {
    let number = link.made.fetch_add(1, Ordering::SeqCst);
    if link.refuses.load(Ordering::SeqCst) {
        return;
    }
    let target = *link.target.lock().expect("no panic");
    let Ok(far) = TcpStream::connect(target) else {
        return;
    };
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("connected");
        let copy = stream.try_clone().expect("descriptors");
        link.open.lock().expect("no panic").push(copy);
    }
    let (to_server, to_client) = match *link.cut.lock().expect("no panic") {
        Cut::Never => (u64::MAX, u64::MAX),
        Cut::Every(bytes) => (bytes, u64::MAX),
        Cut::Replies { seed, most } => (u64::MAX, scramble(seed ^ scramble(number)) % most + 1),
        Cut::Random { seed, most } => {
            let random = scramble(seed ^ scramble(number));
            let bytes = random % most + 1;
            if random >> 62 == 0 {
                (u64::MAX, bytes % 256 + 1)
            } else {
                (bytes, u64::MAX)
            }
        }
    };
    let copies = (near.try_clone(), far.try_clone());
    let (Ok(near_too), Ok(far_too)) = copies else {
        return;
    };
    let (one, other) = (Arc::clone(link), Arc::clone(link));
    thread::spawn(move || pump(&one, &near, &far, to_server));
    thread::spawn(move || pump(&other, &far_too, &near_too, to_client));
}

/// Carries bytes until one end ends the connection, or so many were carried.
fn pump(link: &Link, mut from: &TcpStream, mut to: &TcpStream, mut left: u64) {
    let mut buffer = [0; 16 * 1024];
    while left > 0 {
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let Ok(count @ 1..) = from.read(&mut buffer[..most]) else {
            break;
        };
        while link.is_down.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        left -= count as u64;
    }
    if left == 0 {
        link.cuts.fetch_add(1, Ordering::SeqCst);
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A number that looks random (splitmix64).
fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
