//! Recovery: after the dead, everything is as if they had left in good order.
//!
//! Who has the structural lock does it, so that meanwhile nobody joins or makes queues, and nobody
//! gets the index of a dead participant before no word carries it. In this order, and each step is
//! found again by the next recovery where the one who did it died: what they had in hand
//! ([`Sweeper`]), their descriptors, their payload memory, what queues they had open, their
//! doorbells, their entries.

use std::path::Path;
use std::time::Duration;

use super::super::lane::Lane;
use super::super::payload::{ExtentFiles, retire_unreferenced};
use super::super::queue::Table;
use super::super::sweep::{Sweeper, Swept};
use super::super::sync::{AtomicU64, Ordering, fence};
use super::super::wait::wake;
use super::super::word::{Owner, Word};
use super::bells::{self, Signals};
use super::crash::crash_point;
use super::lanes::Lanes;
use super::layout::{CHUNK, Process};
use super::liveness::{self, Census, entered};
use super::lock::{Guard, Locks};
use super::{Control, Error, queues, users};

/// Nobody asks who is dead more often than this,
const PAUSE: Duration = Duration::from_millis(80);
/// or than this for each participant, so that many of them do not ask all the time.
const PAUSE_EACH: Duration = Duration::from_millis(2);

/// What a recovery works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    /// The session.
    pub(crate) control: &'a Control,
    /// Its locks.
    pub(crate) locks: &'a Locks,
    /// Who cleans up; NOBODY is who is no participant yet, or no more.
    pub(crate) me: Owner,
    /// The lanes of this process.
    pub(crate) lanes: &'a Lanes,
}

/// What a recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Participants that were found dead.
    pub dead: u64,
    /// Descriptors that were taken back, the following among them.
    pub recovered: u64,
    /// Messages that are in their queue again.
    pub redelivered: u64,
    /// Messages that are lost with the consumers that had them.
    pub lost: u64,
}

/// Whether it is time to look for the dead; then nobody else is told so for a while.
pub(crate) fn due(control: &Control) -> bool {
    let last = &control.superblock().counters.0.last_probe;
    let seen = last.load(Ordering::Relaxed);
    let now = now_ms();
    // Ahead of now is another clock, of a container, or damage: it must not put this off for ever.
    let passed = now
        .checked_sub(seen)
        .map_or(Duration::MAX, Duration::from_millis);
    if passed < PAUSE {
        return false;
    }
    let participants = u32::try_from(entered(control).count()).unwrap_or(u32::MAX);
    // ORDER: Relaxed: it decides who does it, and nothing else.
    passed >= PAUSE_EACH.saturating_mul(participants)
        && last
            .compare_exchange(seen, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

/// Whether messages may be left that could not be put back into their queues: those of somebody dead,
/// or that somebody gave back. The caller holds the structural lock.
pub(crate) fn is_due_again(control: &Control) -> bool {
    let counters = &control.superblock().counters.0;
    // ORDER: Acquire, as in `run_where`.
    let given_back = counters.given_back.load(Ordering::Acquire);
    counters.postponed.load(Ordering::Relaxed) != 0
        || counters.given_back_seen.load(Ordering::Relaxed) != given_back
}

/// Milliseconds of the monotonic clock, which is one for all processes of the machine.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let [seconds, nanoseconds] =
        [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1000 + nanoseconds / 1_000_000
}

/// Cleans up after the dead, if there are any.
///
/// # Errors
///
/// Where the session is damaged.
pub(crate) fn run(around: &Around<'_>, guard: &Guard<'_>) -> Result<Recovery, Error> {
    run_where(around, guard, |owner, process| {
        liveness::is_dead(around.locks, owner, process)
    })
}

/// The same, where somebody else says who is dead.
pub(super) fn run_where(
    around: &Around<'_>,
    _guard: &Guard<'_>,
    is_dead: impl Fn(Owner, &Process) -> bool,
) -> Result<Recovery, Error> {
    let control = around.control;
    let census = Census::take(control, is_dead);
    let counters = &control.superblock().counters.0;
    let postponed = &counters.postponed;
    // ORDER: Acquire, pairs with who gives a message back: the sweep finds it.
    let given_back = counters.given_back.load(Ordering::Acquire);
    let nothing_left = postponed.load(Ordering::Relaxed) == 0
        && counters.given_back_seen.load(Ordering::Relaxed) == given_back;
    if census.dead().is_empty() && nothing_left {
        retire_extents(around, &census);
        return Ok(Recovery::default());
    }
    // Until it is known: whoever dies in here may leave some in nobody's name.
    postponed.store(1, Ordering::Relaxed);
    let mut swept = sweep(around, &census)?;
    // They may lack nothing but memory for their slots.
    while swept.postponed > 0 && matches!(queues::grow_all(control), Ok(true)) {
        let more = sweep(around, &census)?;
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
    add(&counters.sweeps, 1);
    crash_point("swept");
    let used = control.descriptors().len() / CHUNK;
    for chunk in control.chunks().iter().take(used) {
        let owner = chunk.owner.load(Ordering::Relaxed);
        if names_the_dead(&census, owner) {
            // ORDER: Release, pairs with who takes it over: the sweep.
            let nobody = Owner::NOBODY.index() as u64;
            chunk.owner.store(nobody, Ordering::Release);
        }
    }
    retire_extents(around, &census);
    crash_point("retired");
    free_entries(control, &census);
    postponed.store(swept.postponed + swept.spared, Ordering::Relaxed);
    // Those that came later are for the next one.
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

fn sweep(around: &Around<'_>, census: &Census) -> Result<Swept, Error> {
    let control = around.control;
    let rings = queues::rings(control)?;
    let table = Table {
        descriptors: control.descriptors(),
        participants: control.lanes(),
    };
    let signals = Signals::new(folder_of(control));
    let sweeper = Sweeper::new(table, &rings, around.me, signals);
    let participant = &control.lanes()[around.me.index()];
    let sweep = |lane: &mut Lane<'_>| sweeper.sweep(lane, |owner| census.is_dead(owner));
    Ok(around.lanes.with(participant, sweep)?)
}

/// Takes away what the dead had of payload memory, and what nobody has: after the last message in it
/// was taken nobody else would.
fn retire_extents(around: &Around<'_>, census: &Census) {
    let files = ExtentFiles::new(folder_of(around.control));
    let is_dead = |owner| census.is_dead(owner);
    retire_unreferenced(around.control, &files, around.me, &is_dead);
}

/// Frees the entries of the dead whose name no word carries. The others stay until the next time:
/// a living consumer has such a message in hand at this moment.
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
    users::remove_from_all(control, &free);
    crash_point("unused");
    for owner in free {
        bells::take_down(folder_of(control), owner);
        // ORDER: Release, pairs with `entered`: nothing carries the name.
        let taken = &control.processes()[owner.index()].taken;
        taken.store(0, Ordering::Release);
    }
}

/// Wakes all who wait for memory or descriptors; who waits for a queue the sweep woke.
fn wake_all(control: &Control) {
    let freed = &control.superblock().memory.0.freed;
    fence(Ordering::SeqCst);
    wake(freed, u32::MAX, &super::super::wait::SystemFutex);
}

fn names_the_dead(census: &Census, owner: u64) -> bool {
    let owner = u16::try_from(owner).ok().and_then(Owner::new);
    owner.is_some_and(|owner| census.dead().contains(&owner))
}

/// The folder of a session.
pub(super) fn folder_of(control: &Control) -> &Path {
    control.path().parent().unwrap_or(control.path())
}

/// Only who has the structural lock writes them.
fn add(counter: &AtomicU64, number: u64) {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(number), Ordering::Relaxed);
}
