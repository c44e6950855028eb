//! Constant expressions.

use crate::{ast::Immediate, error::ParseErrorKind, lexer::TokenKind};

use super::{Parse, Parser};

/// Deepest nesting of a constant expression.
const MAX_DEPTH: u32 = 64;

/// Lanes of a warp: `WARP_SZ` on every architecture so far.
const WARP_SIZE: u64 = 32;

/// Value of a constant expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    Int {
        bits: u64,
        unsigned: bool,
    },
    /// Written as `0f…`; cannot take part in arithmetic without becoming a double.
    F32(u32),
    F64(f64),
}

impl Constant {
    fn signed(value: i64) -> Self {
        Self::Int { bits: value as u64, unsigned: false }
    }

    fn boolean(value: bool) -> Self {
        Self::signed(value.into())
    }

    pub fn immediate(self) -> Immediate {
        match self {
            Self::Int { bits, .. } => Immediate::Int(bits as i64),
            Self::F32(bits) => Immediate::F32(bits),
            Self::F64(value) => Immediate::F64(value.to_bits()),
        }
    }

    fn as_double(self) -> f64 {
        match self {
            Self::Int { bits, unsigned: true } => bits as f64,
            Self::Int { bits, unsigned: false } => bits as i64 as f64,
            Self::F32(bits) => f32::from_bits(bits).into(),
            Self::F64(value) => value,
        }
    }

    fn is_true(self) -> bool {
        match self {
            Self::Int { bits, .. } => bits != 0,
            _ => self.as_double() != 0.0,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Binary {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Shl,
    Shr,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

impl Binary {
    /// Binds tighter the higher.
    fn precedence(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 2,
            Self::BitOr => 3,
            Self::BitXor => 4,
            Self::BitAnd => 5,
            Self::Eq | Self::Ne => 6,
            Self::Lt | Self::Le | Self::Gt | Self::Ge => 7,
            Self::Shl | Self::Shr => 8,
            Self::Add | Self::Sub => 9,
            Self::Mul | Self::Div | Self::Rem => 10,
        }
    }

    fn apply(self, left: Constant, right: Constant) -> Result<Constant, &'static str> {
        match (left, right) {
            (Constant::Int { bits: a, unsigned: ua }, Constant::Int { bits: b, unsigned: ub }) => {
                self.integers(a, b, ua || ub, ua)
            }
            _ => self.doubles(left.as_double(), right.as_double()),
        }
    }

    /// `unsigned` is the type both operands are converted to; a shift keeps that of its left one.
    fn integers(self, a: u64, b: u64, unsigned: bool, left_unsigned: bool) -> Result<Constant, &'static str> {
        let (sa, sb) = (a as i64, b as i64);
        let arithmetic = |bits| Ok(Constant::Int { bits, unsigned });
        let ordered = if unsigned { a.cmp(&b) } else { sa.cmp(&sb) };
        let shift = u32::try_from(b).ok().filter(|shift| *shift < 64);
        match self {
            Self::Or => Ok(Constant::boolean(a != 0 || b != 0)),
            Self::And => Ok(Constant::boolean(a != 0 && b != 0)),
            Self::BitOr => arithmetic(a | b),
            Self::BitXor => arithmetic(a ^ b),
            Self::BitAnd => arithmetic(a & b),
            Self::Eq => Ok(Constant::boolean(a == b)),
            Self::Ne => Ok(Constant::boolean(a != b)),
            Self::Lt => Ok(Constant::boolean(ordered.is_lt())),
            Self::Le => Ok(Constant::boolean(ordered.is_le())),
            Self::Gt => Ok(Constant::boolean(ordered.is_gt())),
            Self::Ge => Ok(Constant::boolean(ordered.is_ge())),
            Self::Shl => {
                let bits = shift.map_or(0, |shift| a << shift);
                Ok(Constant::Int { bits, unsigned: left_unsigned })
            }
            Self::Shr if left_unsigned => {
                Ok(Constant::Int { bits: shift.map_or(0, |shift| a >> shift), unsigned: true })
            }
            Self::Shr => Ok(Constant::signed(sa >> shift.unwrap_or(63))),
            Self::Add => arithmetic(a.wrapping_add(b)),
            Self::Sub => arithmetic(a.wrapping_sub(b)),
            Self::Mul => arithmetic(a.wrapping_mul(b)),
            Self::Div | Self::Rem if b == 0 => Err("divides by zero"),
            Self::Div if unsigned => arithmetic(a / b),
            Self::Div => arithmetic(sa.wrapping_div(sb) as u64),
            Self::Rem if unsigned => arithmetic(a % b),
            Self::Rem => arithmetic(sa.wrapping_rem(sb) as u64),
        }
    }

    fn doubles(self, a: f64, b: f64) -> Result<Constant, &'static str> {
        Ok(match self {
            Self::Add => Constant::F64(a + b),
            Self::Sub => Constant::F64(a - b),
            Self::Mul => Constant::F64(a * b),
            Self::Div => Constant::F64(a / b),
            Self::Eq => Constant::boolean(a == b),
            Self::Ne => Constant::boolean(a != b),
            Self::Lt => Constant::boolean(a < b),
            Self::Le => Constant::boolean(a <= b),
            Self::Gt => Constant::boolean(a > b),
            Self::Ge => Constant::boolean(a >= b),
            Self::Or => Constant::boolean(a != 0.0 || b != 0.0),
            Self::And => Constant::boolean(a != 0.0 && b != 0.0),
            _ => return Err("applies an integer operator to a floating-point value"),
        })
    }
}

impl<'a> Parser<'a> {
    /// A constant expression.
    pub(super) fn constant(&mut self) -> Parse<Constant> {
        self.conditional(0)
    }

    /// Whether the current token can start a constant expression.
    pub(super) fn at_constant(&self) -> bool {
        match self.token.kind {
            TokenKind::Int { .. } | TokenKind::F32(_) | TokenKind::F64(_) => true,
            TokenKind::Punct(punct) => b"+-~!(".contains(&punct),
            TokenKind::Word(word) => word == "WARP_SZ",
            _ => false,
        }
    }

    /// A constant expression that is an integer, as PTX's 64 bits.
    pub(super) fn int_constant(&mut self, expected: &'static str) -> Parse<i64> {
        let token = self.token;
        match self.constant()?.immediate() {
            Immediate::Int(value) => Ok(value),
            _ => {
                let kind = ParseErrorKind::Expected {
                    expected,
                    found: crate::error::Excerpt::new(&self.lexer.text()[token.start..token.end]),
                };
                Err(self.lexer.error(token.start, kind))
            }
        }
    }

    /// `+offset` or `-offset`, any number of times (`+-4`).
    pub(super) fn offset(&mut self) -> Parse<i64> {
        let mut offset = 0i64;
        while self.at(b'+') || self.at(b'-') {
            let negative = self.at(b'-');
            self.advance()?;
            // Only one term: `a - 4 + 8` is (a - 4) + 8.
            let start = self.token.start;
            let Immediate::Int(value) = self.operation(Binary::Mul.precedence(), 0)?.immediate() else {
                return Err(self
                    .lexer
                    .error(start, ParseErrorKind::Constant("of an offset is not an integer")));
            };
            offset = if negative { offset.wrapping_sub(value) } else { offset.wrapping_add(value) };
        }
        Ok(offset)
    }

    fn conditional(&mut self, depth: u32) -> Parse<Constant> {
        let condition = self.operation(0, depth)?;
        if !self.eat(b'?')? {
            return Ok(condition);
        }
        let yes = self.conditional(self.deeper(depth)?)?;
        self.expect(b':', "`:` of a conditional constant")?;
        let no = self.conditional(self.deeper(depth)?)?;
        Ok(if condition.is_true() { yes } else { no })
    }

    fn deeper(&self, depth: u32) -> Parse<u32> {
        if depth >= MAX_DEPTH {
            let what = "levels of a constant expression";
            return Err(self.error(ParseErrorKind::Limit { what, limit: MAX_DEPTH.into() }));
        }
        Ok(depth + 1)
    }

    /// Operators that bind at least as tight as `minimum`.
    fn operation(&mut self, minimum: u8, depth: u32) -> Parse<Constant> {
        let mut left = self.unary(depth)?;
        while let Some((operator, length)) = self.binary_operator() {
            if operator.precedence() < minimum {
                break;
            }
            let start = self.token.start;
            for _ in 0..length {
                self.advance()?;
            }
            let right = self.operation(operator.precedence() + 1, self.deeper(depth)?)?;
            left = operator
                .apply(left, right)
                .map_err(|what| self.lexer.error(start, ParseErrorKind::Constant(what)))?;
        }
        Ok(left)
    }

    /// The operator at the current token, and of how many characters (each a token) it consists.
    fn binary_operator(&self) -> Option<(Binary, usize)> {
        let TokenKind::Punct(first) = self.token.kind else { return None };
        let second = self.lexer.text().as_bytes().get(self.token.end).copied().unwrap_or(0);
        Some(match (first, second) {
            (b'|', b'|') => (Binary::Or, 2),
            (b'&', b'&') => (Binary::And, 2),
            (b'=', b'=') => (Binary::Eq, 2),
            (b'!', b'=') => (Binary::Ne, 2),
            (b'<', b'=') => (Binary::Le, 2),
            (b'>', b'=') => (Binary::Ge, 2),
            (b'<', b'<') => (Binary::Shl, 2),
            (b'>', b'>') => (Binary::Shr, 2),
            (b'|', _) => (Binary::BitOr, 1),
            (b'^', _) => (Binary::BitXor, 1),
            (b'&', _) => (Binary::BitAnd, 1),
            (b'<', _) => (Binary::Lt, 1),
            (b'>', _) => (Binary::Gt, 1),
            (b'+', _) => (Binary::Add, 1),
            (b'-', _) => (Binary::Sub, 1),
            (b'*', _) => (Binary::Mul, 1),
            (b'/', _) => (Binary::Div, 1),
            (b'%', _) => (Binary::Rem, 1),
            _ => return None,
        })
    }

    fn unary(&mut self, depth: u32) -> Parse<Constant> {
        let token = self.token;
        match token.kind {
            TokenKind::Int { value, unsigned } => {
                self.advance()?;
                Ok(Constant::Int { bits: value, unsigned })
            }
            TokenKind::F32(bits) => {
                self.advance()?;
                Ok(Constant::F32(bits))
            }
            TokenKind::F64(value) => {
                self.advance()?;
                Ok(Constant::F64(value))
            }
            TokenKind::Word("WARP_SZ") => {
                self.advance()?;
                Ok(Constant::Int { bits: WARP_SIZE, unsigned: false })
            }
            TokenKind::Punct(b'(') => {
                self.advance()?;
                self.parenthesised(self.deeper(depth)?)
            }
            TokenKind::Punct(operator @ (b'+' | b'-' | b'~' | b'!')) => {
                self.advance()?;
                let value = self.unary(self.deeper(depth)?)?;
                apply_unary(operator, value)
                    .map_err(|what| self.lexer.error(token.start, ParseErrorKind::Constant(what)))
            }
            _ => Err(self.expected("a constant")),
        }
    }

    /// What follows a `(`: a cast and its operand, or an expression and its `)`.
    fn parenthesised(&mut self, depth: u32) -> Parse<Constant> {
        let unsigned = match self.token.kind {
            TokenKind::Dotted(".s64") => false,
            TokenKind::Dotted(".u64") => true,
            _ => {
                let value = self.conditional(depth)?;
                self.expect(b')', "`)` of a constant expression")?;
                return Ok(value);
            }
        };
        self.advance()?;
        self.expect(b')', "`)` of a cast")?;
        Ok(match self.unary(depth)? {
            Constant::Int { bits, .. } => Constant::Int { bits, unsigned },
            float if unsigned => Constant::Int { bits: float.as_double() as u64, unsigned },
            float => Constant::signed(float.as_double() as i64),
        })
    }
}

fn apply_unary(operator: u8, value: Constant) -> Result<Constant, &'static str> {
    Ok(match (operator, value) {
        (b'+', value) => value,
        (b'-', Constant::Int { bits, unsigned }) => Constant::Int { bits: bits.wrapping_neg(), unsigned },
        (b'-', Constant::F32(bits)) => Constant::F32(bits ^ (1 << 31)),
        (b'-', Constant::F64(value)) => Constant::F64(-value),
        (b'~', Constant::Int { bits, unsigned }) => Constant::Int { bits: !bits, unsigned },
        (b'!', value) => Constant::boolean(!value.is_true()),
        _ => return Err("applies an integer operator to a floating-point value"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::lexer::Lexer;

    fn evaluate(text: &str) -> Parse<Constant> {
        Parser::new(Lexer::new(text))?.constant()
    }

    fn int(text: &str) -> i64 {
        match evaluate(text).unwrap() {
            Constant::Int { bits, .. } => bits as i64,
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn integers_follow_c() {
        assert_eq!(int("2+3*4-1"), 13);
        assert_eq!(int("(2+3)*4 % 7"), 6);
        assert_eq!(int("10-4-3"), 3);
        assert_eq!(int("-7/2"), -3);
        assert_eq!(int("-7 >> 1"), -4);
        assert_eq!(int("0xFFFFFFFFFFFFFFFF >> 60"), 15);
        assert_eq!(int("-1 < 1"), 1);
        assert_eq!(int("-1 < 1U"), 0);
        assert_eq!(int("1 ? 2 : 3 ? 4 : 5"), 2);
        assert_eq!(int("!0 && ~0 == -1"), 1);
        assert_eq!(int("017 + 0b101 + 0x1f"), 15 + 5 + 31);
        assert_eq!(int("WARP_SZ - 1"), 31);
        assert_eq!(int("(.s64) 3.9 + (.u64)1"), 4);
        assert_eq!(int("(.s64)0x8000000000000000 / -1"), i64::MIN);
    }

    #[test]
    fn floats() {
        assert_eq!(evaluate("0f3F800000").unwrap(), Constant::F32(0x3f80_0000));
        assert_eq!(evaluate("-0f3F800000").unwrap(), Constant::F32(0xbf80_0000));
        assert_eq!(evaluate("1.5e1 + .5").unwrap(), Constant::F64(15.5));
        assert_eq!(evaluate("0d3FF0000000000000").unwrap(), Constant::F64(1.0));
        assert_eq!(evaluate("2e-1").unwrap(), Constant::F64(0.2));
    }

    #[test]
    fn refusals() {
        for text in ["1/0", "1.0 % 2.0", "~1.0", "09", "0f3F8", "18446744073709551616", "(1", "1 ? 2", ""] {
            assert!(evaluate(text).is_err(), "{text}");
        }
        assert!(evaluate(&"(".repeat(100_000)).is_err());
        assert!(evaluate(&"-".repeat(100_000)).is_err());
        assert!(evaluate(&"1?".repeat(100_000)).is_err());
        assert!(evaluate(&format!("1{}", "+1".repeat(100_000))).is_ok());
    }
}
