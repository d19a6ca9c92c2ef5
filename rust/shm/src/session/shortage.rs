//! `Shortage`: why a call on a queue was refused, in numbers and in words.

use std::fmt;

use super::SessionQueue;
use crate::blocking::Lack;
use crate::ring::Want;

/// The resource that a refused call lacked, when it gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The queue holds as many messages as its `maxsize` allows.
    Messages {
        /// Number of messages in the queue.
        held: u64,
        /// Maximum number of messages.
        bound: u64,
    },
    /// A queue without `maxsize` holds as many messages as the session's backlog allows.
    Backlog {
        /// Number of messages in the queue.
        held: u64,
        /// Maximum number of messages.
        bound: u64,
    },
    /// The queue has no room for the bytes of the message.
    Bytes {
        /// Number of bytes in the queue.
        held: u64,
        /// Maximum number of bytes.
        bound: u64,
        /// Number of bytes of the message.
        length: u64,
    },
    /// The session has no memory for the message.
    Memory {
        /// Number of bytes that are reserved.
        held: u64,
        /// Maximum number of bytes that are reserved.
        bound: u64,
        /// Number of bytes of the message.
        length: u64,
    },
    /// There is no message to take.
    Empty,
    /// The messages do not add up to the weight of a batch.
    Weight {
        /// Number of messages in the queue.
        held: u64,
        /// The weight.
        bound: u64,
    },
}

impl Shortage {
    /// Its kind, the amount held, the bound, and the length of the message, as Python gets them.
    pub fn parts(&self) -> (&'static str, u64, u64, u64) {
        match *self {
            Self::Messages { held, bound } => ("messages", held, bound, 0),
            Self::Backlog { held, bound } => ("backlog", held, bound, 0),
            Self::Bytes {
                held,
                bound,
                length,
            } => ("bytes", held, bound, length),
            Self::Memory {
                held,
                bound,
                length,
            } => ("memory", held, bound, length),
            Self::Empty => ("empty", 0, 0, 0),
            Self::Weight { held, bound } => ("weight", held, bound, 0),
        }
    }

    /// The text of the error of a call that does not wait.
    pub fn text(&self, operation: &str, queue: &str) -> String {
        match self {
            Self::Empty => format!("{operation}: {queue} is empty"),
            Self::Weight { bound, .. } => {
                format!("{operation}: {queue} does not reach weight {bound}: {self}")
            }
            _ => format!("{operation}: no room in {queue}: {self}"),
        }
    }

    /// The text of the error of a call that waited for this many seconds.
    pub fn timeout_text(&self, operation: &str, queue: &str, seconds: &str) -> String {
        match self {
            Self::Empty => format!("{operation}: no message in {queue} within {seconds} s"),
            Self::Weight { bound, .. } => format!(
                "{operation}: {queue} did not reach weight {bound} within {seconds} s: {self}"
            ),
            _ => format!("{operation}: no room in {queue} within {seconds} s: {self}"),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages { held, bound } => {
                write!(
                    f,
                    "it holds {held} messages, as many as maxsize={bound} allows"
                )
            }
            Self::Backlog { held, .. } => write!(
                f,
                "it holds {held} messages, as many as the session's backlog allows"
            ),
            Self::Bytes {
                held,
                bound,
                length,
            } => write!(
                f,
                "it holds {held} bytes of max_bytes={bound}, and this message has {length}"
            ),
            Self::Memory {
                held,
                bound,
                length,
            } => write!(
                f,
                "the session's memory is used up ({held} of {bound} bytes), and this message has {length}"
            ),
            Self::Empty => write!(f, "it is empty"),
            Self::Weight { held, .. } => write!(f, "it holds {held} messages"),
        }
    }
}

impl SessionQueue {
    /// The numbers for an error about a put that lacks something. The state may have changed since:
    /// a queue that has room again is reported as full.
    pub fn shortage_of_put(&self, lack: Lack) -> Shortage {
        let length = match lack {
            Lack::Room { length } => length,
            Lack::Memory { length } => {
                let stats = self.session().stats().unwrap_or_default();
                return Shortage::Memory {
                    held: stats.bytes_reserved,
                    bound: stats.max_bytes,
                    length,
                };
            }
        };
        let (bound, max_bytes) = (self.bound(), self.max_bytes());
        if max_bytes > 0 && self.len() < bound {
            return Shortage::Bytes {
                held: self.bytes().unwrap_or(max_bytes),
                bound: max_bytes,
                length,
            };
        }
        match self.maxsize() {
            0 => Shortage::Backlog { held: bound, bound },
            maxsize => Shortage::Messages {
                held: maxsize,
                bound: maxsize,
            },
        }
    }

    /// The numbers for an error about a take that found too little.
    pub fn shortage_of_take(&self, want: Want) -> Shortage {
        match want {
            Want::Count(_) => Shortage::Empty,
            Want::Weight { target, least } => match least.map_or(target, |l| l.min(target)) {
                0 => Shortage::Empty,
                bound => Shortage::Weight {
                    held: self.len(),
                    bound,
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_has_the_words_of_its_kind() {
        let full = Shortage::Messages { held: 3, bound: 3 };
        assert_eq!(full.parts(), ("messages", 3, 3, 0));
        assert_eq!(
            full.timeout_text("put", "queue 'a'", "0.5"),
            "put: no room in queue 'a' within 0.5 s: it holds 3 messages, as many as maxsize=3 allows"
        );
        let long = Shortage::Bytes {
            held: 100,
            bound: 128,
            length: 64,
        };
        assert_eq!(
            long.text("put_nowait", "queue 'a'"),
            "put_nowait: no room in queue 'a': it holds 100 bytes of max_bytes=128, and this message has 64"
        );
        assert_eq!(
            Shortage::Empty.text("get_nowait", "queue 'a'"),
            "get_nowait: queue 'a' is empty"
        );
        let light = Shortage::Weight { held: 3, bound: 10 };
        assert_eq!(
            light.timeout_text("get_batch", "queue 'a'", "2"),
            "get_batch: queue 'a' did not reach weight 10 within 2 s: it holds 3 messages"
        );
    }
}
