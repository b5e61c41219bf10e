//! `sluice tokenize`: the tokens of a text.

use crate::flags::model::ModelArgs;
use crate::flags::prompt;
use crate::outcome::Ending;
use crate::ui::input;
use crate::ui::output::{TextOutput, note};
use anyhow::Context as _;
use clap::Args;
use core::fmt::Write as _;
use sluice::core::tokenizer::{EncodeOptions, Tokenizer};
use sluice::encode::encode;
use sluice::file::{LoadMode, ModelFile};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Print only the token ids: [1, 2, 3]
    #[arg(long)]
    ids: bool,
    /// Print ids and pieces as one JSON object
    #[arg(long, conflicts_with = "ids")]
    json: bool,
    /// Print the number of tokens as well
    #[arg(long)]
    show_count: bool,
    /// Do not add the tokens that begin and end texts
    #[arg(long)]
    no_bos: bool,
    /// Treat the names of control tokens as plain text
    #[arg(long)]
    no_parse_special: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct TextArgs {
    /// Set the text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the text from a file (UTF-8), unchanged
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Read the text from stdin
    #[arg(long)]
    stdin: bool,
}

pub(super) fn tokenize(args: &TokenizeArgs) -> anyhow::Result<Ending> {
    let text = args.text.read()?;
    let file = ModelFile::open(&args.model.required()?, LoadMode::Read)?;
    let gguf = file.parse()?;
    let of_file = || file.name().to_owned();
    let mut words = prompt::tokenizer_memory(&gguf).with_context(of_file)?;
    let tokenizer = Tokenizer::new(&gguf, &mut words).with_context(of_file)?;
    let options = EncodeOptions {
        add_special: !args.no_bos,
        parse_special: !args.no_parse_special,
    };
    let tokens = encode(&tokenizer, &text, options).context("cannot encode the text")?;
    if options.add_special {
        prompt::warn_of_doubles(&tokenizer, &tokens);
    }
    let mut out = String::new();
    if args.json {
        let piece = |&id: &u32| String::from_utf8_lossy(tokenizer.piece(id)).into_owned();
        let pieces: Vec<_> = tokens.iter().map(piece).collect();
        let object = serde_json::json!({"count": tokens.len(), "ids": tokens, "pieces": pieces});
        writeln!(out, "{object}")?;
    } else if args.ids {
        let ids: Vec<_> = tokens.iter().map(u32::to_string).collect();
        writeln!(out, "[{}]", ids.join(", "))?;
    } else {
        for &id in &tokens {
            let piece = crate::ui::format::shown(tokenizer.piece(id), 200);
            writeln!(out, "{id:>6} -> '{piece}'")?;
        }
    }
    if args.show_count && !args.json {
        writeln!(out, "{} tokens", tokens.len())?;
    }
    let mut output = TextOutput::new();
    output.write(&out)?;
    if text.is_empty() {
        note(format_args!("the text is empty"));
    }
    Ok(Ending::Done)
}

impl TextArgs {
    fn read(&self) -> anyhow::Result<String> {
        if let Some(text) = &self.prompt {
            return Ok(text.clone());
        }
        match &self.file {
            Some(path) => input::text("text", path),
            None if self.stdin || input::is_piped() => input::stdin(),
            None => Err(input::no_text().into()),
        }
    }
}
