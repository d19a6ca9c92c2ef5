//! Connections between a process and a channel's actor on another node, without Python.
//!
//! The *client* is a process that puts items into a channel of another node, or takes items from it.
//! The *server* is the channel's actor, whose node has the channel's session of shared memory. They
//! talk over plain TCP. This crate has what both ends say so far: the [`handshake`], which proves
//! that both know the key of the job, and the [`frame`]s.
//!
//! # Who owns what
//!
//! - *Items* lie in the session at the server's node and nowhere else; no buffer holds items that
//!   somebody believes to be in the channel.
//! - The *key of the job*, 32 random bytes, is given to the processes of a job by its control plane.
//! - A *stream* is the sequence of requests of one client, numbered from 1. Its identifier, 128
//!   random bits, is chosen by the client and outlives its connections.
//! - The *record* of a stream, at the server, says up to which number its requests are done.
//!
//! # The rules
//!
//! 1. **A connection does one thing at a time**: an exchange, which is a request and its reply, or a
//!    stream of puts to one key. An exchange that does not end well drops its connection; the server
//!    then undoes what it can.
//! 2. **A reply says that everything up to its number is done.** The server sends it when it has
//!    nothing left to read, before it waits for anything, and after a failure. So batches and
//!    acknowledgements need no timer.
//! 3. **The server reads a payload only when its queue has room.** Long payloads go from the socket
//!    straight to their place in shared memory. TCP's window holds the client back meanwhile: nothing
//!    is buffered, refused, or sent twice, and bounds are exact.
//! 4. **A client sends again on the same stream, to the same server.** The server skips what is done.
//!    Another server, or one that has forgotten the stream, cannot know the outcome of what was not
//!    acknowledged, and says so.
//! 5. **A take lends its items.** The client confirms that it has them, or gives them back; without
//!    an answer they return to their queue when the record of the stream ends.
//! 6. **The server looks whether its client is there** in each slice of a wait, and again right
//!    before it takes an item.
//! 7. **The kernel notices a peer that has vanished**, by keepalive and the limit of unacknowledged
//!    data. Nobody sends heartbeats.

pub mod frame;
pub mod handshake;
