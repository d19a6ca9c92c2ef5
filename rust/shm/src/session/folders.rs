//! The folders of a session: their files, and how they are removed.
//!
//! One folder has everything, unless payloads go to disk. Then a second folder with the same name
//! has the payloads, and the link `disk` in the first folder leads to it; if the first folder is on
//! the disk itself, there is no second one, and the link leads to the first. A file `home` in the
//! second folder says where the first one is, so that the second can be recognised as a leftover
//! when the first is gone, as after a restart of the machine.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::Error;
use super::lock::LOCKS;
use super::name::Name;
use crate::segment::{FileError, file};

/// Name of the control segment.
pub(crate) const CONTROL: &str = "ctl";
/// Name of the link to the folder on disk.
pub(crate) const DISK: &str = "disk";
const HOME: &str = "home";
/// Name of the file that says for which process the session is spared when all participants are
/// dead.
pub(super) const SPARED: &str = "spared";
/// Names of the control page and of the publisher's lock of weights
/// (`python/shoal/weights/control.py`).
const WEIGHTS: &str = "weights";
const PUBLISHER: &str = "publisher";
/// Maximum number of attempts to remove a folder in which other processes make files meanwhile.
const ATTEMPTS: usize = 8;

/// Makes the folder on disk of a session, in `base`, and links it from the session's folder.
///
/// # Errors
///
/// The system's error.
pub(crate) fn make_disk(folder: &Path, base: &Path) -> Result<(), Error> {
    let base = base
        .canonicalize()
        .map_err(|error| FileError::new("find the folder", base, error))?;
    let disk = base.join(folder.file_name().unwrap_or_default());
    if disk == folder {
        let link = folder.join(DISK);
        let linked = symlink(".", &link);
        return Ok(linked.map_err(|error| FileError::new("make the link", &link, error))?);
    }
    file::make_folder(&disk)?;
    let (home, link) = (disk.join(HOME), folder.join(DISK));
    let written = write_new(&home, &Home::of(folder).to_text())
        .map_err(|error| FileError::new("write", &home, error))
        .and_then(|()| {
            symlink(&disk, &link).map_err(|error| FileError::new("make the link", &link, error))
        });
    if written.is_err() {
        // No other process knows of it yet. Anything that cannot be removed now is a leftover.
        let _ = remove_known(&disk);
    }
    Ok(written?)
}

/// The folder on disk. The link is followed only to a folder where a session would have made it.
fn linked_disk(folder: &Path) -> Option<PathBuf> {
    let target = fs::read_link(folder.join(DISK)).ok()?;
    let same_name = target.is_absolute() && target.file_name() == folder.file_name();
    same_name.then_some(target)
}

/// Removes the folders of a session with all files that a session makes in them, and nothing else.
///
/// # Errors
///
/// The system's error: anything that is not removed is a leftover.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    if let Some(disk) = linked_disk(folder)
        && is_own_folder(&disk)
    {
        remove_known(&disk)?;
    }
    remove_known(folder)
}

/// Whether a path is a folder, not a link to one, with the name of a session of this user.
pub(super) fn is_own_folder(path: &Path) -> bool {
    let named = Name::of(path).is_some_and(Name::is_own);
    let status = path.symlink_metadata();
    named && status.is_ok_and(|status| status.is_dir() && status.uid() == geteuid().as_raw())
}

/// Whether a folder has only files that a session makes: a folder of the other backend has others.
pub(super) fn has_only_known(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        if !is_known(entry?.file_name().to_str()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a folder, and files that participants make in it meanwhile: at most a doorbell each.
fn remove_known(folder: &Path) -> io::Result<()> {
    for _ in 1..ATTEMPTS {
        match try_remove_known(folder) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            result => return result,
        }
    }
    try_remove_known(folder)
}

/// Removes the lock file last: a folder that still has it can be recognised as a leftover.
fn try_remove_known(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_known(name.to_str()) && name != LOCKS {
            ignore_missing(fs::remove_file(entry.path()))?;
        }
    }
    ignore_missing(fs::remove_file(folder.join(LOCKS)))?;
    ignore_missing(fs::remove_dir(folder))
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Whether a session makes files of this name: `x17` is an extent, `b3` a doorbell,
/// `p4026531836-17-99-0` a payload for several readers (`python/shoal/shm/shared_files/names.py`),
/// `v1-5` or `r1-5` a version of weights (`python/shoal/weights/folder.py`),
/// `h1-5-4026531836-17-99-0` a record of a process that holds one, and names that begin with `s` or
/// `u` are parts of one (`python/shoal/weights/parts.py`).
fn is_known(name: Option<&str>) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.is_some_and(|name| match name {
        CONTROL | LOCKS | DISK | HOME | SPARED | WEIGHTS | PUBLISHER => true,
        _ => match name.strip_prefix(['p', 'v', 'r', 'h', 's', 'u']) {
            Some(numbers) => numbers.split('-').all(is_number),
            None => name.strip_prefix(['x', 'b']).is_some_and(is_number),
        },
    })
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

/// Whether a folder on disk is of a session whose own folder is gone; None if it is not a folder on
/// disk of a session.
///
/// A missing path means something only to a process that sees the same files as the maker of the
/// path: on the same machine, in the same mount namespace; or on the same machine after a restart.
/// In other cases the folder is not taken for an orphan.
pub(super) fn is_orphan(disk: &Path) -> Option<bool> {
    let home = Home::parse(&fs::read_to_string(disk.join(HOME)).ok()?)?;
    let here = Home::of(&home.folder);
    let same_host = home.host == here.host && !home.host.is_empty();
    let restarted = home.boot != here.boot && !here.boot.is_empty();
    let gone = home.mounts == here.mounts && !exists(&home.folder);
    Some(same_host && (restarted || gone))
}

fn exists(path: &Path) -> bool {
    // If in doubt, the path exists.
    !matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// The place of a session's folder, and the machine and mount namespace in which it is visible.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Home {
    folder: PathBuf,
    /// The name of the machine, or of its container.
    host: String,
    /// The id of the machine's boot; it is different after each restart.
    boot: String,
    /// The mount namespace.
    mounts: String,
}

impl Home {
    fn of(folder: &Path) -> Self {
        let kernel = |name| {
            let text = fs::read_to_string(Path::new("/proc/sys/kernel").join(name));
            text.map_or_else(|_| String::new(), |text| text.trim().to_owned())
        };
        let mounts = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
        Self {
            folder: folder.to_owned(),
            host: kernel("hostname"),
            boot: kernel("random/boot_id"),
            mounts: mounts.display().to_string(),
        }
    }

    fn to_text(&self) -> String {
        let Self {
            folder,
            host,
            boot,
            mounts,
        } = self;
        format!("{host}\n{boot}\n{mounts}\n{}\n", folder.display())
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.splitn(4, '\n').map(str::to_owned);
        let (host, boot, mounts) = (lines.next()?, lines.next()?, lines.next()?);
        let folder = lines.next()?.into();
        Some(Self {
            folder,
            host,
            boot,
            mounts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::name::Token;

    fn session(base: &Path) -> PathBuf {
        let folder = Token::random(base).expect("a name").folder().to_owned();
        file::make_folder(&folder).expect("made");
        folder
    }

    fn make(path: &Path) {
        file::create(path, 0).expect("made");
    }

    #[test]
    fn everything_that_a_session_makes_goes_and_nothing_else() {
        let base = tempfile::tempdir().expect("a folder");
        let other = tempfile::tempdir().expect("a folder");
        let folder = session(base.path());
        make_disk(&folder, other.path()).expect("made");
        let disk = linked_disk(&folder).expect("linked");
        assert!(disk.starts_with(other.path()) && is_own_folder(&disk));
        for name in ["ctl", "locks", "spared", "x0", "x17", "b3", "p1-2-3-4"] {
            make(&folder.join(name));
        }
        make(&disk.join("x18"));
        assert!(has_only_known(&folder).expect("read"));
        assert!(has_only_known(&disk).expect("read"));
        remove(&folder).expect("removed");
        assert!(!exists(&folder) && !exists(&disk));
        assert!(base.path().is_dir() && other.path().is_dir());

        let folder = session(base.path());
        for name in ["ctl", "x", "xy", "pure.db"] {
            make(&folder.join(name));
        }
        assert!(!has_only_known(&folder).expect("read"));
        remove(&folder).expect_err("it is not empty");
        assert_eq!(fs::read_dir(&folder).expect("there").count(), 3);
    }

    #[test]
    fn a_link_leads_nowhere_but_to_a_folder_of_the_same_session() {
        let base = tempfile::tempdir().expect("a folder");
        let other = tempfile::tempdir().expect("a folder");
        let foreign = session(other.path());
        make(&foreign.join("x1"));
        for target in [foreign.as_path(), other.path(), Path::new("..")] {
            let folder = session(base.path());
            symlink(target, folder.join(DISK)).expect("linked");
            assert_eq!(linked_disk(&folder), None);
            remove(&folder).expect("removed");
        }
        // It has the right name, but it is a link.
        let folder = session(base.path());
        let link = other.path().join(folder.file_name().expect("named"));
        symlink(&foreign, &link).expect("linked");
        symlink(&link, folder.join(DISK)).expect("linked");
        remove(&folder).expect("removed");
        assert!(exists(&link) && exists(&foreign.join("x1")));
    }

    #[test]
    fn a_session_on_disk_has_no_second_folder() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = session(base.path());
        make_disk(&folder, base.path()).expect("made");
        make(&folder.join(DISK).join("x1"));
        assert!(exists(&folder.join("x1")) && linked_disk(&folder).is_none());
        remove(&folder).expect("removed");
        let folder = session(base.path());
        let error = make_disk(&folder, &base.path().join("no")).expect_err("not there");
        assert!(error.to_string().starts_with("cannot find the folder /"));
    }

    #[test]
    fn a_folder_on_disk_is_an_orphan_when_its_session_is_surely_gone() {
        let base = tempfile::tempdir().expect("a folder");
        let other = tempfile::tempdir().expect("a folder");
        let folder = session(base.path());
        assert_eq!(is_orphan(&folder), None);
        make_disk(&folder, other.path()).expect("made");
        let disk = linked_disk(&folder).expect("linked");
        assert_eq!(is_orphan(&disk), Some(false));
        fs::remove_file(folder.join(DISK)).expect("removed");
        fs::remove_dir(&folder).expect("removed");
        assert_eq!(is_orphan(&disk), Some(true));

        let home = Home::of(&folder);
        let is_orphan_of = |change: fn(&mut Home)| {
            let mut other = home.clone();
            change(&mut other);
            fs::remove_file(disk.join(HOME)).expect("removed");
            write_new(&disk.join(HOME), &other.to_text()).expect("written");
            is_orphan(&disk)
        };
        assert_eq!(is_orphan_of(|home| home.boot += "0"), Some(true));
        assert_eq!(is_orphan_of(|home| home.mounts += "0"), Some(false));
        assert_eq!(is_orphan_of(|home| home.host += "0"), Some(false));
        let restarted = |home: &mut Home| {
            home.boot += "0";
            home.mounts += "0";
        };
        assert_eq!(is_orphan_of(restarted), Some(true));
        let elsewhere = |home: &mut Home| {
            home.boot += "0";
            home.host += "0";
        };
        assert_eq!(is_orphan_of(elsewhere), Some(false));
    }
}
