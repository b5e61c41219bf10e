//! `sluice embed`: vectors for texts.

use crate::flags::adapters::AdapterArgs;
use crate::flags::engine::EngineArgs;
use crate::flags::model::ModelArgs;
use crate::flags::open::LocalModel;
use crate::flags::prompt;
use crate::outcome::{Ending, UsageError};
use crate::ui::input;
use crate::ui::output::{TextOutput, note};
use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use core::fmt::Write as _;
use sluice::Limits;
use sluice::core::pooling::Pooling;
use sluice::embed::{EmbedOptions, Normalization};
use sluice::evaluate::EvaluateError;
use sluice::host::{interrupt, isa};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice embed -m bge-small.gguf -p \"A sentence\"
  sluice embed -m bge-small.gguf -f lines.txt > embeddings.json
  sluice embed -m qwen3.gguf -f lines.txt --pooling last --embd-output-format raw

Each line of the text is embedded on its own (--embd-separator). The output is JSON in OpenAI's format:
{\"object\": \"list\", \"data\": [{\"object\": \"embedding\", \"index\": 0, \"embedding\": [...]}]}";

#[derive(Debug, Args)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Set how token vectors become one
    ///
    /// cls takes the first. By default what the model's file says, else mean.
    #[arg(long, value_name = "TYPE", value_parser = poolings())]
    pooling: Option<String>,
    /// Set the norm to divide by: -1 none, 1 taxicab, 2 Euclidean, N p-norm
    ///
    /// 0 scales the largest magnitude to 32760.
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true,
        value_parser = value_parser!(i32).range(-1..=1000))]
    embd_normalize: i32,
    /// Set the output format
    ///
    /// json+ adds the cosine similarities of all texts; array prints an array of arrays; raw prints a vector of
    /// numbers per line.
    #[arg(long, value_name = "FORMAT", default_value = "json",
        value_parser = PossibleValuesParser::new(["json", "json+", "array", "raw"]))]
    embd_output_format: String,
    /// Set the separator between texts
    #[arg(
        long,
        value_name = "STRING",
        default_value = "\\n",
        allow_hyphen_values = true
    )]
    embd_separator: String,
    /// Use prompt and separator as written, without replacing escapes
    #[arg(long)]
    no_escape: bool,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct TextArgs {
    /// Set the texts, one per line
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the texts from a file (UTF-8), one per line
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

fn poolings() -> PossibleValuesParser {
    PossibleValuesParser::new(Pooling::ALL.map(Pooling::name))
}

pub(super) fn embed(args: &EmbedArgs) -> anyhow::Result<Ending> {
    let separator = prompt::unescaped("--embd-separator", &args.embd_separator, !args.no_escape)?;
    if separator.is_empty() {
        return Err(UsageError("--embd-separator is empty".to_owned()).into());
    }
    let text = args.read()?;
    let texts: Vec<&str> = text.split(&*separator).collect();
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let table =
        isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
    args.adapters.check()?;
    let opened = LocalModel::open(Some(&args.model.required()?), &args.engine)?;
    let options = args
        .options(&opened)
        .with_context(|| opened.name().to_owned())?;
    let tokens = tokens(&opened, &texts, args.engine.ctx_size as usize)?;
    let n_workers = args.engine.n_workers(opened.cores.default_workers());
    let interrupted = || {
        note(format_args!("interrupted; nothing was written"));
        Ok(Ending::Interrupted)
    };
    let Some((model, team)) = opened.load(n_workers, stop)? else {
        return interrupted();
    };
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(1);
    let mut limits = Limits {
        table: Some(table),
        ..Limits::for_embedding(&opened, longest, args.engine.n_batch())
    };
    if !opened.embeds() {
        limits.types = Some(args.engine.cache_types());
        limits.kv_rotation = !args.engine.no_kv_rotation;
    }
    let mut session = args.adapters.session(&args.engine, &model, &team, limits)?;
    session.set_stop(stop);
    let mut out = Vectors::new(args);
    let mut wrong = None;
    let embedded = session.embed_tokens(&tokens, &options, |i, embedding| {
        if !embedding.iter().all(|x| x.is_finite()) {
            wrong.get_or_insert(i);
        }
        out.add(embedding);
    });
    match embedded {
        Err(EvaluateError::Stopped) => return interrupted(),
        result => result?,
    }
    if let Some(i) = wrong {
        bail!("the embedding of text {i} is not finite: the model's weights are damaged");
    }
    TextOutput::new().write(&out.finish())?;
    Ok(Ending::Done)
}

/// The tokens of each text.
///
/// # Errors
/// A text has no tokens, or more than the model or `n_ctx` allows (0 sets no further limit).
fn tokens(opened: &LocalModel<'_>, texts: &[&str], n_ctx: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let own = opened.config().n_ctx_train.max(1);
    let max = if n_ctx == 0 { own } else { n_ctx.min(own) };
    let of_text = |(i, text): (usize, &&str)| {
        let tokens = opened
            .encode(text, true)
            .with_context(|| format!("cannot encode text {i}"))?;
        prompt::warn_of_doubles(opened.tokenizer(), &tokens);
        if tokens.is_empty() {
            bail!("text {i} is empty, and the model adds no tokens of its own");
        }
        if tokens.len() > max {
            let n = tokens.len();
            bail!("text {i} has {n} tokens, more than the context size of {max}");
        }
        Ok(tokens)
    };
    texts.iter().enumerate().map(of_text).collect()
}

impl EmbedArgs {
    fn read(&self) -> anyhow::Result<String> {
        let text = if let Some(text) = &self.text.prompt {
            prompt::unescaped("the prompt", text, !self.no_escape)?
        } else {
            let text = match &self.text.file {
                Some(path) => input::text("text", path)?,
                None if input::is_piped() => input::stdin()?,
                None => return Err(input::no_text().into()),
            };
            // Lines in Windows files end with two characters.
            text.replace("\r\n", "\n")
        };
        Ok(input::without_last_newline(&text).to_owned())
    }

    fn options(&self, opened: &LocalModel<'_>) -> anyhow::Result<EmbedOptions> {
        let asked = self.pooling.as_deref().and_then(Pooling::from_name);
        let pooling = match asked {
            Some(pooling) => pooling,
            None => Pooling::from_gguf(opened.gguf(), opened.config())?.unwrap_or(Pooling::Mean),
        };
        Ok(EmbedOptions {
            pooling,
            normalization: match self.embd_normalize {
                0 => Normalization::MaxAbsolute,
                p => u32::try_from(p).map_or(Normalization::None, Normalization::PNorm),
            },
        })
    }
}

/// The output, as it is written.
#[derive(Debug)]
struct Vectors<'a> {
    args: &'a EmbedArgs,
    text: String,
    count: usize,
    /// The vectors, kept to compute similarities.
    all: Vec<Vec<f32>>,
}

impl<'a> Vectors<'a> {
    const fn new(args: &'a EmbedArgs) -> Self {
        Self {
            args,
            text: String::new(),
            count: 0,
            all: Vec::new(),
        }
    }

    fn add(&mut self, embedding: &[f32]) {
        let is_whole = self.args.embd_normalize == 0;
        let number = |x: &f32| {
            if is_whole {
                format!("{x:.0}")
            } else {
                x.to_string()
            }
        };
        let numbers: Vec<String> = embedding.iter().map(number).collect();
        let separator = if self.count == 0 { "" } else { ",\n" };
        let index = self.count;
        // Writing to a string cannot fail.
        let _written = match self.args.embd_output_format.as_str() {
            "raw" => writeln!(self.text, "{}", numbers.join(" ")),
            "array" => write!(self.text, "{separator}[{}]", numbers.join(",")),
            _ => write!(
                self.text,
                "{separator}    {{\"object\": \"embedding\", \"index\": {index}, \"embedding\": [{}]}}",
                numbers.join(",")
            ),
        };
        self.count += 1;
        if self.args.embd_output_format == "json+" {
            self.all.push(embedding.to_vec());
        }
    }

    fn finish(self) -> String {
        match self.args.embd_output_format.as_str() {
            "raw" => self.text,
            "array" => format!("[{}]\n", self.text),
            "json+" => format!(
                "{{\n  \"object\": \"list\",\n  \"data\": [\n{}\n  ],\n  \"cosineSimilarity\": [\n{}\n  ]\n}}\n",
                self.text,
                similarities(&self.all)
            ),
            _ => format!(
                "{{\n  \"object\": \"list\",\n  \"data\": [\n{}\n  ]\n}}\n",
                self.text
            ),
        }
    }
}

/// The cosine similarities of all pairs, one row per vector.
fn similarities(all: &[Vec<f32>]) -> String {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    let cosine = |a: &[f32], b: &[f32]| {
        let norms = (dot(a, a) * dot(b, b)).sqrt();
        if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
    };
    let row = |a: &Vec<f32>| {
        let cells: Vec<String> = all.iter().map(|b| format!("{:.4}", cosine(a, b))).collect();
        format!("    [{}]", cells.join(", "))
    };
    all.iter().map(row).collect::<Vec<_>>().join(",\n")
}
