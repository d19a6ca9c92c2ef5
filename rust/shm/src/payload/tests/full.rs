//! Full file systems: each in a mount namespace of its own, as in a container.

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::Command;

use super::*;
use crate::payload::folder_choice::choose_from;
use crate::ring::put::Refusal;
use crate::ring::take::{Keep, Taken, Want};
use crate::session::{Bounds, Offer, Session, SessionQueue};

/// The variable that tells the inner tests where the file system is.
const FOLDER: &str = "SHOAL_TEST_FOLDER";

/// Runs an inner test of this module, with a memory file system of `mib` MiB.
fn within(mib: u64, inner: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let user: &[&str] = if rustix::process::geteuid().is_root() {
        &["--mount"]
    } else {
        &["--mount", "--user", "--map-root-user"]
    };
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(user).args(["sh", "-c", script, "sh"]);
        command.arg(folder.path()).arg(mib.to_string());
        command
    };
    let mount = "mount -t tmpfs -o size=${2}m,mode=700 tmpfs \"$1\"";
    let permitted = in_namespace(mount).status();
    if !permitted.is_ok_and(|status| status.success()) {
        // Not printed by a macro: that output is not shown for a test that passes.
        let why = "this system does not let a test mount a file system";
        let _ = writeln!(std::io::stderr(), "SKIPPED {inner}: {why}");
        return;
    }
    let run = format!("{mount} && shift 2 && exec \"$@\"");
    let (_, module) = module_path!().split_once("::").expect("inside of a crate");
    let name = format!("{module}::{inner}");
    let output = in_namespace(&run)
        .arg(std::env::current_exe().expect("this test"))
        .args([name.as_str(), "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}: {text} {errors}",
        output.status
    );
}

fn given() -> PathBuf {
    std::env::var_os(FOLDER)
        .as_deref()
        .map(OsStr::to_owned)
        .expect("run by the test of the same name")
        .into()
}

/// A session in the small file system, with a limit far above the size of the file system.
fn small(policy: MemoryPolicy) -> Folder {
    let parent = tempfile::tempdir_in(given()).expect("a folder");
    Folder::within(parent, 1024 * MIB, policy, false)
}

/// Fills the rest of the file system with a file; removing the file makes room.
fn fill_up() -> PathBuf {
    let filler = given().join("filler");
    std::io::copy(
        &mut std::io::repeat(1),
        &mut fs::File::create(&filler).expect("made"),
    )
    .expect_err("full");
    filler
}

#[test]
fn a_full_file_system_makes_a_producer_wait_and_kills_no_process() {
    within(16, "inner_waits");
}

#[test]
#[ignore = "run in a file system of its own by the test above"]
fn inner_waits() {
    let folder = small(MemoryPolicy::Block);
    let (producer, consumer) = (folder.process(1), folder.process(2));
    let mut messages = Vec::new();
    // Every byte of each is written: a process that touches missing memory is killed.
    while let Some(message) = producer.put(MIB) {
        messages.push(message);
        assert!(messages.len() < 16);
    }
    assert!(messages.len() > 8, "{}", messages.len());
    assert_eq!(
        folder.files_in(".").len(),
        producer.held().count(),
        "no half-made file"
    );
    for message in messages.drain(..2) {
        assert_eq!(consumer.get(message), 1);
    }
    messages.extend(producer.put(MIB));
    assert!(messages.len() > 7);
    for message in messages {
        assert_eq!(consumer.get(message), 1);
    }
    producer.trim();
    consumer.assert_nothing_left(&folder);
}

#[test]
fn a_file_system_that_others_fill_is_an_error_rather_than_a_wait() {
    within(16, "inner_others");
}

#[test]
#[ignore = "run in a file system of its own by the test above"]
fn inner_others() {
    let folder = small(MemoryPolicy::Block);
    let producer = folder.process(1);
    assert!(producer.grow().expect("room"));
    let filler = fill_up();
    let error = producer
        .try_put(1000)
        .expect_err("no process could make room")
        .to_string();
    assert!(error.contains("No space left on device"), "{error}");
    producer.assert_nothing_left(&folder);
    fs::remove_file(filler).expect("removed");
    let message = producer.put_soon(1000);
    assert_eq!(producer.get(message), 1);

    let folder = small(MemoryPolicy::Error);
    let producer = folder.process(1);
    let error = producer
        .try_put(100 * MIB)
        .expect_err("too little")
        .to_string();
    assert!(error.contains("No space left on device"), "{error}");
    producer.assert_nothing_left(&folder);
}

#[test]
fn a_message_that_does_not_fit_into_memory_is_spilled() {
    within(16, "inner_spills");
}

#[test]
#[ignore = "run in a file system of its own by the test above"]
fn inner_spills() {
    let folder = small(MemoryPolicy::Spill);
    let disk = tempfile::tempdir().expect("a folder elsewhere");
    fs::remove_file(folder.path.join("disk")).expect("removed");
    std::os::unix::fs::symlink(disk.path(), folder.path.join("disk")).expect("linked");
    let producer = folder.process(1);
    let messages: Vec<_> = (0..5)
        .map(|_| producer.put(8 * MIB).expect("disk"))
        .collect();
    assert_eq!(folder.files_in(".").len(), 1, "what fits");
    assert!(!files_in(disk.path()).is_empty());
    for message in messages {
        assert_eq!(folder.process(2).get(message), 1);
    }
    producer.trim();
    producer.assert_nothing_left(&folder);
}

#[test]
fn descriptors_that_find_no_memory_are_shared() {
    within(3, "inner_descriptors");
}

#[test]
#[ignore = "run in a file system of its own by the test above"]
fn inner_descriptors() {
    let (folder, other) = (small(MemoryPolicy::Block), small(MemoryPolicy::Block));
    let producer = folder.process(1);
    let mut chunks = 0;
    while producer.grow().expect("no error") {
        chunks += 1;
        assert!(chunks < 48, "3 MiB");
    }
    assert!(chunks > 4, "{chunks}");
    let claims = std::iter::from_fn(|| producer.claim_now());
    assert_eq!(claims.count(), chunks * 256);
    let late = folder.process(2);
    assert!(!late.grow().expect("no error"));
    assert!(late.claim_now().is_none());
    producer.free(7);
    assert_eq!(late.claim_now().expect("the other's").index(), 7);

    let first = other.process(1);
    let error = first.grow().expect_err("none at all");
    assert!(
        error.to_string().contains("No space left on device"),
        "{error}"
    );
}

#[test]
fn a_ring_that_finds_no_memory_makes_puts_wait_and_kills_no_process() {
    within(16, "inner_slots");
}

#[test]
#[ignore = "run in a file system of its own by the test above"]
fn inner_slots() {
    let settings = |memory_policy| Settings {
        memory_policy,
        ..Settings::in_folder(&given(), 4 * MIB, 262_144)
    };
    for policy in [MemoryPolicy::Block, MemoryPolicy::Error] {
        let session = Session::create(&settings(policy)).expect("space");
        let open = |key| session.queue(key, Bounds::default()).expect("room");
        let [queue, other] = [b"q", b"r"].map(|key| open(key));
        let label = Label::default();
        // Descriptors for all messages, so that only slots are lacking.
        let mut batch = queue.batch();
        (0..2000).for_each(|_| assert!(batch.push(label, b"").expect("space")));
        drop(batch);
        // Memory that other processes of the session could free.
        let draft = queue.draft(1000).expect("space").expect("there is some");
        let filler = fill_up();
        let put = |queue: &SessionQueue, number: u32| queue.offer(label, &number.to_ne_bytes());
        let fitted = (0..2000).take_while(|&number| matches!(put(&queue, number), Ok(Offer::Put)));
        let fitted = u32::try_from(fitted.count()).expect("few");
        assert!((400..600).contains(&fitted), "{fitted}");
        let refused = || match put(&queue, 0) {
            Ok(offer) => format!("{offer:?}"),
            Err(error) => error.to_string(),
        };
        if policy == MemoryPolicy::Block {
            assert_eq!(refused(), "NoMemory");
        } else {
            assert!(
                refused().contains("No space left on device"),
                "{}",
                refused()
            );
        }
        let Err((draft, refusal)) = queue.put(draft, label).expect("no error") else {
            panic!("there is no slot");
        };
        assert_eq!(refusal, Refusal::NoSlot);
        // Its messages can be looked at and taken, and it can be closed.
        assert_eq!(queue.len(), fitted.into());
        assert!(queue.is_puttable(1).expect("sound"));
        session.sweep().expect("sound");
        let mut out = Vec::new();
        let mut take = |queue: &SessionQueue| {
            queue.take(Want::Count(9999), Keep::Copy, &mut |message| {
                let mut bytes = [0; 4];
                message.copy(&mut bytes);
                out.push(u32::from_ne_bytes(bytes));
            })
        };
        take(&queue).expect("sound");
        assert_eq!(take(&queue).expect("sound"), Taken::Empty);
        let full = (0..fitted).all(|number| matches!(put(&other, number), Ok(Offer::Put)));
        assert!(full && !matches!(put(&other, 0), Ok(Offer::Put)));
        other.close().expect("the end has a place");
        take(&other).expect("sound");
        assert_eq!(take(&other).expect("sound"), Taken::Closed);
        // Once there is room, everything continues.
        fs::remove_file(filler).expect("removed");
        queue.put(draft, label).expect("sound").expect("it fits");
        for number in fitted + 1..1900 {
            assert_eq!(put(&queue, number).expect("sound"), Offer::Put);
        }
        drop(out);
        let mut count = 0;
        let taken = queue.take(Want::Count(9999), Keep::Copy, &mut |_| count += 1);
        assert_eq!((taken.is_ok(), count), (true, 1900 - fitted));
    }
}

#[test]
fn a_container_with_little_shared_memory_has_its_payloads_on_disk() {
    within(64, "inner_container");
    within(4, "inner_tiny");
}

#[test]
#[ignore = "run in a file system of its own by the test above"]
fn inner_container() {
    let (memory, temporary) = (given(), tempfile::tempdir().expect("a folder"));
    let choose = |max_bytes| choose_from(&memory, temporary.path(), None, None, max_bytes);
    let chosen = choose(None).expect("usable");
    assert_eq!((&chosen.folder, &*chosen.disk), (&memory, temporary.path()));
    assert!(chosen.payload_on_disk);
    let warning = chosen.warning.expect("one");
    assert!(
        warning.contains("has only 64 MiB free: large messages are in"),
        "{warning}"
    );
    assert!(warning.contains("--shm-size"), "{warning}");

    let chosen = choose(Some(16 * MIB)).expect("usable");
    assert!(!chosen.payload_on_disk, "so little fits");
    assert_eq!((chosen.max_bytes, chosen.warning), (16 * MIB, None));
}

#[test]
#[ignore = "run in a file system of its own by the test above"]
fn inner_tiny() {
    let (memory, temporary) = (given(), tempfile::tempdir().expect("a folder"));
    let chosen = choose_from(&memory, temporary.path(), None, None, None).expect("usable");
    assert_eq!(
        (&*chosen.folder, chosen.payload_on_disk),
        (temporary.path(), false)
    );
    assert!(chosen.warning.expect("one").contains("the session is in"));
}
