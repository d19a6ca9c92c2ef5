//! The dtype and shape that arrays and tensors have in a message.

use crate::reader::Reader;
use crate::{Damage, Head};

/// Maximum number of dimensions of an array or tensor in a head.
pub const DIMENSIONS: usize = 16;

/// The dtype and shape of contiguous values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    dtype: u8,
    item_size: usize,
    dimensions: usize,
    sizes: [usize; DIMENSIONS],
}

impl Grid {
    /// A grid of values of `item_size` bytes; None if it has more than [`DIMENSIONS`] dimensions, or
    /// if a size is None.
    ///
    /// `dtype` is the index in the table of dtypes that writer and reader share.
    pub fn new(
        dtype: u8,
        item_size: usize,
        shape: impl ExactSizeIterator<Item = Option<usize>>,
    ) -> Option<Self> {
        let mut sizes = [0; DIMENSIONS];
        let dimensions = shape.len();
        if dimensions > DIMENSIONS {
            return None;
        }
        for (to, size) in sizes.iter_mut().zip(shape) {
            *to = size?;
        }
        Some(Self {
            dtype,
            item_size,
            dimensions,
            sizes,
        })
    }

    /// The index of the dtype.
    pub fn dtype(&self) -> u8 {
        self.dtype
    }

    /// The number of values along each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.sizes[..self.dimensions]
    }

    /// The length of the values in bytes; None if it overflows.
    pub fn byte_len(&self) -> Option<usize> {
        if self.shape().contains(&0) {
            return Some(0);
        }
        let mut sizes = self.shape().iter();
        sizes.try_fold(self.item_size, |len, size| len.checked_mul(*size))
    }

    /// Writes the dtype and shape.
    pub fn write(&self, head: &mut Head) {
        head.push(self.dtype);
        // At most 16, so one byte.
        head.length(self.dimensions);
        for size in self.shape() {
            head.length(*size);
        }
    }

    /// Reads the shape that follows a dtype.
    pub(crate) fn read(dtype: u8, item_size: usize, reader: &Reader<'_>) -> Result<Self, Damage> {
        let dimensions = reader.length()?;
        let mut sizes = [0; DIMENSIONS];
        let used = sizes
            .get_mut(..dimensions)
            .ok_or_else(|| reader.damage("an array has too many dimensions"))?;
        for size in used {
            *size = reader.length()?;
        }
        Ok(Self {
            dtype,
            item_size,
            dimensions,
            sizes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(sizes: &[usize]) -> Option<Grid> {
        Grid::new(3, 8, sizes.iter().map(|size| Some(*size)))
    }

    #[test]
    fn the_length_of_the_values_is_the_product_or_nothing() {
        let len = |sizes: &[usize]| grid(sizes).unwrap().byte_len();
        assert_eq!(len(&[]), Some(8));
        assert_eq!(len(&[2, 3]), Some(48));
        assert_eq!(len(&[1 << 40, 1 << 40]), None);
        assert_eq!(len(&[1 << 40, 0, 1 << 40]), Some(0));
        assert_eq!(len(&[usize::MAX / 8]), Some(usize::MAX - 7));
        assert_eq!(len(&[usize::MAX / 8 + 1]), None);
    }

    #[test]
    fn a_grid_has_at_most_sixteen_dimensions() {
        assert!(grid(&[1; DIMENSIONS]).is_some());
        assert!(grid(&[1; DIMENSIONS + 1]).is_none());
        assert!(Grid::new(3, 8, [Some(1), None].into_iter()).is_none());
    }

    #[test]
    fn a_grid_is_read_as_it_was_written() {
        for sizes in [&[][..], &[0], &[7, 300, 1 << 33], &[253; 16]] {
            let grid = grid(sizes).unwrap();
            let mut head = Head::new();
            grid.write(&mut head);
            let reader = Reader::new(head.bytes());
            let dtype = reader.byte().unwrap();
            assert_eq!(Grid::read(dtype, 8, &reader), Ok(grid));
            assert_eq!(reader.left(), 0);
        }
        assert!(Grid::read(3, 8, &Reader::new(&[17; 40])).is_err());
    }
}
