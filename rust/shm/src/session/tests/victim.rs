//! The process that dies in a test: its act, and how far it gets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::messages::{self, Kind, put, put_many};
use crate::failpoint::killed_after;
use crate::ring::take::{Keep, Want};
use crate::ring::wait::WaitState;
use crate::session::processes::process::{Process, answer_lines, say};
use crate::session::{Bounds, Error, MemoryPolicy, Session, SessionQueue, Settings};

/// The variable that tells a child that it is one.
const CHILD: &str = "SHOAL_TEST_SESSION_VICTIM";
/// More changes than any act makes.
const FOREVER: u64 = 1 << 40;

/// The act of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Puts message 1, with its first descriptor and its first extent.
    Put(Kind),
    /// Puts message 1 into memory that it already has.
    PutAgain(Kind),
    /// Puts messages 1 and 2 together.
    PutMany(Kind),
    /// Takes messages, and gives loans back.
    Take(Keep, u32, Kind),
    /// Takes a message as a lease, acknowledges it and gives it back.
    Acknowledge(Kind),
    /// Takes a message as a lease, and gives it back to the queue.
    GiveBack(Kind),
    /// Gives up the memory that it kept for later messages.
    Trim,
    /// Waits briefly for a message.
    Wait,
    /// Makes its doorbell and asks to be rung.
    HangBell,
    Close,
    MakeQueue,
    /// Makes a session of its own, in the folder that is given as the token.
    Create,
    /// Joins the session and finds the queue.
    Join,
    /// Leaves the session, having put message 1 and leased one.
    Leave,
    /// Cleans up after dead processes.
    Sweep,
    /// Takes all memory, and keeps it.
    Hoard,
}

impl Act {
    pub(super) const ALL: [Self; 23] = [
        Self::Put(Kind::Inline),
        Self::Put(Kind::Block),
        Self::PutAgain(Kind::Block),
        Self::PutMany(Kind::Inline),
        Self::PutMany(Kind::Block),
        Self::Take(Keep::Copy, 1, Kind::Inline),
        Self::Take(Keep::Copy, 2, Kind::Inline),
        Self::Take(Keep::Copy, 1, Kind::Block),
        Self::Take(Keep::Loan, 2, Kind::Inline),
        Self::Take(Keep::Loan, 2, Kind::Block),
        Self::Take(Keep::Lease, 1, Kind::Inline),
        Self::Take(Keep::Lease, 2, Kind::Block),
        Self::Acknowledge(Kind::Inline),
        Self::Acknowledge(Kind::Block),
        Self::GiveBack(Kind::Inline),
        Self::GiveBack(Kind::Block),
        Self::Trim,
        Self::Wait,
        Self::HangBell,
        Self::Close,
        Self::MakeQueue,
        Self::Join,
        Self::Leave,
    ];

    /// Where the messages of the queue lie.
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Put(kind)
            | Self::PutAgain(kind)
            | Self::PutMany(kind)
            | Self::Take(_, _, kind)
            | Self::Acknowledge(kind)
            | Self::GiveBack(kind) => kind,
            _ => Kind::Inline,
        }
    }

    fn name(self) -> String {
        format!("{self:?}").replace(' ', "")
    }
}

/// Memory of a session for payloads.
pub(super) const MEMORY: u64 = 1 << 20;
/// The bounds of all queues.
pub(super) const BOUNDS: Bounds = Bounds {
    maxsize: Some(3),
    max_bytes: Some(0),
};

/// Settings of all sessions.
pub(super) fn settings(folder: &Path, memory_policy: MemoryPolicy) -> Settings {
    Settings {
        memory_policy,
        ..Settings::in_folder(folder, MEMORY, 63)
    }
}

/// The known actions of a process before it died.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// Number of changes that it made, if it finished its act.
    pub(super) changes: Option<u64>,
    /// Messages that it took.
    pub(super) took: Vec<u64>,
    /// Messages that it gave back, or acknowledged and gave back.
    pub(super) freed: Vec<u64>,
}

/// Starts a process that runs an act and is killed after `changes` changes that others can see, or
/// when it has finished.
pub(super) fn dies(act: Act, token: &str, key: &str, changes: u64) -> Story {
    let mut process = starts(act, token, key, changes);
    let mut story = Story::default();
    let mut failed = None;
    while let Some(said) = process.answer() {
        let number = |text: &str| text.parse().expect("a number");
        match said.split_once(' ') {
            Some(("took", text)) => story.took.push(number(text)),
            Some(("freed", text)) => story.freed.push(number(text)),
            Some(("done", text)) => {
                story.changes = Some(number(text));
                process.kill();
                break;
            }
            _ => failed = Some(said),
        }
    }
    assert!(failed.is_none(), "{act:?} after {changes}: {failed:?}");
    assert!(process.is_killed(), "{act:?} after {changes}");
    story
}

/// Starts a process that runs an act and lives on.
pub(super) fn does(act: Act, token: &str, key: &str) -> Process {
    let process = starts(act, token, key, FOREVER);
    while let Some(said) = process.answer() {
        if said.starts_with("done") {
            return process;
        }
        assert!(said.starts_with("took"), "{act:?}: {said}");
    }
    panic!("{act:?}: it ended");
}

fn starts(act: Act, token: &str, key: &str, changes: u64) -> Process {
    let test = concat!(module_path!(), "::runs");
    let mut process = Process::start(test, &[(CHILD, "1".as_ref())]);
    process.tell(&format!("{} {token} {key} {changes}", act.name()));
    process
}

/// Not a test but the child of other tests: without the variable it does nothing.
#[test]
fn runs() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    answer_lines(|words| {
        let [name, token, key, changes] = words else {
            panic!("what is {words:?}?");
        };
        let all = Act::ALL
            .into_iter()
            .chain([Act::Sweep, Act::Hoard, Act::Create]);
        let act = all.into_iter().find(|act| act.name() == *name);
        let changes = changes.parse().expect("a number");
        let done = Victim::run(act.expect("an act"), token, key, changes);
        // Everything stays in use: the process is killed in a moment.
        match done {
            Ok((victim, made)) => {
                std::mem::forget(victim);
                format!("done {made}")
            }
            Err(error) => format!("failed {error}"),
        }
    });
}

/// Everything that the process has open.
#[derive(Debug)]
struct Victim {
    session: Arc<Session>,
    queue: SessionQueue,
}

impl Victim {
    fn join(token: &str, key: &str) -> Result<Self, Error> {
        let session = Session::attach(token)?;
        let queue = session.queue(key.as_bytes(), BOUNDS)?;
        Ok(Self { session, queue })
    }

    fn run(act: Act, token: &str, key: &str, changes: u64) -> Result<(Self, u64), Error> {
        if act == Act::Create {
            let settings = settings(Path::new(token), MemoryPolicy::Spill);
            let (session, made) = killed_after(changes, || Session::create(&settings));
            let session = session?;
            let queue = session.queue(key.as_bytes(), BOUNDS)?;
            return Ok((Self { session, queue }, made));
        }
        if act == Act::Join {
            let (joined, made) = killed_after(changes, || Self::join(token, key));
            return Ok((joined?, made));
        }
        let victim = Self::join(token, key)?;
        victim.prepare(act)?;
        let (result, made) = killed_after(changes, || victim.act(act, key));
        result?;
        Ok((victim, made))
    }

    /// Runs the preparation of an act, without a death.
    fn prepare(&self, act: Act) -> Result<(), Error> {
        match act {
            Act::PutAgain(_) | Act::Trim => drop(self.queue.draft(64)?),
            Act::Leave => {
                put(&self.queue, 1, Kind::Inline)?.ok();
                drop(messages::take(&self.queue, 1, Keep::Lease, took)?);
            }
            _ => (),
        }
        Ok(())
    }

    fn act(&self, act: Act, key: &str) -> Result<(), Error> {
        match act {
            Act::Put(kind) | Act::PutAgain(kind) => {
                put(&self.queue, 1, kind)?.ok();
            }
            Act::PutMany(kind) => put_many(&self.queue, &[1, 2], kind)?,
            Act::Take(keep, count, _) => {
                for one in messages::take(&self.queue, count, keep, took)? {
                    let loan = keep != Keep::Lease && one.held.is_some();
                    drop(one.held);
                    if loan {
                        say(&format!("freed {}", one.number));
                    }
                }
            }
            Act::Acknowledge(_) => {
                for one in messages::take(&self.queue, 1, Keep::Lease, took)? {
                    let held = one.held.expect("leased");
                    held.acknowledge()?;
                    drop(held);
                    say(&format!("freed {}", one.number));
                }
            }
            Act::GiveBack(_) => {
                for one in messages::take(&self.queue, 1, Keep::Lease, took)? {
                    assert!(one.held.expect("leased").give_back()?);
                }
            }
            Act::Trim => self.session.trim(),
            Act::Wait => {
                let (want, mut wait_state) = (Want::Count(1), WaitState::default());
                let limit = Duration::from_millis(1);
                self.queue.wait_to_take(want, &mut wait_state, limit)?;
                self.queue.done_taking(want, wait_state);
            }
            Act::HangBell => {
                self.session.bell()?;
                self.queue.arm_take();
                self.queue.arm_put();
            }
            Act::Close => self.queue.close()?,
            Act::MakeQueue => drop(self.session.queue(other(key).as_bytes(), BOUNDS)?),
            Act::Leave => self.session.shut(),
            Act::Sweep => drop(self.session.sweep()?),
            Act::Hoard => std::mem::forget(self.queue.draft(MEMORY)?.expect("it is free")),
            Act::Create | Act::Join => (),
        }
        Ok(())
    }
}

fn took(number: u64) {
    say(&format!("took {number}"));
}

/// The key of the queue that [`Act::MakeQueue`] makes.
pub(super) fn other(key: &str) -> String {
    format!("{key}-other")
}
