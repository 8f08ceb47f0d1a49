//! The `mcprelay` program: arguments in, exit code out.

fn main() -> std::process::ExitCode {
    mcprelay::run(std::env::args_os().skip(1))
}
