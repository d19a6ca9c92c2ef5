//! What crashed jobs left: sessions in which nobody is alive any more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::super::payload::default_folders;
use super::lock::{LOCKS, Locks, look, opening};
use super::name::Name;
use super::{Control, Error, folders, liveness};

/// A session is not cleared away before it is so old: between its folder and the lease of its maker
/// nobody can tell that it is alive. Its maker needs milliseconds.
const YOUNG: Duration = Duration::from_secs(10);

/// Removes the sessions of this user in a folder in which nobody is alive, and what is left of their
/// folders on disk in it. What was removed.
///
/// Where nobody can tell whether somebody is alive, where the session is being made, or where
/// somebody else is at it, it is left alone; so are sessions of this process and those of the other
/// backend.
pub fn clear(base: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(base) else {
        return Vec::new();
    };
    let mut folders: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| folders::is_own_folder(path))
        .collect();
    folders.sort_unstable();
    // What cannot be removed stays for the next time.
    folders.retain(|folder| remove_if_dead(folder).unwrap_or(false));
    folders
}

/// The same in a folder, or in those in which sessions are made unless told otherwise.
pub fn clear_all(base: Option<&Path>) -> Vec<PathBuf> {
    match base {
        Some(base) => clear(base),
        None => default_folders()
            .iter()
            .flat_map(|base| clear(base))
            .collect(),
    }
}

/// Whether it was removed.
fn remove_if_dead(folder: &Path) -> Result<bool, Error> {
    let read = |error| Error::from(super::super::memory::Error::new("read", folder, error));
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
    if is_young(&folder.join(LOCKS)) || locks.is_in_use().map_err(read)? {
        return Ok(false);
    }
    // Who attaches waits for this lock, and finds the session gone.
    let Some(_guard) = locks.try_lock()? else {
        return Ok(false);
    };
    if locks.anybody_else().map_err(read)? || is_anybody_alive(folder, &locks) || !folder.exists() {
        return Ok(false);
    }
    Ok(folders::remove(folder).is_ok())
}

/// A folder on disk, or one whose maker or remover died between the folder and the locks.
fn remove_without_locks(folder: &Path) -> bool {
    match folders::is_orphan(folder) {
        Some(true) => folders::remove(folder).is_ok(),
        Some(false) => false,
        None => !is_young(folder) && fs::remove_dir(folder).is_ok(),
    }
}

/// Whether the process of a participant is there, though none has a lease; see `liveness`.
fn is_anybody_alive(folder: &Path, locks: &Locks) -> bool {
    let Some(name) = Name::of(folder) else {
        return true;
    };
    let path = folder.join(folders::CONTROL);
    match Control::open(&path, name.session(), Instant::now()) {
        Ok(control) => liveness::entered(&control)
            .any(|(owner, process)| !liveness::is_dead(locks, owner, process)),
        // It was never finished, is of another version, or damaged: the leases decide.
        Err(_) => false,
    }
}

/// Whether a file that nobody writes was just made, by a clock that may be set.
fn is_young(path: &Path) -> bool {
    let made = path.symlink_metadata().and_then(|status| status.modified());
    match made.map(|made| SystemTime::now().duration_since(made)) {
        Ok(Ok(age)) => age < YOUNG,
        Ok(Err(ahead)) => ahead.duration() < YOUNG,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}
