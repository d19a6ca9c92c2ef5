//! Event loops are rung when there is something for them, whichever process dies.

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::failpoint::dies_after;
use crate::sync::AtomicU32;

const WAITS: u16 = 1;
const OTHER: u16 = 2;

/// Notes which participants were rung.
#[derive(Default)]
struct Noted(Mutex<Vec<Owner>>);

impl Noted {
    fn rung(&self) -> Vec<Owner> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

impl Futex for &Noted {
    fn wait(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
        panic!("no process sleeps here")
    }

    fn wake(&self, _: &AtomicU32, _: u32) {
        panic!("no process sleeps here")
    }

    fn ring(&self, participant: Owner) {
        self.0.lock().expect("no panic").push(participant);
    }
}

type Member<'a> = Process<'a, &'a Noted>;

fn member<'a>(view: View<'a>, me: u16, noted: &'a Noted) -> Member<'a> {
    Process::of_ring(view, 0, me, noted)
}

fn puts(member: &mut Member<'_>) -> bool {
    member.put(1).is_ok()
}

fn takes(member: &mut Member<'_>) -> bool {
    let (taken, _) = member.take(Want::Count(1), Keep::Copy, &mut Vec::new());
    matches!(taken, Taken::Messages { .. })
}

#[test]
fn an_armed_participant_is_rung_once() {
    let heap = Heap::new(8, 3).with_ring(4, 1);
    let (rings, noted) = (heap.rings().expect("sound"), Noted::default());
    let view = heap.view(&rings);
    let mut waits = member(view, WAITS, &noted);
    let mut other = member(view, OTHER, &noted);
    assert!(waits.queue.arm_take());
    assert!(noted.rung().is_empty(), "there is nothing to take yet");
    assert!(puts(&mut other));
    assert_eq!(noted.rung(), [owner(WAITS)]);

    assert!(
        takes(&mut other) && puts(&mut other),
        "no process is armed any more"
    );
    assert!(noted.rung().is_empty());
    assert!(waits.queue.arm_put() && other.queue.arm_put());
    assert!(!puts(&mut waits) && noted.rung().is_empty(), "it is full");
    assert!(takes(&mut waits));
    assert_eq!(noted.rung(), [owner(WAITS), owner(OTHER)]);

    assert!(waits.queue.arm_take() && other.queue.arm_put());
    other.queue.close().expect("undamaged");
    assert_eq!(noted.rung(), [owner(WAITS), owner(OTHER)]);
}

#[test]
fn an_event_loop_that_waits_for_weight_learns_that_no_more_bytes_fit_in() {
    let heap = Heap::new(8, 3).with_ring(4, 3).with_max_bytes(8);
    let (rings, noted) = (heap.rings().expect("sound"), Noted::default());
    let view = heap.view(&rings);
    let waits = member(view, WAITS, &noted);
    let mut other = member(view, OTHER, &noted);
    assert!(puts(&mut other) && waits.queue.arm_take());
    let want = of_weight(9);
    assert_eq!(waits.queue.is_takeable(want), Ok(false));
    assert!(!puts(&mut other));
    assert_eq!(noted.rung(), [owner(WAITS)]);
    assert_eq!(waits.queue.is_takeable(want), Ok(true));
}

#[test]
fn participants_of_every_index_are_rung_and_none_beyond_the_last_bit() {
    let heap = Heap::new(8, 300).with_ring(4, 1);
    let (rings, noted) = (heap.rings().expect("sound"), Noted::default());
    let view = heap.view(&rings);
    for index in [63, 64, 65, 128, 255] {
        let waits = member(view, index - 1, &noted);
        assert!(waits.queue.arm_take());
    }
    assert!(!member(view, 255, &noted).queue.arm_take());
    assert!(puts(&mut member(view, 0, &noted)));
    let indices: Vec<_> = noted.rung().iter().map(|rung| rung.index()).collect();
    assert_eq!(indices, [63, 64, 65, 128, 255]);
}

/// A process that must ring dies at any place: the waiting one is rung, by it or by the sweep.
#[test]
fn a_waiting_participant_is_rung_though_the_ringer_dies() {
    type Act = fn(&mut Member<'_>) -> bool;
    let acts: [(bool, Act); 3] = [
        (false, puts),
        (true, takes),
        (false, |member| member.queue.close().is_ok()),
    ];
    let mut deaths = 0;
    for (full, act) in acts {
        for at in 0..1000 {
            let heap = Heap::new(8, 3).with_ring(4, 1);
            let (rings, noted) = (heap.rings().expect("sound"), Noted::default());
            let view = heap.view(&rings);
            let mut waits = member(view, WAITS, &noted);
            assert!(!full || puts(&mut waits));
            assert!(waits.queue.arm_take() && waits.queue.arm_put());
            let mut other = member(view, OTHER, &noted);
            let finished = dies_after(at, || act(&mut other)).is_some();
            if finished {
                let rung = noted.rung();
                assert!(!rung.is_empty() && rung.iter().all(|&rung| rung == owner(WAITS)));
                break;
            }
            let sweeper = view.sweeper(owner(WAITS), &noted);
            let swept = sweeper.sweep(&mut waits.record, |owner| owner == super::owner(OTHER));
            assert!(swept.is_ok());
            let rung = noted.rung();
            assert!(rung.contains(&owner(WAITS)) && !rung.contains(&Owner::NOBODY));
            deaths += 1;
        }
    }
    assert!(deaths > 20, "only {deaths}");
}
