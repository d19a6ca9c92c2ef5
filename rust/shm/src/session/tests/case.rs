//! One case: a process dies, perhaps the one that recovers too, and then everything is checked.

use std::path::Path;
use std::sync::Arc;

use super::messages::{Kind, drain, put};
use super::victim::{Act, BOUNDS, Story, dies, other, settings};
use crate::ring::put::Refusal;
use crate::ring::take::Keep;
use crate::session::queue_table::{self, Entry};
use crate::session::{MemoryPolicy, Recovery, Session, SessionQueue, Stats, queue_users};
use crate::sync::Ordering;

/// Longer than anything takes.
const FOREVER: u64 = 1 << 40;

/// The state of the queue when the process dies; there is room for 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Empty,
    One,
    /// It is full, and full again when the recovery runs.
    Full,
    /// Two messages; then others go more than once round the ring before the recovery runs.
    Lapped,
}

impl Start {
    pub(super) const ALL: [Self; 4] = [Self::Empty, Self::One, Self::Full, Self::Lapped];

    /// Number of messages in the queue.
    fn messages(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::One => 1,
            Self::Lapped => 2,
            Self::Full => 3,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Deaths {
    act: Act,
    /// Number of changes after which the process dies.
    at: u64,
    /// Number of changes after which the process that recovers dies, if it does.
    sweeper_at: Option<u64>,
}

/// The process that survives, with a session for many cases.
#[derive(Debug)]
pub(super) struct Survivor {
    pub(super) session: Arc<Session>,
    cases: u64,
    /// The folder is removed when this is dropped.
    _folder: tempfile::TempDir,
}

impl Survivor {
    /// Makes the session; the policy says what its processes do if there is no memory.
    pub(super) fn new(memory_policy: MemoryPolicy) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = settings(folder.path(), memory_policy);
        Self {
            session: Session::create(&settings).expect("space"),
            cases: 0,
            _folder: folder,
        }
    }

    /// Runs one case; returns whether the last process that was to die finished before.
    fn sees(&mut self, start: Start, deaths: Deaths) -> bool {
        let key = format!("case-{}", self.cases);
        self.cases += 1;
        let queue = self.session.queue(key.as_bytes(), BOUNDS).expect("room");
        let before = start.messages();
        for number in 100..100 + before {
            assert_eq!(
                put(&queue, number, deaths.act.kind()).expect("sound"),
                Ok(())
            );
        }
        let fds = fds_in(self.folder());
        let stats = self.stats();

        let story = dies(deaths.act, self.session.token(), &key, deaths.at);
        let mut case = Case {
            session: &self.session,
            queue,
            start,
            deaths,
            story,
            published: 0,
            later: Vec::new(),
            out: Vec::new(),
        };
        case.go_on_without_it();
        let sweeper = deaths
            .sweeper_at
            .map(|at| dies(Act::Sweep, self.session.token(), &key, at));
        case.clean_up(sweeper.is_none());
        case.check_messages(stats.lost_messages);
        case.check_queue(&key);
        let finished = sweeper.as_ref().unwrap_or(&case.story).changes.is_some();
        drop(case);
        self.check_base(deaths, &fds);
        finished
    }

    fn folder(&self) -> &Path {
        Path::new(self.session.token())
    }

    fn stats(&self) -> Stats {
        self.session.stats().expect("sound")
    }

    /// Checks that nothing is left of the dead processes.
    fn check_base(&self, deaths: Deaths, fds: &[String]) {
        // The extent of a dead producer is removed by the first recovery after its last message.
        self.session.sweep().expect("sound");
        self.session.trim();
        let Stats {
            messages,
            descriptors_in_use,
            bytes_in_use,
            bytes_reserved,
            participants,
            ..
        } = self.stats();
        let left = [messages, descriptors_in_use, bytes_in_use, bytes_reserved];
        assert_eq!((left, participants), ([0; 4], 1), "{deaths:?}");
        let mut files: Vec<_> = std::fs::read_dir(self.folder())
            .expect("there")
            .map(|entry| entry.expect("listed").file_name())
            .collect();
        files.sort();
        assert_eq!(files, ["ctl", "locks"], "{deaths:?}");
        assert_eq!(fds_in(self.folder()), fds, "{deaths:?}");
        let control = self.session.control();
        // One chunk of the survivor, and one of each dead process, which the next process gets.
        let chunks = control.superblock().used.0.chunks.load(Ordering::Relaxed);
        assert!(chunks <= 3, "{deaths:?}: {chunks}");
        // The holder is in the lowest 16 bits.
        let free = |extent: &&crate::segment::layout::Extent| {
            extent.ownership.load(Ordering::Relaxed) << 48 == 0
        };
        let extents = control.extents();
        assert_eq!(extents.iter().filter(free).count(), extents.len());
        self.check_users(deaths);
    }

    /// Checks that no queue has users, except those of another survivor: the next process may get
    /// the dead one's index.
    fn check_users(&self, deaths: Deaths) {
        let control = self.session.control();
        for index in 0..queue_table::count(control) {
            let entry = Entry::read(control, index).expect("sound");
            assert!(
                !queue_users::has_any(control, &entry).expect("sound"),
                "{deaths:?}"
            );
        }
    }
}

/// Descriptors of this process that are open on files of a session.
fn fds_in(folder: &Path) -> Vec<String> {
    let fds = std::fs::read_dir("/proc/self/fd").expect("there");
    let targets = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let mut inside: Vec<_> = targets
        .filter(|target| target.starts_with(folder))
        .map(|target| target.display().to_string())
        .collect();
    inside.sort();
    inside
}

/// A case, after the first death.
struct Case<'a> {
    session: &'a Arc<Session>,
    queue: SessionQueue,
    start: Start,
    deaths: Deaths,
    story: Story,
    /// Number of messages in the queue when the process was dead.
    published: u64,
    /// Messages that the others put meanwhile.
    later: Vec<u64>,
    /// Messages that came out, with whether each was delivered before.
    out: Vec<(u64, bool)>,
}

impl Case<'_> {
    fn put(&mut self, number: u64) -> Result<(), Refusal> {
        put(&self.queue, number, Kind::Inline).expect("sound")
    }

    fn drain(&mut self) {
        self.out.extend(drain(&self.queue).expect("sound"));
    }

    /// Checks that no process waits for the dead one.
    fn go_on_without_it(&mut self) {
        self.published = self.queue.len();
        let rounds = match self.start {
            Start::Lapped => 70,
            Start::Full => 3,
            Start::Empty | Start::One => 0,
        };
        if self.start == Start::Lapped {
            self.drain();
        }
        for number in 200..200 + rounds {
            if self.put(number).is_err() {
                break;
            }
            self.later.push(number);
            if self.start == Start::Lapped {
                self.drain();
            }
        }
    }

    fn clean_up(&mut self, alone: bool) {
        let entered = self.session.stats().expect("sound").participants;
        let done = self.session.sweep().expect("sound");
        assert_eq!(done.dead, entered - 1, "{:?}", self.deaths);
        if alone {
            assert!(done.dead <= 1);
        }
        assert_eq!(self.session.stats().expect("sound").participants, 1);
        self.check_holders();
        let again = self.session.sweep().expect("sound");
        assert_eq!(
            again,
            Recovery::default(),
            "once is enough: {:?}",
            self.deaths
        );
        self.drain();
    }

    /// Checks that no extent is held by the dead process's index, which another process may get
    /// now.
    fn check_holders(&self) {
        let mine = self.session.me().index() as u64 + 1;
        for extent in self.session.control().extents() {
            let holder = extent.ownership.load(Ordering::Relaxed) & 0xffff;
            let (free, nobody) = (0, 1);
            assert!([free, nobody, mine].contains(&holder), "{:?}", self.deaths);
        }
    }

    fn times(&self, number: u64) -> usize {
        self.out.iter().filter(|(n, _)| *n == number).count()
    }

    /// Checks that each message came out as often as it should, and in order.
    fn check_messages(&self, lost_before: u64) {
        let Self {
            deaths, story, out, ..
        } = self;
        let context = || format!("{deaths:?} {:?} {story:?} {out:?}", self.start);
        let first = out.iter().filter(|(_, again)| !again).map(|(n, _)| *n);
        let (old, later): (Vec<_>, Vec<_>) = first.partition(|&number| number < 200);
        let old_first = old.iter().filter(|number| **number >= 100);
        assert!(
            old_first.is_sorted() && later == self.later,
            "{}",
            context()
        );
        let old = 100..100 + self.start.messages();
        for number in old.clone() {
            let times = self.times(number);
            assert!(
                self.allowed(number).contains(&times),
                "{number}: {}",
                context()
            );
            let flagged = out.contains(&(number, true));
            let handed_on = story.took.contains(&number);
            assert!(
                !handed_on || times == 0 || flagged,
                "{number}: {}",
                context()
            );
        }
        self.check_new_messages(&context);

        let copied = matches!(deaths.act, Act::Take(Keep::Copy, _, Kind::Inline));
        let missing = old.filter(|&number| {
            let gone = self.times(number) == 0 && !story.freed.contains(&number);
            gone && !(copied && story.took.contains(&number))
        });
        let lost = self.session.stats().expect("sound").lost_messages - lost_before;
        assert_eq!(missing.count() as u64, lost, "{}", context());
    }

    /// How often a message that was in the queue before may come out.
    fn allowed(&self, number: u64) -> std::ops::RangeInclusive<usize> {
        let Story {
            took,
            freed,
            changes,
        } = &self.story;
        let finished = changes.is_some();
        let took = took.contains(&number);
        match self.deaths.act {
            _ if freed.contains(&number) => 0..=0,
            // It had the message, though it may have died before it marked that.
            Act::Take(Keep::Copy, _, Kind::Inline) | Act::Acknowledge(_) if took => {
                0..=usize::from(!finished)
            }
            Act::Take(Keep::Copy | Keep::Loan, ..) if took => 0..=0,
            // It may have died between the loan and the moment when it could use the message.
            Act::Take(Keep::Copy, _, Kind::Block) | Act::Take(Keep::Loan, ..) => {
                usize::from(finished)..=1
            }
            _ => 1..=1,
        }
    }

    /// Checks the messages that the dead process was about to put, or had put.
    fn check_new_messages(&self, context: &dyn Fn() -> String) {
        let wanted = match self.deaths.act {
            Act::Put(_) | Act::PutAgain(_) | Act::Leave => 1,
            Act::PutMany(_) => 2,
            _ => 0,
        };
        let before = self.start.messages();
        let room = 3 - before;
        for number in 1..=2 {
            let times = self.times(number);
            if number > wanted.min(room) {
                assert_eq!(times, 0, "{number}: {}", context());
                continue;
            }
            let put = self.deaths.act == Act::Leave
                || self.story.changes.is_some()
                || self.published >= before + number;
            // If others went on from there, it is unclear whether the message was put.
            let unclear = self.start == Start::Lapped && !put;
            let expected = if unclear {
                0..=1
            } else {
                put.into()..=put.into()
            };
            assert!(expected.contains(&times), "{number}: {}", context());
        }
        assert!(self.times(2) <= self.times(1), "{}", context());
    }

    /// Checks that the queue is as good as new, or closed.
    fn check_queue(&mut self, key: &str) {
        if self.deaths.act == Act::MakeQueue {
            let made = self.session.queue(other(key).as_bytes(), BOUNDS);
            self.queue = made.expect("there, or room for it");
        }
        let first = self.put(300);
        if first == Err(Refusal::Closed) {
            assert_eq!(self.deaths.act, Act::Close);
            return;
        }
        assert!(self.deaths.act != Act::Close || self.story.changes.is_none());
        let puts = [first, self.put(301), self.put(302), self.put(303)];
        assert_eq!(puts, [Ok(()), Ok(()), Ok(()), Err(Refusal::Full)]);
        let out = drain(&self.queue).expect("sound");
        assert_eq!(out, [(300, false), (301, false), (302, false)]);
    }
}

/// Runs an act with a death at each change, or, if the act dies at a given change, the recovery
/// after it with a death at each of its changes; returns how many deaths there were.
pub(super) fn dies_everywhere(act: Act, act_at: Option<u64>, start: Start) -> u64 {
    let mut survivor = Survivor::new(MemoryPolicy::Error);
    (0..FOREVER)
        .find(|&last_at| {
            let deaths = Deaths {
                act,
                at: act_at.unwrap_or(last_at),
                sweeper_at: act_at.map(|_| last_at),
            };
            survivor.sees(start, deaths)
        })
        .expect("it finishes some time")
}
