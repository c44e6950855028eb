//! Variables and their initialisers.

use crate::{
    ast::{Attribute, Immediate, Initializer, Item, Linkage, Name, Relocation, ScalarType, Space, Variable},
    error::{Excerpt, ParseErrorKind},
    lexer::TokenKind,
};

use super::{Parse, Parser};

/// Most bytes that the nested initialisers of a module may leave out, all together.
pub(super) const MAX_PADDING: u64 = 16 << 20;

/// Most dimensions of an array.
const MAX_DIMS: usize = 16;

/// Most attributes of a symbol.
const MAX_ATTRIBUTES: usize = 4;

/// What stands before the names of a declaration.
pub(super) struct Declaration {
    pub attributes: Vec<Attribute>,
    pub align: Option<u32>,
    pub ty: ScalarType,
    pub vector: u32,
}

impl Parser<'_> {
    pub(super) fn module_variables(&mut self, linkage: Linkage, items: &mut Vec<Item>) -> Parse<()> {
        self.variables(linkage, |parser, variable| {
            parser.symbols.insert(variable.name.clone());
            items.push(Item::Variable(variable));
            Ok(())
        })
    }

    /// `.space … name, name = …;` with the current token at the space.
    pub(super) fn variables(
        &mut self,
        linkage: Linkage,
        mut declare: impl FnMut(&mut Self, Variable) -> Parse<()>,
    ) -> Parse<()> {
        let (space, texture) = match self.token.kind {
            // `.tex .u32 t` is the old spelling of `.global .texref t`.
            TokenKind::Dotted(".tex") => (Space::Global, true),
            TokenKind::Dotted(space) => match Space::from_name(&space[1..]) {
                Some(space) => (space, false),
                None => return Err(self.expected("a state space")),
            },
            _ => return Err(self.expected("a state space")),
        };
        self.advance()?;
        let mut declaration = self.declaration()?;
        if texture {
            declaration.ty = ScalarType::Texref;
        }
        loop {
            let variable = self.variable(linkage, space, &declaration)?;
            declare(self, variable)?;
            if !self.eat(b',')? {
                break;
            }
        }
        self.expect(b';', "`,`, `=` or `;` after a variable")
    }

    /// Attributes, alignment, vector width and type, in any order before the type.
    pub(super) fn declaration(&mut self) -> Parse<Declaration> {
        let mut attributes = Vec::new();
        let (mut align, mut vector) = (None, 1);
        loop {
            let TokenKind::Dotted(modifier) = self.token.kind else {
                return Err(self.expected("a type"));
            };
            match modifier {
                ".attribute" if attributes.is_empty() => attributes = self.attributes()?,
                ".align" => align = Some(self.align()?),
                ".v2" | ".v4" | ".v8" => {
                    vector = u32::from(modifier.as_bytes()[2] - b'0');
                    self.advance()?;
                }
                _ => {
                    let ty = self.scalar_type()?;
                    return Ok(Declaration { attributes, align, ty, vector });
                }
            }
        }
    }

    pub(super) fn scalar_type(&mut self) -> Parse<ScalarType> {
        let ty = match self.token.kind {
            TokenKind::Dotted(name) => ScalarType::from_name(&name[1..]),
            _ => None,
        };
        let ty = ty.ok_or_else(|| self.expected("a type"))?;
        self.advance()?;
        Ok(ty)
    }

    /// `.align n`, a power of two.
    pub(super) fn align(&mut self) -> Parse<u32> {
        self.advance()?;
        let token = self.token;
        let align = self.u32("an alignment")?;
        if !align.is_power_of_two() {
            return Err(self.out_of_range(token));
        }
        Ok(align)
    }

    /// `.attribute(.managed, .unified(a, b))`
    pub(super) fn attributes(&mut self) -> Parse<Vec<Attribute>> {
        self.advance()?;
        self.expect(b'(', "`(` of an attribute")?;
        let mut attributes = Vec::new();
        loop {
            if attributes.len() == MAX_ATTRIBUTES {
                let kind = ParseErrorKind::Limit { what: "attributes", limit: MAX_ATTRIBUTES as u64 };
                return Err(self.error(kind));
            }
            if self.eat_dotted(".managed")? {
                attributes.push(Attribute::Managed);
            } else if self.eat_dotted(".unified")? {
                self.expect(b'(', "`(` of .unified")?;
                let first = self.u64("the first half of a UUID")?;
                self.expect(b',', "`,` of .unified")?;
                attributes.push(Attribute::Unified(first, self.u64("the second half of a UUID")?));
                self.expect(b')', "`)` of .unified")?;
            } else {
                return Err(self.expected("`.managed` or `.unified`"));
            }
            if !self.eat(b',')? {
                break;
            }
        }
        self.expect(b')', "`)` of an attribute")?;
        Ok(attributes)
    }

    /// `[2][3]`; an unsized dimension only where it may stand, first.
    pub(super) fn dims(&mut self) -> Parse<Vec<Option<u64>>> {
        let mut dims = Vec::new();
        while self.eat(b'[')? {
            if dims.len() == MAX_DIMS {
                let kind = ParseErrorKind::Limit { what: "dimensions", limit: MAX_DIMS as u64 };
                return Err(self.error(kind));
            }
            if dims.is_empty() && self.eat(b']')? {
                dims.push(None);
                continue;
            }
            let token = self.token;
            let dim = self.int_constant("a dimension")?;
            dims.push(Some(u64::try_from(dim).map_err(|_| self.out_of_range(token))?));
            self.expect(b']', "`]` after a dimension")?;
        }
        Ok(dims)
    }

    fn variable(&mut self, linkage: Linkage, space: Space, declaration: &Declaration) -> Parse<Variable> {
        let name = self.name("a variable's name")?;
        let mut variable = Variable {
            name,
            linkage,
            space,
            attributes: declaration.attributes.clone(),
            align: declaration.align,
            ty: declaration.ty,
            vector: declaration.vector,
            dims: self.dims()?,
            init: None,
        };
        if self.at(b'=') {
            self.advance()?;
            self.initializer(&mut variable)?;
        }
        Ok(variable)
    }

    fn initializer(&mut self, variable: &mut Variable) -> Parse<()> {
        if variable.ty.is_opaque() {
            variable.init = Some(Initializer { opaque: self.opaque_fields()?, ..Initializer::default() });
            return Ok(());
        }
        let Some(mut filler) = Filler::new(variable) else {
            return Err(self.error(ParseErrorKind::Initializer));
        };
        if self.at(b'{') {
            self.advance()?;
            self.list(&mut filler, 0, 0)?;
        } else if variable.dims.is_empty() && variable.vector == 1 {
            self.element(&mut filler, 0)?;
        } else {
            return Err(self.expected("`{` of an initialiser"));
        }
        if let Some(first @ None) = variable.dims.first_mut() {
            *first = Some(filler.end.div_ceil(filler.strides[0]));
        }
        variable.init = Some(filler.init);
        Ok(())
    }

    /// Items of the array at `level`, whose first element is number `start`, up to the closing `}`.
    ///
    /// Recursion is bounded by [`MAX_DIMS`].
    fn list(&mut self, filler: &mut Filler, level: usize, start: u64) -> Parse<()> {
        let innermost = level + 1 == filler.strides.len();
        let end = filler.sizes[level].map(|size| start.saturating_add(size));
        let mut cursor = start;
        while !self.eat(b'}')? {
            if end.is_some_and(|end| cursor >= end) {
                return Err(self.error(ParseErrorKind::Initializer));
            }
            if innermost {
                self.element(filler, cursor)?;
            } else {
                self.expect(b'{', "`{` of a row of an initialiser")?;
                self.list(filler, level + 1, cursor)?;
            }
            cursor = cursor.saturating_add(filler.strides[level]);
            if !self.eat(b',')? {
                self.expect(b'}', "`,` or `}` in an initialiser")?;
                break;
            }
        }
        Ok(())
    }

    fn element(&mut self, filler: &mut Filler, index: u64) -> Parse<()> {
        let error_at = self.token.start;
        let offset = index.checked_mul(filler.size as u64);
        let offset = offset.ok_or_else(|| self.error(ParseErrorKind::Initializer))?;
        let padding = offset.saturating_sub(filler.init.data.len() as u64);
        self.padding_left = self.padding_left.checked_sub(padding).ok_or_else(|| {
            let what = "bytes left out of initialisers";
            self.error(ParseErrorKind::Limit { what, limit: MAX_PADDING })
        })?;
        let mut bits = 0;
        if matches!(self.token.kind, TokenKind::Word(word) if word != "WARP_SZ") {
            let relocation = self.relocation(offset, None)?;
            filler.init.relocations.push(relocation);
        } else {
            let value = self.constant()?;
            if self.at(b'(') {
                let Immediate::Int(mask) = value.immediate() else {
                    return Err(self.expected("an integer as mask of an address"));
                };
                self.advance()?;
                let relocation = self.relocation(offset, Some(mask as u64))?;
                filler.init.relocations.push(relocation);
                self.expect(b')', "`)` of a masked address")?;
            } else {
                bits = element_bits(value.immediate(), filler.ty)
                    .ok_or_else(|| self.lexer.error(error_at, ParseErrorKind::Initializer))?;
            }
        }
        filler.put(offset as usize, bits, index + 1);
        Ok(())
    }

    /// `symbol+4`, `generic(symbol)+4`
    fn relocation(&mut self, offset: u64, mask: Option<u64>) -> Parse<Relocation> {
        let mut start = self.token.start;
        let mut symbol = self.name("a symbol")?;
        let mut addend = 0;
        let generic = &*symbol == "generic" && self.eat(b'(')?;
        if generic {
            start = self.token.start;
            symbol = self.name("a symbol")?;
            addend = self.offset()?;
            self.expect(b')', "`)` of generic")?;
        }
        if !self.symbols.contains(&symbol) {
            return Err(self.lexer.error(start, ParseErrorKind::Undeclared(Excerpt::new(&symbol))));
        }
        addend = self.offset()?.wrapping_add(addend);
        Ok(Relocation { offset, symbol, addend, generic, mask })
    }

    /// `{ filter_mode = nearest, … }`
    fn opaque_fields(&mut self) -> Parse<Vec<(Name, Name)>> {
        self.expect(b'{', "`{` of an opaque initialiser")?;
        let mut fields = Vec::new();
        while !self.eat(b'}')? {
            let field = self.name("a field")?;
            self.expect(b'=', "`=` after a field")?;
            let value = match self.token.kind {
                TokenKind::Word(word) => self.intern(word),
                TokenKind::Int { value, .. } => self.intern(&value.to_string()),
                _ => return Err(self.expected("a field's value")),
            };
            self.advance()?;
            fields.push((field, value));
            if !self.eat(b',')? {
                self.expect(b'}', "`,` or `}` after a field")?;
                break;
            }
        }
        Ok(fields)
    }
}

/// Little-endian bits of an element; `None` where the type takes no such initial value.
fn element_bits(value: Immediate, ty: ScalarType) -> Option<u64> {
    use ScalarType as T;
    let double = |value: Immediate| match value {
        Immediate::Int(value) => value as f64,
        Immediate::F32(bits) => f32::from_bits(bits).into(),
        Immediate::F64(bits) => f64::from_bits(bits),
    };
    match (ty, value) {
        (T::F32, Immediate::F32(bits)) => Some(bits.into()),
        (T::F32, value) => Some((double(value) as f32).to_bits().into()),
        (T::F64, Immediate::F64(bits)) => Some(bits),
        (T::F64, value) => Some(double(value).to_bits()),
        (
            T::S8
            | T::S16
            | T::S32
            | T::S64
            | T::U8
            | T::U16
            | T::U32
            | T::U64
            | T::B8
            | T::B16
            | T::B32
            | T::B64,
            value,
        ) => Some(match value {
            Immediate::Int(value) => value as u64,
            // Untyped memory takes the bits of a float of its size.
            Immediate::F32(bits) => bits.into(),
            Immediate::F64(bits) => bits,
        }),
        _ => None,
    }
}

/// An initialiser in the making.
struct Filler {
    init: Initializer,
    ty: ScalarType,
    /// Bytes of an element.
    size: usize,
    /// Elements of an item at each level of nesting; the last is 1.
    strides: Vec<u64>,
    /// Elements of the list at each level; `None` for an array that its initialiser sizes.
    sizes: Vec<Option<u64>>,
    /// One more than the number of the last element.
    end: u64,
}

impl Filler {
    fn new(variable: &Variable) -> Option<Self> {
        element_bits(Immediate::Int(0), variable.ty)?;
        let mut dims = variable.dims.clone();
        if variable.vector > 1 || dims.is_empty() {
            dims.push(Some(variable.vector.into()));
        }
        let mut strides = vec![1u64; dims.len()];
        for level in (1..dims.len()).rev() {
            strides[level - 1] = strides[level].checked_mul(dims[level]?)?;
        }
        if strides.contains(&0) {
            return None;
        }
        let sizes = dims.iter().zip(&strides).map(|(dim, stride)| match dim {
            Some(dim) => dim.checked_mul(*stride).map(Some),
            None => Some(None),
        });
        let sizes = sizes.collect::<Option<_>>()?;
        let size = variable.ty.size() as usize;
        Some(Self { init: Initializer::default(), ty: variable.ty, size, strides, sizes, end: 0 })
    }

    fn put(&mut self, offset: usize, bits: u64, end: u64) {
        let data = &mut self.init.data;
        data.resize(offset, 0);
        data.extend_from_slice(&bits.to_le_bytes()[..self.size]);
        self.end = end;
    }
}
