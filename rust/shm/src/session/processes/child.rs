//! The child process of tests: its commands, and its part in a session.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::FOLDER;
use super::process::{PATIENCE, answer_lines};
use crate::ring::take::Keep;
use crate::session::tests::messages::{self, Kind};
use crate::session::tests::open;
use crate::session::{Session, SessionQueue, Settings, leftovers};

/// Not a test but the child of other tests: without a folder it does nothing.
#[test]
fn runs() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let mut session = None;
    answer_lines(|words| match words[..] {
        ["join"] => {
            let token = folder.to_str().expect("text");
            let joined = session.insert(Session::attach(token).expect("there"));
            joined.me().index().to_string()
        }
        ["create", base] => {
            let settings = Settings::in_folder(Path::new(base), 1 << 20, 63);
            let made = session.insert(Session::create(&settings).expect("space"));
            made.token().to_owned()
        }
        ["clear", base] => format!("{:?}", leftovers::clear(Path::new(base))),
        ["descendant"] => descendant(),
        _ => act(session.as_ref().expect("joined"), words),
    });
}

fn act(session: &Arc<Session>, words: &[&str]) -> String {
    let queue = || open(session, b"q");
    match words[..] {
        ["lock"] => {
            std::mem::forget(session.locks.lock(deadline()).expect("free"));
            String::new()
        }
        ["put", number] => {
            put(&queue(), number.parse().expect("a number"));
            String::new()
        }
        ["lease"] => take(&queue(), Keep::Lease).to_string(),
        ["others"] => {
            let others = session.locks.another_process_is_inside();
            others.expect("asked").to_string()
        }
        ["leave"] => {
            session.shut();
            String::new()
        }
        _ => panic!("what is {words:?}?"),
    }
}

/// Starts a process that lives on when the child is killed; returns its pid.
fn descendant() -> String {
    let child = std::process::Command::new("sleep").arg("60").spawn();
    child.expect("started").id().to_string()
}

pub(super) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

pub(super) fn put(queue: &SessionQueue, number: u64) {
    assert_eq!(
        messages::put(queue, number, Kind::Inline).expect("sound"),
        Ok(())
    );
}

/// Takes a message; a lease stays one, though nothing holds it.
pub(super) fn take(queue: &SessionQueue, keep: Keep) -> u64 {
    let taken = messages::take(queue, 1, keep, |_| ()).expect("sound");
    taken[0].number
}
