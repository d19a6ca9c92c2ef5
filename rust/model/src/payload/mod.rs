//! A model of the protocol of payloads that are written once for several readers.
//!
//! A writer fills a file, makes one hard link for each reader, and tells each reader the name of
//! its link. A reader opens the link, takes a shared lock, maps the file privately, closes the
//! descriptor and removes the link. The writer fills the file again once the base name is the only
//! link and then an exclusive lock is available. A step is one system call; a process may be killed
//! before any of them. `python/shoal/shm/shared_files/payloads.py` implements it.

mod steps;

use std::fmt;

use stateright::{Model, Property};

/// The largest number of readers of any configuration.
const MAX_READERS: usize = 3;
/// The content of a file while the writer fills it.
const TORN: u8 = u8::MAX;

/// A reader, by its index in the configuration.
type Reader = usize;

/// One deliberate error in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMutant {
    /// The writer does not test the lock.
    OnlyLinkCount,
    /// The writer does not test the link count.
    OnlyLock,
    /// The writer tests the lock before it tests the link count.
    LockTestFirst,
    /// The writer announces a payload before it makes the link.
    AnnouncedBeforeLinked,
    /// A reader removes its link before it has the lock.
    UnlinkBeforeLock,
    /// A reader does not check whether its link was still there when it removed it.
    UnlinkNotChecked,
    /// A reader leaves its link.
    LinkLeft,
    /// The lock ends when the descriptor is closed, though the file is mapped.
    LockEndsAtClose,
    /// The lock of a reader outlives its mapping.
    LockOutlivesView,
    /// A sweep leaves the links of dead readers.
    LinksNotSwept,
    /// A sweep leaves the base name of a dead writer.
    BaseNotSwept,
    /// A sweep removes all links of a dead writer's file.
    AnnouncedSwept,
}

/// A configuration to search.
#[derive(Clone, Debug)]
pub struct Payloads {
    /// For each reader the process that its links name: itself, or the parent that it was forked
    /// from.
    pub named: Vec<usize>,
    /// The number of payloads that the writer writes into its one file.
    pub payloads: u8,
    /// The maximum number of processes that are killed.
    pub deaths: u8,
    /// The error in the protocol, if it has one.
    pub mutant: Option<PayloadMutant>,
}

/// The next step of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Writer {
    TestLinks,
    TestLock,
    Unlock,
    Fill,
    Filled,
    Link(Reader),
    Announce(Reader),
    Done,
    Dead,
}

/// The next system call of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Step {
    #[default]
    Open,
    Lock,
    Map,
    Close,
    Unlink,
}

/// The private memory of a reader. A set of payloads has one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Registers {
    step: Step,
    /// The payload that it is taking.
    payload: u8,
    /// Payloads announced to it and not opened yet.
    pending: u8,
    /// Payloads whose lock it holds.
    locks: u8,
    /// Payloads that it was given, and still uses.
    views: u8,
    dead: bool,
}

/// A state of the whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PayloadState {
    /// The payload in the file, from 1; 0 for none, [`TORN`] while it is filled.
    content: u8,
    /// Whether the base name is there.
    base: bool,
    /// For each reader the payloads that it has a link for.
    links: [u8; MAX_READERS],
    /// For each reader the links whose payload was announced to it.
    announced: [u8; MAX_READERS],
    /// The writer holds the exclusive lock.
    exclusive: bool,
    /// The payload that the writer writes next or has written last, from 1.
    payload: u8,
    writer: Writer,
    readers: [Registers; MAX_READERS],
    deaths: u8,
    /// A living reader could not open a payload that was announced to it.
    lost: bool,
}

/// One transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadAction {
    /// The writer takes a step.
    Write,
    /// The writer removes a link that it did not announce, as when a queue is closed.
    Withdraw,
    /// A reader takes a step.
    Read(usize),
    /// A reader drops a payload.
    Drop(usize, u8),
    /// Some process sweeps one name: the link of a reader for a payload.
    SweepLink(usize, u8),
    /// Some process sweeps the base name.
    SweepBase,
    /// The writer is killed.
    KillWriter,
    /// A reader is killed.
    KillReader(usize),
}

const fn bit(payload: u8) -> u8 {
    1 << payload
}

impl Payloads {
    fn is(&self, mutant: PayloadMutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn readers(&self) -> std::ops::Range<Reader> {
        0..self.named.len()
    }

    fn all_payloads(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.payloads
    }

    /// Whether the process that a reader's links name is dead.
    fn is_named_dead(&self, state: &PayloadState, reader: Reader) -> bool {
        state.readers[self.named[reader]].dead
    }

    fn is_swept(&self, state: &PayloadState, reader: Reader, payload: u8) -> bool {
        let dead = self.is_named_dead(state, reader) && !self.is(PayloadMutant::LinksNotSwept);
        let all = state.writer == Writer::Dead && self.is(PayloadMutant::AnnouncedSwept);
        state.links[reader] & bit(payload) != 0 && (dead || all)
    }

    fn is_base_swept(&self, state: &PayloadState) -> bool {
        state.base && state.writer == Writer::Dead && !self.is(PayloadMutant::BaseNotSwept)
    }

    /// The payloads in the memory of a process stay as they were.
    fn views_are_intact(&self, state: &PayloadState) -> bool {
        self.readers().all(|reader| {
            let views = state.readers[reader].views;
            self.all_payloads()
                .all(|payload| views & bit(payload) == 0 || state.content == payload)
        })
    }

    /// Once no process uses the file any more, one sweep leaves a file that can be filled again, or
    /// no file.
    fn all_is_given_back(&self, state: &PayloadState) -> bool {
        let writer_quiet = matches!(state.writer, Writer::Done | Writer::Dead);
        let quiet = self.readers().all(|reader| {
            let r = state.readers[reader];
            // A link stays as long as the process that it names lives, whichever process reads it.
            let ended = r.dead && self.is_named_dead(state, reader);
            ended || (!r.dead && r.step == Step::Open && r.pending == 0 && r.views == 0)
        });
        if !writer_quiet || !quiet {
            return true;
        }
        let base_right = state.writer == Writer::Done || self.is_base_swept(state) || !state.base;
        base_right
            && self.readers().all(|reader| {
                let left = self.all_payloads().filter(|&payload| {
                    state.links[reader] & bit(payload) != 0
                        && !self.is_swept(state, reader, payload)
                });
                // A link that a dead writer did not announce is removed with the reader, or with
                // the folder.
                let unannounced = state.writer == Writer::Dead;
                let mut left =
                    left.filter(|&p| !(unannounced && state.announced[reader] & bit(p) == 0));
                left.next().is_none() && state.readers[reader].locks == 0
            })
    }
}

impl Model for Payloads {
    type State = PayloadState;
    type Action = PayloadAction;

    fn init_states(&self) -> Vec<PayloadState> {
        vec![PayloadState {
            content: 0,
            base: true,
            links: [0; MAX_READERS],
            announced: [0; MAX_READERS],
            exclusive: false,
            payload: 1,
            writer: self.first_test(),
            readers: [Registers::default(); MAX_READERS],
            deaths: 0,
            lost: false,
        }]
    }

    fn actions(&self, state: &PayloadState, actions: &mut Vec<PayloadAction>) {
        let writes = !matches!(state.writer, Writer::Done | Writer::Dead);
        if writes {
            actions.push(PayloadAction::Write);
        }
        if matches!(state.writer, Writer::Announce(_)) {
            actions.push(PayloadAction::Withdraw);
        }
        let mortal = state.deaths < self.deaths;
        if mortal && state.writer != Writer::Dead {
            actions.push(PayloadAction::KillWriter);
        }
        if self.is_base_swept(state) {
            actions.push(PayloadAction::SweepBase);
        }
        for reader in self.readers() {
            let r = state.readers[reader];
            for payload in self.all_payloads() {
                if self.is_swept(state, reader, payload) {
                    actions.push(PayloadAction::SweepLink(reader, payload));
                }
                if r.views & bit(payload) != 0 {
                    actions.push(PayloadAction::Drop(reader, payload));
                }
            }
            if !r.dead && (r.step != Step::Open || r.pending != 0) {
                actions.push(PayloadAction::Read(reader));
            }
            if mortal && !r.dead {
                actions.push(PayloadAction::KillReader(reader));
            }
        }
    }

    fn next_state(&self, state: &PayloadState, action: PayloadAction) -> Option<PayloadState> {
        let mut next = state.clone();
        match action {
            PayloadAction::Write => self.write(&mut next),
            PayloadAction::Withdraw => self.withdraw(&mut next),
            PayloadAction::Read(reader) => self.read(&mut next, reader),
            PayloadAction::Drop(reader, payload) => self.drop_view(&mut next, reader, payload),
            PayloadAction::SweepLink(reader, payload) => next.links[reader] &= !bit(payload),
            PayloadAction::SweepBase => next.base = false,
            PayloadAction::KillWriter => {
                next.writer = Writer::Dead;
                next.exclusive = false;
                next.deaths += 1;
            }
            PayloadAction::KillReader(reader) => {
                // The kernel drops its locks and mappings; its links stay.
                next.readers[reader] = Registers {
                    dead: true,
                    ..Registers::default()
                };
                next.deaths += 1;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no reader's bytes change", Self::views_are_intact),
            Property::always(
                "nothing that was announced is lost",
                |_, state: &PayloadState| !state.lost,
            ),
            Property::always("everything is given back", Self::all_is_given_back),
            Property::sometimes(
                "the file is filled for the last time",
                |model: &Self, state: &PayloadState| {
                    state.payload == model.payloads && state.writer == Writer::Done
                },
            ),
        ]
    }
}

impl fmt::Display for PayloadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
