//! The program `sluice`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(sluice_cli::main(std::env::args_os().collect()))
}
