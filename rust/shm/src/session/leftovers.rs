//! Leftovers of crashed jobs: finds and removes sessions in which no process is alive.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::liveness::Identity;
use super::lock::{LOCKS, Locks, look, opening};
use super::name::Name;
use super::{Control, Error, folders, liveness};

/// Minimum age before a session that no process has joined is removed: between its folder and the
/// lease of its maker, no other process can tell that the maker is alive. The maker needs
/// milliseconds.
const YOUNG: Duration = Duration::from_secs(10);

/// Time for which a session is spared after each request.
const SPARED: Duration = YOUNG;

/// Spares a session for [`SPARED`], but not beyond the life of the process `pid`, which starts
/// processes in place of the dead.
///
/// # Errors
///
/// The system's error; NotFound if the session was removed.
pub(super) fn spare(folder: &Path, pid: u32) -> io::Result<()> {
    // Not truncated, so that a reader finds either the old line or the new one.
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(folders::SPARED))?;
    file.write_all(Identity::of_pid(pid).to_line().as_bytes())
}

/// Removes the sessions of this user in a folder in which no process is alive, and leftover folders
/// on disk of such sessions in it. Returns the folders that were removed.
///
/// A session is left alone if it is not known whether a process is alive, if it is being made or
/// spared, or if another process is removing it. Sessions of this process and of the other backend
/// are left alone too.
pub fn clear(base: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(base) else {
        return Vec::new();
    };
    let mut folders: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| folders::is_own_folder(path))
        .collect();
    folders.sort_unstable();
    // Folders that cannot be removed stay for the next time.
    folders.retain(|folder| remove_if_dead(folder).unwrap_or(false));
    folders
}

/// Removes a session if all its participants are dead; returns whether it did.
fn remove_if_dead(folder: &Path) -> Result<bool, Error> {
    let read = |error| Error::from(crate::segment::FileError::new("read", folder, error));
    if !folders::has_only_known(folder).map_err(read)? {
        return Ok(false);
    }
    let opening = opening(folder)?;
    if !folder.join(LOCKS).try_exists().map_err(read)? {
        return Ok(remove_without_locks(folder));
    }
    let Some(locks) = look(folder, &opening)? else {
        return Ok(false);
    };
    if locks.is_in_use().map_err(read)? {
        return Ok(false);
    }
    // A process that attaches waits for this lock, and then finds the session gone.
    let Some(_guard) = locks.try_lock()? else {
        return Ok(false);
    };
    if locks.another_process_is_inside().map_err(read)?
        || !is_dead(folder, &locks)
        || is_spared(folder)
    {
        return Ok(false);
    }
    if !folder.exists() {
        return Ok(false);
    }
    Ok(folders::remove(folder).is_ok())
}

/// Removes a folder on disk, or a folder whose maker or remover died while the lock file was
/// missing.
fn remove_without_locks(folder: &Path) -> bool {
    match folders::is_orphan(folder) {
        Some(true) => folders::remove(folder).is_ok(),
        Some(false) => false,
        None => !is_young(folder) && fs::remove_dir(folder).is_ok(),
    }
}

/// Whether all participants are dead: their leases are free, and their processes gone (see
/// `liveness`). If there are none, the session is being made or its maker died, and its age
/// decides.
fn is_dead(folder: &Path, locks: &Locks) -> bool {
    let Some(name) = Name::of(folder) else {
        return false;
    };
    let is_old = || !is_young(&folder.join(LOCKS));
    let path = folder.join(folders::CONTROL);
    match Control::open(&path, name.session(), Instant::now()) {
        Ok(control) => {
            let mut taking_part = liveness::entered(&control).peekable();
            if taking_part.peek().is_none() {
                return is_old();
            }
            taking_part.all(|(owner, process)| liveness::is_dead(locks, owner, process))
        }
        // It is not finished, of another version, or damaged: the leases and the age decide.
        Err(_) => is_old(),
    }
}

/// Whether the session is spared: a request was made a moment ago, for a process that lives.
fn is_spared(folder: &Path) -> bool {
    let path = folder.join(folders::SPARED);
    let keeper = || Identity::parse(&fs::read_to_string(&path).ok()?);
    // A file that cannot be parsed is just being written.
    was_written_within(SPARED, &path) && keeper().is_none_or(|keeper| !keeper.is_gone())
}

/// Whether a file that is not written again was made recently.
fn is_young(path: &Path) -> bool {
    was_written_within(YOUNG, path)
}

/// Uses a clock that may be changed, so a time in the future counts as a distance too.
fn was_written_within(time: Duration, path: &Path) -> bool {
    let written = path.symlink_metadata().and_then(|status| status.modified());
    match written.map(|written| SystemTime::now().duration_since(written)) {
        Ok(Ok(age)) => age < time,
        Ok(Err(ahead)) => ahead.duration() < time,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}
