//! The queue under weak memory: loom runs every interleaving, with every value that a load may see.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p shoal-core --test loom
//! ```
//!
//! Loom takes SeqCst accesses for AcqRel and does not reorder a load with a later store; the first
//! makes it stricter than the machine, the second is for the stress test.
#![cfg(loom)]

use std::sync::Arc as StdArc;
use std::time::Duration;

use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use shoal_core::shm::heap::Heap;
use shoal_core::shm::{
    AtomicU32, Claim, Futex, Heavy, Keep, Label, Lane, Owner, Queue, Refusal, Sweeper, Swept,
    Table, Taken, Until, Want,
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

/// Nobody sleeps in this model.
#[derive(Clone)]
struct Awake;

impl Futex for Awake {
    fn wait(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
        unreachable!("nobody waits")
    }

    fn wake(&self, _: &AtomicU32, _: u32) {
        unreachable!("nobody sleeps")
    }
}

fn owner(index: u16) -> Owner {
    Owner::new(index).unwrap()
}

/// What a process does with a queue; everything it needs is made anew in its thread.
struct Process<'a, F: Futex> {
    queue: Queue<'a, F>,
    lane: Lane<'a>,
}

impl<'a, F: Futex> Process<'a, F> {
    fn new(table: Table<'a>, me: u16, futex: F) -> Self {
        let participant = &table.participants[usize::from(me)];
        Self {
            queue: Queue::new(table, 0, owner(me), futex, 0).unwrap(),
            lane: Lane::new(participant, 0).unwrap(),
        }
    }

    fn claim(&self, number: u64) -> Option<Claim> {
        let claim = self.queue.claim()?;
        let label = Label { weight: number, kind: 0 };
        assert!(self.queue.fill(&claim, label, &number.to_ne_bytes()));
        Some(claim)
    }

    fn put(&mut self, number: u64) -> Result<(), Refusal> {
        let Some(claim) = self.claim(number) else {
            return Err(Refusal::Full);
        };
        self.queue.put(&mut self.lane, claim).unwrap().map_err(|(claim, refusal)| {
            self.queue.unclaim(claim);
            refusal
        })
    }

    fn put_waiting(&mut self, numbers: &[u64]) -> Option<Refusal> {
        let mut claims = numbers.iter().map(|&n| self.claim(n).unwrap()).collect();
        let end = self.queue.put_within(&mut self.lane, &mut claims, &mut forever(&mut || true));
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
    assert_eq!((message.len(), message.label.weight), (8, number), "a torn message");
    number
}

fn forever(idle: &mut dyn FnMut() -> bool) -> Until<'_> {
    Until { deadline: None, slice: Duration::MAX, idle }
}

fn sweep(table: Table<'_>, me: u16, dead: u16) -> Swept {
    let mut lane = Lane::new(&table.participants[usize::from(me)], 0).unwrap();
    let sweeper = Sweeper::new(table, owner(me), Awake);
    sweeper.sweep(&mut lane, |other| other == owner(dead)).unwrap()
}

type Work<T> = StdArc<dyn Fn(Table<'_>) -> T + Send + Sync>;

fn work<T>(f: impl Fn(Table<'_>) -> T + Send + Sync + 'static) -> Work<T> {
    StdArc::new(f)
}

/// Runs `before`, then all of `threads` (the last in the main thread), then `after`.
fn search<T: Send + 'static>(
    heap: impl Fn() -> Heap + Send + Sync + 'static,
    preemptions: Option<usize>,
    before: impl Fn(Table<'_>) + Send + Sync + 'static,
    threads: impl Fn() -> Vec<Work<T>> + Send + Sync + 'static,
    after: impl Fn(Table<'_>, Vec<T>) + Send + Sync + 'static,
) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    let count = StdArc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = StdArc::clone(&count);
    builder.check(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let heap = Arc::new(heap());
        before(heap.table(&heap.rings().unwrap()));
        let mut works = threads();
        let last = works.pop().unwrap();
        let running: Vec<_> = works
            .into_iter()
            .map(|work| {
                let heap = Arc::clone(&heap);
                thread::spawn(move || work(heap.table(&heap.rings().unwrap())))
            })
            .collect();
        let rings = heap.rings().unwrap();
        let mine = last(heap.table(&rings));
        let mut results: Vec<_> = running.into_iter().map(|t| t.join().unwrap()).collect();
        results.push(mine);
        after(heap.table(&rings), results);
    });
    println!("{} executions", count.load(std::sync::atomic::Ordering::Relaxed));
}

fn all(lists: Vec<Vec<u64>>) -> Vec<u64> {
    let mut all = lists.concat();
    all.sort_unstable();
    all
}

/// What is left in the queue.
fn rest(table: Table<'_>) -> Vec<u64> {
    Process::new(table, 0, Awake).take(Want::Count(9), Keep::Copy)
}

/// A message goes from one process to another whole, through a slot and a descriptor used again.
#[test]
fn one_puts_and_one_takes() {
    search(
        || Heap::new(2, 3).with_ring(2, 1),
        None,
        |_| (),
        || {
            vec![
                work(|table| {
                    let mut process = Process::new(table, 1, Awake);
                    (1..=2).filter(|&n| process.put(n).is_ok()).map(|n| n + 100).collect()
                }),
                work(|table| {
                    let mut process = Process::new(table, 2, Awake);
                    (0..2).flat_map(|_| process.take(Want::Count(1), Keep::Copy)).collect()
                }),
            ]
        },
        |table, results: Vec<Vec<u64>>| {
            let put: Vec<_> = results[0].iter().map(|n| n - 100).collect();
            let got = [results[1].clone(), rest(table)].concat();
            assert_eq!(put, got);
            assert_eq!(table.in_use(), 0);
        },
    );
}
