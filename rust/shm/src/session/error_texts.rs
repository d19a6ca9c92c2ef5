//! The texts of session errors for users: they name the operation that failed, and its object.

use std::io::ErrorKind;

use super::{Error, Shortage};

impl Error {
    /// Whether the operation failed for lack of memory or space.
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoRoom { .. } | Self::MemoryUsedUp { .. } | Self::TooLarge { .. } => true,
            Self::File(file) => matches!(
                file.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded
            ),
            _ => false,
        }
    }

    /// Whether there is no session: it ended, or never was.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Gone(_) => true,
            Self::File(file) => file.kind() == ErrorKind::NotFound,
            _ => false,
        }
    }

    /// The lack of memory in numbers, if that is the error.
    pub fn shortage(&self) -> Option<Shortage> {
        match *self {
            Self::MemoryUsedUp {
                length,
                reserved,
                limit,
                ..
            } => Some(Shortage::Memory {
                held: reserved,
                bound: limit,
                length,
            }),
            _ => None,
        }
    }

    /// The text for a failed operation on `subject`, such as `queue 'a'`.
    pub fn text(&self, operation: &str, subject: &str) -> String {
        match self {
            Self::Closed(_) => format!("{operation}: the session is closed in this process"),
            Self::QueueClosed => format!("{operation}: {subject} is closed"),
            Self::OtherBounds { found, asked } => format!(
                "{subject} has maxsize={}, max_bytes={}, not maxsize={}, max_bytes={}",
                found.0, found.1, asked.0, asked.1
            ),
            error if error.is_full() => format!("{operation}: {error}"),
            error => format!("{operation}: {subject}: {error}"),
        }
    }

    /// The text for a session that cannot be created.
    pub fn text_of_create(&self) -> String {
        format!("no session can be made: {self}")
    }

    /// The text for a session that cannot be attached to.
    pub fn text_of_attach(&self, token: &str) -> String {
        match self {
            error if error.is_gone() => {
                format!("no session at {token}: it was closed, or is on another host")
            }
            Self::OtherUser { .. } => format!("the session at {token} {self}"),
            error => format!("the session at {token} cannot be used: {error}"),
        }
    }
}
