//! The queue between processes: any number of producers and consumers, any of which may be killed.
//!
//! Here is the ring, and nothing that knows where it lies: files, mappings and who is alive come
//! from elsewhere. [`heap::Heap`] has everything in one process.
//!
//! # How it works
//!
//! A message lies in a *descriptor*, or beside it in a [`Block`] that the descriptor names and whose
//! memory is its producer's; the *ring* holds indices of descriptors. A producer fills a descriptor
//! before one compare-and-swap of a slot publishes it, so that a producer that dies
//! leaves no hole. A consumer takes `n` messages by one compare-and-swap of `head`, so that a batch
//! is taken whole or not at all. Both announce in a *lane* what they are about to do, and the word
//! of each descriptor names who answers for it: from these a [`Sweeper`] decides what became of what
//! the dead had in hand.
//!
//! # Guarantees
//!
//! - Each message goes to one consumer, in the order in which they were put. One that was on its
//!   way to a consumer that died is delivered again, at the end, and says so.
//! - A queue holds no more than `maxsize` messages, and where it has a bound in bytes no more than
//!   these, or one message; only what is delivered again may exceed it.
//! - Whoever is killed, and at whatever instruction, nobody waits for it and no queued message is
//!   lost or damaged. What it had in use is free after the next sweep.
//! - A message that is put before the queue is closed can be taken; after it, none is put.
//!
//! Not guaranteed: an order among those who wait; an end to the retries of a producer that loses
//! each race (somebody else wins it); and anything against a process that writes where it should
//! not, but for this: the others get a [`Corrupt`] and nothing worse.
//!
//! # Shared words
//!
//! | word | written | order | read, with Acquire | makes visible |
//! |---|---|---|---|---|
//! | descriptor's word | claim: free to writing | Acquire | | that the reads of the one before are over |
//! | | E4: queued | Release | D4, sweep | the payload, its label, and the intent of E1 |
//! | | D7, release: free | Release | claim | the end of the reads |
//! | | sweep | AcqRel | D4, claim | as what it stands for |
//! | payload, label, ring | while writing | Relaxed, fence before | after D4: Relaxed | |
//! | | | | look: Relaxed, fence after, counts if the word stays | that the message before is gone |
//! | weight | while writing | Release | D1: Relaxed, fence after, counts if `head` stays | the `head` that let it be written |
//! | length, bytes before | while writing | Release | E3: Relaxed, fence after, counts if `head` stays | the `head` that let it be written |
//! | slot | E5, plug, sweep | SeqCst | E2, D1, sweep | the word, and all slots before it |
//! | `tail` | E6 | SeqCst | before E2 | the slots before it |
//! | `head` | D3 | SeqCst | E3, D1, sweep | the end of the reads of the slots, and the intent of D2 |
//! | lane | E1, D2 | Relaxed | sweep | |
//! | | E7, D5 | Release | sweep | the words that the operation changed |
//! | wait words | sleeper: bit set | SeqCst, fence after | waker: Relaxed, fence before | |
//! | | waker: bit cleared, epoch | AcqRel | the futex | |
//! | bells | event loop: bit set | SeqCst, fence after | ringer: Relaxed, fence before | |
//! | | ringer: all cleared | AcqRel | the bell | |
//! | backed | more slots have memory | Release | a slot beyond the number known: Acquire | that it may be touched |
//! | refused | E3, nobody fits | Relaxed, fence after | D1: Relaxed, fence before | |
//! | damage | anybody | Relaxed | before "nothing there": Relaxed | |
//!
//! SeqCst on slot and `head` is there for the pair of fences with the sleepers, where on x86 the
//! locked instruction is the fence; Release and Acquire are all that the rest needs.
//!
//! # Steps, and what a death there leaves
//!
//! | step | | if its process dies before it |
//! |---|---|---|
//! | E1 | lane: "I publish d" | d is freed |
//! | E2 | slot at `tail`; published already: go on; the plug: closed | d is freed |
//! | E3 | full if the position is `maxsize` after `head`, or the bytes are too many | d is freed |
//! | E4 | word: queued at this position | d is freed |
//! | E5 | slot: d. **The message is in the queue** | d is freed; or put, where others went on from there: nobody can know |
//! | E6 | `tail` behind it | the message stays; the next producer walks on |
//! | E7 | lane: idle | the message stays |
//! | E8 | wake sleepers, ring event loops | the message stays; sleepers find it after a slice, or the sweep wakes |
//! | D1 | `head`, slots from there on, weights | nothing |
//! | D2 | lane: "I take n from `head` on" | nothing |
//! | D3 | `head + n`. **The messages are out of the queue** | nothing |
//! | D4 | words: queued at these positions? | they are delivered again |
//! | D7 | words: free, loaned or leased | they are delivered again, though a copy may have been made |
//! | D5 | lane: idle | a lease is delivered again, a loan is lost |
//! | D6 | wake sleepers | likewise; they find room after a slice |

mod again;
mod bells;
mod bytes;
pub mod clock;
mod close;
mod descriptor;
mod displace;
mod error;
#[cfg(all(test, not(loom)))]
mod failpoint;
pub mod heap;
mod lane;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod memory;
mod patience;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod payload;
mod peek;
mod prefetch;
mod put;
mod queue;
mod ring;
#[cfg(loom)]
mod searched;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod session;
mod slot;
mod sweep;
mod sync;
mod take;
#[cfg(all(test, not(loom)))]
mod tests;
mod wait;
mod word;

pub use again::GivenBack;
pub use descriptor::{Block, Descriptor, LANES, Label, Participant, Payload};
pub use error::Corrupt;
pub use lane::{Intent, Lane};
pub use peek::{Glimpse, Sight};
pub use put::Refusal;
pub use queue::{Claim, Queue, Table};
pub use ring::{Header, Padded, Ring, slots_for};
pub use slot::{Entry, Lap, Slot};
pub use sweep::{Sweeper, Swept};
pub use sync::{AtomicU32, AtomicU64};
pub use take::{Heavy, Keep, Loan, Message, Taken, Want};
#[cfg(all(target_os = "linux", not(loom)))]
pub use wait::SystemFutex;
pub use wait::{Futex, Until, Vigil};
pub use word::{Owner, State, Word};
