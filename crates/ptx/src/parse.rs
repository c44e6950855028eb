//! From tokens to the syntax tree.
//!
//! The text is not trusted: nothing recurses deeper than a constant, and what is allocated is bounded by the
//! length of the text plus constants.

mod body;
mod constant;
mod function;
mod module;
mod operand;
mod scope;
mod variable;

use std::collections::{HashMap, HashSet};

use crate::{
    ast::{Module, Name, Opcode, Version},
    error::{Excerpt, ParseError, ParseErrorKind},
    lexer::{Lexer, Token, TokenKind},
};

/// The newest PTX ISA that the parser was written for.
pub const NEWEST_ISA: Version = Version { major: 9, minor: 3 };

/// Longest text that is accepted, in bytes.
pub const MAX_TEXT: usize = 1 << 30;

impl std::str::FromStr for Module {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text)
    }
}

/// Parses a PTX module. A terminating NUL must have been removed.
///
/// # Errors
/// The first place where the text is not PTX, or exceeds a limit of this parser.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    let lexer = Lexer::new(text);
    if text.len() > MAX_TEXT {
        return Err(lexer.error(0, ParseErrorKind::Limit { what: "bytes of text", limit: MAX_TEXT as u64 }));
    }
    Parser::new(lexer)?.module()
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The token to look at next.
    token: Token<'a>,
    names: HashSet<Name>,
    opcodes: HashMap<&'a str, Opcode>,
    /// Symbols that the module has declared so far.
    symbols: HashSet<Name>,
    /// Bytes that nested initialisers may still leave out.
    padding_left: u64,
}

type Parse<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    fn new(mut lexer: Lexer<'a>) -> Parse<Self> {
        let token = lexer.next()?;
        Ok(Self {
            lexer,
            token,
            names: HashSet::new(),
            opcodes: HashMap::new(),
            symbols: HashSet::new(),
            padding_left: variable::MAX_PADDING,
        })
    }

    /// Takes the current token.
    fn advance(&mut self) -> Parse<Token<'a>> {
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    /// An error at the current token.
    fn error(&self, kind: ParseErrorKind) -> ParseError {
        self.lexer.error(self.token.start, kind)
    }

    fn expected(&self, expected: &'static str) -> ParseError {
        let found = match self.token.kind {
            TokenKind::End => Excerpt::end_of_text(),
            _ => Excerpt::new(&self.lexer.text()[self.token.start..self.token.end]),
        };
        self.error(ParseErrorKind::Expected { expected, found })
    }

    fn at(&self, punct: u8) -> bool {
        self.token.kind == TokenKind::Punct(punct)
    }

    /// Takes the current token if it is this character.
    fn eat(&mut self, punct: u8) -> Parse<bool> {
        let found = self.at(punct);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, punct: u8, expected: &'static str) -> Parse<()> {
        match self.eat(punct)? {
            true => Ok(()),
            false => Err(self.expected(expected)),
        }
    }

    /// Takes the current token if it is this directive or modifier (with its dot).
    fn eat_dotted(&mut self, text: &str) -> Parse<bool> {
        let found = self.token.kind == TokenKind::Dotted(text);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn word(&mut self, expected: &'static str) -> Parse<&'a str> {
        match self.token.kind {
            TokenKind::Word(word) => {
                self.advance()?;
                Ok(word)
            }
            _ => Err(self.expected(expected)),
        }
    }

    fn string(&mut self, expected: &'static str) -> Parse<Box<str>> {
        match self.token.kind {
            TokenKind::Str(text) => {
                self.advance()?;
                Ok(text.into())
            }
            _ => Err(self.expected(expected)),
        }
    }

    /// A name as the shared string that all its uses hold.
    fn intern(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return name.clone();
        }
        let name = Name::from(text);
        self.names.insert(name.clone());
        name
    }

    fn name(&mut self, expected: &'static str) -> Parse<Name> {
        let word = self.word(expected)?;
        Ok(self.intern(word))
    }

    /// A plain integer.
    fn u64(&mut self, expected: &'static str) -> Parse<u64> {
        match self.token.kind {
            TokenKind::Int { value, .. } => {
                self.advance()?;
                Ok(value)
            }
            _ => Err(self.expected(expected)),
        }
    }

    fn u32(&mut self, expected: &'static str) -> Parse<u32> {
        let token = self.token;
        let value = self.u64(expected)?;
        u32::try_from(value).map_err(|_| self.out_of_range(token))
    }

    fn out_of_range(&self, token: Token) -> ParseError {
        let text = &self.lexer.text()[token.start..token.end];
        self.lexer.error(token.start, ParseErrorKind::Number(Excerpt::new(text)))
    }

    /// `"…", "…";` of a `.pragma`.
    fn pragma(&mut self) -> Parse<Vec<Box<str>>> {
        let mut strings = vec![self.string("a pragma string")?];
        while self.eat(b',')? {
            strings.push(self.string("a pragma string")?);
        }
        self.expect(b';', "`,` or `;` after a pragma")?;
        Ok(strings)
    }
}
