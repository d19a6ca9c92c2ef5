//! Tags that mark the type of each value in a head.

pub(super) const NONE: u8 = 1;
pub(super) const TRUE: u8 = 2;
pub(super) const FALSE: u8 = 3;
pub(super) const SMALL_INT: u8 = 4;
pub(super) const INT: u8 = 5;
pub(super) const BIG_INT: u8 = 6;
pub(super) const FLOAT: u8 = 7;
pub(super) const COMPLEX: u8 = 8;
pub(super) const STR: u8 = 9;
pub(super) const BYTES: u8 = 10;
pub(super) const BYTEARRAY: u8 = 11;
pub(super) const LIST: u8 = 12;
pub(super) const TUPLE: u8 = 13;
pub(super) const DICT: u8 = 14;
pub(super) const ARRAY: u8 = 15;
pub(super) const TENSOR: u8 = 16;
pub(super) const PICKLE: u8 = 17;

/// First byte of a length that takes 4 more bytes.
pub(super) const LENGTH_4: u8 = 254;

/// First byte of a length that takes 8 more bytes.
pub(super) const LENGTH_8: u8 = 255;
