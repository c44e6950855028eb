//! Values of flags, and what is wrong with them.

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use server::memory::Managed;
use std::time::Duration;
use store::Location;

/// How long a marked kernel may have a device that others wait for; `None` for as long as it takes.
#[derive(Clone, Copy, Debug)]
pub struct Turn(pub Option<Duration>);

pub(super) fn turn(text: &str) -> Result<Turn, String> {
    if text == "none" {
        return Ok(Turn(None));
    }
    let turn = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; give a time such as 20ms, or `none`"))?;
    if server::TURNS.contains(&turn) {
        Ok(Turn(Some(turn)))
    } else {
        Err("a millisecond is the least, and an hour the most".to_owned())
    }
}

/// How managed memory is had.
pub(super) fn managed() -> impl TypedValueParser<Value = Managed> {
    let values = Managed::ALL.map(|(_, name, help)| PossibleValue::new(name).help(help));
    // None but these get so far.
    let parse = |chosen: String| {
        Managed::ALL.iter().find(|(_, name, _)| *name == chosen).map(|(managed, ..)| *managed)
    };
    PossibleValuesParser::new(values).try_map(move |chosen| parse(chosen).ok_or("no such kind"))
}

/// Where a store is; a folder wherever it is named from.
pub(super) fn location() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().try_map(|text| Location::parse(&text).map(Location::absolute))
}

/// What can name a job.
pub fn job_name(text: &str) -> Result<String, String> {
    checkpoint::runtime::check_name(text).map(|()| text.to_owned()).map_err(|failure| failure.message)
}

/// A number of bytes: as a size, or in hexadecimal digits, or none.
pub(super) fn offset(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| "expected hexadecimal digits".to_owned()),
        None if text == "0" => Ok(0),
        None => size(text),
    }
}

/// A size such as `64G` or `512M`, in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (digits, unit) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B').to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("unknown unit {unit:?}; use K, M, G or T")),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let expected = || "expected a size such as 64G or 1.5T".to_owned();
    let whole: u64 = whole.parse().map_err(|_| expected())?;
    let part: f64 = format!("0.{part}").parse().map_err(|_| expected())?;
    let unit = 1_u64 << shift;
    let bytes = whole.checked_mul(unit).and_then(|bytes| bytes.checked_add((part * unit as f64) as u64));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "expected more than 0, and less than 16777216T".to_owned())
}

/// A size of a device, of which less is no use.
pub(super) fn device_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < 1 << 20 { Err("1M is the least".to_owned()) } else { Ok(bytes) }
}

/// A size for what writes an image, of which less is no use however few processes the job has.
pub(super) fn writing_memory(text: &str) -> Result<u64, String> {
    let (bytes, least) = (size(text)?, store::WriteOptions::LEAST_MEMORY);
    if bytes < least { Err(format!("{}M is the least", least.div_ceil(1 << 20))) } else { Ok(bytes) }
}

/// A time in seconds, shorter than the silence after which a GPU server is given up.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, from 0 to 86400 (a day)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("64G"), Ok(64 << 30));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("12"), Ok(12));
        assert_eq!(size("1.5G"), Ok(3 << 29));
        assert_eq!(
            [offset("0"), offset("0x10"), offset("16"), offset("2M")],
            [Ok(0), Ok(16), Ok(16), Ok(2 << 20)]
        );
        assert!(offset("0x").is_err() && offset("x").is_err() && offset("-1").is_err());
        assert!(device_size("4K").is_err() && device_size("1M").is_ok());
        for bad in ["", "G", "0", "1X", "99999999T", ".", "1..5G", "1.G2", "0.0"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
