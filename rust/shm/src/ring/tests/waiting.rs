//! Waiting processes are woken, and return in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::blocking::{Deadline, Producer, Until, take_within as take_waiting};
use crate::ring::Corrupt;
use crate::ring::wait::WAITING;
use crate::sync::AtomicU32;

const LONG: Duration = Duration::from_secs(20);

/// Waits without slices, so that only a wake-up ends it.
fn until<P>(limit: Duration, pause: P) -> Until<P> {
    Until {
        deadline: Deadline::At(Instant::now() + limit),
        slice: Duration::MAX,
        pause,
    }
}

fn always() -> bool {
    true
}

/// Waits until a process sleeps on a word, or is about to.
fn asleep(word: &AtomicU32) {
    let start = Instant::now();
    while word.load(Ordering::Relaxed) & WAITING == 0 {
        assert!(start.elapsed() < LONG, "no process went to sleep");
        std::thread::yield_now();
    }
}

fn take_within(process: &mut Process<'_>, want: Want, limit: Duration) -> Taken {
    let Process { queue, record, .. } = process;
    let until = &mut until(limit, always);
    let taken = take_waiting(queue, want, until, || -> Result<Taken, Corrupt> {
        queue.take(record, want, Keep::Copy, &mut |_| ())
    });
    taken.expect("undamaged")
}

fn put_within<P: crate::blocking::Pause>(
    process: &mut Process<'_>,
    claims: &mut Vec<Claim>,
    until: &mut Until<P>,
) -> Result<Option<Refusal>, Corrupt> {
    Producer::new(&process.queue).put_many(&mut process.record, claims, until)
}

#[test]
fn a_wait_ends_with_its_time_or_when_it_is_told_to() {
    let heap = Heap::new(4, 1).with_ring(4, 1);
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), 0);
    let start = Instant::now();
    let short = Duration::from_millis(30);
    assert_eq!(
        take_within(&mut process, Want::Count(1), short),
        Taken::Empty
    );
    assert!(start.elapsed() >= short && start.elapsed() < LONG / 4);
    assert_eq!(process.put(1), Ok(()));
    let mut claims = vec![process.claim(2, 1)];
    let mut left = 3;
    let idle = || {
        left -= 1;
        left > 0
    };
    let mut until = until(LONG, idle);
    until.slice = Duration::from_millis(5);
    let put = put_within(&mut process, &mut claims, &mut until);
    assert_eq!((put, left), (Ok(Some(Refusal::Full)), 0));
}

/// A process that waits for much does not swallow the wake-ups of one that waits for little.
#[test]
fn waiting_for_weight_and_for_one_do_not_disturb_each_other() {
    let heap = Heap::new(16, 4).with_ring(16, 10);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let got = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let want = of_weight(5);
            let taken = take_within(&mut Process::new(view, 1), want, LONG);
            assert_eq!(
                taken,
                Taken::Messages {
                    count: 5,
                    weight: 5
                }
            );
        });
        scope.spawn(|| {
            asleep(&rings[0].waits().enough);
            let taken = take_within(&mut Process::new(view, 2), Want::Count(1), LONG);
            assert_eq!(
                taken,
                Taken::Messages {
                    count: 1,
                    weight: 1
                }
            );
            got.store(true, Ordering::Relaxed);
        });
        asleep(&rings[0].waits().not_empty);
        let mut producer = Process::new(view, 0);
        let start = Instant::now();
        assert_eq!(producer.put(0), Ok(()));
        while !got.load(Ordering::Relaxed) {
            assert!(
                start.elapsed() < LONG / 2,
                "the one message woke no process that can use it"
            );
            std::thread::yield_now();
        }
        for number in 1..=5 {
            assert_eq!(producer.put(number), Ok(()));
        }
    });
    assert_eq!(view.table.in_use(), 0);
}

#[test]
fn a_producer_without_memory_lets_those_that_wait_for_weight_take_what_there_is() {
    let heap = Heap::new(2, 1).with_ring(4, 3);
    let rings = heap.rings().expect("sound");
    let mut process = Process::new(heap.view(&rings), 0);
    assert_eq!(process.put(1), Ok(()));
    let want = of_weight(9);
    let taken = process.take(want, Keep::Copy, &mut Vec::new()).0;
    assert_eq!(taken, Taken::Short);
    process.queue.tell_no_room();
    let taken = process.take(want, Keep::Copy, &mut Vec::new()).0;
    assert!(matches!(taken, Taken::Messages { count: 1, .. }));
}

/// One message makes room for several shorter ones, and wakes all that wait with them.
#[test]
fn all_producers_that_wait_for_room_in_bytes_are_woken() {
    let heap = Heap::new(16, 4).with_ring(16, 10).with_max_bytes(8);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let mut process = Process::new(view, 0);
    assert_eq!(process.put(100), Ok(()));
    std::thread::scope(|scope| {
        let putters = [(1, 0), (2, 1), (3, 2)].map(|(me, number)| {
            scope.spawn(move || {
                let mut process = Process::new(view, me);
                let mut claims = vec![process.claim_outside(number, 1)];
                put_within(&mut process, &mut claims, &mut until(LONG, always))
            })
        });
        asleep(&rings[0].waits().not_full);
        let taken = process.take(Want::Count(1), Keep::Copy, &mut Vec::new());
        assert!(matches!(taken.0, Taken::Messages { count: 1, .. }));
        for putter in putters {
            assert_eq!(putter.join().expect("no panic"), Ok(None));
        }
    });
    assert_eq!(process.queue.queued_bytes(), Ok(Some(1 + 2 + 3)));
}

#[test]
fn closing_wakes_all_consumers() {
    let heap = Heap::new(16, 4).with_ring(4, 1);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let process = Process::new(view, 0);
    std::thread::scope(|scope| {
        let want = of_weight(9);
        let getters = [(1, Want::Count(1)), (2, Want::Count(2)), (3, want)].map(|(me, want)| {
            scope.spawn(move || take_within(&mut Process::new(view, me), want, LONG))
        });
        asleep(&rings[0].waits().not_empty);
        asleep(&rings[0].waits().enough);
        process.queue.close().expect("undamaged");
        for getter in getters {
            assert_eq!(getter.join().expect("no panic"), Taken::Closed);
        }
    });
}
