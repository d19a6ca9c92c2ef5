//! Processes, sleepers and bells for the searches, and the search itself.

use std::sync::Arc as StdArc;
use std::time::Duration;

use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use shoal_shm::blocking::{Deadline, Lack, Pause, Producer, Until, take_within};
use shoal_shm::internals::heap::{Heap, View};
use shoal_shm::internals::{AtomicU32, Claim, Futex, IntentRecord, Owner, Queue, Swept};
use shoal_shm::{Corrupt, Keep, Label, Payload, Refusal, Taken, Want};

/// A futex that never returns by itself: a process that is not woken shows as a deadlock.
#[derive(Clone)]
pub(crate) struct Sleep(Arc<(Mutex<()>, Condvar)>, Meeting);

impl Sleep {
    pub(crate) fn new() -> Self {
        Self(
            Arc::new((Mutex::new(()), Condvar::new())),
            Meeting::default(),
        )
    }

    /// Waits until this many threads have gone to sleep.
    pub(crate) fn wait_for_sleepers(&self, count: u32) {
        self.1.wait_for(count);
    }
}

/// Counts the threads that have reached a point.
#[derive(Clone)]
pub(crate) struct Meeting(Arc<(Mutex<u32>, Condvar)>);

impl Default for Meeting {
    fn default() -> Self {
        Self(Arc::new((Mutex::new(0), Condvar::new())))
    }
}

impl Meeting {
    pub(crate) fn arrive(&self) {
        let (count, changed) = &*self.0;
        *count.lock().unwrap() += 1;
        changed.notify_all();
    }

    pub(crate) fn wait_for(&self, arrived: u32) {
        let (count, changed) = &*self.0;
        let mut count = count.lock().unwrap();
        while *count < arrived {
            count = changed.wait(count).unwrap();
        }
    }
}

impl Futex for Sleep {
    fn wait(&self, word: &AtomicU32, expected: u32, _: Duration) -> bool {
        let (mutex, condvar) = &*self.0;
        let guard = mutex.lock().unwrap();
        // As in the kernel, the word is read under the lock that wakers take.
        if word.load(std::sync::atomic::Ordering::Relaxed) == expected {
            self.1.arrive();
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

/// The bell of an event loop, in a model without sleepers.
#[derive(Clone)]
pub(crate) struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    pub(crate) fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    /// Waits until it rings, or has rung.
    pub(crate) fn wait_for(&self) {
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
        unreachable!("no process waits")
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
pub(crate) struct Both(pub(crate) [Bell; 2]);

impl Futex for Both {
    fn wait(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
        unreachable!("no process waits")
    }

    fn wake(&self, _: &AtomicU32, _: u32) {}

    fn ring(&self, participant: Owner) {
        let number = (2..).zip(&self.0).find(|(n, _)| owner(*n) == participant);
        number.unwrap().1.ring(participant);
    }
}

/// A model without sleepers.
#[derive(Clone)]
pub(crate) struct Awake;

impl Futex for Awake {
    fn wait(&self, _: &AtomicU32, _: u32, _: Duration) -> bool {
        unreachable!("no process waits")
    }

    fn wake(&self, _: &AtomicU32, _: u32) {}
}

/// The participant of a number; that of 0 is the first that a process can be.
pub(crate) fn owner(number: u16) -> Owner {
    Owner::new(number + 1).unwrap()
}

/// A process's operations on a queue; each thread makes one for itself.
pub(crate) struct Process<'a, F: Futex> {
    pub(crate) queue: Queue<'a, F>,
    pub(crate) record: IntentRecord<'a>,
}

impl<'a, F: Futex + Sync> Process<'a, F> {
    pub(crate) fn new(view: View<'a>, me: u16, futex: F) -> Self {
        let participant = &view.table.participants[owner(me).index()];
        Self {
            queue: view.queue(0, owner(me), futex, 0).unwrap(),
            record: IntentRecord::new(participant, 0).unwrap(),
        }
    }

    pub(crate) fn claim(&self, number: u64) -> Option<Claim> {
        filled(&self.queue, number)
    }

    pub(crate) fn put(&mut self, number: u64) -> Result<(), Refusal> {
        let Some(claim) = self.claim(number) else {
            return Err(Refusal::Full);
        };
        self.queue
            .put(&mut self.record, claim)
            .unwrap()
            .map_err(|(claim, refusal)| {
                self.queue.unclaim(claim);
                refusal
            })
    }

    pub(crate) fn put_waiting(&mut self, numbers: &[u64]) -> Option<Refusal> {
        let mut claims = numbers.iter().map(|&n| self.claim(n).unwrap()).collect();
        let mut producer = Producer::new(&self.queue);
        let end = producer.put_many(&mut self.record, &mut claims, &mut forever());
        for claim in claims {
            self.queue.unclaim(claim);
        }
        end.unwrap()
    }

    /// Waits for room, prepares a message only then, and puts it. If two prepare `together`, each
    /// passes further room on and waits for the other before it goes on.
    pub(crate) fn put_prepared_late(&mut self, number: u64, together: Option<&Meeting>) {
        let Self { queue, record } = self;
        let mut producer = Producer::new(queue);
        assert_eq!(producer.wait_for_room(&mut forever()).unwrap(), Ok(()));
        let mut claims = Vec::new();
        let end = producer.within(&mut forever(), |wait_state| -> Result<_, Corrupt> {
            if claims.is_empty() {
                if let Some(meeting) = together {
                    queue.pass_on_room(wait_state);
                    meeting.arrive();
                    meeting.wait_for(2);
                }
                claims.push(filled(queue, number).unwrap());
            }
            let full = queue.put_many(record, &mut claims)?.is_some();
            Ok(if full {
                Err(Lack::Room { length: 8 })
            } else {
                Ok(())
            })
        });
        assert_eq!(end.unwrap(), Ok(()));
    }

    pub(crate) fn take(&mut self, want: Want, keep: Keep) -> Vec<u64> {
        let mut got = Vec::new();
        let taken = self
            .queue
            .take(&mut self.record, want, keep, &mut |message| {
                got.push(number(&message));
            });
        taken.unwrap();
        got
    }

    /// Takes one message, if there is one.
    pub(crate) fn look(&mut self) -> (Taken, Option<u64>) {
        let mut got = None;
        let taken = self.queue.take(
            &mut self.record,
            Want::Count(1),
            Keep::Copy,
            &mut |message| got = Some(number(&message)),
        );
        (taken.unwrap(), got)
    }

    pub(crate) fn take_waiting(&mut self, want: Want) -> (Taken, Vec<u64>) {
        let mut got = Vec::new();
        let Self { queue, record } = self;
        let taken = take_within(queue, want, &mut forever(), || -> Result<Taken, Corrupt> {
            let out = &mut |message: shoal_shm::Message<'_>| got.push(number(&message));
            queue.take(record, want, Keep::Copy, out)
        });
        (taken.unwrap(), got)
    }
}

/// The number that is the message; its weight must be the same.
pub(crate) fn number(message: &shoal_shm::Message<'_>) -> u64 {
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

/// A descriptor that is filled with a number.
fn filled<F: Futex>(queue: &Queue<'_, F>, number: u64) -> Option<Claim> {
    let claim = queue.claim()?;
    let label = Label {
        weight: number,
        ..Label::default()
    };
    assert!(queue.fill(&claim, label, &number.to_ne_bytes()));
    Some(claim)
}

fn forever() -> Until<impl Pause> {
    Until {
        deadline: Deadline::Never,
        slice: Duration::MAX,
        pause: || true,
    }
}

pub(crate) fn sweep(view: View<'_>, me: u16, dead: u16) -> Swept {
    let mut record = IntentRecord::new(&view.table.participants[owner(me).index()], 0).unwrap();
    let sweeper = view.sweeper(owner(me), Awake);
    sweeper
        .sweep(&mut record, |other| other == owner(dead))
        .unwrap()
}

/// A sweep during operations of participant 1, whose messages are all published.
pub(crate) fn takes_nothing(view: View<'_>) {
    let swept = sweep(view, 0, 1);
    let handed_over = swept.handed_over;
    let nothing_else = Swept {
        handed_over,
        spared: swept.spared,
        ..Swept::default()
    };
    assert!(swept == nothing_else && handed_over <= 1, "{swept:?}");
}

pub(crate) type Work<T> = StdArc<dyn Fn(View<'_>) -> T + Send + Sync>;

pub(crate) fn work<T>(f: impl Fn(View<'_>) -> T + Send + Sync + 'static) -> Work<T> {
    StdArc::new(f)
}

/// Runs `before`, then all of `threads` (the last in the main thread), then `after`.
pub(crate) fn search<T: Send + 'static>(
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

pub(crate) fn all(lists: Vec<Vec<u64>>) -> Vec<u64> {
    let mut all = lists.concat();
    all.sort_unstable();
    all
}

/// The messages that are left in the queue.
pub(crate) fn rest(view: View<'_>) -> Vec<u64> {
    Process::new(view, 0, Awake).take(Want::Count(9), Keep::Copy)
}

pub(crate) type Numbers = Vec<u64>;

pub(crate) fn puts(me: u16, numbers: &'static [u64]) -> Work<Numbers> {
    work(move |view| {
        let mut process = Process::new(view, me, Awake);
        numbers
            .iter()
            .copied()
            .filter(|&n| process.put(n).is_ok())
            .collect()
    })
}

pub(crate) fn takes(me: u16, times: u32, want: Want) -> Work<Numbers> {
    work(move |view| {
        let mut process = Process::new(view, me, Awake);
        (0..times)
            .flat_map(|_| process.take(want, Keep::Copy))
            .collect()
    })
}

/// Checks that each message was taken or is left, once, and that no descriptor is in use.
pub(crate) fn nothing_lost(view: View<'_>, put: Vec<Numbers>, taken: Vec<Numbers>) {
    assert_eq!(all(put), all([taken, vec![rest(view)]].concat()));
    assert_eq!(view.table.in_use(), 0);
}
