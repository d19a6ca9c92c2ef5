//! Messages of [`Value`]s: they come out as they went in, and damaged ones give errors only.

use proptest::prelude::*;
use shoal_format::{
    DEPTH, Damage, Grid, GridKind, KIND_PIECES, KIND_PLAIN, PIECE, Payload, Value, Values,
    check_kind, decode, decode_inline,
};

/// The kind and the bytes of a value's message; bytes that are not written are 0xee.
fn encoded(value: &Value) -> (u32, Vec<u8>) {
    let message = value.encode();
    let mut bytes = vec![0xee; message.total_len()];
    message.write_into(&mut |at, part| bytes[at..at + part.len()].copy_from_slice(part));
    (message.kind(), bytes)
}

fn decoded(kind: u32, message: &[u8]) -> Result<Value, Damage> {
    let there = decode(&Values, kind, message);
    if kind == KIND_PLAIN {
        let inline = decode_inline::<[u8], _>(&Values, kind, message);
        assert_eq!(format!("{inline:?}"), format!("{there:?}"));
    }
    there
}

fn grid(kind: GridKind, dtype: u8, item_size: usize, shape: &[usize]) -> Value {
    let sizes = shape.iter().map(|size| Some(*size));
    let grid = Grid::new(dtype, item_size, sizes).expect("at most 16 dimensions");
    let length = grid.byte_len().expect("few values");
    let values = (0..=250).cycle().take(length).collect();
    Value::Grid(kind, grid, values)
}

/// Messages of every tag, with and without pieces.
fn valid() -> Vec<Value> {
    let text = |text: &str| Value::Text(text.to_owned());
    let dict = Value::Dict(vec![
        (text("id"), Value::Int(12_345)),
        (text("reward"), Value::Float(0.5)),
        (text("done"), Value::Bool(false)),
        (Value::Tuple(vec![Value::None]), Value::Bool(true)),
        (
            text("more"),
            Value::List(vec![Value::Int(1), Value::Int(-129)]),
        ),
    ]);
    vec![
        dict.clone(),
        Value::List(vec![
            Value::Bytes(b"bytes".to_vec()),
            Value::Bytearray(b"abc".to_vec()),
            Value::Complex(0.0, 1.0),
            Value::BigInt(vec![0, 0, 0, 0, 0, 0, 0, 0, 1]),
            Value::Dict(vec![(text("a"), dict)]),
            Value::Text("é".repeat(200)),
        ]),
        Value::Tuple(vec![
            grid(GridKind::Array, 13, 8, &[2, 3]),
            grid(GridKind::Tensor, 4, 8, &[8]),
            grid(GridKind::Tensor, 0, 4, &[0, 7]),
            grid(GridKind::Array, 2, 1, &[]),
        ]),
        Value::List(vec![
            grid(GridKind::Array, 8, 8, &[3000]),
            Value::Text("x".repeat(5000)),
            Value::Bytes(vec![b'y'; 70_000]),
            grid(GridKind::Tensor, 0, 4, &[200, 100]),
            Value::Bytearray(vec![0; PIECE]),
        ]),
        Value::Pickle(
            b"pickle".to_vec(),
            vec![vec![1; 10], vec![2; 5000], Vec::new()],
        ),
    ]
}

#[test]
fn values_of_every_tag_come_out_as_they_went_in() {
    for value in valid() {
        let (kind, message) = encoded(&value);
        assert_eq!(decoded(kind, &message), Ok(value));
    }
}

#[test]
fn bytes_are_in_the_head_or_in_a_piece() {
    for length in [0, 253, 254, PIECE - 1, PIECE, PIECE + 1, 70_000] {
        let value = Value::List(vec![
            Value::Text("a".repeat(length)),
            Value::Bytes(vec![1; length]),
            Value::Bytearray(vec![2; length]),
            grid(GridKind::Array, 2, 1, &[length]),
        ]);
        let (kind, message) = encoded(&value);
        assert_eq!(kind == KIND_PIECES, length >= PIECE);
        assert_eq!(decoded(kind, &message), Ok(value));
    }
}

fn values() -> impl Strategy<Value = Value> {
    let grids = prop::sample::select(vec![
        grid(GridKind::Array, 13, 8, &[2, 600]),
        grid(GridKind::Tensor, 3, 2, &[1, 2, 3]),
        grid(GridKind::Array, 0, 1, &[]),
        grid(GridKind::Tensor, 0, 4, &[5, 0]),
    ]);
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-200..200_i64).prop_map(Value::Int),
        prop::num::f64::NORMAL.prop_map(Value::Float),
        (prop::num::f64::NORMAL, prop::num::f64::NORMAL).prop_map(|(a, b)| Value::Complex(a, b)),
        "\\PC{0,300}".prop_map(Value::Text),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Bytes),
        prop::collection::vec(any::<u8>(), 9..20).prop_map(Value::BigInt),
        (4000..4200_usize).prop_map(|n| Value::Bytearray(vec![7; n])),
        grids,
    ];
    leaf.prop_recursive(5, 40, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Tuple),
            prop::collection::vec((inner.clone(), inner), 0..5).prop_map(Value::Dict),
        ]
    })
}

/// A message that fails the test if it is read outside of its bytes.
struct Guarded(Vec<u8>);

impl Payload for Guarded {
    fn byte_len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.0.get(at..).and_then(|rest| rest.get(..to.len()));
        to.copy_from_slice(from.expect("the decoder reads outside of the message"));
    }
}

proptest! {
    #[test]
    fn nested_values_come_out_as_they_went_in(value in values()) {
        let (kind, message) = encoded(&value);
        prop_assert_eq!(decoded(kind, &message), Ok(value));
    }

    #[test]
    fn damaged_messages_give_errors_only(
        value in values(),
        changes in prop::collection::vec((0..400_usize, any::<u8>(), any::<bool>()), 1..5),
        kept in prop::option::of(0.0..1.0),
        kind in prop::option::weighted(0.1, 0..5_u32),
    ) {
        let (own, mut message) = encoded(&value);
        for (at, byte, edge) in changes {
            if let Some(at) = at.checked_rem(message.len().min(400)) {
                message[at] = if edge { [0, 1, 253, 254, 255][usize::from(byte) % 5] } else { byte };
            }
        }
        if let Some(kept) = kept {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss,
                reason = "any part of the message")]
            message.truncate((message.len() as f64 * kept) as usize);
        }
        // It returns, and reads only the bytes of the message.
        let _ = decode(&Values, kind.unwrap_or(own), &Guarded(message));
    }

    #[test]
    fn any_bytes_give_errors_only(
        kind in 0..4_u32,
        message in prop::collection::vec(prop_oneof![any::<u8>(), 0..18_u8, 250..=255_u8], 0..200),
    ) {
        let _ = decode(&Values, kind, &Guarded(message));
    }
}

#[test]
fn cut_and_lengthened_messages_are_damaged() {
    for value in valid() {
        let (kind, mut message) = encoded(&value);
        for length in (0..message.len().min(300)).chain([message.len() - 1]) {
            assert!(
                decoded(kind, &message[..length]).is_err(),
                "{length} of {value:?}"
            );
        }
        message.push(1);
        let damage = decoded(kind, &message).unwrap_err().to_string();
        assert!(
            damage.contains("it goes on where it should end"),
            "{damage}"
        );
    }
}

#[test]
fn damage_is_named() {
    let deep = |tag: u8| [[tag, 1].repeat(33), vec![1]].concat();
    let largest = [255; 9];
    let cases: [(Vec<u8>, &str); 16] = [
        (vec![], "it ends too early, before byte 0 of its head"),
        (vec![0], "no type that exists, before byte 1 of its head"),
        (vec![0x63], "no type that exists"),
        (vec![9, 5, b'a'], "longer than the rest of it"),
        (vec![6, 5, b'a'], "longer than the rest of it"),
        ([&[9][..], &largest].concat(), "longer than all of it"),
        ([&[12][..], &largest].concat(), "fewer values than it says"),
        (vec![14, 1, 1], "fewer values than it says"),
        (deep(12), "nested too deep"),
        (deep(13), "nested too deep"),
        // A pickle inside a list.
        (vec![12, 1, 17, 0, 0], "no type that exists"),
        (vec![15, 13, 17], "too many dimensions"),
        (vec![15, 0xf0, 1], "dtype that does not exist"),
        (vec![16, 0xf0, 1], "dtype that does not exist"),
        (
            [&[15, 13, 2][..], &largest, &largest].concat(),
            "larger than any memory",
        ),
        (vec![15, 13, 1, 254, 0, 0, 0, 1], "longer than all of it"),
    ];
    for (message, what) in cases {
        let damage = decoded(KIND_PLAIN, &message).unwrap_err().to_string();
        assert!(
            damage.starts_with("the message is damaged: "),
            "{message:?}: {damage}"
        );
        assert!(damage.contains(what), "{message:?}: {damage}");
    }
}

#[test]
fn a_message_of_a_wrong_kind_is_damaged() {
    for kind in [0, 3, u32::MAX] {
        assert_eq!(decode(&Values, kind, &[1][..]), Err(Damage::Kind(kind)));
        let inline = decode_inline::<[u8], _>(&Values, kind, &[1]);
        assert_eq!(
            inline.unwrap_err().to_string(),
            format!("the message is damaged: it is of kind {kind} where 1 or 2 was expected")
        );
    }
    assert_eq!(check_kind(3), Err(Damage::Kind(3)));
    assert_eq!(
        (check_kind(KIND_PLAIN), check_kind(KIND_PIECES)),
        (Ok(()), Ok(()))
    );
    let inline = decode_inline::<[u8], _>(&Values, KIND_PIECES, &[0; 8]);
    assert_eq!(inline, Err(Damage::Kind(KIND_PIECES)));
    let message = [9, 0, 0, 0, 0, 0, 0, 0, 1];
    let head = decode(&Values, KIND_PIECES, &message[..]).unwrap_err();
    assert_eq!(
        head.to_string(),
        "the message is damaged: its head takes 9 bytes and all of it 9"
    );
}

#[test]
fn containers_may_be_nested_to_the_limit() {
    let mut value = Value::None;
    for _ in 0..DEPTH {
        value = Value::Tuple(vec![value]);
    }
    let (kind, message) = encoded(&value);
    assert_eq!(decoded(kind, &message), Ok(value.clone()));
    let (kind, message) = encoded(&Value::Dict(vec![(Value::None, value)]));
    assert!(decoded(kind, &message).is_err());
}
