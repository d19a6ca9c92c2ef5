//! The queue under real threads, on the memory of this machine.
#![cfg(all(target_os = "linux", not(loom)))]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_shm::blocking::{Deadline, Pause, Producer, Until, take_within};
use shoal_shm::internals::heap::{Heap, View};
use shoal_shm::internals::{Claim, IntentRecord, Owner, Queue, Swept, SystemFutex, slots_for};
use shoal_shm::{Corrupt, Keep, Label, Loan, Message, Payload, Taken, Want};

const PRODUCERS: u16 = 4;
const CONSUMERS: u16 = 4;
const LONG: Duration = Duration::from_secs(1);

struct Process<'a> {
    queue: Queue<'a, SystemFutex>,
    record: IntentRecord<'a>,
}

impl<'a> Process<'a> {
    fn new(view: View<'a>, me: u16, spins: u32) -> Self {
        let me = Owner::new(me + 1).expect("in range");
        Self {
            queue: view.queue(0, me, SystemFutex, spins).expect("it exists"),
            record: IntentRecord::new(&view.table.participants[me.index()], 0).expect("it exists"),
        }
    }

    fn claim(&self, number: u64) -> Option<Claim> {
        let claim = self.queue.claim()?;
        let bytes = number.to_ne_bytes().repeat(repeats(number));
        let label = Label {
            weight: 1 + number % 3,
            ..Label::default()
        };
        assert!(self.queue.fill(&claim, label, &bytes));
        Some(claim)
    }
}

/// How often a message repeats its number.
fn repeats(number: u64) -> usize {
    1 + usize::from(number.to_ne_bytes()[0] % 20)
}

/// The number of a message, which is the same in each of its parts.
fn number(message: &Message<'_>) -> u64 {
    let mut bytes = [0; 160];
    let Payload::Inline(length) = message.payload() else {
        panic!("no process put a block");
    };
    let bytes = &mut bytes[..length];
    message.copy(bytes);
    let mut parts = bytes
        .chunks(8)
        .map(|part| u64::from_ne_bytes(part.try_into().expect("8")));
    let number = parts.next().expect("a message is not empty");
    assert!(parts.all(|part| part == number), "a torn message");
    assert_eq!(length, 8 * repeats(number));
    assert_eq!(message.label.weight, 1 + number % 3);
    number
}

fn until() -> Until<impl Pause> {
    Until {
        deadline: Deadline::At(Instant::now() + 20 * LONG),
        // A lost wake-up costs this much, so the test would take too long.
        slice: 20 * LONG,
        pause: || true,
    }
}

fn produce(view: View<'_>, me: u16, stop: &AtomicBool) -> u64 {
    let mut process = Process::new(view, me, 50);
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        let batch = 1 + next % 3;
        let numbers = next..next + batch;
        let mut claims: Vec<_> = numbers
            .map_while(|n| process.claim(u64::from(me) << 32 | n))
            .collect();
        next += claims.len() as u64;
        let mut producer = Producer::new(&process.queue);
        let put = producer.put_many(&mut process.record, &mut claims, &mut until());
        assert_eq!(
            (put, claims.len()),
            (Ok(None), 0),
            "a producer was left asleep"
        );
    }
    next
}

fn consume(view: View<'_>, me: u16) -> Vec<u64> {
    let mut process = Process::new(view, me, 50);
    let mut got = Vec::new();
    let mut loans: Vec<Loan> = Vec::new();
    for turn in 0_usize.. {
        let want = match turn % 4 {
            0 => Want::Weight {
                target: 4,
                least: None,
            },
            _ => Want::Count(1 + u32::from(turn % 4 == 1)),
        };
        let keep = [Keep::Copy, Keep::Copy, Keep::Loan, Keep::Lease, Keep::Copy][turn % 5];
        let (queue, record) = (&process.queue, &mut process.record);
        let taken = take_within(queue, want, &mut until(), || -> Result<Taken, Corrupt> {
            queue.take(record, want, keep, &mut |message| {
                got.push(number(&message));
                assert!(!message.redelivered);
                loans.extend(message.loan());
            })
        });
        match taken.expect("undamaged") {
            Taken::Messages { .. } => (),
            Taken::Closed => break,
            other => panic!("a consumer was left asleep: {other:?}"),
        }
        if loans.len() > 3 {
            loans
                .drain(..)
                .for_each(|loan| process.queue.release(loan).expect("in use"));
        }
    }
    loans
        .drain(..)
        .for_each(|loan| process.queue.release(loan).expect("in use"));
    got
}

/// Each message comes out once, whole, in the order of its producer; a sweep meanwhile takes
/// nothing.
#[test]
fn four_put_and_four_take() {
    for maxsize in [1, 7, 64] {
        let heap = Heap::new(256, 9).with_ring(slots_for(maxsize), maxsize);
        let rings = heap.rings().expect("sound");
        let view = heap.view(&rings);
        let stop = AtomicBool::new(false);
        let all = Mutex::new(Vec::new());
        let put: Vec<u64> = std::thread::scope(|scope| {
            let producers: Vec<_> = (0..PRODUCERS)
                .map(|me| {
                    scope.spawn({
                        let stop = &stop;
                        move || produce(view, me, stop)
                    })
                })
                .collect();
            let consumers: Vec<_> = (0..CONSUMERS)
                .map(|me| scope.spawn(move || consume(view, PRODUCERS + me)))
                .collect();
            let end = Instant::now() + Duration::from_millis(500);
            let me = Owner::new(1 + PRODUCERS + CONSUMERS).expect("in range");
            let sweeper = view.sweeper(me, SystemFutex);
            let mut cleaned = false;
            while Instant::now() < end {
                let mut record =
                    IntentRecord::new(&view.table.participants[me.index()], 0).expect("it exists");
                // No process is dead, so there is nothing to clean up, whatever the others are
                // doing. A panic here would leave the others waiting.
                let swept = sweeper.sweep(&mut record, |_| false).expect("undamaged");
                cleaned |= Swept { spared: 0, ..swept } != Swept::default();
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
            assert!(!cleaned, "a sweep took something from the living");
            let put = producers
                .into_iter()
                .map(|p| p.join().expect("no panic"))
                .collect();
            Process::new(view, 8, 0).queue.close().expect("undamaged");
            for consumer in consumers {
                let got = consumer.join().expect("no panic");
                for producer in 0..u64::from(PRODUCERS) {
                    let of: Vec<_> = got.iter().filter(|&&n| n >> 32 == producer).collect();
                    assert!(of.is_sorted(), "out of order");
                }
                all.lock().expect("no panic").extend(got);
            }
            put
        });
        let mut all = all.into_inner().expect("no panic");
        all.sort_unstable();
        let expected = (0..)
            .zip(&put)
            .flat_map(|(p, &n)| (0..n).map(move |n| p << 32 | n));
        assert!(all.into_iter().eq(expected), "lost, or delivered twice");
        assert_eq!((view.table.in_use(), rings[0].len()), (0, 0));
        assert!(put.iter().all(|&n| n > 10), "{put:?}");
    }
}
