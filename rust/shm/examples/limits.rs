//! Measures the limits of the machine, with which a queue between two processes is compared.
//!
//! `cargo run --release -p shoal-shm --example limits -- WHAT COUNT BYTES CORE CORE`
//!
//! Prints nanoseconds, one number for each of COUNT samples:
//! - `spin`: half of a word's round trip to the other process, with both processes spinning;
//! - `futex`, `eventfd`: from the wake-up of a sleeping process until it runs;
//! - `write`: from the start of a write of BYTES to warm shared memory until the other process,
//!   which spins, knows of it; always into the same block;
//! - `fill`: such a write alone, into one of 4 blocks in turn.
#![allow(clippy::print_stdout, reason = "printing is the purpose")]

#[cfg(target_os = "linux")]
mod peers {
    use std::env::{args, current_exe};
    use std::fs::remove_file;
    use std::hint::spin_loop;
    use std::path::Path;
    use std::process::{Child, Command, Stdio, id};
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::thread::futex::{Flags, wait, wake};
    use rustix::thread::{CpuSet, sched_setaffinity};
    use rustix::time::{ClockId, clock_gettime};
    use shoal_shm::internals::file;
    use shoal_shm::segment::Mapping;

    type Error = Box<dyn std::error::Error>;

    const BLOCKS: u64 = 4;
    const STAMPS: u64 = 4096;
    const PAGE: u64 = 4096;
    const DEADLINE: u64 = 60_000_000_000;
    /// Longer than any consumer spins, so that it sleeps.
    const ASLEEP: u64 = 300_000;
    /// Long enough that the other process spins again.
    const SPINNING: u64 = 5_000;
    const SLICE: Timespec = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };

    /// The memory that both processes share; each word has its cache line and the next one to
    /// itself.
    struct Board {
        memory: Mapping,
        count: u64,
        bytes: u64,
    }

    impl Board {
        fn length(count: u64, bytes: u64) -> u64 {
            Self::data(count) + BLOCKS * bytes.next_multiple_of(PAGE)
        }

        fn data(count: u64) -> u64 {
            STAMPS + (count * 8).next_multiple_of(PAGE)
        }

        /// Number of messages that were sent.
        fn sent(&self) -> Result<&AtomicU32, Error> {
            Ok(self.memory.view(0)?)
        }

        /// Number of messages that came back.
        fn back(&self) -> Result<&AtomicU32, Error> {
            Ok(self.memory.view(128)?)
        }

        /// Whether the other process is there.
        fn ready(&self) -> Result<&AtomicU32, Error> {
            Ok(self.memory.view(256)?)
        }

        /// The time at which each message arrived.
        fn arrivals(&self) -> Result<&[AtomicU64], Error> {
            Ok(self.memory.views(STAMPS, usize::try_from(self.count)?)?)
        }

        fn write(&self, block: u64, bytes: &[u8]) -> Result<(), Error> {
            let offset = Self::data(self.count) + block * self.bytes.next_multiple_of(PAGE);
            Ok(self.memory.write(offset, bytes)?)
        }
    }

    fn now() -> u64 {
        let time = clock_gettime(ClockId::Monotonic);
        u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
    }

    /// Looks without a pause in between, for the shortest delay.
    fn until(mut done: impl FnMut() -> bool) -> Result<(), Error> {
        let mut deadline = None;
        loop {
            // Most looks do not ask for the time.
            for _ in 0..1000 {
                if done() {
                    return Ok(());
                }
            }
            if now() > *deadline.get_or_insert_with(|| now() + DEADLINE) {
                return Err("the other process did not answer within a minute".into());
            }
        }
    }

    fn pause(nanoseconds: u64) {
        let end = now() + nanoseconds;
        while now() < end {
            spin_loop();
        }
    }

    fn pin(core: usize) -> Result<(), Error> {
        let mut cores = CpuSet::new();
        cores.set(core);
        Ok(sched_setaffinity(None, &cores)?)
    }

    /// The process that answers. Its eventfd is its standard input, which needs no unsafe code.
    fn answer(what: &str, board: &Board) -> Result<(), Error> {
        let (sent, back, arrivals) = (board.sent()?, board.back()?, board.arrivals()?);
        board.ready()?.store(1, Ordering::Release);
        let input = std::io::stdin();
        for (number, arrived) in (1..).zip(arrivals) {
            let there = || sent.load(Ordering::Acquire) >= number;
            match what {
                "futex" => {
                    while !there() {
                        // Woken, not asleep, or a second over: only the word counts.
                        let _ = wait(sent, Flags::empty(), number - 1, Some(&SLICE));
                    }
                }
                "eventfd" => {
                    while !there() {
                        let mut waited = [PollFd::new(&input, PollFlags::IN)];
                        if poll(&mut waited, Some(&SLICE))? > 0 {
                            rustix::io::read(input.as_fd(), &mut [0_u8; 8])?;
                        }
                    }
                }
                _ => until(there)?,
            }
            if what == "spin" {
                back.store(number, Ordering::Release);
            } else {
                arrived.store(now(), Ordering::Release);
            }
        }
        Ok(())
    }

    /// Sends `count` messages, each when the previous one has arrived.
    fn ask(what: &str, board: &Board, bell: &OwnedFd) -> Result<Vec<u64>, Error> {
        let (sent, back, arrivals) = (board.sent()?, board.back()?, board.arrivals()?);
        let source = vec![1; usize::try_from(board.bytes)?];
        let mut samples = Vec::with_capacity(arrivals.len());
        for (number, arrived) in (1..).zip(arrivals) {
            match what {
                "futex" | "eventfd" => pause(ASLEEP),
                "write" => pause(SPINNING),
                _ => {}
            }
            let start = now();
            if what == "write" {
                board.write(0, &source)?;
            }
            sent.store(number, Ordering::Release);
            match what {
                "futex" => {
                    wake(sent, Flags::empty(), 1)?;
                }
                "eventfd" => {
                    rustix::io::write(bell, &1_u64.to_ne_bytes())?;
                }
                _ => {}
            }
            samples.push(if what == "spin" {
                until(|| back.load(Ordering::Acquire) == number)?;
                (now() - start) / 2
            } else {
                until(|| arrived.load(Ordering::Acquire) != 0)?;
                arrived.load(Ordering::Acquire).saturating_sub(start)
            });
        }
        Ok(samples)
    }

    /// Times writes alone.
    fn fill(board: &Board) -> Result<Vec<u64>, Error> {
        let source = vec![1; usize::try_from(board.bytes)?];
        (0..board.count + BLOCKS)
            .map(|number| {
                let start = now();
                board.write(number % BLOCKS, &source)?;
                Ok(now() - start)
            })
            // The first round makes the pages warm.
            .skip(usize::try_from(BLOCKS)?)
            .collect()
    }

    fn start(args: &[String], path: &Path, bell: &OwnedFd) -> Result<Child, Error> {
        Ok(Command::new(current_exe()?)
            .args(args)
            .arg(path)
            .stdin(Stdio::from(bell.try_clone()?))
            .spawn()?)
    }

    pub(super) fn main() -> Result<(), Error> {
        let args: Vec<_> = args().skip(1).collect();
        let [what, count, bytes, core, other, path @ ..] = &*args else {
            return Err("expected WHAT COUNT BYTES CORE CORE".into());
        };
        if !["spin", "futex", "eventfd", "write", "fill"].contains(&&**what) {
            return Err(format!("{what}: expected spin, futex, eventfd, write or fill").into());
        }
        let (count, bytes) = (count.parse::<u32>()?.into(), bytes.parse()?);
        let length = Board::length(count, bytes);
        let map = |file: OwnedFd| -> Result<Board, Error> {
            let memory = Mapping::new(&file, usize::try_from(length)?)?;
            Ok(Board {
                memory,
                count,
                bytes,
            })
        };
        if let [path] = path {
            pin(other.parse()?)?;
            return answer(what, &map(file::open_own(path.as_ref())?.0)?);
        }
        pin(core.parse()?)?;
        let name = format!("/dev/shm/shoal-limits-{}", id());
        let path = Path::new(&name);
        let file = file::create(path, length)?;
        let samples = file::allocate(&file, path, 0, length)
            .map_err(Error::from)
            .and_then(|()| {
                let board = map(file)?;
                board.memory.populate();
                if what == "fill" {
                    return fill(&board);
                }
                let bell = eventfd(0, EventfdFlags::empty())?;
                let mut peer = start(&args, path, &bell)?;
                let samples = until(|| {
                    board
                        .ready()
                        .is_ok_and(|ready| ready.load(Ordering::Acquire) == 1)
                })
                .and_then(|()| ask(what, &board, &bell));
                if samples.is_err() {
                    peer.kill()?;
                }
                peer.wait()?;
                samples
            });
        remove_file(path)?;
        for sample in samples? {
            println!("{sample}");
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    peers::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("the queue between processes needs Linux");
}
