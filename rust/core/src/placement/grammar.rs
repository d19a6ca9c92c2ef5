//! The placement string of one component: which process gets which resources.
//!
//! ```text
//! placement = segment ("," segment)*          empty segments are skipped
//! segment   = resources [":" processes]       no processes: the next ones, one a resource
//! resources = rank | rank "-" rank | "all"
//! processes = rank | rank "-" rank
//! ```
//!
//! Resources ascend and are unique; process ranks run from 0 without gaps. For hardware one count
//! of a segment is a multiple of the other. Where resources are whole nodes, every node gets its
//! share of the processes and the remainder goes to the first nodes, one each.

use super::NodeGroup;
use super::error::{PlacementError, PlacementErrorKind as Kind};
use super::resources::Resources;
use crate::text::{Span, compress, plural, point, show};

/// Far beyond any cluster: `0:0-999999999` is a typing error, not a plan.
pub const MAX_PROCESSES: u64 = 1_048_576;

const MAX_DIGITS: usize = 10;

/// Reads the placement string of one component: the resource ranks of each process.
///
/// # Errors
///
/// A rule of the format is broken; the error points at the part.
pub fn parse_placement(
    text: &str,
    groups: &[NodeGroup],
    component: &str,
) -> Result<Vec<Vec<u32>>, PlacementError> {
    let resources = Resources::of(groups).map_err(|error| {
        let message = format!("component \"{}\": {error}", show(component));
        PlacementError::new(error.kind, message)
    })?;
    let parser = Parser {
        text,
        chars: text.chars().collect(),
        resources,
        component,
        used: Vec::new(),
        processes: Vec::new(),
    };
    parser.parse()
}

#[derive(Clone, Copy)]
struct Range {
    first: u64,
    /// The rank after the last, so that a range can be empty.
    end: u64,
    last_span: Span,
}

impl Range {
    fn size(&self) -> u64 {
        self.end - self.first
    }
}

struct Parser<'a> {
    text: &'a str,
    chars: Vec<char>,
    resources: Resources<'a>,
    component: &'a str,
    used: Vec<Range>,
    processes: Vec<Vec<u32>>,
}

impl Parser<'_> {
    fn parse(mut self) -> Result<Vec<Vec<u32>>, PlacementError> {
        let whole = Span::new(0, self.chars.len());
        for segment in self.split(whole, ',') {
            let span = self.trim(segment);
            if span.start < span.end {
                self.segment(span)?;
            }
        }
        if self.processes.is_empty() {
            return Err(self.error(Kind::Empty, whole, "expected ranks, such as 0-3 or all"));
        }
        Ok(self.processes)
    }

    fn segment(&mut self, span: Span) -> Result<(), PlacementError> {
        let parts = self.split(span, ':');
        if let Some(third) = parts.get(2) {
            let colon = Span::new(third.start - 1, third.start);
            return Err(self.error(Kind::Colons, colon, "expected one ':' in a segment at most"));
        }
        let ranks = self.resource_ranks(self.trim(parts[0]))?;
        let count = match parts.get(1) {
            Some(&part) => self.process_count(self.trim(part))?,
            None => ranks.size(),
        };
        if self.expected() + count.max(ranks.size()) > MAX_PROCESSES {
            let what = format!("more than {MAX_PROCESSES} processes or resources");
            return Err(self.error(Kind::TooMany, span, &what));
        }
        let shares = self.shares(ranks, count, span)?;
        for (index, share) in shares
            .iter()
            .enumerate()
            .filter(|(_, share)| share.len() > 1)
        {
            if let Some((kind, why)) = self.resources.conflict(share) {
                let process = self.processes.len() + index;
                let ranks = compress(share);
                let what = format!("process {process} would get ranks {ranks}, which are {why}");
                return Err(self.error(kind, span, &what));
            }
        }
        self.processes.extend(shares);
        Ok(())
    }

    fn resource_ranks(&mut self, span: Span) -> Result<Range, PlacementError> {
        let ranks = if self.is_all(span) {
            Range {
                first: 0,
                end: self.resources.total,
                last_span: span,
            }
        } else {
            let expected = "expected a rank, a range such as 0-3, or all";
            self.range(span, Kind::ResourceSyntax, expected)?
        };
        if ranks.end > self.resources.total || ranks.size() == 0 {
            let what = match ranks.size() {
                0 => "there are no ranks".to_owned(),
                _ => format!("there is no rank {}", ranks.end - 1),
            };
            return Err(self.error(Kind::NoSuchResource, ranks.last_span, &what));
        }
        for earlier in &self.used {
            if ranks.first < earlier.end && earlier.first < ranks.end {
                let shared = ranks.first.max(earlier.first);
                let what =
                    format!("resource ranks must be unique: {shared} stands in a segment before");
                return Err(self.error(Kind::ResourceNotUnique, span, &what));
            }
        }
        if self
            .used
            .last()
            .is_some_and(|earlier| ranks.first < earlier.end)
        {
            let what = "resource ranks must be in ascending order";
            return Err(self.error(Kind::ResourceNotAscending, span, what));
        }
        self.used.push(ranks);
        Ok(ranks)
    }

    fn process_count(&self, span: Span) -> Result<u64, PlacementError> {
        if self.is_all(span) {
            let what = "process ranks cannot be 'all': expected a range such as 0-3";
            return Err(self.error(Kind::ProcessAll, span, what));
        }
        let expected = "expected a process rank or a range such as 0-3";
        let ranks = self.range(span, Kind::ProcessSyntax, expected)?;
        let (first, expected) = (ranks.first, self.expected());
        if expected == 0 && first > 0 {
            return Err(self.error(Kind::ProcessStart, span, "process ranks must start at 0"));
        }
        if first < expected {
            let what = format!(
                "process ranks must be unique: {first} stands in a segment before, expected \
                 {expected} next"
            );
            return Err(self.error(Kind::ProcessNotUnique, span, &what));
        }
        if first > expected {
            let what = format!(
                "process ranks must be in ascending order without gaps: expected {expected} next"
            );
            return Err(self.error(Kind::ProcessGap, span, &what));
        }
        Ok(ranks.size())
    }

    /// Shares `ranks` out among `count` processes.
    fn shares(
        &self,
        ranks: Range,
        count: u64,
        span: Span,
    ) -> Result<Vec<Vec<u32>>, PlacementError> {
        let every: Vec<u32> = (ranks.first..ranks.end).map(to_u32).collect();
        let size = ranks.size();
        if self.resources.whole {
            if count < size {
                let what = format!(
                    "{size} nodes for {}: one process cannot run across multiple nodes",
                    plural(count, "process")
                );
                return Err(self.error(Kind::SpansNodes, span, &what));
            }
            let (each, more) = (count / size, count % size);
            let mut shares = Vec::new();
            for (index, &rank) in (0..).zip(&every) {
                shares.extend((0..each + u64::from(index < more)).map(|_| vec![rank]));
            }
            return Ok(shares);
        }
        if size.is_multiple_of(count) {
            let length = every.len() / usize::try_from(count).unwrap_or(usize::MAX);
            return Ok(every.chunks(length).map(<[u32]>::to_vec).collect());
        }
        if count.is_multiple_of(size) {
            let each = count / size;
            return Ok(every
                .iter()
                .flat_map(|&r| (0..each).map(move |_| vec![r]))
                .collect());
        }
        let what = format!(
            "{} and {}: one count must be divisible by the other",
            plural(size, "resource"),
            plural(count, "process")
        );
        Err(self.error(Kind::Divisible, span, &what))
    }

    fn range(&self, span: Span, kind: Kind, expected: &str) -> Result<Range, PlacementError> {
        let dash = self.chars[span.start..span.end]
            .iter()
            .position(|&c| c == '-');
        let (first_span, last_span) = match dash.map(|dash| dash + span.start) {
            None => (span, span),
            Some(dash) => (
                self.trim(Span::new(span.start, dash)),
                self.trim(Span::new(dash + 1, span.end)),
            ),
        };
        let (Some(first), Some(last)) = (self.number(first_span), self.number(last_span)) else {
            return Err(self.error(kind, span, expected));
        };
        if last < first {
            let what = format!("a range must not end below its start: expected {last}-{first}");
            return Err(self.error(Kind::Descending, span, &what));
        }
        Ok(Range {
            first,
            end: last + 1,
            last_span,
        })
    }

    fn number(&self, span: Span) -> Option<u64> {
        let digits = &self.chars[span.start..span.end];
        if digits.len() > MAX_DIGITS || !digits.iter().all(char::is_ascii_digit) {
            return None;
        }
        digits.iter().collect::<String>().parse().ok()
    }

    fn is_all(&self, span: Span) -> bool {
        let word: String = self.chars[span.start..span.end].iter().collect();
        word.eq_ignore_ascii_case("all")
    }

    /// The rank of the next process.
    fn expected(&self) -> u64 {
        self.processes.len() as u64
    }

    fn split(&self, span: Span, separator: char) -> Vec<Span> {
        let mut parts = Vec::new();
        let mut start = span.start;
        for at in span.start..span.end {
            if self.chars[at] == separator {
                parts.push(Span::new(start, at));
                start = at + 1;
            }
        }
        parts.push(Span::new(start, span.end));
        parts
    }

    fn trim(&self, mut span: Span) -> Span {
        let blank = |at: usize| matches!(self.chars[at], ' ' | '\t' | '\r' | '\n');
        while span.start < span.end && blank(span.start) {
            span.start += 1;
        }
        while span.end > span.start && blank(span.end - 1) {
            span.end -= 1;
        }
        span
    }

    fn error(&self, kind: Kind, span: Span, what: &str) -> PlacementError {
        let message = format!(
            "component \"{}\": placement \"{}\": {what}\n{}\n{}",
            show(self.component),
            show(self.text),
            point(self.text, span),
            self.resources.describe()
        );
        PlacementError {
            kind,
            message,
            at: Some((self.text.to_owned(), span)),
        }
    }
}

/// A rank below [`MAX_PROCESSES`], or of a resource that exists.
fn to_u32(rank: u64) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}
