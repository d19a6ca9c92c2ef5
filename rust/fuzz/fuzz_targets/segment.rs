//! Fuzz target: a control segment with changed bytes gives errors and nothing worse (`cargo
//! +nightly fuzz run segment`).
//!
//! Each ten bytes of the input change one word: two bytes choose the part of the segment and the
//! word in it, the other eight are its new content. Then a process that was attached before the
//! change and one that attaches after it do everything that a process can do.

#![no_main]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use shoal_shm::session::{Bounds, Error, MemoryPolicy, Session, SessionQueue, Settings};
use shoal_shm::{Keep, Label, WaitState, Want};

/// The offset of each table, the length of its entries, and the number of used words of each entry,
/// as in the table in `segment/layout.rs`. The last two are rings.
const PARTS: [(u64, u64, u64); 10] = [
    (0, 128, 13),
    (256, 128, 8),
    (4096, 128, 4),
    (36_864, 128, 8),
    (69_632, 8, 1),
    (77_824, 64, 4),
    (339_968, 64, 6),
    (864_256, 256, 7),
    (67_973_120, 128, 16),
    (67_973_120 + 4096, 128, 16),
];
const BOUNDS: Bounds = Bounds {
    maxsize: Some(3),
    max_bytes: Some(0),
};
const MOMENT: Duration = Duration::from_micros(100);

/// A folder in memory, which is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/dev/shm/fuzz-shoal-{}-{next}", std::process::id());
        fs::create_dir(&path).expect("made");
        Self(path.into())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("removed");
    }
}

fn put(queue: &SessionQueue, length: u64) -> Result<(), Error> {
    queue.offer(Label::default(), &[7; 100])?;
    if let Some(draft) = queue.draft(length)? {
        draft.write(0, &[7])?;
        let _refused = queue.put(draft, Label::default())?;
    }
    let mut batch = queue.batch();
    batch.push(Label::default(), b"1")?;
    batch.push(Label::default(), b"2")?;
    batch.put().map(drop)
}

fn take(queue: &SessionQueue, want: Want, keep: Keep) -> Result<(), Error> {
    let mut taken = Vec::new();
    let result = queue.take(want, keep, &mut |message| {
        message.copy(&mut [0; 300]);
        taken.extend(message.loan().map(|loan| (loan, message.payload())));
    });
    for (loan, payload) in taken {
        let held = queue.hold(loan, payload)?;
        let length = usize::try_from(held.len().min(1 << 16)).unwrap_or(0);
        held.read(0, &mut vec![0; length])?;
        held.acknowledge()?;
    }
    result.map(drop)
}

/// Does everything that a process can do. The results do not matter, only that each call returns.
fn everything(session: &Arc<Session>) {
    let _ = session.stats();
    let Ok(queue) = session.queue(b"a", BOUNDS) else {
        let _ = session.sweep();
        return;
    };
    let _ = session.queue(b"b", BOUNDS);
    for keep in [Keep::Copy, Keep::Loan, Keep::Lease] {
        let _ = put(&queue, 5000);
        let weight = Want::Weight {
            target: 3,
            least: None,
        };
        for want in [Want::Count(2), weight] {
            let _ = take(&queue, want, keep);
            let mut wait_state = WaitState::default();
            let _ = queue.wait_to_take(want, &mut wait_state, MOMENT);
            queue.done_taking(want, wait_state);
        }
        let mut wait_state = WaitState::default();
        let _ = queue.wait_to_put(8, &mut wait_state, MOMENT);
        queue.done_putting(wait_state);
        let _ = (
            queue.len(),
            queue.bytes(),
            queue.is_full(),
            queue.arm_take(),
        );
        let _ = session.sweep();
        session.tend();
    }
    let _ = (queue.close(), queue.is_closed());
    session.trim();
}

fn edit(control: &Path, data: &[u8]) {
    let file = File::options().write(true).open(control).expect("there");
    for chunk in data.chunks_exact(10) {
        let (begin, apart, words) = PARTS[usize::from(chunk[0] & 15) % PARTS.len()];
        let (entry, word) = (u64::from(chunk[0] >> 4), u64::from(chunk[1]) % words);
        let place = begin + entry % 8 * apart + word * 8;
        file.write_all_at(&chunk[2..], place).expect("written");
    }
}

fuzz_target!(|data: &[u8]| {
    let base = Folder::new();
    let (one, other) = (base.0.join("one"), base.0.join("other"));
    fs::create_dir(&one).expect("made");
    symlink(&one, &other).expect("linked");
    let settings = Settings {
        folder: one.clone(),
        disk: one,
        payload_on_disk: false,
        max_bytes: 1 << 20,
        backlog: 63,
        memory_policy: MemoryPolicy::Error,
        overfill: false,
    };
    let session = Session::create(&settings).expect("space");
    let queue = session.queue(b"a", BOUNDS).expect("room");
    let _ = put(&queue, 5000);
    let _ = take(&queue, Want::Count(1), Keep::Lease);
    edit(&Path::new(session.token()).join("ctl"), data);
    // This process attaches a second time by another spelling of the folder, as another process
    // would.
    let again = session.token().replacen("/one/", "/other/", 1);
    if let Ok(session) = Session::attach(&again) {
        everything(&session);
    }
    everything(&session);
});
