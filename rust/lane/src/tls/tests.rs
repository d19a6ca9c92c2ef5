use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use self::certificates::Authority;
use super::*;
use crate::handshake::{self, Key};
use crate::socket::{PEER_TIMEOUT, Patience, Socket};

#[path = "../../tests/two_nodes/certificates.rs"]
mod certificates;

const PATIENT: Duration = Duration::from_secs(60);
const HERE: &str = "127.0.0.1";

/// A connection, at its client and at its server.
fn pair(client: Option<&Tls>, server: Option<&Tls>) -> (Socket, Socket) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    let near = TcpStream::connect(address).expect("it listens");
    let far = listener.accept().expect("it connects").0;
    let client = client.map(|tls| tls.at_client(address.ip()).expect("sound"));
    let server = server.map(|tls| tls.at_server().expect("sound"));
    let socket = |stream| Socket::new(stream, PEER_TIMEOUT).expect("a connection");
    (socket(near).with_tls(client), socket(far).with_tls(server))
}

/// Does the handshakes of both sides; the connection of a side that fails ends.
fn shake(
    near: &Socket,
    far: &Socket,
    limit: Duration,
) -> (Result<(), handshake::Error>, Result<(), handshake::Error>) {
    let key = Key::new([7; 32]);
    let end = Some(Instant::now() + limit);
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut always = || true;
            let shaken = handshake::as_server(far, &key, &mut Patience::new(end, &mut always));
            shaken.inspect_err(|_| far.shut())
        });
        let mut always = || true;
        let shaken = handshake::as_client(near, &key, &mut Patience::new(end, &mut always));
        let shaken = shaken.inspect_err(|_| near.shut());
        (shaken, serving.join().expect("no panic"))
    })
}

/// A connection after its handshake.
fn connected() -> (Socket, Socket) {
    let tls = Authority::new("ca").tls(HERE);
    let (near, far) = pair(Some(&tls), Some(&tls));
    let (client, server) = shake(&near, &far, PATIENT);
    client.expect("the same CA");
    server.expect("the same CA");
    (near, far)
}

/// The errors of both sides of a handshake that fails; no further attempt helps.
fn refusals(client: Option<&Tls>, server: Option<&Tls>) -> (String, String) {
    let (near, far) = pair(client, server);
    let (client, server) = shake(&near, &far, PATIENT);
    let (client, server) = (
        client.expect_err("it is refused"),
        server.expect_err("it is refused"),
    );
    assert!(client.is_final(), "{client:?}");
    assert!(server.is_final(), "{server:?}");
    (client.to_string(), server.to_string())
}

/// Why TLS is not set up within a limit.
fn not_set_up(socket: &Socket, limit: Duration) -> handshake::Error {
    let mut always = || true;
    let patience = &mut Patience::new(Some(Instant::now() + limit), &mut always);
    socket
        .set_up_tls(patience)
        .expect_err("the peer does not take part")
}

fn receive(socket: &Socket, to: &mut [u8]) {
    let mut always = || true;
    let patience = &mut Patience::new(Some(Instant::now() + PATIENT), &mut always);
    socket.receive_exact(to, patience).expect("it comes");
}

#[test]
fn a_connection_is_idle_after_its_handshake() {
    let (near, far) = connected();
    thread::sleep(Duration::from_millis(20));
    for socket in [&near, &far] {
        assert!(socket.is_there() && socket.is_idle());
        assert_eq!(socket.receive(&mut [0; 8]).expect("connected"), None);
        let flags = socket.wait(PollFlags::IN, Duration::from_millis(5));
        assert_eq!(flags.expect("connected"), PollFlags::empty());
        let flags = socket.wait(PollFlags::IN | PollFlags::OUT, PATIENT);
        assert_eq!(flags.expect("connected"), PollFlags::OUT);
    }
}

#[test]
fn bytes_read_from_the_kernel_and_not_received_are_readable() {
    let (near, far) = connected();
    // Two records, which arrive together.
    assert_eq!(far.send(b"abc").expect("connected"), Some(3));
    assert_eq!(far.send(b"def").expect("connected"), Some(3));
    let mut first = [0];
    receive(&near, &mut first);
    assert_eq!(
        near.wait(PollFlags::IN, Duration::MAX).expect("connected"),
        PollFlags::IN
    );
    assert!(near.is_there() && !near.is_idle());
    let mut rest = [0; 5];
    receive(&near, &mut rest);
    assert_eq!((&first, &rest), (b"a", b"bcdef"));
    assert_eq!(near.receive(&mut [0; 8]).expect("connected"), None);
    assert!(near.is_idle());
}

#[test]
fn bytes_that_the_kernel_did_not_take_are_sent_by_a_wait_for_others() {
    let (near, far) = connected();
    let bytes: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
    let mut sent = 0;
    while let Some(count) = near.send(&bytes[sent % 251..]).expect("connected") {
        sent += count;
    }
    let flags = near.wait(PollFlags::OUT, Duration::from_millis(5));
    assert_eq!(flags.expect("connected"), PollFlags::empty());
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut received = vec![0; sent];
            receive(&far, &mut received);
            far.send(b"all").expect("connected");
            received
        });
        // The answer comes only if the wait sends the rest.
        let flags = near.wait(PollFlags::IN, PATIENT).expect("connected");
        assert_eq!(flags, PollFlags::IN);
        let received = reading.join().expect("no panic");
        let wanted = (0..=250).cycle();
        assert!(
            received
                .into_iter()
                .zip(wanted)
                .all(|(is, wanted)| is == wanted)
        );
    });
    assert_eq!(near.receive(&mut [0; 8]).expect("connected"), Some(3));
}

#[test]
fn bytes_that_were_changed_on_the_way_end_the_connection_on_both_sides() {
    let (near, far) = connected();
    let raw = near.copy();
    // The header of a record of 20 bytes, and no such record.
    let mut bytes = vec![23, 3, 3, 0, 20];
    bytes.extend([9; 20]);
    raw.send(&bytes).expect("connected");
    for socket in [&far, &near] {
        let flags = socket.wait(PollFlags::IN, PATIENT).expect("it comes");
        assert!(flags.contains(PollFlags::IN));
        for _ in 0..2 {
            let error = socket.receive(&mut [0; 8]).expect_err("it is no record");
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
    }
}

#[test]
fn the_end_of_a_connection_needs_no_message_of_tls() {
    let (near, far) = connected();
    far.send(b"last").expect("connected");
    far.shut();
    let mut last = [0; 4];
    receive(&near, &mut last);
    assert_eq!(&last, b"last");
    let error = near.receive(&mut [0; 8]).expect_err("it has ended");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(!near.is_there() && !near.is_idle());
}

#[test]
fn a_certificate_of_another_ca_is_refused() {
    let (one, other) = (Authority::new("one"), Authority::new("other"));
    let (ours, theirs) = (one.tls(HERE), other.tls(HERE));
    let (client, server) = refusals(Some(&theirs), Some(&ours));
    assert_eq!(
        client,
        "the CA of this side did not sign the certificate of the peer"
    );
    assert_eq!(
        server,
        "the peer refused the certificate of this side: its CA did not sign it"
    );
    // One that has the same name, too.
    let (client, _) = refusals(Some(&Authority::new("one").tls(HERE)), Some(&ours));
    assert_eq!(
        client,
        "the CA of this side did not sign the certificate of the peer"
    );
}

#[test]
fn a_client_of_another_ca_is_refused() {
    let (one, other) = (Authority::new("one"), Authority::new("other"));
    let server = one.tls(HERE);
    // The client trusts the server.
    let files = Files {
        ca: one.files(HERE).ca,
        ..other.files(HERE)
    };
    let (client, server) = refusals(Some(&Tls::load(&files).expect("sound")), Some(&server));
    assert_eq!(
        client,
        "the peer refused the certificate of this side: its CA did not sign it"
    );
    assert_eq!(
        server,
        "the CA of this side did not sign the certificate of the peer"
    );
}

#[test]
fn a_server_whose_certificate_names_another_address_is_refused() {
    let authority = Authority::new("ca");
    let (client, server) = refusals(
        Some(&authority.tls(HERE)),
        Some(&authority.tls("127.0.0.9")),
    );
    let begin = "the certificate of the peer does not name its IP address: ";
    assert!(
        client.starts_with(begin) && client.contains(HERE),
        "{client}"
    );
    assert_eq!(
        server,
        "the peer refused the certificate of this side: BadCertificate"
    );
}

#[test]
fn a_side_that_does_not_encrypt_is_refused() {
    let tls = Authority::new("ca").tls(HERE);
    let plain =
        "the peer does not encrypt, and this side does: expected TLS on both sides, or on none";
    let encrypted =
        "the peer encrypts, and this side does not: expected TLS on both sides, or on none";
    let refused = |client, server| {
        let (client, server) = refusals(client, server);
        [client, server]
    };
    assert_eq!(refused(None, Some(&tls)), [encrypted, plain]);
    assert_eq!(refused(Some(&tls), None), [plain, encrypted]);
}

#[test]
fn the_handshake_with_a_peer_that_says_nothing_ends_in_time() {
    let tls = Authority::new("ca").tls(HERE);
    let silent = |socket: &Socket| {
        let error = not_set_up(socket, Duration::from_millis(20));
        assert!(matches!(error, handshake::Error::Silent), "{error:?}");
        assert!(!error.is_final());
    };
    silent(&pair(Some(&tls), None).0);
    silent(&pair(None, Some(&tls)).1);
    let (near, far) = pair(None, Some(&tls));
    near.send(&[22, 3, 1]).expect("connected");
    near.shut();
    let error = not_set_up(&far, PATIENT);
    assert!(matches!(error, handshake::Error::Ended), "{error:?}");
}

#[test]
fn a_peer_that_speaks_something_else_is_refused() {
    let tls = Authority::new("ca").tls(HERE);
    let (near, far) = pair(None, Some(&tls));
    near.send(b"GET / HTTP/1.1\r\n\r\n").expect("connected");
    let error = not_set_up(&far, PATIENT);
    assert!(error.is_final());
    let begin = "TLS failed: ";
    assert!(error.to_string().starts_with(begin), "{error}");
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let authority = Authority::new("ca");
    let good = authority.files(HERE);
    let other = authority.files("127.0.0.9");
    let nothing = authority.file("nothing", "");
    let nowhere = nothing.with_file_name("nowhere");
    let half = authority.file("half", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let bad = authority.file("bad", bad);
    let with = |change: fn(&mut Files, PathBuf), file: &PathBuf| {
        let mut files = good.clone();
        change(&mut files, file.clone());
        let error = Tls::load(&files).expect_err("a file is wrong");
        assert_eq!(&error.file, file);
        error.to_string()
    };
    let certificate: fn(&mut Files, PathBuf) = |files, file| files.certificate = file;
    let key: fn(&mut Files, PathBuf) = |files, file| files.key = file;
    let ca: fn(&mut Files, PathBuf) = |files, file| files.ca = file;
    for (change, file, text) in [
        (certificate, &nowhere, "it cannot be read: No such file"),
        (key, &nowhere, "it cannot be read: No such file"),
        (ca, &nowhere, "it cannot be read: No such file"),
        (certificate, &nothing, "expected a certificate in PEM"),
        (ca, &nothing, "expected a certificate in PEM"),
        (
            key,
            &nothing,
            "expected a private key in PEM, without a passphrase",
        ),
        (certificate, &half, "it is not valid PEM"),
        (certificate, &bad, "its certificate is not valid"),
        (ca, &bad, "its certificate is not valid"),
        (
            key,
            &other.key,
            "expected the private key of the certificate in",
        ),
    ] {
        let error = with(change, file);
        let begin = format!("{}: {text}", file.display());
        assert!(error.starts_with(&begin), "{error}");
    }
}
