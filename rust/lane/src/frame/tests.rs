use proptest::prelude::*;
use shoal_shm::Want;

use super::*;

fn put() -> Request {
    Request {
        op: Op::Put,
        policy: Policy::KeepLatest,
        waits: true,
        kind: 2,
        sender: 7,
        left: 3,
        key_length: 4,
        length: 5,
        seq: 6,
        amount: 8,
        deadline: 9,
        maxsize: Some(10),
        max_bytes: None,
    }
}

/// Decoders of all frames, with the length of each and its name.
type Decoder = (&'static str, usize, fn(&[u8]) -> Option<Invalid>);
const DECODERS: [Decoder; 6] = [
    ("hello", Hello::SIZE, |bytes| Hello::decode(bytes).err()),
    ("welcome", Welcome::SIZE, |bytes| {
        Welcome::decode(bytes).err()
    }),
    ("request", Request::SIZE, |bytes| {
        Request::decode(bytes).err()
    }),
    ("reply", Reply::SIZE, |bytes| Reply::decode(bytes).err()),
    ("item", Item::SIZE, |bytes| Item::decode(bytes).err()),
    ("shortage", SHORTAGE, |bytes| decode_shortage(bytes).err()),
];

proptest! {
    #[test]
    fn a_hello_comes_back(stream: u128, again: bool) {
        let hello = Hello { stream, again };
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn a_welcome_comes_back(epoch in 1..=u64::MAX, done: u64, failed: bool) {
        for welcome in [Welcome::Go { epoch, done, failed }, Welcome::Forgotten { epoch }] {
            prop_assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        }
    }

    #[test]
    fn a_request_comes_back(
        (policy, waits, kind, sender) in (0..4_usize, any::<bool>(), any::<u8>(), any::<u32>()),
        (left, key_length) in (0..MAX_REQUESTS, 0..=MAX_KEY),
        (length, seq, amount) in (0..=MAX_PAYLOAD, 1..=LARGEST, 0..=LARGEST),
        deadline: u64,
        maxsize in proptest::option::of(0..=LARGEST),
        max_bytes in proptest::option::of(0..=LARGEST),
    ) {
        let request = Request {
            op: Op::Put, policy: Policy::ALL[policy], waits, kind, sender, left, key_length, length,
            seq, amount, deadline: if waits { deadline } else { 0 }, maxsize, max_bytes,
        };
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        prop_assert_eq!(request.last(), seq + u64::from(left));
    }

    #[test]
    fn a_reply_comes_back(status in 0..8_usize, count in 0..=MAX_REQUESTS, length in 0..=MAX_BODY, seq: u64) {
        let status = Status::ALL[status];
        let count = if status == Status::Done { count } else { 0 };
        let reply = Reply { status, count, length, seq };
        prop_assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }

    #[test]
    fn an_item_comes_back(
        length in 0..=MAX_PAYLOAD, weight in 0..=LARGEST, sender: u32, kind: u8, redelivered: bool,
    ) {
        let item = Item { length, weight, sender, kind, redelivered };
        prop_assert_eq!(Item::decode(&item.encode()), Ok(item));
    }

    #[test]
    fn the_shortages_of_a_put_come_back(held: u64, bound: u64, length: u64) {
        for shortage in [
            Shortage::Messages { held, bound },
            Shortage::Backlog { held, bound },
            Shortage::Bytes { held, bound, length },
            Shortage::Memory { held, bound, length },
            Shortage::Weight { held, bound },
            Shortage::Empty,
        ] {
            prop_assert_eq!(decode_shortage(&encode_shortage(&shortage)), Ok(shortage));
        }
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        for (_, size, decode) in DECODERS {
            let error = decode(&bytes);
            prop_assert!(bytes.len() >= size || error.is_some());
        }
    }
}

#[test]
fn a_frame_that_is_cut_off_anywhere_is_refused() {
    let whole = [0; 100];
    for (name, size, decode) in DECODERS {
        for length in 0..size {
            let expected = Invalid::Short {
                frame: name,
                length,
                expected: size,
            };
            assert_eq!(decode(&whole[..length]), Some(expected));
        }
    }
}

#[test]
fn each_changed_byte_makes_another_frame_or_none() {
    let (put, bytes) = (put(), put().encode());
    for at in 0..Request::SIZE {
        for value in 0..=u8::MAX {
            let mut changed = bytes;
            changed[at] = value;
            if let Ok(request) = Request::decode(&changed) {
                assert_eq!(request == put, value == bytes[at], "byte {at} is {value}");
                assert_eq!(request.encode(), changed);
            }
        }
    }
}

#[test]
fn each_field_of_a_request_is_checked_against_its_limits() {
    let changed = |at: usize, field: &[u8]| {
        let mut bytes = put().encode();
        bytes[at..at + field.len()].copy_from_slice(field);
        Request::decode(&bytes)
            .expect_err("out of its limits")
            .to_string()
    };
    let word = |at, value: u64| changed(at, &value.to_le_bytes());
    assert_eq!(changed(0, &[0]), "op=0 of a request: expected 1 to 7");
    assert_eq!(changed(0, &[8]), "op=8 of a request: expected 1 to 7");
    // A take has no policy.
    assert_eq!(changed(0, &[2]), "policy=2 of a request: expected 0 to 0");
    assert_eq!(changed(1, &[4]), "policy=4 of a request: expected 0 to 3");
    assert_eq!(changed(2, &[2]), "flags=2 of a request: expected 0 to 1");
    assert!(changed(8, &MAX_REQUESTS.to_le_bytes()).starts_with("left=1048576 "));
    assert!(changed(12, &0x1_0000_u32.to_le_bytes()).starts_with("key_length=65536 "));
    assert!(word(16, MAX_PAYLOAD + 1).starts_with("length=1099511627777 "));
    assert!(word(24, 0).starts_with("seq=0 "));
    assert!(word(24, LARGEST + 1).starts_with("seq=9223372036854775808 "));
    assert!(word(32, LARGEST + 1).starts_with("amount="));
    assert!(word(48, LARGEST + 1).starts_with("maxsize="));
    assert!(word(56, LARGEST + 1).starts_with("max_bytes="));
    // A request that does not wait has no deadline.
    assert_eq!(changed(2, &[0]), "deadline=9 of a request: expected 0 to 0");
}

#[test]
fn a_take_comes_back_with_what_it_wants() {
    let weight = |target, least| Want::Weight { target, least };
    for want in [
        Want::Count(7),
        weight(9, None),
        weight(LARGEST, Some(0)),
        weight(9, Some(3)),
    ] {
        let (request, payload) = Request::of_take(Op::Take, 5, want);
        assert_eq!(request.length, payload.len() as u64);
        assert_eq!(Request::decode(&request.encode()), Ok(request));
        let least = payload
            .first_chunk()
            .map(|bytes| u64::from_le_bytes(*bytes));
        assert_eq!(request.want(least), want);
    }
}

#[test]
fn a_request_about_leases_names_them() {
    let name = LeaseName {
        holder: u128::MAX - 1,
        number: 1 << 60,
    };
    let (request, payload) = Request::of_lease(9, name);
    assert_eq!(Request::decode(&request.encode()), Ok(request));
    assert_eq!(request.amount, 9);
    assert_eq!(LeaseName::decode(&payload), Ok(name));
    for length in [0, request.length - 1, request.length + 1] {
        let wrong = Request { length, ..request };
        assert!(Request::decode(&wrong.encode()).is_err(), "{wrong:?}");
    }
    assert!(LeaseName::decode(&[0; LeaseName::SIZE - 1]).is_err());
    let most: Vec<u64> = (0..MAX_LEASES as u64).collect();
    for op in [Op::Renew, Op::Settle] {
        for numbers in [&[][..], &[7, 8], &most] {
            let (request, payload) = Request::of_leases(op, name.holder, numbers);
            assert_eq!(Request::decode(&request.encode()), Ok(request));
            assert!(!request.goes_back());
            let (holder, found) = decode_leases(&payload).expect("one");
            assert!(holder == name.holder && found.eq(numbers.iter().copied()));
        }
        let (request, _) = Request::of_leases(op, name.holder, &most);
        let length = request.length + 1;
        assert!(Request::decode(&Request { length, ..request }.encode()).is_err());
    }
    assert!(decode_leases(&[0; 15]).is_err());
}

#[test]
fn the_outcome_of_a_take_has_no_key_payload_or_wait() {
    let (keep, _) = Request::of_take(Op::Keep, 5, Want::Count(0));
    assert_eq!(Request::decode(&keep.encode()), Ok(keep));
    for wrong in [
        Request {
            waits: true,
            ..keep
        },
        Request {
            key_length: 1,
            ..keep
        },
        Request { length: 1, ..keep },
        Request { left: 1, ..keep },
        Request {
            deadline: 1,
            ..keep
        },
    ] {
        assert!(Request::decode(&wrong.encode()).is_err(), "{wrong:?}");
    }
}

#[test]
fn reserved_bytes_must_be_zero() {
    let mut hello = Hello {
        stream: 1,
        again: true,
    }
    .encode();
    hello[23] = 1;
    let error = Hello::decode(&hello).expect_err("reserved");
    assert_eq!(error.to_string(), "reserved=1 of a hello: expected 0 to 0");
    let mut welcome = Welcome::Forgotten { epoch: 1 }.encode();
    welcome[1] = 1;
    assert!(Welcome::decode(&welcome).is_err());
    let epoch = Welcome::Forgotten { epoch: 0 }.encode();
    assert!(Welcome::decode(&epoch).is_err());
}

#[test]
fn the_body_of_a_failure_is_short() {
    let reply = Reply {
        status: Status::Closed,
        count: 0,
        length: MAX_BODY + 1,
        seq: 1,
    };
    let error = Reply::decode(&reply.encode()).expect_err("too long");
    assert_eq!(
        error.to_string(),
        "length=4097 of a reply: expected 0 to 4096"
    );
}
