//! The shared-memory core for Python: how objects become messages.

#[expect(dead_code, unused_imports, reason = "the queue's own binding calls it")]
mod codec;
