//! Sleepers, event loops, and the end of a queue.

use shoal_shm::internals::heap::{Heap, View};
use shoal_shm::{Keep, Refusal, Taken, Want};

use super::support::*;

#[test]
fn a_sleeping_consumer_is_woken() {
    search(
        || Heap::new(1, 3).with_ring(2, 1),
        None,
        |_| (),
        || {
            let sleep = Sleep::new();
            let other = sleep.clone();
            vec![
                work(move |view| {
                    let end = Process::new(view, 1, other.clone()).put_waiting(&[1]);
                    assert_eq!(end, None);
                    vec![]
                }),
                work(move |view| {
                    Process::new(view, 2, sleep.clone())
                        .take_waiting(Want::Count(1))
                        .1
                }),
            ]
        },
        |_, results| assert_eq!(results[1], [1]),
    );
}

/// The first message wakes one; the second wakes none if the bit is not set again by then.
#[test]
fn two_sleeping_consumers_are_woken() {
    search(
        || Heap::new(2, 4).with_ring(4, 2),
        Some(2),
        |_| (),
        || {
            let sleep = Sleep::new();
            let taker = |me| {
                let sleep = sleep.clone();
                work(move |view| {
                    Process::new(view, me, sleep.clone())
                        .take_waiting(Want::Count(1))
                        .1
                })
            };
            let putter = sleep.clone();
            let put = work(move |view| {
                let mut process = Process::new(view, 1, putter.clone());
                process.put(1).unwrap();
                process.put(2).unwrap();
                vec![]
            });
            vec![taker(2), taker(3), put]
        },
        |_, results| assert_eq!(all(results), [1, 2]),
    );
}

#[test]
fn a_sleeping_producer_is_woken() {
    search(
        || Heap::new(2, 3).with_ring(2, 1),
        None,
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let sleep = Sleep::new();
            let other = sleep.clone();
            vec![
                work(move |view| {
                    let end = Process::new(view, 1, other.clone()).put_waiting(&[2]);
                    assert_eq!(end, None);
                    vec![]
                }),
                work(move |view| {
                    let mut process = Process::new(view, 2, sleep.clone());
                    process.take(Want::Count(1), Keep::Copy)
                }),
            ]
        },
        |view, results| {
            assert_eq!(results[1], [1]);
            assert_eq!(rest(view), [2]);
        },
    );
}

/// Both sleep, the first message taken wakes one, and the second may wake none, because the bit is
/// clear. So a woken producer wakes the next one: when its message is in the queue, or before it
/// prepares one that takes long.
#[test]
fn two_producers_that_prepare_late_are_woken() {
    for together in [false, true] {
        search(
            || Heap::new(4, 4).with_ring(4, 2),
            Some(1),
            |view| {
                let mut process = Process::new(view, 3, Awake);
                process.put(3).unwrap();
                process.put(4).unwrap();
            },
            move || {
                let (sleep, meeting) = (Sleep::new(), Meeting::default());
                let putter = |me| {
                    let (sleep, meeting) = (sleep.clone(), meeting.clone());
                    work(move |view| {
                        let mut process = Process::new(view, me, sleep.clone());
                        let meeting = together.then_some(&meeting);
                        process.put_prepared_late(u64::from(me), meeting);
                        vec![]
                    })
                };
                let other = sleep.clone();
                let take = work(move |view| {
                    let mut process = Process::new(view, 3, other.clone());
                    let one = Want::Count(1);
                    other.wait_for_sleepers(2);
                    [process.take(one, Keep::Copy), process.take(one, Keep::Copy)].concat()
                });
                vec![putter(1), putter(2), take]
            },
            |view, results| {
                assert_eq!(results[2], [3, 4]);
                assert_eq!(all(vec![rest(view)]), [1, 2]);
            },
        );
    }
}

/// An event loop: arms, looks, and waits for its bell. None at the end of the queue.
fn take_by_bell(view: View<'_>, me: u16, bell: &Bell) -> Option<u64> {
    let mut process = Process::new(view, me, bell.clone());
    loop {
        assert!(process.queue.arm_take());
        let (taken, got) = process.look();
        if taken == Taken::Empty {
            bell.wait_for();
            continue;
        }
        return got;
    }
}

#[test]
fn an_event_loop_that_waits_for_messages_is_rung() {
    for close in [false, true] {
        search(
            || Heap::new(1, 3).with_ring(2, 1),
            Some(4),
            |_| (),
            move || {
                let bell = Bell::new();
                let other = bell.clone();
                vec![
                    work(move |view| {
                        let mut process = Process::new(view, 1, other.clone());
                        if close {
                            process.queue.close().unwrap();
                        } else {
                            assert_eq!(process.put(1), Ok(()));
                        }
                        None
                    }),
                    work(move |view| take_by_bell(view, 2, &bell)),
                ]
            },
            move |_, results| assert_eq!(results[1], (!close).then_some(1)),
        );
    }
}

/// Both are rung for the first message, and the one that misses it has to be rung again.
#[test]
fn two_event_loops_are_rung() {
    search(
        || Heap::new(2, 4).with_ring(4, 2),
        Some(2),
        |_| (),
        || {
            let bells = [Bell::new(), Bell::new()];
            let taker = |me: u16| {
                let bell = bells[usize::from(me) - 2].clone();
                work(move |view| take_by_bell(view, me, &bell))
            };
            let both = Both(bells.clone());
            let put = work(move |view| {
                let mut process = Process::new(view, 1, both.clone());
                process.put(1).unwrap();
                process.put(2).unwrap();
                None
            });
            vec![taker(2), taker(3), put]
        },
        |_, results| {
            let got = results.into_iter().flatten().collect();
            assert_eq!(all(vec![got]), [1, 2]);
        },
    );
}

#[test]
fn an_event_loop_that_waits_for_room_is_rung() {
    search(
        || Heap::new(2, 3).with_ring(2, 1),
        Some(4),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let bell = Bell::new();
            let other = bell.clone();
            vec![
                work(move |view| {
                    let mut process = Process::new(view, 1, bell.clone());
                    assert!(process.queue.arm_put());
                    while process.put(2).is_err() {
                        bell.wait_for();
                        assert!(process.queue.arm_put());
                    }
                }),
                work(move |view| {
                    let mut process = Process::new(view, 2, other.clone());
                    assert_eq!(process.take(Want::Count(1), Keep::Copy), [1]);
                }),
            ]
        },
        |view, _| assert_eq!(rest(view), [2]),
    );
}

/// A process that waits for messages, and one that waits for room, both learn of the end.
#[test]
fn closing_ends_every_wait() {
    for full in [false, true] {
        search(
            || Heap::new(2, 3).with_ring(2, 1),
            Some(4),
            move |view| {
                if full {
                    Process::new(view, 1, Awake).put(1).unwrap();
                }
            },
            move || {
                let sleep = Sleep::new();
                let other = sleep.clone();
                vec![
                    work(move |view| {
                        let mut process = Process::new(view, 1, other.clone());
                        if full {
                            assert_eq!(process.put_waiting(&[2]), Some(Refusal::Closed));
                        } else {
                            let closed = process.take_waiting(Want::Count(1));
                            assert_eq!(closed, (Taken::Closed, vec![]));
                        }
                    }),
                    work(move |view| {
                        Process::new(view, 2, sleep.clone()).queue.close().unwrap();
                    }),
                ]
            },
            move |view, _| assert_eq!(rest(view).len(), usize::from(full)),
        );
    }
}
