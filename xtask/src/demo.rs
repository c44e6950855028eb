//! `cargo xtask demo`: the whole of Dormouse in a minute, with or without a GPU.

use anyhow::{Context, bail, ensure};
use testkit::job::LIMIT;
use testkit::kit::Kit;
use testkit::outcome::{Exit, fits};
use testkit::place::{After, Checkpoint, Device, Place};

use crate::guests::Wanted;
use crate::process::step;
use crate::workspace::Workspace;
use crate::{kit, setup};

/// The program that is shown; nothing in it knows of Dormouse.
const PROGRAM: &str = "vector_loop";
/// What it does on the software device: some seconds of work, so that half of it are enough for a first checkpoint on a machine that is busy.
const ARGS: [&str; 2] = ["1500", "16"];

/// Builds everything, then checkpoints a CUDA program, kills all there is of it, and wakes it up.
pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    setup::run(workspace)?;
    let built = kit::build(workspace, Wanted::One(PROGRAM))?;
    let kit = Kit::at(&built)?;
    let manifest = kit.manifest()?;
    let guest = manifest.guest(PROGRAM)?;
    let program = kit.guest(guest.program());
    let device = Device::of_this_machine();
    let args =
        if device == Device::Gpu { guest.args(true).to_vec() } else { ARGS.map(str::to_owned).to_vec() };

    let folder =
        tempfile::Builder::new().prefix("dormouse-demo-").tempdir().context("cannot make a folder")?;
    let name = format!("demo-{}", std::process::id());
    let place = Place {
        kit: &kit,
        device,
        served: None,
        name: &name,
        managed: None,
        device_memory: None,
        folder: folder.path(),
    };
    std::fs::create_dir_all(place.cwd()).context("cannot make a working directory")?;

    let undisturbed = if device == Device::Gpu {
        step(format_args!("running guests/{PROGRAM}.cu, undisturbed, on the GPU, without Dormouse"));
        place.run_natively(&program, &args)?
    } else {
        step(format_args!(
            "running guests/{PROGRAM}.cu, undisturbed; there is no GPU here: on the software device"
        ));
        place.run(&program, &args)?
    };
    let undisturbed = undisturbed.finish()?;
    show(&undisturbed.stdout);
    ensure!(undisturbed.exit == Exit::Code(0), "{}\n{}", undisturbed.exit, undisturbed.stderr);

    step(format_args!("dormouse run --name {name} -- {PROGRAM} {}", args.join(" ")));
    let job = place.run(&program, &args)?;
    if !job.stdout.wait_for_line(LIMIT) {
        let finished = job.finish()?;
        bail!("it printed nothing ({})\n{}", finished.exit, finished.stderr);
    }
    std::thread::sleep(undisturbed.window / 2);
    step(format_args!("half-way: dormouse checkpoint {name}"));
    let Checkpoint::Published(report) = place.checkpoint(After::LeaveRunning)? else {
        bail!("the program was over before its checkpoint");
    };
    eprintln!("   image {}; the program stood still for {:.0} ms", report.image, report.stall_ms);
    step("killing application, GPU server and supervisor with SIGKILL");
    let before = place.kill_everything(job)?;
    show(&before);

    step(format_args!("dormouse restart {}", report.image));
    let after = place.restart(&report.image)?.finish()?;
    show(&after.stdout);
    ensure!(after.exit == undisturbed.exit, "it ended with {}\n{}", after.exit, after.stderr);
    ensure!(!after.stdout.is_empty(), "the program was over before its checkpoint");
    ensure!(
        fits(&undisturbed.stdout, &[&before, &after.stdout], false).is_ok(),
        "the output differs from the undisturbed run's"
    );
    let lines = undisturbed.stdout.iter().filter(|byte| **byte == b'\n').count();
    println!(
        "The interrupted run printed what the undisturbed one did, byte for byte: {lines} lines, exit code 0."
    );
    println!("To go on with programs of your own: {}", built.join("bin/dormouse").display());
    Ok(())
}

/// The first and the last lines of what a program printed.
fn show(stdout: &[u8]) {
    let text = String::from_utf8_lossy(stdout);
    let lines: Vec<&str> = text.lines().collect();
    match &lines[..] {
        [first, second, .., last] if lines.len() > 4 => {
            eprintln!("   {first}\n   {second}\n   … {} more …\n   {last}", lines.len() - 3);
        }
        few => few.iter().for_each(|line| eprintln!("   {line}")),
    }
}
