//! The extents that this process reads from: each is mapped once, and stays.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::descriptor::Block;
use super::super::memory::Mapping;
use super::super::session::layout::Extent;
use super::super::session::{Control, Error};
use super::super::sync::Ordering;
use super::files::ExtentFiles;
use super::tenure::Held;

/// What this process has mapped to read from.
#[derive(Debug)]
pub(crate) struct Extents {
    files: ExtentFiles,
    /// By the index of the entry, with the number of the file: an entry is used again.
    mapped: Mutex<BTreeMap<u32, (u64, Arc<Mapping>)>>,
}

impl Extents {
    /// Nothing is mapped yet.
    pub(crate) fn new(files: ExtentFiles) -> Self {
        Self {
            files,
            mapped: Mutex::default(),
        }
    }

    /// The mapping of an extent that a message lies in; the caller holds the message, so that the
    /// extent stays what it is.
    ///
    /// # Errors
    ///
    /// Where there is no such extent, or its file is not what its entry says, which is damage; or
    /// the system cannot map it.
    pub(crate) fn mapping(&self, control: &Control, index: u32) -> Result<Arc<Mapping>, Error> {
        let entry = control
            .extents()
            .get(index as usize)
            .ok_or(Error::NoSuchExtent(index))?;
        // ORDER: Relaxed: it was written before the message was put.
        let serial = entry.serial.load(Ordering::Relaxed);
        let mut mapped = self.lock();
        if let Some((of, mapping)) = mapped.get(&index)
            && *of == serial
        {
            return Ok(Arc::clone(mapping));
        }
        if is_vacant(entry) {
            return Err(Error::NoSuchExtent(index));
        }
        // A new one is rare enough to look for what is gone.
        mapped.retain(|&index, (serial, _)| {
            let entry = control.extents().get(index as usize);
            entry.is_some_and(|entry| {
                !is_vacant(entry) && entry.serial.load(Ordering::Relaxed) == *serial
            })
        });
        let mapping = Arc::new(self.files.open(entry, serial)?);
        mapped.insert(index, (serial, Arc::clone(&mapping)));
        Ok(mapping)
    }

    /// Copies a part of an extent that nobody holds: the caller finds out afterwards whether it was
    /// what it should be.
    ///
    /// # Errors
    ///
    /// Where there is no such extent or part, or the system does not read it.
    pub(crate) fn read(&self, control: &Control, block: &Block) -> Result<Vec<u8>, Error> {
        match control.extents().get(block.extent as usize) {
            Some(entry) if !is_vacant(entry) => self.files.read(entry, block),
            _ => Err(Error::NoSuchExtent(block.extent)),
        }
    }

    /// How many are mapped.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, (u64, Arc<Mapping>)>> {
        // There is nothing in it that could be half done.
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an entry is free.
fn is_vacant(entry: &Extent) -> bool {
    entry.seen().holder().is_none()
}
