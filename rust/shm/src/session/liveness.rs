//! Liveness: a participant is dead only if two facts of the kernel agree; if in doubt, it is alive.
//!
//! A participant is dead if its lease is free, *and* `/proc` no longer shows its process: the pid
//! is not there, or belongs to another process, or to a process that has ended and waits for its
//! parent. Either fact alone can be wrong: a process can lose its lease (see `lock`), and pids are
//! used again. `/proc` is asked only if it shows our own pid namespace and the participant is in
//! that namespace; otherwise the lease decides. A process that does nothing for long is not taken
//! for dead: it may be stopped.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::process;

use super::Control;
use super::lock::Locks;
use crate::ring::word::Owner;
use crate::segment::layout::{PARTICIPANTS, Process};
use crate::sync::Ordering;

/// The identity of a participant's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The pid; 0 if no process acts as the participant any more.
    pub(super) pid: u32,
    /// The start time, in ticks since the machine started; 0 if unknown.
    pub(super) start_time: u64,
    /// The inode of the pid namespace; 0 if unknown.
    pub(super) pid_namespace: u64,
}

impl Identity {
    /// The identity of this process.
    pub(super) fn own() -> Self {
        Self::of_pid(process::id())
    }

    /// The identity of a process in this pid namespace.
    pub(super) fn of_pid(pid: u32) -> Self {
        let start_time = match ProcessState::of(pid) {
            ProcessState::Runs { start_time } => start_time,
            ProcessState::Gone | ProcessState::Unknown => 0,
        };
        Self {
            pid,
            start_time,
            pid_namespace: own_namespace(),
        }
    }

    /// The identity of a participant's process.
    pub(super) fn of(process: &Process) -> Self {
        Self {
            pid: u32::try_from(process.pid.load(Ordering::Relaxed)).unwrap_or(0),
            start_time: process.start_time.load(Ordering::Relaxed),
            pid_namespace: process.pid_namespace.load(Ordering::Relaxed),
        }
    }

    /// A line of text that [`Self::parse`] reads.
    pub(super) fn to_line(self) -> String {
        let Self {
            pid,
            start_time,
            pid_namespace,
        } = self;
        format!("{pid} {start_time} {pid_namespace}\n")
    }

    /// Parses text that begins with a line of [`Self::to_line`].
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (line, _) = text.split_once('\n')?;
        let mut words = line.split(' ');
        Some(Self {
            pid: words.next()?.parse().ok()?,
            start_time: words.next()?.parse().ok()?,
            pid_namespace: words.next()?.parse().ok()?,
        })
    }

    /// Whether `/proc` no longer shows the process, or cannot tell.
    pub(super) fn is_gone(self) -> bool {
        let own = own_namespace();
        if self.pid == 0 || own == 0 || self.pid_namespace != own {
            return true;
        }
        match ProcessState::of(self.pid) {
            ProcessState::Gone => true,
            ProcessState::Unknown => false,
            ProcessState::Runs { start_time } => {
                self.start_time != 0 && self.start_time != start_time
            }
        }
    }
}

/// The state of a pid as `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    Runs { start_time: u64 },
    Gone,
    Unknown,
}

impl ProcessState {
    fn of(pid: u32) -> Self {
        match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => Self::parse(&stat),
            // ESRCH: it ended between the opening and the reading.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
            {
                Self::Gone
            }
            Err(_) => Self::Unknown,
        }
    }

    /// Field 3 is the state, field 22 the start time. Field 2 is the name of the program in
    /// parentheses, and may contain blanks and parentheses itself.
    fn parse(stat: &[u8]) -> Self {
        let fields = || {
            let end = stat.iter().rposition(|&byte| byte == b')')?;
            let mut fields = str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace();
            let state = fields.next()?;
            Some((state, fields.nth(18)?.parse().ok()?))
        };
        match fields() {
            Some(("Z" | "X" | "x", _)) => Self::Gone,
            Some((_, start_time)) => Self::Runs { start_time },
            None => Self::Unknown,
        }
    }
}

/// The inode of the pid namespace of this process; 0 if `/proc` is missing or shows another
/// namespace.
fn own_namespace() -> u64 {
    let shown = fs::read_link("/proc/self").ok();
    let own = process::id().to_string();
    if shown.is_none_or(|shown| shown.as_os_str() != own.as_str()) {
        return 0;
    }
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Whether a participant whose entry is taken is dead.
pub(super) fn is_dead(locks: &Locks, owner: Owner, process: &Process) -> bool {
    matches!(locks.is_leased(owner), Ok(false)) && Identity::of(process).is_gone()
}

/// The participants at one moment: those that are alive, and those whose entries are taken but are
/// dead.
///
/// It stays true while the structural lock is held: the dead stay dead, and no process joins.
#[derive(Debug)]
pub(super) struct Census {
    alive: Vec<bool>,
    dead: Vec<Owner>,
}

impl Census {
    /// Applies `is_dead` to each participant whose entry is taken.
    pub(super) fn take(control: &Control, is_dead: impl Fn(Owner, &Process) -> bool) -> Self {
        let mut census = Self {
            alive: vec![false; PARTICIPANTS],
            dead: Vec::new(),
        };
        for (owner, process) in entered(control) {
            if is_dead(owner, process) {
                census.dead.push(owner);
            } else {
                census.alive[owner.index()] = true;
            }
        }
        census
    }

    /// Whether no live process owns an index: its entry is free, it is NOBODY, or its process is
    /// dead.
    pub(super) fn is_dead(&self, owner: Owner) -> bool {
        !self.alive.get(owner.index()).copied().unwrap_or(false)
    }

    pub(super) fn dead(&self) -> &[Owner] {
        &self.dead
    }

    /// Whether any participant other than `than` is alive.
    pub(super) fn has_others(&self, than: Owner) -> bool {
        let mut alive = self.alive.iter().enumerate();
        alive.any(|(index, alive)| *alive && index != than.index())
    }
}

/// The participants whose entries are taken.
pub(super) fn entered(control: &Control) -> impl Iterator<Item = (Owner, &Process)> {
    (0..)
        .map_while(Owner::new)
        .zip(control.processes())
        .skip(1)
        // ORDER: Acquire, pairs with the end of a join: the identity of the process.
        .filter(|(_, process)| process.taken.load(Ordering::Acquire) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "17 (a) b (c)) S 1 17 17 0 -1 4194304 97 0 0 0 0 0 0 0 20 0 1 0 2546074 31 359";

    #[test]
    fn a_program_may_have_any_name() {
        let runs = ProcessState::Runs {
            start_time: 2_546_074,
        };
        assert_eq!(ProcessState::parse(STAT.as_bytes()), runs);
        let mut strange = STAT.as_bytes().to_vec();
        strange[4] = 0xff;
        assert_eq!(ProcessState::parse(&strange), runs);
    }

    #[test]
    fn one_that_ended_is_gone_and_nonsense_is_unknown() {
        for state in ["Z", "X"] {
            let stat = STAT.replace(" S ", &format!(" {state} "));
            assert_eq!(ProcessState::parse(stat.as_bytes()), ProcessState::Gone);
        }
        for stat in ["", "17 (a) S 1 2", "17 a S", &STAT.replace("2546074", "-1")] {
            assert_eq!(
                ProcessState::parse(stat.as_bytes()),
                ProcessState::Unknown,
                "{stat:?}"
            );
        }
    }

    #[test]
    fn this_process_runs_and_one_with_its_number_from_another_time_does_not() {
        let own = Identity::own();
        assert!(own.start_time > 0 && own.pid_namespace > 0);
        let is_gone = |change: fn(&mut Identity)| {
            let mut identity = own;
            change(&mut identity);
            identity.is_gone()
        };
        assert!(!is_gone(|_| ()));
        assert!(!is_gone(|identity| identity.start_time = 0));
        assert!(is_gone(|identity| identity.start_time += 1));
        assert!(is_gone(|identity| identity.pid = 0));
        // Above the largest pid of Linux.
        assert!(is_gone(|identity| identity.pid = 1 << 30));
        // Its lease alone decides.
        assert!(is_gone(|identity| identity.pid_namespace += 1));
    }
}
