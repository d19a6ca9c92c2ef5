//! Takes: the server lends messages, and the client confirms that it has them.

use std::time::Instant;

use rustix::event::PollFlags;
use shoal_shm::Want;
use shoal_shm::blocking::Deadline;

use super::connection::{Connection, Settlement};
use super::error::{Error, Loss};
use super::{Buffer, Cancel, Client, Ends, Stop, Target, check};
use crate::frame::{Item, MAX_LEASES, Op, Reply, Request, Status};
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
    /// Number of messages, of which the caller may have taken some.
    count: u64,
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
        let settlement = Settlement {
            seq: self.seq,
            keeps: true,
        };
        while connection.settle(settlement).is_err() {
            match self.client.reconnect(&mut connection, patience) {
                Ok(_) => (),
                Err(Loss::Interrupted) => return Err(Error::Interrupted),
                Err(_) => return Ok(false),
            }
        }
        self.client.ended(connection, Ok(())).map(|()| true)
    }

    /// Makes them leases of this client, numbered from the returned number on. They go back to their
    /// queue unless the client [renews](Client::renew) its leases, or [ends](Client::end_leases) them.
    /// Returns None if it came too late, as [`Self::keep`], or was not answered in time.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] if the caller ended the wait: then they go back within seconds.
    pub fn lease(mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Option<u64>, Error> {
        let Some(mut connection) = self.connection.take() else {
            return Ok(None);
        };
        let name = self.client.new_leases(self.count)?;
        let question = Question::new(self.client, Request::of_lease(self.seq, name));
        let seq = connection.next;
        connection.next += 1;
        let patience = &mut Patience::new(question.ends.late, go_on);
        match question.until_answered(&mut connection, seq, patience, &mut |_, _, _| Ok(())) {
            Ok(()) => self.client.ended(connection, Ok(()))?,
            Err(Stop::Failed(Error::Interrupted, _)) => {
                connection.socket.abort();
                return Err(Error::Interrupted);
            }
            Err(_) => return Ok(None),
        }
        Ok(Some(name.number))
    }

    /// Returns the messages to their queue; any consumer gets them.
    pub fn give_back(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            let (seq, keeps) = (self.seq, false);
            match connection.settle(Settlement { seq, keeps }) {
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

impl Client {
    /// Takes messages, as many as `want` says, waiting for them.
    ///
    /// The server lends them until they are [kept](Taken::keep): before, they go back to the queue
    /// if this process dies, or the result is dropped. `go_on` and `cancel` are as for
    /// [`Self::put_many`]: a take that they end gives back what it may have taken.
    ///
    /// # Errors
    ///
    /// If none was taken. What was on its way from a lost server goes back to its queue.
    pub fn take(
        &self,
        target: &Target<'_>,
        want: Want,
        deadline: Deadline,
        cancel: &Cancel,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Taken<'_>, Error> {
        check(target, &[]).map_err(Error::Invalid)?;
        let ends = Ends::new(deadline, &self.limits);
        let patience = &mut Patience::new(ends.late, go_on).unless(cancel);
        let (request, payload) = Request::of_take(Op::Take, 0, want);
        let question = Question {
            client: self,
            request: Request {
                maxsize: target.maxsize,
                max_bytes: target.max_bytes,
                ..request
            },
            key: target.key,
            payload,
            ends,
        };
        let read = &mut |connection: &mut Connection, reply: Reply, patience: &mut Patience<'_>| {
            let client = self;
            Incoming { client, reply }.messages(connection, patience)
        };
        let (connection, messages) = question.ask(patience, read)?;
        Ok(Taken {
            client: self,
            seq: connection.next - 1,
            connection: Some(connection),
            count: messages.len() as u64,
            messages,
        })
    }

    /// Keeps leases for longer, by number; to be called every few seconds for all that are in use.
    ///
    /// # Errors
    ///
    /// If the server did not answer.
    pub fn renew(&self, numbers: &[u64], go_on: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let holder = self.new_leases(0)?.holder;
        numbers.chunks(MAX_LEASES).try_for_each(|numbers| {
            Question::new(self, Request::of_leases(Op::Renew, holder, numbers)).answer(go_on)
        })
    }

    /// Ends leases, by number: their messages are confirmed, or go back to their queues. Does nothing
    /// with those that have ended.
    ///
    /// # Errors
    ///
    /// If the server did not answer.
    pub fn end_leases(
        &self,
        numbers: &[u64],
        goes_back: bool,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Error> {
        let holder = self.new_leases(0)?.holder;
        numbers.chunks(MAX_LEASES).try_for_each(|numbers| {
            let mut question = Question::new(self, Request::of_leases(Op::Settle, holder, numbers));
            question.request.kind = goes_back.into();
            question.answer(go_on)
        })
    }
}

/// Reads what follows the header of a reply.
type Read<'a, T> = &'a mut dyn FnMut(&mut Connection, Reply, &mut Patience<'_>) -> Result<T, Stop>;

/// A request that is asked again after a cut, until it is answered.
struct Question<'a> {
    client: &'a Client,
    /// Without its number, deadline and length of the key.
    request: Request,
    key: &'a [u8],
    payload: Vec<u8>,
    ends: Ends,
}

impl<'a> Question<'a> {
    /// A question without a key, which does not wait.
    fn new(client: &'a Client, (request, payload): (Request, Vec<u8>)) -> Self {
        Self {
            client,
            request,
            key: &[],
            payload,
            ends: Ends::new(Deadline::Now, &client.limits),
        }
    }

    /// Asks a question whose answer says only that it is done.
    fn answer(&self, go_on: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let patience = &mut Patience::new(self.ends.late, go_on);
        let (connection, ()) = self.ask(patience, &mut |_, _, _| Ok(()))?;
        self.client.ended(connection, Ok(()))
    }

    /// Asks; returns the connection, which is not idle yet, and what `read` makes of the reply.
    fn ask<T>(
        &self,
        patience: &mut Patience<'_>,
        read: Read<'_, T>,
    ) -> Result<(Box<Connection>, T), Error> {
        loop {
            let mut connection = self.client.connect(patience)?;
            let seq = connection.next;
            connection.next += 1;
            match self.until_answered(&mut connection, seq, patience, read) {
                Ok(answer) => return Ok((connection, answer)),
                // The server has forgotten the stream: what it may have taken is in its queue again.
                Err(Stop::Cut) => (),
                Err(Stop::Failed(Error::Interrupted, _)) if self.request.op == Op::Take => {
                    self.withdraw(connection, seq);
                    return Err(Error::Interrupted);
                }
                Err(stop) => self.client.ended(connection, Err(stop))?,
            }
        }
    }

    /// Gives back what a take that the caller has ended may have taken: the server takes nothing more
    /// for it once another connection has come for the stream.
    fn withdraw(&self, mut connection: Box<Connection>, seq: u64) {
        let mut always = || true;
        let deadline = Instant::now() + self.client.limits.late;
        let patience = &mut Patience::new(Some(deadline), &mut always);
        if self.client.reconnect(&mut connection, patience).is_ok() {
            let keeps = false;
            // If it fails, they go back when the server has not heard of this client for a while.
            let _ = connection.settle(Settlement { seq, keeps });
        }
        // Not shut down: what was sent last must arrive. The numbers of the stream have a gap now.
    }

    /// Asks until there is an answer. After a cut the server sends the same messages again.
    fn until_answered<T>(
        &self,
        connection: &mut Connection,
        seq: u64,
        patience: &mut Patience<'_>,
        read: Read<'_, T>,
    ) -> Result<T, Stop> {
        loop {
            match self.on(connection, seq, patience, read) {
                Err(Stop::Cut) => match self.client.reconnect(connection, patience) {
                    // Only a take is answered twice.
                    Ok(at) if at.done >= seq && !at.failed && self.request.op != Op::Take => {
                        let reply = Reply {
                            status: Status::Done,
                            count: 0,
                            length: 0,
                            seq,
                        };
                        return read(connection, reply, patience);
                    }
                    Ok(_) => (),
                    Err(Loss::Forgotten) => return Err(Stop::Cut),
                    Err(why) => return Err(Stop::Failed(self.client.lost(why), false)),
                },
                end => return end,
            }
        }
    }

    /// Asks on one connection.
    fn on<T>(
        &self,
        connection: &mut Connection,
        seq: u64,
        patience: &mut Patience<'_>,
        read: Read<'_, T>,
    ) -> Result<T, Stop> {
        let client = self.client;
        let interrupted = |_| Stop::Failed(Error::Interrupted, false);
        let watch = patience.watch(&connection.socket).map_err(interrupted)?;
        let request = Request {
            seq,
            waits: self.ends.waits,
            deadline: self.ends.micros(connection),
            // Checked before.
            key_length: u32::try_from(self.key.len()).unwrap_or(u32::MAX),
            ..self.request
        };
        let bytes = [&request.encode(), self.key, &self.payload].concat();
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
                    client.wait(connection, PollFlags::IN, patience)?;
                    continue;
                }
                Err(error) => return Err(client.cut(&error)),
            };
            if reply.seq == seq && reply.status == Status::Done {
                connection.skip_header();
                // What comes now is received, and given back.
                drop(watch);
                return read(connection, reply, patience);
            }
            match connection.reply() {
                Ok(None) => client.wait(connection, PollFlags::IN, patience)?,
                // The server repeats the failure of an earlier request.
                Ok(Some((reply, _))) if reply.seq < seq => (),
                Ok(Some((reply, body))) if reply.seq == seq => {
                    return Err(Stop::Failed(client.failure(reply.status, &body), true));
                }
                Ok(Some((reply, _))) => {
                    let text = format!("request {} is done, of {seq}", reply.seq);
                    return Err(client.broken(text));
                }
                Err(error) => return Err(client.cut(&error)),
            }
        }
    }
}

/// The messages of a reply to a take.
struct Incoming<'a> {
    client: &'a Client,
    reply: Reply,
}

impl Incoming<'_> {
    /// Receives them.
    fn messages(
        &self,
        connection: &mut Connection,
        patience: &mut Patience<'_>,
    ) -> Result<Vec<Message>, Stop> {
        let reply = self.reply;
        let broken = |text: String| self.client.broken(format!("take {}: {text}", reply.seq));
        if reply.count == 0 {
            return Err(broken("no messages".to_owned()));
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
