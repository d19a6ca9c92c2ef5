//! `parse_placement`, and the functions that place processes on nodes.

use std::num::NonZeroU32;
use std::sync::Arc;

use pyo3::prelude::*;
use shoal_core::placement::{self as core, NodeGroup};

use crate::convert::{Arg, Bad, count, flag, items, number, text, type_error};
use crate::errors::placement_error;
use crate::groups::PyNodeGroup;
use crate::placements::PyPlacements;
use crate::ranks::{PyRankLists, rank_lists};

fn groups(values: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<NodeGroup>>> {
    items(values, |value| match value.cast::<PyNodeGroup>() {
        Ok(group) => Ok(Arc::clone(group.get().inner())),
        Err(_) => Err(type_error(value, "a group", "a NodeGroup")),
    })
}

fn at_least_one(arg: &Arg<'_>, what: &str) -> PyResult<NonZeroU32> {
    arg.or(NonZeroU32::MIN, |value| {
        Ok(NonZeroU32::try_from(u32::try_from(number(
            value,
            what,
            1,
            Bad::Placement,
        )?)?)?)
    })
}

fn isolate(arg: &Arg<'_>) -> PyResult<bool> {
    arg.or(true, |value| flag(value, "isolate_accelerator"))
}

fn placements(
    py: Python<'_>,
    placed: Result<core::Placements, core::PlacementError>,
) -> PyResult<PyPlacements> {
    placed
        .map(PyPlacements::from)
        .map_err(|error| placement_error(py, error))
}

/// Parse the placement string of one component.
#[pyfunction]
#[pyo3(name = "parse_placement", signature = (text, groups, component))]
pub(crate) fn parse_placement(
    text: &Bound<'_, PyAny>,
    groups: &Bound<'_, PyAny>,
    component: &Bound<'_, PyAny>,
) -> PyResult<PyRankLists> {
    let string = self::text(text, "text")?;
    let component = self::text(component, "component")?;
    let groups = self::groups(groups)?;
    core::parse_placement(&string, &groups, &component)
        .map(PyRankLists::from)
        .map_err(|error| placement_error(text.py(), error))
}

/// Return the hardware ranks of each process of a packed placement, both ends included.
#[pyfunction]
#[pyo3(
    signature = (start, end, num_hardware_per_process = Arg::Default, stride = Arg::Default),
    text_signature = "(start, end, num_hardware_per_process=1, stride=1)"
)]
pub(crate) fn packed_ranks(
    start: &Bound<'_, PyAny>,
    end: &Bound<'_, PyAny>,
    num_hardware_per_process: Arg<'_>,
    stride: Arg<'_>,
) -> PyResult<PyRankLists> {
    let first = count(start, "start", Bad::Placement)?;
    let last = count(end, "end", Bad::Placement)?;
    let size = at_least_one(&num_hardware_per_process, "num_hardware_per_process")?;
    let stride = at_least_one(&stride, "stride")?;
    core::packed_ranks(first, last, size, stride)
        .map(PyRankLists::from)
        .map_err(|error| placement_error(start.py(), error))
}

/// Place processes on consecutive hardware ranks.
#[pyfunction]
#[pyo3(
    signature = (
        groups,
        start,
        end,
        num_hardware_per_process = Arg::Default,
        stride = Arg::Default,
        isolate_accelerator = Arg::Default,
    ),
    text_signature = "(groups, start, end, num_hardware_per_process=1, stride=1, isolate_accelerator=True)"
)]
pub(crate) fn place_packed(
    groups: &Bound<'_, PyAny>,
    start: &Bound<'_, PyAny>,
    end: &Bound<'_, PyAny>,
    num_hardware_per_process: Arg<'_>,
    stride: Arg<'_>,
    isolate_accelerator: Arg<'_>,
) -> PyResult<PyPlacements> {
    let described = self::groups(groups)?;
    let isolate = isolate(&isolate_accelerator)?;
    let first = count(start, "start", Bad::Placement)?;
    let last = count(end, "end", Bad::Placement)?;
    let size = at_least_one(&num_hardware_per_process, "num_hardware_per_process")?;
    let stride = at_least_one(&stride, "stride")?;
    let placed = core::place_packed(&described, first, last, size, stride, isolate);
    placements(groups.py(), placed)
}

/// Place each process on the hardware ranks given for it, in the order given.
#[pyfunction]
#[pyo3(
    signature = (groups, hardware_ranks_list, isolate_accelerator = Arg::Default),
    text_signature = "(groups, hardware_ranks_list, isolate_accelerator=True)"
)]
pub(crate) fn place_flexible(
    groups: &Bound<'_, PyAny>,
    hardware_ranks_list: &Bound<'_, PyAny>,
    isolate_accelerator: Arg<'_>,
) -> PyResult<PyPlacements> {
    let described = self::groups(groups)?;
    let made;
    let ranks = if let Ok(given) = hardware_ranks_list.cast::<PyRankLists>() {
        given.get().inner()
    } else {
        made = rank_lists(hardware_ranks_list)?;
        &made
    };
    let isolate = isolate(&isolate_accelerator)?;
    placements(
        groups.py(),
        core::place_flexible(&described, ranks, isolate),
    )
}

/// Place each process on the node given for it, in the order given.
#[pyfunction]
#[pyo3(
    signature = (groups, node_ranks, isolate_accelerator = Arg::Default),
    text_signature = "(groups, node_ranks, isolate_accelerator=True)"
)]
pub(crate) fn place_nodes(
    groups: &Bound<'_, PyAny>,
    node_ranks: &Bound<'_, PyAny>,
    isolate_accelerator: Arg<'_>,
) -> PyResult<PyPlacements> {
    let described = self::groups(groups)?;
    let ranks = items(node_ranks, |rank| {
        count(rank, "a node rank", Bad::PlacementIndex)
    })?;
    let isolate = isolate(&isolate_accelerator)?;
    placements(groups.py(), core::place_nodes(&described, &ranks, isolate))
}
