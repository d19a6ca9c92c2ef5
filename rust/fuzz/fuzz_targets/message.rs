//! Fuzz target: any bytes are a message or damaged, and nothing worse (`cargo +nightly fuzz run
//! message`). The first byte of the input is the kind of the message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use shoal_format::{Values, decode, decode_inline};

fuzz_target!(|data: &[u8]| {
    let Some((kind, message)) = data.split_first() else {
        return;
    };
    let kind = u32::from(*kind);
    if let Ok(value) = decode(&Values, kind, message) {
        // A message has one meaning: the value is encoded as another message that has it too.
        let again = value.encode();
        let mut bytes = vec![0; again.total_len()];
        again.write_into(&mut |at, part| bytes[at..at + part.len()].copy_from_slice(part));
        let there = decode(&Values, again.kind(), &bytes[..]);
        // Compared as text, because NaN is not equal to itself.
        assert_eq!(format!("{there:?}"), format!("{:?}", Ok::<_, ()>(value)));
    }
    let _ = decode_inline::<[u8], _>(&Values, kind, message);
});
