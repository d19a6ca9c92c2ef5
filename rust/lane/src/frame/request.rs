//! Requests: puts, takes, and what becomes of the messages of a take.

use std::ops::RangeInclusive;

use shoal_shm::Want;

use super::{
    ANY, Bytes, Fields, Invalid, LARGEST, MAX_KEY, MAX_LEASES, MAX_PAYLOAD, MAX_REQUESTS, NEVER,
};

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Put a message.
    Put = 1,
    /// Take messages. The server keeps them until the client has confirmed them.
    Take = 2,
    /// Confirm the messages of the take with this number. This and the next one have no key, are not
    /// numbered and get no reply.
    Keep = 3,
    /// Give them back to their queue.
    GiveBack = 4,
    /// Make the messages of the take `amount`, the last one, leases of a holder. This and the next ones
    /// have no key.
    Lease = 5,
    /// Renew leases of a holder. The payload is the holder and their numbers.
    Renew = 6,
    /// End leases of a holder: their messages are confirmed, or go back to their queues. The payload is
    /// as that of a renewal.
    Settle = 7,
}

impl Op {
    const ALL: [Self; 7] = [
        Self::Put,
        Self::Take,
        Self::Keep,
        Self::GiveBack,
        Self::Lease,
        Self::Renew,
        Self::Settle,
    ];

    /// Lengths that its payload may have.
    fn lengths(self, kind: u8) -> RangeInclusive<u64> {
        match self {
            Self::Put => 0..=MAX_PAYLOAD,
            Self::Take if kind == BY_WEIGHT => 0..=LEAST,
            Self::Take | Self::Keep | Self::GiveBack => 0..=0,
            Self::Lease => LeaseName::SIZE as u64..=LeaseName::SIZE as u64,
            Self::Renew | Self::Settle => HOLDER as u64..=(HOLDER + 8 * MAX_LEASES) as u64,
        }
    }
}

/// Length of a holder in bytes.
const HOLDER: usize = 16;

/// Reads the payload of a request to renew or to end leases: their holder, and their numbers.
///
/// # Errors
///
/// If there are too few bytes.
pub fn decode_leases(bytes: &[u8]) -> Result<(u128, impl Iterator<Item = u64>), Invalid> {
    let holder = Fields::of("leases", bytes, HOLDER)?.array();
    let (numbers, _) = bytes[HOLDER..].as_chunks();
    let numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
    Ok((u128::from_le_bytes(holder), numbers))
}

/// The payload of the request that makes leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// The client that has the lease: a random number of its own.
    pub holder: u128,
    /// The number of the first of them among the leases of its holder; the others follow.
    pub number: u64,
}

impl LeaseName {
    /// Its length in bytes.
    pub const SIZE: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let bytes = Bytes::new().add(&self.holder.to_le_bytes());
        bytes.add(&self.number.to_le_bytes()).bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// If there are too few bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields::of("lease", bytes, Self::SIZE)?;
        Ok(Self {
            holder: u128::from_le_bytes(fields.array()),
            number: u64::from_le_bytes(fields.array()),
        })
    }
}

/// Kind of a take of messages by their number, and of one by their weight.
const BY_COUNT: u8 = 0;
const BY_WEIGHT: u8 = 1;
/// Length of the payload of a take by weight: the weight that is enough.
const LEAST: u64 = 8;

/// How a put treats a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Policy {
    /// It waits.
    #[default]
    Block = 0,
    /// It drops the oldest message.
    DropOldest = 1,
    /// It drops all messages.
    KeepLatest = 2,
    /// It fails.
    Error = 3,
}

impl Policy {
    pub(super) const ALL: [Self; 4] =
        [Self::Block, Self::DropOldest, Self::KeepLatest, Self::Error];
}

const WAITS: u8 = 1;

/// The header of a request. Its key and its payload follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// How to treat a full queue.
    pub policy: Policy,
    /// Whether to wait for room and for memory.
    pub waits: bool,
    /// The format of the payload; of a take, whether `amount` is a number or a weight; of the end of
    /// leases, whether their messages go back.
    pub kind: u8,
    /// The process that puts, as its users know it.
    pub sender: u32,
    /// Number of requests of the same exchange that follow. If this one fails, they are not carried
    /// out.
    pub left: u32,
    /// Length of the key in bytes.
    pub key_length: u32,
    /// Length of the payload in bytes.
    pub length: u64,
    /// Number of the request in its stream, from 1.
    pub seq: u64,
    /// Weight of the message; of a take, the number or the weight of the messages; for leases, the take.
    pub amount: u64,
    /// Microseconds since the [`Welcome`](super::Welcome) of the connection at which the wait ends, or [`NEVER`]; 0
    /// for a request that does not wait.
    pub deadline: u64,
    /// The bound that the queue must have in messages; None for any.
    pub maxsize: Option<u64>,
    /// The bound that the queue must have in bytes; None for any.
    pub max_bytes: Option<u64>,
}

impl Request {
    /// Its length in bytes.
    pub const SIZE: usize = 64;

    /// A take, or with [`Op::Keep`] and [`Op::GiveBack`] what becomes of one; and its payload.
    pub fn of_take(op: Op, seq: u64, want: Want) -> (Self, Vec<u8>) {
        let (kind, amount, least) = match want {
            Want::Count(count) => (BY_COUNT, count.into(), None),
            Want::Weight { target, least } => (BY_WEIGHT, target, least),
        };
        let payload = least.map_or_else(Vec::new, |least| least.to_le_bytes().to_vec());
        let request = Self {
            op,
            policy: Policy::Block,
            waits: false,
            kind,
            sender: 0,
            left: 0,
            key_length: 0,
            length: payload.len() as u64,
            seq,
            amount,
            deadline: 0,
            maxsize: None,
            max_bytes: None,
        };
        (request, payload)
    }

    /// A request to make leases of the messages of a take, and its payload.
    pub fn of_lease(take: u64, name: LeaseName) -> (Self, Vec<u8>) {
        let request = Self {
            amount: take,
            ..Self::about_leases(Op::Lease, LeaseName::SIZE)
        };
        (request, name.encode().to_vec())
    }

    /// A request to renew or to end leases, at most [`MAX_LEASES`] of them, and its payload.
    pub fn of_leases(op: Op, holder: u128, numbers: &[u64]) -> (Self, Vec<u8>) {
        let mut payload = holder.to_le_bytes().to_vec();
        payload.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        (Self::about_leases(op, payload.len()), payload)
    }

    fn about_leases(op: Op, length: usize) -> Self {
        let (request, _) = Self::of_take(op, 1, Want::Count(0));
        Self {
            length: length as u64,
            ..request
        }
    }

    /// Whether the request that ends leases gives their messages back.
    pub fn goes_back(&self) -> bool {
        self.kind != 0
    }

    /// The messages that a take wants.
    pub fn want(&self, least: Option<u64>) -> Want {
        if self.kind == BY_WEIGHT {
            return Want::Weight {
                target: self.amount,
                least,
            };
        }
        Want::Count(u32::try_from(self.amount).unwrap_or(u32::MAX))
    }

    /// Number of the last request of its exchange.
    pub fn last(&self) -> u64 {
        self.seq.saturating_add(self.left.into())
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let flags = if self.waits { WAITS } else { 0 };
        let bytes = Bytes::new()
            .add(&[self.op as u8, self.policy as u8, flags, self.kind])
            .add(&self.sender.to_le_bytes())
            .add(&self.left.to_le_bytes())
            .add(&self.key_length.to_le_bytes())
            .add(&self.length.to_le_bytes())
            .add(&self.seq.to_le_bytes())
            .add(&self.amount.to_le_bytes())
            .add(&self.deadline.to_le_bytes())
            .add(&self.maxsize.unwrap_or(ANY).to_le_bytes());
        bytes
            .add(&self.max_bytes.unwrap_or(ANY).to_le_bytes())
            .bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields::of("request", bytes, Self::SIZE)?;
        let [op] = fields.array();
        let op = Op::ALL[usize::try_from(fields.checked("op", op.into(), 1..=7)? - 1).unwrap_or(0)];
        let (puts, takes) = (op == Op::Put, op == Op::Take);
        let policy = usize::from(fields.byte("policy", if puts { 3 } else { 0 })?);
        let waits = fields.byte("flags", if puts || takes { WAITS } else { 0 })? & WAITS != 0;
        let kind = fields.byte("kind", if puts { u8::MAX } else { BY_WEIGHT })?;
        let sender = fields.half("sender", u32::MAX)?;
        let left = fields.half("left", if puts { MAX_REQUESTS - 1 } else { 0 })?;
        Ok(Self {
            op,
            policy: Policy::ALL[policy],
            waits,
            kind,
            sender,
            left,
            key_length: fields.half("key_length", if puts || takes { MAX_KEY } else { 0 })?,
            length: fields.word("length", op.lengths(kind))?,
            // So far from the end that no number of the exchange overflows.
            seq: fields.word("seq", 1..=LARGEST)?,
            amount: fields.word("amount", 0..=LARGEST)?,
            deadline: fields.word("deadline", 0..=if waits { NEVER } else { 0 })?,
            maxsize: fields.bound("maxsize")?,
            max_bytes: fields.bound("max_bytes")?,
        })
    }
}
