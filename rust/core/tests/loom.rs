//! The queue under weak memory: loom runs every interleaving, with every value that a load may see.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p shoal-core --test loom
//! ```
//!
//! Loom takes SeqCst accesses for AcqRel and does not reorder a load with a later store; the first
//! makes it stricter than the machine, the second is for the stress test.
//!
//! A search is complete where its bound is None, and else for so many preemptions. Tried once with
//! more: `two_sleeping_consumers_are_woken` is complete for 3 (70 s), `closing_ends_every_wait`
//! without a bound (50 s).
#![cfg(loom)]

use std::sync::Arc as StdArc;
use std::time::Duration;

use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use shoal_core::shm::heap::{Heap, View};
use shoal_core::shm::{
    AtomicU32, Claim, Futex, Heavy, Keep, Label, Lane, Owner, Payload, Queue, Refusal, Swept,
    Taken, Until, Want,
};

/// A futex that never comes back by itself: who is not woken is found as a deadlock.
#[derive(Clone)]
struct Sleep(Arc<(Mutex<()>, Condvar)>);

impl Sleep {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(()), Condvar::new())))
    }
}

impl Futex for Sleep {
    fn wait(&self, word: &AtomicU32, expected: u32, _: Duration) -> bool {
        let (mutex, condvar) = &*self.0;
        let guard = mutex.lock().unwrap();
        // As the kernel: it looks at the word under the lock that wakers take.
        if word.load(std::sync::atomic::Ordering::Relaxed) == expected {
            drop(condvar.wait(guard).unwrap());
        }
        true
    }

    fn wake(&self, _: &AtomicU32, count: u32) {
        let (mutex, condvar) = &*self.0;
        let _guard = mutex.lock().unwrap();
        if count == 1 {
            condvar.notify_one();
        } else {
            condvar.notify_all();
        }
    }
}

/// The bell of an event loop; nobody sleeps in its model.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    /// Waits until it rings, or has rung.
    fn wait_for(&self) {
        let (mutex, condvar) = &*self.0;
        let mut rung = mutex.lock().unwrap();
        while !*rung {
            rung = condvar.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl Futex for Bell {
    fn wait(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
        unreachable!("nobody waits")
    }

    fn wake(&self, _: &AtomicU32, _: u32) {}

    fn ring(&self, _: Owner) {
        let (mutex, condvar) = &*self.0;
        *mutex.lock().unwrap() = true;
        condvar.notify_all();
    }
}

/// The bells of participants 2 and 3.
#[derive(Clone)]
struct Both([Bell; 2]);

impl Futex for Both {
    fn wait(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
        unreachable!("nobody waits")
    }

    fn wake(&self, _: &AtomicU32, _: u32) {}

    fn ring(&self, participant: Owner) {
        let number = (2..).zip(&self.0).find(|(n, _)| owner(*n) == participant);
        number.unwrap().1.ring(participant);
    }
}

/// Nobody sleeps in this model.
#[derive(Clone)]
struct Awake;

impl Futex for Awake {
    fn wait(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
        unreachable!("nobody waits")
    }

    fn wake(&self, _: &AtomicU32, _: u32) {}
}

/// The participant of a number; that of 0 is the first that a process can be.
fn owner(number: u16) -> Owner {
    Owner::new(number + 1).unwrap()
}

/// What a process does with a queue; everything it needs is made anew in its thread.
struct Process<'a, F: Futex> {
    queue: Queue<'a, F>,
    lane: Lane<'a>,
}

impl<'a, F: Futex> Process<'a, F> {
    fn new(view: View<'a>, me: u16, futex: F) -> Self {
        let participant = &view.table.participants[owner(me).index()];
        Self {
            queue: view.queue(0, owner(me), futex, 0).unwrap(),
            lane: Lane::new(participant, 0).unwrap(),
        }
    }

    fn claim(&self, number: u64) -> Option<Claim> {
        let claim = self.queue.claim()?;
        let label = Label {
            weight: number,
            ..Label::default()
        };
        assert!(self.queue.fill(&claim, label, &number.to_ne_bytes()));
        Some(claim)
    }

    fn put(&mut self, number: u64) -> Result<(), Refusal> {
        let Some(claim) = self.claim(number) else {
            return Err(Refusal::Full);
        };
        self.queue
            .put(&mut self.lane, claim)
            .unwrap()
            .map_err(|(claim, refusal)| {
                self.queue.unclaim(claim);
                refusal
            })
    }

    fn put_waiting(&mut self, numbers: &[u64]) -> Option<Refusal> {
        let mut claims = numbers.iter().map(|&n| self.claim(n).unwrap()).collect();
        let end = self
            .queue
            .put_within(&mut self.lane, &mut claims, &mut forever(&mut || true));
        for claim in claims {
            self.queue.unclaim(claim);
        }
        end.unwrap()
    }

    fn take(&mut self, want: Want, keep: Keep) -> Vec<u64> {
        let mut got = Vec::new();
        let taken = self.queue.take(&mut self.lane, want, keep, &mut |message| {
            got.push(number(&message));
        });
        taken.unwrap();
        got
    }

    /// Takes one message, if there is one.
    fn look(&mut self) -> (Taken, Option<u64>) {
        let mut got = None;
        let taken = self
            .queue
            .take(&mut self.lane, Want::Count(1), Keep::Copy, &mut |message| {
                got = Some(number(&message))
            });
        (taken.unwrap(), got)
    }

    fn take_waiting(&mut self, want: Want) -> (Taken, Vec<u64>) {
        let mut got = Vec::new();
        let taken = self.queue.take_within(
            &mut self.lane,
            want,
            Keep::Copy,
            &mut forever(&mut || true),
            &mut |message| got.push(number(&message)),
        );
        (taken.unwrap(), got)
    }
}

/// The number that is the message; as its weight it has to be the same.
fn number(message: &shoal_core::shm::Message<'_>) -> u64 {
    let mut bytes = [0; 8];
    message.copy(&mut bytes);
    let number = u64::from_ne_bytes(bytes);
    assert_eq!(
        (message.payload(), message.label.weight),
        (Payload::Inline(8), number),
        "a torn message"
    );
    number
}

fn forever(idle: &mut dyn FnMut() -> bool) -> Until<'_> {
    Until {
        deadline: None,
        slice: Duration::MAX,
        idle,
    }
}

fn sweep(view: View<'_>, me: u16, dead: u16) -> Swept {
    let mut lane = Lane::new(&view.table.participants[owner(me).index()], 0).unwrap();
    let sweeper = view.sweeper(owner(me), Awake);
    sweeper
        .sweep(&mut lane, |other| other == owner(dead))
        .unwrap()
}

/// A sweep beside messages of participant 1, all of which are published.
fn takes_nothing(view: View<'_>) {
    let swept = sweep(view, 0, 1);
    let handed_over = swept.handed_over;
    let nothing_else = Swept {
        handed_over,
        ..Swept::default()
    };
    assert!(swept == nothing_else && handed_over <= 1, "{swept:?}");
}

type Work<T> = StdArc<dyn Fn(View<'_>) -> T + Send + Sync>;

fn work<T>(f: impl Fn(View<'_>) -> T + Send + Sync + 'static) -> Work<T> {
    StdArc::new(f)
}

/// Runs `before`, then all of `threads` (the last in the main thread), then `after`.
fn search<T: Send + 'static>(
    heap: impl Fn() -> Heap + Send + Sync + 'static,
    preemptions: Option<usize>,
    before: impl Fn(View<'_>) + Send + Sync + 'static,
    threads: impl Fn() -> Vec<Work<T>> + Send + Sync + 'static,
    after: impl Fn(View<'_>, Vec<T>) + Send + Sync + 'static,
) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    let count = StdArc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = StdArc::clone(&count);
    builder.check(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let heap = Arc::new(heap());
        before(heap.view(&heap.rings().unwrap()));
        let mut works = threads();
        let last = works.pop().unwrap();
        let running: Vec<_> = works
            .into_iter()
            .map(|work| {
                let heap = Arc::clone(&heap);
                thread::spawn(move || work(heap.view(&heap.rings().unwrap())))
            })
            .collect();
        let rings = heap.rings().unwrap();
        let mine = last(heap.view(&rings));
        let mut results: Vec<_> = running.into_iter().map(|t| t.join().unwrap()).collect();
        results.push(mine);
        after(heap.view(&rings), results);
    });
    println!(
        "{} executions",
        count.load(std::sync::atomic::Ordering::Relaxed)
    );
}

fn all(lists: Vec<Vec<u64>>) -> Vec<u64> {
    let mut all = lists.concat();
    all.sort_unstable();
    all
}

/// What is left in the queue.
fn rest(view: View<'_>) -> Vec<u64> {
    Process::new(view, 0, Awake).take(Want::Count(9), Keep::Copy)
}

type Numbers = Vec<u64>;

fn puts(me: u16, numbers: &'static [u64]) -> Work<Numbers> {
    work(move |view| {
        let mut process = Process::new(view, me, Awake);
        numbers
            .iter()
            .copied()
            .filter(|&n| process.put(n).is_ok())
            .collect()
    })
}

fn takes(me: u16, times: u32, want: Want) -> Work<Numbers> {
    work(move |view| {
        let mut process = Process::new(view, me, Awake);
        (0..times)
            .flat_map(|_| process.take(want, Keep::Copy))
            .collect()
    })
}

/// Of what was put, everything was taken or is left, once, and nothing is in use.
fn nothing_lost(view: View<'_>, put: Vec<Numbers>, taken: Vec<Numbers>) {
    assert_eq!(all(put), all([taken, vec![rest(view)]].concat()));
    assert_eq!(view.table.in_use(), 0);
}

/// A message goes from one process to another whole, through a slot and a descriptor used again.
#[test]
fn one_puts_and_one_takes() {
    search(
        || Heap::new(1, 3).with_ring(2, 1),
        None,
        |_| (),
        || vec![puts(1, &[1, 2]), takes(2, 2, Want::Count(1))],
        |view, results| {
            assert!(results[1].is_sorted());
            nothing_lost(view, results[..1].to_vec(), results[1..].to_vec());
        },
    );
}

#[test]
fn two_put_and_one_takes() {
    search(
        || Heap::new(3, 4).with_ring(2, 1),
        Some(3),
        |_| (),
        || vec![puts(1, &[1]), puts(2, &[2]), takes(3, 1, Want::Count(1))],
        |view, results| nothing_lost(view, results[..2].to_vec(), results[2..].to_vec()),
    );
}

/// A batch is published message by message and taken whole by one of two.
#[test]
fn one_puts_a_batch_and_two_take_batches() {
    search(
        || Heap::new(2, 4).with_ring(4, 3),
        Some(3),
        |_| (),
        || {
            let put = work(|view| {
                let mut process = Process::new(view, 1, Awake);
                let mut claims = vec![process.claim(1).unwrap(), process.claim(2).unwrap()];
                let end = process
                    .queue
                    .put_many(&mut process.lane, &mut claims)
                    .unwrap();
                assert_eq!((end, claims.len()), (None, 0));
                vec![1, 2]
            });
            let want = Want::Weight {
                target: 3,
                heavy: Heavy::Refuse,
            };
            vec![put, takes(2, 1, want), takes(3, 1, Want::Count(2))]
        },
        |view, results| {
            assert!(
                results[1].is_empty() || results[1] == [1, 2],
                "half a batch"
            );
            nothing_lost(view, results[..1].to_vec(), results[1..].to_vec());
        },
    );
}

/// One died after its message was published, with `tail` behind, and one with a lease; the others
/// go on while somebody cleans up.
#[test]
fn a_sweep_takes_nothing_from_the_living() {
    search(
        || Heap::new(3, 4).with_ring(4, 2),
        Some(2),
        |view| {
            let mut dead = Process::new(view, 3, Awake);
            dead.put(1).unwrap();
            dead.take(Want::Count(1), Keep::Lease);
            dead.put(2).unwrap();
            drop(dead.claim(7));
        },
        || {
            let sweeper = work(|view| {
                let swept = sweep(view, 0, 3);
                assert_eq!((swept.unpublished, swept.lost, swept.postponed), (1, 0, 0));
                assert_eq!(swept.redelivered, 1);
                vec![]
            });
            vec![puts(1, &[3]), takes(2, 1, Want::Count(1)), sweeper]
        },
        |view, results| {
            assert!(results[1].is_empty() || results[1] == [2]);
            let put = vec![vec![1, 2], results[0].clone()];
            nothing_lost(view, put, results[1..2].to_vec());
        },
    );
}

/// Messages go through the ring and descriptors come back, lap after lap, under a sweep.
#[test]
fn a_sweep_judges_a_ring_that_moves() {
    search(
        || Heap::new(1, 4).with_ring(2, 1),
        Some(4),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let passes = work(|view| {
                let mut process = Process::new(view, 2, Awake);
                let mut got = process.take(Want::Count(1), Keep::Copy);
                // The only descriptor is free again, and put by another one than before.
                assert_eq!(process.put(2), Ok(()));
                got.extend(process.take(Want::Count(1), Keep::Copy));
                got
            });
            let sweeper = work(|view| {
                takes_nothing(view);
                vec![]
            });
            vec![passes, sweeper]
        },
        |view, results| {
            assert_eq!(results[0], [1, 2]);
            assert_eq!(view.table.in_use(), 0);
        },
    );
}

/// The slot of a message that somebody is taking is used again while a sweep looks at it.
#[test]
fn a_sweep_is_lapped() {
    search(
        || Heap::new(3, 4).with_ring(2, 1),
        Some(2),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let laps = work(|view| {
                let mut process = Process::new(view, 3, Awake);
                let mut got = Vec::new();
                for number in [2, 3] {
                    if process.put(number).is_ok() {
                        got.push(number + 100);
                    }
                    if number == 2 {
                        got.extend(process.take(Want::Count(1), Keep::Copy));
                    }
                }
                got
            });
            let sweeper = work(|view| {
                takes_nothing(view);
                vec![]
            });
            vec![takes(2, 1, Want::Count(1)), laps, sweeper]
        },
        |view, results| {
            let (put, got): (Vec<_>, _) = results.concat().into_iter().partition(|&n| n > 100);
            let put = put.into_iter().map(|n| n - 100).chain([1]).collect();
            nothing_lost(view, vec![put], vec![got]);
        },
    );
}

#[test]
fn two_sweepers_bring_a_message_back_once() {
    search(
        || Heap::new(2, 4).with_ring(4, 2),
        None,
        |view| {
            let mut dead = Process::new(view, 3, Awake);
            dead.put(1).unwrap();
            dead.take(Want::Count(1), Keep::Lease);
        },
        || {
            let sweeper = |me| work(move |view| vec![sweep(view, me, 3).redelivered]);
            vec![sweeper(1), sweeper(0)]
        },
        |view, results| {
            assert_eq!(results.concat().iter().sum::<u64>(), 1);
            nothing_lost(view, vec![vec![1]], vec![]);
        },
    );
}

/// What was put before is read from a descriptor while others use it again.
#[test]
fn a_bound_in_bytes_is_exact() {
    search(
        || Heap::new(3, 4).with_ring(4, 3).with_max_bytes(16),
        Some(2),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let passes = work(|view| {
                let mut process = Process::new(view, 2, Awake);
                let mut numbers = process.take(Want::Count(1), Keep::Copy);
                numbers.extend([3, 4].into_iter().filter(|&n| process.put(n).is_ok()));
                numbers
            });
            vec![puts(1, &[2]), passes]
        },
        |view, results| {
            // Two fit in. The first was taken before, so that one of the three at most was refused.
            let put = results[0].len() + results[1].len() - 1;
            assert_eq!((results[1][0], put), (1, 2));
            let queue = Process::new(view, 3, Awake).queue;
            assert_eq!(queue.queued_bytes(), Ok(Some(16)));
            assert_eq!(rest(view).len(), 2);
        },
    );
}

/// One waits for weight that cannot come before it takes, one for room in bytes.
#[test]
fn who_waits_for_weight_learns_that_no_more_bytes_fit_in() {
    search(
        || Heap::new(2, 3).with_ring(4, 3).with_max_bytes(8),
        Some(3),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let sleep = Sleep::new();
            let other = sleep.clone();
            let want = Want::Weight {
                target: 9,
                heavy: Heavy::Refuse,
            };
            vec![
                work(move |view| {
                    let end = Process::new(view, 1, other.clone()).put_waiting(&[2]);
                    assert_eq!(end, None);
                    vec![]
                }),
                work(move |view| Process::new(view, 2, sleep.clone()).take_waiting(want).1),
            ]
        },
        |view, results| {
            assert_eq!(results[1], [1]);
            assert_eq!(rest(view), [2]);
        },
    );
}

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

/// The first message wakes one; the second wakes nobody, if the bit is not set again by then.
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

/// An event loop: it arms, looks, and waits for its bell. None is where the queue ends.
fn take_by_bell(view: View<'_>, me: u16, bell: &Bell) -> Option<u64> {
    let mut process = Process::new(view, me, bell.clone());
    loop {
        assert!(process.queue.arm_take());
        let (taken, got) = process.look();
        if taken == Taken::Empty {
            bell.wait_for();
            continue;
        }
        process.queue.disarm();
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
                    process.queue.disarm();
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

/// Who waits for messages, and who waits for room that does not come, learn of the end.
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

/// A put is before the end or refused.
#[test]
fn a_put_races_with_the_end() {
    search(
        || Heap::new(2, 4).with_ring(4, 2),
        Some(3),
        |_| (),
        || {
            let close = work(|view| {
                Process::new(view, 2, Awake).queue.close().unwrap();
                vec![]
            });
            vec![puts(1, &[1, 2]), takes(3, 1, Want::Count(1)), close]
        },
        |view, results| {
            nothing_lost(view, results[..1].to_vec(), results[1..].to_vec());
            assert_eq!(Process::new(view, 0, Awake).put(9), Err(Refusal::Closed));
        },
    );
}
