//! `sluice import`: a GGUF file from a data directory of expert blobs.

use crate::commands::quantize::overrides;
use crate::outcome::Ending;
use crate::ui::output::note;
use crate::ui::progress::WorkBar;
use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValuesParser;
use sluice::core::model::LoadProgress;
use sluice::file::{GgufHeader, LoadMode, ModelFile, OutputFile};
use sluice::host::interrupt;
use sluice_make::import::{Directory, Float, ImportError, import as import_directory, link};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice import data/ experts.gguf
  sluice import data/ model.gguf --metadata-from original.gguf
  sluice import data/ model.gguf --metadata-from v.gguf --override-kv qwen3moe.block_count=int:48
  sluice import /ssd0/data,/ssd1/data model.gguf --metadata-from original.gguf --leave-experts

DIR contains metadata.json, expert_<id>.bin files or a packed blob with its .manifest.json, and for a
whole model the other tensors, with dense_manifest.json or under their usual names. Head counts, RoPE
and the tokenizer are not part of it: set them with --metadata-from and --override-kv.

With several directories, expert ID is first looked up in directory number ID modulo their count.
With --leave-experts the file records where the experts are instead of containing them: do not move them.";

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Data directory to read, or several that hold one model
    #[arg(value_name = "DIR[,DIR...]")]
    directory: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT.gguf")]
    output: PathBuf,
    /// Copy the metadata of this GGUF file or vocabulary
    #[arg(long, visible_alias = "tokenizer-from", value_name = "FILE")]
    metadata_from: Option<PathBuf>,
    /// Set the architecture, overriding metadata.json
    #[arg(long, value_name = "NAME")]
    arch: Option<String>,
    /// Set the type of int8 weights that Q8_0 would round
    ///
    /// Applies where their scale is not an f16 number.
    #[arg(long = "type", value_name = "TYPE",
        value_parser = PossibleValuesParser::new(["f16", "f32"]))]
    float: Option<String>,
    /// Set a metadata key; TYPE is int, float, bool or str
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    override_kv: Vec<String>,
    /// Leave experts in their files and record where they are
    ///
    /// Not for int8 and mxfp4.
    #[arg(long, conflicts_with = "float")]
    leave_experts: bool,
    /// Overwrite the output file if it exists
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn import(args: &ImportArgs) -> anyhow::Result<Ending> {
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let overrides = overrides(&args.override_kv)?;
    let output = OutputFile::create_model(&args.output, args.overwrite, *b"GGUF")?;
    let directory = Directory::open_all(&directories(&args.directory), args.arch.as_deref())?;
    let mut header = match &args.metadata_from {
        Some(path) => {
            let file = ModelFile::open(path, LoadMode::Read)?;
            GgufHeader::with_metadata_of(&file.parse()?)
        }
        None => GgufHeader::new(),
    };
    for (key, value) in overrides {
        header.set(&key, value);
    }
    let float = args.float.as_deref().map(|name| match name {
        "f16" => Float::F16,
        _ => Float::F32,
    });
    let mut bar = None;
    let progress = |progress: LoadProgress| {
        let bar = bar.get_or_insert_with(|| WorkBar::of_bytes("importing", progress.total_bytes));
        bar.update(progress.done_bytes);
    };
    let imported = match args.leave_experts {
        true => link(&directory, header, output, stop, progress),
        false => import_directory(&directory, header, float, output, stop, progress),
    };
    drop(bar);
    let imported = match imported {
        Err(ImportError::Stopped) => return Ok(Ending::Interrupted),
        result => result.with_context(|| args.directory.display().to_string())?,
    };
    let (n_layer, n_expert) = (imported.n_layer, imported.n_expert);
    let dense = match imported.n_dense {
        0 => "no other tensors: the directory contains only experts, so the file cannot be run"
            .into(),
        n => format!("{n} other tensors"),
    };
    let path = args.output.display();
    let left = match args.leave_experts {
        true => ", which remain in their files",
        false => "",
    };
    note(format_args!(
        "{path}: {n_layer} layers of {n_expert} experts{left}, {dense}"
    ));
    Ok(Ending::Done)
}

/// One directory or several, separated by commas. A directory may have a comma in its name.
fn directories(path: &Path) -> Vec<PathBuf> {
    if path.exists() {
        return vec![path.to_owned()];
    }
    let names = path.as_os_str().as_bytes().split(|&byte| byte == b',');
    names.map(|name| OsStr::from_bytes(name).into()).collect()
}
