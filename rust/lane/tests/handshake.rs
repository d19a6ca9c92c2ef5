//! Processes of one job find each other, and nobody else gets in.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use shoal_lane::handshake::{HandshakeError, Key, LIMIT, MAGIC, VERSION, as_client, as_server};

const KEY: Key = [7; 32];
const OTHER: Key = [8; 32];
const SOON: Duration = Duration::from_millis(100);

/// Returns the two ends of a connection: of the client, and of the server.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    let client = TcpStream::connect(address).expect("it listens");
    (client, listener.accept().expect("a client connected").0)
}

/// Runs the server's part with `KEY` while a client does something; returns what both met.
fn meet<T>(
    client: impl FnOnce(TcpStream) -> T,
    limit: Duration,
) -> (T, Result<(), HandshakeError>) {
    let (near, far) = connection();
    thread::scope(|scope| {
        let server = scope.spawn(move || as_server(&far, &KEY, limit));
        (
            client(near),
            server.join().expect("the server does not panic"),
        )
    })
}

/// Sends bytes as a client, and returns what the server answers until it closes the connection.
fn say(bytes: &[u8]) -> impl FnOnce(TcpStream) -> Vec<u8> {
    move |mut socket| {
        socket.write_all(bytes).expect("the server reads");
        let _ = socket.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        answer
    }
}

fn hello(version: u32, nonce: u8) -> Vec<u8> {
    [&MAGIC[..], &version.to_le_bytes(), &[nonce; 32]].concat()
}

#[test]
fn two_processes_with_one_key_meet_and_then_talk() {
    let (mut near, mut far) = connection();
    thread::scope(|scope| {
        scope.spawn(|| as_server(&far, &KEY, LIMIT).expect("they have one key"));
        as_client(&near, &KEY, LIMIT).expect("they have one key");
    });
    near.write_all(b"hi").expect("it is open");
    let mut got = [0; 2];
    far.read_exact(&mut got).expect("it is open");
    assert_eq!(&got, b"hi");
    assert_eq!(far.read_timeout().expect("it is open"), None);
    assert_eq!(near.write_timeout().expect("it is open"), None);
}

#[test]
fn a_client_with_the_key_of_another_job_notices_that_and_sends_no_proof() {
    let (client, server) = meet(|near| as_client(&near, &OTHER, LIMIT), LIMIT);
    assert!(
        matches!(client, Err(HandshakeError::WrongKey)),
        "{client:?}"
    );
    assert!(matches!(server, Err(HandshakeError::Closed)), "{server:?}");
}

#[test]
fn a_server_refuses_a_proof_that_was_made_without_the_key() {
    let proof = [hello(VERSION, 1), vec![0; 32]].concat();
    let (answer, server) = meet(say(&proof), LIMIT);
    assert!(
        matches!(server, Err(HandshakeError::WrongKey)),
        "{server:?}"
    );
    assert_eq!(answer.len(), 4 + 32 + 32);
}

#[test]
fn a_client_that_sends_the_tag_of_the_server_back_is_refused() {
    let reflect = |mut near: TcpStream| {
        near.write_all(&hello(VERSION, 1))
            .expect("the server reads");
        let mut answer = [0; 68];
        near.read_exact(&mut answer).expect("the server answers");
        near.write_all(&answer[36..]).expect("the server reads");
    };
    let ((), server) = meet(reflect, LIMIT);
    assert!(
        matches!(server, Err(HandshakeError::WrongKey)),
        "{server:?}"
    );
}

#[test]
fn a_handshake_that_was_recorded_opens_nothing_later() {
    // A relay between a client and a server of the job records what the client sends.
    let (near, mut relay_near) = connection();
    let (mut relay_far, far) = connection();
    let recorded = thread::scope(|scope| {
        scope.spawn(|| as_server(&far, &KEY, LIMIT).expect("they have one key"));
        scope.spawn(|| as_client(&near, &KEY, LIMIT).expect("they have one key"));
        let mut first = [0; 44];
        relay_near
            .read_exact(&mut first)
            .expect("the client begins");
        relay_far.write_all(&first).expect("the server reads");
        let mut answer = [0; 68];
        relay_far
            .read_exact(&mut answer)
            .expect("the server answers");
        relay_near.write_all(&answer).expect("the client reads");
        let mut proof = [0; 32];
        relay_near
            .read_exact(&mut proof)
            .expect("the client has proved itself");
        relay_far.write_all(&proof).expect("the server reads");
        [&first[..], &proof].concat()
    });
    let (_, server) = meet(say(&recorded), LIMIT);
    assert!(
        matches!(server, Err(HandshakeError::WrongKey)),
        "{server:?}"
    );
}

#[test]
fn garbage_is_refused_before_more_of_it_is_read() {
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0xff; 44]] {
        let (answer, server) = meet(say(garbage), LIMIT);
        assert!(
            matches!(server, Err(HandshakeError::NotALane)),
            "{server:?}"
        );
        assert_eq!(answer, b"", "a stranger learns nothing");
    }
}

#[test]
fn both_ends_learn_that_they_have_different_versions() {
    let (answer, server) = meet(say(&hello(VERSION + 1, 1)), LIMIT);
    assert!(matches!(server, Err(HandshakeError::OtherVersion(v)) if v == VERSION + 1));
    assert_eq!(answer, VERSION.to_le_bytes());

    let (near, mut far) = connection();
    far.write_all(&9_u32.to_le_bytes())
        .expect("the client reads");
    let client = as_client(&near, &KEY, LIMIT).expect_err("the versions differ");
    assert!(
        client
            .to_string()
            .contains("speaks version 9 of the lane, this one version 1")
    );
}

#[test]
fn an_end_that_stops_talking_is_given_up_in_time() {
    for sent in [&b""[..], &MAGIC[..3], &hello(VERSION, 1)] {
        let silent = |mut near: TcpStream| {
            near.write_all(sent).expect("the server reads");
            near // and stays open
        };
        let (_near, server) = meet(silent, SOON);
        assert!(
            matches!(server, Err(HandshakeError::TimedOut(SOON))),
            "{server:?}"
        );
    }
    let (near, _far) = connection();
    let client = as_client(&near, &KEY, SOON);
    assert!(
        matches!(client, Err(HandshakeError::TimedOut(SOON))),
        "{client:?}"
    );
}

#[test]
fn an_end_that_sends_a_byte_now_and_then_is_given_up_too() {
    let drip = |mut near: TcpStream| {
        for byte in hello(VERSION, 1) {
            if near.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(SOON / 10);
        }
    };
    let ((), server) = meet(drip, SOON);
    assert!(
        matches!(server, Err(HandshakeError::TimedOut(SOON))),
        "{server:?}"
    );
}

#[test]
fn an_end_that_goes_away_in_the_middle_is_told_from_one_that_is_slow() {
    let (_, server) = meet(say(&hello(VERSION, 1)[..20]), LIMIT);
    assert!(matches!(server, Err(HandshakeError::Closed)), "{server:?}");
}
