//! Prefetching of cache lines that are about to be written.
//!
//! A line that another core wrote last takes 60 to 130 ns to arrive, and a locked instruction waits
//! for it.

#![cfg_attr(
    all(target_arch = "x86_64", not(loom)),
    expect(unsafe_code, reason = "a processor instruction, in inline assembly")
)]

/// Prefetches the cache line of a value that is written soon. It changes nothing.
#[inline]
pub(crate) fn prefetch<T>(line: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        // SAFETY: it reads and writes nothing that a program could notice, wherever the address
        // points, and changes no register. On a processor without this instruction it does nothing.
        unsafe {
            std::arch::asm!(
                "prefetchw byte ptr [{}]", in(reg) std::ptr::from_ref(line),
                options(nostack, preserves_flags, readonly)
            );
        }
    }
    // Other architectures have no such instruction in stable Rust.
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = line;
}
