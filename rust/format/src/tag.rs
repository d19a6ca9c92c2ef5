//! Tags that mark the type of each value in a head.

/// None.
pub const NONE: u8 = 1;
/// True.
pub const TRUE: u8 = 2;
/// False.
pub const FALSE: u8 = 3;
/// An int of one byte.
pub const SMALL_INT: u8 = 4;
/// An int of 8 bytes.
pub const INT: u8 = 5;
/// An int of any length.
pub const BIG_INT: u8 = 6;
/// A float.
pub const FLOAT: u8 = 7;
/// A complex number.
pub const COMPLEX: u8 = 8;
/// A str, in UTF-8.
pub const STR: u8 = 9;
/// A bytes.
pub const BYTES: u8 = 10;
/// A bytearray.
pub const BYTEARRAY: u8 = 11;
/// A list.
pub const LIST: u8 = 12;
/// A tuple.
pub const TUPLE: u8 = 13;
/// A dict.
pub const DICT: u8 = 14;
/// A numpy array.
pub const ARRAY: u8 = 15;
/// A torch tensor.
pub const TENSOR: u8 = 16;
/// A pickle and the buffers beside it.
pub const PICKLE: u8 = 17;

/// First byte of a length that takes 4 more bytes.
pub const LENGTH_4: u8 = 254;

/// First byte of a length that takes 8 more bytes.
pub const LENGTH_8: u8 = 255;
