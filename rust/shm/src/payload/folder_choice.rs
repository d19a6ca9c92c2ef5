//! The choice of a session's folders, and of its memory limit.
//!
//! Sessions are in `/dev/shm`, which is memory; if it is missing or too small, in the folder for
//! temporary files. Containers have a `/dev/shm` of 64 MiB unless told otherwise.
//!
//! Memory without a name (memfd), which no mount limits, is deliberately not used: other processes
//! could open it only through the process that made it, so that the death of a producer would also
//! destroy its messages that were not read yet.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use rustix::io::Errno;

use crate::segment::Error;
use crate::segment::FileError;

const MEMORY: &str = "/dev/shm";
const MIB: u64 = 1 << 20;
/// Maximum size of a session, unless its maker sets one.
const DEFAULT_LIMIT: u64 = 4 << 30;
/// The default size is one part in `DEFAULT_PART` of the free memory.
const DEFAULT_PART: u64 = 4;
/// With less free memory than this, payloads go to disk.
const SMALL: u64 = 256 * MIB;
/// With less free memory than this, the whole session goes to disk.
const TINY: u64 = 8 * MIB;

/// Where a session's files go, and their maximum size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The folder in which the session's folder is made.
    pub folder: PathBuf,
    /// The folder for payloads on disk.
    pub disk: PathBuf,
    /// Whether all payloads go to disk.
    pub payload_on_disk: bool,
    /// Maximum number of bytes of payloads.
    pub max_bytes: u64,
    /// A warning for the user.
    pub warning: Option<String>,
}

/// Chooses where a session's memory lies.
///
/// `folder`: the folder that the user asked for; by default `/dev/shm`, or the one for temporary
/// files. `disk`: the folder for payloads on disk; by default the one for temporary files.
/// `max_bytes`: by default a quarter of the free space there, at most 4 GiB.
///
/// # Errors
///
/// If a given folder is not a folder, or cannot be written to; or if no folder can be used.
pub fn choose(
    folder: Option<&Path>,
    disk: Option<&Path>,
    max_bytes: Option<u64>,
) -> Result<Chosen, Error> {
    let temporary = std::env::temp_dir();
    choose_from(Path::new(MEMORY), &temporary, folder, disk, max_bytes)
}

pub(super) fn choose_from(
    memory: &Path,
    temporary: &Path,
    folder: Option<&Path>,
    disk: Option<&Path>,
    max_bytes: Option<u64>,
) -> Result<Chosen, Error> {
    if let Some(disk) = disk {
        free(disk)?;
    }
    let disk = disk.unwrap_or(temporary).to_owned();
    let chosen = |folder: &Path, available: u64| Chosen {
        folder: folder.to_owned(),
        disk: disk.clone(),
        payload_on_disk: false,
        max_bytes: max_bytes.unwrap_or_else(|| default_limit(available)),
        warning: None,
    };
    if let Some(folder) = folder {
        let available = free(folder)?;
        return Ok(chosen(folder, available));
    }
    let Ok(available) = free(memory) else {
        let mut chosen = chosen(temporary, free(temporary)?);
        chosen.warning = Some(format!(
            "{} cannot be used: the session is in {} instead, which is slower. Mount a tmpfs there, or name another one in SHOAL_SHM_DIR.",
            memory.display(),
            temporary.display()
        ));
        return Ok(chosen);
    };
    // A session that asks for less than half of the free memory gets it.
    let needed = max_bytes.map_or(SMALL, |bytes| bytes.saturating_mul(2).min(SMALL));
    if available >= needed.max(TINY) {
        return Ok(chosen(memory, available));
    }
    let (folder, payload_on_disk) = if available < TINY {
        (temporary, false)
    } else {
        (memory, true)
    };
    let place = if payload_on_disk { &disk } else { temporary };
    let mut chosen = chosen(folder, free(place)?);
    chosen.payload_on_disk = payload_on_disk;
    chosen.warning = Some(format!(
        "{} has only {} MiB free: {} in {} instead, which is slower. Give it more (docker run --shm-size=8g, or a larger emptyDir of medium Memory in Kubernetes), or name another folder in SHOAL_SHM_DIR.",
        memory.display(),
        available / MIB,
        if payload_on_disk {
            "large messages are"
        } else {
            "the session is"
        },
        place.display()
    ));
    Ok(chosen)
}

fn default_limit(available: u64) -> u64 {
    (available / DEFAULT_PART).clamp(MIB, DEFAULT_LIMIT)
}

/// Number of free bytes in a folder, which must be writable.
fn free(folder: &Path) -> Result<u64, FileError> {
    let failed = |source: io::Error| FileError::new("use the folder", folder, source);
    if !folder.metadata().map_err(failed)?.is_dir() {
        return Err(failed(Errno::NOTDIR.into()));
    }
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| failed(error.into()))?;
    let status = statvfs(folder).map_err(|error| failed(error.into()))?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_named_folder_is_taken_however_small() {
        let folder = tempfile::tempdir().expect("a folder");
        let chosen = choose(Some(folder.path()), None, None).expect("usable");
        assert_eq!(chosen.folder, folder.path());
        assert_eq!(chosen.disk, std::env::temp_dir());
        assert!(!chosen.payload_on_disk);
        assert!(chosen.max_bytes >= MIB && chosen.max_bytes <= DEFAULT_LIMIT);
        assert_eq!(chosen.warning, None);
        let chosen = choose(Some(folder.path()), Some(folder.path()), Some(5)).expect("usable");
        assert_eq!(
            (chosen.disk.as_path(), chosen.max_bytes),
            (folder.path(), 5)
        );
    }

    #[test]
    fn a_folder_that_is_none_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("missing");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        for (folder, disk) in [
            (Some(missing.as_path()), None),
            (None, Some(missing.as_path())),
            (Some(file.as_path()), None),
        ] {
            let error = choose(folder, disk, None)
                .expect_err("unusable")
                .to_string();
            let named = folder.or(disk).expect("one of them");
            let begin = format!("cannot use the folder {}: ", named.display());
            assert!(error.starts_with(&begin), "{error}");
        }
    }

    #[test]
    fn without_shared_memory_all_is_in_the_temporary_folder_and_one_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("shm");
        let chosen = choose_from(&missing, folder.path(), None, None, None).expect("usable");
        assert_eq!(chosen.folder, folder.path());
        assert!(!chosen.payload_on_disk);
        let warning = chosen.warning.expect("one");
        assert!(warning.contains("SHOAL_SHM_DIR"), "{warning}");
        choose_from(&missing, &missing, None, None, None).expect_err("nowhere");
    }

    #[test]
    fn the_default_is_a_quarter_within_its_bounds() {
        assert_eq!(default_limit(0), MIB);
        assert_eq!(default_limit(100 * MIB), 25 * MIB);
        assert_eq!(default_limit(u64::MAX), DEFAULT_LIMIT);
    }
}
