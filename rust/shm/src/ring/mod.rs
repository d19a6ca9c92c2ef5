//! The shared-memory queue: any number of producer and consumer processes, any of which may be
//! killed.
//!
//! The ring does not depend on where it is stored. [`heap::Heap`] keeps everything on the heap of
//! one process; the module `session` keeps it in files that processes share.
//!
//! # How it works
//!
//! A message is stored in a *descriptor*, or in a [`Block`] that the descriptor names and whose
//! memory belongs to the producer. The *ring* holds indices of descriptors. A producer fills a
//! descriptor before it publishes it by one compare-and-swap of a slot, so a producer that dies
//! leaves no hole. A consumer takes `n` messages by one compare-and-swap of `head`, so a batch is
//! taken whole or not at all. Both announce in an *intent record* what they are about to do, and
//! the word of each descriptor names the process that is responsible for it. From intent records
//! and words a [`Sweeper`] decides what to do with the messages that a dead process had in hand.
//!
//! # Guarantees
//!
//! - Each message goes to one consumer, in the order in which messages were put. A message that was
//!   on its way to a consumer that died is delivered again, at the end of the queue, and is marked
//!   as such.
//! - A queue holds at most `maxsize` messages. With a bound in bytes it also holds at most that
//!   many bytes, or a single message of any length; with `overfill`, less than that and one message
//!   of any length. Only messages that are delivered again may exceed this.
//! - If a process is killed, at any instruction, no other process waits for it and no queued
//!   message is lost or damaged. The descriptors that it had in use are free after the next sweep.
//! - A message that is put before the queue is closed can be taken; none is put after the close.
//!
//! Not guaranteed: an order among waiting processes; an end to the retries of a producer that loses
//! every race (another process wins each of them); and protection against a process that writes
//! where it should not, except that the others get a [`Corrupt`] error and nothing worse.
//!
//! # Shared words
//!
//! | word | written | order | read, with Acquire | makes visible |
//! |---|---|---|---|---|
//! | descriptor's word | claim: free to writing | Acquire | | that the previous owner's reads are over |
//! | | E4: queued | Release | D4, sweep | the payload, its label, and the intent of E1 |
//! | | D7, release: free | Release | claim | the end of the reads |
//! | | sweep | AcqRel | D4, claim | same as for the state that it writes |
//! | payload, label, ring | while writing | Relaxed, fence before | after D4: Relaxed | |
//! | | | | peek: Relaxed, fence after, valid if the word is unchanged | that the previous message is gone |
//! | weight | while writing | Release | D1: Relaxed, fence after, valid if `head` is unchanged | the `head` that let it be written |
//! | length, bytes before | while writing | Release | E3: Relaxed, fence after, valid if `head` is unchanged | the `head` that let it be written |
//! | slot | E5, plug, sweep | SeqCst | E2, D1, sweep | the word, and all slots before it |
//! | `tail` | E6 | SeqCst | before E2 | the slots before it |
//! | `head` | D3 | SeqCst | E3, D1, sweep | the end of the reads of the slots, and the intent of D2 |
//! | intent record | E1, D2 | Relaxed | sweep | |
//! | | E7, D5 | Release | sweep | the words that the operation changed |
//! | wait words | sleeper: bit set | SeqCst, fence after | waker: Relaxed, fence before | |
//! | | waker: bit cleared, epoch | AcqRel | the futex | |
//! | bells | event loop: bit set | SeqCst, fence after | ringer: Relaxed, fence before | |
//! | | ringer: all cleared | AcqRel | the bell | |
//! | backed | more slots have memory | Release | before a slot beyond the known number: Acquire | that the slot may be touched |
//! | refused | E3, no room in bytes | Relaxed, fence after | D1: Relaxed, fence before | |
//! | damage | any process that finds it | Relaxed | before "nothing there": Relaxed | |
//!
//! Slot and `head` need SeqCst only for the pair of fences with the sleepers; on x86 their locked
//! instruction is that fence. Everything else needs only Release and Acquire.
//!
//! # Steps, and the result of a death before each
//!
//! | step | what it does | if its process dies before it |
//! |---|---|---|
//! | E1 | intent record: "I publish d" | d is freed |
//! | E2 | load the slot at `tail`; if published: go on to the next; if the plug: closed | d is freed |
//! | E3 | full if the position is `maxsize` after `head`, or the bytes are too many | d is freed |
//! | E4 | word: queued at this position | d is freed |
//! | E5 | slot: d. **The message is in the queue** | d is freed; or delivered, if the queue went on past this position: a sweep takes it for a taken one |
//! | E6 | move `tail` behind it | the message stays; the next producer walks on from `tail` |
//! | E7 | intent record: idle | the message stays |
//! | E8 | wake sleepers, ring event loops | the message stays; sleepers find it after a slice, or the sweep wakes them |
//! | D1 | load `head`, the slots from there on, and weights | nothing |
//! | D2 | intent record: "I take n from `head` on" | nothing |
//! | D3 | `head + n`. **The messages are out of the queue** | nothing |
//! | D4 | check the words: queued at these positions | they are delivered again |
//! | D7 | words: free, loaned or leased | they are delivered again, though a copy may have been made |
//! | D5 | intent record: idle | a lease is delivered again, a loan is lost |
//! | D6 | wake sleepers | same as D5; producers find room after a slice |

mod bells;
mod byte_bound;
pub(crate) mod clock;
pub(crate) mod close;
pub(crate) mod descriptor;
mod displace;
pub(crate) mod error;
pub(crate) mod header;
pub mod heap;
pub(crate) mod intent;
pub(crate) mod peek;
mod prefetch;
pub(crate) mod put;
pub(crate) mod queue;
pub(crate) mod republish;
pub(crate) mod slot;
mod spin;
pub(crate) mod sweep;
pub(crate) mod take;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod wait;
pub(crate) mod word;

pub use descriptor::{Block, Descriptor, INTENT_RECORDS, Label, Participant, Payload};
pub use error::Corrupt;
pub use header::{Header, Ring, slots_for};
pub use intent::{Intent, IntentRecord};
pub use peek::{MessageCopy, PeekOutcome};
pub use put::Refusal;
pub use queue::{Claim, Queue, Table};
pub use republish::GivenBack;
pub use slot::{Entry, Lap, Slot};
pub use sweep::{Sweeper, Swept};
pub use take::{Keep, Loan, Message, Taken, Want};
#[cfg(all(target_os = "linux", not(loom)))]
pub use wait::SystemFutex;
pub use wait::{Futex, WaitState};
pub use word::{Owner, State, Word};
