//! The server as a client sees it that writes frames of its own.

use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

use rustix::event::PollFlags;
use shoal_shm::Label;
use shoal_shm::blocking::Lack;
use shoal_shm::session::{Bounds, Offer, SessionQueue, Settings, Shortage};
use tempfile::TempDir;

use super::*;
use crate::frame::{Hello, NEVER, Op, Policy, Reply, Request, Status, Welcome, decode_shortage};
use crate::handshake;
use crate::socket::{Patience, Socket};

const PATIENT: Duration = Duration::from_secs(60);
const STREAM: u128 = 5;

pub(super) struct Node {
    pub(super) session: Arc<Session>,
    pub(super) server: Server,
    _folder: TempDir,
}

impl Node {
    pub(super) fn new(limits: Limits) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let session =
            Session::create(&Settings::in_folder(folder.path(), 4 << 20, 1000)).expect("space");
        let here = (Ipv4Addr::LOCALHOST, 0).into();
        let server =
            Server::start(Arc::clone(&session), here, key(), limits, None).expect("a port");
        Self {
            session,
            server,
            _folder: folder,
        }
    }

    pub(super) fn patient() -> Self {
        Self::new(Limits {
            handshake: PATIENT,
            apart: PATIENT,
            cut: PATIENT,
            ..Limits::default()
        })
    }

    pub(super) fn queue(&self, maxsize: u64) -> SessionQueue {
        let bounds = Bounds {
            maxsize: Some(maxsize),
            max_bytes: None,
        };
        self.session.queue(b"q", bounds).expect("room")
    }

    /// A connection that carries the stream, and what the server said.
    pub(super) fn connect(&self, again: bool) -> (Raw, Welcome) {
        let raw = self.dial();
        let hello = Hello {
            stream: STREAM,
            again,
        };
        raw.send(&hello.encode());
        let welcome = raw.receive::<{ Welcome::SIZE }>();
        let welcome = Welcome::decode(&welcome).expect("valid");
        (raw, welcome)
    }

    pub(super) fn dial(&self) -> Raw {
        let stream = TcpStream::connect(self.server.address()).expect("it listens");
        let socket = Socket::new(stream, PATIENT).expect("a connection");
        let mut always = || true;
        let patience = &mut Patience::new(Some(Instant::now() + PATIENT), &mut always);
        handshake::as_client(&socket, &key(), patience).expect("the right key");
        Raw(socket)
    }

    pub(super) fn go(&self, done: u64, failed: bool) -> Welcome {
        let epoch = self.server.epoch();
        Welcome::Go {
            epoch,
            done,
            failed,
        }
    }
}

fn key() -> Key {
    Key::new([3; 32])
}

pub(super) struct Raw(pub(super) Socket);

impl Raw {
    pub(super) fn send(&self, bytes: &[u8]) {
        let mut always = || true;
        let patience = &mut Patience::new(Some(Instant::now() + PATIENT), &mut always);
        self.0.send_all(bytes, patience).expect("connected");
    }

    pub(super) fn receive<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        let mut always = || true;
        let patience = &mut Patience::new(Some(Instant::now() + PATIENT), &mut always);
        self.0
            .receive_exact(&mut bytes, patience)
            .expect("it comes");
        bytes
    }

    pub(super) fn reply(&self) -> (Status, u64) {
        let reply = Reply::decode(&self.receive::<{ Reply::SIZE }>()).expect("valid");
        for _ in 0..reply.length {
            self.receive::<1>();
        }
        (reply.status, reply.seq)
    }

    pub(super) fn is_ended(&self) -> bool {
        let flags = self.0.wait(PollFlags::IN, PATIENT).expect("a connection");
        assert!(!flags.is_empty(), "nothing comes");
        !matches!(self.0.receive(&mut [0]), Ok(Some(1..)))
    }
}

/// The bytes of puts with these numbers, one exchange. Each has its number as its payload.
fn puts(seqs: std::ops::RangeInclusive<u64>, waits: bool) -> Vec<u8> {
    let last = *seqs.end();
    let frame = |seq: u64| {
        let request = request(seq, last - seq, waits);
        [&request.encode(), b"q".as_slice(), &[number(seq)]].concat()
    };
    seqs.map(frame).collect::<Vec<_>>().concat()
}

fn request(seq: u64, left: u64, waits: bool) -> Request {
    Request {
        op: Op::Put,
        policy: Policy::Block,
        waits,
        kind: 1,
        sender: 0,
        left: u32::try_from(left).expect("few"),
        key_length: 1,
        length: 1,
        seq,
        amount: 0,
        deadline: if waits { NEVER } else { 0 },
        maxsize: None,
        max_bytes: None,
    }
}

fn number(seq: u64) -> u8 {
    u8::try_from(seq).expect("few")
}

pub(super) fn take_all(queue: &SessionQueue) -> Vec<u8> {
    let mut all = Vec::new();
    let want = shoal_shm::Want::Count(100);
    let mut out = |message: shoal_shm::Message<'_>| {
        let mut byte = [0];
        message.copy(&mut byte);
        all.push(byte[0]);
    };
    let taken = queue.take(want, shoal_shm::Keep::Copy, &mut out);
    taken.expect("sound");
    all
}

pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENT;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn requests_that_are_done_are_skipped_when_they_are_sent_again() {
    let node = Node::patient();
    let queue = node.queue(0);
    let (first, welcome) = node.connect(false);
    assert_eq!(welcome, node.go(0, false));
    first.send(&puts(1..=3, true));
    while first.reply() != (Status::Done, 3) {}
    let (second, welcome) = node.connect(true);
    assert_eq!(welcome, node.go(3, false));
    second.send(&puts(2..=5, true));
    while second.reply() != (Status::Done, 5) {}
    assert_eq!(take_all(&queue), [1, 2, 3, 4, 5]);
}

#[test]
fn a_second_connection_ends_the_first_and_goes_on_where_it_was() {
    let node = Node::patient();
    let queue = node.queue(2);
    let (first, _) = node.connect(false);
    first.send(&puts(1..=4, true));
    assert_eq!(first.reply(), (Status::Done, 2));
    // The third waits for room.
    let (second, welcome) = node.connect(true);
    assert_eq!(welcome, node.go(2, false));
    assert!(first.is_ended());
    assert_eq!(take_all(&queue), [1, 2]);
    second.send(&puts(3..=4, true));
    assert_eq!(second.reply(), (Status::Done, 4));
    assert_eq!(take_all(&queue), [3, 4]);
}

#[test]
fn finished_puts_are_reported_before_a_wait() {
    let node = Node::patient();
    let queue = node.queue(3);
    let (raw, _) = node.connect(false);
    raw.send(&puts(1..=5, true));
    assert_eq!(raw.reply(), (Status::Done, 3));
    assert_eq!(take_all(&queue), [1, 2, 3]);
    assert_eq!(raw.reply(), (Status::Done, 5));
    // One that is not complete yet does not hold up the reply either.
    take_all(&queue);
    let more = puts(6..=7, true);
    raw.send(&more[..more.len() - 1]);
    assert_eq!(raw.reply(), (Status::Done, 6));
    raw.send(&more[more.len() - 1..]);
    assert_eq!(raw.reply(), (Status::Done, 7));
}

#[test]
fn a_client_that_leaves_in_a_wait_puts_nothing_even_if_room_comes_at_once() {
    let node = Node::patient();
    let queue = node.queue(1);
    for round in 0..10 {
        let raw = node.dial();
        let hello = Hello {
            stream: STREAM + round,
            again: false,
        };
        raw.send(&hello.encode());
        raw.receive::<{ Welcome::SIZE }>();
        raw.send(&puts(1..=2, true));
        assert_eq!(raw.reply(), (Status::Done, 1));
        // In the middle of a slice. A client that leaves just when the server looks may be late.
        std::thread::sleep(crate::socket::SLICE / 3);
        raw.0.abort();
        assert_eq!(take_all(&queue), [1], "round {round}");
        eventually("it ends", || node.server.usage().connections == 0);
        assert!(queue.is_empty(), "round {round}");
    }
}

#[test]
fn a_failure_ends_its_exchange_and_is_said_again_on_the_next_connection() {
    let node = Node::patient();
    let queue = node.queue(2);
    let (first, _) = node.connect(false);
    first.send(&puts(1..=5, false));
    assert_eq!(first.reply(), (Status::Full, 3));
    // There is room again, but what follows a failure is not put.
    assert_eq!(take_all(&queue), [1, 2]);
    let (second, welcome) = node.connect(true);
    assert_eq!(welcome, node.go(5, true));
    assert_eq!(second.reply(), (Status::Full, 3));
    assert!(queue.is_empty());
    second.send(&puts(6..=6, false));
    assert_eq!(second.reply(), (Status::Done, 6));
    let (_third, welcome) = node.connect(true);
    assert_eq!(welcome, node.go(6, false), "the client has heard of it");
    assert_eq!(take_all(&queue), [6]);
}

#[test]
fn a_record_is_kept_for_as_long_as_the_way_in_which_its_connection_ended_says() {
    let limits = Limits::default();
    let kept = |kind: io::ErrorKind| puts::remembered(&limits, &Err(kind.into()));
    assert_eq!(kept(io::ErrorKind::UnexpectedEof), Duration::from_secs(2));
    assert_eq!(kept(io::ErrorKind::ConnectionReset), Duration::from_secs(2));
    assert_eq!(kept(io::ErrorKind::TimedOut), Duration::from_secs(12));
    assert_eq!(
        kept(io::ErrorKind::HostUnreachable),
        Duration::from_secs(12)
    );
    assert_eq!(puts::remembered(&limits, &Ok(())), Duration::from_secs(12));
}

#[test]
fn a_client_that_leaves_out_a_request_or_sends_garbage_is_cut_off() {
    let node = Node::patient();
    let queue = node.queue(0);
    for bytes in [puts(2..=2, true), vec![0xff; 64], vec![0; 200]] {
        let (raw, _) = node.connect(false);
        raw.send(&bytes);
        assert!(raw.is_ended());
    }
    let raw = node.dial();
    raw.send(&[0xff; Hello::SIZE]);
    assert!(raw.is_ended());
    assert!(queue.is_empty());
    eventually("all have ended", || node.server.usage().connections == 0);
}

#[test]
fn a_request_that_is_cut_off_at_any_byte_is_not_put() {
    let node = Node::patient();
    let queue = node.queue(0);
    let whole = puts(1..=1, true);
    for length in 0..whole.len() {
        let (raw, welcome) = node.connect(false);
        assert_eq!(welcome, node.go(0, false));
        raw.send(&whole[..length]);
        raw.0.shut();
    }
    eventually("all have ended", || node.server.usage().connections == 0);
    assert!(queue.is_empty());
}

#[test]
fn small_puts_that_are_there_together_are_published_in_one_step() {
    let together = |held: &[u8]| {
        let first = Request::decode(held).expect("a request");
        let small = puts::small_puts(held, &first);
        let payload = |(_, at): &(Request, std::ops::Range<usize>)| held[at.clone()].to_vec();
        small.iter().map(payload).collect::<Vec<_>>().concat()
    };
    let four = puts(1..=4, true);
    assert_eq!(together(&four), [1, 2, 3, 4]);
    // The last one is not complete.
    assert_eq!(together(&four[..four.len() - 1]), [1, 2, 3]);
    let behind = |request: Request| {
        let frame = [&request.encode(), b"q".as_slice(), &[9]].concat();
        together(&[four.clone(), frame].concat())
    };
    let next = request(5, 0, true);
    assert_eq!(behind(next), [1, 2, 3, 4, 9]);
    let others = [
        Request { seq: 6, ..next },
        Request {
            policy: Policy::KeepLatest,
            ..next
        },
        Request {
            deadline: 1,
            ..next
        },
        Request {
            maxsize: Some(1),
            ..next
        },
        Request {
            key_length: 2,
            length: 0,
            ..next
        },
        Request {
            length: 209,
            ..next
        },
    ];
    for other in others {
        assert_eq!(behind(other), [1, 2, 3, 4], "{other:?}");
    }
    let other_key = [&next.encode(), b"p".as_slice(), &[9]].concat();
    assert_eq!(together(&[four.clone(), other_key].concat()), [1, 2, 3, 4]);
    assert_eq!(together(&puts(1..=255, true)).len(), 255);
}

#[test]
fn a_queue_that_others_fill_after_an_attempt_without_memory_is_reported_as_full() {
    let node = Node::patient();
    let queue = node.queue(1);
    let mut attempt = || {
        let offered = queue.offer(Label::default(), b"of another client")?;
        assert_eq!(offered, Offer::Put);
        Ok(Err::<(), _>(Lack::Memory { length: 8 }))
    };
    let Err(stop) = puts::step(Policy::Error, &queue, &mut attempt) else {
        panic!("it would wait for memory");
    };
    let (status, body) = stop.reply().expect("a reply");
    let full = Shortage::Messages { held: 1, bound: 1 };
    assert_eq!(status, Status::Full);
    assert_eq!(decode_shortage(&body).expect("valid"), full);
}
