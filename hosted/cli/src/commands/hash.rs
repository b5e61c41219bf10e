//! `sluice hash`: the SHA-256 by which caches and servers know a model.

use crate::outcome::Ending;
use crate::ui::output::TextOutput;
use crate::ui::progress::WorkBar;
use anyhow::Context as _;
use clap::Args;
use sluice::core::gguf::source::TensorSource as _;
use sluice::file::{HashRecords, LoadMode, ModelFile};
use sluice::host::interrupt;
use sluice::identity::{HashError, identify};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice hash model.gguf
  sluice hash model-00001-of-00003.gguf

Prints what sha256sum prints for a GGUF file; for a model in parts or a .slc file, the SHA-256 of the
GGUF file that it was made from. The hash is remembered in the user's cache folder
(~/.cache/sluice/hashes) until the file changes: the next server that loads the file shows it as
system_fingerprint and finds the caches of other copies.";

#[derive(Debug, Args)]
pub(crate) struct HashArgs {
    /// Model files to hash; of a model in parts, the first
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(super) fn hash(args: &HashArgs) -> anyhow::Result<Ending> {
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let (mut output, records) = (TextOutput::new(), HashRecords::of_user());
    for path in &args.files {
        let file = ModelFile::open(path, LoadMode::Read)?;
        let mut bar = WorkBar::of_bytes("hashing", file.len_bytes());
        let found = identify(&file, records.as_ref(), |done_bytes| {
            bar.update(done_bytes);
            !stop.is_set()
        });
        drop(bar);
        match found {
            Err(HashError::Stopped) => return Ok(Ending::Interrupted),
            found => output.write(&format!("{}  {}\n", found?, path.display()))?,
        }
    }
    Ok(Ending::Done)
}
