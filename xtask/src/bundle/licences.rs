//! The licences of everything in the bundle, and where its source is.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::deny::{Metadata, Package};
use crate::workspace::Workspace;

const README: &str = "\
# Licences

- Dormouse: MIT OR Apache-2.0, at your choice (`LICENSE-MIT`, `LICENSE-APACHE`).
- The Rust libraries linked into it: `rust-libraries.txt`, with the text of each licence. Their source is in the Rust package registry
  under the names and versions given there.
- `guests/libcudart.so.13`, and the static copy in the guest programs: the CUDA runtime, redistributable under NVIDIA's CUDA
  Toolkit end user licence agreement (attachment A). The guests themselves are part of Dormouse.
";

const CRIU: &str = "\
- `criu/`: CRIU (GPL-2.0) and the libraries it loads, unmodified packages of Debian, run as a program of their own. Their
  copyright files are in `criu/` beside this file. Their source is in Debian's archive, and stays in its snapshot archive, under
  the source packages and versions that `../criu/packages.txt` gives (`apt-get source PACKAGE=VERSION`).

";

/// Writes `LICENSES/`.
pub fn write(workspace: &Workspace, bundle: &Path) -> anyhow::Result<()> {
    let folder = bundle.join("LICENSES");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        crate::kit::install(&workspace.root.join(name), &folder.join(name))?;
    }
    std::fs::write(folder.join("rust-libraries.txt"), rust_libraries(workspace)?)
        .context("cannot write licences")?;
    let mut readme = README.to_owned();
    let copyrights = copyrights(&bundle.join("criu"))?;
    if !copyrights.is_empty() {
        readme.push_str(CRIU);
        std::fs::create_dir_all(folder.join("criu")).context("cannot make a folder")?;
        for (package, file) in &copyrights {
            std::fs::copy(file, folder.join("criu").join(format!("{package}.txt")))
                .with_context(|| format!("cannot copy {}", file.display()))?;
        }
    }
    std::fs::write(folder.join("README.md"), readme).context("cannot write licences")
}

/// Every library that is linked, with the texts of its licence.
fn rust_libraries(workspace: &Workspace) -> anyhow::Result<String> {
    let mut packages = Metadata::read(workspace)?.packages;
    packages.retain(|package| package.source.is_some());
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    let mut text = String::new();
    for package in &packages {
        let license = package.license.as_deref().unwrap_or("no licence named");
        writeln!(text, "{} {}: {license}", package.name, package.version)?;
    }
    for package in &packages {
        for file in licence_files(package)? {
            let contents = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            writeln!(text, "\n---- {} {}: {name}\n", package.name, package.version)?;
            text.push_str(&String::from_utf8_lossy(&contents));
        }
    }
    Ok(text)
}

fn licence_files(package: &Package) -> anyhow::Result<Vec<PathBuf>> {
    let folder = package.manifest_path.parent().context("a Cargo.toml lies in a folder")?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_uppercase();
        let speaks_of_it = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
        if path.is_file() && speaks_of_it.iter().any(|word| name.starts_with(word)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The copyright files that Debian's packages carry, by package.
fn copyrights(prefix: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let mut open = vec![prefix.to_owned()];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                open.push(path);
            } else if entry.file_name() == "copyright" {
                let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                found.push((package, path));
            }
        }
    }
    found.sort();
    Ok(found)
}
