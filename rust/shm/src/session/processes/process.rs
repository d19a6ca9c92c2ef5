//! A child process for tests: the test program started again, with commands and answers.
//!
//! It executes each line of its standard input and answers with a line. It ends when its input
//! does, so that it does not outlive its parent.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than any child needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Begins each answer: the test program prints other lines too.
const ANSWER: char = '@';

/// A process of a test; killed when the test is over, whatever its result.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Process {
    /// Starts a process that runs the test with this path, its crate included, with these
    /// variables.
    pub(crate) fn start(test: &str, variables: &[(&str, &OsStr)]) -> Self {
        let (_, test) = test.split_once("::").expect("a crate and a test");
        let program = std::env::current_exe().expect("this test program");
        let mut child = Command::new(program)
            .args(["--exact", test, "--nocapture"])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
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

    /// Sends a command.
    pub(crate) fn tell(&mut self, what: &str) {
        let input = self.input.as_mut().expect("piped");
        writeln!(input, "{what}").expect("it runs");
    }

    /// Its next answer; None if it died.
    pub(crate) fn answer(&self) -> Option<String> {
        self.answers.recv_timeout(PATIENCE).ok()
    }

    /// Sends a command and waits for the answer; None if the process died.
    pub(crate) fn ask(&mut self, what: &str) -> Option<String> {
        self.tell(what);
        self.answer()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("it is there");
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        assert!(self.is_killed());
    }

    /// Waits until it has ended; returns whether it was killed.
    pub(crate) fn is_killed(&mut self) -> bool {
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
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child: answers each line.
pub(crate) fn answer_lines(mut act: impl FnMut(&[&str]) -> String) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        say(&act(&words));
    }
}

/// In the child: prints an answer, or a message before the answer.
pub(crate) fn say(what: &str) {
    writeln!(std::io::stdout(), "{ANSWER}{what}").expect("the parent listens");
}

/// Waits until a condition holds.
pub(crate) fn eventually(mut what: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < deadline, "it did not happen in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}
