//! The error of a call of the operating system on a file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A failed call: the action, the file, and the system's error.
#[derive(Debug)]
pub struct FileError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// The error of a call on a file; `doing` completes the text "cannot {doing} {path}".
    pub fn new(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self {
            doing,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// The kind of the system's error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// The number of the system's error, if it has one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            doing,
            path,
            source,
        } = self;
        write!(f, "cannot {doing} {}: {source}", path.display())
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
