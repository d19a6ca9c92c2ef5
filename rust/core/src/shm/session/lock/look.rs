//! Looking at a lock file that one does not take part by.
//!
//! The process that looks opens the file and closes it again. Where it takes part in the session
//! itself, that would give back what it holds. So it finds out first whether it has the file open,
//! by whatever object, also of the other backend.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use super::super::super::memory::{Error as FileError, file};
use super::super::Error;
use super::super::solo::{Inside, Solo};
use super::{LOCKS, Locks};

/// Held while a lock file is opened, or opened and closed for a look: between the question whether
/// this process has it open and the closing, no other thread may open it for good.
static OPENING: Solo = Solo::new();
/// How long it may be held: for as long as it takes to remove the files of a session.
const PATIENCE: Duration = Duration::from_secs(10);

/// To be held while a lock file is opened.
///
/// # Errors
///
/// Where another thread is at it for too long.
pub(in super::super) fn opening(path: &Path) -> Result<Inside<'static>, Error> {
    let begin = Instant::now();
    OPENING
        .enter(begin + PATIENCE)
        .ok_or_else(|| Error::Locked {
            path: path.to_owned(),
            pid: i32::try_from(process::id()).ok(),
            waited: begin.elapsed(),
        })
}

/// Opens a lock file for a look, if this process does not have it open: closing it would give back
/// what the process holds.
///
/// # Errors
///
/// What the system says; then nobody knows.
pub(in super::super) fn look(folder: &Path, _opening: &Inside<'_>) -> Result<Option<Locks>, Error> {
    let path = folder.join(LOCKS);
    let here = opened_here(&path)
        .map_err(|error| FileError::new("find out whether this process uses", &path, error))?;
    if here {
        return Ok(None);
    }
    Ok(Some(Locks::new(file::open_own(&path)?.0, path)))
}

/// Whether this process has a file open.
fn opened_here(path: &Path) -> io::Result<bool> {
    let same = |status: &fs::Metadata| (status.dev(), status.ino());
    let file = same(&path.symlink_metadata()?);
    for descriptor in fs::read_dir("/proc/self/fd")? {
        // One that is closed meanwhile, or the one that reads this folder: not it.
        if let Ok(status) = descriptor?.path().metadata()
            && same(&status) == file
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_open_here_is_not_opened_for_a_look() {
        let folder = tempfile::tempdir().expect("a folder");
        let locks = Locks::create(folder.path()).expect("made");
        let inside = opening(folder.path()).expect("free");
        assert!(look(folder.path(), &inside).expect("looked").is_none());
        drop(locks);
        assert!(look(folder.path(), &inside).expect("looked").is_some());
        let missing = look(&folder.path().join("no"), &inside);
        assert!(missing.is_err());
    }
}
