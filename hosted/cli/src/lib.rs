//! The program `sluice`, for its own main and for the Python wheel.

mod argv;
mod commands;
mod flags;
mod outcome;
mod ui;

use clap::error::ErrorKind;
use commands::Cli;
use outcome::{EXIT_DONE, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, Ending, UsageError};
use sluice_pull::PullError;
use std::ffi::OsString;
use ui::output;

/// Runs the program with `args`, whose first is the program's name, and returns the exit code.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are printed on stdout and are not errors. A closed stdout is not one
            // either.
            let _shown = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => EXIT_DONE,
                _ => EXIT_USAGE,
            };
        }
    };
    let is_set_up = output::set_up(cli.quiet, cli.log_file.as_deref());
    if let Err(error) = is_set_up.and_then(|()| Ok(sluice::file::report_shrunk_maps()?)) {
        output::tell_error(&error);
        return EXIT_ERROR;
    }
    let ending = commands::run(cli.command);
    match ending {
        Ok(Ending::Done) => EXIT_DONE,
        Ok(Ending::Failed) => EXIT_ERROR,
        Ok(Ending::Interrupted) => EXIT_INTERRUPTED,
        Ok(Ending::Code(code)) => code,
        Err(error) if matches!(error.downcast_ref(), Some(PullError::Stopped)) => {
            output::tell(format_args!("{error}"));
            EXIT_INTERRUPTED
        }
        Err(error) => {
            output::tell_error(&error);
            if error.is::<UsageError>() {
                EXIT_USAGE
            } else {
                EXIT_ERROR
            }
        }
    }
}

fn parse(mut args: Vec<OsString>) -> Result<Cli, clap::Error> {
    // The default command is `run`, unless the arguments ask for help or the version.
    let first = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    let about = ["-h", "--help", "-V", "--version"].contains(&first);
    if args.len() < 2 || (first.starts_with('-') && !about) {
        args.insert(1.min(args.len()), "run".into());
    }
    let mut command = commands::tree();
    command.build();
    let args = argv::expand(&command, args)?;
    let matches = command.try_get_matches_from_mut(&args);
    let matches = matches.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp => commands::help(error, &args),
        _ => argv::blame(error, &command, &args),
    })?;
    commands::read(&matches)
}

#[cfg(test)]
mod tests;
