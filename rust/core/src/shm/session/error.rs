//! What can go wrong with a session.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use super::super::error::Corrupt;
use super::super::memory::{Error as FileError, Outside};

/// Why a session, or something in it, is not to be had.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    File(FileError),
    /// A token that is none.
    Token {
        /// The token.
        token: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file that is no control segment of this version of shoal, or is damaged.
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is not as it should be.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// Whoever makes the session did not finish.
    NotReady(PathBuf),
    /// Its last process left, or it was cleared away.
    Gone(PathBuf),
    /// This process closed it.
    Closed(PathBuf),
    /// Somebody holds the structural lock and does not let go.
    Locked {
        /// The file of the lock.
        path: PathBuf,
        /// Who holds it, if the system tells.
        pid: Option<i32>,
        /// How long was waited.
        waited: Duration,
    },
    /// A table has no free entry.
    NoRoom {
        /// Of what there are too many.
        what: &'static str,
        /// How many there can be.
        limit: u64,
    },
    /// A key of a queue that is too long.
    KeyTooLong {
        /// How many bytes it has.
        length: usize,
        /// How many it may have.
        limit: usize,
    },
    /// The queue is there with other bounds.
    OtherBounds {
        /// The bounds that it has: messages, and bytes.
        found: (u64, u64),
        /// The bounds that were asked for.
        asked: (u64, u64),
    },
    /// The shared memory is damaged.
    Corrupt(Corrupt),
    /// The shared memory is damaged: something lies outside of it.
    Outside(Outside),
    /// A message lies in an extent that does not exist: the shared memory is damaged.
    NoSuchExtent(u32),
    /// There is no memory for a message, and the session is not to wait for it.
    MemoryUsedUp {
        /// How long the message is.
        length: u64,
        /// How many bytes are taken for payloads.
        reserved: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A message that cannot fit, however long one waits.
    TooLarge {
        /// How long it is.
        length: u64,
        /// How many bytes there may be.
        limit: u64,
    },
}

impl Error {
    /// Whether the same may succeed later: this process, or the system, has too much in use now.
    pub fn is_passing(&self) -> bool {
        let passing = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
        matches!(self, Self::File(file) if file.errno().is_some_and(|errno| passing.contains(&errno)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Token { token, why } => {
                write!(
                    f,
                    "{token:?} is not a token of a session: {why}; expected what `Session.token` of the process that made it says"
                )
            }
            Self::Foreign {
                path,
                what,
                found,
                expected,
            } => write!(
                f,
                "{} is not a session of this version of shoal, or is damaged: its {what} is {found:#x}, expected {expected:#x}",
                path.display()
            ),
            Self::NotReady(path) => write!(
                f,
                "{} is not ready: the process that makes the session has not finished, or died",
                path.display()
            ),
            Self::Gone(path) => write!(
                f,
                "the session {} is gone: a session ends when its last process leaves",
                path.display()
            ),
            Self::Closed(path) => {
                write!(
                    f,
                    "the session {} was closed by this process",
                    path.display()
                )
            }
            Self::Locked { path, pid, waited } => {
                write!(
                    f,
                    "waited {:.1} s for the lock {}",
                    waited.as_secs_f64(),
                    path.display()
                )?;
                match pid {
                    Some(pid) => write!(f, ", which process {pid} holds"),
                    None => Ok(()),
                }
            }
            Self::NoRoom { what, limit } => {
                write!(
                    f,
                    "the session has its {limit} {what} already, and cannot have more"
                )
            }
            Self::KeyTooLong { length, limit } => {
                write!(f, "a key of {length} bytes: expected at most {limit}")
            }
            Self::OtherBounds { found, asked } => write!(
                f,
                "the queue has maxsize={}, max_bytes={}, not maxsize={}, max_bytes={}",
                found.0, found.1, asked.0, asked.1
            ),
            Self::Corrupt(error) => error.fmt(f),
            Self::Outside(error) => {
                write!(f, "the shared memory of this session is damaged: {error}")
            }
            Self::NoSuchExtent(index) => write!(
                f,
                "the shared memory of this session is damaged: a message lies in extent {index}, which does not exist"
            ),
            Self::MemoryUsedUp {
                length,
                reserved,
                limit,
            } => write!(
                f,
                "the session's memory is used up ({reserved} of {limit} bytes are reserved), and this message has {length}; create it with a larger max_bytes, or with memory_policy=\"block\" or \"spill\""
            ),
            Self::TooLarge { length, limit } => write!(
                f,
                "a message of {length} bytes can never fit: the session has at most {limit} bytes for payloads; create it with a larger max_bytes"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File(error) => Some(error),
            Self::Corrupt(error) => Some(error),
            Self::Outside(error) => Some(error),
            _ => None,
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl From<Corrupt> for Error {
    fn from(error: Corrupt) -> Self {
        Self::Corrupt(error)
    }
}

impl From<Outside> for Error {
    fn from(error: Outside) -> Self {
        Self::Outside(error)
    }
}
