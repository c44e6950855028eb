//! From text to tokens, one at a time.

use crate::error::{Excerpt, ParseError, ParseErrorKind};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TokenKind<'a> {
    /// `name`, `%r1`, `$L__BB0_2`, `_`
    Word(&'a str),
    /// A directive or modifier, with its dot: `.global`, `.2d`, `.shared::cluster`
    Dotted(&'a str),
    /// An integer; `unsigned` when it has a `U` suffix or exceeds `i64`.
    Int { value: u64, unsigned: bool },
    /// `0f3F800000`
    F32(u32),
    /// `0d3FF0000000000000`, `1.5e3`
    F64(f64),
    /// A string, without its quotes.
    Str(&'a str),
    /// One of `{ } ( ) [ ] < > , ; : = | ! ~ & ^ + - * / % ? @`
    Punct(u8),
    /// The end of the text.
    End,
}

/// A token and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub kind: TokenKind<'a>,
    pub start: usize,
    pub end: usize,
    pub line: u32,
}

pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1 }
    }

    pub fn text(&self) -> &'a str {
        self.text
    }

    /// An error at byte `at`.
    pub fn error(&self, at: usize, kind: ParseErrorKind) -> ParseError {
        let before = self.text.as_bytes().get(..at).unwrap_or_default();
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
        ParseError { line: line as u32, column: column as u32, kind }
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn skip_while(&mut self, accept: impl Fn(u8) -> bool) {
        while self.at < self.text.len() && accept(self.byte(0)) {
            self.at += 1;
        }
    }

    fn skip_blank(&mut self) -> Result<(), ParseError> {
        loop {
            match (self.byte(0), self.byte(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r' | 0x0B | 0x0C, _) => self.at += 1,
                (b'/', b'/') => self.skip_while(|b| b != b'\n'),
                (b'/', b'*') => {
                    let Some(length) =
                        self.text.as_bytes()[self.at + 2..].windows(2).position(|w| w == b"*/")
                    else {
                        return Err(self.error(self.at, ParseErrorKind::Unterminated("comment")));
                    };
                    let comment = &self.text.as_bytes()[self.at..self.at + 2 + length];
                    self.line += comment.iter().filter(|b| **b == b'\n').count() as u32;
                    self.at += length + 4;
                }
                _ => return Ok(()),
            }
        }
    }

    pub fn next(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank()?;
        let (start, line) = (self.at, self.line);
        let kind = match self.byte(0) {
            _ if self.at >= self.text.len() => TokenKind::End,
            b'0'..=b'9' => self.number()?,
            b'.' if self.byte(1).is_ascii_digit() && !self.after_word() => self.number()?,
            b'.' if is_word(self.byte(1)) => self.dotted(),
            b'%' if is_word(self.byte(1)) => self.word(),
            b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'$' => self.word(),
            b'"' => self.string()?,
            punct if b"{}()[]<>,;:=|!~&^+-*/%?@".contains(&punct) => {
                self.at += 1;
                TokenKind::Punct(punct)
            }
            _ => {
                let character = self.text[self.at..].chars().next().unwrap_or_default();
                return Err(self.error(self.at, ParseErrorKind::Character(character)));
            }
        };
        Ok(Token { kind, start, end: self.at, line })
    }

    fn after_word(&self) -> bool {
        self.at > 0 && is_word(self.text.as_bytes()[self.at - 1])
    }

    fn word(&mut self) -> TokenKind<'a> {
        let start = self.at;
        self.at += 1;
        self.skip_while(is_word);
        TokenKind::Word(&self.text[start..self.at])
    }

    fn dotted(&mut self) -> TokenKind<'a> {
        let start = self.at;
        self.at += 1;
        self.skip_while(is_word);
        while self.byte(0) == b':' && self.byte(1) == b':' && is_word(self.byte(2)) {
            self.at += 2;
            self.skip_while(is_word);
        }
        TokenKind::Dotted(&self.text[start..self.at])
    }

    /// As ptxas has it, a backslash is a character like any other.
    fn string(&mut self) -> Result<TokenKind<'a>, ParseError> {
        let start = self.at;
        self.at += 1;
        self.skip_while(|b| b != b'"' && b != b'\n');
        if self.byte(0) != b'"' {
            return Err(self.error(start, ParseErrorKind::Unterminated("string")));
        }
        self.at += 1;
        Ok(TokenKind::Str(&self.text[start + 1..self.at - 1]))
    }

    fn number(&mut self) -> Result<TokenKind<'a>, ParseError> {
        let start = self.at;
        let float_digits = match (self.byte(0), self.byte(1)) {
            (b'0', b'f' | b'F') => 8,
            (b'0', b'd' | b'D') => 16,
            _ => 0,
        };
        if float_digits > 0 {
            self.at += 2;
            self.skip_while(is_word);
            return self.float_bits(start, float_digits);
        }
        self.skip_while(is_word);
        let hexadecimal = matches!(self.text.as_bytes()[start..self.at], [b'0', b'x' | b'X', ..]);
        if !hexadecimal {
            let mut float = self.text.as_bytes()[start..self.at].iter().any(|b| matches!(b, b'e' | b'E'));
            if self.byte(0) == b'.' {
                self.at += 1;
                self.skip_while(is_word);
                float = true;
            }
            let exponent = self.at > start && matches!(self.text.as_bytes()[self.at - 1], b'e' | b'E');
            if float && exponent && matches!(self.byte(0), b'+' | b'-') {
                self.at += 1;
                self.skip_while(is_word);
            }
            if float {
                let text = &self.text[start..self.at];
                // Rust also reads `inf` and `nan`, but those never start with a digit or dot.
                return text.parse().map(TokenKind::F64).map_err(|_| self.bad_number(start));
            }
        }
        self.integer(start)
    }

    fn integer(&mut self, start: usize) -> Result<TokenKind<'a>, ParseError> {
        let text = &self.text[start..self.at];
        let (text, suffixed) = match text.strip_suffix(['u', 'U']) {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (digits, radix) = match text.as_bytes() {
            [b'0', b'x' | b'X', ..] => (&text[2..], 16),
            [b'0', b'b' | b'B', ..] => (&text[2..], 2),
            [b'0', _, ..] => (&text[1..], 8),
            _ => (text, 10),
        };
        let value = u64::from_str_radix(digits, radix).map_err(|_| self.bad_number(start))?;
        Ok(TokenKind::Int { value, unsigned: suffixed || value > i64::MAX as u64 })
    }

    fn float_bits(&mut self, start: usize, digits: usize) -> Result<TokenKind<'a>, ParseError> {
        let text = &self.text[start + 2..self.at];
        let bits = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == digits);
        let bits = bits.ok_or_else(|| self.bad_number(start))?;
        Ok(match digits {
            8 => TokenKind::F32(bits as u32),
            _ => TokenKind::F64(f64::from_bits(bits)),
        })
    }

    fn bad_number(&self, start: usize) -> ParseError {
        self.error(start, ParseErrorKind::Number(Excerpt::new(&self.text[start..self.at])))
    }

    /// The lines up to the next `}`, which is consumed; for sections, whose contents have their own grammar.
    /// The token before must be the section's `{`.
    pub fn raw_block(&mut self) -> Result<Vec<&'a str>, ParseError> {
        let start = self.at;
        let Some(length) = self.text[start..].find('}') else {
            return Err(self.error(start, ParseErrorKind::Unterminated("section")));
        };
        let block = &self.text[start..start + length];
        self.line += block.matches('\n').count() as u32;
        self.at = start + length + 1;
        let lines = block.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
        Ok(lines.filter(|line| !line.is_empty()).collect())
    }
}
