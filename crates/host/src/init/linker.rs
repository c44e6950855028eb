//! A regenerated `ld.so.cache`, where a machine has no driver library over which the shim could be mounted.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::instructions::LD_CACHE;
use super::setup::host_path;

const CACHE: &str = "/etc/ld.so.cache";
const CONFIGURATION: &str = "/etc/ld.so.conf";

/// Makes every lookup by name find the libraries in `folder` first, by their files' names: one may have several.
pub(super) fn name_first(folder: &Path) -> io::Result<()> {
    if !Path::new(CACHE).exists() {
        // A machine that does without has no default to override; the caller's LD_LIBRARY_PATH must do.
        return Ok(());
    }
    let configuration = host_path("ld.so.conf");
    let include =
        if Path::new(CONFIGURATION).exists() { format!("include {CONFIGURATION}\n") } else { String::new() };
    fs::write(&configuration, format!("{}\n{include}", folder.display()))?;
    let cache = host_path(LD_CACHE);
    // ldconfig goes by what a library calls itself: while it looks, ones that are called like their files lie over the folder.
    let likenesses = host_path("likenesses");
    fs::create_dir_all(&likenesses)?;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        fs::write(likenesses.join(&name), likeness(name.as_bytes()))?;
    }
    mount_bind(&likenesses, folder)?;
    let made = make_cache(&configuration, &cache);
    unmount(folder, UnmountFlags::DETACH)?;
    fs::remove_dir_all(likenesses)?;
    made?;
    Ok(mount_bind(cache, CACHE)?)
}

fn make_cache(configuration: &Path, cache: &Path) -> io::Result<()> {
    let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|p| Path::new(p).exists());
    let mut command = Command::new(ldconfig.unwrap_or("ldconfig"));
    command.args(["-X", "-f"]).arg(configuration).arg("-C").arg(cache).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// The least that ldconfig takes for a library called `name`: headers, and a dynamic section with that name.
fn likeness(name: &[u8]) -> Vec<u8> {
    const HEADER: u16 = 64;
    const SEGMENT: u16 = 56;
    /// 64-bit, little-endian, of this version.
    const IDENT: [u8; 16] = [0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let dynamic = u64::from(HEADER + 2 * SEGMENT);
    let entries = 5u64;
    let strings = dynamic + 16 * entries;
    let text = [b"\0libc.so.6\0", name, b"\0"].concat();
    let size = strings + text.len() as u64;

    let mut file = IDENT.to_vec();
    let halves = |halves: &[u16], file: &mut Vec<u8>| {
        halves.iter().for_each(|half| file.extend(half.to_le_bytes()));
    };
    halves(&[libc::ET_DYN, libc::EM_X86_64, 1, 0], &mut file);
    // No entry; the segments follow; no sections; no flags.
    [0, u64::from(HEADER), 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
    halves(&[0, 0, HEADER, SEGMENT, 2, 0, 0, 0], &mut file);
    for (kind, offset, length) in [(libc::PT_LOAD, 0, size), (libc::PT_DYNAMIC, dynamic, 16 * entries)] {
        file.extend(kind.to_le_bytes());
        file.extend(libc::PF_R.to_le_bytes());
        // In the file, in memory twice; then as long in both, and its alignment.
        [offset, offset, offset, length, length, 8].iter().for_each(|word| file.extend(word.to_le_bytes()));
    }
    // The first string, the second; then where they are and how long.
    let [needed, strtab, strsz, soname] = [1, 5, 10, 14];
    let table: [u64; 10] = [needed, 1, soname, 11, strtab, strings, strsz, text.len() as u64, 0, 0];
    table.iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(text);
    file
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_listed_by_the_name_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let (configuration, cache) = (dir.path().join("conf"), dir.path().join("cache"));
        let libraries = dir.path().join("libraries");
        fs::create_dir(&libraries).unwrap();
        fs::write(&configuration, libraries.display().to_string()).unwrap();
        for name in ["libone.so.1", "libother.so"] {
            fs::write(libraries.join(name), likeness(name.as_bytes())).unwrap();
        }
        make_cache(&configuration, &cache).unwrap();
        let listed = Command::new("/sbin/ldconfig").arg("-p").arg("-C").arg(&cache).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for name in ["libone.so.1", "libother.so"] {
            let line = format!("{name} (libc6,x86-64) => {}/{name}", libraries.display());
            assert!(listed.contains(&line), "{listed}");
        }
    }
}
