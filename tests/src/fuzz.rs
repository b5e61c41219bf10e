//! Fuzz targets: one function for each kind of external file.
//!
//! A function passes any bytes to a parser and reads all of its output. It returns if all is well (an error must have a
//! message), and panics if the parser broke a promise. The targets in the folder `fuzz` call these under libFuzzer; the
//! test `fuzz_corpus` replays every interesting input found so far, with a bound on time and memory.

#![expect(
    clippy::missing_panics_doc,
    reason = "a panic is how every function here reports what it found"
)]

mod experts;
mod folders;
mod gate;
mod predictor;
mod seeds;

use crate::run::Aligned;
use core::fmt::Display;
use sluice::file::GgufInSlc;
use sluice_core::engine::{EngineLimits, EnginePlan};
use sluice_core::gguf::source::SliceSource;
use sluice_core::gguf::{Gguf, GgufErrorKind, Value};
use sluice_core::model::{Loader, ModelConfig, ModelPlan, ModelWeights};
use sluice_core::slc::{FileHeader, Slc, seal};
use sluice_core::tokenizer::{self, Detokenizer, EncodeOptions, Tokenizer};
use sluice_hf::safetensors;
use sluice_jinja::TemplateError;
use sluice_make::convert::{sentencepiece, tokenizer_json};
use sluice_make::quantize::ImportanceMatrix;
use sluice_make::uth::Blob;
use sluice_text::chat_template::{ChatTemplate, ChatTemplateError, Message, RenderOptions};
use sluice_text::grammar::{Grammar, GrammarSource};
use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

pub use experts::trace;
pub use folders::{adapter, body, config_json, hub, prompt_cache, tiktoken, wordpiece};
pub use gate::{csv, wav, wfdb};
pub use predictor::predictor;
pub use seeds::seeds;

/// A kind of file, and what is done with it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As the fuzz target and its corpus are named.
    pub name: &'static str,
    /// Takes any bytes.
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident)*) => {
        &[$(Target { name: stringify!($name), run: $name }),*]
    };
}

/// All of them.
pub const TARGETS: &[Target] = targets! {
    gguf slc uth imatrix chat_template safetensors tokenizer_json sentencepiece gbnf json_schema trace wav csv wfdb
    config_json wordpiece tiktoken adapter prompt_cache hub body predictor
};

/// A GGUF file: every accessor, the tokenizer, the configuration, the plans and, if they are small, the
/// weights.
pub fn gguf(file: &[u8]) {
    let parsed = Gguf::parse(file, file.len() as u64);
    check_prefix(file, parsed.is_ok());
    let Some(gguf) = accepted(parsed) else { return };
    walk(&gguf, file.len() as u64);
    tokenize(&gguf, file);
    let Some(config) = accepted(ModelConfig::from_gguf(&gguf)) else {
        return;
    };
    plan(&gguf, &config, file);
    if let Some(Some(head)) = accepted(ModelConfig::next_token_head(&gguf)) {
        plan(&gguf, &head, file);
    }
}

/// Plans and loads a model of the file, or the head that follows it.
fn plan(gguf: &Gguf<'_>, config: &ModelConfig, file: &[u8]) {
    accepted(EnginePlan::new(config, &LIMITS));
    let Some(plan) = accepted(ModelPlan::new(gguf, config)) else {
        return;
    };
    let bytes = plan.weight_bytes + plan.table_bytes + plan.staging_bytes;
    let max = file.len() * MODEL_BYTES_PER_FILE_BYTE + CONSTANT_BYTES;
    assert!(bytes <= max, "a plan of {bytes} bytes, at most {max}");
    load(gguf, config, plan, file);
}

/// With half of the file, the answer is the same, or that more is needed.
fn check_prefix(file: &[u8], is_ok: bool) {
    let half = &file[..file.len() / 2];
    match Gguf::parse(half, file.len() as u64) {
        Ok(gguf) => assert!(is_ok || gguf.tensor_count() > 0),
        Err(error) => {
            let more = matches!(error.kind(), GgufErrorKind::NeedMore { at_least }
                if at_least > half.len() as u64);
            assert!(more || !is_ok, "{error}");
        }
    }
}

fn walk(gguf: &Gguf<'_>, file_len: u64) {
    let mut entries = 0;
    for (key, value) in gguf.metadata() {
        entries += 1;
        walk_value(value);
        // Looking up every key takes time quadratic in their number.
        if entries <= 200 {
            assert!(gguf.get(key).is_some());
            let numbers = (gguf.u32(key), gguf.i32(key), gguf.u64(key), gguf.f32(key));
            let others = (
                gguf.bool(key),
                gguf.str(key),
                gguf.array(key),
                gguf.strings(key),
            );
            let _ = (numbers, others, gguf.bytes(key));
        }
    }
    assert_eq!(entries, gguf.metadata_count());
    assert!(gguf.get("no such key").is_none());
    assert!(gguf.tensor("no such tensor").is_none());
    assert!(gguf.alignment().is_power_of_two());
    assert!(gguf.header_bytes().len() as u64 <= file_len);
    let mut n_tensors = 0;
    for tensor in gguf.tensors() {
        n_tensors += 1;
        // Without bytes it may be anywhere.
        let is_empty = tensor.len_bytes == 0;
        assert!(is_empty || tensor.offset + tensor.len_bytes <= file_len);
    }
    assert_eq!(n_tensors, gguf.tensor_count());
}

fn walk_value(value: Value<'_>) {
    let numbers = (
        value.as_u32(),
        value.as_i32(),
        value.as_u64(),
        value.as_i64(),
    );
    let _ = (numbers, value.as_f32(), value.as_bool(), value.as_str());
    let Value::Array(array) = value else { return };
    let mut len = 0;
    for element in array {
        len += 1;
        walk_value(element);
    }
    assert_eq!(len, array.len());
    assert!(array.get(array.len()).is_none());
    if let Some(last) = array.len().checked_sub(1) {
        assert!(array.get(last).is_some());
    }
    let _ = (
        array.f32s().map(Iterator::count),
        array.u8s().map(<[u8]>::len),
    );
    if let Some(strings) = array.strings() {
        assert_eq!(strings.count() as u64, array.len());
    }
}

/// Text to tokens and back.
fn tokenize(gguf: &Gguf<'_>, file: &[u8]) {
    let Some(plan) = accepted(tokenizer::plan(gguf)) else {
        return;
    };
    let max = file.len() * TOKENIZER_BYTES_PER_FILE_BYTE + CONSTANT_BYTES;
    assert!(plan.bytes() <= max, "{} bytes, at most {max}", plan.bytes());
    let mut words = vec![0; plan.words];
    let Some(tokenizer) = accepted(Tokenizer::new(gguf, &mut words)) else {
        return;
    };
    for parse_special in [false, true] {
        let text = "ab <s>\u{e9}\u{1f980}\n  12a";
        let options = EncodeOptions {
            add_special: true,
            parse_special,
        };
        let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
        let mut ids = vec![0; tokenizer.max_tokens(text.len())];
        let ids = tokenizer.encode(text, options, &mut workspace, &mut ids);
        let Some(ids) = accepted(ids) else { continue };
        let mut detokenizer = Detokenizer::new(&tokenizer);
        let mut piece = vec![0; tokenizer.piece_len_max().max(16)];
        for &id in ids {
            assert!(id < tokenizer.n_vocab());
            accepted(tokenizer.decode_piece(id, &mut piece));
            accepted(detokenizer.push(&tokenizer, id, |_| ()));
        }
        detokenizer.finish(|_| ());
    }
}

/// The weights into panels.
fn load(gguf: &Gguf<'_>, config: &ModelConfig, plan: ModelPlan, file: &[u8]) {
    let mut weights = Aligned::new(plan.weight_bytes);
    let mut tables = Aligned::new(plan.table_bytes);
    let (weights, tables) = (weights.bytes_mut(), tables.bytes_mut());
    let Some(loader) = accepted(Loader::new(gguf, config, weights, tables)) else {
        return;
    };
    let mut staging = vec![0; plan.staging_bytes];
    let source = SliceSource(file);
    if accepted(loader.work(&source, &mut staging, || true)).is_some() {
        accepted(loader.finish(&source));
    }
}

/// A `.slc` file as it is, and with its length and checksum corrected, so that parsing goes beyond
/// them.
pub fn slc(file: &[u8]) {
    let len = file.len() as u64;
    accepted(Slc::parse(file, len).map(|_| ()));
    let Some(file) = put_right(file) else { return };
    let Some(slc) = accepted(Slc::parse(&file, len)) else {
        return;
    };
    walk(slc.gguf(), slc.header().gguf_len);
    assert_eq!(slc.tensors().count() as u64, slc.gguf().tensor_count());
    assert_eq!(slc.gaps().count(), slc.header().n_gaps as usize);
    let mut matrices: Vec<_> = slc
        .tensors()
        .flat_map(|(_, header)| {
            (0..header.n_matrices()).map(move |i| {
                let start = header.matrix_offset(i);
                [start, start + header.matrix_bytes()]
            })
        })
        .collect();
    matrices.sort_unstable();
    assert!(matrices.iter().all(|matrix| matrix[1] <= len));
    assert!(matrices.windows(2).all(|pair| pair[0][1] <= pair[1][0]));
    tokenize(slc.gguf(), &file);
    inside(&slc, &file);
    if let Some(config) = accepted(ModelConfig::from_gguf(slc.gguf()))
        && let Some(plan) = accepted(ModelPlan::in_place(&slc, &config))
    {
        let start = usize::try_from(slc.header().payload_offset()).expect("it is in memory");
        let mut payloads = Aligned::new(file.len() - start);
        payloads.bytes_mut().copy_from_slice(&file[start..]);
        let mut tables = Aligned::new(plan.table_bytes);
        let (payloads, tables) = (payloads.bytes_mut(), tables.bytes_mut());
        accepted(ModelWeights::in_place(&slc, &config, payloads, tables));
    }
}

/// The start and the end of each tensor of the GGUF file in a `.slc` file.
fn inside(slc: &Slc<'_>, file: &[u8]) {
    let Some(gguf) = accepted(GgufInSlc::new(slc)) else {
        return;
    };
    let mut room = [0; 1000];
    for tensor in slc.gguf().tensors() {
        let len = tensor.len_bytes.min(room.len() as u64);
        let into = &mut room[..usize::try_from(len).expect("short")];
        for at in [0, tensor.len_bytes - len] {
            accepted(gguf.read(&SliceSource(file), tensor.offset + at, into));
        }
    }
}

/// The file with its own length, and the checksum of everything before its payloads.
fn put_right(file: &[u8]) -> Option<Vec<u8>> {
    let field = |from: usize| file.get(from..)?.first_chunk::<4>().copied();
    let field = |from| field(from).map(u32::from_le_bytes);
    let header = FileHeader {
        file_len: file.len() as u64,
        gguf_len: 0,
        gguf_header_len: field(24)?.into(),
        n_tensors: field(32)?,
        n_gaps: field(36)?,
        gguf_sha256: [0; 32],
        // More than the file has room for is refused before.
        n_matrices: u64::from(field(72)?).min(file.len() as u64 / 4096),
    };
    let mut file = file.to_vec();
    file[8..16].copy_from_slice(&header.file_len.to_le_bytes());
    let end = usize::try_from(header.payload_offset()).ok()?;
    seal(file.get_mut(..end)?);
    Some(file)
}

/// The header of an expert blob.
pub fn uth(file: &[u8]) {
    assert_eq!(
        Blob::is_uth(file),
        matches!(file.get(..4), Some(b"UTH1" | b"UTH2"))
    );
    // The weights need not be there, so a short input may be the start of a long blob: as long as
    // a file can be.
    for len in [file.len() as u64, 1 << 20, i64::MAX.unsigned_abs()] {
        let Some(blob) = accepted(Blob::parse(file, len)) else {
            continue;
        };
        let shapes = Blob::shapes(blob.n_embd, blob.n_ff);
        for (projection, shape) in blob.projections.iter().zip(shapes) {
            let [n_rows, n_cols] = shape.map(u64::from);
            assert_eq!(projection.shape, shape);
            assert!(projection.range.start >= blob.payload_offset);
            assert!(projection.range.end <= len);
            assert_eq!(
                projection.dtype.matrix_bytes(n_rows, n_cols),
                Some(projection.range.end - projection.range.start)
            );
        }
    }
}

/// An importance matrix of either kind.
pub fn imatrix(file: &[u8]) {
    let Some(matrix) = accepted(ImportanceMatrix::from_bytes(file)) else {
        return;
    };
    for weight in matrix.weights.values() {
        let n_matrices = weight.counts.len();
        let n_columns = weight.sums.len() / n_matrices;
        for index in [0, n_matrices - 1] {
            let columns = weight.columns(index, n_columns);
            assert!(columns.iter().all(|x| *x >= 0.0));
        }
    }
    let mut sum = matrix.clone();
    accepted(sum.merge(matrix));
}

/// A chat template, rendered for three conversations.
pub fn chat_template(source: &[u8]) {
    let Ok(source) = core::str::from_utf8(source) else {
        return;
    };
    let Some(template) = accepted(ChatTemplate::parse(source)) else {
        return;
    };
    let (conversations, options) = conversations();
    for messages in &conversations {
        let result = template.render(messages, &options);
        if let Err(ChatTemplateError::Template(TemplateError::Render { line, reason })) = &result {
            // A panic inside has no line.
            assert!(*line > 0, "{reason}");
        }
        // What takes as long as it may need not be tried with the other conversations.
        let is_long = matches!(&result, Err(error) if error.to_string().contains("too long"));
        if let Some(prompt) = accepted(result) {
            assert!(prompt.len() <= sluice_jinja::OUTPUT_BYTES_MAX);
        }
        if is_long {
            return;
        }
    }
}

fn conversations() -> ([Vec<Message>; 3], RenderOptions) {
    let tool = serde_json::json!({"type": "function", "function": {
        "name": "weather", "parameters": {"type": "object", "properties": {"city": {}}},
    }});
    let call = serde_json::json!({"role": "assistant", "tool_calls": [{"id": "abcdefghi",
        "function": {"name": "weather", "arguments": {"city": "Z\u{fc}rich", "days": [1, 2.5]}},
    }]});
    let call = serde_json::from_value(call).expect("a message");
    let (system, user) = (
        Message::new("system", "Be\nkind."),
        Message::new("user", " Hi! "),
    );
    let answer = Message::new("assistant", "<think>\nhm\n</think>Yes?");
    let options = RenderOptions {
        add_generation_prompt: true,
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        tools: Some(vec![tool]),
        now: Some(UNIX_EPOCH),
        ..RenderOptions::default()
    };
    let talk = vec![system, user.clone(), answer];
    let tools = vec![user, call, Message::new("tool", "grey")];
    ([talk, tools, vec![]], options)
}

/// The header of a safetensors file.
pub fn safetensors(file: &[u8]) {
    let parsed = safetensors::Header::parse(file, file.len() as u64);
    accepted(parsed.map(|_| ()));
}

/// A `tokenizer.json`.
pub fn tokenizer_json(file: &[u8]) {
    accepted(tokenizer_json::parse_tokenizer(file));
}

/// A SentencePiece `tokenizer.model`.
pub fn sentencepiece(file: &[u8]) {
    accepted(sentencepiece::parse_model(file));
}

/// A grammar in GBNF, and a text that follows it.
pub fn gbnf(source: &[u8]) {
    constrain(source, GrammarSource::Gbnf);
}

/// A JSON schema, and a document that follows it.
pub fn json_schema(source: &[u8]) {
    constrain(source, GrammarSource::JsonSchema);
}

/// Takes tokens that the grammar allows, some from each end of the vocabulary, until the text is
/// complete or long.
fn constrain(source: &[u8], kind: fn(String) -> GrammarSource) {
    static VOCABULARY: LazyLock<Vec<u8>> = LazyLock::new(seeds::byte_vocabulary);
    let Ok(source) = core::str::from_utf8(source) else {
        return;
    };
    let gguf = Gguf::parse(&VOCABULARY, VOCABULARY.len() as u64).expect("it was made sound");
    let mut words = vec![0; tokenizer::plan(&gguf).expect("it has a tokenizer").words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).expect("it has a tokenizer");
    let Some(mut grammar) = accepted(Grammar::new(&kind(source.to_owned()), &tokenizer)) else {
        return;
    };
    for step in 0..TOKENS_MAX {
        let Some(mask) = accepted(grammar.mask().map(<[u64]>::to_vec)) else {
            return;
        };
        let allowed = |id: &u32| mask[*id as usize / 64] >> (id % 64) & 1 == 1;
        let ids: Vec<u32> = (0..tokenizer.n_vocab()).filter(allowed).collect();
        let ends = |id: &u32| tokenizer.is_end_of_generation(*id);
        assert_eq!(
            ids.iter().any(ends),
            grammar.may_end(),
            "after {step} tokens"
        );
        if grammar.is_complete() {
            assert!(ids.iter().all(ends), "after the end");
            return;
        }
        let texts: Vec<u32> = ids.into_iter().filter(|id| !ends(id)).collect();
        let place = [0, texts.len().saturating_sub(1), texts.len() / 2][step % 3];
        let Some(&token) = texts.get(place) else {
            // An empty grammar, or one whose texts this vocabulary cannot write.
            return;
        };
        if accepted(grammar.accept(token)).is_none() {
            return;
        }
    }
    grammar.restart();
    accepted(grammar.mask().map(|_| ()));
}

/// The value; `None` for an error, whose message must not be empty.
fn accepted<T, E: Display>(result: Result<T, E>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.to_string().len() > 3);
            None
        }
    }
}

/// Maximum number of tokens in a text by a grammar.
const TOKENS_MAX: usize = 40;
const LIMITS: EngineLimits = EngineLimits {
    n_batch: 2,
    n_outputs: 2,
    ..EngineLimits::single(64, 1)
};
/// As in the test `hostile_model`, and for the same reasons.
const MODEL_BYTES_PER_FILE_BYTE: usize = 16;
const TOKENIZER_BYTES_PER_FILE_BYTE: usize = 4;
const CONSTANT_BYTES: usize = 256 << 10;
