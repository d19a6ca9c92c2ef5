//! How a session ends: its last process leaves, or is killed and another process clears it away.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::process::Signal;

use super::child::{deadline, put, take};
use super::{eventually, start};
use crate::ring::take::Keep;
use crate::ring::word::Owner;
use crate::session::leftovers::clear;
use crate::session::lock::{LOCKS, Locks};
use crate::session::name::Token;
use crate::session::tests::{open, session};
use crate::session::{Control, Error, Session, folders, members};

/// Makes a session look as if it had been made an hour ago.
pub(in crate::session) fn age(folder: &Path) {
    let hour = Duration::from_secs(3600);
    let then = (SystemTime::now() - hour).duration_since(SystemTime::UNIX_EPOCH);
    let seconds = then.expect("after 1970").as_secs();
    let then = Timespec {
        tv_sec: seconds.try_into().expect("in range"),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: then,
        last_modification: then,
    };
    for path in [folder.join(LOCKS), folder.to_owned()] {
        if path.exists() {
            utimensat(CWD, &path, &times, AtFlags::empty()).expect("set");
        }
    }
}

fn listed(base: &Path) -> usize {
    fs::read_dir(base).expect("there").count()
}

#[test]
fn the_last_process_that_leaves_removes_the_session() {
    let disk = tempfile::tempdir().expect("a folder");
    let (base, me) = session(63);
    folders::make_disk(Path::new(me.token()), disk.path()).expect("made");
    let mut other = start(me.token(), None);
    other.ask("join").expect("it runs");
    let queue = open(&me, b"q");
    put(&queue, 1);
    assert_eq!(other.ask("lease").as_deref(), Some("1"));
    other.ask("leave").expect("it runs");
    assert_eq!(me.stats().expect("sound").participants, 1);
    assert_eq!(take(&queue, Keep::Copy), 1, "it is delivered again");
    assert!(!me.control().is_gone());

    me.shut();
    assert!(me.control().is_gone());
    assert_eq!((listed(base.path()), listed(disk.path())), (0, 0));
}

#[test]
fn the_last_process_that_leaves_is_not_the_last_while_another_is_stopped() {
    let (_base, me) = session(63);
    let folder = Path::new(me.token());
    let mut other = start(folder, None);
    other.ask("join").expect("it runs");
    other.signal(Signal::STOP);
    me.shut();
    assert!(folder.is_dir() && !me.control().is_gone());
    other.signal(Signal::CONT);
    other.ask("leave").expect("it runs");
    eventually(|| !folder.exists());
}

#[test]
fn a_message_in_hand_keeps_only_the_entry_of_a_process_that_left() {
    let (_base, me) = session(63);
    let queue = open(&me, b"q");
    let mut other = start(me.token(), None);
    other.ask("join").expect("it runs");
    other.ask("put 7").expect("it runs");
    // This process announces a take that it then does not make.
    let announce = |bits| {
        let record = &me.control().participants()[1].records[7];
        record.store(bits, crate::sync::Ordering::Relaxed);
    };
    let mut descriptors = me.control().descriptors().iter();
    let word = descriptors.find(|one| one.word().bits() != 0);
    let position = word.expect("put").word().bits() & ((1 << 48) - 1);
    announce(2 << 62 | 1 << 48 | position);
    other.ask("leave").expect("it runs");
    assert_eq!(take(&queue, Keep::Copy), 7);
    announce(0);
    // Its process runs, but no longer acts as the participant.
    eventually(|| {
        me.sweep().expect("sound");
        me.stats().expect("sound").participants == 1
    });
    assert!(
        !me.locks
            .is_leased(Owner::new(2).expect("in range"))
            .expect("asked")
    );
}

#[test]
fn clearing_removes_sessions_of_dead_jobs_only() {
    let (base, me) = session(63);
    let own = Path::new(me.token());
    let create = |_| {
        let mut maker = start(base.path(), None);
        let folder = maker.ask(&format!("create {}", base.path().display()));
        (maker, PathBuf::from(folder.expect("made")))
    };
    let mut made: Vec<_> = (0..3).map(create).collect();
    // One folder of the other backend, and one of unknown origin.
    let foreign = Token::random(base.path())
        .expect("a name")
        .folder()
        .to_owned();
    fs::create_dir(&foreign).expect("made");
    fs::write(foreign.join("pure.db"), "").expect("written");
    fs::create_dir(base.path().join("shoal-1-2")).expect("made");

    made[1].0.signal(Signal::STOP);
    for index in [0, 2] {
        made[index].0.kill();
    }
    let mut killed = [made[0].1.clone(), made[2].1.clone()];
    killed.sort();
    for folder in [&made[1].1, own, &foreign] {
        age(folder);
    }
    assert_eq!(clear(base.path()), killed, "just made, but all are dead");
    assert!(made[1].1.is_dir());
    assert!(own.is_dir() && foreign.is_dir());

    // This process still has its lease, though it has looked at the folder.
    let mut other = start(own, None);
    other.ask("join").expect("it runs");
    assert_eq!(other.ask("others").as_deref(), Some("true"));
    // Now it has none; but its entry is taken, and its process runs.
    me.locks.close();
    assert_eq!(other.ask("others").as_deref(), Some("false"));
    for process in [&mut other, &mut made[1].0] {
        process.kill();
    }
    assert_eq!(clear(base.path()), [made[1].1.clone()]);
    assert!(own.is_dir());
}

#[test]
fn half_made_and_half_removed_sessions_are_cleared_when_old() {
    // All participants left, but the session stays for a process that comes later.
    let (base, me) = session(63);
    me.keep();
    me.shut();
    let kept = PathBuf::from(me.token());
    let fresh = || {
        let folder = Token::random(base.path())
            .expect("a name")
            .folder()
            .to_owned();
        fs::create_dir(&folder).expect("made");
        folder
    };
    let empty = fresh();
    let locks_only = fresh();
    drop(Locks::create(&locks_only).expect("made"));
    let not_ours = fresh();
    fs::write(not_ours.join("x1"), "").expect("written");
    let mut expected = [empty, locks_only, kept];
    expected.sort();
    assert_eq!(clear(base.path()), [] as [PathBuf; 0]);
    for folder in expected.iter().chain([&not_ours]) {
        age(folder);
    }
    assert_eq!(clear(base.path()), expected);
    assert_eq!(listed(base.path()), 1, "it has files but no locks");
    assert_eq!(clear(&base.path().join("no")), [] as [PathBuf; 0]);
}

#[test]
fn an_orphan_on_disk_is_cleared() {
    let disk = tempfile::tempdir().expect("a folder");
    let (_base, me) = session(63);
    let folder = Path::new(me.token());
    folders::make_disk(folder, disk.path()).expect("made");
    assert_eq!(
        clear(disk.path()),
        [] as [PathBuf; 0],
        "its session is there"
    );
    fs::remove_file(folder.join(folders::DISK)).expect("removed");
    me.shut();
    assert!(!folder.exists());
    assert_eq!(clear(disk.path()).len(), 1);
    assert_eq!(listed(disk.path()), 0);
}

#[test]
fn a_process_that_attaches_while_the_session_ends_is_told() {
    let base = tempfile::tempdir().expect("a folder");
    let mut maker = start(base.path(), None);
    let folder = maker.ask(&format!("create {}", base.path().display()));
    let folder = PathBuf::from(folder.expect("made"));
    let token: Token = folder.to_str().expect("text").parse().expect("a token");
    let path = folder.join(folders::CONTROL);
    let control = Control::open(&path, token.session(), deadline()).expect("there");
    let locks = Locks::open(&folder).expect("there");
    maker.kill();
    age(&folder);
    // Another process removes the session before this one has the lock.
    let mut cleaner = start(base.path(), None);
    let cleared = cleaner.ask(&format!("clear {}", base.path().display()));
    assert!(cleared.expect("it runs").contains("shoal-"));
    let guard = locks.lock(deadline()).expect("free");
    let error = members::join(&control, &locks, &guard).expect_err("gone");
    assert!(
        matches!(&error, Error::Gone(gone) if *gone == folder),
        "{error}"
    );
    drop(guard);
    assert!(matches!(Locks::open(&folder), Err(Error::Gone(_))));
}

#[test]
fn a_process_that_dies_while_it_ends_the_session_leaves_a_leftover() {
    let base = tempfile::tempdir().expect("a folder");
    let mut last = start(base.path(), Some("gone"));
    let folder = last.ask(&format!("create {}", base.path().display()));
    let folder = PathBuf::from(folder.expect("made"));
    assert_eq!(last.ask("leave"), None);
    assert!(last.is_killed());
    let error = Session::attach(folder.to_str().expect("text")).expect_err("gone");
    assert!(matches!(error, Error::Gone(_)), "{error}");
    age(&folder);
    assert_eq!(clear(base.path()), [folder]);
}
