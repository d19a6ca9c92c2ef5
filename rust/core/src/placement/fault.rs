//! Faults of a placement string, and the corrected texts that an error message may suggest.

use super::error::PlacementErrorKind as Kind;
use crate::text::Span;

/// A part of a text and its replacement.
pub(super) type Fix = (Span, String);

/// A rule that a placement string breaks.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) span: Span,
    /// The rule in words.
    pub(super) what: String,
    /// Changes that may correct the text, the likeliest first.
    pub(super) fixes: Vec<Fix>,
}

impl Fault {
    pub(super) fn new(kind: Kind, span: Span, what: impl Into<String>) -> Self {
        Self {
            kind,
            span,
            what: what.into(),
            fixes: Vec::new(),
        }
    }

    /// Adds a change that may correct the text.
    pub(super) fn or(mut self, start: usize, end: usize, text: impl Into<String>) -> Self {
        self.fixes.push((Span::new(start, end), text.into()));
        self
    }

    /// Corrected texts that may be suggested; they may still be invalid.
    pub(super) fn candidates(&self, chars: &[char]) -> Vec<String> {
        let mut texts: Vec<String> = self
            .fixes
            .iter()
            .map(|(span, text)| {
                let (before, after) = (&chars[..span.start], &chars[span.end..]);
                before
                    .iter()
                    .copied()
                    .chain(text.chars())
                    .chain(after.iter().copied())
                    .collect()
            })
            .collect();
        if matches!(
            self.kind,
            Kind::Colons
                | Kind::ResourceSyntax
                | Kind::ProcessSyntax
                | Kind::Step
                | Kind::Exclusion
        ) {
            texts.push(respell(chars));
        }
        texts
    }
}

/// Replaces signs and words that people, editors and other formats use with those of the grammar.
fn respell(chars: &[char]) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for (at, &c) in chars.iter().enumerate() {
        if c.is_ascii_alphabetic() {
            word.push(c.to_ascii_lowercase());
            continue;
        }
        out.push_str(known_word(&word));
        word.clear();
        match c {
            '.' if chars.get(at + 1) == Some(&'.') => {}
            '.' if at > 0 && chars[at - 1] == '.' => out.push('-'),
            '\u{2010}'..='\u{2015}' | '…' | '−' | '﹘' | '﹣' | '－' | '~' | '～' => {
                out.push('-');
            }
            ';' | '；' | '，' | '、' | '+' | '&' | '|' => out.push(','),
            '：' => out.push(':'),
            '！' | '^' => out.push('!'),
            '／' | '\\' | '%' => out.push('/'),
            '*' => out.push_str("all"),
            '[' | ']' | '(' | ')' | '{' | '}' | '"' | '\'' | '“' | '”' | '‘' | '’' => {}
            '\u{A0}' | '\u{2009}' | '\u{202F}' | '\u{3000}' => out.push(' '),
            '０'..='９' => out.extend(char::from_digit(u32::from(c) - u32::from('０'), 10)),
            _ => out.push(c),
        }
    }
    out.push_str(known_word(&word));
    out
}

/// The spelling in the grammar of a lower-case word: of a synonym, or of a word that is one letter
/// away from `all`. Any other word stays the same.
fn known_word(word: &str) -> &str {
    let letters = word.as_bytes();
    let near_all = match letters.len() {
        2 => matches!(word, "al" | "ll"),
        3 => letters.iter().zip(b"all").filter(|(a, b)| a != b).count() <= 1,
        4 => (0..4).any(|skip| {
            let rest = letters.iter().enumerate().filter(|&(at, _)| at != skip);
            rest.map(|(_, &letter)| letter).eq(*b"all")
        }),
        _ => false,
    };
    match word {
        "to" => "-",
        "and" => ",",
        _ if near_all => "all",
        _ => word,
    }
}

/// Numbers of processes near `count` that can share `size` resources evenly, the nearest first.
pub(super) fn near_counts(size: u64, count: u64) -> Vec<u64> {
    const FAR: u64 = 4096;
    const ENOUGH: usize = 4;
    let fits = |n: u64| n > 0 && (size.is_multiple_of(n) || n.is_multiple_of(size));
    (1..=FAR)
        .flat_map(|distance| [Some(count + distance), count.checked_sub(distance)])
        .flatten()
        .filter(|&n| fits(n))
        .take(ENOUGH)
        .collect()
}
