//! A session that is not valid is refused, and the error says what is wrong with it.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use super::case::Survivor;
use crate::segment::layout::state;
use crate::session::name::Token;
use crate::session::{Control, Error, MemoryPolicy, folders};
use crate::sync::{AtomicU64, Ordering};

/// Opens the control segment of a session as a process that attaches does.
fn open(survivor: &Survivor) -> Result<Control, Error> {
    let (path, session) = names(survivor);
    Control::open(&path, session, Instant::now())
}

fn names(survivor: &Survivor) -> (PathBuf, [u64; 2]) {
    let token: Token = survivor.session.token().parse().expect("a token");
    (token.folder().join(folders::CONTROL), token.session())
}

fn refusal(survivor: &Survivor) -> String {
    open(survivor).expect_err("refused").to_string()
}

#[test]
fn each_constant_that_is_another_is_named() {
    let survivor = Survivor::new(MemoryPolicy::Error);
    open(&survivor).expect("sound");
    let constants = &survivor.session.control().superblock().constants.0;
    let words: [(&AtomicU64, &str); 8] = [
        (&constants.magic, "magic number"),
        (&constants.layout_hash, "layout"),
        (&constants.version, "version"),
        (&constants.page_size, "page size"),
        (&constants.total_length, "length"),
        (&constants.session[1], "name"),
        (&constants.checksum, "checksum"),
        // A constant without a check of its own.
        (&constants.max_bytes, "checksum"),
    ];
    for (word, what) in words {
        let before = word.load(Ordering::Relaxed);
        word.store(before ^ 0x10, Ordering::Relaxed);
        let error = refusal(&survivor);
        let expected = format!("or is damaged: its {what} is ");
        assert!(error.contains(&expected), "{what}: {error}");
        word.store(before, Ordering::Relaxed);
    }
    open(&survivor).expect("sound again");
}

#[test]
fn one_that_is_not_ready_or_gone_is_told_apart() {
    let survivor = Survivor::new(MemoryPolicy::Error);
    let word = &survivor.session.control().superblock().state.0;
    for (value, text) in [(state::NEW, "is not ready"), (state::GONE, "is gone")] {
        word.store(value, Ordering::Relaxed);
        assert!(refusal(&survivor).contains(text), "{}", refusal(&survivor));
    }
    word.store(state::READY, Ordering::Relaxed);
    open(&survivor).expect("sound again");
}

#[test]
fn a_file_of_another_length_or_mode_is_refused() {
    let survivor = Survivor::new(MemoryPolicy::Error);
    let (path, _) = names(&survivor);
    set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
    let error = refusal(&survivor);
    assert!(error.contains("its mode 644 lets others in"), "{error}");
    set_permissions(&path, Permissions::from_mode(0o600)).expect("set");

    // The session has its own file mapped: the files that are tried here lie beside it.
    let kept = path.with_file_name("kept");
    std::fs::rename(&path, &kept).expect("renamed");
    for length in [0, 4095, 1 << 20] {
        let file = std::fs::File::create(&path).expect("created");
        file.set_len(length).expect("set");
        set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        let error = refusal(&survivor);
        assert!(error.contains("its length is "), "{error}");
        std::fs::remove_file(&path).expect("removed");
    }
    let error = refusal(&survivor);
    assert!(error.contains("No such file"), "{error}");
    std::fs::rename(&kept, &path).expect("renamed");
    open(&survivor).expect("sound again");
}

#[test]
fn a_file_of_another_user_is_refused() {
    let survivor = Survivor::new(MemoryPolicy::Error);
    let (path, _) = names(&survivor);
    // Only root can give a file away, so only root can make this mistake.
    if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
        let error = refusal(&survivor);
        assert!(error.contains("it belongs to user 12345"), "{error}");
        std::os::unix::fs::chown(&path, Some(0), None).expect("given back");
    }
    open(&survivor).expect("sound again");
}
