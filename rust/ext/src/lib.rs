//! The extension module `shoal._rust`; `python/shoal/_rust.pyi` is its contract.

mod address;
mod convert;
mod errors;
mod groups;
mod placement;
mod placements;
mod ranks;
mod sequence;
mod shm;
mod solve;
mod value_class;

use pyo3::prelude::*;

/// The core in Rust, with the same names, results, errors and messages as `shoal._pure`.
#[pymodule]
mod _rust {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::address::PyWorkerAddress;
    #[pymodule_export]
    use crate::groups::{PyNodeGroup, PyNodeResources};
    #[pymodule_export]
    use crate::placement::PyPlacement;
    #[pymodule_export]
    use crate::placements::PyPlacements;
    #[pymodule_export]
    use crate::ranks::PyRankLists;
    #[pymodule_export]
    use crate::shm::{
        PyChannelBase, PyLaneCancel, PyLaneClient, PyLaneMessage, PyLaneQueue, PyLaneServer,
        PyShmMessage, PyShmParcel, PyShmQueue, PyShmReservation, PyShmSession, PyWorkerBase,
        shm_gc, shm_queues,
    };
    #[pymodule_export]
    use crate::solve::{packed_ranks, parse_placement, place_flexible, place_nodes, place_packed};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("build_profile", profile)?;
        crate::shm::watch(module)
    }
}
