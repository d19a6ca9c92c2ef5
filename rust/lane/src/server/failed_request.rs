//! Why a request was not carried out, and what its client is told.

use std::io::{self, ErrorKind};

use shoal_shm::blocking::Lack;
use shoal_shm::session::{Error, SessionQueue};

use crate::frame::{MAX_BODY, Status, encode_shortage};

/// Why a request was not carried out.
pub(super) enum Stop {
    /// It failed; the connection goes on.
    Fails(Status, Vec<u8>),
    /// It failed with an error of the session; the connection goes on.
    Session(Error),
    /// The connection ended.
    Ended(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Ended(error)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Session(error)
    }
}

impl Stop {
    /// The status and the body of its reply, or the error that ended the connection.
    pub(super) fn reply(self) -> Result<(Status, Vec<u8>), io::Error> {
        match self {
            Self::Fails(status, body) => Ok((status, body)),
            Self::Session(error) => Ok(described(&error)),
            Self::Ended(error) => Err(error),
        }
    }

    pub(super) fn text(status: Status, text: String) -> Self {
        Self::Fails(status, body_of(text))
    }

    pub(super) fn shortage(status: Status, queue: &SessionQueue, lack: Lack) -> Self {
        let shortage = queue.shortage_of_put(lack);
        Self::Fails(status, encode_shortage(&shortage).to_vec())
    }

    pub(super) fn closed() -> Self {
        Self::text(Status::Closed, "the queue is closed and empty".to_owned())
    }

    pub(super) fn gone() -> Self {
        Self::Ended(ErrorKind::ConnectionReset.into())
    }
}

/// The status and the body of the reply about an error of the session.
fn described(error: &Error) -> (Status, Vec<u8>) {
    let status = match error {
        Error::QueueClosed => Status::Closed,
        Error::MemoryUsedUp { .. } => Status::Memory,
        Error::TooLarge { .. } => Status::TooLarge,
        Error::KeyTooLong { .. } | Error::OtherBounds { .. } => Status::Invalid,
        _ => Status::Failed,
    };
    (status, body_of(error.to_string()))
}

fn body_of(text: String) -> Vec<u8> {
    let mut body = text.into_bytes();
    body.truncate(usize::try_from(MAX_BODY).unwrap_or(usize::MAX));
    body
}
