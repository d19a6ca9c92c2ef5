//! The child process of tests: its commands, and its part in a session.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::process::answer_lines;
use super::{FOLDER, PATIENCE};
use crate::ring::descriptor::Label;
use crate::ring::queue::{Queue, Table};
use crate::ring::take::{Keep, Loan, Taken, Want};
use crate::ring::wait::SystemFutex;
use crate::ring::word::Owner;
use crate::segment::file;
use crate::session::directory::Directory;
use crate::session::intent_record_pool::IntentRecordPool;
use crate::session::lock::Locks;
use crate::session::members::{self, Member};
use crate::session::name::Token;
use crate::session::queue_table::{self, Bounds};
use crate::session::recover::{self, Recovery, RecoveryContext};
use crate::session::{Control, Error, Settings, folders, leftovers};

/// Not a test but the child of other tests: without a folder it does nothing.
#[test]
fn runs() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let mut member = None;
    answer_lines(|words| match words[..] {
        ["join"] => {
            let joined = Participant::attach(&folder).expect("there");
            let index = joined.me.owner().index();
            member = Some(joined);
            index.to_string()
        }
        ["create", base] => {
            let (made, folder) = Participant::create(Path::new(base));
            member = Some(made);
            folder.display().to_string()
        }
        ["clear", base] => format!("{:?}", leftovers::clear(Path::new(base))),
        ["descendant"] => descendant(),
        _ => act(member.as_mut().expect("joined"), words),
    });
}

fn act(member: &mut Participant, words: &[&str]) -> String {
    match words[..] {
        ["lock"] => {
            std::mem::forget(member.locks.lock(deadline()).expect("free"));
            String::new()
        }
        ["put", number] => {
            member.put(number.parse().expect("a number"));
            String::new()
        }
        ["lease"] => member.take(Keep::Lease).to_string(),
        ["others"] => member
            .locks
            .another_process_is_inside()
            .expect("asked")
            .to_string(),
        ["leave"] => {
            members::leave(&member.recovery_context(), false, deadline()).expect("left");
            String::new()
        }
        _ => panic!("what is {words:?}?"),
    }
}

/// Starts a process that lives on when the child is killed; returns its pid.
fn descendant() -> String {
    let child = std::process::Command::new("sleep").arg("60").spawn();
    child.expect("started").id().to_string()
}

pub(super) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// A participant, with everything that a process has for it.
#[derive(Debug)]
pub(super) struct Participant {
    pub(super) control: Control,
    pub(super) locks: Locks,
    pub(super) records: IntentRecordPool,
    pub(super) me: Member,
    /// Messages that it took and did not give back.
    in_use: Vec<Loan>,
}

impl Participant {
    /// Makes a session in a folder, with a queue of 63 messages in it.
    pub(super) fn create(base: &Path) -> (Self, PathBuf) {
        let token = Token::random(base).expect("a name");
        let folder = token.folder().to_owned();
        file::make_folder(&folder).expect("made");
        let locks = Locks::create(&folder).expect("made");
        let guard = locks.lock(deadline()).expect("free");
        let settings = Settings::in_folder(base, 1 << 20, 63);
        let path = folder.join(folders::CONTROL);
        let control = Control::create(&path, token.session(), &settings).expect("space");
        let me = members::join(&control, &locks, &guard).expect("room");
        let bounds = Bounds {
            maxsize: Some(63),
            max_bytes: None,
        };
        Directory::default()
            .make(&control, b"q", bounds)
            .expect("room");
        let chunk = &control.chunks()[0].owner;
        control
            .allocate(crate::segment::layout::DESCRIPTORS, 256 * 256)
            .expect("space");
        chunk.store(me.owner().index() as u64, crate::sync::Ordering::Relaxed);
        let chunks = &control.superblock().used.0.chunks;
        chunks.store(1, crate::sync::Ordering::Release);
        control.set_ready();
        drop(guard);
        (Self::of(control, locks, me), folder)
    }

    /// Takes part in an existing session.
    pub(super) fn attach(folder: &Path) -> Result<Self, Error> {
        let token: Token = folder.to_str().expect("text").parse()?;
        let path = folder.join(folders::CONTROL);
        let control = Control::open(&path, token.session(), deadline())?;
        let locks = Locks::open(folder)?;
        let me = {
            let guard = locks.lock(deadline())?;
            members::join(&control, &locks, &guard)?
        };
        Ok(Self::of(control, locks, me))
    }

    fn of(control: Control, locks: Locks, me: Member) -> Self {
        Self {
            control,
            locks,
            records: IntentRecordPool::default(),
            me,
            in_use: Vec::new(),
        }
    }

    pub(super) fn recovery_context(&self) -> RecoveryContext<'_> {
        RecoveryContext {
            control: &self.control,
            locks: &self.locks,
            me: self.me.owner(),
            records: &self.records,
        }
    }

    pub(super) fn sweep(&self) -> Recovery {
        let guard = self.locks.lock(deadline()).expect("free");
        recover::run(&self.recovery_context(), &guard).expect("undamaged")
    }

    fn table(&self) -> Table<'_> {
        Table {
            descriptors: self.control.descriptors(),
            participants: self.control.participants(),
        }
    }

    /// Number of descriptors that are not free.
    pub(super) fn in_use(&self) -> usize {
        self.table().in_use()
    }

    fn queue(&self) -> Queue<'_, SystemFutex> {
        let ring = queue_table::ring(&self.control, 0).expect("there");
        let queue = Queue::new(self.table(), ring, 0, self.me.owner(), SystemFutex, 0);
        queue.expect("sound")
    }

    fn with_record<R>(
        &self,
        work: impl FnOnce(&mut crate::ring::intent::IntentRecord<'_>) -> R,
    ) -> R {
        let owner: Owner = self.me.owner();
        self.records
            .with(&self.control.participants()[owner.index()], work)
    }

    pub(super) fn put(&self, number: u8) {
        let queue = self.queue();
        let claim = queue.claim().expect("free");
        assert!(queue.fill(&claim, Label::default(), &[number]));
        let put = self.with_record(|record| queue.put(record, claim));
        assert!(put.expect("undamaged").is_ok());
    }

    /// Takes a message and does not give it back.
    pub(super) fn take(&mut self, keep: Keep) -> u8 {
        let mut found = None;
        let mut held = None;
        let taken = self.with_record(|record| {
            self.queue()
                .take(record, Want::Count(1), keep, &mut |message| {
                    let mut byte = [0];
                    message.copy(&mut byte);
                    found = Some(byte[0]);
                    held = message.loan();
                })
        });
        let one = Taken::Messages {
            count: 1,
            weight: 0,
        };
        assert_eq!(taken.expect("undamaged"), one);
        self.in_use.extend(held);
        found.expect("taken")
    }
}
