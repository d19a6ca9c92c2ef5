//! The settings with which a session is made.

use std::path::{Path, PathBuf};

/// What to do if there is no memory for a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// Wait until there is memory.
    #[default]
    Block = 0,
    /// Return an error.
    Error = 1,
    /// Put the payload on disk.
    Spill = 2,
}

/// The choices of a session's maker, which hold for all participants.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder in which the session's folder is made.
    pub folder: PathBuf,
    /// The folder for payloads on disk: for spilled ones, or for all of them if `folder` has too
    /// little room.
    pub disk: PathBuf,
    /// Whether all payloads go to `disk`.
    pub payload_on_disk: bool,
    /// Maximum number of bytes of payload memory.
    pub max_bytes: u64,
    /// Maximum number of messages in a queue without a bound.
    pub backlog: u32,
    /// What to do if there is no memory for a message.
    pub memory_policy: MemoryPolicy,
    /// Whether a queue with a bound in bytes takes any message while it holds less; otherwise a
    /// message that does not fit has to wait until the queue is empty, or there is room for it.
    pub overfill: bool,
}

impl Settings {
    /// A session in one folder, whose puts wait for memory.
    #[must_use]
    pub fn in_folder(folder: &Path, max_bytes: u64, backlog: u32) -> Self {
        Self {
            folder: folder.to_owned(),
            disk: folder.to_owned(),
            payload_on_disk: false,
            max_bytes,
            backlog,
            memory_policy: MemoryPolicy::Block,
            overfill: false,
        }
    }
}
