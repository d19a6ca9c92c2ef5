//! Tests with real processes, which are killed: this test program is started again as a child.
//!
//! A child does what it reads from its standard input, one line each, and answers with a line. It
//! ends when its input does, so that it does not outlive its parent.

mod child;
mod deaths;
mod leaving;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Where the session of a child is.
const FOLDER: &str = "SHOAL_TEST_SESSION_FOLDER";
/// Begins each answer: the test program says other things too.
const ANSWER: char = '@';
/// No child needs so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process of a test.
#[derive(Debug)]
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Process {
    /// Starts one; it kills itself at a crash point, where one is given.
    fn start(folder: &Path, crash_point: Option<&str>) -> Self {
        let program = std::env::current_exe().expect("this test program");
        let mut command = Command::new(program);
        command
            .args([
                "--exact",
                "shm::session::processes::child::runs",
                "--nocapture",
            ])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(point) = crash_point {
            command.env(super::crash::POINT, point);
        }
        let mut child = command.spawn().expect("started");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let answer = line.split_once(ANSWER).map(|(_, answer)| answer.to_owned());
                if answer.is_some_and(|answer| sender.send(answer).is_err()) {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self {
            child,
            input,
            answers,
        }
    }

    /// Tells it what to do next.
    fn tell(&mut self, what: &str) {
        let input = self.input.as_mut().expect("it runs");
        writeln!(input, "{what}").expect("it runs");
    }

    /// Tells it what to do, and waits for the answer; None where it died.
    fn ask(&mut self, what: &str) -> Option<String> {
        self.tell(what);
        self.answers.recv_timeout(PATIENCE).ok()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("it runs");
    }

    /// Kills it, and waits until it is gone.
    fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it ends");
    }

    /// Waits until it ended by itself.
    fn is_killed(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let mut status = None;
        eventually(|| {
            status = self.child.try_wait().expect("asked");
            status.is_some()
        });
        status.and_then(|status| status.signal()) == Some(Signal::KILL.as_raw())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whatever the test came to, stopped or not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something.
fn eventually(mut what: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < deadline, "in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}
