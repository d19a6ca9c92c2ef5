//! Layout of the control segment: its tables, their offsets, and the orderings of their words.
//!
//! | offset | contents | entries | size of each |
//! |---|---|---|---|
//! | `SUPERBLOCK` | [`Superblock`] | 1 | 4 KiB |
//! | `PROCESSES` | [`Process`]: a participant of the session | 256 | 128 B |
//! | `INTENT_RECORDS` | [`Participant`]: the operations that it has announced | 256 | 128 B |
//! | `CHUNKS` | [`Chunk`]: the owner of 256 descriptors | 4,096 | 8 B |
//! | `EXTENTS` | [`Extent`]: a file of payload memory | 4,096 | 64 B |
//! | `QUEUES` | [`QueueEntry`]: an entry of the key directory | 8,192 | 64 B |
//! | `DESCRIPTORS` | [`Descriptor`]: a message | 1,048,576 | 256 B |
//! | `RINGS` | rings one after the other: [`Header`], users, key, slots | 64 GiB in all | |
//!
//! All values are atomics in the byte order of the machine. The file has its full length from the
//! beginning and is mapped once, so nothing ever moves, but only parts in use have memory: the
//! tables before `DESCRIPTORS` get theirs at once, descriptors get it a chunk at a time, and a ring
//! gets it for its beginning and for more slots when a process first reaches them.
//!
//! # Shared words
//!
//! The words of descriptors, intent records and rings are in [the table of the queue](crate::ring);
//! these are the others. "Under the lock" means: written only by a process that holds the
//! structural lock (a lock of the kernel, which is a full fence), and read by others as the table
//! says.
//!
//! | word | written | order | read | makes visible |
//! |---|---|---|---|---|
//! | constants | before the session is ready | Relaxed | after `state`: Relaxed | |
//! | `state` | ready, gone: under the lock | Release | attach: Acquire | the constants |
//! | `used.chunks` | a chunk got memory: under the lock | Release | Acquire | that it may be touched |
//! | `used.queues` | a queue was made: under the lock | Release | Acquire | its entry, ring and key |
//! | `used.rings_end`, entries of queues | under the lock, before `used.queues` | Relaxed | after it: Relaxed | |
//! | queue: `key_length`, `before`, its key; `changed`, `used.changes` | under the lock | see `directory` | under the lock | |
//! | users of a queue | opened, or its process was found dead: under the lock | Relaxed, Release | under the lock: Acquire | |
//! | | released | Release | under the lock: Acquire | that the process is done with the ring |
//! | `used.next_serial` | a new extent | Relaxed | | |
//! | `used.sealed` | before all queues are closed: under the lock | Relaxed | a new queue: under the lock; else Relaxed | |
//! | process: `taken` | joined: under the lock | Release | Acquire | its other fields, and idle intent records |
//! | | swept: under the lock | Release | under the lock | that no word carries its index |
//! | process: the rest | before `taken`, under the lock | Relaxed | after it: Relaxed | |
//! | chunk: `owner` | under the lock | Release if set to none, Relaxed if set to the writer itself | under the lock | |
//! | extent: `ownership` | claim, begin, end, seize, orphan | AcqRel | Acquire | the descriptors that name blocks of it |
//! | | vacate | Release | claim: Acquire | the end of the ownership |
//! | extent: `length` | made, removed | SeqCst | the sum of all: SeqCst | of two that take the last of the quota, at least one sees the other |
//! | extent: `serial`, `place` | before its length | Relaxed | for a message in it: Relaxed | |
//! | counters | under the lock | Relaxed | Relaxed | |
//! | `counters.given_back` | by a process that gives back a message that finds no room, after its word | Release | recovery: Acquire | the word |
//! | `counters.displaced` | by a process that displaces messages | Relaxed | Relaxed | |
//! | `memory.freed` | by a process that waits: bit set | SeqCst | by a process that frees: Relaxed, no fence | nothing: a waiting process looks again after at most 5 ms |
//! | bytes of a block | between claim and E4 | plain | after D4, until the release: plain | by the descriptor's word |

use std::mem::offset_of;

use crate::ring::descriptor::{Descriptor, Participant};
use crate::ring::header::{Header, Padded};
use crate::ring::slot::Slot;
use crate::ring::word::Owner;
use crate::sync::{AtomicU32, AtomicU64};

/// `shoalshm` in the byte order of the machine, so that the other byte order gives another number.
pub(crate) const MAGIC: u64 = u64::from_ne_bytes(*b"shoalshm");
/// Increases with each change of the layout or of the protocol.
pub(crate) const VERSION: u64 = 5;

/// Number of entries in the table of participants. Index 0 belongs to no process, so 255 processes
/// can take part at a time.
pub(crate) const PARTICIPANTS: usize = 256;
/// Words of the users of a queue: one bit for each participant.
pub(crate) const USERS_WORDS: usize = PARTICIPANTS.div_ceil(64);
/// Descriptors in a chunk.
pub(crate) const CHUNK: usize = 256;
/// Lower in tests, some of which use up all chunks.
pub(crate) const CHUNKS_LIMIT: usize = if cfg!(test) { 1024 } else { 4096 };
pub(crate) const EXTENTS_LIMIT: usize = 4096;
pub(crate) const QUEUES_LIMIT: usize = 8192;
/// Number of latest changes of the key directory that are listed one by one.
pub(crate) const CHANGED: usize = 256;
pub(crate) const DESCRIPTORS_LIMIT: usize = CHUNK * CHUNKS_LIMIT;
const RINGS_LENGTH: u64 = 64 << 30;

const PAGE: u64 = 4096;

const fn pages(length: usize) -> u64 {
    (length as u64).next_multiple_of(PAGE)
}

pub(crate) const SUPERBLOCK: u64 = 0;
pub(crate) const PROCESSES: u64 = SUPERBLOCK + pages(size_of::<Superblock>());
pub(crate) const INTENT_RECORDS: u64 = PROCESSES + pages(PARTICIPANTS * size_of::<Process>());
pub(crate) const CHUNKS: u64 = INTENT_RECORDS + pages(PARTICIPANTS * size_of::<Participant>());
pub(crate) const EXTENTS: u64 = CHUNKS + pages(CHUNKS_LIMIT * size_of::<Chunk>());
pub(crate) const QUEUES: u64 = EXTENTS + pages(EXTENTS_LIMIT * size_of::<Extent>());
pub(crate) const DESCRIPTORS: u64 = QUEUES + pages(QUEUES_LIMIT * size_of::<QueueEntry>());
pub(crate) const RINGS: u64 = DESCRIPTORS + pages(DESCRIPTORS_LIMIT * size_of::<Descriptor>());
pub(crate) const TOTAL: u64 = RINGS + RINGS_LENGTH;

/// Hash of everything that a reader assumes about the layout; a different layout has a different
/// hash.
pub(crate) const LAYOUT_HASH: u64 = hash_of(&[
    VERSION,
    PROCESSES,
    INTENT_RECORDS,
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

/// Constants of the session: written once, before it is ready, and checked by each process that
/// attaches.
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
    /// Maximum number of bytes of payload extents.
    pub(crate) max_bytes: AtomicU64,
    /// Bound of a queue that was made without one.
    pub(crate) backlog: AtomicU64,
    /// What to do if memory is full: 0 wait, 1 return an error, 2 spill to disk.
    pub(crate) memory_policy: AtomicU64,
    /// Whether all payloads are in the folder on disk: 0 no, 1 yes.
    pub(crate) payload_on_disk: AtomicU64,
    /// Whether a message may go beyond the bound in bytes of its queue: 0 no, 1 yes.
    pub(crate) overfill: AtomicU64,
    /// Checksum of all fields before it.
    pub(crate) checksum: AtomicU64,
}

/// Counters that all participants share.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Counters {
    /// Messages that were on loan to a process that died.
    pub(crate) lost: AtomicU64,
    /// Descriptors taken back from dead processes, whatever became of their messages.
    pub(crate) recovered: AtomicU64,
    /// Messages that were delivered again.
    pub(crate) redelivered: AtomicU64,
    /// Messages to deliver again that found no room: the next recovery tries again.
    pub(crate) postponed: AtomicU64,
    /// Time of the last look for dead processes, in milliseconds of the monotonic clock.
    pub(crate) last_probe: AtomicU64,
    /// Messages that were dropped to make room.
    pub(crate) displaced: AtomicU64,
    /// Messages that were given back and found no room.
    pub(crate) given_back: AtomicU64,
    /// Value of `given_back` when the last completed recovery began.
    pub(crate) given_back_seen: AtomicU64,
}

/// How far the tables are in use. Changed under the structural lock; read by all.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Used {
    /// Chunks that have memory.
    pub(crate) chunks: AtomicU64,
    /// Queues that have been made.
    pub(crate) queues: AtomicU64,
    /// Offset at which the next ring begins.
    pub(crate) rings_end: AtomicU64,
    /// Number of the next extent; numbers are never used again.
    pub(crate) next_serial: AtomicU64,
    /// Whether all queues are closed, including those made later: 0 no, 1 yes.
    pub(crate) sealed: AtomicU64,
    /// How many times an entry of the key directory got another key.
    pub(crate) changes: AtomicU64,
}

/// Memory of payloads.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Memory {
    /// Wait word: woken when a descriptor or memory may have become free; see `wait`.
    pub(crate) freed: AtomicU32,
}

/// The first page of the segment.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(crate) struct Superblock {
    pub(crate) constants: Padded<Constants>,
    pub(crate) state: Padded<AtomicU32>,
    pub(crate) counters: Padded<Counters>,
    pub(crate) used: Padded<Used>,
    pub(crate) memory: Padded<Memory>,
    /// Entries that got another key: change `n` is at `n` modulo the length of this array.
    pub(crate) changed: Padded<[AtomicU32; CHANGED]>,
}

/// States of a session.
pub(crate) mod state {
    /// Being made; also the state that zeroed memory shows.
    pub(crate) const NEW: u32 = 0;
    pub(crate) const READY: u32 = 1;
    /// The last participant has left, or the session was removed.
    pub(crate) const GONE: u32 = 2;
}

/// A process that takes part. Changed under the structural lock.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Process {
    /// 0 free, 1 taken. Whether the process lives is shown by its lease.
    pub(crate) taken: AtomicU32,
    pub(crate) pid: AtomicU64,
    /// Start time of the process, in ticks since the machine started (field 22 of /proc/pid/stat);
    /// 0 if unknown.
    pub(crate) start_time: AtomicU64,
    /// Inode of the process's pid namespace. In a reader with a different namespace, `pid` says
    /// nothing.
    pub(crate) pid_namespace: AtomicU64,
}

/// Owner of a chunk's descriptors: the index of a participant, 0 for none.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) owner: AtomicU64,
}

/// A file of payloads; see `payload::ownership` for who may do what with it.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Extent {
    /// Its holder, and whether a block is pending; 0 if the entry is free.
    pub(crate) ownership: AtomicU64,
    /// Names the file, and tells it from earlier files of the same entry.
    pub(crate) serial: AtomicU64,
    /// Counts as reserved memory as long as it is not 0.
    pub(crate) length: AtomicU64,
    /// 0 in the folder of the session, 1 in its folder on disk, 2 spilled to that folder and not
    /// counted.
    pub(crate) place: AtomicU64,
}

/// A queue: its bounds and the place of its ring, which do not change. The key changes when the
/// queue is no longer used and becomes that of another key.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct QueueEntry {
    /// Offset of its header; its users, its key and its slots follow.
    pub(crate) offset: AtomicU64,
    pub(crate) slots: AtomicU64,
    pub(crate) maxsize: AtomicU64,
    pub(crate) max_bytes: AtomicU64,
    /// [`NO_KEY`] if a process died while it changed the key.
    pub(crate) key_length: AtomicU64,
    /// The bound that the maker asked for: 0 is unbounded.
    pub(crate) asked_maxsize: AtomicU64,
    /// Maximum length of its key.
    pub(crate) key_room: AtomicU64,
    /// Number of messages that went through the ring under its former keys.
    pub(crate) before: AtomicU64,
}

/// Value of `key_length` in an entry that has no key.
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
