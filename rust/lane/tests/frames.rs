//! Frames survive the way, and bytes that are no frame are refused.

use proptest::prelude::*;
use shoal_lane::frame::{
    Hello, Item, MOST_ITEMS, MOST_KEY_BYTES, MOST_PAYLOAD_BYTES, NEVER, Op, Policy, Reply, Request,
    Status, Welcome,
};

const PUT: Request = Request {
    op: Op::Put,
    policy: Policy::Block,
    seq: 1,
    key_len: 3,
    payload_len: 5,
    kind: 2,
    sender: 4321,
    amount: 0,
    deadline: NEVER,
    maxsize: 0,
    max_bytes: 0,
};

proptest! {
    #[test]
    fn a_request_arrives_as_it_was_sent(
        op in prop::sample::select(Op::ALL),
        policy in prop::sample::select(Policy::ALL),
        seq in 1_u64..,
        key_len in 0..=MOST_KEY_BYTES,
        payload_len in 0..=MOST_PAYLOAD_BYTES,
        (kind, sender) in any::<(u32, u32)>(),
        amount in 1_u64..,
        (deadline, max_bytes) in any::<(u64, u64)>(),
        maxsize in 0..=MOST_ITEMS,
    ) {
        let sent = Request {
            op, policy, seq, key_len, payload_len, kind, sender, amount, deadline, maxsize, max_bytes,
        };
        prop_assert_eq!(Request::decode(&sent.encode()), Ok(sent));
    }

    #[test]
    fn a_reply_and_an_item_arrive_as_they_were_sent(
        status in prop::sample::select(Status::ALL),
        (seq, weight) in any::<(u64, u64)>(),
        count in 0..=MOST_ITEMS,
        more in 0..=MOST_PAYLOAD_BYTES / 2,
        (kind, sender, redelivered) in any::<(u32, u32, bool)>(),
    ) {
        let reply = Reply { status, seq, count, len: u64::from(count) * Item::LEN as u64 + more };
        prop_assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        let item = Item { payload_len: more, weight, kind, sender, redelivered };
        prop_assert_eq!(Item::decode(&item.encode()), Ok(item));
    }

    #[test]
    fn a_hello_and_a_welcome_arrive_as_they_were_sent(
        (stream, again, acked) in any::<(u128, bool, u64)>(),
        (epoch, done, known) in any::<(u64, u64, bool)>(),
    ) {
        let hello = Hello { stream, again, acked };
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let welcome = Welcome { epoch, done, known };
        prop_assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
    }

    #[test]
    fn any_bytes_are_refused_or_mean_one_frame(bytes in any::<[u8; Request::LEN]>(), byte in 0..Request::LEN) {
        // Most random bytes are refused at once, so frames with one changed byte are tried too.
        let mut changed = PUT.encode();
        changed[byte] = bytes[byte];
        for bytes in [bytes, changed] {
            if let Ok(frame) = Request::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes);
            }
            let start = bytes.first_chunk().expect("it is shorter");
            if let Ok(frame) = Reply::decode(start) {
                prop_assert_eq!(&frame.encode(), start);
            }
            let start = bytes.first_chunk().expect("it is shorter");
            if let Ok(frame) = Hello::decode(start) {
                prop_assert_eq!(&frame.encode(), start);
            }
            let start = bytes.first_chunk().expect("it is shorter");
            if let Ok(frame) = Item::decode(start) {
                prop_assert_eq!(&frame.encode(), start);
            }
        }
    }
}

#[test]
fn a_field_that_cannot_be_is_named() {
    let changed = |at: usize, value: u8| {
        let mut bytes = PUT.encode();
        bytes[at] = value;
        Request::decode(&bytes)
            .expect_err("the byte was changed")
            .to_string()
    };
    let damaged = |what: &str| format!("the request of the other end is damaged: {what} cannot be");
    assert_eq!(changed(0, 99), damaged("op = 99"));
    assert_eq!(changed(1, 4), damaged("policy = 4"));
    assert_eq!(changed(2, 1), damaged("an unused byte = 1"));
    assert_eq!(changed(7, 1), damaged("the length of the key = 16777219"));
    assert_eq!(
        changed(15, 1),
        damaged("the length of the payload = 72057594037927941")
    );
    assert_eq!(changed(16, 0), damaged("the number of the request = 0"));
    assert_eq!(changed(59, 1), damaged("maxsize = 16777216"));
    assert_eq!(changed(63, 7), damaged("an unused byte = 7"));
    let nothing = Request {
        op: Op::Take,
        ..PUT
    };
    let refused = Request::decode(&nothing.encode()).expect_err("it takes nothing");
    assert_eq!(refused.to_string(), damaged("the number of items = 0"));
}

#[test]
fn a_reply_that_is_too_short_for_its_items_is_refused() {
    let reply = Reply {
        status: Status::Done,
        seq: 1,
        count: 2,
        len: 2 * Item::LEN as u64,
    };
    assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    let short = Reply {
        len: reply.len - 1,
        ..reply
    };
    let refused = Reply::decode(&short.encode()).expect_err("it is too short");
    assert_eq!(
        (refused.frame, refused.field, refused.value),
        ("reply", "the length", 63)
    );
}
