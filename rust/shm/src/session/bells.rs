//! Doorbells: a FIFO for each process that waits in an event loop; other processes wait on futexes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, mknodat, open};
use rustix::io::{Errno, read, write};

use super::Error;
use crate::crash_point::crash_point;
use crate::ring::wait::{Futex, SystemFutex};
use crate::ring::word::Owner;
use crate::segment::FileError;
use crate::sync::AtomicU32;

fn path_of(folder: &Path, owner: Owner) -> PathBuf {
    folder.join(format!("b{}", owner.index()))
}

/// The doorbell of this process: a FIFO that is readable after it was rung.
#[derive(Debug)]
pub(crate) struct Bell {
    fifo: OwnedFd,
}

impl Bell {
    /// Makes the doorbell, in place of one that a dead process with this index left.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn put_up(folder: &Path, me: Owner) -> Result<Self, Error> {
        let path = path_of(folder, me);
        take_down(folder, me);
        let mode = Mode::from_raw_mode(0o600);
        mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0)
            .map_err(|error| FileError::new("make the doorbell", &path, error))?;
        crash_point("hung");
        // Opened for writing too: then there always is a writer, and a read never finds the end.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fifo = open(&path, flags, Mode::empty())
            .map_err(|error| FileError::new("open the doorbell", &path, error))?;
        Ok(Self { fifo })
    }

    /// The descriptor that an event loop watches.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fifo.as_fd()
    }

    /// Empties it, so that it is not readable until it is rung again.
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 256];
        loop {
            match read(&self.fifo, &mut bytes) {
                Ok(count) if count == bytes.len() => (),
                Err(Errno::INTR) => (),
                _ => return,
            }
        }
    }
}

/// Removes the doorbell of a participant, if there is one.
pub(crate) fn take_down(folder: &Path, owner: Owner) {
    // A doorbell that cannot be removed does no harm: no process reads it.
    let _ = std::fs::remove_file(path_of(folder, owner));
}

/// Wakes other processes of a session: through futexes, and through their doorbells.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    folder: Arc<Path>,
}

impl Signals {
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.into(),
        }
    }
}

impl Futex for Signals {
    fn wait(&self, word: &AtomicU32, expected: u32, limit: Duration) -> bool {
        SystemFutex.wait(word, expected, limit)
    }

    fn wake(&self, word: &AtomicU32, count: u32) {
        SystemFutex.wake(word, count);
    }

    /// The FIFO is opened each time. Keeping a descriptor for each of many processes would cost
    /// more than these two microseconds, and a process that waits in an event loop is not in a
    /// hurry.
    fn ring(&self, participant: Owner) {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let rung = open(path_of(&self.folder, participant), flags, Mode::empty())
            .map_err(io::Error::from)
            .and_then(|fifo| Ok(write(&fifo, &[1])?));
        // If the FIFO is full, it was rung often enough. If it has no reader, its process is dead,
        // or about to remove it.
        drop(rung);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(&bell.fifo, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).expect("polled") == 1
    }

    #[test]
    fn a_bell_is_readable_from_the_first_ring_until_it_is_cleared() {
        let folder = tempfile::tempdir().expect("a folder");
        let me = Owner::new(3).expect("in range");
        let signals = Signals::new(folder.path());
        signals.ring(me); // there is no doorbell
        let bell = Bell::put_up(folder.path(), me).expect("put up");
        assert!(!is_readable(&bell));
        for _ in 0..1000 {
            signals.ring(me);
        }
        assert!(is_readable(&bell));
        bell.clear();
        assert!(!is_readable(&bell));
        signals.ring(Owner::new(4).expect("in range"));
        assert!(!is_readable(&bell));
    }

    #[test]
    fn a_bell_takes_the_place_of_one_that_was_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let me = Owner::new(3).expect("in range");
        let old = Bell::put_up(folder.path(), me).expect("put up");
        let new = Bell::put_up(folder.path(), me).expect("put up");
        Signals::new(folder.path()).ring(me);
        assert!(is_readable(&new) && !is_readable(&old));
        take_down(folder.path(), me);
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
    }
}
