//! Waiting processes notice a death: no process has to ask for a sweep.

use std::io::Write;
use std::time::{Duration, Instant};

use super::case::Survivor;
use super::messages::{Kind, put, take};
use super::victim::{Act, BOUNDS, MEMORY, does};
use crate::ring::take::{Keep, Want};
use crate::ring::wait::WaitState;
use crate::session::MemoryPolicy;

/// Longest time for which a waiting process does not look for dead ones.
const SLICE: Duration = Duration::from_millis(50);
/// Longest wait for a death to be noticed, on a machine that does much else. Two seconds are promised.
const LONG: Duration = Duration::from_secs(30);
const KEY: &str = "waited-for";

/// Runs an act in a process that is then killed; returns the result of `look`, which is called
/// until it gives one.
fn noticed<T>(survivor: &Survivor, act: Act, mut look: impl FnMut() -> Option<T>) -> T {
    let mut victim = does(act, survivor.session.token(), KEY);
    assert!(look().is_none(), "it lives");
    victim.kill();
    let killed = Instant::now();
    loop {
        if let Some(found) = look() {
            let waited = killed.elapsed();
            // Seen with --nocapture.
            writeln!(std::io::stderr(), "{act:?} was noticed after {waited:?}").expect("written");
            return found;
        }
        assert!(killed.elapsed() < LONG, "it was not noticed in time");
        survivor.session.tend();
    }
}

#[test]
fn messages_of_the_dead_reach_a_process_that_waits_for_one() {
    let survivor = Survivor::new(MemoryPolicy::Block);
    let queue = survivor
        .session
        .queue(KEY.as_bytes(), BOUNDS)
        .expect("room");
    for number in 0..5 {
        let sent = put(&queue, number, Kind::Block).expect("sound");
        assert_eq!(sent, Ok(()));
        let act = Act::Take(Keep::Lease, 2, Kind::Block);
        let one = noticed(&survivor, act, || {
            let (want, mut wait_state) = (Want::Count(1), WaitState::default());
            queue
                .wait_to_take(want, &mut wait_state, SLICE)
                .expect("sound");
            let mut taken = take(&queue, 1, Keep::Copy, |_| ()).expect("sound");
            queue.done_taking(want, wait_state);
            taken.pop()
        });
        assert_eq!((one.number, one.redelivered), (number, true));
    }
}

#[test]
fn memory_of_the_dead_reaches_a_process_that_waits_for_it() {
    let survivor = Survivor::new(MemoryPolicy::Block);
    let queue = survivor
        .session
        .queue(KEY.as_bytes(), BOUNDS)
        .expect("room");
    for _ in 0..5 {
        let draft = noticed(&survivor, Act::Hoard, || {
            survivor.session.wait_for_memory(SLICE);
            queue.draft(MEMORY).expect("not an error")
        });
        assert_eq!(draft.len(), MEMORY);
        drop(draft);
        survivor.session.trim();
    }
}
