//! One file for each command.

pub mod checkpoint;
pub mod doctor;
pub mod images;
pub mod manual;
pub mod ps;
pub mod restart;
pub mod run;
pub mod server;

use crate::flags;
use std::path::{Path, PathBuf};

/// The folder of the store.
pub fn store_dir(flags: &flags::Store) -> PathBuf {
    if let Some(dir) = &flags.store {
        return dir.clone();
    }
    if host::is_root() {
        return "/var/lib/dormouse".into();
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    std::env::var_os("XDG_DATA_HOME").map_or_else(|| home.join(".local/share"), PathBuf::from).join("dormouse")
}

/// Where calls go on this machine: the value of `--device` for servers. Says so when it is not what one would hope for.
pub fn device(flags: flags::Device) -> &'static str {
    match flags {
        flags::Device::Gpu => "gpu",
        flags::Device::Soft => "soft",
        flags::Device::Auto if Path::new("/dev/nvidiactl").exists() => "gpu",
        flags::Device::Auto => {
            eprintln!("dormouse: no GPU on this machine: using the software device (--device soft to ask for it)");
            "soft"
        }
    }
}
