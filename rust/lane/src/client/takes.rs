//! Takes: the server lends messages, and the client confirms that it has them.

use rustix::event::PollFlags;
use shoal_shm::Want;

use super::connection::Connection;
use super::error::{Error, Loss};
use super::{Buffer, Client, Ends, Stop, Target};
use crate::frame::{Item, MAX_REQUESTS, Op, Reply, Request, Status};
use crate::socket::Patience;

/// Minimum length of a message that gets a buffer, which may be kept.
const LONG: u64 = 32 * 1024;

/// The bytes of a message.
#[derive(Debug)]
pub enum Bytes {
    /// A few.
    Short(Vec<u8>),
    /// Many.
    Long(Buffer),
}

/// A message that was taken.
#[derive(Debug)]
pub struct Message {
    /// Its length, weight, sender and format, and whether it was delivered before.
    pub item: Item,
    /// Its bytes.
    pub bytes: Bytes,
}

/// Messages that were taken, and are lent until they are kept. They go back to their queue when this
/// is dropped.
#[derive(Debug)]
pub struct Taken<'a> {
    client: &'a Client,
    /// None once it is settled.
    connection: Option<Box<Connection>>,
    seq: u64,
    /// The messages, in the order of the queue.
    pub messages: Vec<Message>,
}

impl Taken<'_> {
    /// Confirms that this process has the messages. Returns false if it came too late: they are in
    /// their queue again, because the server has not heard of this client for long, or has ended.
    ///
    /// `go_on` is called about every 100 ms, if the connection was cut.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] if the caller ended the wait: then they go back, too.
    pub fn keep(mut self, go_on: &mut dyn FnMut() -> bool) -> Result<bool, Error> {
        let Some(mut connection) = self.connection.take() else {
            return Ok(true);
        };
        let patience = &mut Patience::new(None, go_on);
        while connection.settle(Op::Keep, self.seq).is_err() {
            match self.client.reconnect(&mut connection, patience) {
                Ok(_) => (),
                Err(Loss::Interrupted) => return Err(Error::Interrupted),
                Err(_) => return Ok(false),
            }
        }
        self.client.ended(connection, Ok(())).map(|()| true)
    }

    /// Returns the messages to their queue; any consumer gets them.
    pub fn give_back(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            match connection.settle(Op::GiveBack, self.seq) {
                Ok(()) => drop(self.client.ended(connection, Ok(()))),
                // The server gives them back when it does not come again.
                Err(_) => connection.socket.abort(),
            }
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Takes messages: see [`Client::take`].
pub(super) fn take<'a>(
    client: &'a Client,
    target: &Target<'_>,
    want: Want,
    ends: Ends,
    patience: &mut Patience<'_>,
) -> Result<Taken<'a>, Error> {
    loop {
        let mut connection = client.connect(patience)?;
        let seq = connection.next;
        connection.next += 1;
        let mut take = Take {
            client,
            target,
            want,
            ends,
            seq,
        };
        match take.until_answered(&mut connection, patience) {
            Ok(messages) => {
                return Ok(Taken {
                    client,
                    connection: Some(connection),
                    seq,
                    messages,
                });
            }
            // The server has forgotten the stream: what it may have taken is in its queue again.
            Err(Stop::Cut) => (),
            Err(stop) => client.ended(connection, Err(stop))?,
        }
    }
}

/// A take under way.
struct Take<'a> {
    client: &'a Client,
    target: &'a Target<'a>,
    want: Want,
    ends: Ends,
    seq: u64,
}

impl Take<'_> {
    /// Asks until there is an answer. After a cut the server sends the same messages again.
    fn until_answered(
        &mut self,
        connection: &mut Connection,
        patience: &mut Patience<'_>,
    ) -> Result<Vec<Message>, Stop> {
        loop {
            match self.on(connection, patience) {
                Err(Stop::Cut) => match self.client.reconnect(connection, patience) {
                    Ok(_) => (),
                    Err(Loss::Forgotten) => return Err(Stop::Cut),
                    Err(why) => return Err(Stop::Failed(self.client.lost(why), false)),
                },
                end => return end,
            }
        }
    }

    /// Asks on one connection.
    fn on(
        &self,
        connection: &mut Connection,
        patience: &mut Patience<'_>,
    ) -> Result<Vec<Message>, Stop> {
        let client = self.client;
        let (request, payload) = Request::of_take(Op::Take, self.seq, self.want);
        let request = Request {
            waits: self.ends.waits,
            deadline: self.ends.micros(connection),
            // Checked before.
            key_length: u32::try_from(self.target.key.len()).unwrap_or(u32::MAX),
            maxsize: self.target.maxsize,
            max_bytes: self.target.max_bytes,
            ..request
        };
        let bytes = [&request.encode(), self.target.key, &payload].concat();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match connection.socket.send(rest) {
                Ok(Some(sent)) => rest = &rest[sent..],
                Ok(None) => client.wait(connection, PollFlags::OUT, patience)?,
                Err(_) => return Err(Stop::Cut),
            }
        }
        loop {
            let reply = match connection.next_reply() {
                Ok(Some(reply)) => reply,
                Ok(None) => {
                    let found = connection.look().map_err(|error| client.cut(&error))?;
                    if !found {
                        client.wait(connection, PollFlags::IN, patience)?;
                    }
                    continue;
                }
                Err(error) => return Err(client.cut(&error)),
            };
            if reply.seq == self.seq && reply.status == Status::Done {
                connection.skip_header();
                return self.messages(connection, reply, patience);
            }
            match connection.reply() {
                Ok(None) => client.wait(connection, PollFlags::IN, patience)?,
                // What was asked before: it was heard of then.
                Ok(Some((reply, _))) if reply.seq < self.seq => (),
                Ok(Some((reply, body))) if reply.seq == self.seq => {
                    return Err(Stop::Failed(client.failure(reply.status, &body), true));
                }
                Ok(Some((reply, _))) => {
                    let text = format!("request {} is done, of {}", reply.seq, self.seq);
                    return Err(client.broken(text));
                }
                Err(error) => return Err(client.cut(&error)),
            }
        }
    }

    /// Receives the messages of a reply.
    fn messages(
        &self,
        connection: &mut Connection,
        reply: Reply,
        patience: &mut Patience<'_>,
    ) -> Result<Vec<Message>, Stop> {
        let client = self.client;
        let broken = |text: String| client.broken(format!("take {}: {text}", self.seq));
        if reply.count == 0 || reply.count > MAX_REQUESTS {
            return Err(broken(format!("{} messages", reply.count)));
        }
        let mut left = reply.length;
        let mut messages = Vec::with_capacity(reply.count.min(1024) as usize);
        for _ in 0..reply.count {
            let mut header = [0; Item::SIZE];
            self.receive(connection, &mut header, patience)?;
            let item = Item::decode(&header).map_err(|error| broken(error.to_string()))?;
            let used = (Item::SIZE as u64).checked_add(item.length);
            left = used
                .and_then(|used| left.checked_sub(used))
                .ok_or_else(|| broken(format!("a message of {} bytes in {left}", item.length)))?;
            let bytes = self.bytes(connection, item.length, patience)?;
            messages.push(Message { item, bytes });
        }
        if left > 0 {
            return Err(broken(format!("{left} bytes too many")));
        }
        Ok(messages)
    }

    fn bytes(
        &self,
        connection: &mut Connection,
        length: u64,
        patience: &mut Patience<'_>,
    ) -> Result<Bytes, Stop> {
        let no_memory = || {
            let text = format!("this process has no memory for a message of {length} bytes");
            Stop::Failed(Error::Memory(text), false)
        };
        let size = usize::try_from(length).map_err(|_| no_memory())?;
        if length < LONG {
            let mut bytes = vec![0; size];
            self.receive(connection, &mut bytes, patience)?;
            return Ok(Bytes::Short(bytes));
        }
        let filled = Buffer::filled(size, |bytes| self.receive(connection, bytes, patience))?;
        filled.map(Bytes::Long).ok_or_else(no_memory)
    }

    /// Receives all bytes of `to`. It may last longer than the take, as long as bytes arrive.
    fn receive(
        &self,
        connection: &mut Connection,
        to: &mut [u8],
        patience: &mut Patience<'_>,
    ) -> Result<(), Stop> {
        let client = self.client;
        let mut received = 0;
        while received < to.len() {
            let more = connection.receive(&mut to[received..]);
            let more = more.map_err(|error| client.cut(&error))?;
            received += more;
            if more == 0 {
                client.wait(connection, PollFlags::IN, patience)?;
            } else {
                patience.last_at_least(client.limits.reconnect);
            }
        }
        Ok(())
    }
}
