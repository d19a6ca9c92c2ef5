//! A process that leaves a session while its other threads are in the middle of an operation.
#![cfg(all(target_os = "linux", not(loom)))]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use shoal_shm::session::{Bounds, Error, MemoryPolicy, Offer, Session, SessionQueue, Settings};
use shoal_shm::{Keep, Label, Want};

fn session(base: &Path) -> (Arc<Session>, SessionQueue) {
    let settings = Settings {
        memory_policy: MemoryPolicy::Error,
        ..Settings::in_folder(base, 256 << 20, 1000)
    };
    let session = Session::create(&settings).expect("space");
    let queue = session.queue(b"q", Bounds::default()).expect("room");
    (session, queue)
}

/// Whether the session still exists: its last process removes it when it leaves.
fn is_there(session: &Session) -> bool {
    Path::new(session.token()).exists()
}

fn put_block(queue: &SessionQueue, byte: u8) {
    let draft = queue.draft(1 << 20).expect("memory").expect("memory");
    draft.write(0, &vec![byte; 1 << 20]).expect("inside");
    let put = queue.put(draft, Label::default()).expect("sound");
    assert!(put.is_ok());
}

#[test]
fn no_process_leaves_in_the_middle_of_a_take() {
    let base = tempfile::tempdir().expect("a folder");
    let (session, queue) = session(base.path());
    let offer = queue.offer(Label::default(), b"one").expect("sound");
    assert_eq!(offer, Offer::Put);
    let (leaving, left) = channel();
    thread::scope(|scope| {
        let mut seen = 0;
        let mut out = |_: shoal_shm::Message<'_>| {
            let (leaving, session) = (leaving.clone(), &session);
            scope.spawn(move || {
                session.shut();
                leaving.send(()).expect("the receiver lives");
            });
            // It has not left while this take is in progress.
            let early = left.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err() && is_there(session));
            seen += 1;
        };
        queue
            .take(Want::Count(1), Keep::Copy, &mut out)
            .expect("sound");
        assert_eq!(seen, 1);
    });
    assert!(!is_there(&session), "afterwards it has");
}

#[test]
fn taken_memory_stays_until_given_back_after_the_process_left() {
    let base = tempfile::tempdir().expect("a folder");
    let (session, queue) = session(base.path());
    put_block(&queue, 7);
    for keep in [Keep::Loan, Keep::Lease] {
        let again = session.queue(b"q", Bounds::default()).expect("open");
        put_block(&again, 8);
        let mut taken = None;
        queue
            .take(Want::Count(1), keep, &mut |message| {
                taken = message.loan().map(|loan| (loan, message.payload()));
            })
            .expect("sound");
        let (loan, place) = taken.expect("there is one");
        session.shut();
        assert!(is_there(&session), "the message is still in use");
        let held = queue.hold(loan, place).expect("it is there");
        let mut byte = [0];
        held.read(9, &mut byte).expect("inside");
        assert!([7, 8].contains(&byte[0]));
        if keep == Keep::Loan {
            let same = Session::attach(session.token()).expect("it has not left");
            assert!(Arc::ptr_eq(&same, &session));
        }
        drop(held);
    }
    assert!(!is_there(&session));
}

#[test]
fn a_thread_that_makes_a_message_while_another_leaves_has_it_or_is_told() {
    let base = tempfile::tempdir().expect("a folder");
    for round in 0..30 {
        let (session, queue) = session(base.path());
        thread::scope(|scope| {
            let maker = scope.spawn(|| queue.draft(16 << 20));
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(round * 50) {
                std::hint::spin_loop();
            }
            session.shut();
            match maker.join().expect("no panic") {
                Ok(draft) => {
                    let draft = draft.expect("memory");
                    assert!(is_there(&session), "round {round}: its memory is gone");
                    draft.write(0, b"all right").expect("inside");
                }
                Err(Error::Closed(_)) => (),
                Err(error) => panic!("round {round}: {error}"),
            }
        });
        assert!(!is_there(&session), "round {round}");
    }
}

#[test]
fn a_session_is_the_same_whatever_leads_to_it() {
    let base = tempfile::tempdir().expect("a folder");
    let (session, _queue) = session(base.path());
    let link = base.path().join("link");
    std::os::unix::fs::symlink(base.path(), &link).expect("linked");
    let name = Path::new(session.token()).file_name().expect("a name");
    let other = link.join(name);
    let same = Session::attach(other.to_str().expect("text")).expect("there");
    assert!(Arc::ptr_eq(&same, &session));
    assert_eq!(session.stats().expect("sound").participants, 1);
}

#[test]
fn a_process_that_attaches_while_the_last_object_goes_waits_until_it_is_gone() {
    let base = tempfile::tempdir().expect("a folder");
    for _ in 0..50 {
        let (session, queue) = session(base.path());
        let token = session.token().to_owned();
        drop(queue);
        thread::scope(|scope| {
            scope.spawn(move || drop(session));
            match Session::attach(&token) {
                // It came first, or found the session gone; one process never has two participants
                // at once.
                Ok(session) => assert_eq!(session.stats().expect("sound").participants, 1),
                Err(Error::Gone(_) | Error::File(_)) => (),
                Err(error) => panic!("{error}"),
            }
        });
    }
}
