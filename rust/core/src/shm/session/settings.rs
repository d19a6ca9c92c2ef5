//! How a session is made.

use std::path::PathBuf;

/// What to do where a message finds no memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// Wait until there is some.
    #[default]
    Block = 0,
    /// Say so.
    Error = 1,
    /// Put it on disk.
    Spill = 2,
}

/// What the one who makes a session decides for everybody.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder that the session's folder is made in.
    pub folder: PathBuf,
    /// The folder for payloads that do not go there: spilled ones, or all of them where the first
    /// has too little room.
    pub disk: PathBuf,
    /// Whether all payloads go to `disk`.
    pub payload_on_disk: bool,
    /// How many bytes of payload memory there may be.
    pub max_bytes: u64,
    /// How many messages a queue without a bound holds.
    pub backlog: u32,
    /// What to do where a message finds no memory.
    pub memory_policy: MemoryPolicy,
}
