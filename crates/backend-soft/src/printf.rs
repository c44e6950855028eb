//! Device `printf`: formats as C does, into a buffer that is taken at synchronisation points.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use crate::exec::{Fault, Spaces};

/// Longest format or string argument, bytes.
pub const MAX_STRING: usize = 64 << 10;
/// Most bytes kept; what is printed beyond that is lost, as on a GPU.
const CAPACITY: usize = 64 << 20;
/// Widest field: what C guarantees for one conversion.
const MAX_FIELD: u64 = 4095;

/// What kernels have printed and nobody has taken yet.
#[derive(Debug, Default)]
pub struct Output(Mutex<Vec<u8>>);

impl Output {
    /// Appends one call's text, whole.
    pub fn write(&self, text: Vec<u8>) {
        let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() + text.len() <= CAPACITY {
            buffer.extend_from_slice(&text);
        }
    }

    /// Takes everything.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Prints a failed assertion, as the driver does: on standard error, not among what kernels print.
pub fn complain(line: &str) {
    use std::io::Write;
    // Nobody may be listening; the fault is told all the same.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Formats for one lane: `format` and `list` are generic addresses, `list` that of the arguments, each aligned to its size.
/// Gives the text and the number of arguments.
///
/// # Errors
/// When an argument or string cannot be read.
pub fn vprintf(
    spaces: &mut Spaces<'_>,
    lane: usize,
    format: u64,
    list: u64,
) -> Result<(Vec<u8>, u32), Fault> {
    let format = spaces.read_string(lane, format, MAX_STRING)?;
    let mut arguments = Arguments { spaces, lane, next: list, count: 0 };
    let mut out = Vec::with_capacity(format.len());
    let mut rest = format.as_slice();
    while let Some(start) = rest.iter().position(|&byte| byte == b'%') {
        out.extend_from_slice(&rest[..start]);
        rest = match Spec::parse(&rest[start..]) {
            Some((spec, rest)) => {
                spec.print(&mut arguments, &mut out)?;
                rest
            }
            None => {
                // Not a conversion: printed as it is.
                out.push(b'%');
                &rest[start + 1..]
            }
        };
    }
    out.extend_from_slice(rest);
    Ok((out, arguments.count))
}

struct Arguments<'a, 'b> {
    spaces: &'a mut Spaces<'b>,
    lane: usize,
    next: u64,
    count: u32,
}

impl Arguments<'_, '_> {
    fn take(&mut self, bytes: u64) -> Result<u64, Fault> {
        let at = self.next.next_multiple_of(bytes);
        self.next = at + bytes;
        self.count += 1;
        self.spaces.read_value(self.lane, at, bytes)
    }
}

/// A width or precision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Size {
    Given(u64),
    Argument,
}

/// A conversion specification.
#[derive(Debug, PartialEq, Eq)]
struct Spec {
    flags: Vec<u8>,
    width: Option<Size>,
    precision: Option<Size>,
    /// Whether an integer argument has 8 bytes.
    long: bool,
    /// How many `h` stand before an integer conversion.
    short: usize,
    conversion: u8,
}

impl Spec {
    /// Parses what begins with `%`; gives also what follows. `None` when it is not a conversion of device `printf`.
    fn parse(text: &[u8]) -> Option<(Self, &[u8])> {
        let mut rest = text.get(1..)?;
        let mut take = |wanted: &[u8]| {
            let length = rest.iter().take_while(|byte| wanted.contains(byte)).count();
            let (taken, after) = rest.split_at(length);
            rest = after;
            taken
        };
        let flags = take(b"-+ #0").to_vec();
        let width = size(take(b"*0123456789"))?;
        let precision = if take(b".").is_empty() {
            None
        } else {
            Some(size(take(b"*0123456789"))?.unwrap_or(Size::Given(0)))
        };
        let length = take(b"hlLqjzt");
        let (long, short) = match length {
            b"" | b"L" => (false, 0),
            b"h" | b"hh" => (false, length.len()),
            _ => (true, 0),
        };
        let (&conversion, rest) = rest.split_first()?;
        let known = b"%diouxXcsfFeEgGaAp".contains(&conversion);
        known.then_some((Self { flags, width, precision, long, short, conversion }, rest))
    }

    fn print(&self, arguments: &mut Arguments<'_, '_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.conversion == b'%' {
            out.push(b'%');
            return Ok(());
        }
        let mut c = String::from("%");
        c.extend(self.flags.iter().map(|&flag| char::from(flag)));
        let mut left = self.flags.contains(&b'-');
        let mut field = 0;
        if let Some(width) = self.width {
            let value = match width {
                Size::Given(value) => value as i64,
                Size::Argument => arguments.take(4)? as i32 as i64,
            };
            if value < 0 && !left {
                c.push('-');
                left = true;
            }
            field = value.unsigned_abs().min(MAX_FIELD);
            c.push_str(&field.to_string());
        }
        let mut precision = None;
        if let Some(given) = self.precision {
            let value = match given {
                Size::Given(value) => value as i64,
                Size::Argument => arguments.take(4)? as i32 as i64,
            };
            precision = u64::try_from(value).ok().map(|value| value.min(MAX_FIELD));
        }
        if let Some(precision) = precision {
            c.push_str(&format!(".{precision}"));
        }
        match self.conversion {
            b's' => {
                let limit = precision.map_or(MAX_STRING, |precision| precision as usize);
                let address = arguments.take(8)?;
                let text = match address {
                    0 => b"(null)".to_vec(),
                    _ => arguments.spaces.read_string(arguments.lane, address, limit)?,
                };
                pad(out, &text, field as usize, left);
            }
            b'c' => {
                let character = arguments.take(4)? as u8;
                pad(out, &[character], field as usize, left);
            }
            b'p' => {
                let value = arguments.take(8)?;
                call(out, &format!("{c}p"), Value::Int(value as i64));
            }
            b'd' | b'i' | b'o' | b'u' | b'x' | b'X' => {
                let signed = matches!(self.conversion, b'd' | b'i');
                let raw = arguments.take(if self.long { 8 } else { 4 })?;
                let value = match (self.long, self.short, signed) {
                    (true, ..) => raw as i64,
                    (false, 0, true) => raw as i32 as i64,
                    (false, 0, false) => raw as u32 as i64,
                    (false, 1, true) => raw as i16 as i64,
                    (false, 1, false) => raw as u16 as i64,
                    (false, _, true) => raw as i8 as i64,
                    (false, _, false) => raw as u8 as i64,
                };
                call(out, &format!("{c}ll{}", char::from(self.conversion)), Value::Int(value));
            }
            _ => {
                let value = f64::from_bits(arguments.take(8)?);
                call(out, &format!("{c}{}", char::from(self.conversion)), Value::Float(value));
            }
        }
        Ok(())
    }
}

/// Digits or a star; `None` for both at once or a number nobody could mean.
fn size(text: &[u8]) -> Option<Option<Size>> {
    match text {
        b"" => Some(None),
        b"*" => Some(Some(Size::Argument)),
        digits => Some(Some(Size::Given(std::str::from_utf8(digits).ok()?.parse().ok()?))),
    }
}

fn pad(out: &mut Vec<u8>, text: &[u8], field: usize, left: bool) {
    let blanks = field.saturating_sub(text.len());
    if !left {
        out.extend(std::iter::repeat_n(b' ', blanks));
    }
    out.extend_from_slice(text);
    if left {
        out.extend(std::iter::repeat_n(b' ', blanks));
    }
}

enum Value {
    Int(i64),
    Float(f64),
}

/// One conversion by the C library, whose `printf` the GPU's driver uses too.
fn call(out: &mut Vec<u8>, format: &str, value: Value) {
    // A precision and 309 digits before the point are the longest that can come out.
    let mut buffer = vec![0u8; 2 * MAX_FIELD as usize + 512];
    let Ok(format) = CString::new(format) else { return };
    let (at, size) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: the format has exactly one conversion, made above for the type of the one argument; the size is the buffer's.
    let length = unsafe {
        match value {
            Value::Int(value) => libc::snprintf(at, size, format.as_ptr(), value),
            Value::Float(value) => libc::snprintf(at, size, format.as_ptr(), value),
        }
    };
    out.extend_from_slice(&buffer[..usize::try_from(length).unwrap_or(0).min(size - 1)]);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::memory::{Memory, PARAM_WINDOW};

    /// Formats with the format at the start of parameter space and the arguments at offset 64.
    fn printed(format: &str, arguments: &[u64]) -> String {
        let mut bytes = format.as_bytes().to_vec();
        bytes.resize(64, 0);
        arguments.iter().for_each(|argument| bytes.extend(argument.to_le_bytes()));
        let params: Vec<u64> =
            bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect();
        let memory = Memory::new(1, 0);
        let mut spaces = Spaces::new(&memory, &mut [], 0, &params);
        let (text, _) = vprintf(&mut spaces, 0, PARAM_WINDOW, PARAM_WINDOW + 64).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn formats_as_c_does() {
        assert_eq!(printed("%d|%5d|%-5d|", &[(7 << 32) | 0xffff_ffff, 42]), "-1|    7|42   |");
        assert_eq!(printed("%lld %llu %x", &[-2i64 as u64, u64::MAX, 255]), "-2 18446744073709551615 ff");
        assert_eq!(printed("%.3f %e", &[1.5f64.to_bits(), 0.1f64.to_bits()]), "1.500 1.000000e-01");
        assert_eq!(printed("%*d|%.*f", &[(3 << 32) | 6, (1 << 32), 2.25f64.to_bits()]), "     3|2");
        assert_eq!(printed("%s.", &[PARAM_WINDOW]), "%s..");
        assert_eq!(printed("100%% %c %y", &[65]), "100% A %y");
        assert_eq!(printed("%hhd %hu %p", &[(0x1_ffff << 32) | 0x180, 0x10]), "-128 65535 0x10");
    }

    #[test]
    fn a_bad_pointer_is_an_error() {
        let memory = Memory::new(1, 0);
        let mut spaces = Spaces::new(&memory, &mut [], 0, &[]);
        assert!(vprintf(&mut spaces, 0, 0x10, 0).is_err());
    }
}
