//! Operands.

use crate::{
    ast::{
        Address, AddressBase, Call, CallTargets, Callee, Operand, PrototypeId, RegId, SpecialRegister, Symbol,
    },
    error::{Excerpt, ParseErrorKind},
    lexer::TokenKind,
};

use super::{Parse, body::BodyParser, scope::Resolved};

impl BodyParser<'_, '_> {
    /// An operand of any instruction but a branch or call.
    pub(super) fn operand(&mut self) -> Parse<Operand> {
        let first = match self.parser.token.kind {
            TokenKind::Punct(b'{') => Operand::Vector(self.vector()?),
            TokenKind::Punct(b'[') => return self.address_operand(),
            TokenKind::Punct(b'!') => {
                self.parser.advance()?;
                return Ok(Operand::Not(self.register("a predicate register after `!`")?));
            }
            _ => self.scalar()?,
        };
        if self.parser.eat(b'|')? {
            return Ok(Operand::Pair(Box::new((first, self.scalar()?))));
        }
        Ok(first)
    }

    /// `{a, b}`; the elements are scalars, so nothing nests.
    fn vector(&mut self) -> Parse<Vec<Operand>> {
        self.parser.expect(b'{', "`{` of a vector")?;
        let mut elements = Vec::new();
        loop {
            elements.push(self.scalar()?);
            if !self.parser.eat(b',')? {
                break;
            }
        }
        self.parser.expect(b'}', "`,` or `}` in a vector")?;
        Ok(elements)
    }

    /// A constant, or something that has a name.
    fn scalar(&mut self) -> Parse<Operand> {
        if self.parser.at_constant() {
            return Ok(Operand::Imm(self.parser.constant()?.immediate()));
        }
        let token = self.parser.token;
        let TokenKind::Word(word) = token.kind else { return Err(self.parser.expected("an operand")) };
        self.parser.advance()?;
        if word == "_" {
            return Ok(Operand::Sink);
        }
        let name = self.parser.intern(word);
        match self.scopes.resolve(&name, &self.parser.symbols) {
            Some(Resolved::Reg(reg)) => self.part(reg),
            Some(Resolved::Vector(first, width)) => self.component(first, width),
            Some(Resolved::Symbol(symbol)) => Ok(Operand::Symbol(symbol, self.parser.offset()?)),
            None => self.special(word, token.start),
        }
    }

    /// A register, or a selector that follows it.
    fn part(&mut self, reg: RegId) -> Parse<Operand> {
        let TokenKind::Dotted(selector) = self.parser.token.kind else { return Ok(Operand::Reg(reg)) };
        let bytes = selector.as_bytes();
        if !matches!(bytes, [b'.', b'b' | b'h', digits @ ..]
            if !digits.is_empty() && digits.len() <= 4 && digits.iter().all(|d| (b'0'..b'8').contains(d)))
        {
            return Err(self.parser.expected("a selector such as .b0 or .h1"));
        }
        let selector = self.parser.intern(&selector[1..]);
        self.parser.advance()?;
        Ok(Operand::Part(reg, selector))
    }

    /// A vector register, or the component of it that follows.
    fn component(&mut self, first: RegId, width: u32) -> Parse<Operand> {
        let TokenKind::Dotted(selector) = self.parser.token.kind else {
            return Ok(Operand::Vector((0..width).map(|i| Operand::Reg(RegId(first.0 + i))).collect()));
        };
        let component = match selector {
            ".x" | ".r" => 0,
            ".y" | ".g" => 1,
            ".z" | ".b" => 2,
            ".w" | ".a" => 3,
            _ => u32::MAX,
        };
        if component >= width {
            return Err(self.parser.expected("a component of the vector register"));
        }
        self.parser.advance()?;
        Ok(Operand::Reg(RegId(first.0 + component)))
    }

    fn special(&mut self, word: &str, at: usize) -> Parse<Operand> {
        let special = match self.parser.token.kind {
            TokenKind::Dotted(axis) if SpecialRegister::is_vector(word) => {
                let special = SpecialRegister::from_name(&format!("{word}{axis}"));
                if special.is_none() {
                    return Err(self.parser.expected("a component of the special register"));
                }
                self.parser.advance()?;
                special
            }
            _ if SpecialRegister::is_vector(word) => {
                let axes = [".x", ".y", ".z", ".w"].iter();
                let axes = axes.filter_map(|axis| SpecialRegister::from_name(&format!("{word}{axis}")));
                return Ok(Operand::Vector(axes.map(Operand::Special).collect()));
            }
            _ => SpecialRegister::from_name(word),
        };
        special
            .map(Operand::Special)
            .ok_or_else(|| self.parser.lexer.error(at, ParseErrorKind::Undeclared(Excerpt::new(word))))
    }

    /// `[…]` with the current token at the bracket.
    fn address_operand(&mut self) -> Parse<Operand> {
        self.parser.advance()?;
        let mut address = self.address()?;
        if self.parser.eat(b',')? {
            let (sampler, coordinates) = self.coordinates()?;
            self.parser.expect(b']', "`]` after coordinates")?;
            return Ok(Operand::Indexed { base: address, sampler, coordinates });
        }
        self.parser.expect(b']', "`]` of an address")?;
        address.unified = self.parser.eat_dotted(".unified")?;
        Ok(Operand::Address(address))
    }

    fn address(&mut self) -> Parse<Address> {
        if self.parser.at_constant() {
            let offset = self.parser.int_constant("an integer address")?;
            return Ok(Address { base: AddressBase::Absolute, offset, unified: false });
        }
        let token = self.parser.token;
        let (base, offset) = match self.scalar()? {
            Operand::Reg(reg) => (AddressBase::Reg(reg), self.parser.offset()?),
            Operand::Symbol(symbol, offset) => (AddressBase::Symbol(symbol), offset),
            _ => {
                let found = Excerpt::new(&self.parser.lexer.text()[token.start..token.end]);
                let expected = "a register or symbol as base of an address";
                return Err(self
                    .parser
                    .lexer
                    .error(token.start, ParseErrorKind::Expected { expected, found }));
            }
        };
        Ok(Address { base, offset, unified: false })
    }

    /// `{x, y}`, `x`, `sampler, {x, y}` or `sampler, x`
    fn coordinates(&mut self) -> Parse<(Option<Address>, Vec<Operand>)> {
        if self.parser.at(b'{') {
            return Ok((None, self.vector()?));
        }
        let first = self.scalar()?;
        if !self.parser.at(b',') {
            return Ok((None, vec![first]));
        }
        let base = match first {
            Operand::Reg(reg) => AddressBase::Reg(reg),
            Operand::Symbol(symbol, 0) => AddressBase::Symbol(symbol),
            _ => return Err(self.parser.expected("`]`, or a sampler before the coordinates")),
        };
        self.parser.advance()?;
        let sampler = Address { base, offset: 0, unified: false };
        let coordinates = match self.parser.at(b'{') {
            true => self.vector()?,
            false => vec![self.scalar()?],
        };
        Ok((Some(sampler), coordinates))
    }

    /// What follows `call`: `(returns), callee, (arguments), targets`.
    pub(super) fn call(&mut self) -> Parse<Operand> {
        let mut returns = Vec::new();
        if self.parser.at(b'(') {
            returns = self.call_list()?;
            self.parser.expect(b',', "`,` after a call's results")?;
        }
        let at = self.parser.token.start;
        let name = self.parser.name("a function to call")?;
        let resolved = self.scopes.resolve(&name, &self.parser.symbols);
        let mut arguments = Vec::new();
        let mut more = self.parser.eat(b',')?;
        if more && self.parser.at(b'(') {
            arguments = self.call_list()?;
            more = self.parser.eat(b',')?;
        }
        let callee = match resolved {
            Some(Resolved::Reg(reg)) if more => {
                Callee::Indirect(reg, CallTargets::Prototype(PrototypeId(self.reference()?)))
            }
            Some(Resolved::Reg(_)) => {
                return Err(self.parser.expected("the prototype or targets of an indirect call"));
            }
            Some(Resolved::Symbol(Symbol::Module(name))) if !more => Callee::Function(name),
            Some(Resolved::Symbol(Symbol::Module(_))) => {
                return Err(self.parser.expected("`(` of a call's arguments"));
            }
            _ => {
                let kind = ParseErrorKind::Undeclared(Excerpt::new(&name));
                return Err(self.parser.lexer.error(at, kind));
            }
        };
        Ok(Operand::Call(Box::new(Call { returns, callee, arguments })))
    }

    /// `(a, b)`
    fn call_list(&mut self) -> Parse<Vec<Operand>> {
        self.parser.expect(b'(', "`(`")?;
        let mut list = Vec::new();
        if self.parser.eat(b')')? {
            return Ok(list);
        }
        loop {
            list.push(self.scalar()?);
            if !self.parser.eat(b',')? {
                break;
            }
        }
        self.parser.expect(b')', "`,` or `)` in a call")?;
        Ok(list)
    }
}
