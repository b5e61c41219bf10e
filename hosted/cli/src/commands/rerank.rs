//! `sluice rerank`: sorts documents by how well they answer a query.

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
use clap::{ArgAction, Args, value_parser};
use serde_json::json;
use sluice::Limits;
use sluice::evaluate::EvaluateError;
use sluice::host::{interrupt, isa};
use sluice::rank::RankError;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice rerank -m bge-reranker.gguf --query \"What is a panda?\" -d \"A bear.\" -d \"A city.\"
  sluice rerank -m bge-reranker.gguf --query \"a query\" -f documents.txt --top-n 5
  sluice rerank -m qwen3-reranker.gguf --query \"a query\" -f documents.txt --output-format json

Each line of a file, or of stdin, is a document. The best is printed first: its score, its number (from 0) and its text.
Scores are raw outputs of the model; their range depends on it.";

#[derive(Debug, Args)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Set the query
    #[arg(long, value_name = "TEXT", required = true, allow_hyphen_values = true)]
    query: String,
    #[command(flatten)]
    documents: DocumentArgs,
    /// Print only the N best documents
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    top_n: Option<u32>,
    /// Set the output format
    ///
    /// text prints score, number and document, one per line; json prints the server's response.
    #[arg(long, value_name = "FORMAT", default_value = "text",
        value_parser = PossibleValuesParser::new(["text", "json"]))]
    output_format: String,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct DocumentArgs {
    /// Add a document; may be repeated
    #[arg(short, long = "document", value_name = "TEXT", action = ArgAction::Append,
        allow_hyphen_values = true)]
    documents: Vec<String>,
    /// Read the documents from a file (UTF-8), one per line
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) fn rerank(args: &RerankArgs) -> anyhow::Result<Ending> {
    let documents = args.documents.read()?;
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let table =
        isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
    args.adapters.check()?;
    let opened = LocalModel::open(Some(&args.model.required()?), &args.engine)?;
    if !opened.ranks() {
        bail!("{}: {}", opened.name(), sluice::rank::NO_HEAD);
    }
    let prompts = prompts(&opened, args, &documents)?;
    let n_workers = args.engine.n_workers(opened.cores.default_workers());
    let interrupted = || {
        note(format_args!("interrupted; nothing was written"));
        Ok(Ending::Interrupted)
    };
    let Some((model, team)) = opened.load(n_workers, stop)? else {
        return interrupted();
    };
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
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
    let scores = match session.rank_tokens(&prompts) {
        Err(RankError::Read(EvaluateError::Stopped)) => return interrupted(),
        scores => scores?,
    };
    if let Some(i) = scores.iter().position(|score| !score.is_finite()) {
        bail!("the score of document {i} is not finite: the model's weights are damaged");
    }
    let n_tokens = prompts.iter().map(Vec::len).sum();
    TextOutput::new().write(&args.shown(&documents, &scores, n_tokens))?;
    Ok(Ending::Done)
}

/// The tokens of the query with each document.
///
/// # Errors
/// A text cannot be tokenized, or has more tokens than the model or the context allows.
fn prompts(
    opened: &LocalModel<'_>,
    args: &RerankArgs,
    documents: &[String],
) -> anyhow::Result<Vec<Vec<u32>>> {
    let own = opened.config().n_ctx_train.max(1);
    let n_ctx = args.engine.ctx_size as usize;
    let max = if n_ctx == 0 { own } else { n_ctx.min(own) };
    let of_document = |(i, document): (usize, &String)| {
        let tokens = opened
            .rank_prompt(&args.query, document)
            .with_context(|| format!("cannot encode document {i}"))?;
        prompt::warn_of_doubles(opened.tokenizer(), &tokens);
        if tokens.is_empty() {
            bail!("document {i} and the query are empty, and the model adds no tokens of its own");
        }
        if tokens.len() > max {
            let n = tokens.len();
            bail!(
                "document {i} has {n} tokens with the query, more than the context size of {max}"
            );
        }
        Ok(tokens)
    };
    documents.iter().enumerate().map(of_document).collect()
}

impl DocumentArgs {
    fn read(&self) -> anyhow::Result<Vec<String>> {
        if !self.documents.is_empty() {
            return Ok(self.documents.clone());
        }
        let text = match &self.file {
            Some(path) => input::text("documents", path)?,
            None if input::is_piped() => input::stdin()?,
            None => {
                let what = "no documents are given: use -d TEXT, -f FILE, or a pipe";
                return Err(UsageError(what.to_owned()).into());
            }
        };
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.is_empty() {
            bail!("no documents are given: the text is empty");
        }
        Ok(lines)
    }
}

impl RerankArgs {
    fn shown(&self, documents: &[String], scores: &[f32], n_tokens: usize) -> String {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(self.top_n.map_or(usize::MAX, |n| n as usize));
        if self.output_format == "json" {
            let result = |&i: &usize| json!({"index": i, "relevance_score": scores[i]});
            let reply = json!({
                "object": "list",
                "results": order.iter().map(result).collect::<Vec<_>>(),
                "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            });
            return format!("{reply:#}\n");
        }
        let line = |&i: &usize| format!("{}\t{i}\t{}\n", scores[i], documents[i]);
        order.iter().map(line).collect()
    }
}
