//! What crashed jobs left: sessions in which nobody is alive any more.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::super::payload::default_folders;
use super::liveness::Identity;
use super::lock::{LOCKS, Locks, look, opening};
use super::name::Name;
use super::{Control, Error, folders, liveness};

/// A session that nobody has joined yet is not cleared away before it is so old: between its folder
/// and the lease of its maker nobody can tell that it is alive. Its maker needs milliseconds.
const YOUNG: Duration = Duration::from_secs(10);

/// So long from each time that somebody asked for it a session is spared.
const SPARED: Duration = YOUNG;

/// Has a session spared for a moment, and as long as a process lives that starts others in the place
/// of the dead.
///
/// # Errors
///
/// What the system says; NotFound where the session was removed.
pub(super) fn spare(folder: &Path, pid: u32) -> io::Result<()> {
    // Not truncated: a reader finds one of the two lines.
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(folders::SPARED))?;
    file.write_all(Identity::of_pid(pid).to_line().as_bytes())
}

/// Removes the sessions of this user in a folder in which nobody is alive, and what is left of their
/// folders on disk in it. What was removed.
///
/// Where nobody can tell whether somebody is alive, where the session is being made or spared, or
/// where somebody else is at it, it is left alone; so are sessions of this process and those of the
/// other backend.
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
    if locks.is_in_use().map_err(read)? {
        return Ok(false);
    }
    // Who attaches waits for this lock, and finds the session gone.
    let Some(_guard) = locks.try_lock()? else {
        return Ok(false);
    };
    if locks.anybody_else().map_err(read)? || !is_dead(folder, &locks) || is_spared(folder) {
        return Ok(false);
    }
    if !folder.exists() {
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

/// Whether all are dead who took part: their leases are free, and their processes gone (see
/// `liveness`). Where nobody took part it is being made, or its maker died: its age tells.
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
        // It is not finished, of another version, or damaged: the leases decide.
        Err(_) => is_old(),
    }
}

/// Whether somebody asked a moment ago to have it spared, for a process that lives.
fn is_spared(folder: &Path) -> bool {
    let path = folder.join(folders::SPARED);
    let keeper = || Identity::parse(&fs::read_to_string(&path).ok()?);
    // What cannot be read is being written.
    was_written_within(SPARED, &path) && keeper().is_none_or(|keeper| !keeper.is_gone())
}

/// Whether a file that nobody writes was just made.
fn is_young(path: &Path) -> bool {
    was_written_within(YOUNG, path)
}

/// By a clock that may be set.
fn was_written_within(time: Duration, path: &Path) -> bool {
    let written = path.symlink_metadata().and_then(|status| status.modified());
    match written.map(|written| SystemTime::now().duration_since(written)) {
        Ok(Ok(age)) => age < time,
        Ok(Err(ahead)) => ahead.duration() < time,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}
