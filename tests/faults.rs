//! What goes wrong while a program runs, on whatever device: a GPU server that dies, shared memory that is used up. (Programs that bring it upon themselves,
//! kernels that fault, memory that runs out, forks, are guests of the matrix.) The same bodies run in CI and, from a bundle, on
//! a machine with a GPU.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use host::all_may;
use rustix::process::{Pid, Signal, kill_process};
use testkit::job::{Job, LIMIT};
use testkit::kit::Kit;
use testkit::manifest::Managed;
use testkit::outcome::Exit;
use testkit::place::{After, Checkpoint, Device, Place, WITHOUT_RIGHT};

use crate::{Body, Failure, Mount, PACED, Stage, first_line};

/// Every body, and what it is called.
pub const ALL: &[(&str, Body)] = &[
    ("a_killed_server_fails_every_thread", a_killed_server_fails_every_thread),
    ("a_killed_server_fails_no_other_process", a_killed_server_fails_no_other_process),
    ("a_killed_server_takes_its_managed_memory_with_it", a_killed_server_takes_managed_memory),
    ("a_killed_server_takes_what_threads_touch_outside_of_calls", a_killed_server_takes_what_is_touched),
    ("a_killed_supervisor_takes_the_program_with_it", a_killed_supervisor_takes_the_program),
    ("managed_memory_that_is_moved_ends_the_program_by_name", moved_managed_memory),
    ("a_program_that_polls_managed_memory_is_told_of_the_option", polled),
    ("managed_memory_ends_where_its_regions_do", strays),
    ("managed_memory_is_freed_once", freed_twice),
    ("contexts_end_beside_others_with_managed_memory", contexts_that_end),
    ("managed_memory_is_as_a_restart_chooses", chosen_by_a_restart),
    ("managed_memory_replaces_nothing_that_the_program_has", taken_addresses),
    (NOT_PERMITTED, no_shadows_permitted),
    (OWN_FAULTS, own_faults),
    ("managed_memory_is_coherent_where_the_kernel_is_too_old", old_kernel),
    ("managed_memory_with_shadows_is_not_restarted_where_the_kernel_is_too_old", restarted_on_old_kernel),
    ("managed_memory_with_shadows_of_a_program_that_has_confined_itself", confined_since),
    ("managed_memory_is_coherent_where_descriptors_are_few", few_descriptors),
    ("managed_memory_that_goes_to_and_fro_becomes_coherent", becomes_coherent),
    ("what_is_written_behind_a_cut_is_in_no_image", written_behind_a_cut),
    ("managed_memory_written_until_all_stand_still_is_in_the_image", written_before_a_cut),
    ("a_process_gets_no_more_of_a_device_than_it_may", device_memory_is_limited),
    ("a_killed_server_is_told_of_while_others_keep_the_gate", while_others_keep_the_gate),
    (FEW_PROCESSES, a_limit_on_processes),
    (LITTLE_MEMORY, a_limit_on_memory),
    (STORE_IN_MEMORY, a_store_in_memory),
    ("shared_memory_that_is_used_up_leaves_room_for_calls", shared_memory_is_used_up),
];

const NOT_PERMITTED: &str = "managed_memory_is_coherent_where_shadows_are_not_permitted";
const OWN_FAULTS: &str = "the_programs_own_faults_will_do_where_that_is_chosen";
const FEW_PROCESSES: &str = "a_limit_on_processes_fails_checkpoints_and_nothing_else";
const LITTLE_MEMORY: &str = "a_limit_on_memory_fails_checkpoints_and_nothing_else";
const STORE_IN_MEMORY: &str = "a_store_in_memory_that_has_no_room_fails_checkpoints_and_nothing_else";

/// Whether this machine has what a body takes. (Control groups are not everybody's to make, and where everybody may have a userfaultfd the
/// right to one cannot be missing.)
#[must_use]
pub fn is_possible(name: &str) -> bool {
    let limited = match name {
        FEW_PROCESSES => &PROCESSES,
        LITTLE_MEMORY | STORE_IN_MEMORY => &MEMORY,
        NOT_PERMITTED | OWN_FAULTS => return !all_may(),
        _ => return true,
    };
    Limited::new(limited, "tried").is_ok()
}

/// How soon every thread has to know.
const SOON: Duration = Duration::from_secs(1);

/// The GPU server of a session of the job.
///
/// # Errors
/// When it has none, or several.
pub fn server(stage: &Stage, job: &Job, session: u32) -> anyhow::Result<Pid> {
    let number = session.to_string();
    let is_it = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').collect();
        words.get(1) == Some(&"server") && words.windows(2).any(|two| two == ["--session", &number])
    };
    let found: Vec<i32> = stage.place().processes(job)?.into_iter().filter(is_it).collect();
    match found[..] {
        [pid] => Pid::from_raw(pid).context("a process has a pid"),
        _ => bail!("the servers of session {session}: {found:?}"),
    }
}

/// Waits until a session has begun: its server is there.
fn begun(stage: &Stage, job: &Job, session: u32) -> anyhow::Result<()> {
    let began = Instant::now();
    while let Err(error) = server(stage, job, session) {
        if began.elapsed() > LIMIT {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Kills a server; when that was.
fn kill(stage: &Stage, job: &Job, session: u32) -> anyhow::Result<(Instant, SystemTime)> {
    let server = server(stage, job, session)?;
    let now = (Instant::now(), SystemTime::now());
    kill_process(server, Signal::KILL).context("cannot kill a server")?;
    Ok(now)
}

fn wait_for_text(job: &Job, text: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    while !String::from_utf8_lossy(&job.stdout.so_far()).contains(text) {
        ensure!(began.elapsed() < LIMIT, "{text:?} is never printed");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The command that was offered on standard error.
fn offered(stderr: &str) -> anyhow::Result<&str> {
    let (_, rest) =
        stderr.split_once("with 'dormouse ").with_context(|| format!("no command in: {stderr}"))?;
    Ok(rest.split_once('\'').with_context(|| format!("half a command in: {stderr}"))?.0)
}

/// A program that reads and writes managed memory with shadow pages most of the time: it must never find zeros there.
fn a_killed_server_takes_managed_memory(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "managed-lost")?;
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let args = ["80", "8"].map(str::to_owned);
    let guest = stage.guest("managed_pages");
    let whole = place.run(&guest, &args)?.finish()?;
    ensure!(whole.exit == Exit::Code(0), "{}: {}", whole.exit, whole.stderr);
    for round in 0..2 {
        let job = first_line(place.run(&guest, &args)?)?;
        let image = stage.checkpoint(After::LeaveRunning)?;
        std::thread::sleep(Duration::from_millis(37 * round));
        kill(&stage, &job, 1)?;
        let finished = job.finish()?;
        let said = String::from_utf8_lossy(&finished.stdout).into_owned();
        ensure!(whole.stdout.starts_with(&finished.stdout), "round {round}: {said}");
        ensure!(finished.exit == Exit::Signal(9), "round {round}: {}: {}", finished.exit, finished.stderr);
        for word in ["GPU server of session 1", "managed memory of process 2", &image] {
            ensure!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
        }
        let restarted = place.restart(&image)?.finish()?;
        ensure!(restarted.exit == Exit::Code(0), "{}: {}", restarted.exit, restarted.stderr);
        ensure!(whole.stdout.ends_with(&restarted.stdout), "round {round}: another end");
    }
    Ok(())
}

/// Two threads at pages that are not there yet, of a program that makes no calls: nobody but the supervisor can tell them.
fn a_killed_server_takes_what_is_touched(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "touched")?;
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let guest = stage.guest("managed_edges");
    let whole = place.run(&guest, &["touched", "1"].map(str::to_owned))?.finish()?;
    ensure!(whole.exit == Exit::Code(0), "{}: {}", whole.exit, whole.stderr);
    for round in 0..5 {
        let job = first_line(place.run(&guest, &["touched", "100"].map(str::to_owned))?)?;
        std::thread::sleep(Duration::from_millis(23 * round));
        kill(&stage, &job, 1)?;
        let finished = job.finish()?;
        ensure!(finished.exit == Exit::Signal(9), "round {round}: {}: {}", finished.exit, finished.stderr);
        let said = String::from_utf8_lossy(&finished.stdout);
        ensure!(said == "touching\n", "round {round}: {said}");
        for word in ["GPU server of session 1", "managed memory of process 2"] {
            ensure!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
        }
    }
    Ok(())
}

/// The last holder of a program's faults must not be gone before the program, nor its device.
fn a_killed_supervisor_takes_the_program(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "orphaned")?;
    let guest = stage.guest("managed_pages");
    for managed in [Managed::Shadow, Managed::Coherent] {
        let place = Place { managed: Some(managed), ..stage.place() };
        let args = if managed == Managed::Shadow { ["80", "8"] } else { ["300", "8"] }.map(str::to_owned);
        let whole = place.run(&guest, &args)?.finish()?;
        ensure!(whole.exit == Exit::Code(0), "{}: {}", whole.exit, whole.stderr);
        for round in 0..4 {
            let job = first_line(place.run(&guest, &args)?)?;
            std::thread::sleep(Duration::from_millis(37 * round));
            let supervisor = Pid::from_raw(job.pid()).context("a process has a pid")?;
            kill_process(supervisor, Signal::KILL).context("cannot kill the supervisor")?;
            let finished = job.finish()?;
            let said = String::from_utf8_lossy(&finished.stdout).into_owned();
            ensure!(
                finished.exit == Exit::Signal(9),
                "round {round}: {}: {}",
                finished.exit,
                finished.stderr
            );
            // Neither a wrong value nor an error of CUDA's.
            ensure!(whole.stdout.starts_with(&finished.stdout), "round {round}: {said}");
            ensure!(finished.stderr.is_empty(), "round {round}: {}", finished.stderr);
        }
    }
    Ok(())
}

/// Where it is moved to its pages could not be kept, and would read as zeros.
fn moved_managed_memory(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "moved")?;
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let job = first_line(place.run(&stage.guest("managed_unmapped"), &["2000", "2"].map(str::to_owned))?)?;
    std::fs::write(stage.place().cwd().join("move"), "")?;
    let finished = job.finish()?;
    let said = String::from_utf8_lossy(&finished.stdout).into_owned();
    ensure!(finished.exit == Exit::Signal(9), "{}: {}", finished.exit, finished.stderr);
    ensure!(!said.contains("WRONG"), "{said}");
    for word in ["mremap", "--managed=coherent", "managed memory of process 2"] {
        ensure!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
    Ok(())
}

/// What is freed already is nobody's to free, however it was had; its neighbours are as they were.
fn freed_twice(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "twice")?;
    for managed in [Managed::Shadow, Managed::Exclusive, Managed::Coherent] {
        let place = Place { managed: Some(managed), ..stage.place() };
        let finished = place.run(&stage.guest("managed_edges"), &["twice".to_owned()])?.finish()?;
        let said = String::from_utf8_lossy(&finished.stdout);
        ensure!(finished.exit == Exit::Code(0), "{managed:?}: {}: {said}{}", finished.exit, finished.stderr);
    }
    Ok(())
}

/// What is allocated behind a restart is as that says, and else as it was before.
fn chosen_by_a_restart(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "chosen")?;
    let place = Place { managed: Some(Managed::Coherent), ..stage.place() };
    let go = place.cwd().join("go");
    let job = first_line(place.run(&stage.guest("managed_edges"), &["chosen".to_owned()])?)?;
    let image = stage.checkpoint(After::Stop)?;
    let before = job.finish()?.stdout;
    std::fs::write(&go, "")?;
    for (managed, stays) in [(None, true), (Some(Managed::Shadow), false)] {
        let mut restart = place.restart_command(&image);
        restart.args(managed.map(|managed| format!("--managed={}", managed.flag())));
        let finished = Job::start(restart)?.finish()?;
        ensure!(finished.exit == Exit::Code(0), "{managed:?}: {}: {}", finished.exit, finished.stderr);
        let (found, expected) = (String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&before));
        ensure!((found == expected) == stays, "{managed:?}: {expected} before, and {found}");
    }
    Ok(())
}

/// What a context has written is lost with it, and nobody else's calls fail for that, nor is a region of theirs that comes to lie there.
fn contexts_that_end(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "ended")?;
    for managed in [Managed::Shadow, Managed::Coherent] {
        let place = Place { managed: Some(managed), ..stage.place() };
        let finished = place.run(&stage.guest("managed_edges"), &["ended".to_owned()])?.finish()?;
        let said = String::from_utf8_lossy(&finished.stdout);
        ensure!(finished.exit == Exit::Code(0), "{managed:?}: {}: {said}{}", finished.exit, finished.stderr);
    }
    Ok(())
}

/// Who reads what is freed, or what lies behind a region, finds nothing there, of another region or of nobody's. (Coherent regions may lie side by side.)
fn strays(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "strays")?;
    for (managed, how) in
        [(Managed::Shadow, "freed"), (Managed::Shadow, "beyond"), (Managed::Coherent, "freed")]
    {
        let place = Place { managed: Some(managed), ..stage.place() };
        let finished = place.run(&stage.guest("managed_edges"), &[how.to_owned()])?.finish()?;
        let said = String::from_utf8_lossy(&finished.stdout);
        let ended = finished.exit == Exit::Signal(11) && said == "reading\n";
        ensure!(ended, "{managed:?}, {how}: {}: {said}{}", finished.exit, finished.stderr);
    }
    Ok(())
}

/// Who waits for a running kernel by reading managed memory with shadow pages sees late what that writes, and is told what to do, once. Where
/// both sides reach the same bytes there is nothing to tell.
fn polled(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "polled")?;
    for (managed, told) in [(Managed::Shadow, 1), (Managed::Coherent, 0)] {
        let place = Place { managed: Some(managed), ..stage.place() };
        let finished = place.run(&stage.guest("managed_edges"), &["polled".to_owned()])?.finish()?;
        let said = String::from_utf8_lossy(&finished.stdout);
        let well = finished.exit == Exit::Code(0) && said == "came\n";
        ensure!(well, "{managed:?}: {}: {said}{}", finished.exit, finished.stderr);
        let times = finished.stderr.matches("needs --managed=coherent").count();
        ensure!(times == told, "{managed:?}: told {times} times: {}", finished.stderr);
    }
    Ok(())
}

/// A program with data of its own where the first region with shadow pages would lie.
fn taken_addresses(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "taken")?;
    let guest = stage.guest("managed_edges");
    let finished = stage.place().run(&guest, &["taken".to_owned()])?.finish()?;
    let said = String::from_utf8_lossy(&finished.stdout);
    ensure!(finished.exit == Exit::Code(0), "{}: {said}{}", finished.exit, finished.stderr);
    // Where it belongs, and who is there.
    for word in ["managed memory is coherent", "0x200000000000+0x400000", "200000200000-200000210000 rw-p"] {
        ensure!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
    Ok(())
}

/// A command as on a kernel whose userfaultfd can be had, and tells too little.
fn on_old_kernel(stage: &Stage, command: &Command) -> Command {
    let mut old = Command::new(stage.guest("old_kernel"));
    old.arg(command.get_program()).args(command.get_args());
    old.current_dir(stage.place().cwd()).stdin(Stdio::null());
    old
}

fn old_kernel(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "old-kernel")?;
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let command = place.run_command(&stage.guest("managed"), &["10", "4"].map(str::to_owned));
    let began = Instant::now();
    let finished = Job::start(on_old_kernel(&stage, &command))?.finish()?;
    ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
    for word in ["managed memory is coherent", "Linux 5.19"] {
        ensure!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
    ensure!(!finished.stderr.contains("CAP_SYS_PTRACE"), "{}", finished.stderr);
    ensure!(began.elapsed() < Duration::from_secs(10), "somebody has waited in vain");
    Ok(())
}

/// What has shadow pages already is refused there before anything is started, and goes on elsewhere. (CRIU starts nothing there either, so what has none is
/// not tried.)
fn restarted_on_old_kernel(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "to-old-kernel")?;
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let job = first_line(place.run(&stage.guest("managed_edges"), &["chosen".to_owned()])?)?;
    let image = stage.checkpoint(After::Stop)?;
    job.finish()?;
    std::fs::write(place.cwd().join("go"), "")?;
    // What a restart itself fails with is told from what its program ends with.
    for (check, code) in [(true, 9), (false, 125)] {
        let mut command = place.restart_command(&image);
        command.args(check.then_some("--check"));
        let output = on_old_kernel(&stage, &command).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(code), "{check}: {}: {said}", output.status);
        for word in ["shadow pages", "Linux is 5.19"] {
            ensure!(said.contains(word), "{check}: {word:?} is not in: {said}");
        }
    }
    let finished = place.restart(&image)?.finish()?;
    ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
    Ok(())
}

/// A program that has made managed memory with shadow pages and may make no userfaultfd any more: a filter of its system calls is left aside for that one, and what
/// it has given up is told before anything is written.
fn confined_since(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "confined")?;
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let guest = stage.guest("managed_edges");
    for (how, is_refused) in [("filtered", false), ("killed", false), ("dropped", !all_may())] {
        let job = first_line(place.run(&guest, &[how.to_owned()])?)?;
        let image = match place.checkpoint(After::LeaveRunning)? {
            Checkpoint::Published(report) if !is_refused => Some(report.image),
            Checkpoint::Refused(why) if is_refused => {
                for word in ["process 2 of the job (managed_edges)", "CAP_SYS_PTRACE", "--managed=coherent"] {
                    ensure!(why.contains(word), "{word:?} is not in: {why}");
                }
                None
            }
            other => bail!("{how}: {other:?}"),
        };
        let job = match image {
            None => job,
            Some(image) => {
                place.kill_everything(job)?;
                place.restart(&image)?
            }
        };
        std::fs::write(place.cwd().join("go"), "")?;
        let finished = job.finish()?;
        ensure!(finished.exit == Exit::Code(0), "{how}: {}: {}", finished.exit, finished.stderr);
        std::fs::remove_file(place.cwd().join("go"))?;
    }
    Ok(())
}

fn no_shadows_permitted(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "unpermitted")?;
    let script = format!("exec {} \"$0\" 10 4", WITHOUT_RIGHT.join(" "));
    let guest = stage.guest("managed").display().to_string();
    let args = ["-c".to_owned(), script, guest];
    // What is coherent is not what was asked for with the second.
    for (managed, exit, said) in [
        (Managed::Shadow, Exit::Code(0), "managed memory is coherent"),
        (Managed::Exclusive, Exit::Code(3), "managed memory is refused"),
    ] {
        let place = Place { managed: Some(managed), ..stage.place() };
        let finished = place.run("/bin/sh".as_ref(), &args)?.finish()?;
        ensure!(finished.exit == exit, "{}: {}", finished.exit, finished.stderr);
        for word in [said, "CAP_SYS_PTRACE", "vm.unprivileged_userfaultfd"] {
            ensure!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
        }
    }
    Ok(())
}

/// A program that may have its own faults told only: the C library's functions get at managed memory, and raw system calls fail where they would have waited.
fn own_faults(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "own-faults")?;
    let (guest, args) = (stage.guest("managed_edges"), ["raw".to_owned()]);
    for (managed, how) in [(Managed::Shadow, "read"), (Managed::User, "EFAULT")] {
        let place = Place { managed: Some(managed), ..stage.place() };
        let finished = place.run(&guest, &args)?.finish()?;
        ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
        let said = String::from_utf8_lossy(&finished.stdout);
        ensure!(said == format!("raw {how}\nlibrary works\n"), "{managed:?}: {said}");
        let is_told = finished.stderr.contains("EFAULT") && finished.stderr.contains("--user-faults");
        ensure!(is_told == (managed == Managed::User), "{managed:?}: {}", finished.stderr);
    }
    // Without the library it is not to be had.
    let place = Place { managed: Some(Managed::User), ..stage.place() };
    let script = "unset LD_PRELOAD; exec \"$0\" \"$@\"";
    let bare = ["-c", script, &guest.display().to_string(), "raw"].map(str::to_owned);
    let finished = place.run("/bin/sh".as_ref(), &bare)?.finish()?;
    ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
    for word in ["managed memory is coherent", "LD_PRELOAD"] {
        ensure!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
    Ok(())
}

/// More regions than the server can have files open for those with shadow pages.
fn few_descriptors(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "descriptors")?;
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let (guest, args) = (stage.guest("managed_small"), ["4", "500"].map(str::to_owned));
    let whole = place.run(&guest, &args)?.finish()?;
    let command = place.run_command(&guest, &args);
    let mut few = Command::new("/bin/sh");
    few.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    few.current_dir(place.cwd()).stdin(Stdio::null());
    let finished = Job::start(few)?.finish()?;
    ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
    ensure!(finished.stdout == whole.stdout, "another output");
    let told =
        finished.stderr.contains("put into the host's memory") && finished.stderr.contains("ulimit -Hn");
    ensure!(told, "nobody is told where the rest is, and why: {}", finished.stderr);
    Ok(())
}

/// Threads go on writing pinned memory as soon as they may; each image has what they had written when they stood still.
fn written_behind_a_cut(device: Device) -> anyhow::Result<()> {
    written_all_the_time(device, "behind-cut", &["6000", "1"])
}

/// The same of managed memory, of which a part is captured before they stand still.
fn written_before_a_cut(device: Device) -> anyhow::Result<()> {
    written_all_the_time(device, "before-cut", &["1500", "1", "managed"])
}

fn written_all_the_time(device: Device, stage: &str, args: &[&str]) -> anyhow::Result<()> {
    let stage = Stage::on(device, stage)?;
    let place = stage.place();
    let (guest, args) =
        (stage.guest("pinned_writer"), args.iter().map(ToString::to_string).collect::<Vec<_>>());
    let job = first_line(place.run(&guest, &args)?)?;
    let images = (0..3).map(|_| stage.checkpoint(After::LeaveRunning)).collect::<Result<Vec<_>, _>>()?;
    let whole = job.finish()?;
    ensure!(whole.exit == Exit::Code(0), "{}: {}", whole.exit, whole.stderr);
    for image in &images {
        let restarted = place.restart(image)?.finish()?;
        ensure!(restarted.exit == Exit::Code(0), "{image}: {}: {}", restarted.exit, restarted.stderr);
        ensure!(whole.stdout.ends_with(&restarted.stdout), "{image}: another end");
    }
    Ok(())
}

/// That the guest which is to find it in every state of a trial does.
fn becomes_coherent(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "coherent")?;
    let mut command =
        stage.place().run_command(&stage.guest("managed_cycles"), &["300", "8"].map(str::to_owned));
    command.env("DORMOUSE_LOG", "warn,shadow=debug").stdin(Stdio::null());
    let finished = Job::start(command)?.finish()?;
    ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
    let said = "managed memory is coherent for a while";
    ensure!(finished.stderr.contains(said), "{said:?} is not in: {}", finished.stderr);
    Ok(())
}

/// A program that needs more than it may have is told so; one that needs less does not notice. (`managed_large` finds as much after a restart.)
fn device_memory_is_limited(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "limited")?;
    let guest = stage.guest("vector_loop");
    for (memory, exit) in [(1, Exit::Code(3)), (64, Exit::Code(0))] {
        let place = Place { device_memory: Some(memory), ..stage.place() };
        let finished = place.run(&guest, &["3", "1"].map(str::to_owned))?.finish()?;
        ensure!(finished.exit == exit, "{memory} MiB: {}: {}", finished.exit, finished.stderr);
        let told = finished.stderr.contains("out of memory");
        ensure!(told == (memory == 1), "{memory} MiB: {}", finished.stderr);
    }
    Ok(())
}

/// Threads at ten kinds of calls, two of which wait for what never comes.
fn a_killed_server_fails_every_thread(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "lost")?;
    let at = |name: &str| stage.place().cwd().join(name);
    let job = stage.started("server_lost", &[])?;
    let image = stage.checkpoint(After::LeaveRunning)?;
    std::fs::write(at("block"), "")?;
    wait_for_text(&job, "blocked")?;
    let (_, killed) = kill(&stage, &job, 1)?;
    let finished = job.finish()?;
    let said = String::from_utf8_lossy(&finished.stdout).into_owned();
    // The guest's own code for it.
    ensure!(finished.exit == Exit::Code(6), "{}: {said}{}", finished.exit, finished.stderr);
    let killed = killed.duration_since(UNIX_EPOCH)?;
    let mut threads = 0;
    for line in said.lines() {
        let Some((thread, time)) = line.strip_suffix(" ms").and_then(|line| line.rsplit_once(" at ")) else {
            continue;
        };
        threads += 1;
        ensure!(thread.ends_with(": cudaErrorDevicesUnavailable"), "{thread}");
        let after = Duration::from_millis(time.parse()?).checked_sub(killed).unwrap_or_default();
        ensure!(after < SOON, "{thread}: {after:?} after the server was killed");
    }
    ensure!(threads == 10, "{threads} threads: {said}");
    ensure!(said.contains("10 of 10 failed, main: cudaErrorDevicesUnavailable"), "{said}");
    for word in ["GPU server of session 1", "SIGKILL", "CUDA_ERROR_DEVICE_UNAVAILABLE (46)", &image] {
        ensure!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }

    // What was offered works.
    std::fs::remove_file(at("block"))?;
    std::fs::write(at("end"), "")?;
    let command = offered(&finished.stderr)?;
    ensure!(command.starts_with("restart --store ") && command.ends_with(stage.name()), "{command}");
    let mut restart = Command::new("sh");
    restart.current_dir(stage.place().cwd()).stdin(Stdio::null());
    restart.arg("-c").arg(format!("exec \"$0\" {command} --device {}", device.flag()));
    let restarted = Job::start({
        restart.arg(stage.place().dormouse("").get_program());
        restart
    })?;
    let restarted = restarted.finish()?;
    let said = String::from_utf8_lossy(&restarted.stdout);
    ensure!(restarted.exit == Exit::Code(0), "{}: {said}{}", restarted.exit, restarted.stderr);
    ensure!(said.ends_with("0 of 8 failed, main: cudaSuccess\n"), "{said}");
    Ok(())
}

/// Two processes, one of which loses its server; there is no image to offer.
fn a_killed_server_fails_no_other_process(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "neighbour")?;
    let guest = stage.guest("vector_loop");
    let steps = if device == Device::Gpu { "8000 400" } else { "300 40" };
    let one = format!("( {} {steps}; echo \"left $?\" )", guest.display());
    let script = format!("{one} & sleep 0.2; {one} & wait");
    let job = first_line(Job::start(stage.shell(&script))?)?;
    begun(&stage, &job, 2)?;
    kill(&stage, &job, 1)?;
    let finished = job.finish()?;
    let said = String::from_utf8_lossy(&finished.stdout);
    ensure!(finished.exit == Exit::Code(0), "{}: {said}{}", finished.exit, finished.stderr);
    for left in ["left 3\n", "left 0\n"] {
        ensure!(said.matches(left).count() == 1, "{left:?} in: {said}{}", finished.stderr);
    }
    let advice = format!("start it anew, and have 'dormouse checkpoint {}'", stage.name());
    ensure!(finished.stderr.contains(&advice), "{advice:?} is not in: {}", finished.stderr);
    Ok(())
}

/// A checkpoint waits for another process's kernel, with all gates closed.
fn while_others_keep_the_gate(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "kept")?;
    let (lost, keeps) = (stage.guest("vector_loop"), stage.guest("spin"));
    let other = stage.place().cwd().join("other");
    // The first goes on for ever, however fast the device; the other begins when the first has its session.
    let script = format!(
        "( {} {} 40; echo \"left $?\" ) & until [ -e {} ]; do sleep 0.05; done; {} 12000; wait",
        lost.display(),
        i32::MAX,
        other.display(),
        keeps.display()
    );
    let job = Job::start(stage.shell(&script))?;
    begun(&stage, &job, 1)?;
    std::fs::write(&other, "")?;
    wait_for_text(&job, "spinning")?;
    let mut command = stage.place().checkpoint_command(After::LeaveRunning);
    command.args(["--gate-deadline", "6", "--retries", "0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let checkpoint = command.spawn().context("cannot run dormouse checkpoint")?;
    // Time to close the gates, on a busy machine too, and not as much as is waited for the kernel.
    std::thread::sleep(Duration::from_millis(2500));
    let (killed, _) = kill(&stage, &job, 1)?;
    wait_for_text(&job, "left 3")?;
    // The guest's end and a poll of its output included.
    let after = killed.elapsed();
    ensure!(after < 2 * SOON, "{after:?} after the server was killed");
    let output = checkpoint.wait_with_output().context("cannot wait for dormouse checkpoint")?;
    let failure = Failure::of(&output)?;
    ensure!(failure.code == Some(5) && failure.message.contains("spin"), "{}", failure.message);
    ensure!(stage.images()?.is_empty(), "nothing is published");
    let finished = job.finish()?;
    ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
    Ok(())
}

/// A program that pins all that it gets, is checkpointed, and goes on.
fn shared_memory_is_used_up(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "full")?;
    let place = stage.place();
    let mut command = place.dormouse("run");
    command.args(["--shared-memory", "256M", "--name", stage.name(), "--device", device.flag()]);
    command.arg("--store").arg(place.store()).arg("--").arg(stage.guest("pinned_full"));
    let job = first_line(Job::start(command)?)?;
    let image = stage.checkpoint(After::Stop)?;
    let stopped = job.finish()?;
    ensure!(stopped.stdout == b"full\n", "{}: {}", stopped.exit, stopped.stderr);
    std::fs::write(place.cwd().join("go"), "")?;
    let finished = place.restart(&image)?.finish()?;
    let said = String::from_utf8_lossy(&finished.stdout);
    ensure!(finished.exit == Exit::Code(0), "{}: {said}{}", finished.exit, finished.stderr);
    ensure!(said.starts_with("done sum"), "{said}");
    Ok(())
}

/// What a control group can limit, and under which names either version says it.
struct Controller {
    name: &'static str,
    /// What is in use, and the most that may be: version 1, version 2.
    files: [[&'static str; 2]; 2],
    /// What stands for no limit.
    unlimited: [&'static str; 2],
    /// What of it makes room when asked to, in `memory.stat`.
    cache: &'static [&'static str],
}

const PROCESSES: Controller =
    Controller { name: "pids", files: [["pids.current", "pids.max"]; 2], unlimited: ["max"; 2], cache: &[] };
const MEMORY: Controller = Controller {
    name: "memory",
    files: [["memory.usage_in_bytes", "memory.limit_in_bytes"], ["memory.current", "memory.max"]],
    unlimited: ["-1", "max"],
    cache: &["inactive_file ", "active_file "],
};

/// A control group that bounds what those in it have together, of whichever version the machine has.
struct Limited {
    group: PathBuf,
    current: &'static str,
    max: &'static str,
    unlimited: &'static str,
    cache: &'static [&'static str],
}

impl Limited {
    fn new(controller: &Controller, name: &str) -> anyhow::Result<Self> {
        let mut root = Path::new("/sys/fs/cgroup").join(controller.name);
        let second = usize::from(!root.is_dir());
        if second == 1 {
            root.pop();
            std::fs::write(root.join("cgroup.subtree_control"), format!("+{}", controller.name))
                .with_context(|| format!("no limits on {}", controller.name))?;
        }
        let group = root.join(format!("dormouse-{name}-{}", std::process::id()));
        std::fs::create_dir(&group).with_context(|| format!("cannot make {}", group.display()))?;
        let [current, max] = controller.files[second];
        let this =
            Self { group, current, max, unlimited: controller.unlimited[second], cache: controller.cache };
        // What could be swapped out would be room.
        let swap = this.group.join("memory.swap.max");
        if swap.exists() {
            std::fs::write(&swap, "0").context("cannot forbid swapping")?;
        }
        this.leave(None)?;
        Ok(this)
    }

    /// Lets there be so much more than there is, or as much as one likes.
    fn leave(&self, more: Option<u64>) -> anyhow::Result<()> {
        let read = |name: &str| std::fs::read_to_string(self.group.join(name));
        let mut tries = 0;
        loop {
            let now: u64 = read(self.current)?.trim().parse()?;
            let stat = if self.cache.is_empty() { String::new() } else { read("memory.stat")? };
            let fields = stat.lines().filter_map(|line| {
                self.cache.iter().find_map(|name| line.strip_prefix(name)?.parse::<u64>().ok())
            });
            let used = now.saturating_sub(fields.sum());
            let most = more.map_or_else(|| self.unlimited.to_owned(), |more| (used + more).to_string());
            match std::fs::write(self.group.join(self.max), most) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy && tries < 50 => tries += 1,
                other => return other.context("cannot set a limit"),
            }
            // The kernel has not made room yet.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many in it run this program.
    fn running(&self, program: &str) -> anyhow::Result<usize> {
        let pids = std::fs::read_to_string(self.group.join("cgroup.procs"))?;
        let runs = |pid: &&str| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == program)
        };
        Ok(pids.lines().filter(runs).count())
    }

    /// A command, in the group from its beginning.
    fn hold(&self, command: &Command) -> Command {
        let mut held = Command::new("sh");
        let join = format!("echo $$ > {}; exec \"$@\"", self.group.join("cgroup.procs").display());
        held.args(["-c", &join, "sh"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            value.map(|value| held.env(name, value));
        }
        if let Some(dir) = command.get_current_dir() {
            held.current_dir(dir);
        }
        held
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Those who were in it have ended, if not all in this moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.group).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A job that has been at a limit is checkpointed without one, and neither it nor a restart of the image prints anything else for it.
fn undisturbed(stage: &Stage, group: &Limited, job: Job, whole: &[u8]) -> anyhow::Result<()> {
    group.leave(None)?;
    let image = stage.checkpoint(After::LeaveRunning)?;
    stage.let_end()?;
    let finished = job.finish()?;
    ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
    ensure!(finished.stdout == whole, "another output");
    let restarted = stage.place().restart(&image)?.finish()?;
    ensure!(restarted.exit == Exit::Code(0) && whole.ends_with(&restarted.stdout), "{}", restarted.stderr);
    Ok(())
}

/// Wherever a checkpoint finds that there may be no more threads or processes, it fails with that as its reason, and the program goes on.
fn a_limit_on_processes(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "limited")?;
    let group = Limited::new(&PROCESSES, "limited")?;
    let args = ["1000"];
    let whole = stage.undisturbed(&args)?.stdout;
    let job = first_line(Job::start(group.hold(&stage.held_command(PACED, &args)))?)?;
    let mut refused = 0;
    for more in [0, 1, 2, 3, 4, 6, 8, 11, 14] {
        group.leave(Some(more))?;
        let output = stage.place().checkpoint_command(After::LeaveRunning).output()?;
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            refused += 1;
            // A device has no words of its own for want of a thread; the log has.
            let is_named = ["Resource temporarily unavailable", "CUDA_ERROR_OPERATING_SYSTEM"]
                .iter()
                .any(|words| said.contains(words));
            ensure!(is_named, "{more} more: {said}");
        }
    }
    ensure!(refused > 3, "{refused} were refused");
    undisturbed(&stage, &group, job, &whole)
}

/// Takes a checkpoint in whose middle the group's limit comes down to what those who write may take, and some; whether it failed for that.
fn without_room_for_copies(stage: &Stage, group: &Limited) -> anyhow::Result<bool> {
    const GUEST: &str = "private_memory";
    group.leave(None)?;
    let processes = group.running(GUEST)?;
    let mut command = stage.place().checkpoint_command(After::LeaveRunning);
    command.args(["--memory-limit", "64M"]);
    let mut checkpoint = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    while group.running(GUEST)? == processes && checkpoint.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    group.leave(Some(128 << 20))?;
    let output = checkpoint.wait_with_output()?;
    if output.status.success() {
        return Ok(false);
    }
    let failure = Failure::of(&output)?;
    // What its server has copied makes room, too, if it has copied something to the host; and on a busy machine the kernel is sooner now and then.
    let is_of_others = ["the checkpoint is given up", "was memory short, and it was killed?"]
        .iter()
        .any(|words| failure.message.contains(words));
    let is_named = is_of_others || failure.message.contains("have made room");
    ensure!(failure.code == Some(1) && is_named, "{}", failure.message);
    Ok(!is_of_others)
}

/// A program that writes all of its memory while its copies are read is charged for it twice. Where that is more than it may have no copies
/// are made, and where it may have next to nothing there is no checkpoint; where the limit comes down when copies are there, they go, and
/// the checkpoint fails. The program goes on.
fn a_limit_on_memory(device: Device) -> anyhow::Result<()> {
    const MIB: u64 = 1 << 20;
    let stage = Stage::on(device, "charged")?;
    let group = Limited::new(&MEMORY, "charged")?;
    let (guest, args) = (stage.guest("private_memory"), ["2000", "300"].map(str::to_owned));
    let whole = stage.place().run(&guest, &args)?.finish()?.stdout;
    let job = first_line(Job::start(group.hold(&stage.place().run_command(&guest, &args)))?)?;

    group.leave(Some(24 * MIB))?;
    let refused = stage.refused_checkpoint(&[])?;
    ensure!(refused.message.contains("MiB of memory are left"), "{}", refused.message);
    for more in [150, 400, 700] {
        group.leave(Some(more * MIB))?;
        let output = stage.place().checkpoint_command(After::LeaveRunning).output()?;
        ensure!(output.status.success(), "{more} MiB more: {}", Failure::of(&output)?.message);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        ensure!(report["private_forked"] == 0, "{more} MiB more: {report}");
    }
    // On a busy machine all may be read, or have been written, before the limit is there.
    let killed =
        (0..5).map(|_| without_room_for_copies(&stage, &group)).find(|killed| !matches!(killed, Ok(false)));
    ensure!(killed.transpose()?.is_some(), "no copies have made room");

    undisturbed(&stage, &group, job, &whole)
}

/// Stops a job into a store in memory, of which there are only so many more bytes when the processes' own memory is written and device memory is not; whether
/// that was before all of it was there.
fn without_room_for_a_store(
    place: &Place<'_>,
    (group, more): (&Limited, u64),
    memory: &Mount,
) -> anyhow::Result<bool> {
    let mut stop = place.checkpoint_command(After::Stop);
    stop.args(["--memory-limit", "64M"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut stop = stop.spawn().context("cannot run dormouse checkpoint")?;
    while memory.used()? < 64 << 20 && stop.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    group.leave(Some(more))?;
    let output = stop.wait_with_output()?;
    if output.status.success() {
        return Ok(false);
    }
    let message = Failure::of(&output)?.message;
    let words = ["the image is given up", "a store in memory"];
    ensure!(words.iter().all(|word| message.contains(word)), "{message}");
    Ok(true)
}

/// A store in memory takes no more of it than there is: the image is given up before the kernel kills somebody for more, what was written of it goes, and the program goes on.
fn a_store_in_memory(device: Device) -> anyhow::Result<()> {
    let stage = Stage::on(device, "stored")?;
    let (place, group) = (stage.place(), Limited::new(&MEMORY, "stored")?);
    let folder = place.cwd().join("memory");
    let (store, memory) = (folder.join("store"), Mount::tmpfs(folder, "mode=0700")?);
    // Random words that take a second or so to write, and small products until it is told to stop. What is left is not gone before anybody looks: a GPU's
    // memory is written at 10 GB/s.
    let (gib, more) = if device == Device::Gpu { ("16", 2 << 30) } else { ("0.5", 100 << 20) };
    for _ in 0..5 {
        group.leave(None)?;
        let mut run = place.dormouse("run");
        run.args(["--name", stage.name(), "--device", device.flag(), "--store"]).arg(&store).arg("--");
        run.arg(Kit::locate()?.bench("changes")).arg(gib).arg(place.cwd()).args(["random", "64"]);
        let job = first_line(Job::start(group.hold(&run))?)?;
        if !without_room_for_a_store(&place, (&group, more), &memory)? {
            // All was written before the limit was there.
            job.finish()?;
            std::fs::remove_dir_all(&store)?;
            continue;
        }
        let left = memory.used()?;
        ensure!(left < 32 << 20, "{left} bytes are left in the store");

        group.leave(None)?;
        let output = place.checkpoint_command(After::LeaveRunning).output()?;
        ensure!(output.status.success(), "{}", Failure::of(&output)?.message);
        std::fs::write(place.cwd().join("stop"), "")?;
        let finished = job.finish()?;
        ensure!(finished.exit == Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
        return Ok(());
    }
    bail!("five images were written before memory was short")
}
