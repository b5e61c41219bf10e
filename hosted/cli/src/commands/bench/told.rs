//! `--told`: how fast a recorded text is generated with and without draft tokens.
//!
//! A model with random weights generates nothing that could be drafted, so the tokens of a recorded text are used
//! instead: times are those of the model, the acceptance is that of the text. Without a recorded answer, the model's
//! own greedy answer is used.

use super::args::{BenchArgs, Format};
use super::in_turn::percentile;
use crate::flags::engine::DraftFile;
use crate::flags::open::{load, with_activation};
use crate::outcome::{Ending, UsageError};
use crate::ui::input;
use crate::ui::output::TextOutput;
use anyhow::{Context as _, bail};
use core::time::Duration;
use serde::Deserialize;
use serde_json::json;
use sluice::core::sampler::{SamplerConfig, greedy};
use sluice::core::tokenizer::EncodeOptions;
use sluice::host::{interrupt, isa};
use sluice::model::ModelSource;
use sluice::sequence::{ChoiceContext, ChoiceError, Choose};
use sluice::session::GenerateError;
use sluice::speculate::{Figures, Speculation};
use sluice::{Limits, Session, Settings};
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{Sampler, SamplingSettings};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A text of `--told`, from a JSON object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    /// The file's name without its extension.
    #[serde(skip)]
    name: String,
    prompt: String,
    /// The text to generate; by default the model's own answer.
    answer: Option<String>,
    /// JSON schema of the answer: a grammar whose literal parts are draft tokens.
    schema: Option<serde_json::Value>,
    /// Maximum number of tokens of the model's own answer.
    #[serde(default = "n_predict")]
    n_predict: usize,
}

const fn n_predict() -> usize {
    256
}

impl Script {
    /// Reads all files before the first is measured.
    ///
    /// # Errors
    /// A file is not in this format.
    pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<Self>> {
        let each = paths
            .iter()
            .map(|path| Self::of(path).context(path.display().to_string()));
        each.collect()
    }

    fn of(path: &Path) -> anyhow::Result<Self> {
        let text = input::text("file", path)?;
        let mut told: Self = serde_json::from_str(&text)?;
        let stem = path.file_stem().unwrap_or_default();
        told.name = stem.to_string_lossy().into_owned();
        Ok(told)
    }
}

/// Chooses the recorded tokens, after scanning all logits as a greedy sampler does.
#[derive(Debug)]
struct Teller {
    tokens: Vec<u32>,
    n_prompt: usize,
    grammar: Option<Sampler>,
}

impl Choose for Teller {
    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        let best = greedy(logits).map_err(ChoiceError::new)?;
        let at = choice.history.len() - self.n_prompt;
        let Some(&token) = self.tokens.get(at) else {
            return Ok(best);
        };
        match &mut self.grammar {
            None => Ok(token),
            // Drafts follow the recorded text, so it would choose the same.
            Some(sampler) => {
                let mut logits = vec![0.0; logits.len()];
                logits[token as usize] = 1.0;
                sampler.choose(&logits, choice)
            }
        }
    }

    fn forced(&mut self) -> Vec<u32> {
        self.grammar.as_mut().map_or_else(Vec::new, Choose::forced)
    }

    fn n_allowed(&mut self, tokens: &[u32]) -> usize {
        let grammar = self.grammar.as_mut();
        grammar.map_or(tokens.len(), |grammar| grammar.n_allowed(tokens))
    }
}

/// A text as tokens of a model.
struct Ready<'t> {
    told: &'t Script,
    prompt: Vec<u32>,
    answer: Vec<u32>,
    grammar: Option<Sampler>,
}

/// One generation of a text.
struct TextRun {
    tokens: Vec<u32>,
    /// Time from the first token to the last.
    time: Duration,
}

/// Measures all texts with all models and prints one line each.
pub(super) fn bench(args: &BenchArgs, texts: &[Script]) -> anyhow::Result<Ending> {
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    args.speculation.check()?;
    let isa = args.isa.first().filter(|name| !name.is_empty());
    let table = isa::kernel_table(isa.map(String::as_str));
    let table = table.map_err(|error| UsageError(error.to_string()))?;
    let cores = args.placement.cores(args.load_mode.ends_with("mlock"));
    let mut out = TextOutput::new();
    if args.output == Format::Md {
        out.write(HEAD)?;
    }
    for path in &args.model {
        let opened = with_activation(&ModelSource::open(path, args.mode())?, args.activation)?;
        let opened = args.sparse.of(&opened)?;
        let team = args.placement.team(cores.default_workers(), &cores)?;
        let Some(model) = load(&opened, args.file_use(), &team, stop)? else {
            return Ok(Ending::Interrupted);
        };
        let limits = Limits {
            n_ctx: BenchArgs::n_ctx_told(&model),
            table: Some(table),
            sparse: args.sparse.sparse,
            ..Limits::default()
        };
        let mut plain = model.session_on(&team, limits)?;
        let limits = args.speculation.limits(&opened, limits)?;
        let mut drafting = model.session_on(&team, limits)?;
        let file = DraftFile {
            load_mode: args.mode(),
            is_checked: false,
        };
        if !args.speculation.begin(&mut drafting, file, &limits, stop)? {
            return Ok(Ending::Interrupted);
        }
        for session in [&mut plain, &mut drafting] {
            session.set_stop(stop);
        }
        for text in texts {
            let ready = Ready::new(text, &mut plain)?;
            let Some(line) = line(args, &mut plain, &mut drafting, &ready)? else {
                return Ok(Ending::Interrupted);
            };
            out.write(&line)?;
        }
    }
    Ok(Ending::Done)
}

const HEAD: &str = "\
| model | text | tokens | plain t/s | drafted t/s | ratio | accepted | tokens per pass |
| --- | --- | --: | --: | --: | --: | --: | --: |
";

impl<'t> Ready<'t> {
    fn new(told: &'t Script, session: &mut Session) -> anyhow::Result<Self> {
        let model = session.model().clone();
        let tokenizer = model.tokenizer();
        let prompt = model.encode(&told.prompt, true)?;
        let grammar = match &told.schema {
            None => None,
            Some(schema) => {
                let source = GrammarSource::JsonSchema(schema.to_string());
                let settings = SamplingSettings {
                    config: SamplerConfig {
                        temperature: 0.0,
                        ..SamplerConfig::DEFAULT
                    },
                    ..SamplingSettings::default()
                };
                let sampler = Sampler::new(&settings, tokenizer, session.limits().n_ctx)?;
                Some(sampler.with_grammar(Grammar::new(&source, tokenizer)?))
            }
        };
        let mut ready = Self {
            told,
            prompt,
            answer: Vec::new(),
            grammar,
        };
        ready.answer = match &told.answer {
            Some(answer) => {
                // Tokenized after the prompt, so that the first token is the one it has there.
                let options = EncodeOptions {
                    add_special: false,
                    parse_special: false,
                };
                model.encode_with(answer, options)?
            }
            None => {
                let own = ready.write(session, 0)?;
                own.map_or_else(Vec::new, |own| own.tokens)
            }
        };
        let n_ctx = session.limits().n_ctx;
        let n_tokens = ready.prompt.len() + ready.answer.len();
        if n_tokens > n_ctx {
            bail!(
                "{}: {n_tokens} tokens exceed the context of {n_ctx}",
                told.name
            );
        }
        Ok(ready)
    }

    /// Generates the text once without learning from earlier runs. `None` if it was stopped.
    fn write(&self, session: &mut Session, time: u64) -> anyhow::Result<Option<TextRun>> {
        let n_predict = match self.answer.len() {
            0 => self.told.n_predict,
            n => n,
        };
        let settings = Settings {
            n_predict: Some(n_predict),
            ignore_eos: true,
            domain: time,
            ..Settings::default()
        };
        let teller = Teller {
            tokens: self.answer.clone(),
            n_prompt: self.prompt.len(),
            grammar: self.grammar.clone(),
        };
        let mut sequence = session.add_with(&settings, Box::new(teller))?;
        sequence.push(&self.prompt, 1);
        let (mut tokens, mut first) = (Vec::new(), Instant::now());
        while sequence.ended().is_none() {
            let events = match session.step(&mut [&mut sequence]) {
                Ok(events) => events,
                Err(GenerateError::Step(error)) if error.is_cancelled() => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if tokens.is_empty() {
                first = Instant::now();
            }
            tokens.extend(events.iter().map(|event| event.token));
        }
        let time = first.elapsed();
        if let Some(error) = sequence.failure() {
            return Err(error.into());
        }
        session.remove(sequence)?;
        Ok(Some(TextRun { tokens, time }))
    }
}

/// The line of a text. `None` if it was stopped.
fn line(
    args: &BenchArgs,
    plain: &mut Session,
    drafting: &mut Session,
    ready: &Ready<'_>,
) -> anyhow::Result<Option<String>> {
    let figures = |session: &Session| {
        session
            .speculation()
            .map_or_else(Figures::default, |all| *all.figures())
    };
    let before = figures(drafting);
    let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    let mut n_tokens = 0;
    for time in 0..u64::from(args.repetitions) {
        let (Some(one), Some(other)) = (ready.write(plain, time)?, ready.write(drafting, time)?)
        else {
            return Ok(None);
        };
        if one.tokens != other.tokens {
            bail!("{}: the text differs with drafts", ready.told.name);
        }
        n_tokens = one.tokens.len();
        let rate = |written: &TextRun| per_second(n_tokens.saturating_sub(1), written.time);
        rates[0].push(rate(&one));
        rates[1].push(rate(&other));
        ratios.push(rate(&other) / rate(&one).max(1e-9));
    }
    let failure = drafting.speculation_mut().and_then(Speculation::failure);
    if let Some(failure) = failure {
        bail!("{}: drafting stopped: {failure}", ready.told.name);
    }
    let all = figures(drafting).since(&before);
    let [plain_rate, drafted_rate] = rates.map(|rates| percentile(rates.into_iter(), 50));
    let (ratio, name) = (percentile(ratios.into_iter(), 50), &ready.told.name);
    let model = plain.model().name();
    Ok(Some(match args.output {
        Format::Md => format!(
            "| {model} | {name} | {n_tokens} | {plain_rate:.2} | {drafted_rate:.2} | {ratio:.2} | {:.3} | {:.2} |\n",
            all.acceptance(),
            all.tokens_per_pass()
        ),
        _ => {
            let object = json!({
                "model": model,
                "text": name,
                "n_tokens": n_tokens,
                "plain_ts": plain_rate,
                "drafted_ts": drafted_rate,
                "ratio": ratio,
                "n_draft": all.n_draft,
                "n_accepted": all.n_accepted,
                "tokens_per_pass": all.tokens_per_pass(),
                "isa": plain.table().name(),
                "n_threads": plain.team().count(),
            });
            format!("{object}\n")
        }
    }))
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn per_second(n: usize, time: Duration) -> f64 {
    n as f64 / time.as_secs_f64().max(1e-9)
}
