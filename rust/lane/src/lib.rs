//! TCP between a process of another node and the process that owns a channel's session.
//!
//! The items of a channel lie in the shared memory of one session, at the channel's node. A process
//! of that node puts into it directly. A process of another node connects to the owner of the
//! session, and its own thread writes a request and reads the reply. In the owner, one thread for
//! each connection moves the bytes between the socket and the session, and waits in the wait of the
//! queue. No thread sorts replies, no event loop runs, and nothing is buffered on the way.
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use shoal_lane::client::{self, Bytes, Cancel, Client, Parcel, Target};
//! use shoal_lane::handshake::Key;
//! use shoal_lane::server::{self, Server};
//! use shoal_shm::Want;
//! use shoal_shm::blocking::Deadline;
//! # use shoal_shm::session::{Session, Settings};
//!
//! # let folder = tempfile::tempdir()?;
//! # let session = Session::create(&Settings::in_folder(folder.path(), 1 << 20, 1000))?;
//! let key = Key::new([7; 32]); // in truth: random
//! let here = (Ipv4Addr::LOCALHOST, 0).into();
//! let server = Server::start(session, here, key.clone(), server::Limits::default(), None)?;
//!
//! // A process of another node has the address and the key.
//! let client = Client::new(server.address(), key, client::Limits::default(), None);
//! let target = Target { key: b"numbers", ..Target::default() };
//! let seven = Parcel { parts: &[b"seven"], ..Parcel::default() };
//! client.put(&target, &seven, Deadline::Never, &mut || true)?; // now it is in the channel
//!
//! let cancel = Cancel::default(); // another thread can end the take with it
//! let taken = client.take(&target, Want::Count(1), Deadline::Never, &cancel, &mut || true)?;
//! assert!(matches!(&taken.messages[0].bytes, Bytes::Short(bytes) if bytes == b"seven"));
//! taken.keep(&mut || true)?; // before, the message would go back to the channel
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Owners
//!
//! | thing | owner |
//! |---|---|
//! | items | the session's shared memory alone; no process queues them anywhere else |
//! | the [key](handshake::Key) of the job | every process of the job; it comes by another way |
//! | the address | the server, which listens on any free port; the client is told |
//! | a *stream*: a random number, and the numbers of its requests | the client; it outlives its connections |
//! | the *record* of a stream: what is done, and what failed | the server, which keeps it for a while after a connection ended |
//! | the leases, by holder | the server |
//! | the *epoch*: a random number | the process of the server; another epoch is another server |
//! | the bytes of a request | the caller, until its reply has come: so nothing is kept for a retry |
//!
//! # The rules
//!
//! 1. **One connection does one thing at a time.** An exchange is one request, or several puts to one
//!    key that are written together, and the reply. An exchange that does not end well, because the
//!    caller stops waiting or the reply is late, drops its connection.
//! 2. **A reply says that everything up to its number is in the channel.** The server sends it when
//!    it has nothing left to read, before it waits for anything, and after a failure. So no timer is
//!    needed. Small puts that arrived together are published in one step.
//! 3. **The server reads a long payload only when the queue has room and memory is allocated**, and
//!    reads it from the socket into that memory. Until then the window of TCP holds the client back.
//!    The bounds are exact, because the put happens in the queue.
//! 4. **A retry uses the same stream and the same epoch.** The client sends again what follows the
//!    last number that is done, and the server skips what it has done. If the epoch is another one,
//!    or the server has forgotten the stream, the outcome is unknown, and the client says so.
//! 5. **A take lends.** The server keeps the messages until the client has confirmed them or given
//!    them back; its next request confirms them too. On the next connection of the stream the same
//!    messages come again. If the record of the stream ends, they go back to their queue. The client
//!    confirms when it has rebuilt them; if the connection was cut, on the next one of the stream,
//!    before anything else.
//! 6. **Is the peer there?** The server asks the kernel in each slice of a wait, and after it, before
//!    it puts. The record of a stream without a connection ends 2 s after the peer has ended the
//!    connection, and 12 s after the network has.
//! 7. **The kernel notices a node that has vanished**, within 10 s. A connection without a request
//!    for 10 s is closed by the server; the client makes another one when it needs it.
//! 8. **A cancelled request does nothing more.** Another thread ends the connection of a request that
//!    waits. The server then takes and puts nothing more for it. The client comes back over another
//!    connection of the stream, which the server welcomes when that is certain, and learns how much
//!    of a put is done, or gives back what a take has taken.
//! 9. **A lease outlives the stream.** A client can make leases of the messages of a take, with its
//!    *holder* (a random number) and a number for each, and waits until the server has said so. It
//!    ends them in any order, over any connection, and renews those in use every few seconds. The server
//!    ends a lease that was not renewed for 12 s.
//!
//! # TLS
//!
//! With [`tls`], which both sides have or neither, all of this goes through TLS 1.3, from the first
//! byte on. Both prove first that the CA of the job knows them, and the server that it is the node of
//! its address; then that they know the key. A side that is not believed learns it by an alert, and
//! the client does not try again. The rest is as without: the end of a connection is that of its TCP,
//! never a message of TLS, so it does not wait behind bytes either.
//!
//! # The part of the kernel
//!
//! A client whose long message waits for room fills the buffers of both kernels. Two things follow.
//! The end of its connection would wait behind these bytes, so a client that puts ends one by a reset,
//! which also a killed process sends. (After a take it ends in order: the confirmation arrives.) And its kernel takes 10 s without room for a peer that has gone, and
//! ends the connection: the client goes on with another one, as after any cut.
//!
//! # States
//!
//! A connection, at the server: handshake (at most 5 s, at most 64 at once, the oldest is dropped),
//! reading, waiting for room or for messages, replying, reading, …, closed. A stream: connected, apart, forgotten. A
//! put, at the client: sent, then done, failed or unknown. A take: asked, then lent, then kept or given
//! back.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`tls`] | the certificates of a node, and TLS over a connection |
//! | [`handshake`] | both sides prove that they know the key |
//! | [`frame`] | the bytes of requests and replies |
//! | [`server`] | accepts connections, keeps the records of streams, puts into the session and takes from it |
//! | [`client`] | keeps idle connections, sends and receives messages, and goes on after a cut |

mod cancel;
pub mod client;
pub mod frame;
pub mod handshake;
mod random;
pub mod server;
mod socket;
pub mod tls;
