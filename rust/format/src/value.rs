//! The objects of messages for programs without an interpreter.

use crate::{Build, Damage, Data, Grid, GridKind, Message, PIECE, Payload, tag};

/// Sizes in bytes of the dtypes of arrays, in the order of `FORMATS` in `shoal-codec`.
const ARRAY_ITEMS: [usize; 18] = [1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 2, 4, 8, 16, 8, 16, 32];
/// Sizes in bytes of the dtypes of tensors, in the order of `DTYPES` in `shoal-codec`.
const TENSOR_ITEMS: [usize; 22] = [
    4, 8, 2, 2, 8, 4, 2, 1, 1, 1, 2, 4, 8, 8, 16, 4, 1, 1, 1, 1, 1, 1,
];

/// The object of a message, as plain data.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// None.
    None,
    /// A bool.
    Bool(bool),
    /// An int of at most 8 bytes.
    Int(i64),
    /// The two's complement of a longer int, least significant byte first.
    BigInt(Vec<u8>),
    /// A float.
    Float(f64),
    /// The parts of a complex number.
    Complex(f64, f64),
    /// A str.
    Text(String),
    /// A bytes.
    Bytes(Vec<u8>),
    /// A bytearray.
    Bytearray(Vec<u8>),
    /// A list.
    List(Vec<Value>),
    /// A tuple.
    Tuple(Vec<Value>),
    /// The keys and values of a dict, in order; keys may be equal.
    Dict(Vec<(Value, Value)>),
    /// An array or tensor, with the bytes of its values.
    Grid(GridKind, Grid, Vec<u8>),
    /// A pickle, and the buffers beside it. Only a whole message is one.
    Pickle(Vec<u8>, Vec<Vec<u8>>),
}

/// Builds [`Value`]s. Its only errors are those of the decoder, and for a str that is not UTF-8.
#[derive(Debug, Clone, Copy)]
pub struct Values;

fn copied<P: Payload + ?Sized>(data: &Data<'_, P>) -> Vec<u8> {
    match data {
        Data::Head(bytes) => bytes.to_vec(),
        Data::Piece {
            payload,
            at,
            length,
        } => {
            let mut bytes = vec![0; *length];
            payload.read(*at, &mut bytes);
            bytes
        }
    }
}

fn text(utf8: Vec<u8>) -> Result<Value, Damage> {
    let text = String::from_utf8(utf8).map_err(|error| Damage::Value {
        what: "a str in it is not UTF-8",
        at: error.utf8_error().valid_up_to(),
    })?;
    Ok(Value::Text(text))
}

impl<P: Payload + ?Sized> Build<P> for Values {
    type Object = Value;
    type Dict = Vec<(Value, Value)>;
    type Error = Damage;

    fn damaged(&self, damage: Damage) -> Damage {
        damage
    }

    fn none(&self) -> Value {
        Value::None
    }

    fn bool(&self, value: bool) -> Value {
        Value::Bool(value)
    }

    fn int(&self, value: i64) -> Value {
        Value::Int(value)
    }

    fn big_int(&self, bytes: &[u8]) -> Result<Value, Damage> {
        Ok(Value::BigInt(bytes.to_vec()))
    }

    fn float(&self, value: f64) -> Value {
        Value::Float(value)
    }

    fn complex(&self, real: f64, imaginary: f64) -> Value {
        Value::Complex(real, imaginary)
    }

    fn text(&self, utf8: Data<'_, P>) -> Result<Value, Damage> {
        text(copied(&utf8))
    }

    fn key(&self, utf8: &[u8]) -> Result<Value, Damage> {
        text(utf8.to_vec())
    }

    fn bytes(&self, bytes: Data<'_, P>) -> Result<Value, Damage> {
        Ok(Value::Bytes(copied(&bytes)))
    }

    fn bytearray(&self, bytes: Data<'_, P>) -> Result<Value, Damage> {
        Ok(Value::Bytearray(copied(&bytes)))
    }

    fn list(
        &self,
        items: impl ExactSizeIterator<Item = Result<Value, Damage>>,
    ) -> Result<Value, Damage> {
        Ok(Value::List(items.collect::<Result<_, _>>()?))
    }

    fn tuple(
        &self,
        items: impl ExactSizeIterator<Item = Result<Value, Damage>>,
    ) -> Result<Value, Damage> {
        Ok(Value::Tuple(items.collect::<Result<_, _>>()?))
    }

    fn dict(&self) -> Self::Dict {
        Vec::new()
    }

    fn insert(&self, dict: &mut Self::Dict, key: Value, value: Value) -> Result<(), Damage> {
        dict.push((key, value));
        Ok(())
    }

    fn finish(&self, dict: Self::Dict) -> Value {
        Value::Dict(dict)
    }

    fn item_size(&self, kind: GridKind, dtype: u8) -> Result<Option<usize>, Damage> {
        let table: &[usize] = match kind {
            GridKind::Array => &ARRAY_ITEMS,
            GridKind::Tensor => &TENSOR_ITEMS,
        };
        Ok(table.get(usize::from(dtype)).copied())
    }

    fn grid(
        &self,
        kind: GridKind,
        grid: &Grid,
        values: Option<Data<'_, P>>,
    ) -> Result<Value, Damage> {
        let values = values.as_ref().map(copied).unwrap_or_default();
        Ok(Value::Grid(kind, grid.clone(), values))
    }

    fn unpickle<'a>(
        &self,
        pickle: Data<'a, P>,
        buffers: impl Iterator<Item = Result<Data<'a, P>, Damage>>,
    ) -> Result<Value, Damage>
    where
        P: 'a,
    {
        let buffers = buffers.map(|data| data.map(|data| copied(&data)));
        Ok(Value::Pickle(
            copied(&pickle),
            buffers.collect::<Result<_, _>>()?,
        ))
    }
}

impl Value {
    /// Encodes the value. A message of more than [`DEPTH`](crate::DEPTH) containers inside each
    /// other, or with a pickle inside a container, cannot be decoded.
    pub fn encode(&self) -> Message<Vec<u8>> {
        let mut message = Message::new();
        self.write(&mut message);
        message
    }

    fn write(&self, message: &mut Message<Vec<u8>>) {
        let head = &mut message.head;
        match self {
            Self::None => head.push(tag::NONE),
            Self::Bool(true) => head.push(tag::TRUE),
            Self::Bool(false) => head.push(tag::FALSE),
            Self::Int(int) => match i8::try_from(*int) {
                Ok(small) => head.tagged(tag::SMALL_INT, small.to_le_bytes()),
                Err(_) => head.tagged(tag::INT, int.to_le_bytes()),
            },
            Self::BigInt(bytes) => head.text(tag::BIG_INT, bytes),
            Self::Float(float) => head.tagged(tag::FLOAT, float.to_le_bytes()),
            Self::Complex(real, imaginary) => {
                head.tagged(tag::COMPLEX, real.to_le_bytes());
                head.extend(&imaginary.to_le_bytes());
            }
            Self::Text(text) => with_length(message, tag::STR, text.as_bytes()),
            Self::Bytes(bytes) => with_length(message, tag::BYTES, bytes),
            Self::Bytearray(bytes) => with_length(message, tag::BYTEARRAY, bytes),
            Self::List(items) => container(message, tag::LIST, items.len(), items),
            Self::Tuple(items) => container(message, tag::TUPLE, items.len(), items),
            Self::Dict(items) => {
                let flat = items.iter().flat_map(|(key, value)| [key, value]);
                container(message, tag::DICT, items.len(), flat);
            }
            Self::Grid(kind, grid, values) => {
                head.push(match kind {
                    GridKind::Array => tag::ARRAY,
                    GridKind::Tensor => tag::TENSOR,
                });
                grid.write(head);
                data(message, values);
            }
            Self::Pickle(pickle, buffers) => {
                with_length(message, tag::PICKLE, pickle);
                message.head.length(buffers.len());
                for buffer in buffers {
                    message.head.length(buffer.len());
                    data(message, buffer);
                }
            }
        }
    }
}

fn container<'a>(
    message: &mut Message<Vec<u8>>,
    tag: u8,
    length: usize,
    items: impl IntoIterator<Item = &'a Value>,
) {
    message.head.push(tag);
    message.head.length(length);
    for item in items {
        item.write(message);
    }
}

fn with_length(message: &mut Message<Vec<u8>>, tag: u8, bytes: &[u8]) {
    message.head.push(tag);
    message.head.length(bytes.len());
    data(message, bytes);
}

/// Writes bytes into the head if they are few, otherwise into a piece.
fn data(message: &mut Message<Vec<u8>>, bytes: &[u8]) {
    if bytes.len() < PIECE {
        message.head.extend(bytes);
    } else {
        message.pieces.push(bytes.to_vec());
    }
}
