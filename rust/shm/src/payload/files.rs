//! `ExtentFiles`: makes, opens, reads and removes the files of extents.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::ownership::OwnershipWord;
use crate::crash_point::crash_point;
use crate::ring::descriptor::Block;
use crate::ring::word::Owner;
use crate::segment::layout::{EXTENTS_LIMIT, Extent};
use crate::segment::{Control, Error};
use crate::segment::{FileError, Mapping, Outside, file};
use crate::sync::Ordering;

/// The unit of memory.
pub(super) const PAGE: u64 = 4096;

/// Where the file of an extent is, as its entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the folder of the session.
    Memory = 0,
    /// In its folder on disk, where all payloads are.
    Disk = 1,
    /// In the folder on disk for lack of memory: it does not count as reserved.
    Spilled = 2,
}

impl Place {
    fn of(entry: &Extent) -> Self {
        match entry.place.load(Ordering::Relaxed) {
            0 => Self::Memory,
            1 => Self::Disk,
            _ => Self::Spilled,
        }
    }
}

/// Why no extent can be made now.
#[derive(Debug)]
pub(super) enum Full {
    /// The session's quota is used up.
    Quota,
    /// The file system has no space left.
    Space(FileError),
}

/// A new extent; its first block is pending.
#[derive(Debug)]
pub(super) struct NewExtent {
    pub(super) index: u32,
    pub(super) serial: u64,
    pub(super) length: u64,
    pub(super) mapping: Mapping,
}

/// The folders of a session's extents.
#[derive(Clone, Debug)]
pub(crate) struct ExtentFiles {
    folder: PathBuf,
    disk: PathBuf,
}

impl ExtentFiles {
    /// The session's folder, and its folder on disk, to which `disk` in the first leads.
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            disk: folder.join("disk"),
        }
    }

    fn path(&self, place: Place, serial: u64) -> PathBuf {
        let folder = match place {
            Place::Memory => &self.folder,
            Place::Disk | Place::Spilled => &self.disk,
        };
        folder.join(format!("x{serial}"))
    }

    /// Makes an extent: takes a free entry, checks the quota, makes the file.
    ///
    /// A failure leaves nothing that counts as reserved. A death leaves nothing either, once a
    /// recovery has noticed it.
    pub(super) fn create(
        &self,
        control: &Control,
        me: Owner,
        place: Place,
        length: u64,
    ) -> Result<Result<NewExtent, Full>, Error> {
        let (index, entry) = (0..)
            .zip(control.extents())
            .find(|(_, entry)| entry.claim(me))
            .ok_or(Error::NoRoom {
                what: "extents of payloads",
                limit: EXTENTS_LIMIT as u64,
            })?;
        let serial = &control.superblock().used.0.next_serial;
        // ORDER: Relaxed: the number only has to be different; and a reader of an extent's entry
        // has a message in the extent, or has claimed the entry.
        let serial = serial.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        entry.serial.store(serial, Ordering::Relaxed);
        entry.place.store(place as u64, Ordering::Relaxed);
        let mapping = self.make(control, entry, place, serial, length);
        if !matches!(mapping, Ok(Ok(_))) {
            clear(entry);
        }
        Ok(mapping?.map(|mapping| NewExtent {
            index,
            serial,
            length,
            mapping,
        }))
    }

    fn make(
        &self,
        control: &Control,
        entry: &Extent,
        place: Place,
        serial: u64,
        length: u64,
    ) -> Result<Result<Mapping, Full>, Error> {
        // ORDER: SeqCst, as the loads of the sum: of two processes that take the last of the quota,
        // at least one sees the other. Both may, and step back: the quota is never exceeded.
        entry.length.store(length, Ordering::SeqCst);
        if place != Place::Spilled && reserved(control) > quota(control) {
            return Ok(Err(Full::Quota));
        }
        let path = self.path(place, serial);
        let error = match map(&path, length, place) {
            Ok(mapping) => return Ok(Ok(mapping)),
            Err(error) => error,
        };
        if error.kind() != io::ErrorKind::AlreadyExists {
            let _ = std::fs::remove_file(&path);
        }
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Ok(Err(Full::Space(error)))
            }
            _ => Err(error.into()),
        }
    }

    /// Removes an extent that the caller seized: its file, its memory, its entry.
    pub(super) fn remove(&self, entry: &Extent) {
        let serial = entry.serial.load(Ordering::Relaxed);
        let path = self.path(Place::of(entry), serial);
        crash_point("seized");
        // Consumers may still have it mapped; its memory is freed at once even so.
        if let Ok((file, length)) = file::open_own(&path)
            && length > 0
        {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            while fallocate(&file, flags, 0, length) == Err(Errno::INTR) {}
        }
        crash_point("emptied");
        // It may not exist: its producer died before it made the file, or another process died
        // here.
        let _ = std::fs::remove_file(&path);
        clear(entry);
    }

    /// Copies a part of an extent that may be removed meanwhile. Reads the file, because reading
    /// through a mapping of an emptied file would allocate its memory again.
    pub(super) fn read(&self, entry: &Extent, block: &Block) -> Result<Vec<u8>, Error> {
        let serial = entry.serial.load(Ordering::Relaxed);
        let path = self.path(Place::of(entry), serial);
        let (file, mapped) = file::open_own(&path)?;
        let outside = Outside {
            offset: block.offset,
            length: block.length,
            mapped,
        };
        // Checked before memory is allocated for a length that damage may have made up.
        let end = block.offset.checked_add(block.length);
        if end.is_none_or(|end| end > mapped) {
            return Err(outside.into());
        }
        let mut bytes = vec![0; usize::try_from(block.length).unwrap_or_default()];
        let file = File::from(file);
        file.read_exact_at(&mut bytes, block.offset)
            .map_err(|error| FileError::new("read", &path, error))?;
        Ok(bytes)
    }

    /// Opens an extent for a consumer; `serial` is that of its entry, whose length is checked.
    pub(super) fn open(&self, entry: &Extent, serial: u64) -> Result<Mapping, Error> {
        let place = Place::of(entry);
        let path = self.path(place, serial);
        let (file, found) = file::open_own(&path)?;
        let expected = entry.length.load(Ordering::Relaxed);
        if found != expected {
            return Err(Error::Foreign {
                path,
                what: "length",
                found,
                expected,
            });
        }
        Ok(mapping(&file, &path, found, place)?)
    }
}

/// Frees an entry that the caller holds and that has no file any more.
fn clear(entry: &Extent) {
    // A process that still takes the entry for the earlier extent sees from this that it is not:
    // see `ExtentPool::place`.
    entry.serial.store(0, Ordering::Relaxed);
    entry.length.store(0, Ordering::SeqCst);
    entry.vacate();
}

fn map(path: &Path, length: u64, place: Place) -> Result<Mapping, FileError> {
    let file = file::create(path, length)?;
    crash_point("created");
    file::allocate(&file, path, 0, length)?;
    crash_point("allocated");
    mapping(&file, path, length, place)
}

fn mapping(
    file: impl std::os::fd::AsFd,
    path: &Path,
    length: u64,
    place: Place,
) -> Result<Mapping, FileError> {
    let failed = |error| FileError::new("map", path, error);
    let length = usize::try_from(length).map_err(|_| failed(Errno::NOMEM.into()))?;
    let mapping = Mapping::new(file, length).map_err(failed)?;
    // On a disk this would make all of its pages dirty.
    if place == Place::Memory {
        mapping.populate();
    }
    Ok(mapping)
}

/// Number of bytes of all extents, without those that were spilled.
///
/// The sum is taken over the entries rather than kept in a counter, so it is right even after
/// deaths. It may exceed the quota for a moment, until a process that took too much notices it and
/// steps back.
pub(crate) fn reserved(control: &Control) -> u64 {
    control
        .extents()
        .iter()
        // ORDER: SeqCst: see `make`. The place is written before the length.
        .map(|entry| (entry.length.load(Ordering::SeqCst), Place::of(entry)))
        .filter(|(_, place)| *place != Place::Spilled)
        .fold(0, |sum, (length, _)| sum.saturating_add(length))
}

/// Maximum of `reserved`: in whole pages, so that a message of `max_bytes` fits.
pub(super) fn quota(control: &Control) -> u64 {
    let max_bytes = &control.superblock().constants.0.max_bytes;
    let max_bytes = max_bytes.load(Ordering::Relaxed);
    max_bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}
