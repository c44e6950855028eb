//! Bodies: declarations and statements.

use crate::{
    ast::{
        Body, BranchTable, BranchTableId, CallTable, CallTableId, CallTargets, Callee, Formal, Function,
        Guard, InlinedAt, Instruction, LabelId, Linkage, Loc, LocalId, Name, Opcode, Operand, ParamId,
        ParamSpace, PrototypeId, RegId, ReturnId, Statement, Symbol,
    },
    error::{Excerpt, ParseError, ParseErrorKind},
    lexer::TokenKind,
};

use super::{
    Parse, Parser,
    scope::{Duplicate, Labelled, RegDeclaration, Resolved, Scopes},
};

/// Deepest nesting of scopes.
const MAX_SCOPES: usize = 64;

/// A use of a label, resolved when the whole body is known. Until then an id holds its index.
struct Reference {
    name: Name,
    scope: usize,
    at: usize,
}

pub(super) struct BodyParser<'p, 'a> {
    pub(super) parser: &'p mut Parser<'a>,
    pub(super) scopes: Scopes,
    body: Body,
    references: Vec<Reference>,
    /// Statements that use labels.
    unresolved: Vec<usize>,
}

impl<'p, 'a> BodyParser<'p, 'a> {
    pub fn new(parser: &'p mut Parser<'a>, function: &Function) -> Parse<Self> {
        let body = Body::default();
        let mut this =
            Self { parser, scopes: Scopes::new(), body, references: Vec::new(), unresolved: Vec::new() };
        this.scopes.open();
        let returns = function.returns.iter().enumerate().map(|(id, param)| {
            let id = ReturnId(id as u32);
            (param, Formal::Return(id), Symbol::Return(id))
        });
        let params = function.params.iter().enumerate().map(|(id, param)| {
            let id = ParamId(id as u32);
            (param, Formal::Param(id), Symbol::Param(id))
        });
        for (param, formal, symbol) in returns.chain(params) {
            if &*param.name == "_" {
                continue;
            }
            this.scopes.reserve(&param.name);
            let name = param.name.clone();
            let declared = match param.space {
                ParamSpace::Param => this.scopes.declare_symbol(name, symbol),
                ParamSpace::Reg => {
                    let declaration = RegDeclaration { ty: param.ty, vector: 1, formal: Some(formal) };
                    this.scopes.declare_register(name, declaration)
                }
            };
            let at = this.parser.token.start;
            declared.map_err(|Duplicate| this.duplicate(at, &param.name))?;
        }
        Ok(this)
    }

    /// The body, with the current token at its `{`. Scopes are a stack, not recursion.
    pub fn body(mut self) -> Parse<Body> {
        let outermost = self.scopes.depth();
        loop {
            match self.parser.token.kind {
                TokenKind::Punct(b'{') => self.open()?,
                TokenKind::Punct(b'}') => {
                    self.parser.advance()?;
                    self.scopes.close();
                    if self.scopes.depth() == outermost {
                        break;
                    }
                }
                TokenKind::Punct(b'@') => {
                    let guard = self.guard()?;
                    let start = self.parser.token;
                    let word = self.parser.word("an instruction after its guard")?;
                    self.instruction(Some(guard), word, start.start, start.line)?;
                }
                TokenKind::Word(word) => {
                    let token = self.parser.advance()?;
                    match self.parser.eat(b':')? {
                        true => self.label(word, token.start)?,
                        false => self.instruction(None, word, token.start, token.line)?,
                    }
                }
                TokenKind::Dotted(directive) => self.directive(directive)?,
                _ => return Err(self.parser.expected("a statement or `}`")),
            }
        }
        self.resolve_references()?;
        self.body.registers = self.scopes.registers;
        Ok(self.body)
    }

    fn open(&mut self) -> Parse<()> {
        if self.scopes.depth() >= MAX_SCOPES {
            let kind = ParseErrorKind::Limit { what: "nested scopes", limit: MAX_SCOPES as u64 };
            return Err(self.parser.error(kind));
        }
        self.scopes.open();
        self.parser.advance()?;
        Ok(())
    }

    fn duplicate(&self, at: usize, name: &str) -> ParseError {
        self.parser.lexer.error(at, ParseErrorKind::Duplicate(Excerpt::new(name)))
    }

    fn directive(&mut self, directive: &str) -> Parse<()> {
        match directive {
            ".reg" => self.registers(),
            ".local" | ".shared" | ".param" | ".const" | ".global" => self.locals(Linkage::Internal),
            // `extern .shared` may stand in a body.
            ".extern" => {
                self.parser.advance()?;
                self.locals(Linkage::Extern)
            }
            ".pragma" => {
                self.parser.advance()?;
                let pragma = self.parser.pragma()?;
                self.body.statements.push(Statement::Pragma(pragma));
                Ok(())
            }
            ".loc" => {
                self.parser.advance()?;
                let loc = self.loc()?;
                self.body.statements.push(Statement::Loc(loc));
                Ok(())
            }
            _ => Err(self.parser.expected("a directive of a function's body")),
        }
    }

    /// `.reg .b32 a, %r<10>;`
    fn registers(&mut self) -> Parse<()> {
        self.parser.advance()?;
        let declaration = self.parser.declaration()?;
        if declaration.vector > 4 {
            return Err(self.parser.expected("a vector register of at most 4 components"));
        }
        let declaration = RegDeclaration { ty: declaration.ty, vector: declaration.vector, formal: None };
        loop {
            let at = self.parser.token.start;
            let name = self.parser.name("a register's name")?;
            let declared = if self.parser.eat(b'<')? {
                let count = self.parser.u32("a number of registers")?;
                self.parser.expect(b'>', "`>` after a number of registers")?;
                self.scopes.declare_range(name.clone(), count, declaration)
            } else {
                self.scopes.declare_register(name.clone(), declaration)
            };
            declared.map_err(|Duplicate| self.duplicate(at, &name))?;
            if !self.parser.eat(b',')? {
                return self.parser.expect(b';', "`,` or `;` after a register");
            }
        }
    }

    fn locals(&mut self, linkage: Linkage) -> Parse<()> {
        let Self { parser, scopes, body, .. } = self;
        parser.variables(linkage, |parser, mut variable| {
            let local = LocalId(body.locals.len() as u32);
            let declared = scopes.declare_symbol(variable.name.clone(), Symbol::Local(local));
            declared
                .map_err(|Duplicate| parser.error(ParseErrorKind::Duplicate(Excerpt::new(&variable.name))))?;
            variable.name = scopes.unique(&variable.name, &parser.symbols);
            body.locals.push(variable);
            Ok(())
        })
    }

    /// `.loc file line column[, function_name label[+offset], inlined_at file line column]`
    fn loc(&mut self) -> Parse<Loc> {
        let parser = &mut *self.parser;
        let file = parser.u32("a file's index")?;
        let line = parser.u32("a line")?;
        let column = parser.u32("a column")?;
        let mut inlined_at = None;
        if parser.eat(b',')? {
            if parser.word("`function_name`")? != "function_name" {
                return Err(parser.expected("`function_name`"));
            }
            let function = parser.name("a label")?;
            let offset = parser.offset()?;
            parser.expect(b',', "`,` before inlined_at")?;
            if parser.word("`inlined_at`")? != "inlined_at" {
                return Err(parser.expected("`inlined_at`"));
            }
            let file = parser.u32("a file's index")?;
            let line = parser.u32("a line")?;
            inlined_at = Some(InlinedAt { function, offset, file, line, column: parser.u32("a column")? });
        }
        Ok(Loc { file, line, column, inlined_at })
    }

    /// What stands after `name:`.
    fn label(&mut self, word: &str, at: usize) -> Parse<()> {
        let name = self.parser.intern(word);
        let unique = self.scopes.unique(&name, &self.parser.symbols);
        let labelled = if self.parser.eat_dotted(".branchtargets")? {
            let targets = self.name_list()?;
            let targets = targets.into_iter().map(|(name, at)| LabelId(self.refer(name, at))).collect();
            self.body.branch_tables.push(BranchTable { name: unique, targets });
            Labelled::Branches(BranchTableId(self.body.branch_tables.len() as u32 - 1))
        } else if self.parser.eat_dotted(".calltargets")? {
            let functions = self.name_list()?;
            let functions = functions.into_iter().map(|(name, at)| self.function_name(name, at));
            let functions = functions.collect::<Parse<_>>()?;
            self.body.call_tables.push(CallTable { name: unique, functions });
            Labelled::Calls(CallTableId(self.body.call_tables.len() as u32 - 1))
        } else if self.parser.eat_dotted(".callprototype")? {
            let prototype = self.parser.prototype(unique)?;
            self.body.prototypes.push(prototype);
            Labelled::Prototype(PrototypeId(self.body.prototypes.len() as u32 - 1))
        } else {
            let label = LabelId(self.body.labels.len() as u32);
            self.body.labels.push(unique);
            self.body.statements.push(Statement::Label(label));
            Labelled::Code(label)
        };
        self.scopes.declare_label(name, labelled).map_err(|Duplicate| self.duplicate(at, word))
    }

    /// `a, b, c;`, each with its place.
    fn name_list(&mut self) -> Parse<Vec<(Name, usize)>> {
        let mut names = Vec::new();
        loop {
            let at = self.parser.token.start;
            names.push((self.parser.name("a label or function")?, at));
            if !self.parser.eat(b',')? {
                self.parser.expect(b';', "`,` or `;` in a list of targets")?;
                return Ok(names);
            }
        }
    }

    pub(super) fn function_name(&self, name: Name, at: usize) -> Parse<Name> {
        match self.parser.symbols.contains(&name) {
            true => Ok(name),
            false => Err(self.parser.lexer.error(at, ParseErrorKind::Undeclared(Excerpt::new(&name)))),
        }
    }

    fn guard(&mut self) -> Parse<Guard> {
        self.parser.advance()?;
        let negated = self.parser.eat(b'!')?;
        Ok(Guard { reg: self.register("a predicate register")?, negated })
    }

    /// A scalar register.
    pub(super) fn register(&mut self, expected: &'static str) -> Parse<RegId> {
        if let TokenKind::Word(word) = self.parser.token.kind {
            let name = self.parser.intern(word);
            if let Some(Resolved::Reg(reg)) = self.scopes.resolve(&name, &self.parser.symbols) {
                self.parser.advance()?;
                return Ok(reg);
            }
        }
        Err(self.parser.expected(expected))
    }

    fn instruction(&mut self, guard: Option<Guard>, word: &'a str, start: usize, line: u32) -> Parse<()> {
        if !word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let found = Excerpt::new(word);
            let kind = ParseErrorKind::Expected { expected: "an instruction, a label or a directive", found };
            return Err(self.parser.lexer.error(start, kind));
        }
        let opcode = self.opcode(word, start)?;
        let mut operands = Vec::new();
        if word == "call" {
            operands.push(self.call()?);
        } else if !self.parser.at(b';') {
            loop {
                operands.push(match (word, operands.len()) {
                    ("bra", 0) => Operand::Label(LabelId(self.reference()?)),
                    ("brx", 1) => Operand::BranchTable(BranchTableId(self.reference()?)),
                    _ => self.operand()?,
                });
                if !self.parser.eat(b',')? {
                    break;
                }
            }
        }
        self.parser.expect(b';', "`,` or `;` after an operand")?;
        if matches!(word, "bra" | "brx" | "call") {
            self.unresolved.push(self.body.statements.len());
        }
        self.body.statements.push(Statement::Instruction(Instruction { guard, opcode, operands, line }));
        Ok(())
    }

    /// `word` and the modifiers that follow.
    fn opcode(&mut self, word: &'a str, start: usize) -> Parse<Opcode> {
        let text = self.parser.lexer.text();
        let mut end = start + word.len();
        let mut apart = None::<String>;
        while let TokenKind::Dotted(modifier) = self.parser.token.kind {
            if self.parser.token.start != end && apart.is_none() {
                apart = Some(text[start..end].into());
            }
            if let Some(apart) = &mut apart {
                apart.push_str(modifier);
            }
            end = self.parser.token.end;
            self.parser.advance()?;
        }
        if let Some(spelling) = apart {
            return Ok(Opcode::new(self.parser.intern(&spelling)));
        }
        let spelling = &text[start..end];
        if let Some(opcode) = self.parser.opcodes.get(spelling) {
            return Ok(opcode.clone());
        }
        let opcode = Opcode::new(self.parser.intern(spelling));
        self.parser.opcodes.insert(spelling, opcode.clone());
        Ok(opcode)
    }

    /// The current token as a use of a label.
    pub(super) fn reference(&mut self) -> Parse<u32> {
        let at = self.parser.token.start;
        let name = self.parser.name("a label")?;
        Ok(self.refer(name, at))
    }

    fn refer(&mut self, name: Name, at: usize) -> u32 {
        self.references.push(Reference { name, scope: self.scopes.current(), at });
        self.references.len() as u32 - 1
    }

    fn resolve_references(&mut self) -> Parse<()> {
        let resolve = |index: u32, accept: fn(Labelled) -> bool| {
            let Reference { name, scope, at } = &self.references[index as usize];
            self.scopes.label(*scope, name).filter(|labelled| accept(*labelled)).ok_or_else(|| {
                self.parser.lexer.error(*at, ParseErrorKind::UndefinedLabel(Excerpt::new(name)))
            })
        };
        let code = |label: &mut LabelId| {
            if let Labelled::Code(id) = resolve(label.0, |l| matches!(l, Labelled::Code(_)))? {
                *label = id;
            }
            Ok(())
        };
        for table in &mut self.body.branch_tables {
            table.targets.iter_mut().try_for_each(code)?;
        }
        for index in &self.unresolved {
            let Statement::Instruction(instruction) = &mut self.body.statements[*index] else { continue };
            for operand in &mut instruction.operands {
                match operand {
                    Operand::Label(label) => code(label)?,
                    Operand::BranchTable(table) => {
                        if let Labelled::Branches(id) =
                            resolve(table.0, |l| matches!(l, Labelled::Branches(_)))?
                        {
                            *table = id;
                        }
                    }
                    Operand::Call(call) => {
                        let Callee::Indirect(_, targets) = &mut call.callee else { continue };
                        let CallTargets::Prototype(PrototypeId(reference)) = *targets else { continue };
                        match resolve(reference, |l| {
                            matches!(l, Labelled::Calls(_) | Labelled::Prototype(_))
                        })? {
                            Labelled::Calls(id) => *targets = CallTargets::Table(id),
                            Labelled::Prototype(id) => *targets = CallTargets::Prototype(id),
                            _ => {}
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
