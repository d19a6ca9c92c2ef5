//! Asking for memory before it is needed.
//!
//! What another core wrote last takes 60 to 130 ns to come, and a locked instruction waits for it.

#![cfg_attr(
    all(target_arch = "x86_64", not(loom)),
    expect(unsafe_code, reason = "an instruction of the processor")
)]

/// Asks for the line of something that is to be written soon. It changes nothing.
#[inline]
pub(super) fn prefetch<T>(line: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        // SAFETY: it reads and writes nothing that a program could notice, wherever it points, and
        // touches no register. Where a processor has no such instruction it does nothing at all.
        unsafe {
            std::arch::asm!(
                "prefetchw byte ptr [{}]", in(reg) std::ptr::from_ref(line),
                options(nostack, preserves_flags, readonly)
            );
        }
    }
    // Others have no such instruction in stable Rust.
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = line;
}
