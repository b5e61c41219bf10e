//! The commands: their names, flags and functions.

mod bench;
mod chat;
mod convert;
mod doctor;
mod embed;
mod experts;
mod gate;
mod gguf_split;
mod hash;
mod help;
mod imatrix;
mod import;
mod inspect;
mod launch;
mod lora;
mod pack;
mod perplexity;
mod pull;
mod quantize;
mod rerank;
pub(crate) mod run;
pub(crate) mod serve;
mod shell;
mod sparsify;
mod tokenize;
#[cfg(feature = "train")]
mod train;
mod unpack;

use crate::outcome::Ending;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::ffi::OsString;

/// Language models on x86 CPUs.
///
/// Without a command, the built-in model tells a story.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, args_override_self = true, after_help = EXIT_CODES,
    styles = help::STYLES)]
pub(super) struct Cli {
    /// Print only errors on stderr
    #[arg(short, long, global = true)]
    pub(super) quiet: bool,
    /// Write everything printed on stderr to this file as well
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        env = "LLAMA_ARG_LOG_FILE",
        hide_env_values = true
    )]
    pub(super) log_file: Option<std::path::PathBuf>,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Continue a prompt
    #[command(args_override_self = true, after_help = RUN_EXAMPLES)]
    Run(Box<run::RunArgs>),
    /// Chat with a model
    #[command(args_override_self = true, after_help = chat::EXAMPLES)]
    Chat(Box<chat::ChatArgs>),
    /// Describe a GGUF file and the memory it needs
    #[command(args_override_self = true, after_help = INSPECT_EXAMPLES)]
    Inspect(Box<inspect::InspectArgs>),
    /// Decide which frames of a sample stream should wake a model
    #[command(args_override_self = true, after_help = gate::EXAMPLES)]
    Gate(Box<gate::GateArgs>),
    /// Download a model from Hugging Face
    #[command(args_override_self = true, after_help = pull::EXAMPLES)]
    Pull(pull::PullArgs),
    /// Convert a Hugging Face folder to GGUF
    Convert(convert::ConvertArgs),
    /// Quantize a GGUF model
    #[command(args_override_self = true, after_help = quantize_help())]
    Quantize(Box<quantize::QuantizeArgs>),
    /// Collect an importance matrix for quantization
    #[command(args_override_self = true, after_help = IMATRIX_EXAMPLES)]
    Imatrix(Box<imatrix::ImatrixArgs>),
    /// Find which neurons a model can do without
    #[command(args_override_self = true, after_help = sparsify::EXAMPLES)]
    Sparsify(Box<sparsify::SparsifyArgs>),
    /// Measure speed against the limits of this machine
    Bench(Box<bench::args::BenchArgs>),
    /// Compute embeddings of texts
    #[command(args_override_self = true, after_help = embed::EXAMPLES)]
    Embed(Box<embed::EmbedArgs>),
    /// Rank documents by relevance to a query
    #[command(args_override_self = true, after_help = rerank::EXAMPLES)]
    Rerank(Box<rerank::RerankArgs>),
    /// Serve models over HTTP, as OpenAI and llama-server do
    #[command(args_override_self = true, after_help = serve::EXAMPLES)]
    Serve(Box<serve::ServeArgs>),
    /// Run Claude Code, Codex, OpenCode or goose with a model
    #[command(args_override_self = true, after_help = launch::EXAMPLES)]
    Launch(launch::LaunchArgs),
    /// Measure how well a model predicts a text
    #[command(args_override_self = true, after_help = PERPLEXITY_EXAMPLES)]
    Perplexity(Box<perplexity::PerplexityArgs>),
    /// Train LoRA adapters
    #[cfg(feature = "train")]
    #[command(after_help = train::EXAMPLES)]
    Train(Box<train::TrainArgs>),
    /// Print the tokens of a text
    #[command(args_override_self = true, after_help = TOKENIZE_EXAMPLES)]
    Tokenize(tokenize::TokenizeArgs),
    /// Check this machine and suggest fixes
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// Pack a GGUF file into a .slc file, which is used in place
    #[command(args_override_self = true, after_help = pack::EXAMPLES)]
    Pack(pack::PackArgs),
    /// Build a GGUF file from directories of expert blobs
    #[command(args_override_self = true, after_help = import::EXAMPLES)]
    Import(import::ImportArgs),
    /// Analyse MoE expert traces and simulate caches
    #[command(after_help = experts::EXAMPLES)]
    Experts(Box<experts::ExpertsArgs>),
    /// Inspect, convert, merge and blend LoRA adapters
    #[command(after_help = lora::EXAMPLES)]
    Lora(Box<lora::LoraArgs>),
    /// Split a GGUF file into parts or merge them
    #[command(args_override_self = true, after_help = gguf_split::EXAMPLES)]
    GgufSplit(gguf_split::GgufSplitArgs),
    /// Print the SHA-256 that identifies a model
    #[command(args_override_self = true, after_help = hash::EXAMPLES)]
    Hash(hash::HashArgs),
    /// Restore the GGUF file of a .slc file
    #[command(args_override_self = true, after_help = unpack::EXAMPLES)]
    Unpack(unpack::UnpackArgs),
    /// Print a shell completion script
    #[command(after_help = shell::COMPLETIONS_EXAMPLES)]
    Completions(shell::CompletionsArgs),
    /// Write man pages
    #[command(after_help = shell::MAN_EXAMPLES)]
    Man(shell::ManArgs),
}

const EXIT_CODES: &str = "\
Examples:
  sluice
  sluice run -m model.gguf -p \"Once upon a time\" -n 200
  sluice inspect model.gguf

`sluice -m model.gguf -p TEXT` is short for `sluice run -m model.gguf -p TEXT`.

Exit codes: 0 success (also if the reader closes stdout), 1 error, 2 wrong usage,
130 interrupted by Ctrl-C (the text so far is printed; a second Ctrl-C exits at once).";

const RUN_EXAMPLES: &str = "\
Examples:
  sluice run -m model.gguf -p \"The sea was\" -n 64 --temp 0
  sluice run -m model.gguf -f prompt.txt -c 4096 -t 8 -s 42 --no-display-prompt > answer.txt
  SLUICE_ISA=scalar sluice run -p \"Once\" -n 32 --profile
  sluice run -m model.gguf -p \"A name and an age: \" -jf person.json
  sluice run -m model.gguf --prompts prompts.jsonl -np 8 -n 200 > results.jsonl
  sluice run -m model.gguf -p \"Yes or no? \" --grammar 'root ::= \"yes\" | \"no\"' --logprobs 5
  sluice run -m model.gguf -f prompt.txt --samplers \"top_k;temperature;xtc\" --xtc-probability 0.5";

const INSPECT_EXAMPLES: &str = "\
Examples:
  sluice inspect model.gguf
  sluice inspect model.gguf -c 8192 -ctk q8_0 -ctv q8_0 | less";

const QUANTIZE_EXAMPLES: &str = "\
Examples:
  sluice quantize model-f16.gguf model-q4.gguf Q4_K_M
  sluice quantize --imatrix imatrix.gguf --tensor-type attn_v=Q6_K model-f16.gguf out.gguf Q3_K_S
  sluice quantize --bits-per-weight 3.6 --calibrate text.txt model-f16.gguf out.gguf
  sluice quantize --hot 20% --profile imatrix.gguf model-f16.gguf out.gguf Q4_0
  sluice quantize --dry-run model-f16.gguf Q5_K_M";

fn quantize_help() -> String {
    format!("{QUANTIZE_EXAMPLES}\n\n{}", quantize::types_help())
}

const PERPLEXITY_EXAMPLES: &str = "\
Examples:
  sluice perplexity -m model.gguf -f wiki.test.raw
  sluice perplexity -m model.gguf -f text.txt -c 256 --chunks 10 --json
  sluice perplexity -m model-f16.gguf -f text.txt --kl-divergence-base base.kld
  sluice perplexity -m model-q4.gguf --kl-divergence-base base.kld --kl-divergence";

const TOKENIZE_EXAMPLES: &str = "\
Examples:
  sluice tokenize -m model.gguf -p \"Once upon a time\"
  sluice tokenize -m model.gguf -f text.txt --ids --no-bos
  echo -n Hello | sluice tokenize -m model.gguf --show-count";

const IMATRIX_EXAMPLES: &str = "\
Examples:
  sluice imatrix -m model-f16.gguf -f text.txt -o imatrix.gguf
  sluice imatrix -m model-f16.gguf -f more.txt --in-file imatrix.gguf -o imatrix.gguf --overwrite
  sluice imatrix --in-file a.gguf --in-file b.gguf -o sum.gguf
  sluice imatrix --in-file imatrix.gguf --show-statistics";

/// The commands with their flags.
pub(super) fn tree() -> clap::Command {
    let command = shell::with_negative_numbers(shell::with_environment(Cli::command()));
    help::arranged(command)
}

/// The help that `args` request: `full`, or for `-h` a summary of it.
pub(super) fn help(full: clap::Error, args: &[OsString]) -> clap::Error {
    if !args.iter().any(|arg| arg == "-h") {
        return full;
    }
    let summary = help::summary(tree()).try_get_matches_from(args);
    summary.err().unwrap_or(full)
}

/// The command and its flags, from a command line that [`tree`] has parsed.
///
/// # Errors
/// The value of a flag is out of range.
pub(super) fn read(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    if let (Command::Chat(args), Some(given)) =
        (&mut cli.command, matches.subcommand_matches("chat"))
    {
        args.settle_templates(given);
    }
    if let (Command::Serve(args), Some(given)) =
        (&mut cli.command, matches.subcommand_matches("serve"))
    {
        args.settle_presets(given);
    }
    Ok(cli)
}

/// Runs the command.
pub(super) fn run(command: Command) -> anyhow::Result<Ending> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::chat(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Gate(args) => gate::gate(&args),
        Command::Pull(args) => pull::pull(&args),
        Command::Convert(args) => convert::convert(&args),
        Command::Quantize(args) => quantize::quantize(&args),
        Command::Imatrix(args) => imatrix::imatrix(&args),
        Command::Sparsify(args) => sparsify::sparsify(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Embed(args) => embed::embed(&args),
        Command::Rerank(args) => rerank::rerank(&args),
        Command::Serve(args) => serve::serve(&args.into()),
        Command::Launch(args) => launch::launch(&args),
        Command::Perplexity(args) => perplexity::perplexity(&args),
        Command::Tokenize(args) => tokenize::tokenize(&args),
        #[cfg(feature = "train")]
        Command::Train(args) => train::train(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Pack(args) => pack::pack(&args),
        Command::Import(args) => import::import(&args),
        Command::Experts(args) => experts::experts(&args),
        Command::Lora(args) => lora::lora(&args),
        Command::GgufSplit(args) => gguf_split::gguf_split(&args),
        Command::Hash(args) => hash::hash(&args),
        Command::Unpack(args) => unpack::unpack(&args),
        Command::Completions(args) => shell::completions(&args, tree()),
        Command::Man(args) => shell::man(&args, tree()),
    }
}
