//! `Socket`: a connection that never blocks in a read or a write, with TLS or without; and [`Inbox`],
//! the bytes that arrived on it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{connect_unspec, sockopt};

use crate::cancel::{Cancel, Watch};
use crate::handshake;
use crate::tls::Layer;

/// Maximum sleep before a wait looks whether it should end: for the peer, for signals, for the end
/// of the server.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// How long the kernel tries to reach a peer that does not answer.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// The events that `poll` reports once the peer will send nothing more.
const GONE: PollFlags = PollFlags::RDHUP
    .union(PollFlags::HUP)
    .union(PollFlags::ERR)
    .union(PollFlags::NVAL);

/// The error of bytes that the peer should not have sent.
pub(crate) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// A connection. Reads and writes return at once; [`Self::wait`] waits.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Arc<TcpStream>,
    tls: Option<Layer>,
}

impl Socket {
    /// Takes over a connection, and lets the kernel notice a peer that does not answer within
    /// `peer_timeout`.
    ///
    /// A node that vanishes says nothing. The kernel then ends each wait: with data on the way after
    /// `peer_timeout`, on an idle connection after 3 s and three probes in 6 s.
    pub(crate) fn new(stream: TcpStream, peer_timeout: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(3))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        let millis = u32::try_from(peer_timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, millis)?;
        Ok(Self {
            stream: Arc::new(stream),
            tls: None,
        })
    }

    /// The same connection, with TLS if it is given. It carries nothing before [`Self::set_up_tls`].
    pub(crate) fn with_tls(self, tls: Option<Layer>) -> Self {
        Self { tls, ..self }
    }

    /// Sets up TLS, if this connection has it.
    ///
    /// # Errors
    ///
    /// The peer does not speak it, one side refused the other's certificate, the patience ended, or
    /// the connection.
    pub(crate) fn set_up_tls(&self, patience: &mut Patience<'_>) -> Result<(), handshake::Error> {
        if let Some(tls) = &self.tls {
            while !tls.shake(&self.stream)? {
                self.wait_with(PollFlags::IN, patience)?;
            }
        }
        Ok(())
    }

    /// Receives what is there; None if nothing is.
    ///
    /// # Errors
    ///
    /// The connection ended; `UnexpectedEof` if the peer ended it, `InvalidData` if TLS did.
    pub(crate) fn receive(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        if let Some(tls) = &self.tls {
            return tls.receive(&self.stream, to);
        }
        match attempt(|| (&*self.stream).read(to))? {
            Some(0) if !to.is_empty() => Err(ErrorKind::UnexpectedEof.into()),
            received => Ok(received),
        }
    }

    /// Sends as much as the kernel takes; None if it takes nothing now.
    ///
    /// With TLS, the kernel may not have taken the last of them: each later call sends those first.
    /// [`Self::send_all`] leaves none.
    ///
    /// # Errors
    ///
    /// The connection ended.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match &self.tls {
            None => attempt(|| (&*self.stream).write(bytes)),
            Some(tls) => tls.send(&self.stream, bytes),
        }
    }

    /// Waits until the connection is readable or writable, as `wanted` says, or has ended; at most
    /// for `limit`. Returns what it is, nothing if the time was over.
    pub(crate) fn wait(&self, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
        match &self.tls {
            None => wait(&self.stream, wanted, limit),
            Some(tls) => tls.wait(&self.stream, wanted, limit),
        }
    }

    /// Whether the peer is there, as far as the kernel knows.
    pub(crate) fn is_there(&self) -> bool {
        let flags = wait(&self.stream, PollFlags::RDHUP, Duration::ZERO);
        flags.is_ok_and(|flags| !flags.intersects(GONE))
    }

    /// Whether the peer is there and has sent nothing that was not read.
    pub(crate) fn is_idle(&self) -> bool {
        let wanted = PollFlags::IN | PollFlags::RDHUP;
        let flags = wait(&self.stream, wanted, Duration::ZERO);
        flags.is_ok_and(|flags| flags.is_empty())
            && !self
                .tls
                .as_ref()
                .is_some_and(|tls| tls.has_more(&self.stream))
    }

    /// Sends everything.
    ///
    /// # Errors
    ///
    /// The patience ended, or the connection.
    pub(crate) fn send_all(&self, mut bytes: &[u8], patience: &mut Patience<'_>) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send(bytes)? {
                Some(sent) => bytes = &bytes[sent..],
                None => drop(self.wait_with(PollFlags::OUT, patience)?),
            }
        }
        if let Some(tls) = &self.tls {
            while !tls.flush(&self.stream)? {
                self.wait_with(PollFlags::OUT, patience)?;
            }
        }
        Ok(())
    }

    /// Receives as many bytes as `to` has.
    ///
    /// # Errors
    ///
    /// The patience ended, or the connection.
    pub(crate) fn receive_exact(
        &self,
        to: &mut [u8],
        patience: &mut Patience<'_>,
    ) -> io::Result<()> {
        let mut received = 0;
        while received < to.len() {
            match self.receive(&mut to[received..])? {
                Some(more) => received += more,
                None => drop(self.wait_with(PollFlags::IN, patience)?),
            }
        }
        Ok(())
    }

    /// Waits for at most a slice, with patience; see [`Self::wait`].
    ///
    /// # Errors
    ///
    /// The patience ended.
    pub(crate) fn wait_with(
        &self,
        wanted: PollFlags,
        patience: &mut Patience<'_>,
    ) -> io::Result<PollFlags> {
        let flags = self.wait(wanted, patience.slice())?;
        // A connection on which something always happens must not outlast the patience.
        patience.check()?;
        Ok(flags)
    }

    /// Whether the end of this connection reaches the peer at once, also if bytes wait to be sent:
    /// when this process closes it, or is killed. Otherwise the end follows those bytes, and a server
    /// that waits for room does not read them.
    pub(crate) fn end_abruptly(&self, abruptly: bool) -> io::Result<()> {
        let linger = abruptly.then_some(Duration::ZERO);
        Ok(sockopt::set_socket_linger(&self.stream, linger)?)
    }

    /// Ends the connection at once, without the bytes that wait to be sent; also for copies of its
    /// descriptor in other processes.
    pub(crate) fn abort(&self) {
        if connect_unspec(&self.stream).is_err() {
            self.shut();
        }
    }

    /// A copy of its descriptor, as a child of a fork has one.
    #[cfg(test)]
    pub(crate) fn copy(&self) -> Self {
        let stream = self.stream.try_clone().expect("descriptors");
        Self {
            stream: Arc::new(stream),
            tls: None,
        }
    }

    /// Ends the connection, also for copies of its descriptor in other processes. Threads that wait
    /// on it go on at once.
    pub(crate) fn shut(&self) {
        // It fails only if the connection has ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// See [`Socket::wait`].
pub(crate) fn wait(
    stream: &TcpStream,
    wanted: PollFlags,
    limit: Duration,
) -> io::Result<PollFlags> {
    let end = Instant::now().checked_add(limit);
    let mut left = limit;
    loop {
        let mut asked = [PollFd::new(stream, wanted)];
        match poll(&mut asked, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) => return Ok(asked[0].revents()),
            // A process that was stopped gets this, also without any handler of signals.
            Err(Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        if let Some(end) = end {
            left = end.saturating_duration_since(Instant::now());
        }
    }
}

/// How long to wait for a peer: until a deadline, as long as the caller says so, and no other thread
/// cancels it.
pub(crate) struct Patience<'a> {
    /// None waits without limit.
    pub(crate) deadline: Option<Instant>,
    /// Asked about every [`SLICE`].
    go_on: &'a mut dyn FnMut() -> bool,
    asked: Instant,
    cancel: Option<&'a Cancel>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(deadline: Option<Instant>, go_on: &'a mut dyn FnMut() -> bool) -> Self {
        let asked = Instant::now();
        Self {
            deadline,
            go_on,
            asked,
            cancel: None,
        }
    }

    /// The same, until another thread cancels it.
    pub(crate) fn unless(self, cancel: &'a Cancel) -> Self {
        Self {
            cancel: Some(cancel),
            ..self
        }
    }

    /// The same caller's patience until another deadline, if that is earlier.
    pub(crate) fn shorter(&mut self, deadline: Instant) -> Patience<'_> {
        let deadline = self.deadline.map_or(deadline, |own| own.min(deadline));
        Patience {
            deadline: Some(deadline),
            go_on: self.go_on,
            asked: self.asked,
            cancel: self.cancel,
        }
    }

    /// Does not end before this time has passed from now.
    pub(crate) fn last_at_least(&mut self, limit: Duration) {
        self.deadline = self
            .deadline
            .map(|deadline| deadline.max(Instant::now() + limit));
    }

    /// Lets a cancellation end the waits on a connection, for as long as the result lives.
    ///
    /// # Errors
    ///
    /// `Interrupted` if it is cancelled.
    pub(crate) fn watch(&self, socket: &Socket) -> io::Result<Option<Watch<'a>>> {
        self.cancel
            .map(|cancel| cancel.watch(&socket.stream))
            .transpose()
    }

    /// Maximum time of the next sleep.
    pub(crate) fn slice(&self) -> Duration {
        self.deadline.map_or(SLICE, |deadline| {
            SLICE.min(deadline.saturating_duration_since(Instant::now()))
        })
    }

    /// Asks the caller if it is time to.
    ///
    /// # Errors
    ///
    /// `TimedOut` after the deadline, `Interrupted` if the caller does not go on.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        if self.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(ErrorKind::Interrupted.into());
        }
        let now = Instant::now();
        // Polls may end a little early.
        if now.duration_since(self.asked) + Duration::from_millis(2) >= SLICE {
            self.asked = now;
            if !(self.go_on)() {
                return Err(ErrorKind::Interrupted.into());
            }
        }
        match self.deadline {
            Some(deadline) if deadline <= now => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

/// Repeats a call while signals interrupt it; None if it would have to wait.
pub(crate) fn attempt(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Whether the peer itself ended the connection: its process lives, or is dead. Otherwise the
/// network did, and the peer may not know yet.
pub(crate) fn is_ended_by_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

/// Bytes that arrived together and were not used yet.
///
/// There is room for more as long as less than half of it is held: what is asked for in one piece must
/// be shorter than that.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// An empty inbox for this many bytes.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            bytes: vec![0; size].into(),
            start: 0,
            end: 0,
        }
    }

    /// The bytes.
    pub(crate) fn held(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes the first `count` bytes, or all if there are fewer.
    pub(crate) fn skip(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }

    /// Receives more; false if nothing is there.
    ///
    /// # Errors
    ///
    /// The connection ended.
    pub(crate) fn fill(&mut self, socket: &Socket) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let received = socket.receive(&mut self.bytes[self.end..])?;
        self.end += received.unwrap_or(0);
        Ok(received.is_some())
    }

    /// Moves bytes to `to`; returns how many.
    pub(crate) fn move_to(&mut self, to: &mut [u8]) -> usize {
        let count = self.held().len().min(to.len());
        to[..count].copy_from_slice(&self.held()[..count]);
        self.skip(count);
        count
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let far = listener.accept().expect("it connects").0;
        let socket = |stream| Socket::new(stream, PEER_TIMEOUT).expect("a connection");
        (socket(near), socket(far))
    }

    #[test]
    fn a_slice_that_is_over_is_no_end_of_the_connection() {
        let (near, far) = pair();
        let brief = Duration::from_millis(5);
        assert_eq!(near.receive(&mut [0; 8]).expect("connected"), None);
        assert!(
            near.wait(PollFlags::IN, brief)
                .expect("connected")
                .is_empty()
        );
        assert!(near.is_there() && near.is_idle());
        far.send(b"x").expect("connected");
        let flags = near.wait(PollFlags::IN, Duration::MAX).expect("connected");
        assert_eq!(flags, PollFlags::IN);
        assert!(near.is_there() && !near.is_idle());
    }

    #[test]
    fn the_end_by_the_peer_is_told_from_the_end_by_the_network() {
        let (near, far) = pair();
        drop(far);
        let error = near.receive(&mut [0; 8]).expect_err("it has ended");
        assert!(is_ended_by_peer(&error));
        assert!(!near.is_there() && !near.is_idle());
        // The kernel gave the peer up.
        assert!(!is_ended_by_peer(&Errno::TIMEDOUT.into()));
        assert!(!is_ended_by_peer(&Errno::HOSTUNREACH.into()));
    }

    #[test]
    fn patience_ends_at_its_deadline_or_when_the_caller_says_so() {
        let (near, _far) = pair();
        let mut always = || true;
        let deadline = Some(Instant::now() + Duration::from_millis(5));
        let patience = &mut Patience::new(deadline, &mut always);
        let error = near
            .receive_exact(&mut [0; 8], patience)
            .expect_err("nothing comes");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let mut calls = 0;
        let mut three_times = || {
            calls += 1;
            calls < 3
        };
        let patience = &mut Patience::new(None, &mut three_times);
        let error = near
            .receive_exact(&mut [0; 8], patience)
            .expect_err("nothing comes");
        assert_eq!((error.kind(), calls), (ErrorKind::Interrupted, 3));
    }

    #[test]
    fn shutting_down_ends_all_copies_and_closing_one_ends_none() {
        let (near, far) = pair();
        drop(near.copy());
        assert!(near.is_there() && far.is_there());
        near.copy().shut();
        assert!(!near.is_there() && !far.is_there());
    }

    #[test]
    fn an_abrupt_end_overtakes_the_bytes_that_wait_to_be_sent() {
        let bytes = vec![0; 1 << 20];
        let fill = |socket: &Socket| while socket.send(&bytes).expect("connected").is_some() {};
        let ends: [fn(Socket); 2] = [|near| near.abort(), drop];
        for end in ends {
            let (near, far) = pair();
            near.end_abruptly(true).expect("connected");
            fill(&near);
            end(near);
            assert!(!far.is_there());
        }
        let (near, far) = pair();
        fill(&near);
        near.shut();
        assert!(far.is_there(), "the end waits behind the bytes");
    }
}
