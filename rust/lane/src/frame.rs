//! The frames: headers of fixed lengths, in little endian, and the bytes that follow them.
//!
//! | frame | direction | then |
//! |---|---|---|
//! | [`Hello`] | client → server, first after the handshake | |
//! | [`Welcome`] | server → client, its answer | |
//! | [`Request`] | client → server | the key of the queue, the payload |
//! | [`Reply`] | server → client | the items of a take, or the text of an error |
//! | [`Item`] | within the reply to a take | the payload of the item |
//!
//! The other end has proved that it belongs to the job, but it may be of any mind: a decoder checks
//! every field, and bytes that are not used must be zero, so that a later version can use them.

use std::error::Error;
use std::fmt;

/// The longest key of a queue, in bytes.
pub const MOST_KEY_BYTES: u32 = 1 << 16;

/// The longest payload, in bytes.
pub const MOST_PAYLOAD_BYTES: u64 = 1 << 48;

/// The most items of a queue, and so of a take.
pub const MOST_ITEMS: u32 = 1 << 20;

/// The [`Request::deadline`] of a request without a limit of time.
pub const NEVER: u64 = u64::MAX;

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError {
    /// The frame, such as `request`.
    pub frame: &'static str,
    /// The field that has a value which cannot be.
    pub field: &'static str,
    /// This value.
    pub value: u64,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            frame,
            field,
            value,
        } = self;
        write!(
            f,
            "the {frame} of the other end is damaged: {field} = {value} cannot be"
        )
    }
}

impl Error for FrameError {}

/// Reads the fields of a frame one after the other.
struct Fields<'a> {
    frame: &'static str,
    rest: &'a [u8],
}

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self
            .rest
            .split_first_chunk()
            .expect("the length was checked");
        self.rest = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn error(&self, field: &'static str, value: u64) -> FrameError {
        FrameError {
            frame: self.frame,
            field,
            value,
        }
    }

    /// Returns a number that may have at most a value.
    fn at_most(&self, field: &'static str, value: u64, most: u64) -> Result<u64, FrameError> {
        if value <= most {
            Ok(value)
        } else {
            Err(self.error(field, value))
        }
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, FrameError> {
        match self.bytes::<1>()[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.error(field, other.into())),
        }
    }

    /// Checks that bytes which have no use are zero.
    fn unused<const N: usize>(&mut self) -> Result<(), FrameError> {
        match self.bytes::<N>().into_iter().find(|byte| *byte != 0) {
            None => Ok(()),
            Some(byte) => Err(self.error("an unused byte", byte.into())),
        }
    }
}

/// Writes the fields of a frame one after the other.
struct Writer<const N: usize> {
    bytes: [u8; N],
    end: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Self {
            bytes: [0; N],
            end: 0,
        }
    }

    fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.end..self.end + field.len()].copy_from_slice(field);
        self.end += field.len();
        self
    }

    fn unused(mut self, count: usize) -> Self {
        self.end += count;
        self
    }

    fn done(self) -> [u8; N] {
        assert_eq!(self.end, N, "the fields of a frame fill it");
        self.bytes
    }
}

/// The first frame of a client: which stream it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The stream.
    pub stream: u128,
    /// Whether the stream had a connection before. A server that does not know such a stream
    /// refuses it, because it cannot know what became of the requests.
    pub again: bool,
    /// The last request whose reply the client has received.
    pub acked: u64,
}

impl Hello {
    /// The length of the frame.
    pub const LEN: usize = 32;

    /// Returns the bytes of the frame.
    pub fn encode(&self) -> [u8; Self::LEN] {
        Writer::new()
            .put(&self.stream.to_le_bytes())
            .put(&self.acked.to_le_bytes())
            .put(&[self.again.into()])
            .unused(7)
            .done()
    }

    /// Reads the frame.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, FrameError> {
        let mut fields = Fields {
            frame: "hello",
            rest: bytes,
        };
        let stream = u128::from_le_bytes(fields.bytes());
        let acked = fields.u64();
        let again = fields.flag("again")?;
        fields.unused::<7>()?;
        Ok(Self {
            stream,
            again,
            acked,
        })
    }
}

/// The answer of a server to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// A random number of this process: another one belongs to another server.
    pub epoch: u64,
    /// The last request of the stream that is done, and so are all before it.
    pub done: u64,
    /// Whether the stream is accepted; it is not if it was there before and is forgotten.
    pub known: bool,
}

impl Welcome {
    /// The length of the frame.
    pub const LEN: usize = 24;

    /// Returns the bytes of the frame.
    pub fn encode(&self) -> [u8; Self::LEN] {
        Writer::new()
            .put(&self.epoch.to_le_bytes())
            .put(&self.done.to_le_bytes())
            .put(&[self.known.into()])
            .unused(7)
            .done()
    }

    /// Reads the frame.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, FrameError> {
        let mut fields = Fields {
            frame: "welcome",
            rest: bytes,
        };
        let (epoch, done) = (fields.u64(), fields.u64());
        let known = fields.flag("known")?;
        fields.unused::<7>()?;
        Ok(Self { epoch, done, known })
    }
}

/// Defines an enum of one byte, and its reading.
macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$of])* $variant = $value,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn read(fields: &mut Fields<'_>, field: &'static str) -> Result<Self, FrameError> {
                match fields.bytes::<1>()[0] {
                    $($value => Ok(Self::$variant),)*
                    other => Err(fields.error(field, other.into())),
                }
            }
        }
    };
}

byte_enum! {
    /// What a client asks for.
    Op {
        /// Put the message that follows.
        Put = 1,
        /// Take items; they are lent until `Keep` or `GiveBack`.
        Take = 2,
        /// The items of a take have arrived.
        Keep = 3,
        /// The items of a take are to be delivered again.
        GiveBack = 4,
        /// Leases of items are still in use; their numbers follow.
        Renew = 5,
    }
}

byte_enum! {
    /// What a put does if the queue holds as many items as it may.
    Policy {
        /// It waits.
        Block = 0,
        /// It fails.
        Error = 1,
        /// It drops the oldest item.
        DropOldest = 2,
        /// It drops all items.
        KeepLatest = 3,
    }
}

byte_enum! {
    /// How a request ended.
    Status {
        /// It is done, and so are all earlier ones.
        Done = 0,
        /// There was no room or no memory, or there were no items, until the deadline.
        TimedOut = 1,
        /// The queue is closed.
        Closed = 2,
        /// It failed; the text of the error follows.
        Failed = 3,
    }
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub op: Op,
    /// What a put does if the queue is full.
    pub policy: Policy,
    /// The number of the request in its stream, from 1.
    pub seq: u64,
    /// The length of the queue's key, which follows the header.
    pub key_len: u32,
    /// The length of the payload, which follows the key.
    pub payload_len: u64,
    /// The kind of the message that is put.
    pub kind: u32,
    /// The process that made the message.
    pub sender: u32,
    /// The weight of a put; the number of items of a take.
    pub amount: u64,
    /// When the request gives up, in microseconds since [`Welcome`] was sent; 0 if it does not
    /// wait, [`NEVER`] if it has no limit.
    pub deadline: u64,
    /// The most items of the queue, if the request is the first to use it; 0 for no bound.
    pub maxsize: u32,
    /// The most bytes of the queue, if the request is the first to use it; 0 for no bound.
    pub max_bytes: u64,
}

impl Request {
    /// The length of the header.
    pub const LEN: usize = 64;

    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        Writer::new()
            .put(&[self.op as u8, self.policy as u8])
            .unused(2)
            .put(&self.key_len.to_le_bytes())
            .put(&self.payload_len.to_le_bytes())
            .put(&self.seq.to_le_bytes())
            .put(&self.amount.to_le_bytes())
            .put(&self.deadline.to_le_bytes())
            .put(&self.max_bytes.to_le_bytes())
            .put(&self.kind.to_le_bytes())
            .put(&self.sender.to_le_bytes())
            .put(&self.maxsize.to_le_bytes())
            .unused(4)
            .done()
    }

    /// Reads the header.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, FrameError> {
        let mut fields = Fields {
            frame: "request",
            rest: bytes,
        };
        let op = Op::read(&mut fields, "op")?;
        let policy = Policy::read(&mut fields, "policy")?;
        fields.unused::<2>()?;
        let key_len = fields.u32();
        fields.at_most(
            "the length of the key",
            key_len.into(),
            MOST_KEY_BYTES.into(),
        )?;
        let payload_len = fields.u64();
        fields.at_most("the length of the payload", payload_len, MOST_PAYLOAD_BYTES)?;
        let seq = fields.u64();
        if seq == 0 {
            return Err(fields.error("the number of the request", seq));
        }
        let (amount, deadline, max_bytes) = (fields.u64(), fields.u64(), fields.u64());
        if op == Op::Take && amount == 0 {
            return Err(fields.error("the number of items", amount));
        }
        let (kind, sender, maxsize) = (fields.u32(), fields.u32(), fields.u32());
        fields.at_most("maxsize", maxsize.into(), MOST_ITEMS.into())?;
        fields.unused::<4>()?;
        Ok(Self {
            op,
            policy,
            seq,
            key_len,
            payload_len,
            kind,
            sender,
            amount,
            deadline,
            maxsize,
            max_bytes,
        })
    }
}

/// A reply of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the request `seq` ended.
    pub status: Status,
    /// The number of the request; all earlier ones are done.
    pub seq: u64,
    /// The number of items that follow.
    pub count: u32,
    /// The length of all that follows.
    pub len: u64,
}

impl Reply {
    /// The length of the header.
    pub const LEN: usize = 24;

    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        Writer::new()
            .put(&[self.status as u8])
            .unused(3)
            .put(&self.count.to_le_bytes())
            .put(&self.len.to_le_bytes())
            .put(&self.seq.to_le_bytes())
            .done()
    }

    /// Reads the header.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, FrameError> {
        let mut fields = Fields {
            frame: "reply",
            rest: bytes,
        };
        let status = Status::read(&mut fields, "status")?;
        fields.unused::<3>()?;
        let count = fields.u32();
        fields.at_most("the number of items", count.into(), MOST_ITEMS.into())?;
        let len = fields.u64();
        fields.at_most("the length", len, MOST_PAYLOAD_BYTES)?;
        if len < u64::from(count) * Item::LEN as u64 {
            return Err(fields.error("the length", len));
        }
        let seq = fields.u64();
        Ok(Self {
            status,
            seq,
            count,
            len,
        })
    }
}

/// An item in the reply to a take; its payload follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The length of the payload.
    pub payload_len: u64,
    /// The weight with which it was put.
    pub weight: u64,
    /// The kind of the message.
    pub kind: u32,
    /// The process that made the message.
    pub sender: u32,
    /// Whether it was delivered before.
    pub redelivered: bool,
}

impl Item {
    /// The length of the header.
    pub const LEN: usize = 32;

    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        Writer::new()
            .put(&self.payload_len.to_le_bytes())
            .put(&self.weight.to_le_bytes())
            .put(&self.kind.to_le_bytes())
            .put(&self.sender.to_le_bytes())
            .put(&[self.redelivered.into()])
            .unused(7)
            .done()
    }

    /// Reads the header.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, FrameError> {
        let mut fields = Fields {
            frame: "item",
            rest: bytes,
        };
        let payload_len = fields.u64();
        fields.at_most("the length of the payload", payload_len, MOST_PAYLOAD_BYTES)?;
        let (weight, kind, sender) = (fields.u64(), fields.u32(), fields.u32());
        let redelivered = fields.flag("redelivered")?;
        fields.unused::<7>()?;
        Ok(Self {
            payload_len,
            weight,
            kind,
            sender,
            redelivered,
        })
    }
}
