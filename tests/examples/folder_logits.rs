//! What folders of Hugging Face models compute: `folder_logits SCRATCH.gguf`, a request on each line of stdin.
//!
//! A request is `{"folder": …, "out": …, "ids": […], "pre": …}`. The folder is converted in F32 and run on the tokens;
//! all logits, all hidden states of an encoder, or the score of a reranker, go to `out` as raw f32. The answer is
//! `{"columns": …, "warnings": […]}` or `{"error": …}`. For `tests/tools/hf_logits.py`.

#![expect(clippy::print_stdout, reason = "what it is for")]

use core::error::Error;
use serde_json::{Value, json};
use sluice::core::kernels::{GgmlType, KvType};
use sluice::core::pooling::Pooling;
use sluice::core::team::StopFlag;
use sluice::embed::{EmbedOptions, Normalization};
use sluice::file::{LoadMode, OutputFile};
use sluice::model::ModelSource;
use sluice::session::Limits;
use sluice::team::Team;
use sluice_make::convert::{Conversion, Options};
use std::io::{BufRead as _, Write as _};
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = std::env::args()
        .nth(1)
        .ok_or("usage: folder_logits SCRATCH.gguf")?;
    let team = Team::of_machine()?;
    for line in std::io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?)?;
        let answer = answer(&request, Path::new(&scratch), &team);
        let answer = answer.unwrap_or_else(|error| json!({"error": error.to_string()}));
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn answer(request: &Value, scratch: &Path, team: &Team) -> Result<Value, Box<dyn Error>> {
    let text = |key: &str| request[key].as_str();
    let f32 = |_: &str, _: &[u64]| GgmlType::F32;
    let options = Options {
        types: Some((0, &f32)),
        pre: text("pre"),
        name: None,
    };
    let conversion = Conversion::plan(Path::new(text("folder").ok_or("no folder")?), &options)?;
    let warnings = conversion.warnings().to_vec();
    let output = OutputFile::create(scratch, true)?;
    conversion.write(output, 1, &StopFlag::new(), &mut |_| {})?;
    let (columns, numbers) = compute(scratch, &request["ids"], team)?;
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(text("out").ok_or("no out")?, bytes)?;
    Ok(json!({"columns": columns, "warnings": warnings}))
}

/// Numbers for each token, and how many of them each has.
fn compute(file: &Path, ids: &Value, team: &Team) -> Result<(usize, Vec<f32>), Box<dyn Error>> {
    let ids: Vec<u32> = serde_json::from_value(ids.clone())?;
    let opened = ModelSource::open(file, LoadMode::Read)?;
    let model = opened.load(team)?;
    let types = Some((KvType::F32, KvType::F32));
    let mut all = Vec::new();
    if opened.ranks() {
        let limits = Limits {
            types,
            ..Limits::for_embedding(&opened, ids.len(), ids.len())
        };
        let scores = model.session_on(team, limits)?.rank_tokens(&[ids])?;
        return Ok((1, scores));
    }
    if opened.embeds() {
        let limits = Limits {
            types,
            ..Limits::for_embedding(&opened, ids.len(), ids.len())
        };
        let options = EmbedOptions {
            pooling: Pooling::None,
            normalization: Normalization::None,
        };
        let mut session = model.session_on(team, limits)?;
        session.embed_tokens(&[ids], &options, |_, row| all.extend(row))?;
        return Ok((opened.config().n_embd, all));
    }
    let limits = Limits {
        types,
        ..Limits::for_reading(opened.config(), ids.len(), false)
    };
    let mut session = model.session_on(team, limits)?;
    session.read(&[&ids], 0, None, |_, _, logits| all.extend(logits))?;
    Ok((opened.config().n_vocab, all))
}
