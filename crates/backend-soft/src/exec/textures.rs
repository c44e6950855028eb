//! Handlers that read and write textures and surfaces, one lane after another.
//!
//! The first source is the object. Coordinates lie in scratch rows, one behind the other, from the second source on: lowering puts them
//! there, because there are more than an instruction has sources.

use super::{Elem, Fault, FaultKind, Inst, LANES, Lanes, Slot};
use crate::texture::{Plane, Source, Spot, Surface, Texel, Texture, face};

/// What an access is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Geometry {
    One,
    Two,
    Three,
    OneLayered,
    TwoLayered,
    Cube,
    CubeLayered,
}

impl Geometry {
    const ALL: [Self; 7] = [
        Self::One,
        Self::Two,
        Self::Three,
        Self::OneLayered,
        Self::TwoLayered,
        Self::Cube,
        Self::CubeLayered,
    ];

    /// Coordinates, apart from the layer.
    pub fn coordinates(self) -> usize {
        match self {
            Self::One | Self::OneLayered => 1,
            Self::Two | Self::TwoLayered => 2,
            Self::Three | Self::Cube | Self::CubeLayered => 3,
        }
    }

    /// Whether the first number is a layer.
    pub fn is_layered(self) -> bool {
        matches!(self, Self::OneLayered | Self::TwoLayered | Self::CubeLayered)
    }

    fn is_cube(self) -> bool {
        matches!(self, Self::Cube | Self::CubeLayered)
    }
}

/// What a `tex` or `tld4` does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextureRead {
    /// Of what.
    pub geometry: Geometry,
    /// Whether coordinates are integers.
    pub whole: bool,
    /// How the level is given.
    pub level: Level,
    /// The channel that `tld4` gathers.
    pub gather: Option<u8>,
}

/// How a level of detail is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Level {
    Base,
    Given,
    Gradients,
}

/// What becomes of an access that lies outside of a surface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Outside {
    /// The kernel ends.
    Trap,
    /// It goes to the edge.
    Clamp,
    /// Zeros are read, and nothing written.
    Zero,
}

/// What a `suld` or `sust` does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SurfaceAccess {
    /// Of what.
    pub geometry: Geometry,
    /// What lies outside.
    pub outside: Outside,
    /// Bytes of each element moved.
    pub bytes: u8,
}

/// What a `txq` or `suq` asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Query {
    Width,
    Height,
    Depth,
    Layers,
    Levels,
    IsNormalized,
}

impl Query {
    const ALL: [Self; 6] =
        [Self::Width, Self::Height, Self::Depth, Self::Layers, Self::Levels, Self::IsNormalized];

    /// As an instruction keeps it; `surface`: asked of a surface.
    pub fn pack(self, surface: bool) -> u64 {
        u64::from(self as u8) | u64::from(surface) << 8
    }

    fn unpack(bits: u64) -> (Self, bool) {
        (Self::ALL[bits as usize % 256 % Self::ALL.len()], bits >> 8 & 1 != 0)
    }
}

impl TextureRead {
    /// As an instruction keeps it.
    pub fn pack(self) -> u64 {
        let gather = self.gather.map_or(0, |channel| channel + 1);
        u64::from_le_bytes([self.geometry as u8, self.whole.into(), self.level as u8, gather, 0, 0, 0, 0])
    }

    fn unpack(bits: u64) -> Self {
        let [geometry, whole, level, gather, ..] = bits.to_le_bytes();
        Self {
            geometry: Geometry::ALL[usize::from(geometry) % Geometry::ALL.len()],
            whole: whole != 0,
            level: [Level::Base, Level::Given, Level::Gradients][usize::from(level) % 3],
            gather: gather.checked_sub(1),
        }
    }
}

impl SurfaceAccess {
    /// As an instruction keeps it.
    pub fn pack(self) -> u64 {
        u64::from_le_bytes([self.geometry as u8, self.outside as u8, self.bytes, 0, 0, 0, 0, 0])
    }

    fn unpack(bits: u64) -> Self {
        let [geometry, outside, bytes, ..] = bits.to_le_bytes();
        Self {
            geometry: Geometry::ALL[usize::from(geometry) % Geometry::ALL.len()],
            outside: [Outside::Trap, Outside::Clamp, Outside::Zero][usize::from(outside) % 3],
            bytes,
        }
    }
}

/// A lane's memory as a texture reads it.
struct Reader<'a, 'b> {
    lanes: &'a mut Lanes<'b>,
    lane: usize,
}

impl Source for Reader<'_, '_> {
    type Error = Box<Fault>;

    fn read(&mut self, address: u64, bytes: u64) -> Result<[u8; 16], Box<Fault>> {
        let read = self.lanes.spaces.read_element(self.lane, address, bytes);
        read.map_err(|fault| Box::new(self.lanes.fault(fault, self.lane)))
    }
}

#[cold]
fn illegal(lanes: &Lanes<'_>, lane: usize, kind: FaultKind, address: u64) -> Box<Fault> {
    Box::new(lanes.fault(Fault::new(kind, address), lane))
}

fn active(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// Number `index` of the rows behind the second source, for one lane.
///
/// # Safety
/// As [`super::Access`]; lowering made that many rows.
unsafe fn number(lanes: &Lanes<'_>, inst: &Inst, index: usize, lane: usize) -> u32 {
    // SAFETY: this function's contract.
    unsafe { u32::read(lanes.src(Slot::register(inst.s[1].index() + index)), lane) }
}

/// `tex`, `tld4`
///
/// # Safety
/// As [`super::Access`].
pub unsafe fn texture_read(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) -> Result<(), Box<Fault>> {
    let read = TextureRead::unpack(inst.imm);
    let launch = lanes.launch;
    // SAFETY: slots as lowering made them.
    let objects = unsafe { lanes.all::<u64>(inst.s[0]) };
    let mut out = [[0; LANES]; 4];
    for lane in active(mask) {
        let Some(texture) = launch.objects.texture(objects[lane]) else {
            return Err(illegal(lanes, lane, FaultKind::IllegalAddress, objects[lane]));
        };
        // SAFETY: as above.
        let numbers: [u32; ROWS] = std::array::from_fn(|index| unsafe { number(lanes, inst, index, lane) });
        let texel = read_lane(texture, read, &numbers, &mut Reader { lanes, lane })?;
        for (out, channel) in out.iter_mut().zip(texel) {
            out[lane] = channel;
        }
    }
    for (slot, out) in inst.d.iter().zip(&out).take(usize::from(inst.width)) {
        // SAFETY: slots as lowering made them.
        unsafe { lanes.set(*slot, out, mask) };
    }
    Ok(())
}

/// Rows of coordinates: a layer, three coordinates, a level or two gradients.
pub const ROWS: usize = 16;

fn read_lane(
    texture: &Texture,
    read: TextureRead,
    numbers: &[u32; ROWS],
    source: &mut Reader<'_, '_>,
) -> Result<Texel, Box<Fault>> {
    let count = read.geometry.coordinates();
    let (layer, numbers) = match read.geometry.is_layered() {
        true => (u64::from(numbers[0]), &numbers[1..]),
        false => (0, &numbers[..]),
    };
    let floats = |from: usize| -> [f32; 3] {
        std::array::from_fn(|axis| if axis < count { f32::from_bits(numbers[from + axis]) } else { 0.0 })
    };
    let bias = texture.sampling.level_bias;
    let lod = match read.level {
        Level::Base => 0.0,
        Level::Given if read.whole => numbers[count] as i32 as f32,
        Level::Given => f32::from_bits(numbers[count]) + bias,
        Level::Gradients => texture.level_of([floats(count), floats(2 * count)]) + bias,
    };
    if read.whole {
        let at = std::array::from_fn(|axis| if axis < count { i64::from(numbers[axis] as i32) } else { 0 });
        return texture.fetch(at, count, layer, lod, source);
    }
    let mut spot = Spot { at: floats(0), dims: count, layer, lod };
    if read.geometry.is_cube() {
        let (face, at) = face(spot.at);
        spot = Spot { at, dims: 2, layer: layer * 6 + face, lod };
    }
    match read.gather {
        Some(channel) => texture.gather(spot, usize::from(channel) % 4, source),
        None => texture.sample(spot, source),
    }
}

/// Where an access of a surface goes; `None` when it lies outside and is not to be.
fn element_of(
    surface: &Surface,
    access: SurfaceAccess,
    width: u64,
    numbers: &[u32; ROWS],
) -> Result<Option<u64>, FaultKind> {
    let Plane { base, size, pitch, slice } = surface.plane;
    let (layer, numbers) = match access.geometry.is_layered() {
        true => (numbers[0], &numbers[1..]),
        false => (0, &numbers[..]),
    };
    let count = access.geometry.coordinates();
    let at = |axis: usize| if axis < count { i64::from(numbers[axis] as i32) } else { 0 };
    let row = size[0] * surface.element.bytes();
    let z = if access.geometry.is_layered() { i64::from(layer as i32) } else { at(2) };
    let place = [at(0), at(1), z];
    let last = [row as i64 - width as i64, size[1] as i64 - 1, size[2] as i64 - 1];
    if place[0] % i64::from(access.bytes) != 0 {
        return Err(FaultKind::Misaligned);
    }
    let inside = place.iter().zip(last).all(|(at, last)| (0..=last).contains(at));
    let place = match access.outside {
        _ if inside => place,
        Outside::Trap => return Err(FaultKind::IllegalAddress),
        Outside::Zero => return Ok(None),
        Outside::Clamp if last[0] < 0 => return Ok(None),
        Outside::Clamp => std::array::from_fn(|axis| place[axis].clamp(0, last[axis])),
    };
    let [x, y, z] = place.map(|at| at as u64);
    Ok(Some(base + z * slice + y * pitch + x))
}

/// The address of each lane's access; `None` outside.
///
/// # Safety
/// As [`super::Access`].
unsafe fn elements(
    lanes: &Lanes<'_>,
    inst: &Inst,
    mask: u32,
    access: SurfaceAccess,
) -> Result<[Option<u64>; LANES], Box<Fault>> {
    // SAFETY: slots as lowering made them.
    let objects = unsafe { lanes.all::<u64>(inst.s[0]) };
    let mut found = [None; LANES];
    let width = u64::from(inst.width) * u64::from(access.bytes);
    for lane in active(mask) {
        let Some(surface) = lanes.launch.objects.surface(objects[lane]) else {
            return Err(illegal(lanes, lane, FaultKind::IllegalAddress, objects[lane]));
        };
        // SAFETY: as above.
        let numbers: [u32; ROWS] = std::array::from_fn(|index| unsafe { number(lanes, inst, index, lane) });
        let element = element_of(surface, access, width, &numbers);
        found[lane] = element.map_err(|kind| illegal(lanes, lane, kind, u64::from(numbers[0])))?;
    }
    Ok(found)
}

/// `suld.b`
///
/// # Safety
/// As [`super::Access`].
pub unsafe fn surface_load(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) -> Result<(), Box<Fault>> {
    let access = SurfaceAccess::unpack(inst.imm);
    // SAFETY: this function's contract.
    let elements = unsafe { elements(lanes, inst, mask, access)? };
    let bytes = usize::from(access.bytes);
    let width = usize::from(inst.width);
    let mut out = [[0u64; LANES]; 4];
    for lane in active(mask) {
        let Some(address) = elements[lane] else { continue };
        for (number, out) in out.iter_mut().enumerate().take(width) {
            let at = address + (number * bytes) as u64;
            let read = Reader { lanes, lane }.read(at, bytes as u64)?;
            let mut value = [0; 8];
            value[..bytes].copy_from_slice(&read[..bytes]);
            out[lane] = u64::from_le_bytes(value);
        }
    }
    for (slot, out) in inst.d.iter().zip(&out).take(width) {
        // SAFETY: slots as lowering made them, of the size that the mode tells.
        unsafe {
            match bytes {
                8 => lanes.set(*slot, out, mask),
                _ => lanes.set(*slot, &out.map(|value| value as u32), mask),
            }
        }
    }
    Ok(())
}

/// `sust.b`
///
/// # Safety
/// As [`super::Access`].
pub unsafe fn surface_store(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) -> Result<(), Box<Fault>> {
    let access = SurfaceAccess::unpack(inst.imm);
    // SAFETY: this function's contract.
    let elements = unsafe { elements(lanes, inst, mask, access)? };
    let bytes = usize::from(access.bytes);
    for number in 0..usize::from(inst.width) {
        let slot = inst.stored(number);
        // SAFETY: slots as lowering made them, of the size that the mode tells.
        let values: [u64; LANES] = unsafe {
            match bytes {
                8 => lanes.all::<u64>(slot),
                _ => lanes.all::<u32>(slot).map(u64::from),
            }
        };
        for lane in active(mask) {
            let Some(address) = elements[lane] else { continue };
            let value = values[lane].to_le_bytes();
            let at = address + (number * bytes) as u64;
            let written = lanes.spaces.write_element(lane, at, &value[..bytes]);
            written.map_err(|fault| Box::new(lanes.fault(fault, lane)))?;
        }
    }
    Ok(())
}

/// `txq`, `suq`
///
/// # Safety
/// As [`super::Access`].
pub unsafe fn query(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) -> Result<(), Box<Fault>> {
    let (query, of_surface) = Query::unpack(inst.imm);
    // SAFETY: slots as lowering made them.
    let objects = unsafe { lanes.all::<u64>(inst.s[0]) };
    let mut out = [0u32; LANES];
    for lane in active(mask) {
        let found = match of_surface {
            true => lanes.launch.objects.surface(objects[lane]).map(|of| (of.plane, of.is_layered, 1, false)),
            false => lanes.launch.objects.texture(objects[lane]).map(|of| {
                let normalized = of.sampling.has(wire::Sampling::NORMALIZED);
                (of.levels[0], of.is_layered(), of.levels.len(), normalized)
            }),
        };
        let Some((plane, layered, levels, normalized)) = found else {
            return Err(illegal(lanes, lane, FaultKind::IllegalAddress, objects[lane]));
        };
        out[lane] = match query {
            Query::Width => plane.size[0] as u32,
            Query::Height => plane.size[1] as u32,
            Query::Depth => {
                if layered {
                    1
                } else {
                    plane.size[2] as u32
                }
            }
            Query::Layers => {
                if layered {
                    plane.size[2] as u32
                } else {
                    0
                }
            }
            Query::Levels => levels as u32,
            Query::IsNormalized => u32::from(normalized),
        };
    }
    // SAFETY: slots as lowering made them.
    unsafe { lanes.set(inst.d[0], &out, mask) };
    Ok(())
}
