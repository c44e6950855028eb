//! Reading textures: CUDA's rules of addressing and filtering (the programming guide's appendix on texture fetching).

use wire::{ArrayDesc, ChannelKind, ElementFormat, Sampling};

use super::{Plane, Texture};
use crate::isa::HALF;

/// `CUaddress_mode`.
const WRAP: u32 = 0;
const CLAMP: u32 = 1;
const MIRROR: u32 = 2;
const BORDER: u32 = 3;
/// Fractional bits of the weights of linear filtering.
const WEIGHT: f32 = 256.0;

/// The channels of a texel, each in 32 bits: floating-point where [`Texture::is_float`], else integers.
pub type Texel = [u32; 4];

/// Where to read.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// Coordinates, in texels or from 0 to 1.
    pub at: [f32; 3],
    /// How many of them there are.
    pub dims: usize,
    /// Layer, or face of a cube.
    pub layer: u64,
    /// Level of detail.
    pub lod: f32,
}

/// Reads the element at an address; at most 16 bytes of it.
pub trait Source {
    /// What it fails with.
    type Error;
    /// Reads `bytes` bytes.
    ///
    /// # Errors
    /// When nothing is there.
    fn read(&mut self, address: u64, bytes: u64) -> Result<[u8; 16], Self::Error>;
}

impl Texture {
    /// Whether texels are told as floating-point numbers.
    pub fn is_float(&self) -> bool {
        match self.element.kind {
            ChannelKind::Float | ChannelKind::Unorm | ChannelKind::Snorm => true,
            ChannelKind::Unsigned | ChannelKind::Signed => {
                self.element.channel_bytes < 4 && !self.sampling.has(Sampling::AS_INTEGER)
            }
        }
    }

    /// Whether it is of layers or faces.
    pub fn is_layered(&self) -> bool {
        self.array_flags & (ArrayDesc::LAYERED | ArrayDesc::CUBEMAP) != 0
    }

    /// What a read at `spot` gives.
    ///
    /// # Errors
    /// The source's.
    pub fn sample<S: Source>(&self, spot: Spot, source: &mut S) -> Result<Texel, S::Error> {
        let last = (self.levels.len() - 1) as f32;
        let lod = spot.lod.max(self.sampling.min_level).min(self.sampling.max_level).clamp(0.0, last);
        if self.sampling.mipmap_filter != Sampling::LINEAR || !self.is_float() {
            return self.sample_level((lod + 0.5).floor() as usize, spot, source);
        }
        let (lower, part) = (lod.floor(), weight(lod - lod.floor()));
        let near = self.sample_level(lower as usize, spot, source)?;
        if part == 0.0 {
            return Ok(near);
        }
        let far = self.sample_level(lower as usize + 1, spot, source)?;
        Ok(mix(&[(near, 1.0 - part), (far, part)]))
    }

    fn sample_level<S: Source>(&self, level: usize, spot: Spot, source: &mut S) -> Result<Texel, S::Error> {
        let plane = &self.levels[level.min(self.levels.len() - 1)];
        let places = self.places(plane, &spot);
        if self.sampling.filter != Sampling::LINEAR || !self.is_float() {
            let at = places.map(|place| place.floor() as i64);
            return self.texel(plane, &spot, at, source);
        }
        // Between the texels around: each dimension has a lower and an upper one.
        let lower = places.map(|place| (place - 0.5).floor());
        let part: [f32; 3] = std::array::from_fn(|axis| weight(places[axis] - 0.5 - lower[axis]));
        let mut texels = Vec::with_capacity(8);
        for corner in 0..1usize << spot.dims {
            let mut at = [0; 3];
            let mut share = 1.0;
            for axis in 0..spot.dims {
                let upper = corner >> axis & 1;
                at[axis] = lower[axis] as i64 + upper as i64;
                share *= if upper == 1 { part[axis] } else { 1.0 - part[axis] };
            }
            if share != 0.0 {
                texels.push((self.texel(plane, &spot, at, source)?, share));
            }
        }
        Ok(mix(&texels))
    }

    /// The four texels that a linear read of two dimensions would mix, one channel of each: counter-clockwise from the lower left.
    ///
    /// # Errors
    /// The source's.
    pub fn gather<S: Source>(&self, spot: Spot, channel: usize, source: &mut S) -> Result<Texel, S::Error> {
        let plane = &self.levels[0];
        let [x, y, _] = self.places(plane, &spot).map(|place| (place - 0.5).floor() as i64);
        let mut out = [0; 4];
        for (out, (dx, dy)) in out.iter_mut().zip([(0, 1), (1, 1), (1, 0), (0, 0)]) {
            *out = self.texel(plane, &spot, [x + dx, y + dy, 0], source)?[channel];
        }
        Ok(out)
    }

    /// What a read with whole numbers for coordinates gives, which are not filtered.
    ///
    /// # Errors
    /// The source's.
    pub fn fetch<S: Source>(
        &self,
        at: [i64; 3],
        dims: usize,
        layer: u64,
        lod: f32,
        source: &mut S,
    ) -> Result<Texel, S::Error> {
        let level = (lod.max(0.0) as usize).min(self.levels.len() - 1);
        self.texel(&self.levels[level], &Spot { at: [0.0; 3], dims, layer, lod }, at, source)
    }

    /// The level of detail at which a step of a pixel is one of a texel.
    pub fn level_of(&self, steps: [[f32; 3]; 2]) -> f32 {
        let size = self.levels[0].size;
        let scaled = |step: [f32; 3]| {
            let of =
                |axis: usize| if self.is_normalized() { step[axis] * size[axis] as f32 } else { step[axis] };
            (of(0) * of(0) + of(1) * of(1) + of(2) * of(2)).sqrt()
        };
        scaled(steps[0]).max(scaled(steps[1])).log2()
    }

    fn is_normalized(&self) -> bool {
        self.sampling.has(Sampling::NORMALIZED)
    }

    /// Coordinates in texels.
    fn places(&self, plane: &Plane, spot: &Spot) -> [f32; 3] {
        std::array::from_fn(|axis| {
            let (at, size) = (spot.at[axis], plane.size[axis] as f32);
            match (self.is_normalized(), self.mode(axis)) {
                _ if axis >= spot.dims => 0.5,
                (false, _) => at,
                (true, WRAP) => (at - at.floor()) * size,
                (true, _) => at * size,
            }
        })
    }

    /// How an axis goes on beyond its ends: repeated only where coordinates run from 0 to 1.
    fn mode(&self, axis: usize) -> u32 {
        match self.sampling.address[axis] {
            WRAP | MIRROR if !self.is_normalized() => CLAMP,
            mode => mode,
        }
    }

    /// The texel with these numbers, which may lie outside.
    fn texel<S: Source>(
        &self,
        plane: &Plane,
        spot: &Spot,
        at: [i64; 3],
        source: &mut S,
    ) -> Result<Texel, S::Error> {
        let mut index = [0; 3];
        for axis in 0..spot.dims {
            match inside(at[axis], plane.size[axis] as i64, self.mode(axis), self.is_linear_memory) {
                Some(found) => index[axis] = found,
                None => return Ok(self.outside()),
            }
        }
        let [x, y, mut z] = index;
        if spot.dims < 3 {
            z = spot.layer.min(plane.size[2] - 1);
        }
        let bytes = self.element.bytes();
        let address = plane.base + z * plane.slice + y * plane.pitch + x * bytes;
        Ok(self.decode(source.read(address, bytes)?))
    }

    /// What lies outside with the address mode that says so.
    fn outside(&self) -> Texel {
        let border = self.sampling.border;
        if self.is_linear_memory {
            [0; 4]
        } else if self.is_float() {
            border.map(f32::to_bits)
        } else {
            border.map(|channel| channel as i64 as u32)
        }
    }

    fn decode(&self, bytes: [u8; 16]) -> Texel {
        let ElementFormat { channel_bytes, channels, .. } = self.element;
        let one = if self.is_float() { 1f32.to_bits() } else { 1 };
        let mut texel = [0, 0, 0, one];
        for (number, out) in texel.iter_mut().enumerate().take(channels as usize) {
            let start = number * channel_bytes as usize;
            let mut raw = [0; 4];
            raw[..channel_bytes as usize].copy_from_slice(&bytes[start..start + channel_bytes as usize]);
            *out = self.channel(u32::from_le_bytes(raw), number);
        }
        texel
    }

    fn channel(&self, raw: u32, number: usize) -> u32 {
        let signed = match self.element.channel_bytes {
            1 => i32::from(raw as u8 as i8),
            2 => i32::from(raw as u16 as i16),
            _ => raw as i32,
        };
        let most = ((1u64 << (8 * self.element.channel_bytes)) - 1) as f64;
        match (self.element.kind, self.element.channel_bytes) {
            (ChannelKind::Float, 2) => (HALF.value(raw as u16) as f32).to_bits(),
            (ChannelKind::Float, _) => raw,
            (ChannelKind::Unsigned, _) if !self.is_float() => raw,
            (ChannelKind::Signed, _) if !self.is_float() => signed as u32,
            (ChannelKind::Unsigned | ChannelKind::Unorm, _) => {
                let value = f64::from(raw) / most;
                // The fourth channel is no colour.
                let curved =
                    self.sampling.has(Sampling::SRGB) && self.element.channel_bytes == 1 && number < 3;
                ((if curved { linear_of_srgb(value) } else { value }) as f32).to_bits()
            }
            (ChannelKind::Signed | ChannelKind::Snorm, _) => {
                let most = (most - 1.0) / 2.0;
                ((f64::from(signed) / most).max(-1.0) as f32).to_bits()
            }
        }
    }
}

/// The number of the texel that stands for number `at` of `size`; `None` when it is outside.
fn inside(at: i64, size: i64, mode: u32, zero_outside: bool) -> Option<u64> {
    let within = (0..size).contains(&at);
    let index = match mode {
        _ if within => at,
        _ if zero_outside => return None,
        BORDER => return None,
        WRAP => at.rem_euclid(size),
        MIRROR => {
            let in_pair = at.rem_euclid(2 * size);
            if in_pair < size { in_pair } else { 2 * size - 1 - in_pair }
        }
        _ => at.clamp(0, size - 1),
    };
    u64::try_from(index).ok()
}

/// A weight as the hardware keeps it: with 8 fractional bits.
fn weight(part: f32) -> f32 {
    (part * WEIGHT + 0.5).floor() / WEIGHT
}

fn mix(texels: &[(Texel, f32)]) -> Texel {
    let mut sum = [0f32; 4];
    for (texel, share) in texels {
        for (sum, channel) in sum.iter_mut().zip(texel) {
            *sum += f32::from_bits(*channel) * share;
        }
    }
    sum.map(f32::to_bits)
}

fn linear_of_srgb(value: f64) -> f64 {
    if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
}

/// The face of a cube that a direction meets, and where, from 0 to 1.
pub fn face([x, y, z]: [f32; 3]) -> (u64, [f32; 3]) {
    let [ax, ay, az] = [x.abs(), y.abs(), z.abs()];
    let (face, depth, s, t) = if ax >= ay && ax >= az {
        if x >= 0.0 { (0, ax, -z, -y) } else { (1, ax, z, -y) }
    } else if ay >= az {
        if y >= 0.0 { (2, ay, x, z) } else { (3, ay, x, -z) }
    } else if z >= 0.0 {
        (4, az, x, -y)
    } else {
        (5, az, -x, -y)
    };
    (face, [(s / depth + 1.0) / 2.0, (t / depth + 1.0) / 2.0, 0.0])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Texels whose bytes are these words, at address 0.
    struct Words(Vec<u32>);

    impl Source for Words {
        type Error = ();
        fn read(&mut self, address: u64, bytes: u64) -> Result<[u8; 16], ()> {
            let all: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
            let mut out = [0; 16];
            let at = address as usize;
            out[..bytes as usize].copy_from_slice(all.get(at..at + bytes as usize).ok_or(())?);
            Ok(out)
        }
    }

    fn texture(kind: ChannelKind, channel_bytes: u32, channels: u32, size: [u64; 3]) -> Texture {
        let element = ElementFormat { kind, channel_bytes, channels };
        let pitch = size[0] * element.bytes();
        Texture {
            levels: vec![Plane { base: 0, size, pitch, slice: pitch * size[1] }],
            element,
            sampling: Sampling {
                address: [1; 3],
                filter: 0,
                flags: 0,
                max_anisotropy: 0,
                mipmap_filter: 0,
                level_bias: 0.0,
                min_level: 0.0,
                max_level: 0.0,
                border: [0.25, 0.5, 0.75, 2.0],
            },
            array_flags: 0,
            is_linear_memory: false,
        }
    }

    fn row(values: &[f32]) -> Words {
        Words(values.iter().map(|value| value.to_bits()).collect())
    }

    fn read(texture: &Texture, x: f32, words: &mut Words) -> f32 {
        let spot = Spot { at: [x, 0.0, 0.0], dims: 1, layer: 0, lod: 0.0 };
        f32::from_bits(texture.sample(spot, words).unwrap()[0])
    }

    #[test]
    fn points_are_the_texel_they_lie_in() {
        let texture = texture(ChannelKind::Float, 4, 1, [4, 1, 1]);
        let mut words = row(&[1.0, 2.0, 3.0, 4.0]);
        let got = [-3.0, 0.0, 0.99, 1.0, 3.5, 99.0, f32::NAN].map(|x| read(&texture, x, &mut words));
        assert_eq!(got, [1.0, 1.0, 1.0, 2.0, 4.0, 4.0, 1.0]);
    }

    #[test]
    fn axes_go_on_as_their_modes_say() {
        let mut texture = texture(ChannelKind::Float, 4, 1, [4, 1, 1]);
        let mut words = row(&[1.0, 2.0, 3.0, 4.0]);
        texture.sampling.flags = Sampling::NORMALIZED;
        let places = [-0.4, -0.1, 0.1, 1.1, 1.3, 2.1];
        for (mode, expected) in [
            (WRAP, [3.0, 4.0, 1.0, 1.0, 2.0, 1.0]),
            (CLAMP, [1.0, 1.0, 1.0, 4.0, 4.0, 4.0]),
            (MIRROR, [2.0, 1.0, 1.0, 4.0, 3.0, 1.0]),
            (BORDER, [0.25, 0.25, 1.0, 0.25, 0.25, 0.25]),
        ] {
            texture.sampling.address = [mode; 3];
            assert_eq!(places.map(|x| read(&texture, x, &mut words)), expected, "mode {mode}");
        }
        texture.sampling.flags = 0;
        texture.sampling.address = [WRAP; 3];
        assert_eq!(read(&texture, 5.0, &mut words), 4.0, "texels are not repeated by number");
    }

    #[test]
    fn weights_have_eight_bits() {
        let mut texture = texture(ChannelKind::Float, 4, 1, [2, 1, 1]);
        texture.sampling.filter = Sampling::LINEAR;
        let mut words = row(&[0.0, 256.0]);
        let got = [0.0, 0.5, 0.75, 1.0, 0.5 + 1.0 / 512.0, 0.5 + 1.0 / 1024.0, 1.5, 9.0];
        let got = got.map(|x| read(&texture, x, &mut words));
        assert_eq!(got, [0.0, 0.0, 64.0, 128.0, 1.0, 0.0, 256.0, 256.0]);
        let spot = Spot { at: [1.0, 1.0, 0.0], dims: 2, layer: 0, lod: 0.0 };
        texture.levels[0].size = [2, 2, 1];
        let mut square = row(&[1.0, 2.0, 3.0, 6.0]);
        assert_eq!(f32::from_bits(texture.sample(spot, &mut square).unwrap()[0]), 3.0);
        assert_eq!(texture.gather(spot, 0, &mut square).unwrap().map(f32::from_bits), [3.0, 6.0, 2.0, 1.0]);
    }

    #[test]
    fn channels_are_told_as_asked() {
        let texel = |texture: &Texture, word| {
            let spot = Spot { at: [0.0; 3], dims: 1, layer: 0, lod: 0.0 };
            texture.sample(spot, &mut Words(vec![word, 0, 0, 0])).unwrap()
        };
        let mut bytes = texture(ChannelKind::Unsigned, 1, 4, [1, 1, 1]);
        assert_eq!(texel(&bytes, 0xff00_3300).map(f32::from_bits), [0.0, 0.2, 0.0, 1.0]);
        bytes.sampling.flags = Sampling::AS_INTEGER;
        assert_eq!(texel(&bytes, 0x8001_02ff), [0xff, 2, 1, 0x80]);
        let mut shorts = texture(ChannelKind::Signed, 2, 2, [1, 1, 1]);
        assert_eq!(texel(&shorts, 0x8000_7fff).map(f32::from_bits), [1.0, -1.0, 0.0, 1.0]);
        shorts.sampling.flags = Sampling::AS_INTEGER;
        assert_eq!(texel(&shorts, 0x8000_7fff), [0x7fff, 0xffff_8000, 0, 1]);
        let halves = texture(ChannelKind::Float, 2, 1, [1, 1, 1]);
        assert_eq!(f32::from_bits(texel(&halves, 0xc000)[0]), -2.0);
        let mut colour = texture(ChannelKind::Unsigned, 1, 4, [1, 1, 1]);
        colour.sampling.flags = Sampling::SRGB;
        let got = texel(&colour, 0x80ff_0a00).map(f32::from_bits);
        assert_eq!((got[0], got[2], got[3]), (0.0, 1.0, 128.0 / 255.0));
        assert!((got[1] - 0.003_035_3).abs() < 1e-6, "{got:?}");
    }

    #[test]
    fn levels_are_chosen_and_mixed() {
        let mut texture = texture(ChannelKind::Float, 4, 1, [2, 1, 1]);
        texture.levels.push(Plane { base: 8, size: [1, 1, 1], pitch: 4, slice: 4 });
        texture.sampling.flags = Sampling::NORMALIZED;
        texture.sampling.max_level = 9.0;
        let mut words = row(&[1.0, 2.0, 10.0]);
        let mut at = |texture: &Texture, lod: f32| {
            let spot = Spot { at: [0.75, 0.0, 0.0], dims: 1, layer: 0, lod };
            f32::from_bits(texture.sample(spot, &mut words).unwrap()[0])
        };
        assert_eq!([-1.0, 0.4, 0.5, 7.0].map(|lod| at(&texture, lod)), [2.0, 2.0, 10.0, 10.0]);
        texture.sampling.mipmap_filter = Sampling::LINEAR;
        assert_eq!([0.0, 0.25, 1.0].map(|lod| at(&texture, lod)), [2.0, 4.0, 10.0]);
        texture.sampling.max_level = 0.5;
        assert_eq!(at(&texture, 1.0), 6.0);
        assert_eq!(texture.level_of([[1.0, 0.0, 0.0], [0.0; 3]]), 1.0);
    }

    #[test]
    fn directions_meet_faces() {
        let faces = [
            [2.0, 0.0, 0.0],
            [-2.0, 0.0, 0.0],
            [0.0, 3.0, 0.0],
            [0.0, -3.0, 0.0],
            [0.0, 0.0, 1.0],
            [0.0, 0.0, -1.0],
        ];
        assert_eq!(faces.map(|direction| face(direction).0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(face([2.0, 1.0, -1.0]).1, [0.75, 0.25, 0.0]);
    }
}
