//! The control segment as a process has it: mapped, checked, and viewed as its tables.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::ring::descriptor::{Descriptor, Participant};
use crate::ring::queue::Table;
use crate::segment::layout::{
    self as at, Chunk, Constants, Extent, Process, QueueEntry, Superblock, state,
};
use crate::segment::{Error, FileError, Mapping, Outside, Settings, Shared, file};
use crate::sync::Ordering;

/// The control segment of a session.
#[derive(Debug)]
pub(crate) struct Control {
    map: Mapping,
    file: OwnedFd,
    path: PathBuf,
}

impl Control {
    /// Makes a control segment; it is not ready before [`Self::set_ready`].
    ///
    /// # Errors
    ///
    /// The system's error: no space, above all.
    pub(crate) fn create(
        path: &Path,
        session: [u64; 2],
        settings: &Settings,
    ) -> Result<Self, Error> {
        let file = file::create(path, at::TOTAL)?;
        file::allocate(&file, path, 0, at::DESCRIPTORS)?;
        let control = Self::map(file, path)?;
        let constants = &control.superblock().constants.0;
        let set = |word: &crate::sync::AtomicU64, value| word.store(value, Ordering::Relaxed);
        set(&constants.magic, at::MAGIC);
        set(&constants.layout_hash, at::LAYOUT_HASH);
        set(&constants.version, at::VERSION);
        set(&constants.page_size, page_size());
        set(&constants.total_length, at::TOTAL);
        set(&constants.session[0], session[0]);
        set(&constants.session[1], session[1]);
        set(&constants.max_bytes, settings.max_bytes);
        set(&constants.backlog, u64::from(settings.backlog));
        set(&constants.memory_policy, settings.memory_policy as u64);
        set(&constants.payload_on_disk, settings.payload_on_disk.into());
        set(&constants.overfill, settings.overfill.into());
        set(&constants.checksum, checksum(constants));
        set(&control.superblock().used.0.rings_end, at::RINGS);
        Ok(control)
    }

    /// Opens the control segment of an existing session; waits for one that is being made.
    ///
    /// # Errors
    ///
    /// If it is of another user, version or layout, damaged, gone, or not ready in time.
    pub(crate) fn open(path: &Path, session: [u64; 2], deadline: Instant) -> Result<Self, Error> {
        let (file, length) = file::open_own(path)?;
        if length != at::TOTAL {
            let error = Error::Foreign {
                path: path.to_owned(),
                what: "length",
                found: length,
                expected: at::TOTAL,
            };
            return Err(error);
        }
        let control = Self::map(file, path)?;
        loop {
            // ORDER: Acquire, pairs with `set_ready`: everything that was written before.
            match control.superblock().state.0.load(Ordering::Acquire) {
                state::NEW if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                state::NEW => return Err(Error::NotReady(path.to_owned())),
                state::GONE => return Err(Error::Gone(path.to_owned())),
                _ => break,
            }
        }
        control.check(session)?;
        Ok(control)
    }

    fn map(file: OwnedFd, path: &Path) -> Result<Self, Error> {
        let length = usize::try_from(at::TOTAL).unwrap_or(usize::MAX);
        let map =
            Mapping::new(&file, length).map_err(|error| FileError::new("map", path, error))?;
        let path = path.to_owned();
        Ok(Self { map, file, path })
    }

    /// Checks that the constants are those that this version of shoal writes.
    fn check(&self, session: [u64; 2]) -> Result<(), Error> {
        let constants = &self.superblock().constants.0;
        let get = |word: &crate::sync::AtomicU64| word.load(Ordering::Relaxed);
        let expected = [
            ("magic number", get(&constants.magic), at::MAGIC),
            ("version", get(&constants.version), at::VERSION),
            ("layout", get(&constants.layout_hash), at::LAYOUT_HASH),
            ("page size", get(&constants.page_size), page_size()),
            ("length", get(&constants.total_length), at::TOTAL),
            ("name", get(&constants.session[0]), session[0]),
            ("name", get(&constants.session[1]), session[1]),
            ("checksum", get(&constants.checksum), checksum(constants)),
        ];
        for (what, found, expected) in expected {
            if found != expected {
                let path = self.path.clone();
                return Err(Error::Foreign {
                    path,
                    what,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Opens the session to other processes.
    pub(crate) fn set_ready(&self) {
        // ORDER: Release, pairs with `open`.
        let state = &self.superblock().state.0;
        state.store(state::READY, Ordering::Release);
    }

    /// Closes the session to all processes that come from now on.
    pub(crate) fn set_gone(&self) {
        // ORDER: Release, pairs with `open`; it carries nothing.
        let state = &self.superblock().state.0;
        state.store(state::GONE, Ordering::Release);
    }

    /// Whether the session ended or was removed.
    pub(crate) fn is_gone(&self) -> bool {
        self.superblock().state.0.load(Ordering::Acquire) == state::GONE
    }

    /// Gives a part of the segment memory, once: see [`file::allocate`].
    ///
    /// # Errors
    ///
    /// No space.
    pub(crate) fn allocate(&self, offset: u64, length: u64) -> Result<(), Error> {
        Ok(file::allocate(&self.file, &self.path, offset, length)?)
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.fixed(at::SUPERBLOCK, 1)[0]
    }

    pub(crate) fn processes(&self) -> &[Process] {
        self.fixed(at::PROCESSES, at::PARTICIPANTS)
    }

    pub(crate) fn participants(&self) -> &[Participant] {
        self.fixed(at::INTENT_RECORDS, at::PARTICIPANTS)
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        self.fixed(at::CHUNKS, at::CHUNKS_LIMIT)
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        self.fixed(at::EXTENTS, at::EXTENTS_LIMIT)
    }

    pub(crate) fn queues(&self) -> &[QueueEntry] {
        self.fixed(at::QUEUES, at::QUEUES_LIMIT)
    }

    /// All descriptors that can ever exist; those behind the chunks that have memory must not be
    /// touched.
    pub(crate) fn all_descriptors(&self) -> &[Descriptor] {
        self.fixed(at::DESCRIPTORS, at::DESCRIPTORS_LIMIT)
    }

    /// The descriptors that have memory.
    pub(crate) fn descriptors(&self) -> &[Descriptor] {
        // ORDER: Acquire, pairs with the process that allocated the last chunk.
        let chunks = self.superblock().used.0.chunks.load(Ordering::Acquire);
        let chunks = usize::try_from(chunks).unwrap_or(usize::MAX);
        &self.all_descriptors()[..chunks.min(at::CHUNKS_LIMIT) * at::CHUNK]
    }

    /// The tables that the queues use.
    pub(crate) fn table(&self) -> Table<'_> {
        Table {
            descriptors: self.all_descriptors(),
            participants: self.participants(),
        }
    }

    /// A view of the part behind the tables: rings, whose places are not constants.
    ///
    /// # Errors
    ///
    /// If it does not lie in the segment.
    pub(crate) fn views<T: Shared>(&self, offset: u64, count: usize) -> Result<&[T], Outside> {
        self.map.views(offset, count)
    }

    pub(crate) fn map_of(&self) -> &Mapping {
        &self.map
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A table whose place and length are constants within the mapped length.
    fn fixed<T: Shared>(&self, offset: u64, count: usize) -> &[T] {
        self.map.views(offset, count).unwrap_or_default()
    }
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// FNV-1a over the constants before the checksum.
fn checksum(constants: &Constants) -> u64 {
    let words = [
        &constants.magic,
        &constants.layout_hash,
        &constants.version,
        &constants.page_size,
        &constants.total_length,
        &constants.session[0],
        &constants.session[1],
        &constants.max_bytes,
        &constants.backlog,
        &constants.memory_policy,
        &constants.payload_on_disk,
        &constants.overfill,
    ];
    at::hash_of(&words.map(|word| word.load(Ordering::Relaxed)))
}
