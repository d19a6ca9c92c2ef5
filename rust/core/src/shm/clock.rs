//! A coarse time of messages: cheap enough to be asked for each.

/// So many units are a second.
pub const PER_SECOND: u32 = 64;

/// Times have so many bits: they come again after 72 hours.
pub(super) const BITS: u32 = 24;

/// The time now, of a clock that all processes of the machine share and that never goes back.
#[cfg(all(target_os = "linux", not(loom)))]
#[inline]
pub(super) fn now() -> u32 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    let fraction = now.tv_nsec / (1_000_000_000 / i64::from(PER_SECOND));
    let units = now
        .tv_sec
        .wrapping_mul(PER_SECOND.into())
        .wrapping_add(fraction);
    // What is cut off is a multiple of all times.
    let [low, middle, high, ..] = units.to_le_bytes();
    u32::from_le_bytes([low, middle, high, 0])
}

/// Time stands still where all interleavings are searched, and where there are no sessions.
#[cfg(not(all(target_os = "linux", not(loom))))]
pub(super) fn now() -> u32 {
    0
}

/// How long ago a time was.
pub(super) fn since(then: u32) -> u32 {
    now().wrapping_sub(then) & ((1 << BITS) - 1)
}
