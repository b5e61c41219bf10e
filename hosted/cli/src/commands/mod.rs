//! The commands: what each is called, takes and does.

mod bench;
mod chat;
mod convert;
mod doctor;
mod embed;
mod experts;
mod gate;
mod gguf_split;
mod imatrix;
mod import;
mod inspect;
mod lora;
mod pack;
mod perplexity;
mod pull;
mod quantize;
mod rerank;
pub(crate) mod run;
pub(crate) mod serve;
mod shell;
mod tokenize;
mod unpack;

use crate::outcome::Ending;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Language models on x86 CPUs.
///
/// Without arguments: tells a story with the model that is part of the program.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, args_override_self = true, after_help = EXIT_CODES,
    styles = shell::STYLES)]
pub(super) struct Cli {
    /// Say nothing but errors on stderr
    #[arg(short, long, global = true)]
    pub(super) quiet: bool,
    /// Write what is said on stderr to this file, too
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
    /// Continue a prompt: text to stdout, everything else to stderr
    #[command(args_override_self = true, after_help = RUN_EXAMPLES)]
    Run(Box<run::RunArgs>),
    /// Talk with a model
    #[command(args_override_self = true, after_help = chat::EXAMPLES)]
    Chat(Box<chat::ChatArgs>),
    /// Show what a GGUF file holds and how much memory it would take
    #[command(args_override_self = true, after_help = INSPECT_EXAMPLES)]
    Inspect(Box<inspect::InspectArgs>),
    /// Decide which frames of a stream of samples are worth waking a model for
    #[command(args_override_self = true, after_help = gate::EXAMPLES)]
    Gate(Box<gate::GateArgs>),
    /// Fetch a model from Hugging Face
    #[command(args_override_self = true, after_help = pull::EXAMPLES)]
    Pull(pull::PullArgs),
    /// Make a GGUF file of a Hugging Face folder
    Convert(convert::ConvertArgs),
    /// Make a GGUF file of fewer bits per weight
    #[command(args_override_self = true, after_help = quantize_help())]
    Quantize(Box<quantize::QuantizeArgs>),
    /// Collect how much each column of each weight matters, for quantising
    #[command(args_override_self = true, after_help = IMATRIX_EXAMPLES)]
    Imatrix(Box<imatrix::ImatrixArgs>),
    /// How fast a model runs here, and what part of the machine's limit that is
    Bench(Box<bench::args::BenchArgs>),
    /// Vectors for texts, for search and comparison
    #[command(args_override_self = true, after_help = embed::EXAMPLES)]
    Embed(Box<embed::EmbedArgs>),
    /// Sort documents by how well they answer a query
    #[command(args_override_self = true, after_help = rerank::EXAMPLES)]
    Rerank(Box<rerank::RerankArgs>),
    /// Serve models over HTTP: OpenAI's routes, and llama-server's
    #[command(args_override_self = true, after_help = serve::EXAMPLES)]
    Serve(Box<serve::ServeArgs>),
    /// How well a model predicts a text, in chunks as llama.cpp cuts them
    #[command(args_override_self = true, after_help = PERPLEXITY_EXAMPLES,
        mut_arg("file", |arg| arg.required(false)))]
    Perplexity(Box<perplexity::PerplexityArgs>),
    /// Print the tokens of a text
    #[command(args_override_self = true, after_help = TOKENIZE_EXAMPLES)]
    Tokenize(tokenize::TokenizeArgs),
    /// What this machine gives a model, what holds it back, and what to type to fix that
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// Make a .slc file, whose weights are used where they lie, from a GGUF file
    #[command(args_override_self = true, after_help = pack::EXAMPLES)]
    Pack(pack::PackArgs),
    /// Make a GGUF file from a data directory of expert blobs
    #[command(args_override_self = true, after_help = import::EXAMPLES)]
    Import(import::ImportArgs),
    /// Traces of a mixture's experts: caches and predictions, beside the best that could be
    #[command(after_help = experts::EXAMPLES)]
    Experts(Box<experts::ExpertsArgs>),
    /// Adapters: what is in their files, and other files made of them
    #[command(after_help = lora::EXAMPLES)]
    Lora(Box<lora::LoraArgs>),
    /// Split a GGUF file into several, or make one of them again
    #[command(args_override_self = true, after_help = gguf_split::EXAMPLES)]
    GgufSplit(gguf_split::GgufSplitArgs),
    /// Make the GGUF file again that a .slc file was made from
    #[command(args_override_self = true, after_help = unpack::EXAMPLES)]
    Unpack(unpack::UnpackArgs),
    /// Print a script that lets a shell complete commands and flags
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

`sluice -m model.gguf -p TEXT` is short for `sluice run …`.

Exit codes: 0 done (also when the reader of stdout left), 1 an error, 2 wrong usage,
130 interrupted by Ctrl-C (the text so far is out; a second Ctrl-C ends at once).";

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
  sluice imatrix -m model-f16.gguf -f more.txt --in-file imatrix.gguf -o imatrix.gguf --overwrite";

/// The commands with their flags, as they are parsed.
pub(super) fn tree() -> clap::Command {
    shell::with_negative_numbers(shell::with_environment(Cli::command()))
}

/// The command and its flags, of a command line that [`tree`] has parsed.
///
/// # Errors
/// A flag's value is out of range.
pub(super) fn read(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    if let (Command::Chat(args), Some(given)) =
        (&mut cli.command, matches.subcommand_matches("chat"))
    {
        args.settle_templates(given);
    }
    Ok(cli)
}

/// Does what the command line asks for.
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
        Command::Bench(args) => bench::bench(&args),
        Command::Embed(args) => embed::embed(&args),
        Command::Rerank(args) => rerank::rerank(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Perplexity(args) => perplexity::perplexity(&args),
        Command::Tokenize(args) => tokenize::tokenize(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Pack(args) => pack::pack(&args),
        Command::Import(args) => import::import(&args),
        Command::Experts(args) => experts::experts(&args),
        Command::Lora(args) => lora::lora(&args),
        Command::GgufSplit(args) => gguf_split::gguf_split(&args),
        Command::Unpack(args) => unpack::unpack(&args),
        Command::Completions(args) => shell::completions(&args, tree()),
        Command::Man(args) => shell::man(&args, tree()),
    }
}
