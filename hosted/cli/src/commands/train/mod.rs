//! `sluice train`: LoRA adapters on the model that is served.

mod keys;

use crate::outcome::{Ending, UsageError};
use crate::ui::output::{TextOutput, note};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use core::fmt::Write as _;
use keys::KeyArgs;
use sluice::host::interrupt;
use sluice_train::config::SftConfig;
use sluice_train::{PreparedRun, TrainError};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice train sft --config run.yaml
  sluice train sft --config run.yaml --learning-rate 1e-4 --dry-run

The keys of configurations, and the forms of rows: docs/train.md.";

const SFT_EXAMPLES: &str = "\
Examples:
  sluice train sft --model model.gguf --dataset rows.jsonl --output-dir my-adapter
  sluice train sft --config run.yaml --lora-r 8 --target-modules q_proj,v_proj
  sluice train sft --config run.yaml --dry-run
  sluice train sft --config run.yaml --resume auto

Every flag is a key of the file, which may also have the names of axolotl and LLaMA-Factory: docs/train.md.
A path of the model, of rows and of folders starts at the current folder.";

const LATER_EXAMPLES: &str = "\
Examples:
  sluice train sft --config run.yaml";

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(subcommand)]
    command: TrainCommand,
}

#[derive(Debug, Subcommand)]
enum TrainCommand {
    /// Fine-tune an adapter on texts, completions or conversations
    #[command(args_override_self = true, after_help = SFT_EXAMPLES)]
    Sft(Box<SftArgs>),
    /// Train on preferences (in a later version)
    #[command(after_help = LATER_EXAMPLES)]
    Dpo(LaterArgs),
    /// Train on rewards (in a later version)
    #[command(after_help = LATER_EXAMPLES)]
    Rl(LaterArgs),
    /// Train a small model from the beginning (in a later version)
    #[command(after_help = LATER_EXAMPLES)]
    Pretrain(LaterArgs),
}

#[derive(Debug, Args)]
struct SftArgs {
    /// Read the keys of a YAML or JSON file; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the plan and ten rows with the tokens that are learned, and stop
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    keys: KeyArgs,
}

/// What a later version will take.
#[derive(Debug, Args)]
struct LaterArgs {
    /// Accept all arguments, none of which is read yet
    #[arg(
        value_name = "ARGUMENTS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<String>,
}

pub(super) fn train(args: &TrainArgs) -> anyhow::Result<Ending> {
    match &args.command {
        TrainCommand::Sft(args) => sft(args),
        TrainCommand::Dpo(args) => later("dpo", args),
        TrainCommand::Rl(args) => later("rl", args),
        TrainCommand::Pretrain(args) => later("pretrain", args),
    }
}

fn later(name: &str, args: &LaterArgs) -> anyhow::Result<Ending> {
    let ignored = match args.arguments.len() {
        0 => "",
        _ => "; nothing was read",
    };
    let message = format!(
        "sluice train {name} comes with a later version: sluice train sft is there{ignored}"
    );
    Err(UsageError(message).into())
}

fn sft(args: &SftArgs) -> anyhow::Result<Ending> {
    let config = SftConfig::load(args.config.as_deref(), args.keys.flags());
    let config = config.map_err(|error| UsageError(error.to_string()))?;
    if args.dry_run {
        let run = PreparedRun::new(&config)?;
        TextOutput::new().write(&shown(&config, &run)?)?;
        return Ok(Ending::Done);
    }
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    match sluice_train::train(&config, stop) {
        Ok(adapter) => {
            let line = serde_json::json!({"adapter": adapter});
            TextOutput::new().write(&format!("{line}\n"))?;
            Ok(Ending::Done)
        }
        Err(TrainError::Interrupted { checkpoint }) => {
            note(format_args!(
                "interrupted; continue from {}",
                checkpoint.display()
            ));
            Ok(Ending::Interrupted)
        }
        Err(error) => Err(error.into()),
    }
}

/// The plan, and the first rows that are visited.
fn shown(config: &SftConfig, run: &PreparedRun) -> anyhow::Result<String> {
    let mut out = run.plan.to_string();
    let visits = run.dataset.order(config).epoch(0);
    writeln!(
        out,
        "\nThe first rows; what is learned stands between ⟦ and ⟧:"
    )?;
    for visit in visits.iter().take(ROWS_SHOWN) {
        let Some(row) = usize::try_from(visit.row)
            .ok()
            .and_then(|row| run.dataset.train.get(row))
        else {
            continue;
        };
        let (tokens, labels) = (row.tokens.len(), row.labels.count());
        writeln!(out, "\nrow {}, {tokens} tokens, {labels} labels", row.id)?;
        let text = row.marked(run.vocabulary.tokenizer());
        text.lines()
            .try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    Ok(out)
}

const ROWS_SHOWN: usize = 10;
