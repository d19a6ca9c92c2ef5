//! `MappingCache`: the extents that this process reads from; each is mapped once, and stays mapped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::files::ExtentFiles;
use super::ownership::OwnershipWord;
use crate::ring::descriptor::Block;
use crate::segment::Mapping;
use crate::segment::layout::Extent;
use crate::segment::{Control, Error};
use crate::sync::Ordering;

/// The extents that this process has mapped in order to read.
#[derive(Debug)]
pub(crate) struct MappingCache {
    files: ExtentFiles,
    /// By the index of the entry, with the file's serial number, because entries are used again.
    mapped: Mutex<BTreeMap<u32, (u64, Arc<Mapping>)>>,
}

impl MappingCache {
    /// Without any mapping.
    pub(crate) fn new(files: ExtentFiles) -> Self {
        Self {
            files,
            mapped: Mutex::default(),
        }
    }

    /// The mapping of an extent that holds a message. The caller holds the message, so the extent
    /// does not change.
    ///
    /// # Errors
    ///
    /// If there is no such extent, or its file does not match its entry, which is damage; or if the
    /// system cannot map it.
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
        // New extents are rare, so this is the time to drop the mappings of removed ones.
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

    /// Copies a part of an extent without holding the message in it: the caller checks afterwards
    /// whether the bytes are those of the message.
    ///
    /// # Errors
    ///
    /// If there is no such extent or part, or the system cannot read it.
    pub(crate) fn read(&self, control: &Control, block: &Block) -> Result<Vec<u8>, Error> {
        match control.extents().get(block.extent as usize) {
            Some(entry) if !is_vacant(entry) => self.files.read(entry, block),
            _ => Err(Error::NoSuchExtent(block.extent)),
        }
    }

    /// Number of mapped extents.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, (u64, Arc<Mapping>)>> {
        // No change of the map can be left half done.
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_vacant(entry: &Extent) -> bool {
    entry.seen().holder().is_none()
}
