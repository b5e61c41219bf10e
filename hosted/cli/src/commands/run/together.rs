//! Several prompts in one session: each step of the model advances all of them.

use super::args::RunArgs;
use super::prompts::{self, Prompt};
use super::{describe, prompt};
use crate::flags::adapters::LoadedAdapters;
use crate::flags::open::LocalModel;
use crate::flags::speculation;
use crate::outcome::{Ending, UsageError};
use crate::ui::format::Bytes;
use crate::ui::output::{TextOutput, note};
use anyhow::{Context as _, anyhow, bail};
use core::time::Duration;
use serde_json::{Value, json};
use sluice::adapter::AdapterBlend;
use sluice::generate::{EndReason, GenerateError};
use sluice::host::process::peak_memory_bytes;
use sluice::host::profile::Profile;
use sluice::host::{interrupt, isa};
use sluice::sequence::{Sequence, StopStrings};
use sluice::session::TokenEvent;
use sluice::{Limits, Session, Settings};
use sluice_text::sampling::SamplingSettings;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(super) fn run(args: &RunArgs, path: &Path) -> anyhow::Result<Ending> {
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let table =
        isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
    let settings = args.sampling.settings(!args.no_escape)?;
    args.speculation.check()?;
    args.adapters.check()?;
    let prompts = prompts::read(path)?;
    let model_path = args.model.path()?;
    let opened = LocalModel::open(model_path.as_deref(), &args.engine)?;
    opened.check_decoder()?;
    let texts = Text::all(args, &opened, path, prompts)?;
    let n_ctx = args.engine.n_ctx(opened.config());
    // Whether `--grammar` was given: each text gets a grammar of its own.
    args.sampling
        .sampler(&settings, opened.tokenizer(), n_ctx)?;
    let limits = Limits {
        n_ctx,
        types: Some(args.engine.cache_types()),
        kv_rotation: !args.engine.no_kv_rotation,
        table: Some(table),
        ..Limits::default()
    };
    let limits = args.speculation.limits(&opened, limits)?;
    describe(&opened, args, &limits, &settings);
    let n_workers = args.engine.n_workers(opened.cores.default_workers());
    let Some((model, team)) = opened.load(n_workers, stop)? else {
        return Ok(Ending::Interrupted);
    };
    let limits = limits_for(args, &opened, &texts, limits);
    let session = args.engine.session(&model, &team, limits);
    let mut session = session.with_context(|| {
        let n_seq = limits.n_seq;
        format!("not enough memory for {n_seq} texts at once: run fewer (-np) or shorter ones (-n)")
    })?;
    session.set_stop(stop);
    if !args
        .speculation
        .begin(&mut session, args.engine.draft_file(), &limits, stop)?
    {
        return Ok(Ending::Interrupted);
    }
    if args.profile {
        session.set_profile(Some(Profile::new(model.config().n_layer(), n_workers)));
    }
    let mut work = Together {
        args,
        settings: &settings,
        n_ctx,
        output: TextOutput::new(),
        session,
        running: Vec::new(),
        results: vec![None; texts.len()],
        texts,
        n_begun: 0,
        n_shown: 0,
        n_written: 0,
    };
    let start = Instant::now();
    let is_interrupted = work.write_all()?;
    work.say(start.elapsed());
    if let Some(profile) = work.session.profile() {
        note(format_args!("\n{profile}"));
    }
    speculation::say(&mut work.session, args.profile);
    Ok(match is_interrupted {
        true => Ending::Interrupted,
        false => Ending::Done,
    })
}

/// The size of the session, given the `limits` of one text.
fn limits_for(args: &RunArgs, opened: &LocalModel<'_>, texts: &[Text], limits: Limits) -> Limits {
    let (n_seq, n_ctx) = at_once(texts, asked(args, texts.len()), limits.n_ctx);
    let n_tokens: usize = texts.iter().map(|text| text.tokens.len()).sum();
    let blends = || texts.iter().filter_map(|text| text.blend.as_ref());
    Limits {
        n_ctx,
        n_seq,
        // Each running text has a token in each step.
        n_batch: super::n_batch(args, opened, n_tokens).max(n_seq),
        adapter_rank: blends().map(AdapterBlend::rank).max().unwrap_or(0),
        adapter_kinds: blends().map(AdapterBlend::kinds).collect(),
        ..limits
    }
}

/// The requested number of texts at once.
fn asked(args: &RunArgs, n_texts: usize) -> usize {
    let asked = usize::try_from(args.prompts.parallel).unwrap_or(0);
    let asked = if asked == 0 { DEFAULT_AT_ONCE } else { asked };
    asked.min(n_texts)
}

/// The default of `--parallel`.
const DEFAULT_AT_ONCE: usize = 16;

/// A prompt, ready to be continued.
struct Text {
    prompt: Prompt,
    tokens: Vec<u32>,
    /// Adapters and their factors.
    lora: Vec<(PathBuf, f32)>,
    blend: Option<AdapterBlend>,
    /// Maximum number of tokens to generate; `None` for as many as fit.
    n_predict: Option<usize>,
    /// Maximum number of tokens that fit after the prompt: the last one is not entered.
    n_room: usize,
    stops: StopStrings,
}

impl Text {
    /// What the file and the flags request, validated.
    ///
    /// # Errors
    /// An adapter cannot be used, or a prompt cannot be continued; the error names the line.
    fn all(
        args: &RunArgs,
        opened: &LocalModel<'_>,
        path: &Path,
        prompts: Vec<Prompt>,
    ) -> anyhow::Result<Vec<Self>> {
        let own = args.adapters.parts()?;
        let mut adapters = LoadedAdapters::new(&args.adapters.load, opened);
        let name = prompts::name(path);
        let texts = prompts.into_iter().map(|prompt| {
            let line = prompt.line;
            Self::new(args, opened, &own, &mut adapters, prompt)
                .with_context(|| format!("{name}, line {line}"))
        });
        texts.collect()
    }

    fn new(
        args: &RunArgs,
        opened: &LocalModel<'_>,
        own: &[(PathBuf, f32)],
        adapters: &mut LoadedAdapters<'_>,
        prompt: Prompt,
    ) -> anyhow::Result<Self> {
        let lora = prompt.lora.as_deref().unwrap_or(own).to_vec();
        let blend = adapters.blend(&lora)?;
        let tokens = prompt::encode(opened, &prompt.text)?;
        let n_ctx = args.engine.n_ctx(opened.config());
        let Some(n_room) = (n_ctx + 1).checked_sub(tokens.len()).filter(|n| *n > 0) else {
            bail!(
                "the prompt has {} tokens, more than the context of {n_ctx}: shorten it or raise -c",
                tokens.len()
            );
        };
        let stops = match &prompt.stop {
            None => args.sampling.stops(!args.no_escape)?,
            Some(texts) => {
                let mut stops = StopStrings::new();
                texts.iter().for_each(|text| stops.add(text, false));
                stops
            }
        };
        let n_predict = prompt.n_predict.unwrap_or(args.n_predict);
        Ok(Self {
            tokens,
            lora,
            blend,
            n_predict: usize::try_from(n_predict).ok(),
            n_room,
            stops,
            prompt,
        })
    }

    /// Maximum number of generated tokens.
    fn n_max(&self) -> usize {
        self.n_predict.unwrap_or(self.n_room).min(self.n_room)
    }

    /// Maximum number of tokens in the KV cache.
    fn n_needed(&self) -> usize {
        self.tokens.len() + self.n_max().saturating_sub(1)
    }

    /// The result, with llama.cpp's names.
    fn line(&self, index: usize, content: &str, ended: EndReason, n_predicted: usize) -> String {
        let lora = self.lora.iter().map(|(path, scale)| {
            // As it was written, which an f64 of the same value would not preserve.
            let scale: Value = serde_json::from_str(&format!("{scale:?}")).unwrap_or_default();
            json!({"path": path.display().to_string(), "scale": scale})
        });
        let object = json!({
            "index": index,
            "prompt": self.prompt.text,
            "content": content,
            "stop_type": ended.name(),
            "tokens_evaluated": self.tokens.len(),
            "tokens_predicted": n_predicted,
            "lora": lora.collect::<Vec<_>>(),
        });
        format!("{object}\n")
    }
}

/// How many texts run at once, and the tokens of a KV cache in which none takes another's place.
fn at_once(texts: &[Text], n_asked: usize, n_ctx: usize) -> (usize, usize) {
    let mut needs: Vec<_> = texts.iter().map(Text::n_needed).collect();
    needs.sort_unstable_by(|a, b| b.cmp(a));
    let sizes = (1..=n_asked).rev().filter_map(|n| {
        let all = needs[..n].iter().sum::<usize>();
        (all <= N_CTX_MAX).then_some((n, all))
    });
    let found = sizes.into_iter().next().unwrap_or((1, n_ctx));
    if found.0 < n_asked {
        note(format_args!(
            "texts at once: {}, as more would need a KV cache of more than {N_CTX_MAX} tokens (-c, -n)",
            found.0
        ));
    }
    found
}

/// Maximum number of tokens in a KV cache, as defined by core.
const N_CTX_MAX: usize = 1 << 24;

/// A running text.
struct Running {
    index: usize,
    sequence: Sequence,
    stops: StopStrings,
    content: String,
    n_predicted: usize,
    /// Why it ended.
    ended: Option<EndReason>,
}

/// All texts.
struct Together<'t> {
    args: &'t RunArgs,
    settings: &'t SamplingSettings,
    /// The context of one text.
    n_ctx: usize,
    output: TextOutput,
    session: Session,
    texts: Vec<Text>,
    running: Vec<Running>,
    /// The lines of finished texts that are not printed yet.
    results: Vec<Option<String>>,
    n_begun: usize,
    n_shown: usize,
    /// Number of generated tokens.
    n_written: usize,
}

impl Together<'_> {
    /// Continues all prompts. Returns whether Ctrl-C ended that.
    ///
    /// # Errors
    /// A step failed, or no token could be chosen for a text.
    fn write_all(&mut self) -> anyhow::Result<bool> {
        loop {
            self.begin()?;
            self.show()?;
            if self.running.is_empty() || self.output.is_closed() {
                return Ok(false);
            }
            let mut sequences: Vec<_> = self.running.iter_mut().map(|r| &mut r.sequence).collect();
            let events = match self.session.step(&mut sequences) {
                Ok(events) => events,
                Err(GenerateError::Step(error)) if error.is_cancelled() => return Ok(true),
                Err(error) => return Err(error.into()),
            };
            for event in events {
                self.take(&event);
            }
            self.finish()?;
        }
    }

    /// Starts texts as long as there is room.
    fn begin(&mut self) -> anyhow::Result<()> {
        while self.n_begun < self.texts.len() && self.running.len() < self.session.limits().n_seq {
            let (index, text) = (self.n_begun, &self.texts[self.n_begun]);
            self.n_begun += 1;
            if text.n_max() == 0 {
                self.results[index] = Some(text.line(index, "", EndReason::Length, 0));
                continue;
            }
            let tokenizer = self.session.model().tokenizer();
            let sampling = &self.args.sampling;
            let sampler = sampling.sampler(self.settings, tokenizer, self.n_ctx)?;
            let settings = Settings {
                n_predict: Some(text.n_max()),
                ignore_eos: sampling.ignore_eos,
                adapter: text.blend.clone(),
                ..Settings::default()
            };
            let mut sequence = self.session.add_with(&settings, Box::new(sampler))?;
            sequence.push(&text.tokens, 1);
            self.running.push(Running {
                index,
                sequence,
                stops: text.stops.clone(),
                content: String::new(),
                n_predicted: 0,
                ended: None,
            });
        }
        Ok(())
    }

    /// Adds a token to its text.
    fn take(&mut self, event: &TokenEvent) {
        let running = &mut self.running[event.sequence];
        if running.ended.is_some() {
            // Its stop string was found among drafted tokens; this one follows it.
            return;
        }
        let text = &self.texts[running.index];
        let tokenizer = self.session.model().tokenizer();
        let ends = tokenizer.is_end_of_generation(event.token) && !self.args.sampling.ignore_eos;
        running.n_predicted += usize::from(!ends);
        self.n_written += usize::from(!ends);
        let content = &mut running.content;
        let is_stopped = running
            .stops
            .push(&event.piece, |part| content.push_str(part));
        running.ended = match event.ended {
            _ if is_stopped => Some(EndReason::EndOfText),
            // It reached the length that the context allows.
            Some(EndReason::Length) if text.n_predict.is_none_or(|n| n > text.n_room) => {
                Some(EndReason::ContextFull)
            }
            ended => ended,
        };
    }

    /// Removes the texts that have ended.
    fn finish(&mut self) -> anyhow::Result<()> {
        let (done, running) = core::mem::take(&mut self.running)
            .into_iter()
            .partition::<Vec<_>, _>(|r| r.ended.or(r.sequence.ended()).is_some());
        self.running = running;
        for mut done in done {
            let text = &self.texts[done.index];
            if let Some(error) = done.sequence.failure() {
                let line = text.prompt.line;
                return Err(anyhow!(
                    "prompt of line {line}: no token could be chosen: {error}"
                ));
            }
            let content = &mut done.content;
            done.stops.finish(|part| content.push_str(part));
            let ended = done.ended.unwrap_or(EndReason::EndOfText);
            let line = text.line(done.index, &done.content, ended, done.n_predicted);
            self.results[done.index] = Some(line);
            self.session.remove(done.sequence)?;
        }
        Ok(())
    }

    /// Reports the totals.
    fn say(&self, time: Duration) {
        let (n_texts, n_written) = (self.texts.len(), self.n_written);
        let (session, seconds) = (&self.session, time.as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
        let rate = n_written as f64 / seconds.max(1e-9);
        note(format_args!(
            "{} of {n_texts} prompts done, {} at once: {n_written} tokens in {seconds:.2} s, {rate:.2} per second; \
             {} threads, isa {}, peak memory {}",
            self.n_shown,
            session.limits().n_seq,
            session.team().count(),
            session.table().name(),
            Bytes(peak_memory_bytes().unwrap_or(0))
        ));
    }

    /// Prints the results of finished texts, in order of the prompts.
    fn show(&mut self) -> anyhow::Result<()> {
        while let Some(line) = self.results.get_mut(self.n_shown).and_then(Option::take) {
            self.output.write(&line)?;
            self.n_shown += 1;
        }
        Ok(())
    }
}
