//! Objects of one process that share a session: it is left with the last of them.

#![cfg(all(target_os = "linux", not(loom)))]

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;
use std::thread;

use shoal_shm::session::{Bounds, Error, Session, Settings};

fn made() -> (tempfile::TempDir, Arc<Session>) {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings::in_folder(folder.path(), 1 << 20, 16);
    let session = joined(|| Session::create(&settings)).expect("made");
    (folder, session)
}

fn joined(open: impl Fn() -> Result<Arc<Session>, Error>) -> Result<Arc<Session>, Error> {
    match Session::join(open, || Ok::<(), Infallible>(())) {
        Ok(joined) => joined,
    }
}

fn close(session: &Session) -> bool {
    let last = session.release();
    if last {
        session.shut();
    }
    last
}

#[test]
fn the_session_is_left_with_the_last_object() {
    let (folder, first) = made();
    let token = first.token().to_owned();
    let second = joined(|| Session::attach(&token)).expect("joined");
    assert!(Arc::ptr_eq(&first, &second), "one participant");
    assert!(!close(&first));
    assert_eq!(second.stats().expect("open").participants, 1);
    assert!(close(&second));
    assert!(matches!(second.stats(), Err(Error::Closed(_))));
    assert!(!close(&second));
    assert!(joined(|| Session::attach(&token)).is_err());
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
}

#[test]
fn a_session_whose_messages_are_in_use_is_joined_again() {
    let (_folder, session) = made();
    let queue = session.queue(b"k", Bounds::default()).expect("a queue");
    let draft = queue.draft(5000).expect("memory").expect("memory");
    assert!(close(&session));
    let again = joined(|| Session::attach(session.token())).expect("joined");
    assert!(Arc::ptr_eq(&session, &again), "the same participant");
    assert!(again.stats().is_ok());
    drop(draft);
    assert!(again.stats().is_ok());
    assert!(close(&again));
}

#[test]
fn a_join_waits_while_another_thread_leaves() {
    let (_folder, session) = made();
    let token = session.token().to_owned();
    // The files stay, as if another process took part.
    session.keep();
    assert!(session.release(), "the last object, which leaves below");
    let tries = Cell::new(0);
    let joined = Session::join(
        || Session::attach(&token),
        || {
            tries.set(tries.get() + 1);
            if tries.get() == 1 {
                thread::scope(|scope| {
                    scope.spawn(|| session.shut());
                });
            }
            Ok::<(), Infallible>(())
        },
    );
    let joined = joined.expect("no interrupt").expect("joined");
    assert_eq!(tries.get(), 1);
    assert!(!Arc::ptr_eq(&session, &joined), "a new participant");
    assert!(close(&joined));
}

#[test]
fn a_join_that_waits_can_be_interrupted() {
    let (_folder, session) = made();
    assert!(session.release());
    let joined = Session::join(|| Session::attach(session.token()), || Err("interrupted"));
    assert_eq!(joined.expect_err("an interrupt"), "interrupted");
    session.shut();
}

#[test]
fn threads_join_and_leave_at_will() {
    let (_folder, session) = made();
    session.keep();
    let token = session.token();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let mine = joined(|| Session::attach(token)).expect("joined");
                    mine.keep();
                    assert!(mine.stats().is_ok(), "its own object keeps it open");
                    close(&mine);
                }
            });
        }
        close(&session);
    });
}
