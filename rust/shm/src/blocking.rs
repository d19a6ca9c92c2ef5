//! The loops of operations that wait: try, sleep for a slice of the time, try again.
//!
//! They are generic over the queue: [`SessionQueue`](crate::session::SessionQueue) waits by them in
//! production, and loom searches them on a [`Queue`] whose futex it controls.

use std::time::{Duration, Instant};

use crate::ring::{Claim, Corrupt, Futex, IntentRecord, Queue, Refusal, Taken, WaitState, Want};

/// Maximum sleep before a caller handles signals and looks for dead processes. A little longer
/// than the minimum pause between two such looks, so that a look is due after each slice, and short
/// enough for Ctrl-C and for messages of dead processes. Each slice costs about 0.1 ms.
pub const SLICE: Duration = Duration::from_millis(90);

/// A queue on which threads wait.
pub trait WaitQueue: Sync {
    /// Why the queue cannot be used.
    type Error: Send;

    /// Whether a take would return something other than "not yet".
    ///
    /// # Errors
    ///
    /// The queue cannot be used.
    fn is_takeable(&self, want: Want) -> Result<bool, Self::Error>;

    /// Whether a put of a message of this length would return something other than "full".
    ///
    /// # Errors
    ///
    /// The queue cannot be used.
    fn is_puttable(&self, length: u64) -> Result<bool, Self::Error>;

    /// Sleeps until a take may succeed, for at most `limit`.
    ///
    /// # Errors
    ///
    /// The queue cannot be used.
    fn sleep_to_take(
        &self,
        want: Want,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<(), Self::Error>;

    /// Sleeps until a put may succeed that lacks something, for at most `limit`.
    ///
    /// # Errors
    ///
    /// The queue cannot be used.
    fn sleep_to_put(
        &self,
        lack: Lack,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<(), Self::Error>;

    /// Ends a consumer's wait, whatever its result: a woken thread wakes the next one if something
    /// is left.
    fn end_taking(&self, want: Want, wait_state: WaitState);

    /// Ends a producer's wait, whatever its result: a woken thread wakes the next one if there is
    /// room left.
    fn end_putting(&self, wait_state: WaitState);
}

impl<F: Futex + Sync> WaitQueue for Queue<'_, F> {
    type Error = Corrupt;

    fn is_takeable(&self, want: Want) -> Result<bool, Corrupt> {
        self.is_takeable(want)
    }

    fn is_puttable(&self, length: u64) -> Result<bool, Corrupt> {
        self.is_puttable(length)
    }

    fn sleep_to_take(
        &self,
        want: Want,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<(), Corrupt> {
        self.wait_to_take(want, wait_state, limit).map(drop)
    }

    fn sleep_to_put(
        &self,
        lack: Lack,
        wait_state: &mut WaitState,
        limit: Duration,
    ) -> Result<(), Corrupt> {
        // A ring has no memory to wait for.
        let (Lack::Room { length } | Lack::Memory { length }) = lack;
        self.wait_to_put(length, wait_state, limit).map(drop)
    }

    fn end_taking(&self, want: Want, wait_state: WaitState) {
        self.done_taking(want, wait_state);
    }

    fn end_putting(&self, wait_state: WaitState) {
        self.done_putting(wait_state);
    }
}

/// The resource that a put lacks. The length is that of its message, 0 before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Room in the queue.
    Room {
        /// Number of bytes.
        length: u64,
    },
    /// Memory of the session.
    Memory {
        /// Number of bytes.
        length: u64,
    },
}

/// The part of the caller in a wait, such as handling signals. A function that returns whether to
/// go on is one.
pub trait Pause {
    /// How often to look before a sleep: useful if [`Self::sleep`] itself takes as long as this
    /// many looks.
    const LOOKS: u32 = 0;

    /// Called before each sleep, while nothing is put or taken; returns whether to go on.
    fn go_on(&mut self) -> bool;

    /// Calls a function that sleeps.
    fn sleep<T: Send>(&mut self, sleep: impl FnOnce() -> T + Send) -> T {
        sleep()
    }
}

impl<F: FnMut() -> bool> Pause for F {
    fn go_on(&mut self) -> bool {
        self()
    }
}

/// When a call stops waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// It does not wait.
    Now,
    /// It waits without limit.
    Never,
    /// At this time.
    At(Instant),
    /// This long after its first sleep: a call that need not wait does not read the clock.
    After(Duration),
}

/// The limits of a wait.
#[derive(Debug)]
pub struct Until<P> {
    /// When to give up.
    pub deadline: Deadline,
    /// Maximum time of one sleep; [`Duration::MAX`] means no maximum.
    pub slice: Duration,
    /// Called before each sleep.
    pub pause: P,
}

impl<P: Pause> Until<P> {
    /// Limits with sleeps of at most [`SLICE`].
    #[inline]
    pub fn new(deadline: Deadline, pause: P) -> Self {
        Self {
            deadline,
            slice: SLICE,
            pause,
        }
    }

    /// Maximum time of the next sleep; None to give up.
    fn next_sleep(&mut self) -> Option<Duration> {
        if self.deadline == Deadline::Now || !self.pause.go_on() {
            return None;
        }
        let left = match self.deadline {
            Deadline::Now | Deadline::Never => return Some(self.slice),
            Deadline::At(end) => end.saturating_duration_since(Instant::now()),
            Deadline::After(limit) => {
                self.deadline = Deadline::At(Instant::now() + limit);
                limit
            }
        };
        (!left.is_zero()).then(|| left.min(self.slice))
    }
}

/// Looks a few times; returns whether it is ready.
fn look<P: Pause, E>(ready: impl Fn() -> Result<bool, E>) -> Result<bool, E> {
    for _ in 0..P::LOOKS {
        if ready()? {
            return Ok(true);
        }
        std::hint::spin_loop();
    }
    Ok(false)
}

/// Repeats a take until it returns something other than "not yet", or the wait ends.
///
/// `take` runs between the sleeps, never inside of [`Pause::sleep`].
///
/// # Errors
///
/// Those of `take`; or the queue cannot be used.
pub fn take_within<Q: WaitQueue, P: Pause, E: From<Q::Error>>(
    queue: &Q,
    want: Want,
    until: &mut Until<P>,
    mut take: impl FnMut() -> Result<Taken, E>,
) -> Result<Taken, E> {
    let mut consumer = Consumer {
        queue,
        want,
        wait_state: WaitState::default(),
    };
    loop {
        let not_yet = match take()? {
            not_yet @ (Taken::Empty | Taken::Short) => not_yet,
            taken => return Ok(taken),
        };
        let Some(limit) = until.next_sleep() else {
            return Ok(not_yet);
        };
        if !look::<P, _>(|| queue.is_takeable(want))? {
            let wait_state = &mut consumer.wait_state;
            until
                .pause
                .sleep(|| queue.sleep_to_take(want, wait_state, limit))?;
        }
    }
}

/// A consumer that waits. When it stops, for whatever reason, the next one is woken.
struct Consumer<'q, Q: WaitQueue> {
    queue: &'q Q,
    want: Want,
    wait_state: WaitState,
}

impl<Q: WaitQueue> Drop for Consumer<'_, Q> {
    fn drop(&mut self) {
        let wait_state = std::mem::take(&mut self.wait_state);
        self.queue.end_taking(self.want, wait_state);
    }
}

/// A producer that may wait several times for one put. When it is dropped, the next one is woken.
#[derive(Debug)]
pub struct Producer<'q, Q: WaitQueue> {
    queue: &'q Q,
    wait_state: WaitState,
}

impl<'q, Q: WaitQueue> Producer<'q, Q> {
    /// A producer that has not waited yet.
    #[inline]
    pub fn new(queue: &'q Q) -> Self {
        let wait_state = WaitState::default();
        Self { queue, wait_state }
    }

    /// The queue that it waits for.
    #[inline]
    pub fn queue(&self) -> &'q Q {
        self.queue
    }

    /// Repeats an attempt until it lacks nothing, or the wait ends; then returns what the last
    /// attempt lacked.
    ///
    /// `attempt` runs between the sleeps, never inside of [`Pause::sleep`]. Its argument says
    /// whether the producer was woken.
    ///
    /// # Errors
    ///
    /// Those of `attempt`; or the queue cannot be used.
    pub fn within<T, P: Pause, E: From<Q::Error>>(
        &mut self,
        until: &mut Until<P>,
        mut attempt: impl FnMut(&WaitState) -> Result<Result<T, Lack>, E>,
    ) -> Result<Result<T, Lack>, E> {
        let Self { queue, wait_state } = self;
        loop {
            let lack = match attempt(wait_state)? {
                Ok(done) => return Ok(Ok(done)),
                Err(lack) => lack,
            };
            let Some(limit) = until.next_sleep() else {
                return Ok(Err(lack));
            };
            if let Lack::Room { length } = lack
                && look::<P, _>(|| queue.is_puttable(length))?
            {
                continue;
            }
            until
                .pause
                .sleep(|| queue.sleep_to_put(lack, wait_state, limit))?;
        }
    }

    /// Waits until there is room for some message. Puts nothing.
    ///
    /// # Errors
    ///
    /// The queue cannot be used.
    pub fn wait_for_room(
        &mut self,
        until: &mut Until<impl Pause>,
    ) -> Result<Result<(), Lack>, Q::Error> {
        let queue = self.queue;
        self.within(until, |_| {
            let lack = Lack::Room { length: 0 };
            Ok(queue.is_puttable(0)?.then_some(()).ok_or(lack))
        })
    }
}

impl<F: Futex + Sync> Producer<'_, Queue<'_, F>> {
    /// Puts messages in order, and waits for room; leaves in `claims` those that it did not put.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn put_many(
        &mut self,
        record: &mut IntentRecord<'_>,
        claims: &mut Vec<Claim>,
        until: &mut Until<impl Pause>,
    ) -> Result<Option<Refusal>, Corrupt> {
        let queue = self.queue;
        let end = self.within(until, |_| {
            let refused = queue.put_many(record, claims)?;
            let next = claims.first().map_or(0, |claim| queue.length(claim));
            let full = refused == Some(Refusal::Full);
            Ok(if full {
                Err(Lack::Room { length: next })
            } else {
                Ok(refused)
            })
        })?;
        Ok(end.unwrap_or(Some(Refusal::Full)))
    }
}

impl<Q: WaitQueue> Drop for Producer<'_, Q> {
    #[inline]
    fn drop(&mut self) {
        self.queue.end_putting(std::mem::take(&mut self.wait_state));
    }
}
