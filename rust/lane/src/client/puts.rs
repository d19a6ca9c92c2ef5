//! Puts: several messages in one exchange, which goes on after a cut where the server is.

use std::time::Instant;

use rustix::event::PollFlags;

use super::connection::Connection;
use super::error::Error;
use super::outbox::Outbox;
use super::{Client, Ends, Parcel, Stop, Target};
use crate::frame::Status;
use crate::socket::Patience;

/// Several puts that are written together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange<'a> {
    pub(super) client: &'a Client,
    pub(super) target: &'a Target<'a>,
    pub(super) parcels: &'a [Parcel<'a>],
    pub(super) ends: Ends,
    /// The request of the first parcel.
    pub(super) first: u64,
    /// Number of parcels that are in the channel.
    pub(super) done: usize,
    /// Whether the server may have received bytes of it.
    pub(super) is_sent: bool,
}

impl Exchange<'_> {
    pub(super) fn run(&mut self, patience: &mut Patience<'_>) -> Result<(), Error> {
        let client = self.client;
        let mut connection = client.connect(patience)?;
        self.first = connection.next;
        loop {
            let end = match self.on(&mut connection, patience) {
                Err(Stop::Cut) => match self.reconnect(&mut connection, patience) {
                    Ok(_) => continue,
                    Err(stop) => Err(stop),
                },
                end => end,
            };
            let end = match end {
                Err(Stop::Failed(Error::Interrupted, false)) => self.outcome(&mut connection),
                end => end,
            };
            if self.is_sent {
                connection.next = self.first + self.parcels.len() as u64;
            }
            return client.ended(connection, end);
        }
    }

    /// Connects again, and finds out what is done; returns whether a reply follows that says which of
    /// these parcels failed.
    fn reconnect(
        &mut self,
        connection: &mut Connection,
        patience: &mut Patience<'_>,
    ) -> Result<bool, Stop> {
        let standing = self.client.reconnect(connection, patience);
        let standing = standing.map_err(|why| Stop::Failed(self.client.lost(why), false))?;
        if !standing.failed {
            self.advance(standing.done)?;
        }
        // The server repeats the failure of the exchange before as long as it has read nothing of this.
        Ok(standing.failed && standing.done >= self.first)
    }

    /// Finds out how many parcels are in the channel, after the caller has ended the wait: the server
    /// puts no more of them once another connection has come for the stream.
    fn outcome(&mut self, connection: &mut Connection) -> Result<(), Stop> {
        let mut always = || true;
        let deadline = Instant::now() + self.client.limits.late;
        let patience = &mut Patience::new(Some(deadline), &mut always);
        // The reply to one that failed follows.
        let mut waits = self.reconnect(connection, patience)?;
        while waits {
            match self.replies(connection, false) {
                Ok(()) => self.client.wait(connection, PollFlags::IN, patience)?,
                Err(Stop::Failed(error, _)) if error.is_outcome_known() => waits = false,
                Err(stop) => return Err(stop),
            }
        }
        if self.done == self.parcels.len() {
            return Ok(());
        }
        Err(Stop::Failed(Error::Interrupted, false))
    }

    /// Sends the parcels that are not done, and reads replies until all of them are.
    fn on(&mut self, connection: &mut Connection, patience: &mut Patience<'_>) -> Result<(), Stop> {
        let client = self.client;
        // A connection on which nothing was sent serves another request.
        let is_usable = !self.is_sent;
        let interrupted = |_| Stop::Failed(Error::Interrupted, is_usable);
        let _watch = patience.watch(&connection.socket).map_err(interrupted)?;
        self.is_sent = true;
        // Nothing is lost by it: a put waits for its reply.
        connection.end_abruptly(true).map_err(|_| Stop::Cut)?;
        let mut outbox = Outbox::new(self, connection);
        // A reply to an earlier attempt may be there already.
        self.replies(connection, true)?;
        while self.done < self.parcels.len()
            && let Some(chunk) = outbox.chunk()
        {
            match connection.socket.send(chunk) {
                Ok(Some(count)) => {
                    outbox.advance(count);
                    // The server takes it, however long that lasts.
                    patience.last_at_least(client.limits.late);
                }
                Ok(None) => {
                    let wanted = PollFlags::OUT | PollFlags::IN;
                    client.wait(connection, wanted, patience)?;
                    self.replies(connection, true)?;
                }
                // The server may have said why.
                Err(_) => return self.replies(connection, true).and(Err(Stop::Cut)),
            }
        }
        loop {
            self.replies(connection, false)?;
            if self.done == self.parcels.len() {
                return Ok(());
            }
            client.wait(connection, PollFlags::IN, patience)?;
        }
    }

    /// Reads the replies that are here. `is_sending`: the server expects more bytes of the exchange.
    fn replies(&mut self, connection: &mut Connection, is_sending: bool) -> Result<(), Stop> {
        loop {
            let (reply, body) = match connection.reply() {
                Ok(Some(reply)) => reply,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.client.cut(&error)),
            };
            if reply.seq < self.first {
                // The failure of the exchange before: it was heard of then.
                continue;
            }
            if reply.status == Status::Done {
                self.advance(reply.seq)?;
            } else {
                self.advance(reply.seq.wrapping_sub(1))?;
                // A server that failed reads the rest of the exchange in vain, if there is much.
                let error = self.client.failure(reply.status, &body);
                return Err(Stop::Failed(error, !is_sending));
            }
        }
    }

    /// Notes that all requests up to this one are done.
    fn advance(&mut self, seq: u64) -> Result<(), Stop> {
        let done = seq.checked_sub(self.first - 1);
        let done = done.and_then(|done| usize::try_from(done).ok());
        match done {
            Some(done) if (self.done..=self.parcels.len()).contains(&done) => {
                self.done = done;
                Ok(())
            }
            _ => {
                let (first, count) = (self.first, self.parcels.len());
                let text = format!("request {seq} is done, of {count} from {first} on");
                Err(self.client.broken(text))
            }
        }
    }
}
