//! `Layer`: TLS over one connection. As those of a socket, its reads and writes never block.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustls::{Connection, IoState};

use super::described;
use crate::handshake;
use crate::socket::{attempt, wait};

/// Maximum number of bytes that are read from the kernel at once.
const READ: usize = 64 * 1024;

/// TLS over a connection, whose stream is given to each call.
///
/// Two kinds of bytes wait here and not in the kernel. What arrived, decrypted or not, counts as
/// readable. What is encrypted and was not taken by the kernel is sent by each later call, also by a
/// wait, and nothing more is accepted before.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Locked for no longer than a call that does not block. One thread at a time uses a connection.
    state: Mutex<Box<State>>,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    /// Encrypted bytes that arrived, from `start` to `end`.
    arrived: Box<[u8]>,
    start: usize,
    end: usize,
    /// Why the kernel took no more bytes. The next call that can says so.
    failed: Option<io::Error>,
}

impl Layer {
    pub(super) fn new(connection: impl Into<Connection>) -> Self {
        Self {
            state: Mutex::new(Box::new(State {
                connection: connection.into(),
                arrived: vec![0; READ].into(),
                start: 0,
                end: 0,
                failed: None,
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, Box<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with the handshake of TLS; false if that needs more bytes of the peer, or the kernel
    /// takes none.
    pub(crate) fn shake(&self, stream: &TcpStream) -> Result<bool, handshake::Error> {
        self.state().shake(stream)
    }

    /// See [`Socket::receive`](crate::socket::Socket::receive). Bytes that were changed on the way,
    /// and an alert of the peer, are `InvalidData`.
    pub(crate) fn receive(&self, stream: &TcpStream, to: &mut [u8]) -> io::Result<Option<usize>> {
        self.state().receive(stream, to)
    }

    /// Encrypts bytes and sends them as far as the kernel takes them; None if it still has not taken
    /// those of an earlier call.
    pub(crate) fn send(&self, stream: &TcpStream, bytes: &[u8]) -> io::Result<Option<usize>> {
        let mut state = self.state();
        if !state.flush(stream) {
            return state.why_unsent(stream).map(|()| None);
        }
        let accepted = state.connection.writer().write(bytes)?;
        if accepted == 0 && !bytes.is_empty() {
            return Err(ErrorKind::WriteZero.into());
        }
        if !state.flush(stream) {
            state.why_unsent(stream)?;
        }
        Ok(Some(accepted))
    }

    /// Whether the kernel has taken all that was sent.
    pub(crate) fn flush(&self, stream: &TcpStream) -> io::Result<bool> {
        let mut state = self.state();
        if state.flush(stream) {
            return Ok(true);
        }
        state.why_unsent(stream).map(|()| false)
    }

    /// Whether bytes arrived that were not received, and are not in the kernel.
    pub(crate) fn has_more(&self, stream: &TcpStream) -> bool {
        self.state().has_more(stream)
    }

    /// See [`Socket::wait`](crate::socket::Socket::wait).
    pub(crate) fn wait(
        &self,
        stream: &TcpStream,
        wanted: PollFlags,
        limit: Duration,
    ) -> io::Result<PollFlags> {
        let end = Instant::now().checked_add(limit);
        let mut left = limit;
        loop {
            let mut state = self.state();
            if wanted.contains(PollFlags::IN) && state.has_more(stream) {
                return Ok(PollFlags::IN);
            }
            let is_flushed = state.flush(stream);
            if state.failed.is_some() {
                return Ok(PollFlags::ERR);
            }
            drop(state);
            let asked = if is_flushed {
                wanted
            } else {
                wanted | PollFlags::OUT
            };
            let mut flags = wait(stream, asked, left)?;
            if is_flushed || !flags.contains(PollFlags::OUT) {
                return Ok(flags);
            }
            if !(self.state().flush(stream) && wanted.contains(PollFlags::OUT)) {
                flags.remove(PollFlags::OUT);
            }
            if let Some(end) = end {
                left = end.saturating_duration_since(Instant::now());
            }
            if !flags.is_empty() || left.is_zero() {
                return Ok(flags);
            }
        }
    }
}

impl State {
    fn shake(&mut self, stream: &TcpStream) -> Result<bool, handshake::Error> {
        let mut is_plain = false;
        loop {
            match self.decrypt(stream) {
                // TLS has told the peer that it does not understand it.
                Err(_) if is_plain => return Err(handshake::Error::Plain),
                decrypted => drop(decrypted?),
            }
            let is_flushed = self.flush(stream);
            if !self.connection.is_handshaking() {
                if !is_flushed {
                    self.why_unsent(stream)?;
                }
                return Ok(is_flushed);
            }
            if !self.read(stream)? {
                return Ok(false);
            }
            is_plain = handshake::is_plain(&self.arrived[..self.end]);
        }
    }

    fn receive(&mut self, stream: &TcpStream, to: &mut [u8]) -> io::Result<Option<usize>> {
        let mut received = 0;
        // An answer to the peer's last bytes may wait.
        self.flush(stream);
        while received < to.len() {
            match self.decrypt(stream) {
                Ok(true) => match self.connection.reader().read(&mut to[received..])? {
                    0 if received == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                    0 => break,
                    more => received += more,
                },
                // An error is met again by the next call.
                _ if received > 0 => break,
                Err(error) => return Err(error),
                Ok(false) => {
                    if !self.read(stream)? {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(received))
    }

    fn has_more(&mut self, stream: &TcpStream) -> bool {
        // An error is something to receive.
        self.decrypt(stream).unwrap_or(true)
    }

    /// Decrypts what arrived until there is something to receive, bytes or the end; false if there is
    /// not.
    fn decrypt(&mut self, stream: &TcpStream) -> io::Result<bool> {
        loop {
            let state = self.process(stream)?;
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return Ok(true);
            }
            if self.start == self.end {
                return Ok(false);
            }
            let mut rest = &self.arrived[self.start..self.end];
            self.start += self.connection.read_tls(&mut rest)?;
        }
    }

    fn process(&mut self, stream: &TcpStream) -> io::Result<IoState> {
        let processed = self.connection.process_new_packets();
        processed.map_err(|error| {
            // The peer is told why.
            self.flush(stream);
            io::Error::new(ErrorKind::InvalidData, described(&error))
        })
    }

    /// Reads what arrived, when all from before is decrypted; false if nothing did.
    fn read(&mut self, mut stream: &TcpStream) -> io::Result<bool> {
        let read = attempt(|| stream.read(&mut self.arrived));
        if let Ok(Some(count @ 1..)) = read {
            (self.start, self.end) = (0, count);
            return Ok(true);
        }
        // The kernel gives its reason once.
        match self.failed.take() {
            Some(error) => Err(error),
            None if read?.is_none() => Ok(false),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends what is encrypted; false if some of it is left, because the kernel takes no more or has
    /// failed.
    fn flush(&mut self, stream: &TcpStream) -> bool {
        while self.connection.wants_write() {
            match attempt(|| self.connection.write_tls(&mut Sending(stream))) {
                Ok(Some(1..)) => (),
                Ok(_) => return false,
                Err(error) => {
                    self.failed.get_or_insert(error);
                    return false;
                }
            }
        }
        true
    }

    /// The error that keeps bytes from being sent, if it is one. A peer that has ended the connection
    /// may have said why.
    fn why_unsent(&mut self, stream: &TcpStream) -> io::Result<()> {
        let Some(error) = self.failed.take() else {
            return Ok(());
        };
        while !self.decrypt(stream)? {
            if !matches!(self.read(stream), Ok(true)) {
                break;
            }
        }
        Err(error)
    }
}

/// Writes to a stream, without a signal if the peer has gone.
struct Sending<'a>(&'a TcpStream);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let nothing = &mut SendAncillaryBuffer::default();
        Ok(sendmsg(self.0, slices, nothing, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
