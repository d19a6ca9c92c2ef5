//! A first program: it starts itself again as another process, which takes the messages that this
//! one puts.
//!
//! `cargo run -p shoal-shm --example two_processes`
#![expect(clippy::print_stdout, reason = "an example prints")]

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1) {
        None => parent(),
        Some(token) => child(&token),
    }
}

#[cfg(target_os = "linux")]
const BOUNDS: shoal_shm::session::Bounds = shoal_shm::session::Bounds {
    maxsize: Some(100),
    max_bytes: None,
};

#[cfg(target_os = "linux")]
fn parent() -> Result<(), Box<dyn std::error::Error>> {
    use std::process::Command;

    use shoal_shm::Label;
    use shoal_shm::payload::choose;
    use shoal_shm::session::{MemoryPolicy, Offer, Session, Settings};

    let folder = std::env::var_os("SHOAL_SHM_DIR").map(std::path::PathBuf::from);
    let chosen = choose(folder.as_deref(), None, Some(16 << 20))?;
    let session = Session::create(&Settings {
        folder: chosen.folder,
        disk: chosen.disk,
        payload_on_disk: chosen.payload_on_disk,
        max_bytes: chosen.max_bytes,
        backlog: 1000,
        memory_policy: MemoryPolicy::Block,
        overfill: false,
    })?;
    let queue = session.queue(b"greetings", BOUNDS)?;
    let label = Label {
        sender: std::process::id(),
        ..Label::default()
    };
    for text in ["one", "two", "three"] {
        if !matches!(queue.offer(label, text.as_bytes())?, Offer::Put) {
            return Err("the queue is full".into());
        }
    }
    // Attaching needs only the token, which is a path.
    let program = std::env::current_exe()?;
    let child = Command::new(program).arg(session.token()).status()?;
    let stats = session.stats()?;
    println!(
        "the child ended with {child}; {} messages wait",
        stats.messages
    );
    Ok(())
}

#[cfg(target_os = "linux")]
fn child(token: &str) -> Result<(), Box<dyn std::error::Error>> {
    use shoal_shm::session::Session;
    use shoal_shm::{Descriptor, Keep, Taken, Want};

    let session = Session::attach(token)?;
    let queue = session.queue(b"greetings", BOUNDS)?;
    let (mut text, mut sender) = ([0; Descriptor::INLINE], 0);
    loop {
        let mut length = 0;
        let taken = queue.take(Want::Count(1), Keep::Copy, &mut |message| {
            if let shoal_shm::Payload::Inline(bytes) = message.payload() {
                length = bytes;
                message.copy(&mut text[..length]);
            }
            sender = message.label.sender;
        })?;
        match taken {
            Taken::Messages { .. } => {
                println!(
                    "process {sender} says {}",
                    String::from_utf8_lossy(&text[..length])
                );
            }
            _ => return Ok(()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}
