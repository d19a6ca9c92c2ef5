//! Messages whose contents identify them.

use crate::ring::descriptor::{Label, Payload};
use crate::ring::put::Refusal;
use crate::ring::take::{Keep, Taken, Want};
use crate::session::{Error, Held, Offer, SessionQueue};

/// Length of a message in a block: too long for a descriptor.
const LENGTH: usize = 5000;

/// Where the bytes of a message lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum Kind {
    /// In its descriptor.
    Inline,
    /// In a block of an extent.
    Block,
}

/// A message that was taken.
#[derive(Debug)]
pub(in crate::session) struct Received {
    pub(in crate::session) number: u64,
    pub(super) redelivered: bool,
    pub(super) held: Option<Held>,
}

fn label() -> Label {
    Label {
        weight: 1,
        kind: 7,
        sender: 5,
    }
}

/// The bytes of a message: its number, repeated.
fn bytes(number: u64, kind: Kind) -> Vec<u8> {
    let length = match kind {
        Kind::Inline => 8,
        Kind::Block => LENGTH,
    };
    number.to_ne_bytes().repeat(length / 8)
}

/// The number of a message; panics if the bytes are not those of a message.
fn number(bytes: &[u8]) -> u64 {
    let (numbers, rest) = bytes.as_chunks::<8>();
    let number = u64::from_ne_bytes(numbers[0]);
    assert!(rest.is_empty() && numbers.iter().all(|one| u64::from_ne_bytes(*one) == number));
    number
}

/// Puts a message; returns whether it was put, or why not.
pub(in crate::session) fn put(
    queue: &SessionQueue,
    number: u64,
    kind: Kind,
) -> Result<Result<(), Refusal>, Error> {
    let bytes = bytes(number, kind);
    if kind == Kind::Inline {
        return Ok(match queue.offer(label(), &bytes)? {
            Offer::Put => Ok(()),
            Offer::Refused(refusal) => Err(refusal),
            Offer::NoMemory => panic!("no descriptor for {number}"),
        });
    }
    let draft = queue.draft(bytes.len() as u64)?.expect("there is memory");
    draft.write(0, &bytes)?;
    Ok(queue.put(draft, label())?.map_err(|(_, refusal)| refusal))
}

/// Puts messages together; those that are refused are given back.
pub(super) fn put_many(queue: &SessionQueue, numbers: &[u64], kind: Kind) -> Result<(), Error> {
    let mut batch = queue.batch();
    for &number in numbers {
        let bytes = bytes(number, kind);
        if kind == Kind::Inline {
            assert!(batch.push(label(), &bytes)?);
        } else {
            let draft = queue.draft(bytes.len() as u64)?.expect("there is memory");
            draft.write(0, &bytes)?;
            batch.push_draft(label(), draft);
        }
    }
    batch.put()?;
    Ok(())
}

/// Takes up to `count` messages; `seen` gets the number of each as soon as it is known.
pub(in crate::session) fn take(
    queue: &SessionQueue,
    count: u32,
    keep: Keep,
    mut seen: impl FnMut(u64),
) -> Result<Vec<Received>, Error> {
    let mut taken = Vec::new();
    let result = queue.take(Want::Count(count), keep, &mut |message| {
        assert_eq!(message.label, label());
        let mut bytes = [0; 8];
        let inline = match message.payload() {
            Payload::Inline(length) => {
                assert_eq!(length, bytes.len());
                message.copy(&mut bytes);
                let number = number(&bytes);
                seen(number);
                Some(number)
            }
            Payload::Block(_) => None,
        };
        taken.push((
            inline,
            message.loan(),
            message.payload(),
            message.redelivered,
        ));
    })?;
    let count = u32::try_from(taken.len()).expect("few");
    match result {
        Taken::Messages { count: all, weight } => {
            assert_eq!((all, weight), (count, count.into()));
        }
        _ => assert_eq!(count, 0),
    }
    taken
        .into_iter()
        .map(|(inline, loan, payload, redelivered)| {
            let held = match loan {
                Some(loan) => Some(queue.hold(loan, payload)?),
                None => None,
            };
            let number = match (inline, &held) {
                (Some(number), _) => number,
                (None, Some(held)) => {
                    let mut bytes = vec![0; LENGTH];
                    assert_eq!(held.len(), LENGTH as u64);
                    held.read(0, &mut bytes)?;
                    let number = number(&bytes);
                    seen(number);
                    number
                }
                (None, None) => panic!("a message without a place"),
            };
            Ok(Received {
                number,
                redelivered,
                held,
            })
        })
        .collect()
}

/// Takes all messages: their numbers, and whether each was delivered before.
pub(super) fn drain(queue: &SessionQueue) -> Result<Vec<(u64, bool)>, Error> {
    let mut all = Vec::new();
    loop {
        let some = take(queue, 2, Keep::Copy, |_| ())?;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some.iter().map(|one| (one.number, one.redelivered)));
    }
}
