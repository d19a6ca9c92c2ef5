//! A look at the lock file of a session in which this process does not take part.
//!
//! The process that looks opens the file and closes it again. If it takes part in the session
//! itself, closing the file would release its locks. So it first finds out whether it has the file
//! open, through any object, including those of the other backend.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use super::{LOCKS, Locks};
use crate::segment::{FileError, file};
use crate::session::Error;
use crate::session::thread_lock::{Inside, ThreadLock};

/// Held while a lock file is opened, or opened and closed for a look: from the check whether this
/// process has it open until the closing, no other thread may open it to keep it.
static OPENING: ThreadLock = ThreadLock::new();
/// Maximum wait for `OPENING`: as long as it may take to remove the files of a session.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes `OPENING`, which must be held while a lock file is opened.
///
/// # Errors
///
/// If another thread holds it for too long.
pub(in crate::session) fn opening(path: &Path) -> Result<Inside<'static>, Error> {
    let begin = Instant::now();
    OPENING
        .enter(begin + PATIENCE)
        .ok_or_else(|| Error::Locked {
            path: path.to_owned(),
            pid: i32::try_from(process::id()).ok(),
            waited: begin.elapsed(),
        })
}

/// Opens a lock file for a look; None if this process has it open already, because closing it would
/// release this process's locks.
///
/// # Errors
///
/// The system's error: the state of the locks is not known.
pub(in crate::session) fn look(
    folder: &Path,
    _opening: &Inside<'_>,
) -> Result<Option<Locks>, Error> {
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
        // A descriptor that was closed meanwhile, or the one that reads this folder, is not the
        // file.
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
