//! The queues that a server keeps open: opening one takes a lock that all processes share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use shoal_shm::session::{Bounds, Error, Session, SessionQueue};

use super::locked;

#[derive(Debug)]
pub(super) struct OpenQueues {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Each with the time of its last use.
    queues: BTreeMap<Vec<u8>, (u64, Arc<SessionQueue>)>,
    time: u64,
}

impl OpenQueues {
    pub(super) fn new(most: usize) -> Self {
        let table = Mutex::default();
        Self { most, table }
    }

    pub(super) fn len(&self) -> usize {
        locked(&self.table).queues.len()
    }

    /// The queue of a key. It closes the one that was not used for the longest time if there are too
    /// many; connections that use that one keep it open.
    pub(super) fn open(
        &self,
        session: &Arc<Session>,
        key: &[u8],
        bounds: Bounds,
    ) -> Result<Arc<SessionQueue>, Error> {
        let mut table = locked(&self.table);
        table.time += 1;
        let time = table.time;
        if let Some((used, queue)) = table.queues.get_mut(key)
            && has(queue, bounds)
        {
            *used = time;
            return Ok(Arc::clone(queue));
        }
        drop(table);
        // Without the lock: this may wait.
        let queue = Arc::new(session.queue(key, bounds)?);
        let mut table = locked(&self.table);
        if table.queues.len() >= self.most && !table.queues.contains_key(key) {
            let oldest = table.queues.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                table.queues.remove(&oldest);
            }
        }
        let kept = (time, Arc::clone(&queue));
        table.queues.insert(key.to_vec(), kept);
        Ok(queue)
    }

    /// Closes a queue, if it is open: its key may become that of a new queue.
    pub(super) fn close(&self, key: &[u8]) {
        locked(&self.table).queues.remove(key);
    }
}

/// Whether a queue has the bounds that are asked for.
pub(super) fn has(queue: &SessionQueue, bounds: Bounds) -> bool {
    let asked = |bound: Option<u64>, own| bound.is_none_or(|bound| bound == own);
    asked(bounds.maxsize, queue.maxsize()) && asked(bounds.max_bytes, queue.max_bytes())
}
