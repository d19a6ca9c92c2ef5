//! `Protocol`: a configuration of processes, and the steps that each may take.

use stateright::{Model, Property};

use crate::properties;
use crate::state::{
    Entry, Futex, Intent, MAX_DESCRIPTORS, MAX_PROCESSES, MAX_SLOTS, Message, MessageHistory,
    Position, Process, Registers, Slot, State, Word, has,
};

/// How a consumer keeps a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It copies the payload out at once.
    Copy,
    /// It uses the payload in place for a while; its death loses the message.
    Loan,
    /// It acknowledges the message later; its death delivers it again.
    Lease,
}

/// The program of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Puts `puts` messages, up to `batch` in one call; waits for room or gives up.
    Producer {
        /// The total number of messages.
        puts: u8,
        /// The maximum number of messages in one call.
        batch: u8,
        /// Whether it waits for room.
        waits: bool,
    },
    /// Takes `gets` messages, up to `batch` in one call; waits or asks again.
    Consumer {
        /// The total number of messages.
        gets: u8,
        /// The maximum number of messages in one call.
        batch: u8,
        /// How it keeps them.
        keep: Keep,
        /// Whether it sleeps if there is no message.
        waits: bool,
    },
    /// Cleans up after dead processes, again and again.
    Sweeper,
    /// Closes the queue.
    Closer,
}

/// One deliberate error in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Consumers do not announce what they take.
    NoTakeIntent,
    /// Consumers clear their intent before they release the descriptor.
    IntentClearedEarly,
    /// The sweeper reads the intent records before it looks at the queue.
    RecordsReadFirst,
    /// The sweeper judges by `head` alone whether a position was consumed.
    SweepByHeadOnly,
    /// The sweeper takes a living producer's "not published yet" for "never published".
    LivingNotPublished,
    /// A process that finds a slot of a later lap starts again at `tail`.
    TailReloaded,
    /// A producer that lost its position leaves the old one in the word.
    WordNotRemarked,
    /// A consumer takes any other lap for an empty queue.
    AnyLapIsEmpty,
    /// A sweeper marks a message that it puts back as if it were its own put.
    SalvageAsPut,
    /// The sweeper frees a message that a consumer had taken and not handed on.
    TakenIsFreed,
    /// The sweeper leaves queued messages in the name of dead producers.
    NotHandedOver,
    /// The sweeper hands a message over without checking that the word is still the same.
    HandedOverBlindly,
    /// The sweeper replaces the plug of a closed queue without a new one behind it.
    NoSecondPlug,
    /// A sleeper does not look again after it set the waiting bit.
    NoRecheck,
    /// A woken sleeper does not wake the other sleepers.
    NoChain,
    /// A producer looks for room before it looks whether the queue is closed.
    FullBeforeClosed,
    /// Closing wakes no sleeper.
    CloseWithoutWake,
}

/// The state of a position, as its slot shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing was published there yet.
    Unpublished,
    /// Everything before this later position was published.
    PublishedUpTo(Position),
    /// The queue is closed and ends here.
    Closed,
}

/// A configuration to search.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// The processes.
    pub roles: Vec<Role>,
    /// The number of slots of the ring: 1, 2 or 4.
    pub slots: u8,
    /// The number of descriptors.
    pub descriptors: u8,
    /// The bound of the queue.
    pub maxsize: u8,
    /// The processes that may die.
    pub mortal: Vec<Process>,
    /// The maximum number of deaths.
    pub deaths: u8,
    /// The error in the protocol, if it has one.
    pub mutant: Option<Mutant>,
}

/// One transition: a process, and one of its possible steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A process takes a step.
    Step(Process, usize),
    /// A process is killed.
    Die(Process),
}

impl Protocol {
    pub(crate) fn lap(&self, at: Position) -> u8 {
        at / self.slots
    }

    pub(crate) fn slot(&self, state: &State, at: Position) -> Slot {
        state.slots[usize::from(at % self.slots)]
    }

    pub(crate) fn set_slot(&self, state: &mut State, at: Position, entry: Entry) {
        let lap = self.lap(at);
        state.slots[usize::from(at % self.slots)] = Slot { lap, entry };
    }

    /// The state of a position, from the slot that was loaded for it.
    ///
    /// A slot of a later lap was published at a later position, and so was everything before that.
    /// To load `tail` again instead would be a trap: it stays where a dead producer left it.
    pub(crate) fn seen(&self, slot: Slot, at: Position) -> Seen {
        let lap = self.lap(at);
        if slot.lap < lap {
            return Seen::Unpublished;
        }
        let there = slot.lap * self.slots + at % self.slots;
        match slot.entry {
            Entry::Descriptor(_) if self.is(Mutant::TailReloaded) && there != at => {
                Seen::PublishedUpTo(at)
            }
            Entry::Descriptor(_) => Seen::PublishedUpTo(there + 1),
            Entry::Plug if there == at => Seen::Closed,
            Entry::Plug => Seen::PublishedUpTo(there),
        }
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The number of the first message that a producer makes.
    pub(crate) fn first_message(&self, process: Process) -> Message {
        let before = &self.roles[..usize::from(process)];
        before
            .iter()
            .map(|role| match role {
                Role::Producer { puts, .. } => *puts,
                _ => 0,
            })
            .sum()
    }

    pub(crate) fn successors(&self, state: &State, process: Process) -> Vec<State> {
        let mut out = Vec::new();
        if has(state.dead, process) {
            return out;
        }
        match self.roles[usize::from(process)] {
            Role::Producer { .. } => self.producer(state, process, &mut out),
            Role::Consumer { .. } => self.consumer(state, process, &mut out),
            Role::Sweeper => self.sweeper(state, process, &mut out),
            Role::Closer => self.closer(state, process, &mut out),
        }
        out
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = Process> {
        (0..).take(self.roles.len())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut registers = [Registers::default(); MAX_PROCESSES];
        for (role, registers) in self.roles.iter().zip(&mut registers) {
            registers.left = match role {
                Role::Producer { puts, .. } => *puts,
                Role::Consumer { gets, .. } => *gets,
                Role::Sweeper | Role::Closer => 0,
            };
            registers.head = self.slots;
        }
        // Slots start at lap 0 and positions at lap 1: zeroed memory does not look published.
        vec![State {
            tail: self.slots,
            head: self.slots,
            slots: [Slot {
                lap: 0,
                entry: Entry::Descriptor(0),
            }; MAX_SLOTS],
            words: [Word::Free; MAX_DESCRIPTORS],
            content: [0; MAX_DESCRIPTORS],
            intent_records: [Intent::Idle; MAX_PROCESSES],
            not_empty: Futex::default(),
            not_full: Futex::default(),
            registers,
            dead: 0,
            published: self.slots,
            salvaged: 0,
            closed: false,
            histories: [MessageHistory::default(); 8],
            fault: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        for process in self.processes() {
            let choices = self.successors(state, process).len();
            actions.extend((0..choices).map(|choice| Action::Step(process, choice)));
        }
        if state.dead.count_ones() < u32::from(self.deaths) {
            let living = self.mortal.iter().filter(|&&p| !has(state.dead, p));
            actions.extend(living.map(|&process| Action::Die(process)));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        match action {
            Action::Step(process, choice) => {
                Some(self.successors(state, process).swap_remove(choice))
            }
            Action::Die(process) => {
                let mut next = state.clone();
                next.dead |= 1 << process;
                next.not_empty.sleepers &= !(1 << process);
                next.not_full.sleepers &= !(1 << process);
                // Its registers are lost. To reset them leaves fewer different states.
                next.registers[usize::from(process)] = Registers::default();
                Some(next)
            }
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
