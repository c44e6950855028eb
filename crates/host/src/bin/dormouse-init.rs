//! Pid 1 of every job. Small, so that it can be copied into the job's tmpfs and travel with the image.
fn main() -> std::process::ExitCode {
    host::init::main()
}
