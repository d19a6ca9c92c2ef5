//! Joining a session and leaving it.
//!
//! | step of a join, under the structural lock | result if the process dies after it |
//! |---|---|
//! | a free entry is chosen | nothing |
//! | its lease is taken | the kernel releases the lease |
//! | intent records are idle, the identity of the process is written | the entry is still free |
//! | the entry is taken | a dead participant with nothing in hand, for the next sweep |
//!
//! A process that leaves cleans up after itself as after a dead one.

use std::io;
use std::time::Instant;

use super::intent_record_pool::IntentRecordPool;
use super::liveness::{Census, Identity, entered, is_dead};
use super::lock::{Guard, Locks};
use super::recover::{self, RecoveryContext, folder_of};
use super::{Control, Error, folders};
use crate::crash_point::crash_point;
use crate::ring::word::Owner;
use crate::segment::layout::{PARTICIPANTS, Process};
use crate::sync::Ordering;

/// This process, as a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    owner: Owner,
}

impl Member {
    /// The index that it writes into shared words.
    pub(crate) fn owner(self) -> Owner {
        self.owner
    }
}

/// Joins a session; if there is no free entry, cleans up after dead processes first.
///
/// # Errors
///
/// [`Error::Gone`] if the session was removed meanwhile; [`Error::NoRoom`]; the system's error.
pub(crate) fn join(control: &Control, locks: &Locks, guard: &Guard<'_>) -> Result<Member, Error> {
    if control.is_gone() || is_unlinked(control) {
        return Err(Error::Gone(folder_of(control).to_owned()));
    }
    if let Some(owner) = enter(control, locks)? {
        return Ok(Member { owner });
    }
    let context = RecoveryContext {
        control,
        locks,
        me: Owner::NOBODY,
        records: &IntentRecordPool::default(),
    };
    recover::run(&context, guard)?;
    match enter(control, locks)? {
        Some(owner) => Ok(Member { owner }),
        None => Err(Error::NoRoom {
            what: "participants",
            limit: PARTICIPANTS as u64 - 1,
        }),
    }
}

/// Whether its file was removed. The path never names another session: its random part is not used
/// again.
fn is_unlinked(control: &Control) -> bool {
    let status = control.path().symlink_metadata();
    matches!(status, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

fn enter(control: &Control, locks: &Locks) -> Result<Option<Owner>, Error> {
    let all = (0..).map_while(Owner::new).zip(control.processes());
    for ((owner, process), participant) in all.zip(control.participants()).skip(1) {
        let taken = process.taken.load(Ordering::Acquire) != 0;
        crash_point("chosen");
        if taken || !locks.take_lease(owner)? {
            continue;
        }
        crash_point("leased");
        for record in &participant.records {
            record.store(0, Ordering::Relaxed);
        }
        let identity = Identity::own();
        let set = |word: &crate::sync::AtomicU64, value| word.store(value, Ordering::Relaxed);
        set(&process.pid, identity.pid.into());
        set(&process.start_time, identity.start_time);
        set(&process.pid_namespace, identity.pid_namespace);
        crash_point("written");
        // ORDER: Release, pairs with `entered`: the identity of the process, and that its intent
        // records are idle.
        process.taken.store(1, Ordering::Release);
        crash_point("entered");
        return Ok(Some(owner));
    }
    Ok(None)
}

/// Leaves the session: gives back all that the participant still has, and its entry. The last
/// participant removes the session, unless `keeps` is set. No thread of this process may be in the
/// middle of an operation, or use a message.
///
/// # Errors
///
/// If the structural lock is not available, or the session is damaged: then the next sweep finds
/// this participant dead.
pub(crate) fn leave(
    context: &RecoveryContext<'_>,
    keeps: bool,
    deadline: Instant,
) -> Result<(), Error> {
    let RecoveryContext { control, locks, .. } = *context;
    let me = context.me;
    let result = locks
        .lock(deadline)
        .and_then(|guard| clean_up_after_oneself(context, &guard).map(|()| guard));
    let process = &control.processes()[me.index()];
    // The process lives on, but not as this participant.
    process.pid.store(0, Ordering::Relaxed);
    crash_point("left");
    locks.end_lease(me);
    let _guard = result?;
    let others = Census::take(control, |owner, process| is_dead(locks, owner, process));
    if !keeps && !others.has_others(me) && matches!(locks.another_process_is_inside(), Ok(false)) {
        control.set_gone();
        crash_point("gone");
        // Anything that cannot be removed now is a leftover, which the next session to be made
        // removes.
        let _ = folders::remove(folder_of(control));
    }
    Ok(())
}

fn clean_up_after_oneself(context: &RecoveryContext<'_>, guard: &Guard<'_>) -> Result<(), Error> {
    let as_nobody = RecoveryContext {
        me: Owner::NOBODY,
        ..*context
    };
    let is_dead = |owner: Owner, process: &Process| {
        owner == context.me || is_dead(context.locks, owner, process)
    };
    recover::run_where(&as_nobody, guard, is_dead)?;
    Ok(())
}

/// Number of participants, including dead ones that were not found yet.
pub(crate) fn count(control: &Control) -> u64 {
    entered(control).count() as u64
}
