//! What lies where in the control segment of a session.
//!
//! | at | what | how many | each |
//! |---|---|---|---|
//! | `SUPERBLOCK` | [`Superblock`] | 1 | 4 KiB |
//! | `PROCESSES` | [`Process`]: who takes part | 256 | 128 B |
//! | `LANES` | [`Participant`]: what they are about to do | 256 | 128 B |
//! | `CHUNKS` | [`Chunk`]: whose descriptors these are | 4,096 | 8 B |
//! | `EXTENTS` | [`Extent`]: the memory of payloads | 4,096 | 64 B |
//! | `QUEUES` | [`QueueEntry`]: the key directory | 8,192 | 64 B |
//! | `DESCRIPTORS` | [`Descriptor`]: one message | 1,048,576 | 256 B |
//! | `RINGS` | a ring after the other: [`Header`], [users](super::users), key, slots | 64 GiB | |
//!
//! Everything is in the byte order of the machine, and made of atomics. The file has this length
//! from the beginning and is mapped once, but only what is in use has memory: the tables before
//! `DESCRIPTORS` at once, descriptors by the chunk, and of each ring its beginning, and more of its
//! slots when somebody first gets there. So nothing ever moves.
//!
//! # Shared words
//!
//! Those of descriptors, lanes and rings are in [the table of the queue](super::super). These are the
//! others. What is written "under the lock" is written by whoever holds the structural lock (a lock
//! of the kernel, which is a full fence), and read by others as the table says.
//!
//! | word | written | order | read | makes visible |
//! |---|---|---|---|---|
//! | constants | before the session is ready | Relaxed | after `state`: Relaxed | |
//! | `state` | ready, gone: under the lock | Release | attach: Acquire | the constants |
//! | `used.chunks` | a chunk has memory: under the lock | Release | Acquire | that it may be touched |
//! | `used.queues` | a queue was made: under the lock | Release | Acquire | its entry, ring and key |
//! | `used.rings_end`, entries of queues | under the lock, before `used.queues` | Relaxed | after it: Relaxed | |
//! | queue: `key_length`, `before`, its key; `changed`, `used.changes` | under the lock | see `directory` | under the lock | |
//! | users of a queue | opened, or its process was found dead: under the lock | Relaxed, Release | under the lock: Acquire | |
//! | | let go of | Release | under the lock: Acquire | that the process is done with the ring |
//! | `used.next_serial` | a new extent | Relaxed | | |
//! | `used.sealed` | before all queues are closed: under the lock | Relaxed | a new queue: under the lock; else Relaxed | |
//! | process: `taken` | joined: under the lock | Release | Acquire | who it is, and idle lanes |
//! | | swept: under the lock | Release | under the lock | that no word carries its name |
//! | process: the rest | before `taken`, under the lock | Relaxed | after it: Relaxed | |
//! | chunk: `owner` | under the lock | Release to nobody, Relaxed to oneself | under the lock | |
//! | extent: `tenure` | claim, begin, end, seize, orphan | AcqRel | Acquire | the descriptors that name blocks of it |
//! | | vacate | Release | claim: Acquire | the end of it |
//! | extent: `length` | made, removed | SeqCst | the sum of all: SeqCst | of two who take the last of the quota one sees the other |
//! | extent: `serial`, `place` | before its length | Relaxed | for a message in it: Relaxed | |
//! | counters | under the lock | Relaxed | Relaxed | |
//! | `counters.given_back` | who gives a message back that finds no room, after its word | Release | recovery: Acquire | the word |
//! | `counters.displaced` | who displaces | Relaxed | Relaxed | |
//! | `memory.freed` | who waits: bit set | SeqCst | who frees: Relaxed, no fence | nothing: who waits looks again after 5 ms at most |
//! | bytes of a block | between claim and E4 | plain | after D4, until the release: plain | by the descriptor's word |

use std::mem::offset_of;

use super::super::descriptor::{Descriptor, Participant};
use super::super::ring::{Header, Padded};
use super::super::slot::Slot;
use super::super::sync::{AtomicU32, AtomicU64};
use super::super::word::Owner;

/// `shoalshm` in the byte order of the machine: the other order is another number.
pub(crate) const MAGIC: u64 = u64::from_ne_bytes(*b"shoalshm");
/// Grows with each change of the layout or of the protocol.
pub(crate) const VERSION: u64 = 3;

/// How many processes can take part at a time; the index 0 is nobody's.
pub(crate) const PARTICIPANTS: usize = 256;
/// Who has a queue open: a bit for each participant.
pub(crate) const USERS_WORDS: usize = PARTICIPANTS.div_ceil(64);
/// Descriptors in a chunk.
pub(crate) const CHUNK: usize = 256;
/// Fewer where tests take them all.
pub(crate) const CHUNKS_LIMIT: usize = if cfg!(test) { 1024 } else { 4096 };
pub(crate) const EXTENTS_LIMIT: usize = 4096;
pub(crate) const QUEUES_LIMIT: usize = 8192;
/// So many of the last changes of the key directory are known one by one.
pub(crate) const CHANGED: usize = 256;
pub(crate) const DESCRIPTORS_LIMIT: usize = CHUNK * CHUNKS_LIMIT;
const RINGS_LENGTH: u64 = 64 << 30;

const PAGE: u64 = 4096;

const fn pages(length: usize) -> u64 {
    (length as u64).next_multiple_of(PAGE)
}

pub(crate) const SUPERBLOCK: u64 = 0;
pub(crate) const PROCESSES: u64 = SUPERBLOCK + pages(size_of::<Superblock>());
pub(crate) const LANES: u64 = PROCESSES + pages(PARTICIPANTS * size_of::<Process>());
pub(crate) const CHUNKS: u64 = LANES + pages(PARTICIPANTS * size_of::<Participant>());
pub(crate) const EXTENTS: u64 = CHUNKS + pages(CHUNKS_LIMIT * size_of::<Chunk>());
pub(crate) const QUEUES: u64 = EXTENTS + pages(EXTENTS_LIMIT * size_of::<Extent>());
pub(crate) const DESCRIPTORS: u64 = QUEUES + pages(QUEUES_LIMIT * size_of::<QueueEntry>());
pub(crate) const RINGS: u64 = DESCRIPTORS + pages(DESCRIPTORS_LIMIT * size_of::<Descriptor>());
pub(crate) const TOTAL: u64 = RINGS + RINGS_LENGTH;

/// Of what a reader's idea of the layout is made; another number is another layout.
pub(crate) const LAYOUT_HASH: u64 = hash_of(&[
    VERSION,
    PROCESSES,
    LANES,
    CHUNKS,
    EXTENTS,
    QUEUES,
    DESCRIPTORS,
    RINGS,
    TOTAL,
    size_of::<Header>() as u64,
    size_of::<Descriptor>() as u64,
    Descriptor::INLINE as u64,
    offset_of!(Superblock, state) as u64,
    offset_of!(Superblock, counters) as u64,
    offset_of!(Superblock, memory) as u64,
    offset_of!(Superblock, changed) as u64,
    USERS_WORDS as u64,
]);

/// FNV-1a over the bytes of the numbers.
pub(crate) const fn hash_of(numbers: &[u64]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < numbers.len() {
        let bytes = numbers[at].to_le_bytes();
        let mut byte = 0;
        while byte < bytes.len() {
            hash = (hash ^ bytes[byte] as u64).wrapping_mul(0x0100_0000_01b3);
            byte += 1;
        }
        at += 1;
    }
    hash
}

/// What is written once, before the session is ready, and checked by everybody who attaches.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Constants {
    pub(crate) magic: AtomicU64,
    pub(crate) layout_hash: AtomicU64,
    pub(crate) version: AtomicU64,
    pub(crate) page_size: AtomicU64,
    pub(crate) total_length: AtomicU64,
    /// The random part of the session's name.
    pub(crate) session: [AtomicU64; 2],
    /// How many bytes of payload extents there may be.
    pub(crate) max_bytes: AtomicU64,
    /// The bound of a queue that has none.
    pub(crate) backlog: AtomicU64,
    /// What to do where memory is full: 0 wait, 1 an error, 2 spill to disk.
    pub(crate) memory_policy: AtomicU64,
    /// Whether all payloads are in the folder on disk: 0 no, 1 yes.
    pub(crate) payload_on_disk: AtomicU64,
    /// Over everything before it.
    pub(crate) checksum: AtomicU64,
}

/// What everybody counts.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Counters {
    /// Messages on loan to somebody who died.
    pub(crate) lost: AtomicU64,
    /// Descriptors taken back from the dead, whatever became of them.
    pub(crate) recovered: AtomicU64,
    /// Messages that were delivered again.
    pub(crate) redelivered: AtomicU64,
    pub(crate) sweeps: AtomicU64,
    /// Messages to be delivered again that found no room: the next recovery tries it.
    pub(crate) postponed: AtomicU64,
    /// When somebody last looked for the dead: milliseconds of the monotonic clock.
    pub(crate) last_probe: AtomicU64,
    /// Messages that were dropped to make room.
    pub(crate) displaced: AtomicU64,
    /// Messages that were given back and found no room,
    pub(crate) given_back: AtomicU64,
    /// and how many there were when the last recovery began that is over.
    pub(crate) given_back_seen: AtomicU64,
}

/// How far the tables are in use. Changed by whoever holds the structural lock; read by everybody.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Used {
    /// Chunks that have memory.
    pub(crate) chunks: AtomicU64,
    /// Queues that are there.
    pub(crate) queues: AtomicU64,
    /// Where the next ring goes.
    pub(crate) rings_end: AtomicU64,
    /// The number of the next extent; none comes again.
    pub(crate) next_serial: AtomicU64,
    /// Whether all queues are closed, those too that will be made: 0 no, 1 yes.
    pub(crate) sealed: AtomicU64,
    /// How many entries of the key directory got another key.
    pub(crate) changes: AtomicU64,
}

/// The memory of payloads.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Memory {
    /// Woken when a descriptor or memory may have become free; see `wait`.
    pub(crate) freed: AtomicU32,
    reserved: AtomicU32,
}

/// The first page.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(crate) struct Superblock {
    pub(crate) constants: Padded<Constants>,
    pub(crate) state: Padded<AtomicU32>,
    pub(crate) counters: Padded<Counters>,
    pub(crate) used: Padded<Used>,
    pub(crate) memory: Padded<Memory>,
    /// Which entries got another key: change `n` is at `n` modulo their number.
    pub(crate) changed: Padded<[AtomicU32; CHANGED]>,
}

/// States of a session.
pub(crate) mod state {
    /// Being made; also what zeroed memory says.
    pub(crate) const NEW: u32 = 0;
    pub(crate) const READY: u32 = 1;
    /// The last participant has left, or it was cleared away.
    pub(crate) const GONE: u32 = 2;
}

/// A process that takes part. Changed by whoever holds the structural lock.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Process {
    /// 0 free, 1 taken. Whether its process lives, its lease says.
    pub(crate) taken: AtomicU32,
    /// How often the index was given out.
    pub(crate) generation: AtomicU32,
    pub(crate) pid: AtomicU64,
    /// Of its process, in ticks since the machine started (field 22 of /proc/pid/stat); 0: unknown.
    pub(crate) start_time: AtomicU64,
    /// The inode of its namespace of process ids: where it is not ours, its pid says nothing.
    pub(crate) pid_namespace: AtomicU64,
}

/// Whose descriptors a chunk's are: the index of a participant, 0 for nobody's.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) owner: AtomicU64,
}

/// A file of payloads; see `payload::tenure` for who may do what with it.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Extent {
    /// Who allocates from it, and whether somebody is about to use it; 0 where the entry is free.
    pub(crate) tenure: AtomicU64,
    /// Names its file, and tells it from those that had the entry before.
    pub(crate) serial: AtomicU64,
    /// As long as this is not 0, it counts as reserved memory.
    pub(crate) length: AtomicU64,
    /// 0 in the folder of the session, 1 in its folder on disk, 2 spilled there: not counted.
    pub(crate) place: AtomicU64,
}

/// A queue: its bounds, and where its ring is. That does not change; the key does, where nobody uses
/// the queue any more and it becomes that of another key.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct QueueEntry {
    /// Where its header is; its users follow, its key, then its slots.
    pub(crate) offset: AtomicU64,
    pub(crate) slots: AtomicU64,
    pub(crate) maxsize: AtomicU64,
    pub(crate) max_bytes: AtomicU64,
    /// [`NO_KEY`] where somebody died while it changed.
    pub(crate) key_length: AtomicU64,
    /// As the one who made it gave it: 0 is unbounded.
    pub(crate) asked_maxsize: AtomicU64,
    /// How long its key can be.
    pub(crate) key_room: AtomicU64,
    /// How many messages went through the ring under its former keys.
    pub(crate) before: AtomicU64,
}

/// Stands for the length of a key where there is none.
pub(crate) const NO_KEY: u64 = u64::MAX;

const _: () = {
    assert!(size_of::<Superblock>() == 4096);
    assert!(size_of::<Process>() == 128);
    assert!(size_of::<Chunk>() == 8);
    assert!(size_of::<Extent>() == 64);
    assert!(size_of::<QueueEntry>() == 64);
    assert!(DESCRIPTORS_LIMIT <= Slot::DESCRIPTOR_LIMIT as usize);
    assert!(PARTICIPANTS <= Owner::LIMIT as usize);
    assert!(DESCRIPTORS.is_multiple_of(256));
};
