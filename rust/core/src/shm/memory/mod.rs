//! Files, and the memory that processes share through them. Unsafe code is in [`map`] alone.

mod error;
pub mod file;
pub mod map;

pub use error::Error;
pub use map::{Mapping, Outside, Shared};
