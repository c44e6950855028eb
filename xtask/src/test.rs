//! `cargo xtask test`: everything that can be checked without a GPU.

use std::process::Command;
use std::time::SystemTime;

use crate::guests::Wanted;
use crate::process::{cargo, run, step, succeeds};
use crate::workspace::Workspace;
use crate::{abi, deny, kit, setup};

/// Set-up, then formatting, lints, documentation, licences, the list of driver functions, and all tests.
pub fn run_all(workspace: &Workspace) -> anyhow::Result<()> {
    setup::tests(workspace)?;
    let root = &workspace.root;

    step("formatting");
    run(cargo(root).args(["fmt", "--all", "--check"]))?;
    step("lints");
    run(cargo(root).args([
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "--deny",
        "warnings",
    ]))?;
    step("the fuzz targets compile");
    // Most of what they depend on is there from the lints.
    run(cargo(root)
        .args(["check", "--locked", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--target-dir"])
        .arg(root.join("target")))?;
    step("documentation");
    run(cargo(root)
        .args(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items", "--quiet"])
        .env("RUSTDOCFLAGS", "--deny warnings"))?;
    deny::check(workspace)?;
    step("the list of driver functions against NVIDIA's headers");
    abi::check(&workspace.cuda().join("include"), &root.join("docs/api-coverage.md"))?;

    let kit = kit::build(workspace, Wanted::All)?;
    step("tests");
    let mut tests = nextest(workspace)?;
    // Jobs that are checkpointed wait more than they compute.
    let side_by_side = std::thread::available_parallelism()?.get() + 2;
    tests.args(["run", "--locked", "--workspace", "--no-fail-fast", "--test-threads"]);
    tests.arg(side_by_side.to_string());
    run(tests.env("DORMOUSE_KIT", kit))?;

    step("the rings, in every order that two processes can run in");
    run(cargo(root)
        .args(["test", "--locked", "--package", "transport", "--lib", "--quiet", "--target-dir"])
        .arg(root.join("target/loom"))
        .env("RUSTFLAGS", "--cfg loom"))
}

/// `cargo nextest`, installed if the machine has none: most tests need a process of their own, because what they test has fixed addresses.
fn nextest(workspace: &Workspace) -> anyhow::Result<Command> {
    let root = &workspace.root;
    let own = workspace.prefix().join("bin/cargo-nextest");
    let mut command = if succeeds(cargo(root).args(["nextest", "--version"])) {
        cargo(root)
    } else {
        if !own.exists() {
            step("installing cargo-nextest");
            let install = ["install", "--quiet", "--locked", "cargo-nextest", "--root"];
            run(cargo(root).args(install).arg(workspace.prefix()))?;
        }
        let mut command = Command::new(own);
        command.current_dir(root);
        command
    };
    command.arg("nextest");
    Ok(command)
}

/// The long runs, on this machine's GPU or else on the software device.
pub fn soak(workspace: &Workspace) -> anyhow::Result<()> {
    setup::tests(workspace)?;
    let kit = kit::build(workspace, Wanted::All)?;
    step("200 processes killed at some moment of a checkpoint, and as many of a restart");
    let mut crashes = nextest(workspace)?;
    crashes.args(["run", "--locked", "--package", "dormouse-tests", "--filterset", "test(crashes::)"]);
    // Others each time.
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    step(format_args!("DORMOUSE_SEED={seed}"));
    crashes.env("DORMOUSE_KIT", &kit).env("DORMOUSE_CRASHES", "200").env("DORMOUSE_SEED", seed.to_string());
    run(&mut crashes)?;
    step("200 restarts of an image in which a bit is flipped");
    let mut flips = nextest(workspace)?;
    flips.args([
        "run",
        "--locked",
        "--package",
        "dormouse-tests",
        "--filterset",
        "test(a_flipped_bit_anywhere)",
    ]);
    flips.env("DORMOUSE_KIT", &kit).env("DORMOUSE_FLIPS", "200").env("DORMOUSE_SEED", seed.to_string());
    run(&mut flips)?;
    step("4000 random programs with managed memory against a model, for half an hour");
    let mut programs = nextest(workspace)?;
    programs.args(["run", "--locked", "--package", "shadow", "--filterset", "test(interleavings::)"]);
    run(programs.env("PROPTEST_CASES", "4000"))?;
    step("random marked kernels, stopped at every mark, for 10 minutes");
    let mut kernels = nextest(workspace)?;
    kernels.args(["run", "--locked", "--package", "cpt", "--filterset", "test(random_kernels)"]);
    run(kernels.env("DORMOUSE_KERNELS_SECONDS", "600"))?;
    step("sessions between machines, garbled on their way, for an hour");
    let mut garbled = nextest(workspace)?;
    garbled.args(["run", "--locked", "--package", "remote", "--filterset", "test(garbled::)"]);
    run(garbled.env("DORMOUSE_GARBLED_SECONDS", "3600"))?;
    step("20 rounds of every scenario");
    run(Command::new(kit.join("bin/gpu-check")).args(["--soak", "--jobs", "4"]).env("DORMOUSE_KIT", &kit))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// A crate's tests are one program, `tests/suite`: a file that `main.rs` does not name would never run.
    #[test]
    fn no_file_of_a_suite_is_forgotten() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut files = 0;
        for suite in fs::read_dir(crates).unwrap().map(|each| each.unwrap().path().join("tests/suite")) {
            let Ok(main) = fs::read_to_string(suite.join("main.rs")) else { continue };
            for file in fs::read_dir(&suite).unwrap().map(|each| each.unwrap().path()) {
                let name = file.file_stem().unwrap().to_str().unwrap();
                if file.extension().is_some_and(|end| end == "rs") && name != "main" {
                    files += 1;
                    assert!(main.contains(&format!("mod {name};\n")), "{} is not named", file.display());
                }
            }
        }
        assert!(files > 40, "{files}");
    }
}
