//! `State`: the shared memory, and the registers of each process.

use std::fmt;

/// The largest ring, descriptor table and number of processes of any configuration.
pub(crate) const MAX_SLOTS: usize = 4;
/// See [`MAX_SLOTS`].
pub(crate) const MAX_DESCRIPTORS: usize = 4;
/// See [`MAX_SLOTS`].
pub(crate) const MAX_PROCESSES: usize = 5;

/// A position in the unbounded sequence of messages; `head` and `tail` are positions.
pub(crate) type Position = u8;
/// An index into the descriptor table.
pub(crate) type Index = u8;
/// A process, by its index in the configuration.
pub(crate) type Process = u8;
/// The process that is always dead. It owns the messages in the queue whose producer is dead.
pub(crate) const NOBODY: Process = 7;
/// A message: unique to the put that made it.
pub(crate) type Message = u8;

/// The content of a slot besides its lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Entry {
    /// A message.
    Descriptor(Index),
    /// The end of the queue: nothing is ever put behind it.
    Plug,
}

/// A slot of the ring: an entry that is valid for one lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    /// The lap of the position that was written last; 0 before the first.
    pub(crate) lap: u8,
    /// The entry that was written.
    pub(crate) entry: Entry,
}

/// The word of a descriptor: its state, and the process that is responsible for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    /// No process uses it.
    Free,
    /// A producer fills it.
    Writing(Process),
    /// Complete, and published at a position or about to be. `again`: by a sweeper, which must not
    /// drop the message.
    Queued {
        by: Process,
        at: Position,
        again: bool,
    },
    /// A consumer has it; it is lost if the consumer dies.
    Loaned(Process, Position),
    /// A consumer has it and will acknowledge it; it is delivered again if the consumer dies.
    Leased(Process, Position),
    /// A sweeper is putting it back into the queue.
    Salvage(Process),
}

/// The operation that a process announces around its two compare-and-swaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Intent {
    Idle,
    /// It publishes this descriptor.
    Enqueue(Index),
    /// It takes `count` messages from `head` on.
    Dequeue {
        head: Position,
        count: u8,
    },
}

impl Intent {
    /// Whether its process may still be in the middle of an operation on this descriptor.
    pub(crate) fn covers(self, descriptor: Index, at: Option<Position>) -> bool {
        match (self, at) {
            (Self::Enqueue(mine), _) => mine == descriptor,
            (Self::Dequeue { head, count }, Some(at)) => head <= at && at < head + count,
            (Self::Dequeue { .. } | Self::Idle, _) => false,
        }
    }
}

/// A futex word, and its sleepers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Futex {
    /// Incremented by each wake.
    pub(crate) epoch: u8,
    /// A process sleeps, or is about to.
    pub(crate) waiting: bool,
    /// The sleepers, as a set of processes.
    pub(crate) sleepers: u8,
}

/// Everything that happened to a message, for the properties; no process reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MessageHistory {
    /// Its put was published.
    pub(crate) published: bool,
    /// It was handed to a consumer.
    pub(crate) taken: bool,
    /// The last consumer will acknowledge it, and has not done so yet.
    pub(crate) leased: bool,
    /// The last consumer.
    pub(crate) by: Process,
}

/// A state of the whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) tail: Position,
    pub(crate) head: Position,
    pub(crate) slots: [Slot; MAX_SLOTS],
    pub(crate) words: [Word; MAX_DESCRIPTORS],
    /// The message in each descriptor.
    pub(crate) content: [Message; MAX_DESCRIPTORS],
    pub(crate) intent_records: [Intent; MAX_PROCESSES],
    /// Consumers wait here for a first message.
    pub(crate) not_empty: Futex,
    /// Producers wait here for room.
    pub(crate) not_full: Futex,
    pub(crate) registers: [Registers; MAX_PROCESSES],
    /// The dead, as a set of processes.
    pub(crate) dead: u8,

    // From here on only for the properties.
    /// The position after the last that was published.
    pub(crate) published: Position,
    /// How many messages sweepers have published again: they may exceed `maxsize`.
    pub(crate) salvaged: u8,
    pub(crate) closed: bool,
    pub(crate) histories: [MessageHistory; 8],
    pub(crate) fault: Option<&'static str>,
}

/// The next step of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Pc {
    #[default]
    Idle,
    Done,
    // Producer (the names E1 to E8 are those of the implementation).
    Claim,
    Announce,
    LoadTail,
    Room,
    Refuse,
    LoadSlot,
    Mark,
    Publish,
    LoadTailToFix,
    FixTail,
    ClearRecord,
    Unclaim,
    Wake,
    // Consumer (D1 to D7).
    LoadHead,
    Read,
    AnnounceTake,
    Take,
    Withdraw,
    CheckWord,
    Release,
    ClearTake,
    Hold,
    // Both, to sleep.
    Chain,
    ChainTail,
    ChainHead,
    ChainSlot,
    SetWaiting,
    Recheck,
    RecheckHead,
    Sleep,
    Asleep,
    // Sweeper (R1 to R6).
    Inspect,
    SweepHead,
    SweepSlot,
    ReadRecords,
    Apply,
    AnnounceSalvage,
    ClaimSalvage,
    PlugNext,
    GiveUp,
}

/// The private memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Registers {
    pub(crate) pc: Pc,
    /// Puts or gets that are left, and messages made so far.
    pub(crate) left: u8,
    /// The descriptors in hand, and how many of them.
    pub(crate) hand: [Index; 2],
    pub(crate) count: u8,
    /// The index in `hand` of the current one.
    pub(crate) at: u8,
    /// A position: the producer's tail, the consumer's head.
    pub(crate) position: Position,
    /// The producer's copy of `head`.
    pub(crate) head: Position,
    /// A loaded slot or word.
    pub(crate) slot: Option<Slot>,
    pub(crate) word: Option<Word>,
    /// The epoch that was seen when the waiting bit was set.
    pub(crate) epoch: u8,
    /// It was asleep and has been woken: there may be other sleepers.
    pub(crate) woken: bool,
    /// A sweeper's candidates.
    pub(crate) candidates: [Option<Candidate>; MAX_DESCRIPTORS],
}

/// A descriptor that a sweeper may have to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Candidate {
    pub(crate) descriptor: Index,
    pub(crate) word: Word,
    pub(crate) what: What,
    /// Whether an intent record that covers it spares it.
    pub(crate) spared_by_records: bool,
}

/// The action for a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum What {
    Free,
    /// Put it back into the queue.
    Salvage,
    /// Leave it in the queue, and replace the dead process in its word.
    HandOver,
}

/// Whether a set contains a process.
pub(crate) fn has(set: u8, process: Process) -> bool {
    set >> process & 1 == 1
}

impl State {
    pub(crate) fn is_dead(&self, process: Process) -> bool {
        process == NOBODY || has(self.dead, process)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at: Vec<_> = self.registers.iter().map(|r| (r.pc, r.position)).collect();
        write!(
            f,
            "tail {} head {} slots {:?} words {:?} intent records {:?} futexes {:?} {:?} at {at:?} dead {:b}",
            self.tail,
            self.head,
            self.slots,
            self.words,
            self.intent_records,
            self.not_empty,
            self.not_full,
            self.dead
        )?;
        match self.fault {
            Some(fault) => write!(f, ": {fault}"),
            None => Ok(()),
        }
    }
}
