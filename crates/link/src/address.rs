//! Where a machine with GPUs is: `HOST[:PORT][/N][+rdma]`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The port that is meant where none is given.
pub const DEFAULT_PORT: u16 = 7070;
/// The same of a machine that takes over jobs.
pub const JOBS_PORT: u16 = 7071;
/// The longest name that DNS has.
const HOST_MAX: usize = 253;

/// A device of a machine that serves.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Address {
    host: String,
    port: u16,
    device: Option<u32>,
    rdma: bool,
}

/// A text that is no address; what is wrong with it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0}; expected HOST, HOST:PORT or HOST:PORT/N, with an IPv6 address in brackets, and +rdma behind it for RDMA"
)]
pub struct NotAnAddress(&'static str);

impl Address {
    /// The machine's name or IP address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Which of its devices; all, if none is named.
    #[must_use]
    pub fn device(&self) -> Option<u32> {
        self.device
    }

    /// Whether contents of memory are to go there by RDMA.
    #[must_use]
    pub fn is_over_rdma(&self) -> bool {
        self.rdma
    }

    /// The machine without the device: by this its key is known.
    #[must_use]
    pub fn machine(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// What stands behind an address that is gone to by RDMA; no name has the sign.
const RDMA: &str = "+rdma";

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        Self::with_port(text, DEFAULT_PORT)
    }
}

impl Address {
    /// The address that `text` means, on this port if it names none.
    ///
    /// # Errors
    /// [`NotAnAddress`].
    pub fn with_port(text: &str, default: u16) -> Result<Self, NotAnAddress> {
        let (text, rdma) = text.strip_suffix(RDMA).map_or((text, false), |text| (text, true));
        let (machine, device) = match text.split_once('/') {
            Some((machine, number)) => {
                (machine, Some(decimal(number).ok_or(NotAnAddress("no device's number"))?))
            }
            None => (text, None),
        };
        let (host, port) = match machine.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(NotAnAddress("a bracket is not closed"))?;
                host.parse::<std::net::Ipv6Addr>()
                    .map_err(|_| NotAnAddress("no IPv6 address in the brackets"))?;
                match port.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if port.is_empty() => (host, None),
                    None => return Err(NotAnAddress("something follows the bracket")),
                }
            }
            None => match machine.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(NotAnAddress("an IPv6 address without brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (machine, None),
            },
        };
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if !machine.starts_with('[') && !host.chars().all(is_of_names) {
            return Err(NotAnAddress("a character that no machine's name has"));
        }
        // A name that begins so would be taken for an option by whoever it is shown to.
        if host.is_empty() || host.len() > HOST_MAX || host.starts_with('-') {
            return Err(NotAnAddress("no machine's name"));
        }
        let port = port.map_or(Some(default), |port| {
            decimal(port).and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
        });
        let port = port.ok_or(NotAnAddress("no port"))?;
        Ok(Self { host: host.to_ascii_lowercase(), port, device, rdma })
    }
}

/// Digits alone; the standard library takes a sign as well.
fn decimal(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.machine())?;
        if let Some(device) = self.device {
            write!(f, "/{device}")?;
        }
        if self.rdma { f.write_str(RDMA) } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses() {
        for (text, host, port, device, shown) in [
            ("gpu1", "gpu1", DEFAULT_PORT, None, "gpu1:7070"),
            ("GPU1.lab:9/3", "gpu1.lab", 9, Some(3), "gpu1.lab:9/3"),
            ("10.0.0.1/1", "10.0.0.1", DEFAULT_PORT, Some(1), "10.0.0.1:7070/1"),
            ("[::1]", "::1", DEFAULT_PORT, None, "[::1]:7070"),
            ("[fe80::1]:80/0", "fe80::1", 80, Some(0), "[fe80::1]:80/0"),
            ("gpu1+rdma", "gpu1", DEFAULT_PORT, None, "gpu1:7070+rdma"),
            ("[::1]:9/2+rdma", "::1", 9, Some(2), "[::1]:9/2+rdma"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host(), address.port(), address.device()), (host, port, device), "{text}");
            assert_eq!(address.to_string(), shown);
            assert_eq!(address.is_over_rdma(), shown.ends_with("+rdma"));
        }
        for bad in [
            "",
            ":80",
            "/1",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a/",
            "a/-1",
            "a/4294967296",
            "::1",
            "[::1",
            "[x]",
            "[::1]80",
            "a b",
            "a/1/2",
            "-x",
            "a:1:2",
            "+rdma",
            "a+rdma/1",
            "a+rdma+rdma",
            "a+RDMA",
            "é",
            "a\n",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_an_address_is_shown_as_one(text in "\\PC{0,40}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }

        #[test]
        fn addresses_are_read_back(host in "[a-z0-9._][a-z0-9._-]{0,20}", port in 1_u16.., device: u32) {
            let address: Address = format!("{host}:{port}/{device}").parse().unwrap();
            prop_assert_eq!((address.host(), address.port(), address.device()), (&*host, port, Some(device)));
        }
    }
}
