//! From the syntax tree back to text that parses to the same tree.

mod body;
mod variable;

use std::fmt::{self, Display, Formatter};

use crate::ast::{
    Abi, Attribute, Function, FunctionKind, Item, Linkage, Module, Param, ParamSpace, Performance,
};

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, ".version {}", self.version)?;
        write!(f, ".target {}", self.target.arch)?;
        for option in &self.target.options {
            write!(f, ", {option}")?;
        }
        writeln!(f, "\n.address_size {}\n", self.address_size)?;
        self.items.iter().try_for_each(|item| item.fmt(f))
    }
}

impl Display for Item {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(variable) => writeln!(f, "{variable}"),
            Self::Function(function) => writeln!(f, "{function}"),
            Self::Alias(alias) => writeln!(f, ".alias {}, {};", alias.name, alias.target),
            Self::File(file) => {
                write!(f, ".file {} \"{}\"", file.index, file.name)?;
                if let Some((time, size)) = file.stamp {
                    write!(f, ", {time}, {size}")?;
                }
                writeln!(f)
            }
            Self::Section(section) => {
                writeln!(f, ".section {} {{", section.name)?;
                section.lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
                writeln!(f, "}}")
            }
            Self::Pragma(strings) => writeln!(f, "{}", Pragma(strings)),
        }
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FunctionKind::Entry => ".entry",
            FunctionKind::Func => ".func",
        };
        write!(f, "{}{kind} {}", Link(self.linkage), Attributes(&self.attributes))?;
        if !self.returns.is_empty() {
            write!(f, "{} ", Params(&self.returns))?;
        }
        write!(f, "{}{}", self.name, Params(&self.params))?;
        if self.noreturn {
            write!(f, " .noreturn")?;
        }
        self.performance.fmt(f)?;
        match &self.body {
            None => f.write_str(";"),
            Some(body) => {
                f.write_str("\n{\n")?;
                body::print(f, self, body)?;
                f.write_str("}")
            }
        }
    }
}

impl Display for Performance {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut extent = |directive: &str, extent: Option<[u32; 3]>| match extent {
            Some([x, y, z]) => write!(f, "\n{directive} {x}, {y}, {z}"),
            None => Ok(()),
        };
        extent(".maxntid", self.max_ntid)?;
        extent(".reqntid", self.req_ntid)?;
        extent(".reqnctapercluster", self.cluster.req_ncta)?;
        let mut count = |directive: &str, count: Option<u32>| match count {
            Some(count) => write!(f, "\n{directive} {count}"),
            None => Ok(()),
        };
        count(".minnctapersm", self.min_ncta_per_sm)?;
        count(".maxnctapersm", self.max_ncta_per_sm)?;
        count(".maxnreg", self.max_nreg)?;
        count(".maxclusterrank", self.cluster.max_rank)?;
        if self.cluster.explicit {
            f.write_str("\n.explicitcluster")?;
        }
        if self.cluster.blocks_are_clusters {
            f.write_str("\n.blocksareclusters")?;
        }
        self.abi.fmt(f)?;
        self.pragmas.iter().try_for_each(|text| write!(f, "\n{}", Pragma(std::slice::from_ref(text))))
    }
}

impl Display for Abi {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(registers) = self.preserve {
            write!(f, "\n.abi_preserve {registers}")?;
        }
        if let Some(registers) = self.preserve_control {
            write!(f, "\n.abi_preserve_control {registers}")?;
        }
        Ok(())
    }
}

struct Params<'a>(&'a [Param]);

impl Display for Params<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (index, param) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            param.fmt(f)?;
        }
        f.write_str(")")
    }
}

impl Display for Param {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.space {
            ParamSpace::Param => ".param",
            ParamSpace::Reg => ".reg",
        })?;
        if let Some(align) = self.align {
            write!(f, " .align {align}")?;
        }
        write!(f, " {}", self.ty)?;
        if let Some(pointee) = self.pointee {
            f.write_str(" .ptr")?;
            if let Some(space) = pointee.space {
                write!(f, " .{}", space.name())?;
            }
            if let Some(align) = pointee.align {
                write!(f, " .align {align}")?;
            }
        }
        write!(f, " {}{}", self.name, variable::Dims(&self.dims))
    }
}

/// A linkage and the blank after it.
struct Link(Linkage);

impl Display for Link {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Linkage::Internal => "",
            Linkage::Visible => ".visible ",
            Linkage::Extern => ".extern ",
            Linkage::Weak => ".weak ",
            Linkage::Common => ".common ",
        })
    }
}

/// Attributes and the blank after them.
struct Attributes<'a>(&'a [Attribute]);

impl Display for Attributes<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, attribute) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { ".attribute(" } else { ", " })?;
            match attribute {
                Attribute::Managed => f.write_str(".managed")?,
                Attribute::Unified(a, b) => write!(f, ".unified({a}, {b})")?,
            }
        }
        f.write_str(if self.0.is_empty() { "" } else { ") " })
    }
}

struct Pragma<'a>(&'a [Box<str>]);

impl Display for Pragma<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, text) in self.0.iter().enumerate() {
            write!(f, "{} \"{text}\"", if index == 0 { ".pragma" } else { "," })?;
        }
        f.write_str(";")
    }
}
