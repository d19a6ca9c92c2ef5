//! The locks of a session: who changes its tables, and who is alive.
//!
//! One file, of which bytes are locked: byte 0 by who changes the tables (the structural lock), byte
//! `1 + i` by participant `i` for as long as it takes part (its lease). The kernel gives back what a
//! process held when its last thread is gone for good, a stopped process holds what it has, and a
//! forked child gets nothing of it. That is all there is to know who is dead without a guess.
//!
//! But it gives them back too when the process closes *any* descriptor of the file, also one that
//! it opened besides. So the file is opened once; see [`look`] for who wants to look at another's.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::super::memory::{Error as FileError, file};
use super::super::sync::hint::{AtomicU64, Ordering};
use super::super::word::Owner;
use super::Error;
use super::layout::PARTICIPANTS;
use super::solo::{Inside, PAUSE, Solo};
pub(super) use look::{look, opening};

mod look;

/// The name of the file.
pub(super) const LOCKS: &str = "locks";

/// The lock file of a session, as this process has it open.
#[derive(Debug)]
pub(crate) struct Locks {
    /// None once it is closed.
    file: Mutex<Option<OwnedFd>>,
    path: PathBuf,
    process: u32,
    structural: Solo,
    /// The lease of this process, which it cannot see by asking: its process and index, see `mine`.
    lease: AtomicU64,
}

/// Bytes of the file.
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
/// All that there is, to any end.
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
    /// Makes the file of a new session.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn create(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(LOCKS);
        let _opening = opening(&path)?;
        Ok(Self::new(file::create(&path, 0)?, path))
    }

    /// Opens that of a session which this process has not open.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] where there is none; where it is of another user; what the system says.
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
            structural: Solo::new(),
            lease: AtomicU64::new(0),
        }
    }

    /// Takes the structural lock, for as long as the guard is there.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] where somebody has it until the deadline; what the system says.
    pub(crate) fn lock(&self, deadline: Instant) -> Result<Guard<'_>, Error> {
        let begin = Instant::now();
        loop {
            if let Some(guard) = self.try_lock()? {
                return Ok(guard);
            }
            if Instant::now() >= deadline {
                let pid = match self.query(STRUCTURAL) {
                    // Not another process: a thread of this one.
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

    /// Takes the structural lock; None where somebody has it.
    ///
    /// # Errors
    ///
    /// What the system says.
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

    /// Takes the lease of a participant for this process, until it ends; false: somebody has it.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn take_lease(&self, of: Owner) -> Result<bool, Error> {
        let taken = self.set(lease(of))?;
        if taken {
            self.lease.store(mine(of), Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// Gives the lease back.
    pub(crate) fn end_lease(&self, of: Owner) {
        self.lease.store(0, Ordering::Relaxed);
        self.unset(lease(of));
    }

    /// Closes the file, and gives back all that this process has by it.
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

    /// Whether a process has the lease of a participant.
    ///
    /// # Errors
    ///
    /// What the system says; then nobody knows.
    pub(crate) fn is_leased(&self, of: Owner) -> io::Result<bool> {
        Ok(self.lease.load(Ordering::Relaxed) == mine(of)
            || self.query(lease(of))? != Holder::Nobody)
    }

    /// Whether another process takes part.
    ///
    /// # Errors
    ///
    /// What the system says; then nobody knows.
    pub(crate) fn anybody_else(&self) -> io::Result<bool> {
        Ok(self.query(LEASES)? != Holder::Nobody)
    }

    /// Whether another process has any lock of the file.
    ///
    /// # Errors
    ///
    /// What the system says; then nobody knows.
    pub(super) fn is_in_use(&self) -> io::Result<bool> {
        Ok(self.query(ALL)? != Holder::Nobody)
    }

    /// Whether it was locked; false: somebody else has it.
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
        // It fails where the file is not open, and then it is not locked either.
        let _ = self.call(FcntlArg::F_SETLK(&region(range, libc::F_UNLCK)));
    }

    /// Which other process has a lock there.
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
        // In a forked child this is what its parent had. If it were closed there, the child would
        // lose the locks that it took by an object of its own.
        if self.process != process::id() {
            let file = self.file.get_mut();
            std::mem::forget(file.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Who holds the structural lock.
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
    /// One of another namespace of process ids.
    Unknown,
}

/// How this process notes its own lease; a forked child does not take it for its own.
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
    fn one_thread_has_the_structural_lock_and_who_waits_is_told_who() {
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
        assert!(!locks.anybody_else().expect("asked"));
        locks.end_lease(of(7));
        assert!(!locks.is_leased(of(7)).expect("asked"));
    }
}
