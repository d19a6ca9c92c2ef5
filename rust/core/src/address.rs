//! The address of a worker: the name of its root group and a path of ranks.
//!
//! ```text
//! address = group (":" rank)*
//! group   = one or more characters other than ":"
//! rank    = "0" | [1-9][0-9]*          ASCII digits, at most 2147483647
//! ```
//!
//! `grp` is a root, `grp:3` its worker 3, `grp:3:0` the first child of that worker.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::text::{Span, point, show};

/// The highest rank.
pub const MAX_RANK: u32 = i32::MAX as u32;

/// The address of a worker in the tree of groups. Ordered by group name, then by path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerAddress {
    /// The whole address as text. The other fields follow from it, so it alone decides equality.
    name: String,
    /// The length of the group name, in bytes.
    root: usize,
    path: Vec<u32>,
}

impl WorkerAddress {
    /// Makes an address from a group name and ranks in decimal.
    ///
    /// # Errors
    ///
    /// The group name is empty or contains `:`, or a rank is not valid.
    pub fn new(root_group_name: &str, ranks: &[String]) -> Result<Self, AddressError> {
        if let Some(colon) = root_group_name.chars().position(|c| c == ':') {
            let span = Span::new(colon, colon + 1);
            return Err(AddressError::new(
                root_group_name,
                span,
                AddressErrorKind::Colon,
            ));
        }
        let mut name = root_group_name.to_owned();
        for rank in ranks {
            name.push(':');
            name.push_str(rank);
        }
        name.parse()
    }

    /// Makes an address from a group name and ranks.
    ///
    /// # Errors
    ///
    /// The group name is empty or contains `:`, or a rank is above [`MAX_RANK`].
    pub fn from_ranks(root_group_name: &str, path: Vec<u32>) -> Result<Self, AddressError> {
        let is_root = !root_group_name.is_empty() && !root_group_name.contains(':');
        if !is_root || path.iter().any(|&rank| rank > MAX_RANK) {
            let ranks: Vec<String> = path.iter().map(u32::to_string).collect();
            return Self::new(root_group_name, &ranks); // its error points at the wrong part
        }
        // Room for a colon and a rank of two digits each: longer ones make the text grow.
        let mut name = String::with_capacity(root_group_name.len() + 3 * path.len());
        name.push_str(root_group_name);
        for &rank in &path {
            name.push(':');
            match u8::try_from(rank) {
                Ok(digit @ 0..=9) => name.push(char::from(b'0' + digit)),
                _ => name.push_str(&rank.to_string()),
            }
        }
        Ok(Self {
            name,
            root: root_group_name.len(),
            path,
        })
    }

    /// The name of the root group.
    pub fn root_group_name(&self) -> &str {
        &self.name[..self.root]
    }

    /// The ranks from the root down.
    pub fn rank_path(&self) -> &[u32] {
        &self.path
    }

    /// The last rank of the path, 0 for a root.
    pub fn rank(&self) -> u32 {
        self.path.last().copied().unwrap_or(0)
    }

    /// The address as text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The second-to-last rank, 0 if there is none.
    pub fn parent_rank(&self) -> u32 {
        self.path.iter().rev().nth(1).copied().unwrap_or(0)
    }

    /// The address one level up, `None` for a root.
    pub fn parent(&self) -> Option<Self> {
        let (_, above) = self.path.split_last()?;
        let colon = self.name.rfind(':')?;
        Some(Self {
            name: self.name[..colon].to_owned(),
            root: self.root,
            path: above.to_vec(),
        })
    }

    /// The address one level down, with the rank in decimal.
    ///
    /// # Errors
    ///
    /// `rank` is not a valid rank.
    pub fn child(&self, rank: &str) -> Result<Self, AddressError> {
        let name = format!("{}:{rank}", self.name);
        let start = name.chars().count() - rank.chars().count();
        let rank = parse_rank(&name, rank, start)?;
        let mut path = self.path.clone();
        path.push(rank);
        Ok(Self {
            name,
            root: self.root,
            path,
        })
    }
}

impl FromStr for WorkerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let mut parts = text.split(':');
        let root = parts.next().unwrap_or_default();
        if root.is_empty() {
            return Err(AddressError::new(
                text,
                Span::new(0, 0),
                AddressErrorKind::Group,
            ));
        }
        let mut start = root.chars().count() + 1;
        let mut path = Vec::new();
        for part in parts {
            path.push(parse_rank(text, part, start)?);
            start += part.len() + 1;
        }
        Ok(Self {
            name: text.to_owned(),
            root: root.len(),
            path,
        })
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Ord for WorkerAddress {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = (self.root_group_name(), &self.path);
        key.cmp(&(other.root_group_name(), &other.path))
    }
}

impl PartialOrd for WorkerAddress {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn parse_rank(text: &str, part: &str, start: usize) -> Result<u32, AddressError> {
    let span = Span::new(start, start + part.chars().count());
    let error = |kind| Err(AddressError::new(text, span, kind));
    if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        return error(AddressErrorKind::Digits);
    }
    if part.len() > 1 && part.starts_with('0') {
        return error(AddressErrorKind::LeadingZero);
    }
    match part.parse() {
        Ok(rank) if rank <= MAX_RANK => Ok(rank),
        _ => error(AddressErrorKind::TooLarge),
    }
}

/// The rule of the grammar that a text breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressErrorKind {
    /// There is no group name.
    Group,
    /// A group name given by itself contains a colon.
    Colon,
    /// A rank is not a number.
    Digits,
    /// A rank has a leading zero.
    LeadingZero,
    /// A rank is above [`MAX_RANK`].
    TooLarge,
}

/// The error for a text that is not an address; its message shows the text and the wrong part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError {
    /// The rule that is broken.
    pub kind: AddressErrorKind,
    /// The whole text.
    pub text: String,
    /// The part that is wrong.
    pub span: Span,
}

impl AddressError {
    fn new(text: &str, span: Span, kind: AddressErrorKind) -> Self {
        Self {
            kind,
            text: text.to_owned(),
            span,
        }
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = show(&self.text);
        let expected = match self.kind {
            AddressErrorKind::Group => "expected a group name",
            AddressErrorKind::Colon => "a group name cannot contain ':'",
            AddressErrorKind::Digits => "expected a rank, digits only",
            AddressErrorKind::LeadingZero => "expected a rank without leading zeros",
            AddressErrorKind::TooLarge => "expected a rank of at most 2147483647",
        };
        write!(
            f,
            "worker address \"{text}\": {expected}\n{}",
            point(&self.text, self.span)
        )
    }
}

impl std::error::Error for AddressError {}
