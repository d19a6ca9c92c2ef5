//! Messages for arrays and tensors that the caller fills in place.

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyInt};
use shoal_format::{Grid, GridKind, PIECE, tag};

use crate::encoded::{Encoded, Piece};
use crate::errors::bad_value;
use crate::{arrays, tensors};

/// A message whose values are not written yet.
#[derive(Debug)]
pub struct Reservation {
    kind: GridKind,
    grid: Grid,
    len: usize,
    encoded: Encoded,
}

/// Prepares the message of an array of this shape (an int or a sequence of ints) and dtype, or of a
/// tensor if the dtype is torch's.
pub fn reserve(shape: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>) -> PyResult<Reservation> {
    let py = shape.py();
    let sizes: Vec<usize> = if shape.is_instance_of::<PyInt>() {
        vec![shape.extract()?]
    } else {
        shape.extract()?
    };
    let (kind, (place, item_size)) = match tensors::known_dtype(dtype) {
        Some(known) => (GridKind::Tensor, known),
        None => (GridKind::Array, arrays::known_dtype(dtype)?),
    };
    let grid = Grid::new(place, item_size, sizes.iter().map(|size| Some(*size)));
    let Some((len, grid)) = grid.and_then(|grid| Some((grid.byte_len()?, grid))) else {
        let message = format!(
            "room for shape {shape} cannot be reserved: expected at most 16 dimensions for a tensor, as many as numpy allows for an array, and no more bytes than memory can have"
        );
        return Err(bad_value(py, message));
    };
    let mut encoded = Encoded::new();
    encoded.head.push(match kind {
        GridKind::Array => tag::ARRAY,
        GridKind::Tensor => tag::TENSOR,
    });
    grid.write(&mut encoded.head);
    encoded.pieces.push(Piece::Reserved(len));
    Ok(Reservation {
        kind,
        grid,
        len,
        encoded,
    })
}

impl Reservation {
    /// The message without its values, to be written around them. None if the values are so few
    /// that they are part of the head: then [`Self::object`] has its own memory and is encoded like
    /// any other object.
    pub fn message(&self) -> Option<&Encoded> {
        (self.len >= PIECE).then_some(&self.encoded)
    }

    /// The offset of the values in the message, and their length in bytes.
    pub fn values(&self) -> (usize, usize) {
        (self.encoded.total_len() - self.len, self.len)
    }

    /// The array or tensor over `view`, an object with the buffer protocol that it keeps; without a
    /// view, over its own memory.
    pub fn object<'py>(
        &self,
        py: Python<'py>,
        view: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = match view {
            Some(view) => Some(view),
            None if self.len == 0 => None,
            None => Some(PyByteArray::new_with(py, self.len, |_| Ok(()))?.into_any()),
        };
        match self.kind {
            GridKind::Array => arrays::array(py, &self.grid, memory),
            GridKind::Tensor => tensors::tensor(py, &self.grid, memory),
        }
    }
}
