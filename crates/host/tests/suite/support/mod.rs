//! Drives the `supervise` example, which is the least that a supervisor must do, as its own process: what tests kill must not be
//! the test.
#![allow(clippy::unwrap_used, dead_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A folder for one test's job: control sockets, images, programs.
pub struct Bench {
    pub folder: TempDir,
    images: std::cell::Cell<u32>,
}

impl Bench {
    pub fn new() -> Self {
        let root = fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m));
        assert_eq!(root.unwrap(), 0, "these tests make namespaces and need root");
        Self { folder: tempfile::tempdir().unwrap(), images: 0.into() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A name for an image that does not exist yet.
    pub fn image(&self) -> PathBuf {
        self.images.set(self.images.get() + 1);
        let image = self.path(&format!("image-{}", self.images.get()));
        fs::create_dir(&image).unwrap();
        image
    }

    /// Compiles a C program.
    pub fn compile(&self, name: &str, source: &str) -> PathBuf {
        let (program, text) = (self.path(name), self.path(&format!("{name}.c")));
        fs::write(&text, source).unwrap();
        let output =
            Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(&text).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// `supervise run`, not started yet.
    pub fn command<S: AsRef<OsStr>>(&self, argv: &[S]) -> Command {
        let mut command = self.supervise("run");
        command.arg("--").args(argv);
        command
    }

    /// `supervise restart`, not started yet.
    pub fn restart_command(&self, image: &Path) -> Command {
        let mut command = self.supervise("restart");
        command.arg(image);
        command
    }

    fn supervise(&self, mode: &str) -> Command {
        let program = example("supervise");
        let mut command = Command::new(program);
        let control = self.control();
        let _ = fs::remove_file(&control);
        command.arg(mode).arg(control);
        command.env("DORMOUSE_INIT", env!("CARGO_BIN_EXE_dormouse-init"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command
    }

    pub fn control(&self) -> PathBuf {
        self.path("control")
    }

    pub fn run<S: AsRef<OsStr>>(&self, argv: &[S]) -> Supervisor {
        Supervisor::start(self.command(argv), self.control())
    }

    /// The command line of a program that ends when [`Bench::let_end`] has been called.
    pub fn to_the_end(&self, program: &Path) -> [String; 2] {
        [program.display().to_string(), self.path("end").display().to_string()]
    }

    pub fn run_to_the_end(&self, program: &Path) -> Supervisor {
        self.run(&self.to_the_end(program))
    }

    pub fn let_end(&self) {
        File::create(self.path("end")).unwrap();
    }

    pub fn restart(&self, image: &Path) -> Supervisor {
        Supervisor::start(self.restart_command(image), self.control())
    }
}

/// Cargo builds examples before tests, beside them.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(2).unwrap();
    let program = target.join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is not built: run the tests with cargo, which builds it",
        program.display()
    );
    program
}

/// A running supervisor. Killed when dropped.
pub struct Supervisor {
    pub child: Child,
    control: PathBuf,
    lines: Receiver<String>,
    /// All of its standard output, as far as it was read.
    pub output: String,
}

impl Supervisor {
    pub fn start(mut command: Command, control: PathBuf) -> Self {
        Self::start_with(command.spawn().unwrap(), control)
    }

    /// One that has been started, its output read here if it has not been taken.
    pub fn start_with(mut child: Child, control: PathBuf) -> Self {
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stdout);
                let mut line = Vec::new();
                while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                    if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
        Self { child, control, lines, output: String::new() }
    }

    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// Waits for a line of output that satisfies `wanted`.
    pub fn wait_for(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line =
                self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{e}; so far: {}", self.output));
            self.output.push_str(&line);
            if wanted(line.trim_end()) {
                return line;
            }
        }
    }

    /// Waits for the line `number`, of a program that counts.
    pub fn wait_for_number(&mut self, number: u32) {
        self.wait_for(|line| line.parse::<u32>().is_ok_and(|n| n >= number));
    }

    /// Sends a command to the control socket and returns the answer.
    pub fn ask(&self, command: &str) -> String {
        let mut reply = String::new();
        self.send(command).read_to_string(&mut reply).unwrap();
        reply.trim().to_owned()
    }

    /// Dumps into `image` and leaves the job stopped.
    pub fn hold(&self, image: &Path) {
        let mut reply = String::new();
        BufReader::new(self.send(&format!("hold {}", image.display()))).read_line(&mut reply).unwrap();
        assert_eq!(reply.trim(), "held");
    }

    pub fn send(&self, command: &str) -> UnixStream {
        let started = Instant::now();
        let mut connection = loop {
            match UnixStream::connect(&self.control) {
                Ok(connection) => break connection,
                Err(e) if started.elapsed() > PATIENCE => panic!("{e}"),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        writeln!(connection, "{command}").unwrap();
        connection
    }

    /// Dumps into `image`; answers how many bytes of output had been delivered.
    pub fn dump(&self, image: &Path) -> usize {
        self.cut("dump", image)
    }

    /// Dumps and ends the job.
    pub fn stop(&self, image: &Path) -> usize {
        self.cut("stop", image)
    }

    fn cut(&self, how: &str, image: &Path) -> usize {
        let reply = self.ask(&format!("{how} {}", image.display()));
        let mut words = reply.split(' ');
        assert_eq!(words.next(), Some("ok"), "{reply}");
        words.next().unwrap().parse().unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: signals a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Outer pids of the job's processes, init first.
    pub fn job_pids(&self) -> Vec<i32> {
        let init: Vec<i32> = children_of(self.child.id() as i32)
            .into_iter()
            .filter(|pid| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "init")
            })
            .collect();
        let [init] = init[..] else { return Vec::new() };
        let namespace = fs::read_link(format!("/proc/{init}/ns/pid")).unwrap();
        let all = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        all.filter(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|ns| ns == namespace))
            .collect()
    }

    /// Kills the supervisor and every process of its job, none of which gets to do anything about it.
    pub fn kill_everything(mut self) -> String {
        let job = self.job_pids();
        self.signal(libc::SIGKILL);
        for pid in job {
            // SAFETY: a process of the job, or nobody any more.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        self.child.wait().unwrap();
        self.drain();
        std::mem::take(&mut self.output)
    }

    /// Children that have ended and that it has not waited for.
    pub fn zombies(&self) -> Vec<i32> {
        children_of(self.child.id() as i32).into_iter().filter(|&pid| !is_alive(pid)).collect()
    }

    /// Waits for the end; answers the status and all output.
    pub fn finish(mut self) -> (ExitStatus, String) {
        let status = self.wait();
        self.drain();
        (status, std::mem::take(&mut self.output))
    }

    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "it does not end; so far: {}", self.output);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn drain(&mut self) {
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.output.push_str(&line);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn children_of(pid: i32) -> Vec<i32> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().filter_map(|p| p.parse::<i32>().ok()));
    }
    children
}

/// Whether a process lives (a zombie does not).
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "{what} does not come true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A shell-like view of an exit status: the code, or 128 and the signal.
pub fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// Counts from 0, a line each, `pause` milliseconds apart; prints `last` and ends with 7 when the file its argument names exists.
pub fn counter(pause: u32, last: u32) -> String {
    format!(
        "#include <stdio.h>\n#include <unistd.h>\n\
         int main(int n, char **path) {{ for (int i = 0; i <= {last}; i++) {{\n\
         while (i == {last} && access(path[n - 1], F_OK)) usleep(1000);\n\
         printf(\"%d\\n\", i); fflush(stdout); usleep({pause} * 1000); }} return 7; }}\n"
    )
}

/// What [`counter`] prints.
pub fn counted(last: u32) -> String {
    (0..=last).map(|i| format!("{i}\n")).collect()
}

/// Opens a new pseudo-terminal: master, and the slave for a child.
pub fn terminal() -> (File, File) {
    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let slave = rustix::fs::open(&*name, flags, rustix::fs::Mode::empty()).unwrap();
    (master.into(), slave.into())
}
