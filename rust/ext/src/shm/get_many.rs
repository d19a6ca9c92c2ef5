//! Getting several messages at once: `get_many` and `get_batch`.

use pyo3::prelude::*;
use pyo3::types::PyList;
use shoal_shm::Want;

use super::get::Get;
use super::queue::PyShmQueue;
use super::taken_batch::TakenBatch;

impl PyShmQueue {
    /// Takes several messages; all are taken and copied before the first object is rebuilt.
    pub(super) fn get_objects<'py>(
        &self,
        py: Python<'py>,
        get: &mut Get<'_, '_>,
    ) -> PyResult<Bound<'py, PyList>> {
        let here = self.process_queue(py, get.operation)?;
        let most = match get.want {
            Want::Count(count) => count as usize,
            Want::Weight { .. } => usize::MAX,
        };
        let batch = if let Some(batch) = here.interrupted.take(&self.key, most, get.keep) {
            batch
        } else {
            let mut batch = TakenBatch::expecting(most);
            self.take(py, here, get, &mut |message| {
                batch.add(&here.queue, &message);
            })?;
            batch
        };
        PyList::new(py, self.rebuild_all(py, here, batch, get.keep)?)
    }
}
