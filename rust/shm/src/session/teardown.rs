//! The end of a session for all participants: `close_queues`, `keep`, `spare`, `remove`.

use std::io;

use crate::segment::FileError;
use crate::sync::Ordering;

use super::recover::folder_of;
use super::session::PATIENCE;
use super::use_guard::UseGuard;
use super::{Error, Session, folders, leftovers, queue_table};

impl Session {
    /// Refuses further puts to all queues, by any process: to existing queues, and to those made
    /// later. Idempotent. If a previous caller died halfway, closes the remaining queues.
    ///
    /// # Errors
    ///
    /// If this process left the session, the session is damaged, or its lock is not available in
    /// time.
    pub fn close_queues(&self) -> Result<(), Error> {
        let _use = UseGuard::of(self)?;
        let _guard = self.lock(PATIENCE)?;
        queue_table::seal(self.control(), &self.signals())
    }

    /// Makes the files of the session stay if this process is the last to leave. Either another
    /// process comes and continues with the session, or it is a leftover.
    pub fn keep(&self) {
        self.keeps.store(true, Ordering::SeqCst);
    }

    /// Spares the session when all participants are dead: for ten seconds from each call, but not
    /// beyond the life of the process `pid`, which starts processes in place of the dead. A process
    /// that finds the session during this time may continue with it.
    ///
    /// # Errors
    ///
    /// If this process left the session; the system's error, but not that the session was removed.
    pub fn spare(&self, pid: u32) -> Result<(), Error> {
        let _use = UseGuard::of(self)?;
        let folder = folder_of(self.control());
        match leftovers::spare(folder, pid) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileError::new("write into", folder, error).into())
            }
            _ => Ok(()),
        }
    }

    /// Removes the session's files: no process can join any more. Participants keep what they have
    /// mapped, but get no more memory.
    ///
    /// # Errors
    ///
    /// If this process left the session, or its lock is not available in time.
    pub fn remove(&self) -> Result<(), Error> {
        let _use = UseGuard::of(self)?;
        let _guard = self.lock(PATIENCE)?;
        self.control().set_gone();
        // Anything that is not removed is a leftover.
        let _ = folders::remove(folder_of(self.control()));
        Ok(())
    }

    /// Whether a process called [`Self::close_queues`].
    ///
    /// # Errors
    ///
    /// If this process left the session.
    pub fn is_sealed(&self) -> Result<bool, Error> {
        self.check_open()?;
        Ok(queue_table::is_sealed(self.control()))
    }
}
