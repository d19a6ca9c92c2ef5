//! Several processes of a session in one process: each has its own control segment object.

mod blocks;
mod deaths;
mod descriptors;
mod full;
mod idle;
mod machine;
mod reading;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ownership::OwnershipWord;
use super::reclaim::Reclaimed;
use super::*;
use crate::ring::descriptor::{Block, Descriptor, Label};
use crate::ring::queue::Claim;
use crate::ring::word::{Owner, State, Word};
use crate::segment::layout::Extent;
use crate::segment::{Control, Error, Mapping, MemoryPolicy, Settings};

const MIB: u64 = 1 << 20;

fn owner(index: u16) -> Owner {
    Owner::new(index).expect("in range")
}

/// A temporary folder in memory if possible, to spare the disk.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder")
}

/// The folder of a session; removed when this is dropped.
struct Folder {
    path: PathBuf,
    _parent: tempfile::TempDir,
}

impl Folder {
    /// A session with this much memory.
    fn new(max_bytes: u64, policy: MemoryPolicy) -> Self {
        Self::within(in_memory(), max_bytes, policy, false)
    }

    fn within(
        parent: tempfile::TempDir,
        max_bytes: u64,
        policy: MemoryPolicy,
        payload_on_disk: bool,
    ) -> Self {
        let path = parent.path().join("session");
        let disk = parent.path().join("disk");
        fs::create_dir(&path).expect("made");
        fs::create_dir(&disk).expect("made");
        std::os::unix::fs::symlink(&disk, path.join("disk")).expect("linked");
        let settings = Settings {
            folder: parent.path().to_owned(),
            disk,
            payload_on_disk,
            max_bytes,
            backlog: 1,
            memory_policy: policy,
            overfill: false,
        };
        Control::create(&path.join("ctl"), [1, 2], &settings)
            .expect("room")
            .set_ready();
        Self {
            path,
            _parent: parent,
        }
    }

    fn process(&self, me: u16) -> Process {
        let deadline = Instant::now() + Duration::from_secs(1);
        let control = Control::open(&self.path.join("ctl"), [1, 2], deadline).expect("sound");
        let files = ExtentFiles::new(&self.path);
        Process {
            me: owner(me),
            descriptors: DescriptorAllocator::new(owner(me)),
            arena: Arena::new(&control, files.clone(), owner(me)),
            mappings: MappingCache::new(files.clone()),
            files,
            control,
        }
    }

    /// The names of the files of extents, in a folder of the session.
    fn files_in(&self, folder: &str) -> Vec<String> {
        files_in(&self.path.join(folder))
    }
}

fn files_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("a plain name"));
    names.filter(|name| name.starts_with('x')).collect()
}

/// The structural lock of all sessions: threads of a test grow the tables of one session at once.
static STRUCTURAL: Mutex<()> = Mutex::new(());

/// A process's part in a session.
struct Process {
    me: Owner,
    control: Control,
    files: ExtentFiles,
    descriptors: DescriptorAllocator,
    arena: Arena,
    mappings: MappingCache,
}

/// A message that is as good as put: its descriptor names its block, and is not free.
#[derive(Debug)]
struct Message {
    index: u32,
    block: Block,
}

impl Process {
    /// A descriptor among those that it has.
    fn claim_now(&self) -> Option<Claim> {
        self.descriptors.claim(&self.control)
    }

    fn grow(&self) -> Result<bool, Error> {
        self.descriptors.grow(&self.control)
    }

    fn claim(&self) -> Claim {
        if let Some(claim) = self.claim_now() {
            return claim;
        }
        let _lock = STRUCTURAL.lock().unwrap_or_else(PoisonError::into_inner);
        self.grow().expect("room");
        self.claim_now().expect("a new chunk")
    }

    fn free(&self, index: usize) {
        self.control.descriptors()[index].set_word(Word::FREE);
    }

    fn trim(&self) {
        self.arena.trim(&self.control);
    }

    fn mapping(&self, extent: u32) -> Result<Arc<Mapping>, Error> {
        self.mappings.mapping(&self.control, extent)
    }

    fn allocate(&self, length: u64) -> Option<AllocatedBlock> {
        self.arena
            .allocate(&self.control, length)
            .expect("no error")
    }

    /// The descriptor that a block was bound to.
    fn bind(&self, allocated: &AllocatedBlock) -> &Descriptor {
        let claim = self.claim();
        self.arena.bind(&self.control, &claim, allocated);
        &self.control.descriptors()[claim.index() as usize]
    }

    /// Makes a message of `length` bytes, each of them its sender's number.
    fn try_put(&self, length: u64) -> Result<Option<Message>, Error> {
        let claim = self.claim();
        let index = claim.index();
        let descriptor = &self.control.descriptors()[index as usize];
        let allocated = match self.arena.allocate(&self.control, length) {
            Ok(Some(allocated)) => allocated,
            other => {
                descriptor.set_word(Word::FREE);
                return other.map(|_| None);
            }
        };
        self.arena.bind(&self.control, &claim, &allocated);
        let byte = u8::try_from(self.me.index()).expect("small");
        let bytes = vec![byte; usize::try_from(length).expect("small")];
        allocated.write(0, &bytes).expect("inside");
        let label = Label {
            sender: u32::from(byte),
            ..Label::default()
        };
        let block = allocated.block();
        assert!(descriptor.fill_external(u32::from(byte), label, block));
        let queued = Word::new(State::Queued, self.me, 0);
        descriptor.set_word(queued);
        Ok(Some(Message { index, block }))
    }

    fn put(&self, length: u64) -> Option<Message> {
        self.try_put(length).expect("no error")
    }

    /// Puts a message as soon as failed attempts may be repeated.
    fn put_soon(&self, length: u64) -> Message {
        let begin = Instant::now();
        loop {
            if let Some(message) = self.put(length) {
                return message;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "never");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Reads a message and gives it back; returns its sender.
    fn get(&self, message: Message) -> u8 {
        let Message { index, block } = message;
        let mapping = self.mapping(block.extent).expect("there");
        let mut bytes = vec![0; usize::try_from(block.length).expect("small")];
        mapping.read(block.offset, &mut bytes).expect("inside");
        let sender = bytes[0];
        assert!(
            bytes == vec![sender; bytes.len()],
            "another process wrote into it"
        );
        self.free(index as usize);
        sender
    }

    /// Cleans up after dead processes: first the descriptors that they were filling, as a sweep
    /// does.
    fn recover(&self, dead: &[u16]) -> Reclaimed {
        let is_dead = |owner: Owner| dead.contains(&u16::try_from(owner.index()).expect("one"));
        for descriptor in self.control.descriptors() {
            let word = descriptor.word();
            if word.state() == Some(State::Writing) && is_dead(word.owner()) {
                descriptor.set_word(Word::FREE);
            }
        }
        retire_unreferenced(&self.control, &self.files, self.me, &is_dead)
    }

    fn reserved(&self) -> u64 {
        reserved(&self.control)
    }

    fn held(&self) -> impl Iterator<Item = &Extent> {
        let entries = self.control.extents().iter();
        entries.filter(|entry| entry.seen().holder().is_some())
    }

    /// Checks that nothing of any message is left: no entry, no byte, no file.
    fn assert_nothing_left(&self, folder: &Folder) {
        assert_eq!(self.reserved(), 0);
        assert_eq!(self.held().count(), 0);
        assert_eq!(folder.files_in("."), Vec::<String>::new());
        assert_eq!(folder.files_in("disk"), Vec::<String>::new());
        assert_eq!(usage(&self.control), Usage::default());
    }
}
