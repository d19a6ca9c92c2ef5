//! `Session`: this process's part in a session, with all that the other modules share through it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::bells::{Bell, Signals};
use super::directory::Directory;
use super::folders::{self, CONTROL};
use super::forks::Origin;
use super::intent_record_pool::IntentRecordPool;
use super::leftovers::clear;
use super::lock::{Guard, Locks};
use super::members::{self, Member};
use super::open_counts::OpenCounts;
use super::queue_table;
use super::recover::{self, Recovery, RecoveryContext};
use super::registry::{self, Here};
use super::session_refs::SessionRefs;
use super::thread_lock::{PAUSE, ThreadLock};
use super::use_guard::UseGuard;
use super::{Control, Error, MemoryPolicy, Settings, Token};
use crate::crash_point::crash_point;
use crate::payload::{
    AllocatedBlock, Arena, DescriptorAllocator, ExtentFiles, MappingCache, Usage, reserved, usage,
};
use crate::ring::descriptor::Block;
use crate::ring::header::Ring;
use crate::ring::intent::IntentRecord;
use crate::ring::queue::Claim;
use crate::ring::wait::{Futex, SystemFutex, WAITING, wake};
use crate::ring::word::Owner;
use crate::segment::{Mapping, file};
use crate::sync::hint::{AtomicBool, AtomicUsize};
use crate::sync::{AtomicU64, Ordering};

/// Maximum wait for the structural lock, which is normally held for milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum wait of a put for the lock: a put has a deadline of its own, and looks for signals
/// before it tries again.
pub(super) const MOMENT: Duration = Duration::from_millis(50);

/// Held while this process attaches to or leaves a session: closing the lock file of one object
/// releases the locks that another object of the process holds on the same file.
static COMING_OR_GOING: ThreadLock = ThreadLock::new();

/// A session, in which this process is one participant.
#[derive(Debug)]
pub struct Session {
    control: Control,
    pub(super) locks: Locks,
    me: Member,
    token: Token,
    origin: Origin,
    descriptors: DescriptorAllocator,
    arena: Arena,
    mappings: MappingCache,
    directory: Mutex<Directory>,
    pub(super) open_counts: OpenCounts,
    pub(super) records: IntentRecordPool,
    bell: OnceLock<Bell>,
    /// Set once this process wants to leave; no operation begins after that.
    shut: AtomicBool,
    left: AtomicBool,
    /// Whether the files of the session stay if this process is the last to leave.
    pub(super) keeps: AtomicBool,
    /// Number of things that still need this participant: messages in use, or not put yet.
    uses: AtomicUsize,
    /// The objects of the program that stand for it.
    pub(super) refs: SessionRefs,
}

/// How a session is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages that wait, in all queues.
    pub messages: u64,
    /// Descriptors that are not free: messages that wait or are in use.
    pub descriptors_in_use: u64,
    /// Bytes of payloads outside of descriptors.
    pub bytes_in_use: u64,
    /// Bytes of memory reserved for payloads.
    pub bytes_reserved: u64,
    /// Maximum of `bytes_reserved`.
    pub max_bytes: u64,
    /// Processes that take part.
    pub participants: u64,
    /// Queues in use, and former queues that are not forgotten yet.
    pub queues: u64,
    /// Messages that consumers had on loan when they died.
    pub lost_messages: u64,
    /// Descriptors that were taken back from dead processes.
    pub recovered: u64,
    /// Messages that were delivered again.
    pub redelivered: u64,
    /// Messages that were dropped to make room.
    pub dropped_messages: u64,
}

impl Session {
    /// Makes a session and takes part in it.
    ///
    /// # Errors
    ///
    /// The system's error: no space, no permission.
    pub fn create(settings: &Settings) -> Result<Arc<Self>, Error> {
        // Leftovers of crashed jobs would take the space that this one needs.
        clear(&settings.folder);
        if settings.disk != settings.folder {
            clear(&settings.disk);
        }
        let token = Token::random(&settings.folder)?;
        let made = Self::make(&token, settings);
        if made.is_err() {
            // No other process knows of it yet. Anything that cannot be removed now is a leftover.
            let _ = folders::remove(token.folder());
        }
        made.map(registry::add)
    }

    fn make(token: &Token, settings: &Settings) -> Result<Self, Error> {
        let folder = token.folder();
        file::make_folder(folder)?;
        crash_point("folder");
        let locks = Locks::create(folder)?;
        crash_point("locks");
        // From here on the lock keeps `clear` of other processes away.
        let guard = locks.lock(deadline())?;
        if settings.payload_on_disk || settings.memory_policy == MemoryPolicy::Spill {
            folders::make_disk(folder, &settings.disk)?;
        }
        crash_point("disk");
        let control = Control::create(&folder.join(CONTROL), token.session(), settings)?;
        let me = members::join(&control, &locks, &guard)?;
        control.set_ready();
        drop(guard);
        Ok(Self::of(token.clone(), control, locks, me))
    }

    /// Takes part in an existing session. A process takes part once, however often it attaches.
    ///
    /// # Errors
    ///
    /// If the token is not valid, or the session is gone, of another user or version, or damaged.
    pub fn attach(token: &str) -> Result<Arc<Self>, Error> {
        let token: Token = token.parse()?;
        let deadline_of_others = deadline();
        // Declared first, so that it is dropped after the lock: dropping the last reference to an
        // object leaves the session, which takes the lock.
        let known;
        let coming = loop {
            let coming = COMING_OR_GOING
                .enter(deadline_of_others)
                .ok_or_else(|| Error::NotReady(token.folder().to_owned()))?;
            match registry::find(token.session()) {
                Here::Objects(objects) => {
                    known = objects;
                    break coming;
                }
                Here::Going if Instant::now() < deadline_of_others => (),
                Here::Going => return Err(Error::NotReady(token.folder().to_owned())),
            }
            drop(coming);
            std::thread::sleep(PAUSE);
        };
        if let Some(session) = known.iter().find(|session| session.come_back()) {
            return Ok(Arc::clone(session));
        }
        let session = registry::add(Self::enter(token)?);
        drop(coming);
        Ok(session)
    }

    /// Attaches once more in this process, as another participant with mappings of its own. Neither
    /// of the two can tell whether the other is dead, because a process does not see its own locks.
    #[cfg(test)]
    pub(super) fn again(&self) -> Result<Arc<Self>, Error> {
        Self::enter(self.token.clone()).map(Arc::new)
    }

    /// Becomes another participant of an existing session.
    fn enter(token: Token) -> Result<Self, Error> {
        let folder = token.folder();
        let control = Control::open(&folder.join(CONTROL), token.session(), deadline())?;
        let locks = Locks::open(folder)?;
        let guard = locks.lock(deadline())?;
        let me = members::join(&control, &locks, &guard)?;
        drop(guard);
        Ok(Self::of(token, control, locks, me))
    }

    fn of(token: Token, control: Control, locks: Locks, me: Member) -> Self {
        let files = ExtentFiles::new(token.folder());
        let descriptors = DescriptorAllocator::new(me.owner());
        Self {
            arena: Arena::new(&control, files.clone(), me.owner()),
            mappings: MappingCache::new(files),
            descriptors,
            control,
            locks,
            me,
            token,
            origin: Origin::here(),
            directory: Mutex::default(),
            open_counts: OpenCounts::default(),
            records: IntentRecordPool::default(),
            bell: OnceLock::new(),
            shut: AtomicBool::new(false),
            left: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
            uses: AtomicUsize::new(0),
            refs: SessionRefs::default(),
        }
    }

    /// The token: the text that another process attaches with.
    pub fn token(&self) -> &str {
        self.token.as_str()
    }

    /// The process in which this object was made.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// How the session is used at this moment.
    ///
    /// # Errors
    ///
    /// If the session is damaged.
    pub fn stats(&self) -> Result<Stats, Error> {
        self.check_open()?;
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let superblock = self.control.superblock();
        let counters = &superblock.counters.0;
        let rings = queue_table::rings(&self.control)?;
        let usage = usage(&self.control);
        Ok(Stats {
            // Damage may make a length, and so the sum, as large as possible.
            messages: rings.iter().map(Ring::len).fold(0, u64::saturating_add),
            descriptors_in_use: usage.descriptors,
            bytes_in_use: usage.bytes,
            bytes_reserved: reserved(&self.control),
            max_bytes: get(&superblock.constants.0.max_bytes),
            participants: members::count(&self.control),
            queues: rings.len() as u64,
            lost_messages: get(&counters.lost),
            recovered: get(&counters.recovered),
            redelivered: get(&counters.redelivered),
            dropped_messages: get(&counters.displaced),
        })
    }

    /// How the memory for payloads is used: for the texts of errors.
    pub fn usage(&self) -> Usage {
        usage(&self.control)
    }

    /// Gives up the memory that this process keeps for later messages.
    pub fn trim(&self) {
        if let Ok(_use) = UseGuard::of(self) {
            self.arena.trim(&self.control);
        }
    }

    /// Same as `trim` for all processes: only memory that holds a message stays.
    pub fn trim_all(&self) {
        if let Ok(_use) = UseGuard::of(self) {
            self.arena.trim_all(&self.control);
        }
    }

    /// Cleans up after dead processes, now.
    ///
    /// # Errors
    ///
    /// If the session is damaged, or its lock is not available in time.
    pub fn sweep(&self) -> Result<Recovery, Error> {
        let _use = UseGuard::of(self)?;
        let guard = self.locks.lock(deadline())?;
        recover::run(&self.recovery_context(), &guard)
    }

    /// Looks for dead processes unless one did so recently. A process that waits calls this now and
    /// then.
    pub fn tend(&self) {
        let Ok(_use) = UseGuard::of(self) else {
            return;
        };
        if recover::due(&self.control) {
            // A process that waits now may not put for a while.
            self.arena.cool(&self.control, Instant::now());
            // If another process holds the lock, it does the same work. Damage shows again when the
            // queue is used.
            if let Ok(Some(guard)) = self.locks.try_lock() {
                let _ = recover::run(&self.recovery_context(), &guard);
            }
        }
    }

    /// The doorbell of this process, made by the first call.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn bell(&self) -> Result<BorrowedFd<'_>, Error> {
        self.check_open()?;
        if let Some(bell) = self.bell.get() {
            return Ok(bell.fd());
        }
        let _use = UseGuard::of(self)?;
        let _guard = self.locks.lock(deadline())?;
        if self.bell.get().is_none() {
            let bell = Bell::put_up(self.token.folder(), self.me.owner())?;
            return Ok(self.bell.get_or_init(|| bell).fd());
        }
        self.bell()
    }

    /// Empties the doorbell: it is not readable until it is rung again.
    pub fn clear_bell(&self) {
        if let Some(bell) = self.bell.get() {
            bell.clear();
        }
    }

    /// Sleeps until memory or a descriptor may be free, for at most `limit` or 5 ms, whichever is
    /// shorter.
    ///
    /// A process that frees something looks at the word without a fence, because a fence for each
    /// message costs too much for so rare a case. So a wake-up can be missed, and no sleep is long.
    pub fn wait_for_memory(&self, limit: Duration) {
        let word = &self.control.superblock().memory.0.freed;
        let seen = word.fetch_or(WAITING, Ordering::SeqCst) | WAITING;
        SystemFutex.wait(word, seen, limit.min(Duration::from_millis(5)));
    }

    /// Leaves the session: new operations are refused, and this process leaves when the last use
    /// has ended.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        if self.uses.load(Ordering::SeqCst) == 0 {
            self.leave();
        }
        self.refs.end_leaving();
    }

    /// Whether this process is leaving.
    #[inline]
    pub fn is_shut(&self) -> bool {
        // ORDER: SeqCst: a process that began a use and does not see this store is seen by the one
        // that leaves.
        self.shut.load(Ordering::SeqCst)
    }

    /// # Errors
    ///
    /// If this process is leaving, or is not the one that attached.
    #[inline]
    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.is_shut() || !self.origin.is_here() {
            return Err(Error::Closed(self.token.folder().to_owned()));
        }
        Ok(())
    }

    /// Counts one more use: this process stays in the session until [`Self::end_use`].
    pub(super) fn begin_use(&self) {
        self.uses.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_use(&self) {
        if self.uses.fetch_sub(1, Ordering::SeqCst) == 1 && self.shut.load(Ordering::SeqCst) {
            self.leave();
        }
    }

    fn leave(&self) {
        if !self.origin.is_here() {
            return;
        }
        // If it is not available in time, closing the file releases the locks of another object of
        // this process, which is then found dead. That does no more harm than its death would.
        let _going = COMING_OR_GOING.enter(deadline());
        // A thread in the middle of an operation may still begin a use.
        self.records.settle();
        // Another thread may have attached again in the meantime, or may have left already.
        let goes = self.shut.load(Ordering::SeqCst) && self.uses.load(Ordering::SeqCst) == 0;
        if !goes || self.left.swap(true, Ordering::SeqCst) {
            return;
        }
        // If this fails the next sweep does it: this process will be found dead.
        let _ = members::leave(
            &self.recovery_context(),
            self.keeps.load(Ordering::SeqCst),
            deadline(),
        );
        self.locks.close();
    }

    /// Takes part again in a session that was shut, or stays in it; false if this process has left.
    fn come_back(&self) -> bool {
        let here = self.origin.is_here() && !self.left.load(Ordering::SeqCst);
        if here {
            self.shut.store(false, Ordering::SeqCst);
        }
        here
    }

    fn recovery_context(&self) -> RecoveryContext<'_> {
        RecoveryContext {
            control: &self.control,
            locks: &self.locks,
            me: self.me.owner(),
            records: &self.records,
        }
    }

    /// # Errors
    ///
    /// If this process is not the one that attached.
    pub(super) fn check_here(&self) -> Result<(), Error> {
        if self.origin.is_here() {
            return Ok(());
        }
        Err(Error::Closed(self.token.folder().to_owned()))
    }

    /// Takes the structural lock; to be called within a use.
    ///
    /// # Errors
    ///
    /// If it is not available within `limit`.
    pub(super) fn lock(&self, limit: Duration) -> Result<Guard<'_>, Error> {
        self.locks.lock(Instant::now() + limit)
    }

    /// This process's copy of the key directory. Its holder may wait for the structural lock.
    pub(super) fn directory(&self) -> MutexGuard<'_, Directory> {
        locked(&self.directory)
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// The random part of the session's name.
    pub(super) fn id(&self) -> [u64; 2] {
        self.token.session()
    }

    pub(super) fn me(&self) -> Owner {
        self.me.owner()
    }

    pub(super) fn signals(&self) -> Signals {
        Signals::new(self.token.folder())
    }

    /// Runs an operation, in the middle of which this process does not leave. The operation itself
    /// need not be counted as a use; only what it leaves in use must be.
    ///
    /// # Errors
    ///
    /// If this process is leaving, or is not the one that attached; and the errors of `work`.
    #[inline]
    pub(super) fn operate<R>(
        &self,
        work: impl FnOnce(&mut IntentRecord<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        // A thread that leaves sets `shut` first, then waits until each intent record was
        // free: see `leave`.
        self.with_record(|record| {
            self.check_open()?;
            work(record)
        })
    }

    /// Runs `work` with an intent record. The caller makes sure that this process stays inside.
    #[inline]
    pub(super) fn with_record<R>(&self, work: impl FnOnce(&mut IntentRecord<'_>) -> R) -> R {
        let participant = &self.control.participants()[self.me.owner().index()];
        self.records.with(participant, work)
    }

    /// Claims a free descriptor among those that this process already has.
    #[inline]
    pub(super) fn claim_own(&self) -> Option<Claim> {
        self.descriptors.claim(&self.control)
    }

    /// Claims a free descriptor; None if there is none now. To be called within a use.
    #[inline]
    pub(super) fn claim(&self) -> Result<Option<Claim>, Error> {
        if let Some(claim) = self.claim_own() {
            return Ok(Some(claim));
        }
        self.claim_more()
    }

    #[cold]
    fn claim_more(&self) -> Result<Option<Claim>, Error> {
        let _guard = match self.locks.lock(Instant::now() + MOMENT) {
            // The holder may be stopped: the put waits as it does for memory.
            Err(Error::Locked { .. }) => return Ok(None),
            guard => guard?,
        };
        // Another thread may have added some in the meantime.
        if let Some(claim) = self.descriptors.claim(&self.control) {
            return Ok(Some(claim));
        }
        self.descriptors.grow(&self.control)?;
        Ok(self.descriptors.claim(&self.control))
    }

    pub(super) fn give_back(&self, claim: Claim) {
        self.control.table().unclaim(claim);
        self.freed();
    }

    /// Allocates a block of memory; None if there is none now.
    pub(super) fn allocate(&self, length: u64) -> Result<Option<AllocatedBlock>, Error> {
        self.arena.allocate(&self.control, length)
    }

    /// Binds a block to a descriptor: from now on the block is freed with it.
    pub(super) fn bind(&self, claim: &Claim, allocated: &AllocatedBlock) {
        self.arena.bind(&self.control, claim, allocated);
    }

    pub(super) fn mapping(&self, extent: u32) -> Result<Arc<Mapping>, Error> {
        self.mappings.mapping(&self.control, extent)
    }

    /// Copies a part of an extent, without holding the message in it.
    pub(super) fn read(&self, block: &Block) -> Result<Vec<u8>, Error> {
        self.mappings.read(&self.control, block)
    }

    /// Wakes the processes that wait for memory, if any.
    #[inline]
    pub(super) fn freed(&self) {
        let word = &self.control.superblock().memory.0.freed;
        // ORDER: Relaxed: see `wait_for_memory`.
        if word.load(Ordering::Relaxed) & WAITING != 0 {
            wake(word, u32::MAX, &SystemFutex);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // No caller can use it any more, even if some use was never ended.
        *self.uses.get_mut() = 0;
        self.shut();
        if self.origin.is_here() {
            registry::remove(self.id());
        }
    }
}

fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Anything that a panic left half done in there is private to this process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
