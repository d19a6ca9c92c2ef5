//! `parse_placement`, and the functions that place processes on nodes.

use std::num::NonZeroU32;
use std::sync::Arc;

use pyo3::prelude::*;
use shoal_core::placement::{self as core, NodeGroup};

use crate::convert::{Arg, Bad, count, flag, items, number, text_ref, type_error};
use crate::errors::Raised;
use crate::groups::PyNodeGroup;
use crate::placements::PyPlacements;
use crate::ranks::{PyRankLists, rank_lists};

fn groups(values: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<NodeGroup>>> {
    items(values, |value| match value.cast::<PyNodeGroup>() {
        Ok(group) => Ok(Arc::new(group.get().group())),
        Err(_) => Err(type_error(value, "a group", "a NodeGroup")),
    })
}

/// The arguments of `packed_ranks`: the first rank and the last, ranks for a process, and the stride.
type Packed = (u32, u32, NonZeroU32, NonZeroU32);

fn packed(
    start: &Bound<'_, PyAny>,
    end: &Bound<'_, PyAny>,
    num_hardware_per_process: &Arg<'_>,
    stride: &Arg<'_>,
) -> PyResult<Packed> {
    let at_least_one = |arg: &Arg<'_>, what| {
        arg.or(NonZeroU32::MIN, |value| {
            let number = u32::try_from(number(value, what, 1, Bad::Placement)?)?;
            Ok(NonZeroU32::try_from(number)?)
        })
    };
    Ok((
        count(start, "start", Bad::Placement)?,
        count(end, "end", Bad::Placement)?,
        at_least_one(num_hardware_per_process, "num_hardware_per_process")?,
        at_least_one(stride, "stride")?,
    ))
}

fn isolate(arg: &Arg<'_>) -> PyResult<bool> {
    arg.or(true, |value| flag(value, "isolate_accelerator"))
}

/// Parse the placement string of one component.
#[pyfunction]
pub(crate) fn parse_placement(
    text: &Bound<'_, PyAny>,
    groups: &Bound<'_, PyAny>,
    component: &Bound<'_, PyAny>,
) -> Result<PyRankLists, Raised> {
    let (text, component) = (text_ref(text, "text")?, text_ref(component, "component")?);
    let inner = core::parse_placement(text, &self::groups(groups)?, component)?;
    Ok(PyRankLists { inner })
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
) -> Result<PyRankLists, Raised> {
    let (first, last, size, stride) = packed(start, end, &num_hardware_per_process, &stride)?;
    let inner = core::packed_ranks(first, last, size, stride)?;
    Ok(PyRankLists { inner })
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
) -> Result<PyPlacements, Raised> {
    let groups = self::groups(groups)?;
    let isolate = isolate(&isolate_accelerator)?;
    let (first, last, size, stride) = packed(start, end, &num_hardware_per_process, &stride)?;
    let inner = core::place_packed(&groups, first, last, size, stride, isolate)?;
    Ok(PyPlacements { inner })
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
) -> Result<PyPlacements, Raised> {
    let groups = self::groups(groups)?;
    let made;
    let ranks = if let Ok(given) = hardware_ranks_list.cast::<PyRankLists>() {
        &given.get().inner
    } else {
        made = rank_lists(hardware_ranks_list)?;
        &made
    };
    let isolate = isolate(&isolate_accelerator)?;
    let inner = core::place_flexible(&groups, ranks, isolate)?;
    Ok(PyPlacements { inner })
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
) -> Result<PyPlacements, Raised> {
    let groups = self::groups(groups)?;
    let ranks = items(node_ranks, |rank| {
        count(rank, "a node rank", Bad::PlacementIndex)
    })?;
    let isolate = isolate(&isolate_accelerator)?;
    let inner = core::place_nodes(&groups, &ranks, isolate)?;
    Ok(PyPlacements { inner })
}
