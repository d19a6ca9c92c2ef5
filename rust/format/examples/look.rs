//! Encodes a value, prints the bytes of its message, and damages it:
//! `cargo run -p shoal-format --example look`

#![expect(clippy::print_stdout, reason = "an example prints")]

use shoal_format::{KIND_PLAIN, Value, Values, decode};

fn main() {
    let value = Value::Dict(vec![
        (Value::Text("step".into()), Value::Int(7)),
        (Value::Text("image".into()), Value::Bytes(vec![1; 5000])),
    ]);
    let message = value.encode();
    let mut bytes = vec![0; message.total_len()];
    message.write_into(&mut |at, part| {
        println!(
            "{at:5}: {} bytes {:?}",
            part.len(),
            &part[..part.len().min(24)]
        );
        bytes[at..at + part.len()].copy_from_slice(part);
    });
    assert_ne!(message.kind(), KIND_PLAIN, "5000 bytes are a piece");

    match decode(&Values, message.kind(), &bytes[..]) {
        Ok(there) => println!("the same: {}", there == value),
        Err(damage) => println!("{damage}"),
    }
    // The head is shorter than it says.
    bytes[0] -= 1;
    match decode(&Values, message.kind(), &bytes[..]) {
        Ok(_) => println!("another message"),
        Err(damage) => println!("{damage}"),
    }
}
