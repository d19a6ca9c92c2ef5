//! Sessions as callers use them, with payloads in blocks, and processes that are killed.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;

use crate::ring::{Keep, Label, Message, Want};
use crate::session::processes::process::{Process, answer_lines, eventually};
use crate::session::{
    Bounds, Held, MemoryPolicy, Recovery, Session, SessionQueue, Settings, clear,
};

const TOKEN: &str = "SHOAL_TEST_TOKEN";
/// Length of a message: a few of them need more than one extent.
const LENGTH: usize = 6 << 20;

/// The payload of a message: one number, repeated, which shows damage.
fn payload(number: u8) -> Vec<u8> {
    vec![number; LENGTH]
}

fn settings(base: &Path) -> Settings {
    Settings {
        folder: base.to_owned(),
        disk: base.to_owned(),
        payload_on_disk: false,
        max_bytes: 256 << 20,
        backlog: 1000,
        memory_policy: MemoryPolicy::Error,
    }
}

fn queue(session: &Arc<Session>) -> SessionQueue {
    let bounds = Bounds {
        maxsize: None,
        max_bytes: None,
    };
    session.queue(b"q", bounds).expect("room")
}

fn put(queue: &SessionQueue, number: u8) {
    let draft = queue.draft(LENGTH as u64).expect("memory").expect("memory");
    draft.write(0, &payload(number)).expect("inside");
    assert!(
        queue
            .put(draft, Label::default())
            .expect("undamaged")
            .is_ok()
    );
}

/// Takes a message; returns its number, and the object that holds it.
fn take(queue: &SessionQueue, keep: Keep) -> (u8, Held) {
    let mut taken = None;
    let mut out = |message: Message<'_>| {
        taken = message.loan().map(|loan| (loan, message.payload()));
    };
    queue
        .take(Want::Count(1), keep, &mut out)
        .expect("undamaged");
    let (loan, place) = taken.expect("there is one");
    let held = queue.hold(loan, place).expect("undamaged");
    let mut bytes = vec![0; LENGTH];
    held.read(0, &mut bytes).expect("inside");
    assert_eq!(bytes, payload(bytes[0]), "spoilt");
    (bytes[0], held)
}

/// Not a test but the child of other tests: without a token it does nothing.
#[test]
fn child() {
    let Some(token) = std::env::var_os(TOKEN) else {
        return;
    };
    let token = token.into_string().expect("text");
    let session = Session::attach(&token).expect("there");
    let queue = queue(&session);
    let mut drafts = Vec::new();
    let mut held = Vec::new();
    answer_lines(|words| match words {
        ["attach"] => String::new(),
        ["put", number] => {
            put(&queue, number.parse().expect("a number"));
            String::new()
        }
        ["draft"] => {
            drafts.push(queue.draft(LENGTH as u64).expect("memory"));
            String::new()
        }
        ["take", keep] => {
            let keep = if *keep == "lease" {
                Keep::Lease
            } else {
                Keep::Loan
            };
            let (number, one) = take(&queue, keep);
            held.push(one);
            number.to_string()
        }
        ["leave"] => {
            held.clear();
            drafts.clear();
            session.shut();
            String::new()
        }
        _ => panic!("what is {words:?}?"),
    });
}

fn start(session: &Session) -> Process {
    let mut child = Process::start(
        concat!(module_path!(), "::child"),
        &[(TOKEN, OsStr::new(session.token()))],
    );
    child.ask("attach").expect("it runs");
    child
}

/// Sweeps until `dead` processes were found dead.
fn swept(session: &Session, dead: u64) -> Recovery {
    let mut all = Recovery::default();
    eventually(|| {
        let recovery = session.sweep().expect("undamaged");
        all.dead += recovery.dead;
        all.recovered += recovery.recovered;
        all.redelivered += recovery.redelivered;
        all.lost += recovery.lost;
        all.dead >= dead
    });
    all
}

#[test]
fn messages_of_killed_producers_are_read_and_their_memory_is_freed() {
    let base = tempfile::tempdir().expect("a folder");
    let session = Session::create(&settings(base.path())).expect("space");
    let queue = queue(&session);
    let mut producers: Vec<_> = (0..3).map(|_| start(&session)).collect();
    for number in 1..=3 {
        for producer in &mut producers {
            producer.ask(&format!("put {number}")).expect("it runs");
        }
    }
    for producer in &mut producers {
        // A message that was not put yet is not missed.
        producer.ask("draft").expect("it runs");
        producer.kill();
    }
    let recovery = swept(&session, 3);
    assert_eq!(
        (recovery.dead, recovery.recovered, recovery.lost),
        (3, 3, 0)
    );
    let stats = session.stats().expect("undamaged");
    assert_eq!((stats.participants, stats.messages), (1, 9));
    assert_eq!(stats.bytes_in_use, 9 * LENGTH as u64);

    for number in [1, 1, 1, 2, 2, 2, 3, 3, 3] {
        assert_eq!(take(&queue, Keep::Loan).0, number);
    }
    session.sweep().expect("undamaged");
    let stats = session.stats().expect("undamaged");
    assert_eq!((stats.descriptors_in_use, stats.bytes_reserved), (0, 0));
    let extents = std::fs::read_dir(session.token()).expect("there");
    let left = extents.filter(|entry| {
        let entry = entry.as_ref().expect("read");
        entry.file_name().as_encoded_bytes().starts_with(b"x")
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn leases_of_a_killed_consumer_return_and_taken_messages_are_lost() {
    let base = tempfile::tempdir().expect("a folder");
    let session = Session::create(&settings(base.path())).expect("space");
    let queue = queue(&session);
    for number in 1..=3 {
        put(&queue, number);
    }
    let mut consumer = start(&session);
    assert_eq!(consumer.ask("take lease").as_deref(), Some("1"));
    assert_eq!(consumer.ask("take loan").as_deref(), Some("2"));
    consumer.signal(Signal::STOP);
    assert_eq!(session.sweep().expect("undamaged").dead, 0, "it is alive");
    consumer.kill();
    let recovery = swept(&session, 1);
    assert_eq!((recovery.redelivered, recovery.lost), (1, 1));
    let numbers = [0; 2].map(|_| take(&queue, Keep::Loan).0);
    assert_eq!(numbers, [3, 1]);
    let stats = session.stats().expect("undamaged");
    assert_eq!((stats.descriptors_in_use, stats.bytes_in_use), (0, 0));
    assert_eq!((stats.redelivered, stats.lost_messages), (1, 1));
}

#[test]
fn a_session_is_there_until_its_last_process_left() {
    let base = tempfile::tempdir().expect("a folder");
    let session = Session::create(&settings(base.path())).expect("space");
    let folder = Path::new(session.token()).to_owned();
    let mut other = start(&session);
    put(&queue(&session), 7);
    session.shut();
    assert!(folder.is_dir());
    assert_eq!(
        other.ask("take loan").as_deref(),
        Some("7"),
        "of a process that left"
    );
    assert!(clear(base.path()).is_empty());
    other.ask("leave").expect("it runs");
    assert!(!folder.exists());
    let error = Session::attach(session.token()).expect_err("gone");
    assert!(error.to_string().contains(&folder.display().to_string()));
}

#[test]
fn a_process_whose_index_was_anothers_has_none_of_its_memory() {
    let base = tempfile::tempdir().expect("a folder");
    let session = Session::create(&settings(base.path())).expect("space");
    let queue = queue(&session);
    for round in 1..=3 {
        let mut producer = start(&session);
        producer.ask(&format!("put {round}")).expect("it runs");
        producer.kill();
        assert_eq!(swept(&session, 1).dead, 1);
    }
    let mut last = start(&session);
    last.ask("put 4").expect("it runs");
    last.ask("leave").expect("it runs");
    for number in 1..=4 {
        assert_eq!(take(&queue, Keep::Loan).0, number);
    }
    assert_eq!(session.stats().expect("undamaged").participants, 1);
}
