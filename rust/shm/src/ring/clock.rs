//! A coarse clock for the age of messages, cheap enough to be read for each of them.

/// Units of time per second.
#[cfg(all(target_os = "linux", not(loom)))]
pub(crate) const PER_SECOND: u32 = 64;

/// Number of bits of a time; times repeat after 72 hours.
pub(super) const BITS: u32 = 24;

/// The current time of a clock that all processes of the machine share and that never goes back.
#[cfg(all(target_os = "linux", not(loom)))]
#[inline]
pub(super) fn now() -> u32 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    let fraction = now.tv_nsec / (1_000_000_000 / i64::from(PER_SECOND));
    let units = now
        .tv_sec
        .wrapping_mul(PER_SECOND.into())
        .wrapping_add(fraction);
    // The bits that are cut off count whole repetitions.
    let [low, middle, high, ..] = units.to_le_bytes();
    u32::from_le_bytes([low, middle, high, 0])
}

/// Always 0 under loom, and on systems without sessions.
#[cfg(not(all(target_os = "linux", not(loom))))]
pub(super) fn now() -> u32 {
    0
}

/// The time since `then`.
pub(super) fn since(then: u32) -> u32 {
    now().wrapping_sub(then) & ((1 << BITS) - 1)
}
