//! Module level.

use crate::{
    ast::{Alias, File, Item, Linkage, Module, Section, Target, Version},
    error::{Excerpt, ParseErrorKind},
    lexer::TokenKind,
};

use super::{NEWEST_ISA, Parse, Parser};

impl Parser<'_> {
    pub(super) fn module(mut self) -> Parse<Module> {
        let version = self.version()?;
        let target = self.target()?;
        let address_size = self.address_size()?;
        let mut items = Vec::new();
        while self.token.kind != TokenKind::End {
            self.item(&mut items)?;
        }
        Ok(Module { version, target, address_size, items })
    }

    fn version(&mut self) -> Parse<Version> {
        if !self.eat_dotted(".version")? {
            return Err(self.expected("`.version`, with which PTX begins"));
        }
        let token = self.token;
        let TokenKind::F64(_) = token.kind else { return Err(self.expected("a version such as 8.0")) };
        let text = &self.lexer.text()[token.start..token.end];
        let version = text
            .split_once('.')
            .and_then(|(major, minor)| {
                Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
            })
            .ok_or_else(|| self.expected("a version such as 8.0"))?;
        if version > NEWEST_ISA {
            return Err(self.error(ParseErrorKind::Version(version)));
        }
        self.advance()?;
        Ok(version)
    }

    fn target(&mut self) -> Parse<Target> {
        if !self.eat_dotted(".target")? {
            return Err(self.expected("`.target`"));
        }
        let arch = self.name("an architecture such as sm_80")?;
        let mut options = Vec::new();
        while self.eat(b',')? {
            options.push(self.name("a target option")?);
        }
        Ok(Target { arch, options })
    }

    /// Without the directive, 32, as the ISA says.
    fn address_size(&mut self) -> Parse<u32> {
        if !self.eat_dotted(".address_size")? {
            return Ok(32);
        }
        match self.token.kind {
            TokenKind::Int { value: 32, .. } => self.u32("32"),
            TokenKind::Int { value: 64, .. } => self.u32("64"),
            _ => Err(self.expected("32 or 64")),
        }
    }

    fn item(&mut self, items: &mut Vec<Item>) -> Parse<()> {
        let linkage = self.linkage()?;
        let TokenKind::Dotted(directive) = self.token.kind else {
            return Err(self.expected("a directive of the module"));
        };
        match directive {
            ".entry" | ".func" => items.push(Item::Function(self.function(linkage)?)),
            ".const" | ".global" | ".shared" | ".local" | ".tex" => {
                self.module_variables(linkage, items)?;
            }
            _ if linkage != Linkage::Internal => {
                return Err(self.expected("a function or a variable after its linkage"));
            }
            ".alias" => items.push(Item::Alias(self.alias()?)),
            ".file" => items.push(Item::File(self.file()?)),
            ".section" => items.push(Item::Section(self.section()?)),
            ".pragma" => {
                self.advance()?;
                items.push(Item::Pragma(self.pragma()?));
            }
            _ => return Err(self.expected("a directive of the module")),
        }
        Ok(())
    }

    fn linkage(&mut self) -> Parse<Linkage> {
        let linkage = match self.token.kind {
            TokenKind::Dotted(".visible") => Linkage::Visible,
            TokenKind::Dotted(".extern") => Linkage::Extern,
            TokenKind::Dotted(".weak") => Linkage::Weak,
            TokenKind::Dotted(".common") => Linkage::Common,
            _ => return Ok(Linkage::Internal),
        };
        self.advance()?;
        Ok(linkage)
    }

    fn alias(&mut self) -> Parse<Alias> {
        self.advance()?;
        let name = self.name("the alias's name")?;
        self.expect(b',', "`,` after the alias's name")?;
        let start = self.token.start;
        let target = self.name("the function that the alias stands for")?;
        if !self.symbols.contains(&target) {
            let kind = ParseErrorKind::Undeclared(Excerpt::new(&target));
            return Err(self.lexer.error(start, kind));
        }
        self.expect(b';', "`;` after an alias")?;
        self.symbols.insert(name.clone());
        Ok(Alias { name, target })
    }

    fn file(&mut self) -> Parse<File> {
        self.advance()?;
        let index = self.u32("a file's index")?;
        let name = self.string("a file's name")?;
        let mut stamp = None;
        if self.eat(b',')? {
            let time = self.u64("a file's modification time")?;
            self.expect(b',', "`,` after a file's modification time")?;
            stamp = Some((time, self.u64("a file's size")?));
        }
        Ok(File { index, name, stamp })
    }

    fn section(&mut self) -> Parse<Section> {
        self.advance()?;
        let TokenKind::Dotted(name) = self.token.kind else {
            return Err(self.expected("a section's name"));
        };
        let name = self.intern(name);
        self.advance()?;
        if !self.at(b'{') {
            return Err(self.expected("`{` of a section"));
        }
        let lines = self.lexer.raw_block()?.into_iter().map(Into::into).collect();
        self.advance()?;
        Ok(Section { name, lines })
    }
}
