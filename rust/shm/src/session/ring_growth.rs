//! Gives a ring memory for more slots.

use std::io;

use super::session::MOMENT;
use super::use_guard::UseGuard;
use super::{Error, MemoryPolicy, Session, queue_table};
use crate::payload::reserved;
use crate::sync::Ordering;

impl Session {
    /// Gives a ring memory for the next message; false if there is no memory now. Then a put waits
    /// as it does for any other memory.
    ///
    /// # Errors
    ///
    /// If there is no space, and the session is not to wait for it or none of its processes could
    /// make room; if this process left the session, or there is damage.
    #[cold]
    pub(super) fn grow_ring(&self, index: u32) -> Result<bool, Error> {
        let _use = UseGuard::of(self)?;
        let _guard = match self.lock(MOMENT) {
            // Its holder may be stopped.
            Err(Error::Locked { .. }) => return Ok(false),
            guard => guard?,
        };
        let control = self.control();
        match queue_table::grow(control, index) {
            Ok(()) => Ok(true),
            Err(Error::File(error))
                if error.kind() == io::ErrorKind::StorageFull
                    && self.waits_for_memory()
                    && reserved(control) > 0 =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn waits_for_memory(&self) -> bool {
        let policy = &self.control().superblock().constants.0.memory_policy;
        policy.load(Ordering::Relaxed) != MemoryPolicy::Error as u64
    }
}
