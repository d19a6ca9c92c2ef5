use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::socket::PEER_TIMEOUT;

const PATIENT: Duration = Duration::from_secs(60);
const BRIEF: Duration = Duration::from_millis(200);

fn key(number: u8) -> Key {
    Key::new([number; 32])
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    (client, listener.accept().expect("it connects").0)
}

fn socket(stream: TcpStream) -> Socket {
    Socket::new(stream, PEER_TIMEOUT).expect("a connection")
}

fn client(stream: TcpStream, key: &Key, limit: Duration) -> Result<(), Error> {
    let end = Some(Instant::now() + limit);
    as_client(&socket(stream), key, &mut Patience::new(end, &mut || true))
}

fn server(stream: TcpStream, key: &Key, limit: Duration) -> Result<(), Error> {
    let end = Some(Instant::now() + limit);
    as_server(&socket(stream), key, &mut Patience::new(end, &mut || true))
}

/// The outcome of a handshake at a server with key 1, whose peer runs `play`.
fn served(limit: Duration, play: impl FnOnce(TcpStream) + Send) -> Result<(), Error> {
    let (far, near) = pair();
    thread::scope(|scope| {
        scope.spawn(move || play(far));
        server(near, &key(1), limit)
    })
}

/// The outcome of a handshake at a client with key 1, whose peer runs `play`.
fn connected(limit: Duration, play: impl FnOnce(TcpStream) + Send) -> Result<(), Error> {
    let (near, far) = pair();
    thread::scope(|scope| {
        scope.spawn(move || play(far));
        client(near, &key(1), limit)
    })
}

fn read<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).expect("they come");
    bytes
}

fn is_at_its_end(mut stream: TcpStream) -> bool {
    !matches!(stream.read(&mut [0]), Ok(1..))
}

/// The answers of a server with `key`, to a client that sent `hello`.
fn answer(key: &Key, hello: &[u8; 48], mine: [u8; NONCE]) -> [u8; 80] {
    let mut client = [0; NONCE];
    client.copy_from_slice(&hello[16..]);
    let nonces = Nonces {
        client,
        server: mine,
    };
    let mut answer = [0; 80];
    answer[..16].copy_from_slice(&prologue());
    answer[16..48].copy_from_slice(&mine);
    answer[48..].copy_from_slice(&nonces.tag(key, Role::Server));
    answer
}

/// The proof of a client with `key`, which does not look at the server's tag.
fn proof(key: &Key, nonce: [u8; NONCE], answer: &[u8; 80]) -> [u8; TAG] {
    let mut server = [0; NONCE];
    server.copy_from_slice(&answer[16..48]);
    let nonces = Nonces {
        client: nonce,
        server,
    };
    nonces.tag(key, Role::Client)
}

fn hello(nonce: [u8; NONCE]) -> [u8; 48] {
    let mut hello = [0; 48];
    hello[..16].copy_from_slice(&prologue());
    hello[16..].copy_from_slice(&nonce);
    hello
}

#[test]
fn a_client_refuses_a_server_with_another_key_and_sends_no_tag() {
    let (near, far) = pair();
    thread::scope(|scope| {
        let other = scope.spawn(move || server(far, &key(2), PATIENT));
        let error = client(near, &key(1), PATIENT).expect_err("another key");
        assert!(matches!(error, Error::WrongTag) && error.is_final());
        let error = other.join().expect("no panic").expect_err("no tag came");
        assert!(matches!(error, Error::Ended), "{error}");
    });
}

#[test]
fn a_server_refuses_a_client_with_another_key() {
    let end = served(PATIENT, |mut stream| {
        stream.write_all(&hello([3; NONCE])).expect("it reads");
        let answer = read(&mut stream);
        let proof = proof(&key(2), [3; NONCE], &answer);
        stream.write_all(&proof).expect("it reads");
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::WrongTag)));
}

#[test]
fn a_key_has_32_bytes() {
    assert!(Key::from_slice(&[]).is_none());
    assert!(Key::from_slice(&[1; 31]).is_none());
    assert_eq!(Key::from_slice(&[1; 32]), Some(key(1)));
}

#[test]
fn garbage_is_refused_on_either_side_without_an_answer() {
    let end = served(PATIENT, |mut stream| {
        stream
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .expect("it reads");
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::NotALane)));
    let end = connected(PATIENT, |mut stream| {
        read::<48>(&mut stream);
        stream.write_all(&[0; 80]).expect("it reads");
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::NotALane)));
    let end = served(PATIENT, |mut stream| {
        let mut odd = hello([3; NONCE]);
        odd[12] = 1;
        stream.write_all(&odd).expect("it reads");
    });
    assert!(matches!(end, Err(Error::NotALane)));
}

#[test]
fn another_version_is_named_on_both_sides() {
    let end = served(PATIENT, |mut stream| {
        let mut newer = hello([3; NONCE]);
        newer[8] = 9;
        stream.write_all(&newer).expect("it reads");
        assert_eq!(read(&mut stream), prologue());
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::OtherVersion { theirs: 9 })));
    let end = connected(PATIENT, |mut stream| {
        read::<48>(&mut stream);
        let mut newer = prologue();
        newer[8] = 9;
        stream.write_all(&newer).expect("it reads");
    });
    let error = end.expect_err("another version");
    assert_eq!(
        error.to_string(),
        "the peer speaks version 9 of the protocol: expected 1"
    );
}

#[test]
fn a_tag_that_is_sent_back_is_refused_on_either_side() {
    let end = served(PATIENT, |mut stream| {
        stream.write_all(&hello([3; NONCE])).expect("it reads");
        let answer = read::<80>(&mut stream);
        stream.write_all(&answer[48..]).expect("it reads");
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::Reflected)));
    let end = connected(PATIENT, |mut stream| {
        let hello = read::<48>(&mut stream);
        stream.write_all(&hello).expect("it reads");
        stream.write_all(&[0; TAG]).expect("it reads");
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::Reflected)));
}

#[test]
fn a_handshake_that_is_replayed_is_refused_on_either_side() {
    let mut recorded = None;
    let end = served(PATIENT, |mut stream| {
        stream.write_all(&hello([3; NONCE])).expect("it reads");
        let answer = read(&mut stream);
        let proof = proof(&key(1), [3; NONCE], &answer);
        stream.write_all(&proof).expect("it reads");
        recorded = Some((answer, proof));
    });
    end.expect("the right key");
    let (answered, proof) = recorded.expect("a handshake");
    let end = served(PATIENT, |mut stream| {
        stream.write_all(&hello([3; NONCE])).expect("it reads");
        let fresh = read::<80>(&mut stream);
        assert_ne!(fresh, answered);
        stream.write_all(&proof).expect("it reads");
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::WrongTag)));
    let end = connected(PATIENT, |mut stream| {
        read::<48>(&mut stream);
        stream.write_all(&answered).expect("it reads");
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::WrongTag)));
}

#[test]
fn a_silent_peer_is_refused_when_the_time_is_over() {
    let end = served(BRIEF, |stream| assert!(is_at_its_end(stream)));
    assert!(matches!(end, Err(Error::Silent)));
    let end = connected(BRIEF, |mut stream| {
        read::<48>(&mut stream);
        assert!(is_at_its_end(stream));
    });
    assert!(matches!(end, Err(Error::Silent)));
}

#[test]
fn a_peer_that_sends_byte_by_byte_has_no_more_time_in_total() {
    let end = served(BRIEF, |mut stream| {
        for byte in hello([3; NONCE]).into_iter().chain([0; TAG]) {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(BRIEF / 10);
        }
    });
    assert!(matches!(end, Err(Error::Silent)));
}

#[test]
fn a_peer_that_leaves_at_any_byte_is_noticed_at_once() {
    let whole = hello([3; NONCE]);
    for length in [0, 1, 15, 16, 47, 48] {
        let end = served(PATIENT, |mut stream| {
            stream.write_all(&whole[..length]).expect("it reads");
            stream.shutdown(Shutdown::Write).expect("connected");
            assert!(is_at_its_end_after_reading(stream));
        });
        assert!(matches!(end, Err(Error::Ended)), "after {length} bytes");
    }
}

fn is_at_its_end_after_reading(mut stream: TcpStream) -> bool {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).is_err() || matches!(all.len(), 0 | 80)
}

#[test]
fn a_server_is_accepted_by_what_it_proves_alone() {
    let end = connected(PATIENT, |mut stream| {
        let hello = read(&mut stream);
        let answer = answer(&key(1), &hello, [4; NONCE]);
        stream.write_all(&answer).expect("it reads");
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&hello[16..]);
        assert_eq!(read(&mut stream), proof(&key(1), nonce, &answer));
    });
    end.expect("the right key");
}

#[test]
fn a_key_is_not_shown() {
    assert_eq!(format!("{:?}", key(7)), "Key(..)");
}
