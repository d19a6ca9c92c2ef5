//! The name of a session: the name of its folder, and the token that another process attaches with.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use rustix::process::geteuid;

use super::Error;
use crate::segment::FileError;

const PREFIX: &str = "shoal";
const DIGITS: usize = 32;

/// The name of a session's folder: `shoal-<user id>-<32 hexadecimal digits>`.
///
/// The digits are random and never used again, so a path names one session for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    user: u32,
    id: [u64; 2],
}

impl Name {
    /// A new name, of this user.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    fn random() -> Result<Self, Error> {
        let source = Path::new("/dev/urandom");
        let number = || {
            getrandom::u64().map_err(|error| {
                let error = io::Error::other(error.to_string());
                FileError::new("get random numbers, as from", source, error)
            })
        };
        Ok(Self {
            user: geteuid().as_raw(),
            id: [number()?, number()?],
        })
    }

    /// Parses the name of a folder; None if it is not the name of a session of any user.
    fn parse(name: &str) -> Option<Self> {
        let (user, digits) = name
            .strip_prefix(PREFIX)?
            .strip_prefix('-')?
            .split_once('-')?;
        let is_digit = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
        if digits.len() != DIGITS || !digits.bytes().all(is_digit) {
            return None;
        }
        let (first, second) = digits.split_at(DIGITS / 2);
        let parsed = Self {
            user: user.parse().ok()?,
            id: [
                u64::from_str_radix(first, 16).ok()?,
                u64::from_str_radix(second, 16).ok()?,
            ],
        };
        // There is one spelling for each name: no sign, no leading zeros.
        (parsed.to_string() == name).then_some(parsed)
    }

    /// The name of the folder at a path.
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        Self::parse(folder.file_name()?.to_str()?)
    }

    /// The random part.
    pub(crate) fn session(self) -> [u64; 2] {
        self.id
    }

    /// Whether the session is one of this user.
    pub(crate) fn is_own(self) -> bool {
        self.user == geteuid().as_raw()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            user,
            id: [first, second],
        } = self;
        write!(f, "{PREFIX}-{user}-{first:016x}{second:016x}")
    }
}

/// Names a session to other processes: as text, the absolute path of its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    text: String,
    name: Name,
}

impl Token {
    /// The token of a new session, whose folder will be made in `base`.
    ///
    /// # Errors
    ///
    /// If `base` does not exist, or its path is not text.
    pub(crate) fn random(base: &Path) -> Result<Self, Error> {
        let absolute = base
            .canonicalize()
            .map_err(|error| FileError::new("find the folder", base, error))?;
        let name = Name::random()?;
        let folder = absolute.join(name.to_string()).into_os_string();
        let text = folder.into_string().map_err(|_| {
            let why = "its path is not UTF-8, as the token of a session has to be";
            let error = io::Error::new(io::ErrorKind::InvalidInput, why);
            FileError::new("make a session in", base, error)
        })?;
        Ok(Self { text, name })
    }

    /// The text, which [`str::parse`] reads.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The folder of the session.
    pub fn folder(&self) -> &Path {
        Path::new(&self.text)
    }

    /// The random part of its name, which its control segment repeats.
    pub(crate) fn session(&self) -> [u64; 2] {
        self.name.session()
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(token: &str) -> Result<Self, Error> {
        let refuse = |why| {
            let token = token.to_owned();
            Err(Error::Token { token, why })
        };
        let folder = Path::new(token);
        if !folder.is_absolute() {
            return refuse("it is not an absolute path");
        }
        let Some(name) = Name::of(folder) else {
            return refuse("it does not end in shoal-<user id>-<32 hexadecimal digits>");
        };
        if !name.is_own() {
            return Err(Error::OtherUser {
                owner: name.user,
                user: geteuid().as_raw(),
            });
        }
        let text = token.to_owned();
        Ok(Self { text, name })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_as_text_is_the_same_token() {
        let base = tempfile::tempdir().expect("a folder");
        let token = Token::random(base.path()).expect("random");
        assert_eq!(
            token.as_str().parse::<Token>().expect("its own text"),
            token
        );
        assert_ne!(Token::random(base.path()).expect("random"), token);
        assert!(token.folder().starts_with(base.path()) && token.folder().is_absolute());
    }

    #[test]
    fn a_token_is_where_the_folder_is_whatever_leads_there() {
        let base = tempfile::tempdir().expect("a folder");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).expect("linked");
        let token = Token::random(&link).expect("random");
        assert_eq!(token.folder().parent(), Some(base.path()));
        let error = Token::random(&base.path().join("no")).expect_err("it is not there");
        let error = error.to_string();
        assert!(error.starts_with("cannot find the folder /"), "{error}");
    }

    #[test]
    fn a_wrong_token_is_refused_with_the_reason() {
        let digits = "0123456789abcdef0123456789abcdef";
        let own = geteuid().as_raw();
        let refused = [
            (format!("shoal-{own}-{digits}"), "not an absolute path"),
            (format!("/tmp/shoal-{own}-{digits}0"), "does not end in"),
            (format!("/tmp/shoal-+{own}-{digits}"), "does not end in"),
            (format!("/tmp/shoal-0{own}-{digits}"), "does not end in"),
            (
                format!("/tmp/shoal-{own}-{}", digits.to_uppercase()),
                "does not end in",
            ),
            (String::new(), "not an absolute path"),
        ];
        for (token, why) in refused {
            let error = token.parse::<Token>().expect_err(&token).to_string();
            assert!(error.contains(why) && error.contains(&token), "{error}");
        }
        let other = format!("/tmp/shoal-{}-{digits}", own + 1).parse::<Token>();
        assert!(matches!(other, Err(Error::OtherUser { user, .. }) if user == own));
    }

    proptest! {
        #[test]
        fn any_name_is_parsed_from_its_text(user: u32, id: [u64; 2]) {
            let name = Name { user, id };
            prop_assert_eq!(Name::parse(&name.to_string()), Some(name));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "(shoal-?)?[0-9]{0,4}-?[0-9a-g]{0,33}|\\PC*") {
            if let Some(name) = Name::parse(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
