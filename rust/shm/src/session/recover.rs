//! Recovery: cleans up after dead processes, as if they had left in good order.
//!
//! The holder of the structural lock does it, so that meanwhile no process joins or makes queues,
//! and the index of a dead participant is given out only when no word carries it. It cleans up, in
//! this order: the messages that the dead were putting or taking ([`Sweeper`]), their descriptors,
//! their payload memory, the queues that they had open, their doorbells, their entries. If the
//! process dies halfway, the next recovery finds and repeats each step that is not complete.

use std::path::Path;
use std::time::Duration;

use super::bells::{self, Signals};
use super::intent_record_pool::IntentRecordPool;
use super::liveness::{self, Census, entered};
use super::lock::{Guard, Locks};
use super::{Control, Error, queue_table, queue_users};
use crate::crash_point::crash_point;
use crate::payload::{ExtentFiles, retire_unreferenced};
use crate::ring::intent::IntentRecord;
use crate::ring::queue::Table;
use crate::ring::sweep::{Sweeper, Swept};
use crate::ring::wait::wake;
use crate::ring::word::{Owner, Word};
use crate::segment::layout::{CHUNK, Process};
use crate::sync::{AtomicU64, Ordering, fence};

/// Minimum time between two looks for dead processes.
const PAUSE: Duration = Duration::from_millis(80);
/// Minimum time for each participant, so that many of them do not look all the time.
const PAUSE_EACH: Duration = Duration::from_millis(2);

/// The context of a recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoveryContext<'a> {
    /// The session.
    pub(crate) control: &'a Control,
    /// Its locks.
    pub(crate) locks: &'a Locks,
    /// The participant that cleans up; NOBODY before this process joins and after it leaves.
    pub(crate) me: Owner,
    /// The intent records of this process.
    pub(crate) records: &'a IntentRecordPool,
}

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Participants that were found dead.
    pub dead: u64,
    /// Descriptors that were taken back, including those of the messages counted below.
    pub recovered: u64,
    /// Messages that are in their queue again.
    pub redelivered: u64,
    /// Messages that are lost with the consumers that had them.
    pub lost: u64,
}

/// Whether it is time to look for dead processes; if so, no other process is told so for a while.
pub(crate) fn due(control: &Control) -> bool {
    let last = &control.superblock().counters.0.last_probe;
    let seen = last.load(Ordering::Relaxed);
    let now = now_ms();
    // A time ahead of now comes from another clock (a container) or from damage: it must not delay
    // this for ever.
    let passed = now
        .checked_sub(seen)
        .map_or(Duration::MAX, Duration::from_millis);
    if passed < PAUSE {
        return false;
    }
    let participants = u32::try_from(entered(control).count()).unwrap_or(u32::MAX);
    // ORDER: Relaxed: it decides which process looks, and nothing else.
    passed >= PAUSE_EACH.saturating_mul(participants)
        && last
            .compare_exchange(seen, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

/// Whether there may be messages that could not be put back into their queues: those of dead
/// processes, or those that were given back. The caller holds the structural lock.
pub(crate) fn is_due_again(control: &Control) -> bool {
    let counters = &control.superblock().counters.0;
    // ORDER: Acquire, as in `run_where`.
    let given_back = counters.given_back.load(Ordering::Acquire);
    counters.postponed.load(Ordering::Relaxed) != 0
        || counters.given_back_seen.load(Ordering::Relaxed) != given_back
}

/// Milliseconds of the monotonic clock, which all processes of the machine share.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let [seconds, nanoseconds] =
        [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1000 + nanoseconds / 1_000_000
}

/// Cleans up after dead processes, if there are any.
///
/// # Errors
///
/// If the session is damaged.
pub(crate) fn run(context: &RecoveryContext<'_>, guard: &Guard<'_>) -> Result<Recovery, Error> {
    run_where(context, guard, |owner, process| {
        liveness::is_dead(context.locks, owner, process)
    })
}

/// Same as `run`, with another rule for which participants are dead.
pub(super) fn run_where(
    context: &RecoveryContext<'_>,
    _guard: &Guard<'_>,
    is_dead: impl Fn(Owner, &Process) -> bool,
) -> Result<Recovery, Error> {
    let control = context.control;
    let census = Census::take(control, is_dead);
    let counters = &control.superblock().counters.0;
    let postponed = &counters.postponed;
    // ORDER: Acquire, pairs with a process that gives a message back: the sweep finds that message.
    let given_back = counters.given_back.load(Ordering::Acquire);
    let nothing_left = postponed.load(Ordering::Relaxed) == 0
        && counters.given_back_seen.load(Ordering::Relaxed) == given_back;
    if census.dead().is_empty() && nothing_left {
        retire_extents(context, &census);
        return Ok(Recovery::default());
    }
    // Until the real number is known: if this process dies in here, it may leave messages that name
    // no owner.
    postponed.store(1, Ordering::Relaxed);
    let mut swept = sweep(context, &census)?;
    // These messages may lack nothing but memory for their slots.
    while swept.postponed > 0 && matches!(queue_table::grow_all(control), Ok(true)) {
        let more = sweep(context, &census)?;
        swept = Swept {
            unpublished: swept.unpublished + more.unpublished,
            lost: swept.lost + more.lost,
            redelivered: swept.redelivered + more.redelivered,
            handed_over: swept.handed_over + more.handed_over,
            postponed: more.postponed,
            spared: more.spared,
        };
    }
    let recovered = swept.unpublished + swept.lost + swept.redelivered;
    add(&counters.lost, swept.lost);
    add(&counters.redelivered, swept.redelivered);
    add(&counters.recovered, recovered);
    crash_point("swept");
    let used = control.descriptors().len() / CHUNK;
    for chunk in control.chunks().iter().take(used) {
        let owner = chunk.owner.load(Ordering::Relaxed);
        if names_the_dead(&census, owner) {
            // ORDER: Release, pairs with the process that takes the chunk over: the sweep.
            let nobody = Owner::NOBODY.index() as u64;
            chunk.owner.store(nobody, Ordering::Release);
        }
    }
    retire_extents(context, &census);
    crash_point("retired");
    free_entries(control, &census);
    postponed.store(swept.postponed + swept.spared, Ordering::Relaxed);
    // Messages that were given back later are for the next recovery.
    counters
        .given_back_seen
        .store(given_back, Ordering::Relaxed);
    wake_all(control);
    Ok(Recovery {
        dead: census.dead().len() as u64,
        recovered,
        redelivered: swept.redelivered,
        lost: swept.lost,
    })
}

fn sweep(context: &RecoveryContext<'_>, census: &Census) -> Result<Swept, Error> {
    let control = context.control;
    let rings = queue_table::rings(control)?;
    let table = Table {
        descriptors: control.descriptors(),
        participants: control.participants(),
    };
    let signals = Signals::new(folder_of(control));
    let sweeper = Sweeper::new(table, &rings, context.me, signals);
    let participant = &control.participants()[context.me.index()];
    let sweep =
        |record: &mut IntentRecord<'_>| sweeper.sweep(record, |owner| census.is_dead(owner));
    Ok(context.records.with(participant, sweep)?)
}

/// Takes away the payload memory of dead processes, and memory that no process holds: after the
/// last message in it was taken, nothing else would free it.
fn retire_extents(context: &RecoveryContext<'_>, census: &Census) {
    let files = ExtentFiles::new(folder_of(context.control));
    let is_dead = |owner| census.is_dead(owner);
    retire_unreferenced(context.control, &files, context.me, &is_dead);
}

/// Frees the entries of dead processes whose index no word carries. The others stay until the next
/// recovery: a living consumer has such a message in hand at this moment.
fn free_entries(control: &Control, census: &Census) {
    let mut carried = vec![false; control.processes().len()];
    for descriptor in control.descriptors() {
        let word = descriptor.word();
        if word != Word::FREE
            && let Some(carried) = carried.get_mut(word.owner().index())
        {
            *carried = true;
        }
    }
    let dead = census.dead().iter().copied();
    let free: Vec<_> = dead.filter(|owner| !carried[owner.index()]).collect();
    queue_users::remove_from_all(control, &free);
    crash_point("unused");
    for owner in free {
        bells::take_down(folder_of(control), owner);
        // ORDER: Release, pairs with `entered`: no word carries the index.
        let taken = &control.processes()[owner.index()].taken;
        taken.store(0, Ordering::Release);
    }
}

/// Wakes all that wait for memory or descriptors; the sweep has woken those that wait for a queue.
fn wake_all(control: &Control) {
    let freed = &control.superblock().memory.0.freed;
    fence(Ordering::SeqCst);
    wake(freed, u32::MAX, &crate::ring::wait::SystemFutex);
}

fn names_the_dead(census: &Census, owner: u64) -> bool {
    let owner = u16::try_from(owner).ok().and_then(Owner::new);
    owner.is_some_and(|owner| census.dead().contains(&owner))
}

pub(super) fn folder_of(control: &Control) -> &Path {
    control.path().parent().unwrap_or(control.path())
}

/// The counters are written only under the structural lock.
fn add(counter: &AtomicU64, number: u64) {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(number), Ordering::Relaxed);
}
