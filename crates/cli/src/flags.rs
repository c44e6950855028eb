//! Every flag, once: help, man pages and completions are made from these types.

mod images;
mod marking;
mod moving;
mod planning;
mod remote;
mod values;

pub use images::{Cat, Copy, Diff, Image, Ls, Prune, Rm, Verify};
pub use marking::{Nvcc, NvccStep};
pub use moving::{Arrival, Arrivals, Destination, Migrate, Receive};
pub use planning::{Least, Plan, PlanModel, Profile, ProfileCommand, ProfileShow, Record, Regularly};
pub use remote::{FarEnd, KeysAuthorize, KeysCommand, KeysTrust, MachineKeys, Serve};
pub use values::{Turn, job_name};
use values::{device_size, location, managed, seconds, size, turn, writing_memory};

use clap::builder::PossibleValue;
use clap::{Args, Parser, Subcommand, ValueEnum};
use server::memory::Managed;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use store::{Location, Recipient};

/// Put a running CUDA program to sleep; wake it later, elsewhere, on another GPU.
#[derive(Parser, Debug)]
#[command(
    name = "dormouse",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Start with:  dormouse run --name demo -- ./program\n  then:      dormouse checkpoint demo --stop\n  and later: dormouse restart demo"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program so that it can be checkpointed
    Run(Run),
    /// List running jobs
    Ps(Ps),
    /// Write a running job to the store
    Checkpoint(Checkpoint),
    /// Have a running job stand still and give up its GPU until it is resumed
    Suspend(Suspend),
    /// Have a suspended job go on
    Resume(Resume),
    /// Continue a job from an image
    Restart(Restart),
    /// Move a running job to another machine, or to another device of this one
    Migrate(Migrate),
    /// List the images of a store
    Ls(Ls),
    /// Show what an image holds
    Inspect(Image),
    /// Say what differs between two images
    Diff(Diff),
    /// Write an object of an image, such as device memory or a file, to standard output
    Cat(Cat),
    /// Read an image whole and check every byte of it
    Verify(Verify),
    /// Copy images from one store to another: what the other lacks
    Copy(Copy),
    /// Remove images, and free what no other needs
    Rm(Rm),
    /// Remove old images, and free what no other needs
    Prune(Prune),
    /// Say what works on this machine, and what to do where something does not
    Doctor(Doctor),
    /// List the machine's devices
    Devices(Devices),
    /// Choose where a program is checkpointed, by a profile of it
    Plan(Box<Plan>),
    /// Look at profiles
    Profile(Profile),
    /// Let programs on other machines use this one's devices
    Serve(Serve),
    /// Take over jobs that move here from other machines
    Receive(Receive),
    /// Make and exchange the keys by which machines know each other
    Keys(MachineKeys),
    /// Compile CUDA C++ whose kernels are marked with `#pragma CPT`, as nvcc does
    Nvcc(Nvcc),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder
    Man {
        /// The folder
        folder: PathBuf,
    },
    /// The GPU server of one application process; started by the supervisor
    #[command(hide = true)]
    Server(Server),
    /// A session of `dormouse serve`
    #[command(hide = true)]
    FarEnd(FarEnd),
    /// A session of `dormouse receive`
    #[command(hide = true)]
    Arrival(Arrival),
    /// A phase of nvcc, which `dormouse nvcc` has it run so
    #[command(hide = true)]
    NvccStep(NvccStep),
}

/// `dormouse run`
#[derive(Args, Debug)]
#[command(
    after_help = "The program runs as without Dormouse: same output, same exit code, same signals. If Dormouse itself fails, the exit code is 125; 126 when the program cannot be executed, 127 when it is not found.\n\nAn encrypted store, which only a key opens:\n  age-keygen -o key.txt             # prints the recipient, age1…; keep the file safe, nothing opens the store without it\n  dormouse run --store /mnt/images --key key.txt --encrypt age1… -- ./train\n  dormouse restart --store /mnt/images --key key.txt train"
)]
pub struct Run {
    /// Name of the job [default: the program's name and a number]
    #[arg(short, long, value_parser = job_name)]
    pub name: Option<String>,
    #[command(flatten)]
    pub machine: Machine,
    #[command(flatten)]
    pub store: Store,
    /// Encrypt the store for whoever has this one's key (age1…, as `age-keygen -y FILE` prints it); may be given several times. It is so from the
    /// first checkpoint on, which makes it; of a store that is there, insist on it
    #[arg(long, value_name = "RECIPIENT", requires = "key")]
    pub encrypt: Vec<Recipient>,
    #[command(flatten)]
    pub trace: Trace,
    #[command(flatten)]
    pub regularly: Regularly,
    #[command(flatten)]
    pub record: Record,
    #[command(flatten)]
    pub on_failure: OnFailure,
    /// Have managed memory on the device also where the program lacks the right to a full userfaultfd (CAP_SYS_PTRACE, or
    /// vm.unprivileged_userfaultfd = 1), by the faults of its own code alone: reading and writing with the C library's functions (`read`, `write`, `recv`,
    /// `send`, `fread`, `fwrite` and their like) works, by way of a library that is preloaded; other system calls that are given managed memory may fail with EFAULT (docs/managed-memory.md)
    #[arg(long)]
    pub user_faults: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// What a job runs on.
#[derive(Args, Debug)]
pub struct Machine {
    /// The GPU to use: `gpu`, the software device (`soft`), or whichever there is
    #[arg(long, value_enum, default_value_t, env = "DORMOUSE_DEVICE")]
    pub device: Device,
    /// Use the devices of another machine instead, on which `dormouse serve` runs, or only its device number N; with `+rdma` (where it has `--rdma`) contents of memory go by RDMA
    #[arg(long, value_name = "HOST[:PORT][/N][+rdma]")]
    pub gpu: Option<link::Address>,
    /// Managed memory: one memory that processor and device have in common (`coherent`), memory of the device with copies
    /// for the processor (`shadow`; `exclusive` for one side at a time), or the one for regions of up to 1 MiB and the other for larger ones (`auto`). At a restart it is for
    /// what is allocated from then on, and to or from `exclusive` it cannot change
    /// [default: auto, or at a restart what the job had]
    #[arg(long, value_parser = managed(), env = "DORMOUSE_MANAGED")]
    pub managed: Option<Managed>,
    /// Most memory that rings, pinned and managed memory may take [default: 64G, or at a restart what the job had]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub shared_memory: Option<u64>,
    /// Most memory of each device that a process of the job may take, and that CUDA tells it of; as much as there is, if
    /// that is less [default: all there is, or at a restart what the job had]
    #[arg(long, value_name = "SIZE", value_parser = device_size)]
    pub device_memory: Option<u64>,
    /// Stop a marked kernel that has had its device for so long while other streams of its process have work there, and have it go on behind what
    /// these were given meanwhile (docs/in-kernel.md): a millisecond to an hour, or `none`, for kernels to have it to their end [default: none, or at a restart what the job had]
    #[arg(long, value_name = "TIME|none", value_parser = turn)]
    pub preempt_after: Option<Turn>,
}

/// What is done about a job that has lost a GPU server.
#[derive(Args, Debug, Clone)]
pub struct OnFailure {
    /// When a GPU server of the job dies, or the machine whose devices it uses is gone: end it, and continue it from its newest image; so many times
    /// at most without a newer one [default with the flag: 3]. Without an image the program only gets the error
    #[arg(long, value_name = "TIMES", num_args = 0..=1, require_equals = true, default_missing_value = "3")]
    pub restart_on_failure: Option<u32>,
    /// How often the image has been restarted without another
    #[arg(long, hide = true, default_value_t = 0)]
    pub fruitless: u32,
}

/// Which GPUs a job has from now on.
#[derive(Args, Debug)]
pub struct Visible {
    /// The GPUs of this machine that take the places of those that the job had, by number or UUID, as CUDA_VISIBLE_DEVICES has them; or
    /// `free`: of each one's sort the one that has most memory left [default: what this variable says here, or all]
    #[arg(id = "visible-devices", long = "visible-devices", value_name = "LIST|free")]
    pub devices: Option<checkpoint::gpus::Asked>,
}

/// Where CUDA calls go.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Device {
    /// The GPU if there is one, else the software device
    #[default]
    Auto,
    /// The real driver
    Gpu,
    /// PTX on the CPU
    Soft,
    /// Dormouse's own driver, of the job that this job is in: what needs a driver runs where there is none
    #[value(hide = true)]
    Nested,
}

/// Where calls go, as GPU servers and images are told: to a device of this machine, or to another's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// This machine's.
    Here(Device),
    /// Those of a machine that serves.
    Remote(link::Address),
}

impl Target {
    const REMOTE: &str = "remote:";
}

impl Default for Target {
    fn default() -> Self {
        Self::Here(Device::default())
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Here(device) => {
                f.write_str(device.to_possible_value().as_ref().map_or("", PossibleValue::get_name))
            }
            Self::Remote(address) => write!(f, "{}{address}", Self::REMOTE),
        }
    }
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(Self::REMOTE) {
            Some(address) => address
                .parse()
                .map(Self::Remote)
                .map_err(|error: link::address::NotAnAddress| error.to_string()),
            None => Device::from_str(text, false)
                .map(Self::Here)
                .map_err(|_| "say gpu, soft, auto or remote:HOST[:PORT][/N]".to_owned()),
        }
    }
}

/// Which store.
#[derive(Args, Debug)]
pub struct Store {
    /// The store: a folder, or s3://BUCKET/PREFIX in object storage [default: /var/lib/dormouse for root, else
    /// ~/.local/share/dormouse]
    #[arg(long, value_name = "PLACE", env = "DORMOUSE_STORE", value_parser = location())]
    pub store: Option<Location>,
    #[command(flatten)]
    pub keys: Keys,
}

/// Names a key file where `--key` does not.
pub const KEY_VARIABLE: &str = "DORMOUSE_KEY";

/// What opens encrypted stores.
#[derive(Args, Debug, Default)]
pub struct Keys {
    /// A key file that opens an encrypted store, as `age-keygen -o FILE` makes them; may be given several times
    #[arg(long, value_name = "FILE", env = KEY_VARIABLE)]
    pub key: Vec<PathBuf>,
}

/// `--trace`
#[derive(Args, Debug)]
pub struct Trace {
    /// Write what each CUDA call, each wait, the GPU server's work and each checkpoint took, for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// `--json`
#[derive(Args, Debug)]
pub struct Json {
    /// Answer in JSON, whose fields are a promise
    #[arg(long)]
    pub json: bool,
}

/// `dormouse ps`
#[derive(Args, Debug)]
#[command(
    after_help = "A job ends when its program does. To end one by hand, send a signal to its supervisor (kill PID): the program gets it."
)]
pub struct Ps {
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse devices`
#[derive(Args, Debug)]
#[command(after_help = "Programs of a job see the same through NVML.")]
pub struct Devices {
    /// Whose devices: `gpu`, the software device (`soft`), whichever there are (`auto`), or those of another machine (`remote:HOST[:PORT][/N]`)
    #[arg(long, default_value_t, env = "DORMOUSE_DEVICE")]
    pub device: Target,
    /// As the supervisor asks
    #[arg(long, hide = true, conflicts_with = "json")]
    pub greeting: bool,
    #[command(flatten)]
    pub json: Json,
}

/// How long a job is waited for that is not idle
#[derive(Args, Debug)]
pub struct Patience {
    /// How long to wait for the GPU to finish what it was given, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub gate_deadline: f64,
    /// How often to try again when it did not finish
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub retries: u32,
}

impl Patience {
    /// In ms.
    pub fn gate_deadline_ms(&self) -> u64 {
        (self.gate_deadline * 1000.0) as u64
    }
}

/// `dormouse suspend`
#[derive(Args, Debug)]
#[command(
    after_help = "The job's processes stand still, its device memory moves to this machine's memory, and nothing of it is left on a GPU: other jobs can have it. `dormouse resume JOB` brings it back. A job that is suspended is lost with its `dormouse run`; `dormouse checkpoint --stop` writes one to a store instead."
)]
pub struct Suspend {
    /// The job
    #[arg(value_parser = job_name)]
    pub job: String,
    /// Keep its device memory in the job's store, compressed (and encrypted, if that is), until it is resumed, instead of in memory
    #[arg(long)]
    pub to_store: bool,
    #[command(flatten)]
    pub patience: Patience,
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse resume`
#[derive(Args, Debug)]
#[command(
    after_help = "Where the GPU has no room for it now, the job stays suspended, and can be resumed later."
)]
pub struct Resume {
    /// The job
    #[arg(value_parser = job_name)]
    pub job: String,
    #[command(flatten)]
    pub visible: Visible,
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse checkpoint`
#[derive(Args, Debug)]
pub struct Checkpoint {
    /// The job
    #[arg(value_parser = job_name)]
    pub job: String,
    /// Let the job run on (the default)
    #[arg(long, conflicts_with = "stop")]
    pub leave_running: bool,
    /// End the job when its image is safe; also if this command is interrupted before that. It waits for another checkpoint that is under
    /// way, where one without this option fails with 4
    #[arg(long)]
    pub stop: bool,
    #[command(flatten)]
    pub patience: Patience,
    /// How long to wait for a point that suits the program, if it comes to such (`dormouse.h`), in seconds; 0 is not at all [default: as the
    /// job was started with]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub point_wait: Option<f64>,
    /// How to compress
    #[arg(long, value_enum, default_value_t)]
    pub compress: Compress,
    /// Most memory that writing the image takes: for what is read, hashed, compressed and being written, in all processes of Dormouse. Copies of the job's
    /// memory are not counted, nor in each of them the names of pieces: 140 KiB for each GiB written, 42 for each that the store has. No more
    /// than half of what the machine, or the supervisor's control group, has left, if that is enough [default: 256M, or 48M for each process of them if that is more]
    #[arg(long, value_name = "SIZE", value_parser = writing_memory)]
    pub memory_limit: Option<u64>,
    /// Most threads that hash and compress, in all processes of Dormouse; each of those that write has one at least, and eight at most, if --memory-limit has room for them [default:
    /// half as many as there are processors, or as many where the job does not run on]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Read all device memory, also what its hash says is as it was at the last checkpoint
    #[arg(long)]
    pub paranoid: bool,
    /// The store for this image: a folder, or s3://BUCKET/PREFIX as the job's environment leads there [default: the one
    /// that the job was started with]
    #[arg(long, value_name = "PLACE", value_parser = location())]
    pub store: Option<Location>,
    /// With --store: a key file that opens that store, if it is encrypted; may be given several times [default: those that the job was started
    /// with]
    #[arg(long, value_name = "FILE", requires = "store")]
    pub key: Vec<PathBuf>,
    /// With --store: encrypt that store for whoever has this one's key (age1…), if it is made now, else insist on it; may be given several
    /// times
    #[arg(long, value_name = "RECIPIENT", requires = "store")]
    pub encrypt: Vec<Recipient>,
    #[command(flatten)]
    pub json: Json,
}

/// How chunks are compressed.
#[derive(ValueEnum, Clone, Copy, Debug, Default)]
pub enum Compress {
    /// Each chunk in the way in which it is stored soonest: little on a fast disk, well on a slow one
    #[default]
    Auto,
    /// Not at all
    None,
    /// Fast
    Lz4,
    /// Small
    Zstd,
}

/// `dormouse restart`
#[derive(Args, Debug)]
#[command(
    after_help = "IMAGE is an image's id or the beginning of it, or a job's name for its newest image."
)]
pub struct Restart {
    /// The image
    pub image: String,
    /// Name of the job [default: the one it had]
    #[arg(short, long, value_parser = job_name)]
    pub name: Option<String>,
    /// Only find out whether the image can be restarted here and now; changes nothing
    #[arg(long, conflicts_with_all = ["trace", "profile", "when", "point_wait"])]
    pub check: bool,
    /// With --check: the job may run yet, since it is to be stopped before
    #[arg(long, requires = "check")]
    pub may_run: bool,
    /// Wait for the end of the job that this process has
    #[arg(long, hide = true, value_name = "PID")]
    pub after: Option<u32>,
    /// The image may still be on its way here
    #[arg(long, hide = true, conflicts_with = "check")]
    pub arriving: bool,
    /// With --check: answer in JSON, whose fields are a promise
    #[arg(long, requires = "check")]
    pub json: bool,
    /// Let the program go on before all its device memory is read: the rest follows, what is asked for first. Copies wait for the memory that they name,
    /// kernels for all of it; an image that turns out to be damaged then ends the job
    #[arg(long, conflicts_with = "check")]
    pub lazy: bool,
    #[command(flatten)]
    pub machine: Machine,
    #[command(flatten)]
    pub visible: Visible,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub trace: Trace,
    #[command(flatten)]
    pub regularly: Regularly,
    #[command(flatten)]
    pub record: Record,
    #[command(flatten)]
    pub on_failure: OnFailure,
}

/// `dormouse doctor`
#[derive(Args, Debug)]
pub struct Doctor {
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse server`; the control socket is file descriptor 3.
#[derive(Args, Debug)]
pub struct Server {
    /// The session's folder
    #[arg(long)]
    pub dir: PathBuf,
    /// The session's number
    #[arg(long)]
    pub session: u32,
    /// Where calls go
    #[arg(long)]
    pub device: Target,
    /// Whether there are other sessions to share with
    #[arg(long)]
    pub shares: bool,
    /// Which managed memory has shadow pages
    #[arg(long, value_parser = managed())]
    pub managed: Managed,
    /// The most memory of each device, bytes
    #[arg(long)]
    pub device_memory: Option<u64>,
    /// How long a marked kernel may have a device that others wait for
    #[arg(long, value_parser = humantime::parse_duration)]
    pub preempt_after: Option<Duration>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_no_plan_can_be_made_of_is_wrong_usage() {
        let right = ["dormouse", "plan", "x.profile", "--mtbf-gpu", "40h", "--mtbf-cpu", "90s"];
        Cli::try_parse_from(right).unwrap();
        for (flag, value, why) in [
            ("--mtbf-gpu", "0s", "time above zero"),
            ("--mtbf-gpu", "NaN", "such as 90s"),
            ("--bandwidth", "0", "nothing would ever be written"),
            ("--link-bandwidth", "0", "nothing would ever be written"),
            ("--interval", "999y", "five centuries"),
            ("--chart", "plan.png", ".svg or .html"),
            ("--simulate", "0", "1..=1000000"),
        ] {
            let given = right.iter().position(|each| *each == flag);
            let mut args = right.to_vec();
            match given {
                Some(index) => args[index + 1] = value,
                None => args.extend([flag, value]),
            }
            let error = Cli::try_parse_from(args).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn what_makes_no_sense_or_would_be_ignored_is_wrong_usage() {
        let plan = ["plan", "x.profile", "--mtbf-gpu", "40h", "--mtbf-cpu", "90s"];
        let run = ["run", "--", "x"];
        for (args, rest) in [
            (&["run", "--every", "0"][..], &run[1..]),
            (&["run", "--every", "1m", "--keep-last", "0"], &run[1..]),
            (&["run", "--compress", "zstd"], &run[1..]),
            (&["run", "--paranoid"], &run[1..]),
            (&["run", "--store", "s3://"], &run[1..]),
            (&["run", "--threads", "2"], &run[1..]),
            (&["checkpoint", "--memory-limit", "1"], &["job"]),
            (&["checkpoint", "--threads", "0"], &["job"]),
            (&["checkpoint", "--compress", "x"], &["job"]),
            (&["checkpoint", "--stop", "--leave-running"], &["job"]),
            (&["diff"], &["A"]),
            (&["cat"], &["A"]),
            (&["copy"], &["A"]),
            (&["copy", "s3:///x"], &["A"]),
            (&["prune"], &[]),
            (&["restart", "--check", "--trace", "x"], &["A"]),
            (&["restart", "--check", "--every", "1m"], &["A"]),
            (&["restart", "--json"], &["A"]),
            (&plan, &["--seed", "3"]),
            (&plan, &["--weibull-shape", "0.7"]),
            (&plan, &["--restart-time", "1s"]),
            (&plan, &["--traffic", "3"]),
            (&plan, &["--incremental", "--count", "3"]),
        ] {
            let error = Cli::try_parse_from([&["dormouse"], args, rest].concat()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{args:?}: {error}");
        }
    }

    #[test]
    fn a_name_that_no_job_can_have_is_wrong_usage() {
        for args in
            [&["checkpoint", ""][..], &["run", "--name", "a/b", "--", "x"], &["restart", "-n", "-", "x"]]
        {
            let error = Cli::try_parse_from([&["dormouse"], args].concat()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{error}");
        }
        Cli::try_parse_from(["dormouse", "checkpoint", "train-1"]).unwrap();
    }

    #[test]
    fn the_program_keeps_its_own_flags() {
        let cli = Cli::try_parse_from(["dormouse", "run", "--device", "soft", "--", "prog", "--device", "x"]);
        let Ok(Cli { command: Command::Run(run) }) = cli else { panic!("not a run: {cli:?}") };
        assert_eq!(run.program, ["prog", "--device", "x"]);
        assert_eq!(run.machine.device, Device::Soft);
        let cli = Cli::try_parse_from(["dormouse", "run", "./prog", "--name", "x", "-v", "--", "-y"]);
        let Ok(Cli { command: Command::Run(run) }) = cli else { panic!("not a run: {cli:?}") };
        assert_eq!((run.program.len(), run.name), (6, None));
        assert_eq!(run.program, ["./prog", "--name", "x", "-v", "--", "-y"]);
    }

    #[test]
    fn a_mistyped_option_is_not_a_program() {
        for wrong in ["--nmae", "-q"] {
            let error = Cli::try_parse_from(["dormouse", "run", wrong, "x", "--", "./count"]).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{error}");
            assert_eq!(error.exit_code(), 2);
            assert!(wrong == "-q" || error.to_string().contains("'--name'"), "{error}");
        }
        let cli = Cli::try_parse_from(["dormouse", "run", "--", "--nmae"]);
        assert!(
            matches!(&cli, Ok(Cli { command: Command::Run(run) }) if run.program == ["--nmae"]),
            "{cli:?}"
        );
    }
}
