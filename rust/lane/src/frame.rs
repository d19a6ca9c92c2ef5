//! The frames: headers of fixed lengths, all numbers little-endian, and the bytes that follow them.
//!
//! | frame | bytes | fields, in their order | then |
//! |---|---|---|---|
//! | [`Hello`] | 24 | stream 16, again 1, 0 × 7 | |
//! | [`Welcome`] | 24 | status 1, replies 1, 0 × 6, epoch 8, done 8 | as many replies |
//! | [`Request`] | 64 | op 1, policy 1, flags 1, kind 1, sender 4, left 4, key length 4, length 8, seq 8, amount 8, deadline 8, maxsize 8, bytes 8 | key, payload |
//! | [`Reply`] | 24 | status 1, 0 × 3, count 4, length 8, seq 8 | body |
//! | [`LeaseName`] | 24 | holder 16, number 8 | |
//! | [`Item`] | 24 | length 8, weight 8, sender 4, kind 1, again 1, 0 × 2 | payload |
//!
//! Both sides know the job's key before a frame is read; even so a decoder takes any bytes, and
//! checks each field against its limits.

mod request;

use std::fmt;
use std::ops::RangeInclusive;

use shoal_shm::session::Shortage;

pub use self::request::{LeaseName, Op, Policy, Request, decode_leases};

/// Maximum length of a key in bytes, as in a session.
pub const MAX_KEY: u32 = 0xffff;
/// Maximum length of a payload in bytes. The session's memory sets a lower limit.
pub const MAX_PAYLOAD: u64 = 1 << 40;
/// Maximum number of requests of an exchange.
pub const MAX_REQUESTS: u32 = 1 << 20;
/// Maximum length of the body of a reply that says why a request failed, in bytes.
pub const MAX_BODY: u64 = 4096;
/// Maximum number of leases of a request to renew or to end them.
pub const MAX_LEASES: usize = 1024;
/// Largest weight and largest bound, which are signed numbers elsewhere.
pub const LARGEST: u64 = i64::MAX.unsigned_abs();
/// The deadline of a request that waits without limit.
pub const NEVER: u64 = u64::MAX;
/// A bound that the client does not ask for.
const ANY: u64 = u64::MAX;

/// Bytes that are not a frame of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// There are too few bytes.
    Short {
        /// The frame.
        frame: &'static str,
        /// Number of bytes.
        length: usize,
        /// Number of bytes that the frame has.
        expected: usize,
    },
    /// A field is out of its limits.
    Field {
        /// The frame.
        frame: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Its smallest value.
        low: u64,
        /// Its largest value.
        high: u64,
    },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short {
                frame,
                length,
                expected,
            } => write!(f, "a {frame} of {length} bytes: expected {expected}"),
            Self::Field {
                frame,
                field,
                value,
                low,
                high,
            } => write!(f, "{field}={value} of a {frame}: expected {low} to {high}"),
        }
    }
}

impl std::error::Error for Invalid {}

/// The fields of a frame, read one after the other.
struct Fields<'a> {
    frame: &'static str,
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The first `expected` bytes of `bytes`.
    fn of(frame: &'static str, bytes: &'a [u8], expected: usize) -> Result<Self, Invalid> {
        let length = bytes.len();
        let bytes = bytes.get(..expected).ok_or(Invalid::Short {
            frame,
            length,
            expected,
        })?;
        Ok(Self { frame, bytes })
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let Some((first, rest)) = self.bytes.split_first_chunk() else {
            return [0; N]; // never: the lengths of the fields add up to that of the frame
        };
        self.bytes = rest;
        *first
    }

    fn checked(
        &self,
        field: &'static str,
        value: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, Invalid> {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(Invalid::Field {
            frame: self.frame,
            field,
            value,
            low: *range.start(),
            high: *range.end(),
        })
    }

    fn byte(&mut self, field: &'static str, high: u8) -> Result<u8, Invalid> {
        let [value] = self.array();
        self.checked(field, value.into(), 0..=high.into())?;
        Ok(value)
    }

    fn half(&mut self, field: &'static str, high: u32) -> Result<u32, Invalid> {
        let value = u32::from_le_bytes(self.array());
        self.checked(field, value.into(), 0..=high.into())?;
        Ok(value)
    }

    fn word(&mut self, field: &'static str, range: RangeInclusive<u64>) -> Result<u64, Invalid> {
        let value = u64::from_le_bytes(self.array());
        self.checked(field, value, range)
    }

    fn bound(&mut self, field: &'static str) -> Result<Option<u64>, Invalid> {
        match u64::from_le_bytes(self.array()) {
            ANY => Ok(None),
            value => self.checked(field, value, 0..=LARGEST).map(Some),
        }
    }

    fn zeros<const N: usize>(&mut self) -> Result<(), Invalid> {
        let zeros: [u8; N] = self.array();
        let wrong = zeros.into_iter().find(|byte| *byte != 0);
        wrong.map_or(Ok(()), |byte| {
            self.checked("reserved", byte.into(), 0..=0).map(drop)
        })
    }
}

/// A frame under construction.
struct Bytes<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Bytes<N> {
    fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    fn add(mut self, field: &[u8]) -> Self {
        let end = self.length + field.len();
        self.bytes[self.length..end].copy_from_slice(field);
        self.length = end;
        self
    }
}

/// The first frame of a client: which stream the connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The stream, a random number of the client's.
    pub stream: u128,
    /// Whether requests were sent on an earlier connection of the stream. The server then refuses a
    /// stream that it does not know: it cannot tell which of them it has carried out.
    pub again: bool,
}

impl Hello {
    /// Its length in bytes.
    pub const SIZE: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let bytes = Bytes::new().add(&self.stream.to_le_bytes());
        bytes.add(&[self.again.into()]).bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields::of("hello", bytes, Self::SIZE)?;
        let hello = Self {
            stream: u128::from_le_bytes(fields.array()),
            again: fields.byte("again", 1)? != 0,
        };
        fields.zeros::<7>()?;
        Ok(hello)
    }
}

/// The answer to a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcome {
    /// The connection carries the stream.
    Go {
        /// A random number of the server's process, not 0.
        epoch: u64,
        /// All requests of the stream up to this one were carried out.
        done: u64,
        /// Whether one of the last exchange failed: its reply follows, once more.
        failed: bool,
    },
    /// The server does not know the stream, though requests were sent on it.
    Forgotten {
        /// A random number of the server's process, not 0.
        epoch: u64,
    },
}

impl Welcome {
    /// Its length in bytes.
    pub const SIZE: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let (status, failed, epoch, done) = match *self {
            Self::Go {
                epoch,
                done,
                failed,
            } => (0, failed, epoch, done),
            Self::Forgotten { epoch } => (1, false, epoch, 0),
        };
        let bytes = Bytes::new().add(&[status, failed.into(), 0, 0, 0, 0, 0, 0]);
        let bytes = bytes.add(&epoch.to_le_bytes());
        bytes.add(&done.to_le_bytes()).bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields::of("welcome", bytes, Self::SIZE)?;
        let known = fields.byte("status", 1)? == 0;
        let failed = fields.byte("replies", known.into())? != 0;
        fields.zeros::<6>()?;
        let epoch = fields.word("epoch", 1..=u64::MAX)?;
        let done = fields.word("done", 0..=if known { u64::MAX } else { 0 })?;
        Ok(if known {
            Self::Go {
                epoch,
                done,
                failed,
            }
        } else {
            Self::Forgotten { epoch }
        })
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It was carried out, with all requests before it.
    Done = 0,
    /// There is no room or no memory, and it does not wait. The body is a [`Shortage`].
    Full = 1,
    /// There was no room or no memory before its deadline. The body is a [`Shortage`].
    Timeout = 2,
    /// The queue is closed. This and the following ones have a text as their body.
    Closed = 3,
    /// Memory is used up, and the session is not to wait for it.
    Memory = 4,
    /// The message can never fit.
    TooLarge = 5,
    /// The queue cannot be opened in this way: its key is too long, or it has other bounds.
    Invalid = 6,
    /// The session cannot be used: it is damaged or closed.
    Failed = 7,
}

impl Status {
    const ALL: [Self; 8] = [
        Self::Done,
        Self::Full,
        Self::Timeout,
        Self::Closed,
        Self::Memory,
        Self::TooLarge,
        Self::Invalid,
        Self::Failed,
    ];
}

/// The header of a reply: the request `seq` has this outcome, and all requests before it were
/// carried out. Its body follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The outcome.
    pub status: Status,
    /// Number of items in the body.
    pub count: u32,
    /// Length of the body in bytes.
    pub length: u64,
    /// The request.
    pub seq: u64,
}

impl Reply {
    /// Its length in bytes.
    pub const SIZE: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let bytes = Bytes::new().add(&[self.status as u8, 0, 0, 0]);
        let bytes = bytes.add(&self.count.to_le_bytes());
        let bytes = bytes.add(&self.length.to_le_bytes());
        bytes.add(&self.seq.to_le_bytes()).bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields::of("reply", bytes, Self::SIZE)?;
        let status = Status::ALL[usize::from(fields.byte("status", 7)?)];
        fields.zeros::<3>()?;
        let done = status == Status::Done;
        let (most, longest) = if done {
            (MAX_REQUESTS, MAX_PAYLOAD)
        } else {
            (0, MAX_BODY)
        };
        Ok(Self {
            status,
            count: fields.half("count", most)?,
            length: fields.word("length", 0..=longest)?,
            seq: fields.word("seq", 0..=u64::MAX)?,
        })
    }
}

/// The length of a [`Shortage`] in bytes: kind 1, 0 × 7, held 8, bound 8, length 8.
pub const SHORTAGE: usize = 32;

/// The bytes of a shortage.
pub fn encode_shortage(shortage: &Shortage) -> [u8; SHORTAGE] {
    let kind = match shortage {
        Shortage::Messages { .. } => 0,
        Shortage::Backlog { .. } => 1,
        Shortage::Bytes { .. } => 2,
        Shortage::Memory { .. } => 3,
        Shortage::Weight { .. } => 4,
        Shortage::Empty => 5,
    };
    let (_, held, bound, length) = shortage.parts();
    let bytes = Bytes::new().add(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    let bytes = bytes.add(&held.to_le_bytes()).add(&bound.to_le_bytes());
    bytes.add(&length.to_le_bytes()).bytes
}

/// Reads a shortage.
///
/// # Errors
///
/// If the bytes are none.
pub fn decode_shortage(bytes: &[u8]) -> Result<Shortage, Invalid> {
    let mut fields = Fields::of("shortage", bytes, SHORTAGE)?;
    let kind = fields.byte("kind", 5)?;
    fields.zeros::<7>()?;
    let held = fields.word("held", 0..=if kind == 5 { 0 } else { u64::MAX })?;
    let bound = fields.word("bound", 0..=if kind == 5 { 0 } else { u64::MAX })?;
    let length = fields.word(
        "length",
        0..=if (2..4).contains(&kind) { u64::MAX } else { 0 },
    )?;
    Ok(match kind {
        0 => Shortage::Messages { held, bound },
        1 => Shortage::Backlog { held, bound },
        2 => Shortage::Bytes {
            held,
            bound,
            length,
        },
        3 => Shortage::Memory {
            held,
            bound,
            length,
        },
        4 => Shortage::Weight { held, bound },
        _ => Shortage::Empty,
    })
}

/// The header of an item in the reply to a take. Its payload follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Length of the payload in bytes.
    pub length: u64,
    /// Weight of the message.
    pub weight: u64,
    /// The process that put it, as its users know it.
    pub sender: u32,
    /// The format of the payload.
    pub kind: u8,
    /// Whether the message was delivered before.
    pub redelivered: bool,
}

impl Item {
    /// Its length in bytes.
    pub const SIZE: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let bytes = Bytes::new().add(&self.length.to_le_bytes());
        let bytes = bytes.add(&self.weight.to_le_bytes());
        let bytes = bytes.add(&self.sender.to_le_bytes());
        bytes.add(&[self.kind, self.redelivered.into()]).bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields::of("item", bytes, Self::SIZE)?;
        let item = Self {
            length: fields.word("length", 0..=MAX_PAYLOAD)?,
            weight: fields.word("weight", 0..=LARGEST)?,
            sender: fields.half("sender", u32::MAX)?,
            kind: {
                let [kind] = fields.array();
                kind
            },
            redelivered: fields.byte("again", 1)? != 0,
        };
        fields.zeros::<2>()?;
        Ok(item)
    }
}

#[cfg(test)]
mod tests;
