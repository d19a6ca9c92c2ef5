//! Text in error messages: quotes, carets under the wrong part, ranges of ranks, plurals.

use std::fmt::Write as _;

/// A part of a text: start and end, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first character.
    pub start: usize,
    /// The first character after the part.
    pub end: usize,
}

impl Span {
    /// The characters from `start` up to `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }
}

/// Maximum number of characters of a long text above the carets.
const LINE: usize = 96;
/// Maximum number of those characters before the span.
const BEFORE: usize = 32;
/// Maximum number of characters of a text that is quoted within a sentence.
const QUOTE: usize = 64;
/// Maximum number of ranges of ranks in a message.
const RUNS: usize = 8;

/// Characters that terminals show two columns wide. The pure-Python core has the same table,
/// because the tables of Rust and Python may be of different Unicode versions.
const WIDE: [(char, char); 16] = [
    ('\u{1100}', '\u{115F}'),
    ('\u{2E80}', '\u{303E}'),
    ('\u{3041}', '\u{33FF}'),
    ('\u{3400}', '\u{4DBF}'),
    ('\u{4E00}', '\u{9FFF}'),
    ('\u{A000}', '\u{A4CF}'),
    ('\u{A960}', '\u{A97C}'),
    ('\u{AC00}', '\u{D7A3}'),
    ('\u{F900}', '\u{FAFF}'),
    ('\u{FE10}', '\u{FE19}'),
    ('\u{FE30}', '\u{FE6F}'),
    ('\u{FF01}', '\u{FF60}'),
    ('\u{FFE0}', '\u{FFE6}'),
    ('\u{1F300}', '\u{1F64F}'),
    ('\u{1F900}', '\u{1F9FF}'),
    ('\u{20000}', '\u{3FFFD}'),
];

/// Characters that combine with the previous one and take no column.
const COMBINING: [(char, char); 7] = [
    ('\u{0300}', '\u{036F}'),
    ('\u{0483}', '\u{0489}'),
    ('\u{1AB0}', '\u{1AFF}'),
    ('\u{1DC0}', '\u{1DFF}'),
    ('\u{20D0}', '\u{20FF}'),
    ('\u{FE00}', '\u{FE0F}'),
    ('\u{FE20}', '\u{FE2F}'),
];

/// Characters that would end a line, change its direction, or be invisible.
const HIDDEN: [(char, char); 8] = [
    ('\u{0000}', '\u{001F}'),
    ('\u{007F}', '\u{009F}'),
    ('\u{00AD}', '\u{00AD}'),
    ('\u{061C}', '\u{061C}'),
    ('\u{200B}', '\u{200F}'),
    ('\u{2028}', '\u{202E}'),
    ('\u{2060}', '\u{206F}'),
    ('\u{FEFF}', '\u{FEFF}'),
];

fn within(table: &[(char, char)], c: char) -> bool {
    table.iter().any(|&(first, last)| first <= c && c <= last)
}

/// Replaces each control character and each invisible character by one U+FFFD, so that the text
/// stays on one line and in one direction.
pub fn show(text: &str) -> String {
    text.chars()
        .map(|c| if within(&HIDDEN, c) { '\u{FFFD}' } else { c })
        .collect()
}

/// A text for use within a sentence: made visible by [`show`], and cut if it is long.
pub fn quote(text: &str) -> String {
    let shown = show(text);
    match shown.char_indices().nth(QUOTE) {
        None => shown,
        Some((end, _)) => format!("{}…", &shown[..end]),
    }
}

/// Two indented lines: the text, and carets under the span (at least one).
///
/// Of a long text, only the part around the span is shown.
///
/// ```
/// use shoal_core::text::{Span, point};
/// assert_eq!(point("g:01", Span::new(2, 4)), "  g:01\n    ^^");
/// assert_eq!(point("組:01", Span::new(2, 4)), "  組:01\n     ^^");
/// ```
pub fn point(text: &str, span: Span) -> String {
    let chars: Vec<char> = show(text).chars().collect();
    let from = match chars.len() {
        0..=LINE => 0,
        long => span.start.saturating_sub(BEFORE).min(long - LINE),
    };
    let to = chars.len().min(from + LINE);
    let cut = if from > 0 { "…" } else { "" };
    let (mut line, mut carets) = (
        format!("  {cut}"),
        format!("  {}", " ".repeat(cut.chars().count())),
    );
    let mut marked = false;
    for (at, &c) in chars.iter().enumerate().take(to).skip(from) {
        line.push(c);
        if at < span.end.max(span.start + 1) {
            let mark = if at < span.start { ' ' } else { '^' };
            let columns = columns(c);
            marked |= mark == '^' && columns > 0;
            carets.extend(std::iter::repeat_n(mark, columns));
        }
    }
    if to < chars.len() {
        line.push('…');
    }
    if !marked {
        carets.push('^');
    }
    format!("{line}\n{carets}")
}

fn columns(c: char) -> usize {
    if within(&WIDE, c) {
        2
    } else {
        usize::from(!within(&COMBINING, c))
    }
}

/// Writes ranks as ranges in the given order, such as `0-3,8`; a list of many ranges is cut.
pub fn compress(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
        if runs.len() > RUNS {
            break;
        }
    }
    let mut out = String::new();
    for &(first, last) in runs.iter().take(RUNS) {
        let comma = if out.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = if first == last {
            write!(out, "{comma}{first}")
        } else {
            write!(out, "{comma}{first}-{last}")
        };
    }
    if runs.len() > RUNS {
        out.push_str(",…");
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
