//! The end of a session for all who take part: no more puts, nobody who joins.

use std::io;

use super::super::memory::Error as FileError;
use super::super::sync::Ordering;

use super::own::PATIENCE;
use super::recover::folder_of;
use super::uses::Use;
use super::{Error, Session, folders, leftovers, queues};

impl Session {
    /// Refuses further puts to all queues, for everybody: to those that are there, and to those that
    /// will be made. Again is nothing, but for what somebody who died in the middle left open.
    ///
    /// # Errors
    ///
    /// Where this process left the session, the session is damaged, or its lock is not to be had.
    pub fn close_queues(&self) -> Result<(), Error> {
        let _use = Use::of(self)?;
        let _guard = self.lock(PATIENCE)?;
        queues::seal(self.control(), &self.signals())
    }

    /// Leaves the session where it is when this process leaves it as the last one: somebody comes and
    /// goes on with it, or it is a leftover.
    pub fn keep(&self) {
        self.keeps.store(true, Ordering::SeqCst);
    }

    /// Has the session spared when all who take part are dead: for ten seconds from each call, and as
    /// long as a process lives that starts others in their place. Whoever finds it then may go on.
    ///
    /// # Errors
    ///
    /// Where this process left the session; what the system says, but not that it was removed.
    pub fn spare(&self, pid: u32) -> Result<(), Error> {
        let _use = Use::of(self)?;
        let folder = folder_of(self.control());
        match leftovers::spare(folder, pid) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileError::new("write into", folder, error).into())
            }
            _ => Ok(()),
        }
    }

    /// Removes what the session has in the file system: nobody can join it any more. Who takes part
    /// keeps what is mapped, and no more memory is to be had.
    ///
    /// # Errors
    ///
    /// Where this process left the session, or its lock is not to be had.
    pub fn remove(&self) -> Result<(), Error> {
        let _use = Use::of(self)?;
        let _guard = self.lock(PATIENCE)?;
        self.control().set_gone();
        // What is not removed is a leftover.
        let _ = folders::remove(folder_of(self.control()));
        Ok(())
    }

    /// Whether somebody called [`Self::close_queues`].
    ///
    /// # Errors
    ///
    /// Where this process left the session.
    pub fn is_sealed(&self) -> Result<bool, Error> {
        self.check_open()?;
        Ok(queues::is_sealed(self.control()))
    }
}
