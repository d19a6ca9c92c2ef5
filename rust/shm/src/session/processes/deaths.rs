//! Processes that are killed, stopped, or die in the middle of a recovery.

use std::time::Instant;

use rustix::process::Signal;

use super::child::{Participant, deadline};
use super::{Process, eventually, start};
use crate::ring::take::Keep;
use crate::ring::word::Owner;
use crate::session::liveness::entered;
use crate::session::{Error, members, recover};
use crate::sync::{AtomicU64, Ordering};

fn owner(index: u16) -> Owner {
    Owner::new(index).expect("in range")
}

/// Whether a process is stopped.
fn is_stopped(process: &Process) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id()));
    stat.is_ok_and(|stat| stat.contains(") T "))
}

#[test]
fn a_stopped_process_is_alive_and_a_killed_one_is_dead_before_it_is_reaped() {
    let base = tempfile::tempdir().expect("a folder");
    let (me, folder) = Participant::create(base.path());
    let mut other = start(&folder, None);
    assert_eq!(other.ask("join").as_deref(), Some("2"));
    assert_eq!(members::count(&me.control), 2);

    other.signal(Signal::STOP);
    eventually(|| is_stopped(&other));
    assert!(me.locks.is_leased(owner(2)).expect("asked"));
    assert!(me.locks.another_process_is_inside().expect("asked"));
    assert_eq!(me.sweep().dead, 0);

    other.signal(Signal::KILL);
    eventually(|| me.sweep().dead == 1);
    assert!(!me.locks.is_leased(owner(2)).expect("asked"));
    assert!(!me.locks.another_process_is_inside().expect("asked"));
    assert_eq!(members::count(&me.control), 1);
    assert_eq!(me.sweep().dead, 0, "once");
}

#[test]
fn a_process_that_the_dead_one_started_does_not_keep_it_alive() {
    struct Kill(rustix::process::Pid);
    impl Drop for Kill {
        fn drop(&mut self) {
            let _ = rustix::process::kill_process(self.0, Signal::KILL);
        }
    }
    let base = tempfile::tempdir().expect("a folder");
    let (me, folder) = Participant::create(base.path());
    let mut other = start(&folder, None);
    assert_eq!(other.ask("join").as_deref(), Some("2"));
    let descendant = other
        .ask("descendant")
        .expect("it runs")
        .parse()
        .expect("an id");
    let descendant = rustix::process::Pid::from_raw(descendant).map(Kill);
    other.kill();
    eventually(|| me.sweep().dead == 1);
    let alive = descendant.expect("an id");
    rustix::process::test_kill_process(alive.0).expect("it runs");
}

#[test]
fn a_dead_producers_messages_stay_and_the_next_process_has_its_index() {
    let base = tempfile::tempdir().expect("a folder");
    let (mut me, folder) = Participant::create(base.path());
    for round in [0, 3] {
        let mut other = start(&folder, None);
        assert_eq!(other.ask("join").as_deref(), Some("2"), "the same index");
        for number in 1..=3 {
            other.ask(&format!("put {}", round + number)).expect("put");
        }
        other.kill();
        eventually(|| me.sweep().dead == 1);
        for number in 1..=3 {
            assert_eq!(me.take(Keep::Copy), round + number);
        }
        let generation = &me.control.processes()[2].generation;
        assert_eq!(generation.load(Ordering::Relaxed), u32::from(round / 3) + 1);
    }
    assert_eq!(me.in_use(), 0);
}

#[test]
fn a_redelivery_without_room_happens_later() {
    let base = tempfile::tempdir().expect("a folder");
    let (mut me, folder) = Participant::create(base.path());
    let mut other = start(&folder, None);
    other.ask("join").expect("it runs");
    me.put(0);
    assert_eq!(other.ask("lease").as_deref(), Some("0"));
    for number in 1..=63 {
        me.put(number);
    }
    other.kill();
    eventually(|| me.sweep().dead == 1);
    let counters = &me.control.superblock().counters.0;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!(
        (get(&counters.postponed), get(&counters.redelivered)),
        (1, 0)
    );
    assert_eq!(
        members::count(&me.control),
        1,
        "its index is free all the same"
    );

    assert_eq!(me.take(Keep::Copy), 1);
    assert_eq!(me.sweep().redelivered, 1);
    for number in (2..=63).chain([0]) {
        assert_eq!(me.take(Keep::Copy), number);
    }
    let counters = &me.control.superblock().counters.0;
    assert_eq!(counters.postponed.load(Ordering::Relaxed), 0);
    assert_eq!(me.in_use(), 0);
}

#[test]
fn two_processes_that_clean_up_at_a_time_do_it_once() {
    let base = tempfile::tempdir().expect("a folder");
    let (mut me, folder) = Participant::create(base.path());
    let mut others: Vec<_> = (0..2).map(|_| start(&folder, None)).collect();
    for other in &mut others {
        other.ask("join").expect("it runs");
    }
    for number in 1..=5 {
        let mut victim = start(&folder, None);
        assert_eq!(
            victim.ask("join").as_deref(),
            Some("4"),
            "always free again"
        );
        me.put(number);
        victim.ask("lease").expect("it runs");
        victim.kill();
        eventually(|| !me.locks.is_leased(owner(4)).expect("asked"));
        for other in &mut others {
            other.tell("sweep");
        }
        let swept = others.iter().map(|other| other.answer().expect("it runs"));
        let found = swept.filter(|swept| swept.contains("dead: 1")).count();
        assert_eq!(found, 1);
        assert_eq!(me.take(Keep::Copy), number);
    }
    assert_eq!(me.in_use(), 0);
}

#[test]
fn a_process_that_dies_with_the_structural_lock_gives_it_back() {
    let base = tempfile::tempdir().expect("a folder");
    let (me, folder) = Participant::create(base.path());
    let mut other = start(&folder, None);
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
fn a_process_that_dies_while_it_joins_leaves_room() {
    let base = tempfile::tempdir().expect("a folder");
    let (me, folder) = Participant::create(base.path());
    for (point, enters) in [
        ("chosen", false),
        ("leased", false),
        ("written", false),
        ("entered", true),
    ] {
        let mut joiner = start(&folder, Some(point));
        assert_eq!(joiner.ask("join"), None, "it dies {point}");
        assert!(joiner.is_killed(), "{point}");
        assert_eq!(
            members::count(&me.control),
            1 + u64::from(enters),
            "{point}"
        );
        let mut next = start(&folder, None);
        let index = if enters { "3" } else { "2" };
        assert_eq!(next.ask("join").as_deref(), Some(index), "{point}");
        next.kill();
        eventually(|| {
            me.sweep();
            members::count(&me.control) == 1
        });
    }
}

#[test]
fn a_process_that_dies_while_it_cleans_up_is_cleaned_up_with_the_rest() {
    let base = tempfile::tempdir().expect("a folder");
    let (mut me, folder) = Participant::create(base.path());
    for (point, what) in [
        ("swept", "sweep"),
        ("retired", "sweep"),
        ("swept", "leave"),
        ("retired", "leave"),
        ("left", "leave"),
    ] {
        let mut victim = start(&folder, None);
        assert_eq!(victim.ask("join").as_deref(), Some("2"), "{point}");
        let mut sweeper = start(&folder, Some(point));
        // "entered" and the like are other points.
        assert_eq!(sweeper.ask("join").as_deref(), Some("3"), "{point}");
        me.put(1);
        me.put(2);
        victim.ask("lease").expect("it runs");
        sweeper.ask("lease").expect("it runs");
        victim.kill();
        eventually(|| !me.locks.is_leased(owner(2)).expect("asked"));
        assert_eq!(sweeper.ask(what), None, "it dies {point}");
        assert!(sweeper.is_killed(), "{point}");
        eventually(|| {
            me.sweep();
            members::count(&me.control) == 1
        });
        let mut again = [me.take(Keep::Copy), me.take(Keep::Copy)];
        again.sort_unstable();
        assert_eq!(again, [1, 2], "{point}");
        assert_eq!(me.in_use(), 0, "{point}");
    }
}

#[test]
fn a_full_table_has_room_after_its_dead() {
    let base = tempfile::tempdir().expect("a folder");
    let (me, folder) = Participant::create(base.path());
    for process in &me.control.processes()[2..] {
        // The entry belongs to no process, so it is dead at the next look.
        process.taken.store(1, Ordering::Relaxed);
    }
    let mut other = start(&folder, None);
    assert_eq!(other.ask("join").as_deref(), Some("2"));
    assert_eq!(entered(&me.control).count(), 2);

    let alive = u64::from(std::process::id());
    let own = crate::session::liveness::Identity::own();
    for process in &me.control.processes()[3..] {
        process.taken.store(1, Ordering::Relaxed);
        process.pid.store(alive, Ordering::Relaxed);
        process
            .pid_namespace
            .store(own.pid_namespace, Ordering::Relaxed);
        process.start_time.store(own.start_time, Ordering::Relaxed);
    }
    let error = Participant::attach(&folder)
        .expect_err("no room")
        .to_string();
    assert!(error.contains("its 255 participants already"), "{error}");
}

#[test]
fn no_process_looks_for_the_dead_too_often() {
    let base = tempfile::tempdir().expect("a folder");
    let (me, _) = Participant::create(base.path());
    let last = &me.control.superblock().counters.0.last_probe;
    last.store(0, Ordering::Relaxed);
    assert!(recover::due(&me.control));
    assert!(!recover::due(&me.control), "it was just done");
    let just = last.load(Ordering::Relaxed);
    last.store(just - 150, Ordering::Relaxed);
    assert!(recover::due(&me.control));
    for process in &me.control.processes()[2..] {
        process.taken.store(1, Ordering::Relaxed);
    }
    last.store(just - 150, Ordering::Relaxed);
    assert!(!recover::due(&me.control), "there are many");
    // The time comes from a clock that is ahead, in another container: a look does not wait for it.
    last.store(u64::MAX, Ordering::Relaxed);
    assert!(recover::due(&me.control));
    assert!(!recover::due(&me.control));
}
