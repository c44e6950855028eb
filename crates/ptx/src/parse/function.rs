//! Functions up to their bodies.

use crate::{
    ast::{
        Abi, Function, FunctionKind, Linkage, Name, Param, ParamSpace, Performance, Pointee, Prototype, Space,
    },
    lexer::TokenKind,
};

use super::{Parse, Parser, body::BodyParser};

impl Parser<'_> {
    /// `.entry` or `.func` (the current token), and all of the function.
    pub(super) fn function(&mut self, linkage: Linkage) -> Parse<Function> {
        let kind = match self.token.kind {
            TokenKind::Dotted(".entry") => FunctionKind::Entry,
            _ => FunctionKind::Func,
        };
        self.advance()?;
        let mut attributes = Vec::new();
        if self.token.kind == TokenKind::Dotted(".attribute") {
            attributes = self.attributes()?;
        }
        let returns = match kind {
            FunctionKind::Func if self.at(b'(') => self.params()?,
            _ => Vec::new(),
        };
        let name = self.name("a function's name")?;
        self.symbols.insert(name.clone());
        let params = match self.at(b'(') {
            true => self.params()?,
            false => Vec::new(),
        };
        let (noreturn, performance) = self.performance()?;
        let mut function =
            Function { kind, name, linkage, attributes, noreturn, returns, params, performance, body: None };
        if self.at(b'{') {
            function.body = Some(BodyParser::new(self, &function)?.body()?);
        } else {
            self.expect(b';', "`{` or `;` after a function's head")?;
        }
        Ok(function)
    }

    /// `(param, param)`
    fn params(&mut self) -> Parse<Vec<Param>> {
        self.expect(b'(', "`(` of parameters")?;
        let mut params = Vec::new();
        if self.eat(b')')? {
            return Ok(params);
        }
        loop {
            params.push(self.param()?);
            if !self.eat(b',')? {
                break;
            }
        }
        self.expect(b')', "`,` or `)` after a parameter")?;
        Ok(params)
    }

    fn param(&mut self) -> Parse<Param> {
        let space = match self.token.kind {
            TokenKind::Dotted(".param") => ParamSpace::Param,
            TokenKind::Dotted(".reg") => ParamSpace::Reg,
            _ => return Err(self.expected("`.param` or `.reg`")),
        };
        self.advance()?;
        let mut align = None;
        if self.token.kind == TokenKind::Dotted(".align") {
            align = Some(self.align()?);
        }
        let ty = self.scalar_type()?;
        let pointee = match self.eat_dotted(".ptr")? {
            true => Some(self.pointee()?),
            false => None,
        };
        let name = self.name("a parameter's name")?;
        let dims = self.dims()?;
        Ok(Param { name, space, align, ty, dims, pointee })
    }

    fn pointee(&mut self) -> Parse<Pointee> {
        let mut pointee = Pointee { space: None, align: None };
        while let TokenKind::Dotted(modifier) = self.token.kind {
            if modifier == ".align" {
                pointee.align = Some(self.align()?);
                continue;
            }
            pointee.space = Space::from_name(&modifier[1..]);
            if pointee.space.is_none() {
                return Err(self.expected("a state space or `.align` after `.ptr`"));
            }
            self.advance()?;
        }
        Ok(pointee)
    }

    /// Directives between parameters and body, and whether `.noreturn` is one of them.
    fn performance(&mut self) -> Parse<(bool, Performance)> {
        let mut noreturn = false;
        let mut performance = Performance::default();
        while let TokenKind::Dotted(directive) = self.token.kind {
            match directive {
                ".noreturn" => noreturn = self.flag()?,
                ".maxntid" => performance.max_ntid = Some(self.extent()?),
                ".reqntid" => performance.req_ntid = Some(self.extent()?),
                ".minnctapersm" => performance.min_ncta_per_sm = Some(self.count()?),
                ".maxnctapersm" => performance.max_ncta_per_sm = Some(self.count()?),
                ".maxnreg" => performance.max_nreg = Some(self.count()?),
                ".explicitcluster" => performance.cluster.explicit = self.flag()?,
                ".blocksareclusters" => performance.cluster.blocks_are_clusters = self.flag()?,
                ".reqnctapercluster" => performance.cluster.req_ncta = Some(self.extent()?),
                ".maxclusterrank" => performance.cluster.max_rank = Some(self.count()?),
                ".abi_preserve" => performance.abi.preserve = Some(self.count()?),
                ".abi_preserve_control" => performance.abi.preserve_control = Some(self.count()?),
                ".pragma" => {
                    self.advance()?;
                    performance.pragmas.append(&mut self.pragma()?);
                }
                _ => return Err(self.expected("`{`, `;` or a performance directive")),
            }
        }
        Ok((noreturn, performance))
    }

    /// The current directive, which has no argument.
    fn flag(&mut self) -> Parse<bool> {
        self.advance()?;
        Ok(true)
    }

    /// The current directive's argument.
    fn count(&mut self) -> Parse<u32> {
        self.advance()?;
        self.u32("a number after a performance directive")
    }

    /// The current directive's arguments `x, y, z`, of which the latter two may be missing.
    fn extent(&mut self) -> Parse<[u32; 3]> {
        let mut extent = [self.count()?, 1, 1];
        for size in &mut extent[1..] {
            if !self.at(b',') {
                break;
            }
            *size = self.count()?;
        }
        Ok(extent)
    }

    /// What follows `name: .callprototype`.
    pub(super) fn prototype(&mut self, name: Name) -> Parse<Prototype> {
        let returns = match self.at(b'(') {
            true => self.params()?,
            false => Vec::new(),
        };
        if self.token.kind != TokenKind::Word("_") {
            return Err(self.expected("`_` of a call prototype"));
        }
        self.advance()?;
        let params = match self.at(b'(') {
            true => self.params()?,
            false => Vec::new(),
        };
        let (mut noreturn, mut abi) = (false, Abi::default());
        while let TokenKind::Dotted(directive) = self.token.kind {
            match directive {
                ".noreturn" => noreturn = self.flag()?,
                ".abi_preserve" => abi.preserve = Some(self.count()?),
                ".abi_preserve_control" => abi.preserve_control = Some(self.count()?),
                _ => return Err(self.expected("`;` or a directive of a call prototype")),
            }
        }
        self.expect(b';', "`;` after a call prototype")?;
        Ok(Prototype { name, returns, params, noreturn, abi })
    }
}
