//! `cargo xtask deny`: licences and sources of everything that is linked, as `deny.toml` allows them.
//!
//! Where cargo-deny is installed it does the work, with the advisory database too. It takes longer to build than all of
//! this project, so that a machine without it checks licences and sources here, and says that advisories were not.

use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;
use spdx::{Expression, LicenseReq};

use crate::process::{cargo, quiet, run, step, succeeds};
use crate::workspace::Workspace;

/// How cargo names the index of crates.io, wherever it is fetched from.
const CRATES_IO: &str = "/crates.io-index";

#[derive(Deserialize)]
struct Policy {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

/// What is linked into what we ship.
#[derive(Deserialize)]
pub struct Metadata {
    /// Every package, ours and others.
    pub packages: Vec<Package>,
}

/// One package.
#[derive(Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence, as an SPDX expression.
    pub license: Option<String>,
    /// Where it comes from; nothing for our own.
    pub source: Option<String>,
    /// Its `Cargo.toml`.
    pub manifest_path: std::path::PathBuf,
}

impl Metadata {
    /// Asks cargo.
    pub fn read(workspace: &Workspace) -> anyhow::Result<Self> {
        let mut command = cargo(&workspace.root);
        command.args(["metadata", "--format-version", "1", "--locked", "--all-features"]);
        command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
        serde_json::from_slice(&quiet(&mut command)?.stdout)
            .context("cargo metadata said something unexpected")
    }
}

/// Checks every dependency.
pub fn check(workspace: &Workspace) -> anyhow::Result<()> {
    if succeeds(Command::new("cargo-deny").arg("--version")) {
        step("cargo deny");
        return run(cargo(&workspace.root).args(["deny", "check"]));
    }
    step("licences and sources (no cargo-deny here: advisories are not checked)");
    let path = workspace.root.join("deny.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let policy: Policy =
        toml::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))?;
    let metadata = Metadata::read(workspace)?;
    let complaints: Vec<String> =
        metadata.packages.iter().filter_map(|package| complaint(package, &policy)).collect();
    if !complaints.is_empty() {
        bail!("deny.toml does not allow {} packages:\n{}", complaints.len(), complaints.join("\n"));
    }
    Ok(())
}

/// What is wrong with a package, if anything is.
fn complaint(package: &Package, policy: &Policy) -> Option<String> {
    let of = format!("{} {}", package.name, package.version);
    let source = package.source.as_deref()?;
    if !(source.starts_with("registry+") && source.ends_with(CRATES_IO)) {
        return Some(format!("{of} comes from {source}"));
    }
    let Some(license) = &package.license else { return Some(format!("{of} names no licence")) };
    // Old packages write MIT/Apache-2.0, which SPDX does not know.
    let Ok(expression) = Expression::parse_mode(license, spdx::ParseMode::LAX) else {
        return Some(format!("{of}: {license:?} is no SPDX expression"));
    };
    let allowed = |required: &LicenseReq| policy.licenses.allow.contains(&required.to_string());
    (!expression.evaluate(allowed)).then(|| format!("{of} is under {license}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint_about(license: Option<&str>, source: &str) -> Option<String> {
        let policy = Policy {
            licenses: Licenses { allow: vec!["MIT".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()] },
        };
        let package = Package {
            name: "some".to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            source: Some(source.to_owned()),
            manifest_path: "Cargo.toml".into(),
        };
        complaint(&package, &policy)
    }

    #[test]
    fn one_allowed_choice_is_enough() {
        for license in ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "Apache-2.0 WITH LLVM-exception"] {
            assert_eq!(
                complaint_about(Some(license), "registry+https://host/crates.io-index"),
                None,
                "{license}"
            );
        }
    }

    #[test]
    fn everything_else_is_named() {
        let about = |license, source| complaint_about(license, source).unwrap_or_default();
        let registry = "registry+https://host/crates.io-index";
        assert_eq!(about(Some("MIT AND GPL-3.0"), registry), "some 1.0.0 is under MIT AND GPL-3.0");
        assert_eq!(about(Some("Apache-2.0"), registry), "some 1.0.0 is under Apache-2.0");
        assert_eq!(about(None, registry), "some 1.0.0 names no licence");
        assert_eq!(
            about(Some("MIT"), "git+https://elsewhere"),
            "some 1.0.0 comes from git+https://elsewhere"
        );
    }
}
