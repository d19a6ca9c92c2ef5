//! Pointing at the part of a text that is wrong.

use std::fmt::Write as _;

/// A part of a text: start and end, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first character.
    pub start: usize,
    /// The character after the last.
    pub end: usize,
}

impl Span {
    /// The characters from `start` up to `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }
}

/// Replaces control characters, one for one, so that a text stays on one line of its width.
pub fn show(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_control() { '\u{FFFD}' } else { c })
        .collect()
}

/// Two indented lines: the text, and carets under the span (one at least).
///
/// ```
/// use shoal_core::text::{Span, point};
/// assert_eq!(point("g:01", Span::new(2, 4)), "  g:01\n    ^^");
/// ```
pub fn point(text: &str, span: Span) -> String {
    let carets = span.end.saturating_sub(span.start).max(1);
    format!(
        "  {}\n  {}{}",
        show(text),
        " ".repeat(span.start),
        "^".repeat(carets)
    )
}

/// Writes ranks as ranges, in their order: `0-3,8`.
pub fn compress(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let mut out = String::new();
    for (first, last) in runs {
        let comma = if out.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = if first == last {
            write!(out, "{comma}{first}")
        } else {
            write!(out, "{comma}{first}-{last}")
        };
    }
    out
}

/// A count with its noun: `1 process`, `2 processes`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    let ending = match (count, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {noun}{ending}")
}
