//! The least that a supervisor must do: runs a job, dumps it when told to, brings it back. Tests drive jobs through it.
//!
//! `supervise run CONTROL -- PROGRAM ARGS…` and `supervise restart CONTROL IMAGE`, where CONTROL is a path for a UNIX socket that
//! takes one command per connection: `dump IMAGE`, `stop IMAGE`, `hold IMAGE` (and never let go), `tasks`.
//!
//! `SUPERVISE_LIBRARY` names a library that is put into the job's tmpfs, for `SUPERVISE_OVER`, a file to mount it over, or, without
//! that, for the job's `ld.so.cache` to name. `SUPERVISE_HIDE` names a file to hide, `SUPERVISE_BLANK` a node of
//! `/dev` that leads to nothing. `SUPERVISE_SILENCE` is how many milliseconds
//! CRIU may get nowhere, `SUPERVISE_ABANDON` has a restored job not run, `SUPERVISE_USERFAULT` has it run behind a userfaultfd of every process that runs, of which there are so many, `SUPERVISE_CAPTURE` how many a dump lasts besides, `SUPERVISE_READY` for how many CRIU is ready before it dumps.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use host::signals::Forwarder;
use host::{Criu, DumpOptions, Job, JobSpec, RestoreSpec, Restored, SpawnError, Stdio, Tmpfs, copy_tree};

type Outcome<T> = Result<T, Box<dyn Error>>;

const TMPFS_SIZE: u64 = 1 << 30;

fn main() {
    if let Err(error) = supervise() {
        eprintln!("supervise: {error}");
        std::process::exit(error.downcast_ref::<SpawnError>().map_or(125, |e| e.shell_code().into()));
    }
}

fn supervise() -> Outcome<()> {
    let forwarder = Forwarder::block()?;
    let mut args = std::env::args_os().skip(1);
    let mode = args.next().ok_or("run or restart?")?;
    let control = args.next().ok_or("no control socket named")?;
    let job = match mode.to_str() {
        Some("run") => {
            let argv = args.skip_while(|a| a == "--").collect();
            spawn(JobSpec::inherit(argv)?)?
        }
        _ => restore(Path::new(&args.next().ok_or("no image named")?))?,
    };
    let job = Arc::new(job);
    forwarder.forward_to(&job)?;
    let listener = UnixListener::bind(&control)?;
    let served = Arc::clone(&job);
    let answering = Arc::new(RwLock::new(()));
    let busy = Arc::clone(&answering);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let (job, busy) = (Arc::clone(&served), Arc::clone(&busy));
            std::thread::spawn(move || {
                let _answering = busy.read();
                let reply = serve(&job, &connection).unwrap_or_else(|e| format!("error: {e}"));
                let _ = writeln!(&connection, "{reply}");
            });
        }
    });
    let ending = job.wait()?;
    let _answered = answering.write().unwrap_or_else(PoisonError::into_inner);
    let _ = fs::remove_file(control);
    ending.exit_like_it()
}

fn spawn(mut spec: JobSpec) -> Outcome<Job> {
    let tmpfs = Tmpfs::create(TMPFS_SIZE)?;
    if let Some(library) = std::env::var_os("SUPERVISE_LIBRARY").map(PathBuf::from) {
        let name = library.file_name().ok_or("a library has a name")?;
        fs::create_dir(tmpfs.path().join("lib"))?;
        fs::copy(&library, tmpfs.path().join("lib").join(name))?;
        let inside = Path::new(host::JOB_DIR).join("lib");
        match std::env::var_os("SUPERVISE_OVER") {
            Some(over) => spec.binds.push((inside.join(name), over.into())),
            None => spec.library_dir = Some(inside),
        }
    }
    spec.hide.extend(std::env::var_os("SUPERVISE_HIDE").map(PathBuf::from));
    spec.blank.extend(std::env::var_os("SUPERVISE_BLANK").map(PathBuf::from));
    Ok(Job::spawn(spec, tmpfs)?)
}

fn serve(job: &Job, connection: &UnixStream) -> Outcome<String> {
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line)?;
    match line.trim().split_once(' ') {
        Some((how @ ("dump" | "stop" | "hold"), image)) => dump(job, Path::new(image), how, connection),
        _ => Ok(job.tasks().iter().map(|t| format!("{}:{}:{} ", t.inner, t.comm, t.threads.len())).collect()),
    }
}

fn dump(job: &Job, image: &Path, how: &str, mut connection: &UnixStream) -> Outcome<String> {
    let images = image.join("criu");
    fs::create_dir_all(&images)?;
    fs::create_dir(image.join("tmpfs"))?;
    let ready = job.ready_dump(&criu()?, &images, &DumpOptions::default(), host::MemoryWay::Written);
    std::thread::sleep(milliseconds("SUPERVISE_READY")?.unwrap_or_default());
    let mut frozen = ready.dump()?;
    let moving: Vec<_> = job.tasks().into_iter().filter(|t| !t.is_stopped()).collect();
    if !moving.is_empty() {
        return Err(format!("not stopped: {moving:?}").into());
    }
    fs::write(image.join("record.json"), serde_json::to_vec(frozen.record())?)?;
    copy_tree(&job.tmpfs().path(), &image.join("tmpfs"))?;
    let delivered = frozen.record().delivered(1).unwrap_or(0);
    let warnings = frozen.warnings().join("; ");
    std::thread::sleep(milliseconds("SUPERVISE_CAPTURE")?.unwrap_or_default());
    let on_disk = frozen.take_on_disk();
    let report = match how {
        "hold" => {
            writeln!(connection, "held")?;
            loop {
                std::thread::park();
            }
        }
        "stop" => frozen.kill()?.0,
        _ => frozen.resume()?.0,
    };
    on_disk.sync()?;
    Ok(format!("ok {delivered} {} {} {warnings}", report.stopped.as_micros(), report.bytes))
}

fn restore(image: &Path) -> Outcome<Job> {
    let record = serde_json::from_slice(&fs::read(image.join("record.json"))?)?;
    let tmpfs = Tmpfs::create(TMPFS_SIZE)?;
    copy_tree(&image.join("tmpfs"), &tmpfs.path())?;
    let images = &image.join("criu");
    let (stdio, hide, blank) = (Stdio::take()?, Vec::new(), Vec::new());
    let spec = RestoreSpec { images, record: &record, tmpfs, stdio, hide, blank, log_level: 2 };
    let restored = Restored::restore(&criu()?, spec)?;
    if std::env::var_os("SUPERVISE_ABANDON").is_some() {
        drop(restored);
        return Err("it is not to run".into());
    }
    let Ok(expected) = std::env::var("SUPERVISE_USERFAULT") else { return Ok(restored.resume()?) };
    let started = restored.job().tasks().into_iter().filter(|task| task.inner.0 > 1);
    let held: Vec<_> = started.map(|task| task.outer).collect();
    let mut given = 0;
    let job = restored.resume_behind(&held, |_, _| {
        given += 1;
        Ok(())
    })?;
    let as_expected = expected.parse() == Ok(given);
    as_expected.then_some(job).ok_or_else(|| format!("{given} of {} were held", held.len()).into())
}

fn criu() -> Outcome<Criu> {
    let criu = Criu::find()?;
    Ok(match milliseconds("SUPERVISE_SILENCE")? {
        Some(silence) => criu.with_silence(silence),
        None => criu,
    })
}

fn milliseconds(name: &str) -> Outcome<Option<Duration>> {
    let value = std::env::var(name).ok().map(|ms| ms.parse()).transpose()?;
    Ok(value.map(Duration::from_millis))
}
