//! The parser of the resources of one segment: a range or `all`, a step, exclusions.

use super::error::PlacementErrorKind as Kind;
use super::fault::Fault;
use super::grammar::{MAX_PROCESSES, too_many};
use super::token::{Token, TokenKind};
use crate::text::{Span, compress, quote};

/// Maximum number of resources in one numbering.
const MAX_RANKS: u64 = 1 << 31;

/// Maximum number of digits that are read; a number with more digits is too high in any case.
const MAX_DIGITS: usize = 15;

/// The ranks that a segment selects, ascending, and their span in the text.
pub(super) struct Selection {
    pub(super) ranks: Vec<u32>,
    pub(super) span: Span,
    /// Whether the segment has exclusions.
    pub(super) excluding: bool,
}

impl Selection {
    pub(super) fn size(&self) -> u64 {
        self.ranks.len() as u64
    }
}

/// A range as it is written, both ends included.
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) span: Span,
    last_span: Span,
    /// Whether it has a dash, or is `all`.
    many: bool,
}

/// Reads the resources of a segment.
pub(super) fn select(
    mut cursor: Cursor<'_>,
    total: u64,
    segment: Span,
) -> Result<Selection, Fault> {
    let total = total.min(MAX_RANKS);
    let start = cursor.here();
    let base = cursor.base(total)?;
    let step = cursor.step(&base)?;
    cursor.exists(&base, total, "")?;
    let base_end = cursor.end;
    let mut exclusions = Vec::new();
    while cursor.take(TokenKind::Bang).is_some() {
        let expected = "expected a rank or a range after '!', such as all!3!4-7";
        let range = cursor.range(Kind::Exclusion, expected)?;
        cursor.exists(&range, total, " to exclude")?;
        exclusions.push(range);
    }
    if let Some(next) = cursor.next() {
        return Err(cursor.leftover(next, base_end, !exclusions.is_empty()));
    }
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    if (base.last - base.first) / step as u64 >= MAX_PROCESSES {
        return Err(too_many(segment));
    }
    let mut ranks: Vec<u32> = (base.first..=base.last)
        .step_by(step)
        .filter_map(|rank| u32::try_from(rank).ok())
        .collect();
    for range in &exclusions {
        let from = ranks.partition_point(|&rank| u64::from(rank) < range.first);
        let to = ranks.partition_point(|&rank| u64::from(rank) <= range.last);
        if from == to {
            let what = match &ranks[..] {
                [] => "there is nothing left to exclude".to_owned(),
                _ => format!(
                    "there is nothing to exclude here: the ranks are {}",
                    compress(&ranks)
                ),
            };
            return Err(Fault::new(Kind::ExcludesNothing, range.span, what));
        }
        ranks.drain(from..to);
    }
    let span = Span::new(start, cursor.end);
    if ranks.is_empty() {
        return Err(Fault::new(
            Kind::NothingLeft,
            span,
            "the exclusions leave no rank",
        ));
    }
    Ok(Selection {
        ranks,
        span,
        excluding: !exclusions.is_empty(),
    })
}

/// Reads the tokens of a part, one after the other.
pub(super) struct Cursor<'a> {
    chars: &'a [char],
    tokens: &'a [Token],
    /// The end of the previous token.
    pub(super) end: usize,
}

impl Cursor<'_> {
    pub(super) fn new<'a>(chars: &'a [char], tokens: &'a [Token], end: usize) -> Cursor<'a> {
        Cursor { chars, tokens, end }
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        let (&first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        self.end = first.span.end;
        Some(first)
    }

    fn take(&mut self, kind: TokenKind) -> Option<Token> {
        match self.tokens.first() {
            Some(token) if token.kind == kind => self.next(),
            _ => None,
        }
    }

    /// The start of the next token, or the end of the part.
    fn here(&self) -> usize {
        self.tokens
            .first()
            .map_or(self.end, |token| token.span.start)
    }

    pub(super) fn is_all(&self, token: &Token) -> bool {
        let word: String = self.text(token.span);
        token.kind == TokenKind::Word && word.eq_ignore_ascii_case("all")
    }

    fn text(&self, span: Span) -> String {
        self.chars[span.start..span.end].iter().collect()
    }

    fn number(&self, span: Span) -> u64 {
        read_number(&self.chars[span.start..span.end])
    }

    fn base(&mut self, total: u64) -> Result<Range, Fault> {
        let expected = "expected a rank, a range such as 0-3, or all";
        let Some(token) = self
            .tokens
            .first()
            .copied()
            .filter(|token| self.is_all(token))
        else {
            let (start, tokens) = (self.here(), self.tokens);
            return self
                .range(Kind::ResourceSyntax, expected)
                .map_err(|fault| match tokens {
                    // Ranges without one of their ends, as in Python's slices.
                    [dash, number]
                        if dash.kind == TokenKind::Dash && number.kind == TokenKind::Number =>
                    {
                        fault.or(start, start, "0")
                    }
                    [_, dash] if dash.kind == TokenKind::Dash && total > 0 => {
                        fault.or(dash.span.end, dash.span.end, (total - 1).to_string())
                    }
                    _ => fault,
                });
        };
        self.next();
        if total == 0 {
            let what = "there are no ranks";
            return Err(Fault::new(Kind::NoSuchResource, token.span, what));
        }
        Ok(Range {
            first: 0,
            last: total - 1,
            span: token.span,
            last_span: token.span,
            many: true,
        })
    }

    /// Reads `rank` or `rank-rank`.
    pub(super) fn range(&mut self, kind: Kind, expected: &str) -> Result<Range, Fault> {
        let first = self.rank(kind, expected)?;
        let Some(dash) = self.take(TokenKind::Dash) else {
            let rank = self.number(first.span);
            return Ok(Range {
                first: rank,
                last: rank,
                span: first.span,
                last_span: first.span,
                many: false,
            });
        };
        self.end = dash.span.end;
        let last = self.rank(kind, "expected a rank after '-'")?;
        let span = Span::new(first.span.start, last.span.end);
        let range = Range {
            first: self.number(first.span),
            last: self.number(last.span),
            span,
            last_span: last.span,
            many: true,
        };
        if range.last < range.first {
            let turned = format!("{}-{}", self.digits(last.span), self.digits(first.span));
            let what = "a range must not end below its start";
            return Err(Fault::new(Kind::Descending, span, what).or(span.start, span.end, turned));
        }
        Ok(range)
    }

    fn rank(&mut self, kind: Kind, expected: &str) -> Result<Token, Fault> {
        match self.next() {
            Some(token) if token.kind == TokenKind::Number => Ok(token),
            Some(token) => Err(self.unexpected(kind, token, expected)),
            None => Err(Fault::new(kind, Span::new(self.end, self.end), expected)),
        }
    }

    fn step(&mut self, base: &Range) -> Result<u64, Fault> {
        let Some(slash) = self.take(TokenKind::Slash) else {
            return Ok(1);
        };
        let expected = "expected a step of 1 or more after '/', such as 0-63/8";
        let number = self.rank(Kind::Step, expected)?;
        let step = self.number(number.span);
        if step == 0 {
            return Err(self.unexpected(Kind::Step, number, expected));
        }
        if !base.many {
            let span = Span::new(slash.span.start, number.span.end);
            let what = "a step needs a range or all before it, such as 0-63/8";
            return Err(Fault::new(Kind::Step, span, what));
        }
        Ok(step)
    }

    fn exists(&self, range: &Range, total: u64, why: &str) -> Result<(), Fault> {
        if range.last < total {
            return Ok(());
        }
        let (span, last) = (range.span, range.last_span);
        let what = format!("there is no rank {}{why}", self.digits(last));
        let fault = Fault::new(Kind::NoSuchResource, last, what);
        if range.last > total || total == 0 {
            return Err(fault);
        }
        // One too high: ranks counted from 1, or the number of ranks used as the last rank.
        let highest = total - 1;
        Err(if range.first == 1 && total > 1 {
            fault.or(span.start, span.end, format!("0-{highest}"))
        } else if range.first == highest {
            fault.or(span.start, span.end, highest.to_string())
        } else {
            fault.or(last.start, last.end, highest.to_string())
        })
    }

    /// The fault of a token that is not allowed at its position.
    pub(super) fn unexpected(&self, kind: Kind, token: Token, expected: &str) -> Fault {
        let found = quote(&self.text(token.span));
        Fault::new(kind, token.span, format!("{expected}; found \"{found}\""))
    }

    /// The fault of a token after the resources.
    fn leftover(&mut self, token: Token, base_end: usize, excluded: bool) -> Fault {
        let Span { start, end } = token.span;
        if token.kind == TokenKind::Slash && excluded {
            let what = "a step stands before the exclusions, such as 0-63/8!16";
            let fault = Fault::new(Kind::StepAfterExclusion, token.span, what);
            let Some(number) = self.take(TokenKind::Number) else {
                return fault;
            };
            let step = self.text(Span::new(start, number.span.end));
            let exclusions = self.text(Span::new(base_end, start));
            return fault.or(base_end, number.span.end, format!("{step}{exclusions}"));
        }
        let fault = self.unexpected(Kind::ResourceSyntax, token, "expected ':', ',' or the end");
        match token.kind {
            TokenKind::Dash => fault.or(start, end, "!"),
            TokenKind::Number => fault.or(start, start, ","),
            _ => fault,
        }
    }

    /// The digits of a number without leading zeros.
    fn digits(&self, span: Span) -> String {
        let text = self.text(span);
        let digits = text.trim_start_matches('0');
        if digits.is_empty() {
            "0".to_owned()
        } else {
            quote(digits)
        }
    }
}

/// The value of a text of digits. A very long text gives a number that is too high in any case.
pub(super) fn read_number(digits: &[char]) -> u64 {
    let zeros = digits.iter().take_while(|&&c| c == '0').count();
    let digits = &digits[zeros..];
    if digits.len() > MAX_DIGITS {
        return 10_u64.pow(15);
    }
    let values = digits.iter().filter_map(|c| c.to_digit(10));
    values.fold(0, |number, digit| number * 10 + u64::from(digit))
}
