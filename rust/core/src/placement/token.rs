//! The tokens of a placement string, each with its span in the text.

use crate::text::Span;

/// Characters that separate tokens.
pub(super) const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// ASCII digits only.
    Number,
    /// `all`, or any other text that is neither a number nor a sign of the grammar.
    Word,
    /// `-`
    Dash,
    /// `/`
    Slash,
    /// `!`
    Bang,
    /// `:`
    Colon,
    /// `,`
    Comma,
}

/// A token and its span in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) span: Span,
}

/// Splits a text into tokens; blanks separate them.
pub(super) fn tokenize(chars: &[char]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let start = at;
        at += 1;
        let kind = match sign(chars[start]) {
            Some(kind) => kind,
            None if BLANKS.contains(&chars[start]) => continue,
            None => {
                while at < chars.len() && sign(chars[at]).is_none() && !BLANKS.contains(&chars[at])
                {
                    at += 1;
                }
                if chars[start..at].iter().all(char::is_ascii_digit) {
                    TokenKind::Number
                } else {
                    TokenKind::Word
                }
            }
        };
        let span = Span::new(start, at);
        tokens.push(Token { kind, span });
    }
    tokens
}

fn sign(c: char) -> Option<TokenKind> {
    match c {
        '-' => Some(TokenKind::Dash),
        '/' => Some(TokenKind::Slash),
        '!' => Some(TokenKind::Bang),
        ':' => Some(TokenKind::Colon),
        ',' => Some(TokenKind::Comma),
        _ => None,
    }
}
