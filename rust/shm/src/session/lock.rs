//! The lock file of a session: the structural lock over its tables, and the leases of participants.
//!
//! Bytes of one file are locked: byte 0 by the process that changes the tables (the structural
//! lock), byte `1 + i` by participant `i` for as long as it takes part (its lease). The kernel
//! releases the locks of a process when its last thread has ended for good; a stopped process keeps
//! its locks, and a forked child inherits none. So the locks show which processes are dead, without
//! a guess.
//!
//! But the kernel also releases all of them when the process closes *any* descriptor of the file,
//! including one that it opened in addition. So a process opens the file only once;
//! [`look`](mod@look) is for a process that wants to look at the lock file of another session.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::Error;
use super::thread_lock::{Inside, PAUSE, ThreadLock};
use crate::ring::word::Owner;
use crate::segment::layout::PARTICIPANTS;
use crate::segment::{FileError, file};
use crate::sync::hint::{AtomicU64, Ordering};
pub(super) use look::{look, opening};

mod look;

/// Name of the lock file.
pub(super) const LOCKS: &str = "locks";

/// The lock file of a session, as this process has it open.
#[derive(Debug)]
pub(crate) struct Locks {
    /// None once it is closed.
    file: Mutex<Option<OwnedFd>>,
    path: PathBuf,
    process: u32,
    structural: ThreadLock,
    /// The lease of this process, which the kernel does not report to its holder: process and
    /// index, see `mine`.
    lease: AtomicU64,
}

/// A range of bytes of the file.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: usize,
    length: usize,
}

const STRUCTURAL: Range = Range {
    start: 0,
    length: 1,
};
const LEASES: Range = Range {
    start: 1,
    length: PARTICIPANTS,
};
/// All bytes: a length of 0 reaches to any end.
const ALL: Range = Range {
    start: 0,
    length: 0,
};

const fn lease(of: Owner) -> Range {
    Range {
        start: 1 + of.index(),
        length: 1,
    }
}

impl Locks {
    /// Makes the lock file of a new session.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn create(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(LOCKS);
        let _opening = opening(&path)?;
        Ok(Self::new(file::create(&path, 0)?, path))
    }

    /// Opens the lock file of a session; this process must not have it open already.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] if there is none; if it belongs to another user; the system's error.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(LOCKS);
        let _opening = opening(&path)?;
        match file::open_own(&path) {
            Ok((file, _)) => Ok(Self::new(file, path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Error::Gone(folder.to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn new(file: OwnedFd, path: PathBuf) -> Self {
        Self {
            file: Mutex::new(Some(file)),
            path,
            process: process::id(),
            structural: ThreadLock::new(),
            lease: AtomicU64::new(0),
        }
    }

    /// Takes the structural lock, until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if the lock is not free before the deadline; the system's error.
    pub(crate) fn lock(&self, deadline: Instant) -> Result<Guard<'_>, Error> {
        let begin = Instant::now();
        loop {
            if let Some(guard) = self.try_lock()? {
                return Ok(guard);
            }
            if Instant::now() >= deadline {
                let pid = match self.query(STRUCTURAL) {
                    // Another thread of this process holds it, not another process.
                    Ok(Holder::Nobody) => i32::try_from(process::id()).ok(),
                    Ok(Holder::Process(pid)) => Some(pid),
                    Ok(Holder::Unknown) | Err(_) => None,
                };
                return Err(Error::Locked {
                    path: self.path.clone(),
                    pid,
                    waited: begin.elapsed(),
                });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes the structural lock; None if it is held.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn try_lock(&self) -> Result<Option<Guard<'_>>, Error> {
        let Some(inside) = self.structural.try_enter() else {
            return Ok(None);
        };
        let locked = self.set(STRUCTURAL)?;
        Ok(locked.then(|| Guard {
            locks: self,
            _inside: inside,
        }))
    }

    /// Takes the lease of a participant for this process, for the rest of its life; false if the
    /// lease is held.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn take_lease(&self, of: Owner) -> Result<bool, Error> {
        let taken = self.set(lease(of))?;
        if taken {
            self.lease.store(mine(of), Ordering::Relaxed);
        }
        Ok(taken)
    }

    pub(crate) fn end_lease(&self, of: Owner) {
        self.lease.store(0, Ordering::Relaxed);
        self.unset(lease(of));
    }

    /// Closes the file, which releases all locks that this process has on it.
    pub(crate) fn close(&self) {
        if self.process != process::id() {
            return; // see `drop`
        }
        drop(
            self.file
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    /// Whether a process holds the lease of a participant.
    ///
    /// # Errors
    ///
    /// The system's error: the answer is not known.
    pub(crate) fn is_leased(&self, of: Owner) -> io::Result<bool> {
        Ok(self.lease.load(Ordering::Relaxed) == mine(of)
            || self.query(lease(of))? != Holder::Nobody)
    }

    /// Whether another process takes part.
    ///
    /// # Errors
    ///
    /// The system's error: the answer is not known.
    pub(crate) fn another_process_is_inside(&self) -> io::Result<bool> {
        Ok(self.query(LEASES)? != Holder::Nobody)
    }

    /// Whether another process holds any lock of the file.
    ///
    /// # Errors
    ///
    /// The system's error: the answer is not known.
    pub(super) fn is_in_use(&self) -> io::Result<bool> {
        Ok(self.query(ALL)? != Holder::Nobody)
    }

    /// Locks a range; false if another process holds a lock in it.
    fn set(&self, range: Range) -> Result<bool, Error> {
        loop {
            match self.call(FcntlArg::F_SETLK(&region(range, libc::F_WRLCK))) {
                Ok(()) => return Ok(true),
                Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
                Err(Errno::EINTR) => (),
                Err(error) => return Err(FileError::new("lock", &self.path, error).into()),
            }
        }
    }

    fn unset(&self, range: Range) {
        // Fails if the file is not open; then nothing is locked either.
        let _ = self.call(FcntlArg::F_SETLK(&region(range, libc::F_UNLCK)));
    }

    /// Which other process holds a lock in the range.
    fn query(&self, range: Range) -> io::Result<Holder> {
        let mut found = region(range, libc::F_WRLCK);
        self.call(FcntlArg::F_GETLK(&mut found))?;
        Ok(if c_int(found.l_type) == libc::F_UNLCK {
            Holder::Nobody
        } else if found.l_pid > 0 {
            Holder::Process(found.l_pid)
        } else {
            Holder::Unknown
        })
    }

    fn call(&self, what: FcntlArg<'_>) -> Result<(), Errno> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        fcntl(file.as_ref().ok_or(Errno::EBADF)?, what).map(drop)
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        // In a forked child this is the descriptor of its parent. Closing it there would release
        // the locks that the child took through an object of its own.
        if self.process != process::id() {
            let file = self.file.get_mut();
            std::mem::forget(file.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// The structural lock; dropping this releases it.
#[derive(Debug)]
#[must_use = "the lock is free again when this is dropped"]
pub(crate) struct Guard<'a> {
    locks: &'a Locks,
    _inside: Inside<'a>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.locks.unset(STRUCTURAL);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    Process(i32),
    /// A process of another pid namespace.
    Unknown,
}

/// The value of `lease` for a participant; a forked child does not take it for its own lease.
fn mine(of: Owner) -> u64 {
    u64::from(process::id()) << 32 | of.index() as u64
}

fn c_int(kind: impl Into<i32>) -> i32 {
    kind.into()
}

fn region(range: Range, kind: i32) -> libc::flock {
    let offset = |value| libc::off_t::try_from(value).unwrap_or(libc::off_t::MAX);
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: offset(range.start),
        l_len: offset(range.length),
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn one_thread_has_the_structural_lock_and_a_waiting_one_learns_which() {
        let folder = tempfile::tempdir().expect("a folder");
        let locks = Locks::create(folder.path()).expect("made");
        let guard = locks.lock(soon()).expect("free");
        assert!(locks.try_lock().expect("asked").is_none());
        let error = locks.lock(Instant::now()).expect_err("held").to_string();
        let by = format!("locks, which process {} holds", process::id());
        assert!(error.ends_with(&by), "{error}");
        drop(guard);
        assert!(locks.try_lock().expect("asked").is_some());
    }

    #[test]
    fn an_own_lease_counts_as_one_until_it_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let locks = Locks::create(folder.path()).expect("made");
        let of = |index| Owner::new(index).expect("in range");
        assert!(!locks.is_leased(of(7)).expect("asked"));
        assert!(locks.take_lease(of(7)).expect("asked"));
        assert!(locks.is_leased(of(7)).expect("asked"));
        assert!(!locks.is_leased(of(8)).expect("asked"));
        assert!(!locks.another_process_is_inside().expect("asked"));
        locks.end_lease(of(7));
        assert!(!locks.is_leased(of(7)).expect("asked"));
    }
}
