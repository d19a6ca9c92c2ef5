//! The bytes of messages, without Python.
//!
//! A message is one value, such as a number, a list of values or an array. [`Message`] is a message
//! under construction: its [`Head`], and pieces that still lie elsewhere. [`decode()`] reads a message
//! that another process may have damaged, and hands its values to a [`Build`], which makes objects
//! of them. [`Value`] is a `Build` for programs without an interpreter; the crate `shoal-codec`
//! has the one for Python.
//!
//! ```
//! use shoal_format::{Value, Values, decode};
//!
//! let value = Value::List(vec![Value::Int(7), Value::Text("seven".into())]);
//! let message = value.encode();
//! let mut bytes = vec![0; message.total_len()];
//! message.write_into(&mut |at, part| bytes[at..at + part.len()].copy_from_slice(part));
//! assert_eq!(decode(&Values, message.kind(), &bytes[..]), Ok(value));
//!
//! bytes.pop();
//! let damage = decode(&Values, message.kind(), &bytes[..]).unwrap_err();
//! assert!(damage.to_string().starts_with("the message is damaged: "));
//! ```
//!
//! # Layout
//!
//! A message of kind [`KIND_PLAIN`] is only a head. A message of kind [`KIND_PIECES`] is the length
//! of the head (8 bytes), the head, and then its pieces, each at the next multiple of 64: payloads
//! of [`PIECE`] bytes or more, which are copied only once, directly to their place. All numbers are
//! little-endian. The head is one value:
//!
//! | tag | then |
//! |---|---|
//! | none, true, false | |
//! | small int, int | 1, 8 bytes, two's complement |
//! | big int | length, two's complement |
//! | float, complex | 8, 16 bytes |
//! | str, bytes, bytearray | length; the bytes, or a piece |
//! | list, tuple | length; the values |
//! | dict | length; key, value, key, value, … |
//! | array, tensor | dtype (1), dimensions (1), lengths; the bytes, or a piece |
//! | pickle | length; the bytes, or a piece; number of buffers; for each the same |
//!
//! A length up to 253 is one byte; a longer one is the byte 254 and 4 bytes, or the byte 255 and 8
//! bytes.
//!
//! # Damage
//!
//! Another process may have damaged the bytes that are decoded. Every length is checked before it
//! is used, each byte of the head is read once, from a private copy, and no nesting is followed
//! deeper than [`DEPTH`]. Damage causes an error, a [`Damage`] or one of the [`Build`], or yields the
//! object of another valid message.

mod decode;
mod grid;
mod head;
mod keys;
mod layout;
mod message;
mod reader;
mod seen;
pub mod tag;
mod value;

pub use decode::{Build, Data, GridKind, Payload, check_kind, decode, decode_inline};
pub use grid::{DIMENSIONS, Grid};
pub use head::Head;
pub use keys::{Cached, Keys};
pub use message::{Message, Part};
pub use reader::Damage;
pub use seen::Seen;
pub use value::{Value, Values};

/// Kind of a message that is only a head.
pub const KIND_PLAIN: u32 = 1;

/// Kind of a message whose head is followed by pieces.
pub const KIND_PIECES: u32 = 2;

/// Minimum length in bytes of a piece; shorter payloads are part of the head.
pub const PIECE: usize = 4096;

/// Minimum length in bytes of a message that takes long to write: a caller that holds a lock which
/// other threads need releases it meanwhile.
pub const LONG: usize = 32 * 1024;

/// Maximum number of containers inside each other.
pub const DEPTH: u32 = 32;
