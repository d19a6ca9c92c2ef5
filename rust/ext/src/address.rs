//! `WorkerAddress`: the position of a worker in the tree of groups.

use pyo3::IntoPyObjectExt;
use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyList, PyString, PyTuple, PyType};
use shoal_core::WorkerAddress;

use crate::convert::{Arg, int, items, text_ref, type_error};
use crate::errors::Raised;
use crate::value_class::same_class;

/// The argument `ranks`, each rank in decimal; the core checks whether they are valid.
fn path(ranks: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let one = "an int or a sequence of ints";
    if ranks.is_instance_of::<PyString>() {
        return Err(type_error(ranks, "ranks", one));
    }
    // A class of enumerated ints has `__iter__`, and its members are ints all the same.
    if !ranks.is_instance_of::<PyInt>() && ranks.get_type().hasattr("__iter__")? {
        return items(ranks, |rank| decimal(rank, "a rank", "an int"));
    }
    Ok(vec![decimal(ranks, "ranks", one)?])
}

/// The argument `ranks`, if it is an int or a list or tuple of ints that fit; without the allocation
/// of a text for each rank.
fn plain_path(ranks: &Bound<'_, PyAny>) -> Option<Vec<u32>> {
    let rank = |value: Bound<'_, PyAny>| value.cast_exact::<PyInt>().ok()?.extract().ok();
    if let Ok(list) = ranks.cast_exact::<PyList>() {
        return list.iter().map(rank).collect();
    }
    if let Ok(tuple) = ranks.cast_exact::<PyTuple>() {
        return tuple.iter().map(rank).collect();
    }
    Some(vec![rank(ranks.clone())?])
}

fn decimal(value: &Bound<'_, PyAny>, what: &str, expected: &str) -> PyResult<String> {
    let int = int(value, what, expected)?;
    match int.extract::<i64>() {
        Ok(rank) => Ok(rank.to_string()),
        Err(_) => Ok(int.str()?.to_str()?.to_owned()),
    }
}

/// The public class, and its arguments.
type Reduced<'a, 'py> = (Bound<'py, PyType>, (&'a str, Bound<'py, PyTuple>));

/// The position of a worker in the tree of groups: a root group's name and a path of ranks.
#[pyclass(frozen, name = "WorkerAddress", module = "shoal")]
pub(crate) struct PyWorkerAddress {
    inner: WorkerAddress,
}

#[pymethods]
impl PyWorkerAddress {
    #[new]
    #[pyo3(signature = (root_group_name, ranks = Arg::Default), text_signature = "(root_group_name, ranks=())")]
    fn new(root_group_name: &Bound<'_, PyAny>, ranks: Arg<'_>) -> Result<Self, Raised> {
        let root = text_ref(root_group_name, "root_group_name")?;
        let plain = match &ranks {
            Arg::Default => Some(Vec::new()),
            Arg::Given(ranks) => plain_path(ranks),
        };
        let inner = match plain {
            Some(path) => WorkerAddress::from_ranks(root, path)?,
            None => WorkerAddress::new(root, &ranks.or(Vec::new(), path)?)?,
        };
        Ok(Self { inner })
    }

    /// Parse an address as `get_name` writes it.
    #[classmethod]
    fn from_name(
        _class: &Bound<'_, PyType>,
        worker_name: &Bound<'_, PyAny>,
    ) -> Result<Self, Raised> {
        let inner = text_ref(worker_name, "worker_name")?.parse()?;
        Ok(Self { inner })
    }

    /// Return the address of a child, from its parent's name.
    #[classmethod]
    fn from_parent_name_rank(
        _class: &Bound<'_, PyType>,
        parent_name: &Bound<'_, PyAny>,
        rank: &Bound<'_, PyAny>,
    ) -> Result<Self, Raised> {
        let inner = text_ref(parent_name, "parent_name")?.parse()?;
        Self { inner }.get_child_address(rank)
    }

    /// The name of the root group.
    #[getter]
    fn root_group_name(&self) -> &str {
        self.inner.root_group_name()
    }

    /// The ranks from the root down, as a new list.
    #[getter]
    fn rank_path(&self) -> Vec<u32> {
        self.inner.rank_path().to_vec()
    }

    /// The last rank of the path, 0 for a root.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    /// Return the address as text; `str()` does the same.
    fn get_name(&self) -> &str {
        self.inner.name()
    }

    /// Return the rank before the last, 0 if there is none.
    fn get_parent_rank(&self) -> u32 {
        self.inner.parent_rank()
    }

    /// Return the address one level up, or None for a root.
    fn get_parent_address(&self) -> Option<Self> {
        self.inner.parent().map(|inner| Self { inner })
    }

    /// Return the address one level down.
    fn get_child_address(&self, rank: &Bound<'_, PyAny>) -> Result<Self, Raised> {
        let inner = self.inner.child(&decimal(rank, "rank", "an int")?)?;
        Ok(Self { inner })
    }

    fn __richcmp__(
        slf: &Bound<'_, Self>,
        other: &Bound<'_, PyAny>,
        op: CompareOp,
    ) -> Result<Py<PyAny>, Raised> {
        let (py, mine) = (slf.py(), &slf.get().inner);
        let order = if let Ok(other) = other.cast::<Self>() {
            mine.cmp(&other.get().inner)
        } else if same_class(slf, other)? {
            // An address of the other backend has the same public class name and the same names.
            let name: String = other.call_method0("get_name")?.extract()?;
            mine.cmp(&name.parse()?)
        } else {
            return Ok(py.NotImplemented());
        };
        Ok(op.matches(order).into_py_any(py)?)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        // Both backends can compute the hash of a str.
        PyString::new(py, self.inner.name()).hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let root = PyString::new(py, self.inner.root_group_name()).repr()?;
        Ok(format!(
            "WorkerAddress({root}, {:?})",
            self.inner.rank_path()
        ))
    }

    fn __str__(&self) -> &str {
        self.inner.name()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'_, 'py>> {
        static PUBLIC: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let class = PUBLIC.import(py, "shoal", "WorkerAddress")?;
        let path = PyTuple::new(py, self.inner.rank_path())?;
        Ok((class.clone(), (self.inner.root_group_name(), path)))
    }
}
