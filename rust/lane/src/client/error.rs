//! Why a put or a take failed.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use shoal_shm::session::Shortage;

use crate::handshake;

/// A put that failed.
#[derive(Debug)]
pub struct Failed {
    /// Number of messages that are in the channel: the first ones. If the outcome is unknown, more
    /// of them may be.
    pub done: usize,
    /// Why the next one is not, or may not be.
    pub error: Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        match self.error {
            Error::Lost { .. } => {
                f.write_str(": it is not known whether the message is in the channel")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Why a message could not be put, or none was taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no room, no memory or no message, and the request does not wait.
    Full(Shortage),
    /// There was no room, no memory or no message before the deadline.
    Timeout(Shortage),
    /// The queue is closed; for a take, and empty.
    Closed(String),
    /// Memory is used up: that of the session, which is not to wait for it, or of this process.
    Memory(String),
    /// The message can never fit.
    TooLarge(String),
    /// The message or the queue is not valid: a key that is too long, other bounds.
    Invalid(String),
    /// The session cannot be used: it is damaged or closed.
    Session(String),
    /// The server is not one of this job.
    Refused {
        /// The server.
        address: SocketAddr,
        /// Why it is not.
        why: handshake::Error,
    },
    /// No connection came about, and nothing was sent.
    Unreachable {
        /// The server.
        address: SocketAddr,
        /// How long the client tried.
        waited: Duration,
        /// Why the last attempt failed.
        why: String,
    },
    /// The request was sent, and not answered. It is not known whether the messages of a put are in
    /// the channel. What a take may have taken goes back to its queue.
    Lost {
        /// The server.
        address: SocketAddr,
        /// Why it is not known.
        why: Loss,
    },
    /// The caller ended the wait. The messages from `done` on are not in the channel.
    Interrupted,
}

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Another server listens there now.
    OtherServer,
    /// A server listens there that this client refuses, or that refuses it, for this reason.
    Refused(String),
    /// The server has forgotten the stream: the client was away for too long.
    Forgotten,
    /// The server was cut off, and did not come back.
    Gone {
        /// How long the client tried.
        waited: Duration,
        /// Why the last attempt failed.
        why: String,
    },
    /// The server did not answer before the deadline and some time more.
    Silent,
    /// The server sent bytes that are not a reply.
    Broken(String),
    /// The caller ended the wait.
    Interrupted,
}

impl Error {
    /// Whether the messages from `done` on are certainly not in the channel.
    pub fn is_outcome_known(&self) -> bool {
        !matches!(self, Self::Lost { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(shortage) => write!(f, "{shortage}"),
            Self::Timeout(shortage) => write!(f, "not in time: {shortage}"),
            Self::Closed(text)
            | Self::Memory(text)
            | Self::TooLarge(text)
            | Self::Invalid(text)
            | Self::Session(text) => f.write_str(text),
            Self::Refused { address, why } => write!(f, "{address}: {why}"),
            Self::Unreachable {
                address,
                waited,
                why,
            } => write!(
                f,
                "{address} could not be reached within {:.1} s: {why}",
                waited.as_secs_f64()
            ),
            Self::Lost { address, why } => write!(f, "{address}: {why}"),
            Self::Interrupted => f.write_str("the caller ended the wait"),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherServer => f.write_str("another server listens there now"),
            Self::Refused(why) => write!(f, "another server listens there now: {why}"),
            Self::Forgotten => f.write_str("the server has forgotten this client"),
            Self::Gone { waited, why } => write!(
                f,
                "the connection was cut, and not made again within {:.1} s: {why}",
                waited.as_secs_f64()
            ),
            Self::Silent => f.write_str("the server did not answer in time"),
            Self::Broken(text) => write!(f, "the server sent bytes that are not a reply: {text}"),
            Self::Interrupted => f.write_str("the caller ended the wait"),
        }
    }
}
