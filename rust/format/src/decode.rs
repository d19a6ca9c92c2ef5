//! The decoder: from a message to its object.

use crate::layout::{PREFIX, Pieces, head_of};
use crate::reader::Reader;
use crate::{DEPTH, Damage, Grid, KIND_PIECES, KIND_PLAIN, PIECE, tag};

/// Maximum length in bytes of a head that is copied to the stack.
const ON_STACK: usize = 512;

/// The bytes of a message.
pub trait Payload {
    /// The number of bytes.
    fn byte_len(&self) -> usize;

    /// Copies the bytes from `at` on; the decoder asks only for bytes within [`Self::byte_len`].
    fn read(&self, at: usize, to: &mut [u8]);
}

impl Payload for [u8] {
    fn byte_len(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self[at..at + to.len()]);
    }
}

/// The bytes of one value.
#[derive(Debug)]
pub enum Data<'a, P: ?Sized> {
    /// Fewer than [`PIECE`] bytes, in the private copy of the head.
    Head(&'a [u8]),
    /// [`PIECE`] bytes or more, in the message. No two values have a byte in common.
    Piece {
        /// The message.
        payload: &'a P,
        /// The first byte in the message.
        at: usize,
        /// The number of bytes, all of them within the message.
        length: usize,
    },
}

/// The type of an object with a [`Grid`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridKind {
    /// A numpy array.
    Array,
    /// A torch tensor.
    Tensor,
}

/// Makes the objects of messages whose bytes are a `P`.
pub trait Build<P: ?Sized> {
    /// An object.
    type Object;
    /// A dict that is not complete.
    type Dict;
    /// The reason why a message has no object.
    type Error;

    /// The error for a damaged message.
    fn damaged(&self, damage: Damage) -> Self::Error;

    /// None.
    fn none(&self) -> Self::Object;
    /// A bool.
    fn bool(&self, value: bool) -> Self::Object;
    /// An int.
    fn int(&self, value: i64) -> Self::Object;
    /// The int with this two's complement, least significant byte first.
    fn big_int(&self, bytes: &[u8]) -> Result<Self::Object, Self::Error>;
    /// A float.
    fn float(&self, value: f64) -> Self::Object;
    /// A complex number.
    fn complex(&self, real: f64, imaginary: f64) -> Self::Object;
    /// A str; its bytes may not be UTF-8.
    fn text(&self, utf8: Data<'_, P>) -> Result<Self::Object, Self::Error>;
    /// A str that is the key of a dict; its bytes may not be UTF-8.
    fn key(&self, utf8: &[u8]) -> Result<Self::Object, Self::Error>;
    /// A bytes.
    fn bytes(&self, bytes: Data<'_, P>) -> Result<Self::Object, Self::Error>;
    /// A bytearray.
    fn bytearray(&self, bytes: Data<'_, P>) -> Result<Self::Object, Self::Error>;

    /// A list; the first error among its items is its error.
    fn list(
        &self,
        items: impl ExactSizeIterator<Item = Result<Self::Object, Self::Error>>,
    ) -> Result<Self::Object, Self::Error>;
    /// A tuple; same as [`Self::list`].
    fn tuple(
        &self,
        items: impl ExactSizeIterator<Item = Result<Self::Object, Self::Error>>,
    ) -> Result<Self::Object, Self::Error>;
    /// An empty dict.
    fn dict(&self) -> Self::Dict;
    /// Adds an item to a dict. The key may be of any type, and may be in the dict already.
    fn insert(
        &self,
        dict: &mut Self::Dict,
        key: Self::Object,
        value: Self::Object,
    ) -> Result<(), Self::Error>;
    /// The object of a dict.
    fn finish(&self, dict: Self::Dict) -> Self::Object;

    /// The size of one value of a dtype in bytes; None if there is no such dtype.
    fn item_size(&self, kind: GridKind, dtype: u8) -> Result<Option<usize>, Self::Error>;
    /// An array or tensor; None for its values if it has no bytes.
    fn grid(
        &self,
        kind: GridKind,
        grid: &Grid,
        values: Option<Data<'_, P>>,
    ) -> Result<Self::Object, Self::Error>;
    /// The object of a pickle and the buffers beside it.
    fn unpickle<'a>(
        &self,
        pickle: Data<'a, P>,
        buffers: impl Iterator<Item = Result<Data<'a, P>, Self::Error>>,
    ) -> Result<Self::Object, Self::Error>
    where
        P: 'a;
}

/// Decodes a message that was copied and is only a head.
///
/// Returns an error if the message is damaged, or if `build` does.
#[inline]
pub fn decode_inline<P: Payload + ?Sized, B: Build<P>>(
    build: &B,
    kind: u32,
    message: &[u8],
) -> Result<B::Object, B::Error> {
    if kind != KIND_PLAIN {
        return Err(build.damaged(Damage::Kind(kind)));
    }
    Decoder {
        build,
        head: Reader::new(message),
        pieces: None,
    }
    .message()
}

/// Decodes any message.
///
/// Returns an error if the message is damaged, or if `build` does.
pub fn decode<P: Payload + ?Sized, B: Build<P>>(
    build: &B,
    kind: u32,
    payload: &P,
) -> Result<B::Object, B::Error> {
    let total = payload.byte_len();
    let prefix = || {
        let mut prefix = [0; PREFIX];
        payload.read(0, &mut prefix);
        prefix
    };
    let (start, length) = head_of(kind, total, prefix).map_err(|damage| build.damaged(damage))?;
    let mut stack = [0; ON_STACK];
    let mut heap;
    let head = if let Some(head) = stack.get_mut(..length) {
        head
    } else {
        heap = vec![0; length];
        heap.as_mut_slice()
    };
    payload.read(start, head);
    Decoder {
        build,
        head: Reader::new(head),
        pieces: (kind == KIND_PIECES).then(|| (payload, Pieces::new(start + length, total))),
    }
    .message()
}

/// Returns an error if no message can be of this kind.
pub fn check_kind(kind: u32) -> Result<(), Damage> {
    if matches!(kind, KIND_PLAIN | KIND_PIECES) {
        Ok(())
    } else {
        Err(Damage::Kind(kind))
    }
}

struct Decoder<'a, P: ?Sized, B> {
    build: &'a B,
    head: Reader<'a>,
    /// The message and its pieces, which follow the head; None if it has none.
    pieces: Option<(&'a P, Pieces)>,
}

impl<'a, P: Payload + ?Sized, B: Build<P>> Decoder<'a, P, B> {
    /// Decodes the whole message.
    #[inline]
    fn message(&self) -> Result<B::Object, B::Error> {
        let object = self.value(0)?;
        let behind = |(_, pieces): &(&P, Pieces)| !pieces.at_end();
        if self.head.left() > 0 || self.pieces.as_ref().is_some_and(behind) {
            return Err(self.damaged("it goes on where it should end"));
        }
        Ok(object)
    }

    #[cold]
    fn damaged(&self, what: &'static str) -> B::Error {
        self.build.damaged(self.head.damage(what))
    }

    #[inline]
    fn undamaged<T>(&self, read: Result<T, Damage>) -> Result<T, B::Error> {
        read.map_err(|damage| self.build.damaged(damage))
    }

    #[inline]
    fn fixed<const N: usize>(&self) -> Result<[u8; N], B::Error> {
        self.undamaged(self.head.fixed())
    }

    #[inline]
    fn length(&self) -> Result<usize, B::Error> {
        self.undamaged(self.head.length())
    }

    #[inline]
    fn count(&self, least: usize) -> Result<usize, B::Error> {
        self.undamaged(self.head.count(least))
    }

    #[expect(clippy::inline_always, reason = "10 ns for each value of a dict")]
    #[inline(always)]
    fn value(&self, depth: u32) -> Result<B::Object, B::Error> {
        let build = self.build;
        Ok(match self.undamaged(self.head.byte())? {
            tag::STR => build.text(self.find(self.length()?)?)?,
            tag::SMALL_INT => build.int(i8::from_le_bytes(self.fixed()?).into()),
            tag::INT => build.int(i64::from_le_bytes(self.fixed()?)),
            tag::FLOAT => build.float(f64::from_le_bytes(self.fixed()?)),
            tag::TRUE => build.bool(true),
            tag::FALSE => build.bool(false),
            tag::NONE => build.none(),
            tag::BYTES => build.bytes(self.find(self.length()?)?)?,
            tag => self.other(tag, depth)?,
        })
    }

    /// Separate from `value`, so that small values need no large stack frame.
    #[inline(never)]
    fn other(&self, tag: u8, depth: u32) -> Result<B::Object, B::Error> {
        let build = self.build;
        Ok(match tag {
            tag::DICT => self.dict(self.inside(depth)?)?,
            tag::LIST => {
                let depth = self.inside(depth)?;
                build.list((0..self.count(1)?).map(|_| self.value(depth)))?
            }
            tag::TUPLE => {
                let depth = self.inside(depth)?;
                build.tuple((0..self.count(1)?).map(|_| self.value(depth)))?
            }
            tag::ARRAY => self.grid(GridKind::Array)?,
            tag::TENSOR => self.grid(GridKind::Tensor)?,
            tag::BYTEARRAY => build.bytearray(self.find(self.length()?)?)?,
            tag::COMPLEX => {
                let real = f64::from_le_bytes(self.fixed()?);
                build.complex(real, f64::from_le_bytes(self.fixed()?))
            }
            tag::BIG_INT => {
                let length = self.length()?;
                build.big_int(self.undamaged(self.head.slice(length))?)?
            }
            tag::PICKLE if depth == 0 => self.pickle()?,
            _ => return Err(self.damaged("a value of it has no type that exists")),
        })
    }

    /// The depth of values inside a container; an error if it is too deep.
    fn inside(&self, depth: u32) -> Result<u32, B::Error> {
        if depth >= DEPTH {
            return Err(self.damaged("it is nested too deep"));
        }
        Ok(depth + 1)
    }

    fn dict(&self, depth: u32) -> Result<B::Object, B::Error> {
        let mut dict = self.build.dict();
        for _ in 0..self.count(2)? {
            let key = match self.head.short_text() {
                Some(utf8) => self.build.key(utf8)?,
                None => self.value(depth)?,
            };
            self.build.insert(&mut dict, key, self.value(depth)?)?;
        }
        Ok(self.build.finish(dict))
    }

    fn grid(&self, kind: GridKind) -> Result<B::Object, B::Error> {
        let dtype = self.undamaged(self.head.byte())?;
        let Some(item_size) = self.build.item_size(kind, dtype)? else {
            return Err(self.damaged("it has a dtype that does not exist here"));
        };
        let grid = self.undamaged(Grid::read(dtype, item_size, &self.head))?;
        let values = match grid.byte_len() {
            Some(0) => None,
            Some(length) => Some(self.find(length)?),
            None => return Err(self.damaged("an array is larger than any memory")),
        };
        self.build.grid(kind, &grid, values)
    }

    fn pickle(&self) -> Result<B::Object, B::Error> {
        let pickle = self.find(self.length()?)?;
        let buffers = (0..self.count(1)?).map(|_| self.find(self.length()?));
        self.build.unpickle(pickle, buffers)
    }

    /// Finds the bytes of a value: in the head if they are few, otherwise in the next piece.
    #[inline]
    fn find(&self, length: usize) -> Result<Data<'a, P>, B::Error> {
        if length < PIECE {
            return Ok(Data::Head(self.undamaged(self.head.slice(length))?));
        }
        let found = self.pieces.as_ref().and_then(|(payload, pieces)| {
            let at = pieces.next(length)?;
            Some(Data::Piece {
                payload: *payload,
                at,
                length,
            })
        });
        found.ok_or_else(|| self.damaged("something in it is longer than all of it"))
    }
}
