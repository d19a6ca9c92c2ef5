//! The parser of a placement string, which says which process of a component gets which resources.
//!
//! ```text
//! placement = segment ("," segment)*            empty segments are skipped
//! segment   = resources [":" range]             without ":", one new process for each resource
//! resources = (range | "all") ["/" step] ("!" range)*
//! range     = rank | rank "-" rank
//! ```
//!
//! A step selects every n-th rank of a range, starting with the first; an exclusion removes ranks.
//! Resources are ascending and unique; process ranks run from 0 without gaps. For hardware, one of
//! the two counts of a segment must be a multiple of the other. If resources are whole nodes, every
//! node gets an equal share of the processes, and the remainder goes to the first nodes, one each.
//!
//! If there are several faults, the one in the leftmost segment is reported. Within a segment,
//! faults of its resources come first, then those of its processes, then those of how they fit
//! together.

use std::sync::Arc;

use super::NodeGroup;
use super::error::{PlacementError, PlacementErrorKind as Kind};
use super::fault::{Fault, near_counts};
use super::ranks::RankLists;
use super::resources::Resources;
use super::select::{Cursor, Selection, read_number, select};
use super::token::{BLANKS, Token, TokenKind, tokenize};
use crate::text::{Span, compress, plural, point, quote, show};

/// Maximum number of processes, far beyond any cluster: `0:0-999999999` is a typing error, not a
/// plan.
pub const MAX_PROCESSES: u64 = 1_048_576;

/// Maximum length of a text, in characters, for which an error suggests a valid spelling.
const MAX_HINTED: usize = 256;

/// Parses the placement string of one component; returns the resource ranks of each process.
///
/// # Errors
///
/// The text breaks a rule of the format (the error points at the wrong part), or the groups cannot
/// be numbered together.
pub fn parse_placement(
    text: &str,
    groups: &[Arc<NodeGroup>],
    component: &str,
) -> Result<RankLists, PlacementError> {
    let resources = Resources::of(groups).map_err(|error| {
        let message = format!("component \"{}\": {error}", show(component));
        PlacementError::new(error.kind, message)
    })?;
    let chars: Vec<char> = text.chars().collect();
    Parser::new(&chars, &resources).parse().map_err(|fault| {
        let message = format!(
            "component \"{}\": placement \"{}\": {}{}\n{}\n{}",
            show(component),
            quote(text),
            fault.what,
            hint(&fault, &chars, &resources),
            point(text, fault.span),
            resources.describe()
        );
        PlacementError {
            kind: fault.kind,
            message,
            at: Some((text.to_owned(), fault.span)),
        }
    })
}

/// The suggestion for the error message: the first of the fault's candidates that is a valid
/// placement. Empty if there is none.
fn hint(fault: &Fault, chars: &[char], resources: &Resources<'_>) -> String {
    if chars.len() > MAX_HINTED {
        return String::new();
    }
    let tidy =
        |text: String| -> Vec<char> { text.chars().filter(|c| !BLANKS.contains(c)).collect() };
    let valid = |chars: &Vec<char>| Parser::new(chars, resources).parse().is_ok();
    match fault.candidates(chars).into_iter().map(tidy).find(valid) {
        Some(chars) => format!("; did you mean \"{}\"?", chars.iter().collect::<String>()),
        None => String::new(),
    }
}

struct Parser<'a> {
    chars: &'a [char],
    resources: &'a Resources<'a>,
    /// All resource ranks so far, ascending.
    used: Vec<u32>,
    processes: RankLists,
    /// The end of the previous segment, if that ended with an exclusion.
    exclusion_end: Option<usize>,
}

impl<'a> Parser<'a> {
    fn new(chars: &'a [char], resources: &'a Resources<'a>) -> Self {
        Self {
            chars,
            resources,
            used: Vec::new(),
            processes: RankLists::new(),
            exclusion_end: None,
        }
    }

    fn parse(mut self) -> Result<RankLists, Fault> {
        let tokens = tokenize(self.chars);
        for segment in tokens.split(|token| token.kind == TokenKind::Comma) {
            if !segment.is_empty() {
                self.segment(segment)?;
            }
        }
        if self.processes.is_empty() {
            let whole = Span::new(0, self.chars.len());
            return Err(Fault::new(
                Kind::Empty,
                whole,
                "expected ranks, such as 0-3 or all",
            ));
        }
        Ok(self.processes)
    }

    fn segment(&mut self, tokens: &[Token]) -> Result<(), Fault> {
        let span = Span::new(tokens[0].span.start, tokens[tokens.len() - 1].span.end);
        let mut parts = tokens.split(|token| token.kind == TokenKind::Colon);
        let head = parts.next().unwrap_or_default();
        let tail = parts.next();
        if let Some(second) = tokens
            .iter()
            .filter(|token| token.kind == TokenKind::Colon)
            .nth(1)
        {
            let at = second.span;
            let fault = Fault::new(Kind::Colons, at, "expected one ':' in a segment at most");
            let after_third = parts.nth(1).unwrap_or_default();
            return Err(match tail {
                // `0::0` has a colon too many, `0:0:1:1` one that should be a comma, and `0:0:0` a
                // part too many.
                Some([]) => fault.or(at.start, at.end, ""),
                _ if !after_third.is_empty() => fault.or(at.start, at.end, ","),
                _ => fault.or(at.start, span.end, ""),
            });
        }
        let end = head.last().map_or(span.start, |last| last.span.end);
        let ranks = select(
            Cursor::new(self.chars, head, end),
            self.resources.total,
            span,
        )
        .map_err(|fault| self.with_processes(fault, tail, span))?;
        self.claim(&ranks, tail)?;
        let count = match tail {
            Some(part) => self.process_count(part, end, span)?,
            None => ranks.size(),
        };
        if self.expected() + count.max(ranks.size()) > MAX_PROCESSES {
            return Err(too_many(span));
        }
        let before = self.processes.len();
        self.share(&ranks, count, span, tail)?;
        for process in before..self.processes.len() {
            let share = self.processes.get(process);
            if share.len() == 1 {
                continue;
            }
            if let Some((kind, why)) = self.resources.conflict(share) {
                let what = format!(
                    "process {process} would get ranks {}, which are {why}",
                    compress(share)
                );
                return Err(self.or_counts(Fault::new(kind, span, what), &ranks, count, tail));
            }
        }
        self.exclusion_end = (ranks.excluding && tail.is_none()).then_some(span.end);
        Ok(())
    }

    /// Checks that the ranks are above those of all previous segments, and records them.
    fn claim(&mut self, ranks: &Selection, tail: Option<&[Token]>) -> Result<(), Fault> {
        let (Some(&first), Some(&highest)) = (ranks.ranks.first(), self.used.last()) else {
            self.used.extend(&ranks.ranks);
            return Ok(());
        };
        if first > highest {
            self.used.extend(&ranks.ranks);
            return Ok(());
        }
        let shared = ranks
            .ranks
            .iter()
            .find(|rank| self.used.binary_search(rank).is_ok());
        if let Some(shared) = shared {
            let what =
                format!("Resource ranks must be unique: {shared} stands in a segment before");
            let fault = Fault::new(Kind::ResourceNotUnique, ranks.span, what);
            // A comma ends the exclusions: `all!3,4` may have been meant to exclude both.
            return Err(match (self.exclusion_end, tail) {
                (Some(end), None) => fault.or(end, ranks.span.start, "!"),
                _ => fault,
            });
        }
        let what =
            format!("Resource ranks must be in ascending order: {first} stands after {highest}");
        let fault = Fault::new(Kind::ResourceNotAscending, ranks.span, what);
        let text: String = self.chars.iter().collect();
        let mut segments: Vec<&str> = text
            .split(',')
            .map(|segment| segment.trim_matches(BLANKS))
            .collect();
        segments.retain(|segment| !segment.is_empty());
        let first_rank = |segment: &&str| {
            let digits: Vec<char> = segment.chars().take_while(char::is_ascii_digit).collect();
            read_number(&digits)
        };
        segments.sort_by_key(first_rank);
        Err(fault.or(0, self.chars.len(), segments.join(",")))
    }

    fn process_count(&self, part: &[Token], end: usize, span: Span) -> Result<u64, Fault> {
        let colon = self.chars[end..]
            .iter()
            .position(|&c| c == ':')
            .map_or(end, |at| end + at);
        let mut cursor = Cursor::new(self.chars, part, colon + 1);
        if let Some(word) = part.first().filter(|token| cursor.is_all(token)) {
            let what = "Process ranks cannot be 'all': expected a range such as 0-3";
            return Err(Fault::new(Kind::ProcessAll, word.span, what).or(colon, span.end, ""));
        }
        let expected = "expected a process rank or a range such as 0-3";
        let ranks = cursor.range(Kind::ProcessSyntax, expected)?;
        if let Some(next) = cursor.next() {
            if matches!(next.kind, TokenKind::Slash | TokenKind::Bang) {
                let what = "Process ranks have no steps and no exclusions: they run from 0 without \
                            gaps";
                return Err(Fault::new(Kind::ProcessSelection, next.span, what));
            }
            return Err(cursor.unexpected(Kind::ProcessSyntax, next, "expected ',' or the end"));
        }
        let (first, expected) = (ranks.first, self.expected());
        let size = ranks.last - ranks.first + 1;
        let (kind, what) = if expected == 0 && first > 0 {
            (
                Kind::ProcessStart,
                "Process ranks must start at 0".to_owned(),
            )
        } else if first < expected {
            let what = format!(
                "Process ranks must be unique: {first} stands in a segment before, expected \
                 {expected} next"
            );
            (Kind::ProcessNotUnique, what)
        } else if first > expected {
            let what = format!(
                "Process ranks must be in ascending order without gaps: expected {expected} next"
            );
            (Kind::ProcessGap, what)
        } else {
            return Ok(size);
        };
        let next = write_range(expected, size);
        Err(Fault::new(kind, ranks.span, what).or(ranks.span.start, ranks.span.end, next))
    }

    /// Divides the ranks among `count` processes.
    fn share(
        &mut self,
        ranks: &Selection,
        count: u64,
        span: Span,
        tail: Option<&[Token]>,
    ) -> Result<(), Fault> {
        let size = ranks.size();
        if self.resources.whole {
            if count < size {
                let what = format!(
                    "{size} nodes for {}: one process cannot run across multiple nodes",
                    plural(count, "process")
                );
                let fault = Fault::new(Kind::SpansNodes, span, what);
                return Err(self.or_counts(fault, ranks, count, tail));
            }
            let (each, more) = (count / size, count % size);
            for (index, &rank) in (0..).zip(&ranks.ranks) {
                for _ in 0..each + u64::from(index < more) {
                    self.processes.push([rank]);
                }
            }
        } else if size.is_multiple_of(count) {
            let length = usize::try_from(size / count).unwrap_or(usize::MAX);
            for share in ranks.ranks.chunks(length) {
                self.processes.push(share.iter().copied());
            }
        } else if count.is_multiple_of(size) {
            for &rank in &ranks.ranks {
                for _ in 0..count / size {
                    self.processes.push([rank]);
                }
            }
        } else {
            let what = format!(
                "{} and {}: one count must be divisible by the other",
                plural(size, "resource"),
                plural(count, "process")
            );
            let fault = Fault::new(Kind::Divisible, span, what);
            return Err(self.or_counts(fault, ranks, count, tail));
        }
        Ok(())
    }

    /// Adds fixes with the nearest numbers of processes that may work.
    fn or_counts(
        &self,
        mut fault: Fault,
        ranks: &Selection,
        count: u64,
        tail: Option<&[Token]>,
    ) -> Fault {
        let (Some([first, ..]), Some([.., last])) = (tail, tail) else {
            return fault;
        };
        let next = read_number(&self.chars[first.span.start..first.span.end]);
        for count in near_counts(ranks.size(), count) {
            fault = fault.or(first.span.start, last.span.end, write_range(next, count));
        }
        fault
    }

    /// For a resource rank that is too high, and process ranks that end with the same number: adds
    /// fixes that correct both.
    fn with_processes(&self, fault: Fault, tail: Option<&[Token]>, span: Span) -> Fault {
        let (Some([first, ..]), Some([.., last]), Kind::NoSuchResource) = (tail, tail, fault.kind)
        else {
            return fault;
        };
        let number = |span: Span| read_number(&self.chars[span.start..span.end]);
        if last.kind != TokenKind::Number || number(last.span) != number(fault.span) {
            return fault;
        }
        let mends: Vec<_> = fault.fixes.clone();
        mends.iter().fold(fault, |fault, (place, text)| {
            let rest: String = self.chars[place.end..first.span.start].iter().collect();
            let start: String = self.chars[span.start..place.start].iter().collect();
            let digits: Vec<char> = text.chars().collect();
            let highest = digits.rsplit(|&c| c == '-').next().map_or(0, read_number);
            let count = write_range(self.expected(), highest + 1);
            fault.or(span.start, span.end, format!("{start}{text}{rest}{count}"))
        })
    }

    /// The rank of the next process.
    fn expected(&self) -> u64 {
        self.processes.len() as u64
    }
}

pub(super) fn too_many(span: Span) -> Fault {
    let what = format!("more than {MAX_PROCESSES} processes or resources");
    Fault::new(Kind::TooMany, span, what)
}

/// The text of the range of `count` ranks that starts at `first`.
fn write_range(first: u64, count: u64) -> String {
    match count {
        1 => first.to_string(),
        _ => format!("{first}-{}", first + count - 1),
    }
}
