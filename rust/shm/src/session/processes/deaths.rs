//! Processes that are killed or stopped.

use std::time::Instant;

use rustix::process::Signal;

use super::child::{deadline, put, take};
use super::{Process, eventually, start};
use crate::ring::take::Keep;
use crate::ring::word::Owner;
use crate::session::tests::{open, session};
use crate::session::{Error, Recovery, Session, recover};
use crate::sync::{AtomicU64, Ordering};

fn owner(index: u16) -> Owner {
    Owner::new(index).expect("in range")
}

fn participants(session: &Session) -> u64 {
    session.stats().expect("sound").participants
}

fn sweep(session: &Session) -> Recovery {
    session.sweep().expect("sound")
}

fn is_stopped(process: &Process) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id()));
    stat.is_ok_and(|stat| stat.contains(") T "))
}

#[test]
fn a_stopped_process_is_alive_and_a_killed_one_is_dead_before_it_is_reaped() {
    let (_base, me) = session(63);
    let mut other = start(me.token(), None);
    assert_eq!(other.ask("join").as_deref(), Some("2"));
    assert_eq!(participants(&me), 2);

    other.signal(Signal::STOP);
    eventually(|| is_stopped(&other));
    assert!(me.locks.is_leased(owner(2)).expect("asked"));
    assert!(me.locks.another_process_is_inside().expect("asked"));
    assert_eq!(sweep(&me).dead, 0);

    other.signal(Signal::KILL);
    eventually(|| sweep(&me).dead == 1);
    assert!(!me.locks.is_leased(owner(2)).expect("asked"));
    assert!(!me.locks.another_process_is_inside().expect("asked"));
    assert_eq!(participants(&me), 1);
    assert_eq!(sweep(&me).dead, 0, "once");
}

#[test]
fn a_process_that_the_dead_one_started_does_not_keep_it_alive() {
    struct Kill(rustix::process::Pid);
    impl Drop for Kill {
        fn drop(&mut self) {
            let _ = rustix::process::kill_process(self.0, Signal::KILL);
        }
    }
    let (_base, me) = session(63);
    let mut other = start(me.token(), None);
    assert_eq!(other.ask("join").as_deref(), Some("2"));
    let descendant = other
        .ask("descendant")
        .expect("it runs")
        .parse()
        .expect("an id");
    let descendant = rustix::process::Pid::from_raw(descendant).map(Kill);
    other.kill();
    eventually(|| sweep(&me).dead == 1);
    let alive = descendant.expect("an id");
    rustix::process::test_kill_process(alive.0).expect("it runs");
}

#[test]
fn a_redelivery_without_room_happens_later() {
    let (_base, me) = session(63);
    let mut other = start(me.token(), None);
    other.ask("join").expect("it runs");
    let queue = open(&me, b"q");
    put(&queue, 0);
    assert_eq!(other.ask("lease").as_deref(), Some("0"));
    for number in 1..=63 {
        put(&queue, number);
    }
    other.kill();
    eventually(|| sweep(&me).dead == 1);
    let counters = &me.control().superblock().counters.0;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!(
        (get(&counters.postponed), get(&counters.redelivered)),
        (1, 0)
    );
    assert_eq!(participants(&me), 1, "its index is free all the same");

    assert_eq!(take(&queue, Keep::Copy), 1);
    assert_eq!(sweep(&me).redelivered, 1);
    for number in (2..=63).chain([0]) {
        assert_eq!(take(&queue, Keep::Copy), number);
    }
    let counters = &me.control().superblock().counters.0;
    assert_eq!(counters.postponed.load(Ordering::Relaxed), 0);
    assert_eq!(me.stats().expect("sound").descriptors_in_use, 0);
}

#[test]
fn a_process_that_dies_with_the_structural_lock_gives_it_back() {
    let (_base, me) = session(63);
    let mut other = start(me.token(), None);
    other.ask("join").expect("it runs");
    other.ask("lock").expect("it runs");
    assert!(me.locks.try_lock().expect("asked").is_none());
    let error = me.locks.lock(Instant::now()).expect_err("held");
    let pid = i32::try_from(other.child.id()).ok();
    let Error::Locked { pid: holder, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(holder, pid);
    other.kill();
    drop(me.locks.lock(deadline()).expect("free"));
}

#[test]
fn a_full_table_has_room_after_its_dead() {
    let (_base, me) = session(63);
    for process in &me.control().processes()[2..] {
        // The entry belongs to no process, so it is dead at the next look.
        process.taken.store(1, Ordering::Relaxed);
    }
    let mut other = start(me.token(), None);
    assert_eq!(other.ask("join").as_deref(), Some("2"));
    assert_eq!(participants(&me), 2);

    let alive = u64::from(std::process::id());
    let own = crate::session::liveness::Identity::own();
    for process in &me.control().processes()[3..] {
        process.taken.store(1, Ordering::Relaxed);
        process.pid.store(alive, Ordering::Relaxed);
        process
            .pid_namespace
            .store(own.pid_namespace, Ordering::Relaxed);
        process.start_time.store(own.start_time, Ordering::Relaxed);
    }
    let error = me.again().expect_err("no room").to_string();
    assert!(error.contains("its 255 participants already"), "{error}");
}

#[test]
fn no_process_looks_for_the_dead_too_often() {
    let (_base, me) = session(63);
    let last = &me.control().superblock().counters.0.last_probe;
    last.store(0, Ordering::Relaxed);
    assert!(recover::due(me.control()));
    assert!(!recover::due(me.control()), "it was just done");
    let just = last.load(Ordering::Relaxed);
    last.store(just - 150, Ordering::Relaxed);
    assert!(recover::due(me.control()));
    for process in &me.control().processes()[2..] {
        process.taken.store(1, Ordering::Relaxed);
    }
    last.store(just - 150, Ordering::Relaxed);
    assert!(!recover::due(me.control()), "there are many");
    // The time comes from a clock that is ahead, in another container: a look does not wait for it.
    last.store(u64::MAX, Ordering::Relaxed);
    assert!(recover::due(me.control()));
    assert!(!recover::due(me.control()));
}
