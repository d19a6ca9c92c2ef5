//! The session of this process: what the parts of a session do together.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::super::descriptor::Block;
use super::super::lane::Lane;
use super::super::memory::{Mapping, file};
use super::super::payload::{Arena, ExtentFiles, Extents, Home, Placed, Usage, reserved, usage};
use super::super::queue::Claim;
use super::super::ring::Ring;
use super::super::sync::hint::{AtomicBool, AtomicUsize};
use super::super::sync::{AtomicU64, Ordering};
use super::super::wait::{Futex, SystemFutex, WAITING, wake};
use super::super::word::Owner;
use super::bells::{Bell, Signals};
use super::crash::crash_point;
use super::directory::Directory;
use super::folders::{self, CONTROL};
use super::forks::Origin;
use super::lanes::Lanes;
use super::leftovers::clear;
use super::lock::{Guard, Locks};
use super::members::{self, Member};
use super::openings::Openings;
use super::queues;
use super::recover::{self, Around, Recovery};
use super::registry::{self, Here};
use super::solo::{PAUSE, Solo};
use super::uses::Use;
use super::{Control, Error, MemoryPolicy, Settings, Token};

/// How long anything waits for the structural lock, which is held for milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long a put does: it has a deadline of its own, and looks for signals before it tries again.
pub(super) const MOMENT: Duration = Duration::from_millis(50);

/// Held while a session is attached to or left: who closes the lock file of one gives back what
/// another object of the process got by it.
static COMING_OR_GOING: Solo = Solo::new();

/// A session, as the one participant that this process is in it.
#[derive(Debug)]
pub struct Session {
    control: Control,
    locks: Locks,
    me: Member,
    token: Token,
    origin: Origin,
    home: Home,
    arena: Arena,
    extents: Extents,
    directory: Mutex<Directory>,
    pub(super) openings: Openings,
    pub(super) lanes: Lanes,
    bell: OnceLock<Bell>,
    /// Set once this process wants to leave; nothing new begins then.
    shut: AtomicBool,
    /// Whether it has left.
    left: AtomicBool,
    /// Whether the session stays where it is when this process leaves last.
    pub(super) keeps: AtomicBool,
    /// What still needs this participant: messages in use, or not put yet.
    uses: AtomicUsize,
}

/// How a session is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages that wait, in all queues.
    pub messages: u64,
    /// Descriptors that are not free: messages that wait, and those in use.
    pub descriptors_in_use: u64,
    /// Bytes of their payloads, outside of descriptors.
    pub bytes_in_use: u64,
    /// Bytes of memory for payloads.
    pub bytes_reserved: u64,
    /// The most that these may be.
    pub max_bytes: u64,
    /// Processes that take part.
    pub participants: u64,
    /// Queues: those in use, and those that were and are not forgotten.
    pub queues: u64,
    /// Messages that consumers had on loan when they died.
    pub lost_messages: u64,
    /// Descriptors that were taken back from the dead.
    pub recovered: u64,
    /// Messages that are delivered again.
    pub redelivered: u64,
    /// Messages that were dropped to make room.
    pub dropped_messages: u64,
}

impl Session {
    /// Makes a session, and takes part in it.
    ///
    /// # Errors
    ///
    /// What the system says: no space, no permission.
    pub fn create(settings: &Settings) -> Result<Arc<Self>, Error> {
        // What crashed jobs left would take the place of this one.
        clear(&settings.folder);
        if settings.disk != settings.folder {
            clear(&settings.disk);
        }
        let token = Token::random(&settings.folder)?;
        let made = Self::make(&token, settings);
        if made.is_err() {
            // Nobody knows of it yet. What cannot be removed now is a leftover.
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
        // From now on it is nobody's leftover.
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

    /// Takes part in a session that is there. A process takes part once, however often it attaches.
    ///
    /// # Errors
    ///
    /// Where the token is none; the session is gone, of another user or version, or damaged.
    pub fn attach(token: &str) -> Result<Arc<Self>, Error> {
        let token: Token = token.parse()?;
        let deadline_of_others = deadline();
        // To be let go of after the lock: the last of one leaves it, and that takes the lock.
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
        let folder = token.folder();
        let control = Control::open(&folder.join(CONTROL), token.session(), deadline())?;
        let locks = Locks::open(folder)?;
        let guard = locks.lock(deadline())?;
        let me = members::join(&control, &locks, &guard)?;
        drop(guard);
        let session = registry::add(Self::of(token, control, locks, me));
        drop(coming);
        Ok(session)
    }

    /// The same session once more in this process, as another participant with mappings of its own.
    /// Who is dead cannot be told between the two, because a process does not see its own locks.
    #[cfg(test)]
    pub(super) fn again(&self) -> Result<Arc<Self>, Error> {
        let token = self.token.clone();
        let control = Control::open(&token.folder().join(CONTROL), token.session(), deadline())?;
        let locks = Locks::open(token.folder())?;
        let guard = locks.lock(deadline())?;
        let me = members::join(&control, &locks, &guard)?;
        drop(guard);
        Ok(Arc::new(Self::of(token, control, locks, me)))
    }

    fn of(token: Token, control: Control, locks: Locks, me: Member) -> Self {
        let files = ExtentFiles::new(token.folder());
        let home = Home::new(me.owner());
        Self {
            arena: Arena::new(&control, files.clone(), me.owner()),
            extents: Extents::new(files),
            home,
            control,
            locks,
            me,
            token,
            origin: Origin::here(),
            directory: Mutex::default(),
            openings: Openings::default(),
            lanes: Lanes::default(),
            bell: OnceLock::new(),
            shut: AtomicBool::new(false),
            left: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
            uses: AtomicUsize::new(0),
        }
    }

    /// What another process attaches with.
    pub fn token(&self) -> &str {
        self.token.as_str()
    }

    /// The most bytes of memory for payloads that there may be.
    pub fn max_bytes(&self) -> u64 {
        let constants = &self.control.superblock().constants.0;
        constants.max_bytes.load(Ordering::Relaxed)
    }

    /// How many there are.
    pub fn reserved(&self) -> u64 {
        reserved(&self.control)
    }

    /// In which process this was made.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// How it is used, at this moment.
    ///
    /// # Errors
    ///
    /// Where the session is damaged.
    pub fn stats(&self) -> Result<Stats, Error> {
        self.check_open()?;
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let superblock = self.control.superblock();
        let counters = &superblock.counters.0;
        let rings = queues::rings(&self.control)?;
        let usage = usage(&self.control);
        Ok(Stats {
            // Damage may make the sum as large as can be.
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

    /// What uses the memory for payloads: for the texts of errors.
    pub fn usage(&self) -> Usage {
        usage(&self.control)
    }

    /// The key of a queue, by its number in [`Usage`].
    ///
    /// # Errors
    ///
    /// Where there is no such queue, or the session is damaged.
    pub fn key_of(&self, queue: u32) -> Result<Vec<u8>, Error> {
        queues::key(&self.control, queue)
    }

    /// Gives up the memory that this process keeps for messages to come.
    pub fn trim(&self) {
        if let Ok(_use) = Use::of(self) {
            self.arena.trim(&self.control);
        }
    }

    /// The same for all processes: only memory that a message is in stays.
    pub fn trim_all(&self) {
        if let Ok(_use) = Use::of(self) {
            self.arena.trim_all(&self.control);
        }
    }

    /// Cleans up after the dead, now.
    ///
    /// # Errors
    ///
    /// Where the session is damaged, or its lock is not to be had.
    pub fn sweep(&self) -> Result<Recovery, Error> {
        let _use = Use::of(self)?;
        let guard = self.locks.lock(deadline())?;
        recover::run(&self.around(), &guard)
    }

    /// Looks for the dead, if nobody did lately: to be called now and then by whoever waits.
    pub fn tend(&self) {
        let Ok(_use) = Use::of(self) else {
            return;
        };
        if recover::due(&self.control) {
            // Who waits now may not put for long.
            self.arena.cool(&self.control, Instant::now());
            // Somebody else at it is as good; and damage shows where the queue is used.
            if let Ok(Some(guard)) = self.locks.try_lock() {
                let _ = recover::run(&self.around(), &guard);
            }
        }
    }

    /// The doorbell of this process, put up by the first call.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn bell(&self) -> Result<BorrowedFd<'_>, Error> {
        self.check_open()?;
        if let Some(bell) = self.bell.get() {
            return Ok(bell.fd());
        }
        let _use = Use::of(self)?;
        let _guard = self.locks.lock(deadline())?;
        if self.bell.get().is_none() {
            let bell = Bell::put_up(self.token.folder(), self.me.owner())?;
            return Ok(self.bell.get_or_init(|| bell).fd());
        }
        self.bell()
    }

    /// Makes the doorbell unreadable until somebody rings.
    pub fn clear_bell(&self) {
        if let Some(bell) = self.bell.get() {
            bell.clear();
        }
    }

    /// Sleeps until memory or a descriptor may be free: no longer than `limit`, or 5 ms.
    ///
    /// Who frees something looks at the word without a fence, because a fence for each message is
    /// too dear for what happens so rarely. So a wake-up can be missed, and nobody sleeps for long.
    pub fn wait_for_memory(&self, limit: Duration) {
        let word = &self.control.superblock().memory.0.freed;
        let seen = word.fetch_or(WAITING, Ordering::SeqCst) | WAITING;
        SystemFutex.wait(word, seen, limit.min(Duration::from_millis(5)));
    }

    /// Leaves the session: nothing new begins, and once nothing is in use any more it is left.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        if self.uses.load(Ordering::SeqCst) == 0 {
            self.leave();
        }
    }

    /// Whether this process is leaving.
    #[inline]
    pub fn is_shut(&self) -> bool {
        // ORDER: SeqCst: who began a use and does not see it is seen by who leaves.
        self.shut.load(Ordering::SeqCst)
    }

    /// # Errors
    ///
    /// Where this process is leaving, or is not the one that attached.
    #[inline]
    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.is_shut() || !self.origin.is_here() {
            return Err(Error::Closed(self.token.folder().to_owned()));
        }
        Ok(())
    }

    /// Something begins that needs this participant until [`Self::end_use`].
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
        // Where it is not to be had in time this process loses what another object of it holds, and
        // is found dead: nobody is worse off than by its death.
        let _going = COMING_OR_GOING.enter(deadline());
        // Who is in the middle of an operation may take something into use.
        self.lanes.settle();
        // Somebody may have come back meanwhile, or have left for us.
        let goes = self.shut.load(Ordering::SeqCst) && self.uses.load(Ordering::SeqCst) == 0;
        if !goes || self.left.swap(true, Ordering::SeqCst) {
            return;
        }
        // Where it does not work the next sweep does it: this process will be found dead.
        let _ = members::leave(
            &self.around(),
            self.keeps.load(Ordering::SeqCst),
            deadline(),
        );
        self.locks.close();
    }

    /// Comes back to a session that was shut, or takes part anyway; false where it was left.
    fn come_back(&self) -> bool {
        let here = self.origin.is_here() && !self.left.load(Ordering::SeqCst);
        if here {
            self.shut.store(false, Ordering::SeqCst);
        }
        here
    }

    /// What recovery works on.
    fn around(&self) -> Around<'_> {
        Around {
            control: &self.control,
            locks: &self.locks,
            me: self.me.owner(),
            lanes: &self.lanes,
        }
    }

    /// # Errors
    ///
    /// Where this process is not the one that attached.
    pub(super) fn check_here(&self) -> Result<(), Error> {
        if self.origin.is_here() {
            return Ok(());
        }
        Err(Error::Closed(self.token.folder().to_owned()))
    }

    /// The structural lock; to be called within a use.
    ///
    /// # Errors
    ///
    /// Where it is not to be had within a limit.
    pub(super) fn lock(&self, limit: Duration) -> Result<Guard<'_>, Error> {
        self.locks.lock(Instant::now() + limit)
    }

    /// What this process knows of the keys. Who has it may wait for the structural lock.
    pub(super) fn directory(&self) -> MutexGuard<'_, Directory> {
        locked(&self.directory)
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// The random part of its name.
    pub(super) fn id(&self) -> [u64; 2] {
        self.token.session()
    }

    pub(super) fn me(&self) -> Owner {
        self.me.owner()
    }

    pub(super) fn signals(&self) -> Signals {
        Signals::new(self.token.folder())
    }

    /// An operation, in the middle of which this process does not leave: nobody needs to count it
    /// as a use, but what it takes into use.
    ///
    /// # Errors
    ///
    /// Where this process is leaving, or is not the one that attached; and those of `work`.
    #[inline]
    pub(super) fn operate<R>(
        &self,
        work: impl FnOnce(&mut Lane<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        // Who leaves says so, and then waits until each lane was free: see `leave`.
        self.with_lane(|lane| {
            self.check_open()?;
            work(lane)
        })
    }

    /// The lane of the operation that `work` does; the caller has this process in the session.
    #[inline]
    pub(super) fn with_lane<R>(&self, work: impl FnOnce(&mut Lane<'_>) -> R) -> R {
        let participant = &self.control.lanes()[self.me.owner().index()];
        self.lanes.with(participant, work)
    }

    /// A free descriptor of those that this process has already.
    #[inline]
    pub(super) fn claim_own(&self) -> Option<Claim> {
        self.home.claim(&self.control)
    }

    /// A free descriptor; None where there is none now. To be called within a use.
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
            // Its holder may be stopped: who puts waits as for memory.
            Err(Error::Locked { .. }) => return Ok(None),
            guard => guard?,
        };
        // Another thread may have been here meanwhile.
        if let Some(claim) = self.home.claim(&self.control) {
            return Ok(Some(claim));
        }
        self.home.grow(&self.control)?;
        Ok(self.home.claim(&self.control))
    }

    pub(super) fn give_back(&self, claim: Claim) {
        self.control.table().unclaim(claim);
        self.freed();
    }

    /// A block of memory; None where there is none now.
    pub(super) fn allocate(&self, length: u64) -> Result<Option<Placed>, Error> {
        self.arena.allocate(&self.control, length)
    }

    /// From now on the block comes back with the descriptor.
    pub(super) fn bind(&self, claim: &Claim, placed: &Placed) {
        self.arena.bind(&self.control, claim, placed);
    }

    pub(super) fn mapping(&self, extent: u32) -> Result<Arc<Mapping>, Error> {
        self.extents.mapping(&self.control, extent)
    }

    /// Copies a part of an extent that nobody holds.
    pub(super) fn read(&self, block: &Block) -> Result<Vec<u8>, Error> {
        self.extents.read(&self.control, block)
    }

    /// Tells those who wait for memory, if any.
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
        // Nobody can use it any more, whatever was forgotten to be given back.
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
    // What a panic left half done in there is private to this process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
