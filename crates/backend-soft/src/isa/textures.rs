//! Textures and surfaces: `tex`, `tld4`, `txq`, `suld`, `sust`, `suq`, by objects whose values are in registers.

use ptx::ast::ScalarType::{self, *};
use ptx::ast::{Address, AddressBase, Operand};

use super::{Result, Spelling};
use crate::exec::{
    Geometry, Inst, Level, Op, Outside, Query, ROWS, Slot, SurfaceAccess, TextureRead, query, surface_load,
    surface_store, texture_read, un,
};
use crate::lower::{Lower, wrong};

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    match op.name {
        "tex" | "tld4" => read(cx, op),
        "suld" | "sust" => surface(cx, op),
        _ => ask(cx, op),
    }
}

fn geometry(modifier: &str) -> Option<Geometry> {
    Some(match modifier {
        "1d" => Geometry::One,
        "2d" => Geometry::Two,
        "3d" => Geometry::Three,
        "a1d" => Geometry::OneLayered,
        "a2d" => Geometry::TwoLayered,
        "cube" => Geometry::Cube,
        "acube" => Geometry::CubeLayered,
        _ => return None,
    })
}

/// The object that an instruction names: a value in a register or parameter buffer. Texture references, which are symbols, ended
/// with CUDA 12.
fn object(cx: &mut Lower<'_>, op: &Spelling<'_>, address: &Address) -> Result<Slot> {
    match &address.base {
        AddressBase::Reg(reg) if address.offset == 0 => cx.src(&Operand::Reg(*reg), U64),
        _ => Err(op.unsupported()),
    }
}

/// Puts numbers into scratch rows, one behind the other.
struct Numbers {
    first: Slot,
    next: usize,
}

impl Numbers {
    fn new(cx: &mut Lower<'_>) -> Self {
        Self { first: cx.scratch(ROWS), next: 0 }
    }

    fn add(&mut self, cx: &mut Lower<'_>, operand: &Operand, ty: ScalarType) -> Result<()> {
        let from = cx.src(operand, ty)?;
        let to = Slot::register(self.first.index() + self.next);
        cx.copy(to, from, un(|a: u32| a));
        self.next += 1;
        Ok(())
    }

    /// Layer and coordinates; there may be more, which are not used.
    fn add_place(
        &mut self,
        cx: &mut Lower<'_>,
        op: &Spelling<'_>,
        geometry: Geometry,
        coordinates: &[Operand],
        ty: ScalarType,
    ) -> Result<()> {
        let mut rest = coordinates;
        if geometry.is_layered() {
            let [layer, others @ ..] = rest else { return Err(wrong(op.instruction)) };
            self.add(cx, layer, U32)?;
            rest = others;
        }
        let place = rest.get(..geometry.coordinates()).ok_or_else(|| wrong(op.instruction))?;
        place.iter().try_for_each(|coordinate| self.add(cx, coordinate, ty))
    }
}

fn vector(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Vector(elements) => elements,
        one => std::slice::from_ref(one),
    }
}

fn read(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let mut level = Level::Base;
    let mut shape = None;
    let mut gather = None;
    for modifier in &op.mods {
        match *modifier {
            "base" | "v4" => {}
            "level" if op.name == "tex" => level = Level::Given,
            "grad" if op.name == "tex" => level = Level::Gradients,
            "r" | "g" | "b" | "a" if op.name == "tld4" => {
                gather = Some(match *modifier {
                    "r" => 0,
                    "g" => 1,
                    "b" => 2,
                    _ => 3,
                });
            }
            other => shape = Some(geometry(other).ok_or_else(|| op.unsupported())?),
        }
    }
    let geometry = shape.ok_or_else(|| op.unsupported())?;
    let [result, coordinate] = op.types[..] else { return Err(op.unsupported()) };
    let whole = coordinate == S32;
    let planar = matches!(geometry, Geometry::Two | Geometry::TwoLayered);
    let fits = matches!(result, F32 | S32 | U32)
        && (whole || coordinate == F32)
        && (op.name == "tex") == gather.is_none()
        && (gather.is_none() || planar && !whole)
        && !(whole && matches!(geometry, Geometry::Cube | Geometry::CubeLayered));
    if !fits {
        return Err(op.unsupported());
    }
    let [results, Operand::Indexed { base, sampler: None, coordinates }, rest @ ..] =
        &op.instruction.operands[..]
    else {
        return Err(op.unsupported());
    };
    let mut inst = cx.inst(Op::Access(texture_read));
    inst.s[0] = object(cx, op, base)?;
    let mut numbers = Numbers::new(cx);
    inst.s[1] = numbers.first;
    numbers.add_place(cx, op, geometry, coordinates, coordinate)?;
    match (level, rest) {
        (Level::Base, []) => {}
        (Level::Given, [lod]) => numbers.add(cx, lod, coordinate)?,
        (Level::Gradients, [x, y]) => {
            for gradient in [x, y] {
                let steps = vector(gradient).get(..geometry.coordinates());
                let steps = steps.ok_or_else(|| wrong(op.instruction))?;
                steps.iter().try_for_each(|step| numbers.add(cx, step, F32))?;
            }
        }
        // Offsets and depth comparisons.
        _ => return Err(op.unsupported()),
    }
    inst.imm = TextureRead { geometry, whole, level, gather }.pack();
    destinations(cx, op, &mut inst, vector(results), 4, result)?;
    cx.push(inst);
    Ok(())
}

fn destinations(
    cx: &mut Lower<'_>,
    op: &Spelling<'_>,
    inst: &mut Inst,
    results: &[Operand],
    count: usize,
    ty: ScalarType,
) -> Result<()> {
    if results.len() != count {
        return Err(op.unsupported());
    }
    inst.width = count as u8;
    for (slot, result) in inst.d.iter_mut().zip(results) {
        let (found, widening) = cx.dst(result, ty)?;
        if widening.is_some() {
            return Err(wrong(op.instruction));
        }
        *slot = found;
    }
    Ok(())
}

fn surface(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let mut shape = None;
    let mut outside = Outside::Trap;
    for modifier in &op.mods {
        match *modifier {
            "b" | "v2" | "v4" => {}
            "trap" => outside = Outside::Trap,
            "clamp" => outside = Outside::Clamp,
            "zero" => outside = Outside::Zero,
            other if super::loads::is_hint(other) => {}
            other => shape = Some(geometry(other).ok_or_else(|| op.unsupported())?),
        }
    }
    let (geometry, ty) = (shape.ok_or_else(|| op.unsupported())?, op.ty()?);
    let width = op.instruction.opcode.vector_width();
    let is_cube = matches!(geometry, Geometry::Cube | Geometry::CubeLayered);
    if !op.has("b") || !matches!(ty, B8 | B16 | B32 | B64) || is_cube || width as u64 * ty.size() > 16 {
        return Err(op.unsupported());
    }
    let (values, base, coordinates) = match &op.instruction.operands[..] {
        [values, Operand::Indexed { base, sampler: None, coordinates }] if op.name == "suld" => {
            (values, base, coordinates)
        }
        [Operand::Indexed { base, sampler: None, coordinates }, values] if op.name == "sust" => {
            (values, base, coordinates)
        }
        _ => return Err(op.unsupported()),
    };
    let mut inst = cx.inst(Op::Access(if op.name == "suld" { surface_load } else { surface_store }));
    inst.s[0] = object(cx, op, base)?;
    let mut numbers = Numbers::new(cx);
    inst.s[1] = numbers.first;
    numbers.add_place(cx, op, geometry, coordinates, S32)?;
    inst.imm = SurfaceAccess { geometry, outside, bytes: ty.size() as u8 }.pack();
    let register = if ty.size() == 8 { B64 } else { B32 };
    let values = vector(values);
    if op.name == "suld" {
        destinations(cx, op, &mut inst, values, width, register)?;
    } else {
        if values.len() != width {
            return Err(op.unsupported());
        }
        inst.width = width as u8;
        for (slot, value) in inst.d.iter_mut().zip(values) {
            *slot = cx.src(value, register)?;
        }
    }
    cx.push(inst);
    Ok(())
}

fn ask(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let asked = match op.mods[..] {
        ["width"] => Query::Width,
        ["height"] => Query::Height,
        ["depth"] => Query::Depth,
        ["array_size"] => Query::Layers,
        ["num_mipmap_levels"] if op.name == "txq" => Query::Levels,
        ["normalized_coords"] if op.name == "txq" => Query::IsNormalized,
        _ => return Err(op.unsupported()),
    };
    if op.ty()? != B32 {
        return Err(op.unsupported());
    }
    let [result, Operand::Address(base)] = &op.instruction.operands[..] else {
        return Err(op.unsupported());
    };
    let mut inst = cx.inst(Op::Access(query));
    inst.s[0] = object(cx, op, base)?;
    inst.imm = asked.pack(op.name == "suq");
    let (slot, widening) = cx.dst(result, B32)?;
    inst.d[0] = slot;
    cx.push(inst);
    cx.finish_dst(widening);
    Ok(())
}
