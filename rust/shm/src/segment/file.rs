//! Files of a session: made for their owner alone, checked when opened, allocated before use.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, ftruncate, mkdir, open};
use rustix::io::{Errno, pwrite};
use rustix::process::geteuid;

use super::FileError;

const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o700);

/// Makes a folder that only this user can enter; it must not exist.
///
/// # Errors
///
/// The system's error: it exists, no permission, a read-only file system.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    mkdir(path, FOLDER_MODE).map_err(|error| FileError::new("make the folder", path, error))
}

/// Makes a file of a given length, without any memory yet; it must not exist.
///
/// # Errors
///
/// The system's error: it exists, no permission, too long.
pub fn create(path: &Path, length: u64) -> Result<OwnedFd, FileError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        open(path, flags, FILE_MODE).map_err(|error| FileError::new("create", path, error))?;
    ftruncate(&file, length).map_err(|error| FileError::new("set the length of", path, error))?;
    Ok(file)
}

/// Opens a file of a session and returns its length, if only this user can access it.
///
/// # Errors
///
/// The system's error; a link, another owner, or a mode that lets others in.
pub fn open_own(path: &Path) -> Result<(OwnedFd, u64), FileError> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let refuse = |why: String| {
        let source = io::Error::new(io::ErrorKind::PermissionDenied, why);
        FileError::new("use", path, source)
    };
    let file =
        open(path, flags, Mode::empty()).map_err(|error| FileError::new("open", path, error))?;
    let status = fstat(&file).map_err(|error| FileError::new("look at", path, error))?;
    if !rustix::fs::FileType::from_raw_mode(status.st_mode).is_file() {
        return Err(refuse("it is not an ordinary file".to_owned()));
    }
    if status.st_uid != geteuid().as_raw() {
        return Err(refuse(format!(
            "it belongs to user {}, this is user {}",
            status.st_uid,
            geteuid().as_raw()
        )));
    }
    if status.st_mode & 0o077 != 0 {
        return Err(refuse(format!(
            "its mode {:o} lets others in; expected 600",
            status.st_mode & 0o777
        )));
    }
    Ok((file, u64::try_from(status.st_size).unwrap_or(0)))
}

/// Gives a part of a file memory, or space on its disk, so that touching it cannot fail later.
///
/// Without this, a full file system kills a process that touches a fresh page (SIGBUS). A part that
/// has memory already stays as it is.
///
/// # Errors
///
/// The system's error: no space, above all.
pub fn allocate(file: impl AsFd, path: &Path, offset: u64, length: u64) -> Result<(), FileError> {
    let failed = |error: Errno| FileError::new("allocate memory for", path, error);
    loop {
        match fallocate(&file, FallocateFlags::empty(), offset, length) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => (),
            // Some file systems cannot allocate. Writing zeros does the same for fresh parts, and
            // no others are ever passed here on such a file system.
            Err(Errno::OPNOTSUPP) => return fill_with_zeros(&file, path, offset, length),
            Err(error) => return Err(failed(error)),
        }
    }
}

fn fill_with_zeros(
    file: impl AsFd,
    path: &Path,
    offset: u64,
    length: u64,
) -> Result<(), FileError> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let mut at = offset;
    let end = offset.saturating_add(length);
    while at < end {
        let count = usize::try_from(end - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        match pwrite(&file, &ZEROS[..count], at) {
            Ok(written) => at += written as u64,
            Err(Errno::INTR) => (),
            Err(error) => return Err(FileError::new("allocate memory for", path, error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_private_sparse_and_new() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        let file = create(&path, 1 << 30).expect("created");
        let status = path.metadata().expect("there");
        assert_eq!(status.permissions().mode() & 0o777, 0o600);
        assert!(status.blocks() * 512 < 1 << 20, "sparse");
        allocate(&file, &path, 4096, 8192).expect("space");
        assert!(path.metadata().expect("there").blocks() * 512 >= 8192);
        let error = create(&path, 1).expect_err("it exists").to_string();
        assert!(error.starts_with("cannot create /"), "{error}");
    }

    #[test]
    fn only_own_private_ordinary_files_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        create(&path, 100).expect("created");
        assert_eq!(open_own(&path).expect("own").1, 100);

        let link = folder.path().join("link");
        symlink(&path, &link).expect("linked");
        let error = open_own(&link).expect_err("a link").to_string();
        assert!(error.starts_with("cannot open "), "{error}");
        let error = open_own(folder.path()).expect_err("a folder").to_string();
        assert!(
            error.starts_with("cannot open ") || error.contains("not an ordinary file"),
            "{error}"
        );

        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("set");
        let error = open_own(&path).expect_err("others may read").to_string();
        assert!(error.contains("its mode 640 lets others in"), "{error}");
    }

    #[test]
    fn zeros_do_where_the_file_system_cannot_allocate() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        let file = create(&path, 1 << 20).expect("created");
        fill_with_zeros(&file, &path, 100, 200_000).expect("space");
        assert!(path.metadata().expect("there").blocks() * 512 >= 200_000);
    }
}
