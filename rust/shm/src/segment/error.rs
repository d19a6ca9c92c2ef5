//! The error of a session: `Error`, and its texts.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::ring::error::Corrupt;
use crate::segment::{FileError, Outside};

/// Why a session, or something in it, is not available.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a call.
    File(FileError),
    /// The token is not valid.
    Token {
        /// The token.
        token: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The session is of another user.
    OtherUser {
        /// The user of the session.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// A file that is not a control segment of this version of shoal, or is damaged.
    Foreign {
        /// The file.
        path: PathBuf,
        /// The property that is wrong.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The value that it should have.
        expected: u64,
    },
    /// The process that makes the session did not finish.
    NotReady(PathBuf),
    /// The session's last process left, or it was removed.
    Gone(PathBuf),
    /// This process closed the session.
    Closed(PathBuf),
    /// The structural lock was not released in time.
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it, if the system tells.
        pid: Option<i32>,
        /// How long the caller waited.
        waited: Duration,
    },
    /// A table has no free entry.
    NoRoom {
        /// The kind of entry.
        what: &'static str,
        /// Maximum number of entries.
        limit: u64,
    },
    /// A key of a queue is too long.
    KeyTooLong {
        /// Length of the key in bytes.
        length: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// The queue exists with other bounds.
    OtherBounds {
        /// The bounds that it has: messages and bytes.
        found: (u64, u64),
        /// The bounds that the caller asked for.
        asked: (u64, u64),
    },
    /// The queue is closed: no message can be put any more.
    QueueClosed,
    /// The shared memory is damaged.
    Corrupt(Corrupt),
    /// The shared memory is damaged: something lies outside of it.
    Outside(Outside),
    /// A message lies in an extent that does not exist: the shared memory is damaged.
    NoSuchExtent(u32),
    /// There is no memory for a message, and the session's policy is not to wait for it.
    MemoryUsedUp {
        /// Length of the message.
        length: u64,
        /// Number of bytes reserved for payloads.
        reserved: u64,
        /// Maximum number of bytes reserved for payloads.
        limit: u64,
        /// The processes that hold most of it: the end of the text.
        holders: String,
    },
    /// A message that can never fit into the session.
    TooLarge {
        /// Length of the message.
        length: u64,
        /// Maximum number of bytes for payloads.
        limit: u64,
    },
}

impl Error {
    /// Whether a retry may succeed: this process, or the system, has too much in use now.
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
            Self::OtherUser { owner, user } => {
                write!(f, "belongs to user {owner}, and this process to {user}")
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
            Self::QueueClosed => write!(f, "the queue is closed"),
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
                holders,
            } => write!(
                f,
                "the session's memory is used up ({reserved} of {limit} bytes), and this message has {length}{holders}"
            ),
            Self::TooLarge { length, limit } => write!(
                f,
                "a message of {length} bytes never fits into the session: max_bytes={limit}"
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
