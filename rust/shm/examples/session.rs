//! Measures a put and a take through a session in one process, for messages in their descriptor and
//! for messages in a block.
//!
//! `cargo run --release -p shoal-shm --example session`
#![expect(clippy::print_stdout, reason = "printing is the purpose")]

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::time::Instant;

    use shoal_shm::payload::choose;
    use shoal_shm::session::{Bounds, MemoryPolicy, Session, Settings};
    use shoal_shm::{Keep, Label, Want};

    const ROUNDS: u32 = 1_000_000;
    let folder = std::env::var_os("SHOAL_SHM_DIR").map(std::path::PathBuf::from);
    let chosen = choose(folder.as_deref(), None, None)?;
    let session = Session::create(&Settings {
        folder: chosen.folder,
        disk: chosen.disk,
        payload_on_disk: chosen.payload_on_disk,
        max_bytes: chosen.max_bytes,
        backlog: 65_535,
        memory_policy: MemoryPolicy::Block,
        overfill: false,
    })?;
    let bounds = Bounds {
        maxsize: None,
        max_bytes: None,
    };
    let queue = session.queue(b"example", bounds)?;
    let mut bytes = [0; 64];
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        queue.offer(Label::default(), &[7; 64])?;
        queue.take(Want::Count(1), Keep::Copy, &mut |message| {
            message.copy(&mut bytes);
        })?;
    }
    let each = begin.elapsed() / ROUNDS;
    println!("64 B in its descriptor: {} ns", each.as_nanos());

    for length in [4 << 10, 64 << 10, 1 << 20] {
        let payload = vec![1; length];
        let rounds = u32::try_from((1_usize << 32) / length)?.min(200_000);
        let begin = Instant::now();
        for _ in 0..rounds {
            let draft = queue.draft(length as u64)?.ok_or("no memory")?;
            draft.write(0, &payload)?;
            queue.put(draft, Label::default())?.map_err(|_| "no room")?;
            let mut taken = None;
            queue.take(Want::Count(1), Keep::Loan, &mut |message| {
                taken = message.loan().map(|loan| (loan, message.payload()));
            })?;
            let (loan, place) = taken.ok_or("nothing there")?;
            drop(queue.hold(loan, place)?);
        }
        let each = begin.elapsed() / rounds;
        println!("{} KiB in a block: {} ns", length >> 10, each.as_nanos());
    }
    println!("{:?}", session.stats()?);
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
