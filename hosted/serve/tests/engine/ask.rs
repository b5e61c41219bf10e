//! Requests and answers for the tests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::cell::OnceCell;
use core::time::Duration;
use sluice::draft::DraftModel;
use sluice::host::isa::kernel_table;
use sluice::host::topology::Cores;
use sluice::speculate::{Drafter, SpeculationOptions};
use sluice::{Limits, Model, Team};
use sluice_core::sampler::SamplerConfig;
use sluice_serve::engine::{
    CacheDomain, Choice, EngineHandle, EngineOptions, Event, Job, JobError, ModelId, ModelOptions,
    Share, Stops, Timings, Why,
};
use sluice_serve::metrics::Metrics;
use sluice_text::sampling::{Sampler, SamplingSettings};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::mpsc;

/// Attention alone.
pub(crate) fn tale() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL
        .get_or_init(|| open("../models/tale-5.8m-Q4_K_M.gguf"))
        .clone()
}

/// Short convolutions and attention.
pub(crate) fn lfm2() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL
        .get_or_init(|| open("../../tests/fixtures/models/lfm2-Q4_K_M.gguf"))
        .clone()
}

/// A tiny model with random weights.
pub(crate) fn tiny(name: &str) -> Model {
    open(&format!("../../tests/fixtures/models/{name}.gguf"))
}

/// A tiny longrope model with an original context of `n_ctx_orig` tokens.
pub(crate) fn longrope(n_ctx_orig: u32) -> Model {
    const KEY: &[u8] = b"llama.rope.scaling.original_context_length";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    let mut file = std::fs::read(folder.join("llama-longrope.gguf")).unwrap();
    // After the key there is a type, of 32 bits, and the number.
    let at = file
        .windows(KEY.len())
        .position(|bytes| bytes == KEY)
        .unwrap()
        + KEY.len();
    file[at + 4..at + 8].copy_from_slice(&n_ctx_orig.to_le_bytes());
    let name = format!("sluice-longrope-{}-{n_ctx_orig}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, file).unwrap();
    let model = Model::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    model
}

fn open(path: &str) -> Model {
    Model::open(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The setup of an engine.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) model: Model,
    pub(crate) n_ctx: usize,
    pub(crate) n_seq: usize,
    pub(crate) n_workers: usize,
    pub(crate) isa: Option<&'static str>,
    pub(crate) turn: Duration,
    pub(crate) max_queue: usize,
    pub(crate) cache_ram: u64,
    pub(crate) channel: usize,
    pub(crate) gathers: bool,
    pub(crate) reader_buffer: usize,
    pub(crate) disk: Option<PathBuf>,
    pub(crate) drafts: Option<SpeculationOptions>,
    /// Whether the model also drafts with its own head.
    pub(crate) drafts_by_itself: bool,
    pub(crate) kept: OnceCell<(EngineHandle, ModelId)>,
}

impl Setup {
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            model: model.clone(),
            n_ctx: 512,
            n_seq: 4,
            n_workers: 2,
            isa: None,
            turn: Duration::from_millis(50),
            max_queue: 1000,
            cache_ram: 64 << 20,
            channel: 64,
            gathers: false,
            reader_buffer: 1 << 20,
            disk: None,
            drafts: Some(SpeculationOptions::default()),
            drafts_by_itself: false,
            kept: OnceCell::new(),
        }
    }

    pub(crate) fn n_embd(&self) -> usize {
        self.model.config().n_embd
    }

    pub(crate) fn is_recurrent(&self) -> bool {
        self.model.config().is_recurrent()
    }

    /// Adds a temporary folder for pages.
    pub(crate) fn with_disk(mut self, name: &str) -> Self {
        let name = format!(
            "sluice-engine-{}-{name}-{}",
            std::process::id(),
            self.n_embd()
        );
        let folder = std::env::temp_dir().join(name);
        let _gone = std::fs::remove_dir_all(&folder);
        self.disk = Some(folder);
        self
    }

    pub(crate) fn remove_disk(&self) {
        std::fs::remove_dir_all(self.disk.as_ref().unwrap()).unwrap();
    }

    /// Changes one byte of every page on disk.
    pub(crate) fn damage_pages(&self) {
        let mut n = 0;
        let subfolders = std::fs::read_dir(self.disk.as_ref().unwrap()).unwrap();
        let files = subfolders.filter_map(|sub| std::fs::read_dir(sub.unwrap().path()).ok());
        for file in files.flatten() {
            let path = file.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 0x10;
            std::fs::write(path, bytes).unwrap();
            n += 1;
        }
        assert!(n > 0);
    }

    pub(crate) fn engine(&self) -> (EngineHandle, ModelId) {
        let team = Team::new(self.n_workers, &Cores::detect()).unwrap();
        let options = EngineOptions {
            turn: self.turn,
            prompt_share: 0.25,
            max_queue: self.max_queue,
            reader_buffer: self.reader_buffer,
            cache_ram: self.cache_ram,
            cache_dir: self.disk.clone(),
            cache_disk: 1 << 30,
            checkpoint_every: 4096,
            max_adapters: 0,
            telemetry: None,
        };
        let engine = EngineHandle::start(team, options, Arc::new(|_: &str| ())).unwrap();
        let id = self.add(&engine, None);
        (engine, id)
    }

    /// Adds the model to an engine; `parked` is its number if it was suspended there.
    pub(crate) fn add(&self, engine: &EngineHandle, parked: Option<ModelId>) -> ModelId {
        let limits = Limits {
            n_ctx: self.n_ctx,
            n_seq: self.n_seq,
            n_draft: self.drafts.map_or(0, |drafts| drafts.n_max),
            table: self.isa.map(|isa| kernel_table(Some(isa)).unwrap()),
            ..Limits::default()
        };
        let metrics = Arc::new(Metrics::new("test"));
        engine
            .add(ModelOptions {
                model: self.model.clone(),
                limits,
                metrics,
                parked,
                speculation: self.drafts,
                drafter: self.drafts_by_itself.then(|| {
                    let (model, team) = (&self.model, engine.team());
                    let draft = DraftModel::new(model, model, team, &limits, "draft-simple");
                    let draft: Box<dyn Drafter> = Box::new(draft.unwrap());
                    draft
                }),
            })
            .unwrap()
    }

    pub(crate) fn submit(
        &self,
        (engine, id): &(EngineHandle, ModelId),
        ask: &Ask,
    ) -> Result<mpsc::Receiver<Vec<Event>>, JobError> {
        let (events, receiver) = mpsc::channel(self.channel);
        let choices = (ask.number..ask.number + ask.n).map(|number| {
            let settings = SamplingSettings {
                config: SamplerConfig {
                    seed: ask.seed,
                    temperature: ask.temperature,
                    ..SamplerConfig::DEFAULT
                },
                n_probs: Some(2),
                ..SamplingSettings::default()
            };
            let sampler = Sampler::new(&settings, self.model.tokenizer(), self.n_ctx).unwrap();
            Choice {
                number,
                sampler: Box::new(sampler),
                n_predict: Some(ask.n_predict),
                ignore_eos: true,
                stops: Stops::default(),
                shows_special: false,
            }
        });
        let arrived = Instant::now();
        engine.submit(Job {
            request: format!("request {}", ask.seed).into(),
            model: *id,
            adapter: None,
            prompt: ask.prompt.clone(),
            choices: choices.collect(),
            share: Share::of_peer(ask.share.as_str()),
            priority: ask.priority,
            arrived,
            deadline: ask.deadline.map(|deadline| arrived + deadline),
            predict_for: None,
            uses_cache: ask.uses_cache,
            domain: CacheDomain {
                group: "".into(),
                salt: ask.salt.as_str().into(),
            },
            meter: None,
            shift: ask.shift,
            borders: ask.borders.clone(),
            tells_progress: false,
            slot: ask.slot,
            gathers: self.gathers,
            keeper: None,
            events,
        })?;
        Ok(receiver)
    }

    /// All choices, from a new engine.
    pub(crate) fn answers(&self, ask: &Ask) -> Vec<Answer> {
        let engine = self.shared();
        let answers = collect(self.submit(&engine, ask).unwrap());
        // Pages are on disk only after the engine has ended.
        if self.disk.is_some() {
            engine.0.stop(Duration::from_secs(10));
        }
        answers
    }

    /// The engine that this setup shares between answers; with a disk, a new one each time.
    fn shared(&self) -> (EngineHandle, ModelId) {
        match self.disk {
            Some(_) => self.engine(),
            None => self.kept.get_or_init(|| self.engine()).clone(),
        }
    }

    pub(crate) fn answer(&self, ask: &Ask) -> Answer {
        self.answers(ask).remove(0)
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    pub(crate) n_predict: usize,
    pub(crate) seed: u64,
    pub(crate) temperature: f32,
    pub(crate) n: u32,
    pub(crate) number: u32,
    pub(crate) share: String,
    pub(crate) priority: i32,
    pub(crate) deadline: Option<Duration>,
    pub(crate) uses_cache: bool,
    pub(crate) salt: String,
    pub(crate) shift: Option<usize>,
    pub(crate) borders: Vec<usize>,
    pub(crate) slot: Option<u32>,
}

impl Ask {
    pub(crate) fn of(prompt: Vec<u32>, seed: u64, n_predict: usize) -> Self {
        Self {
            prompt,
            n_predict,
            seed,
            temperature: 0.8,
            n: 1,
            number: 0,
            share: String::new(),
            priority: 0,
            deadline: None,
            uses_cache: true,
            salt: String::new(),
            shift: None,
            borders: Vec::new(),
            slot: None,
        }
    }

    pub(crate) fn text(setup: &Setup, text: &str, n_predict: usize) -> Self {
        Self::of(setup.model.encode(text, false).unwrap(), 42, n_predict)
    }

    /// A random prompt of `n` tokens with this seed.
    pub(crate) fn tokens(setup: &Setup, seed: u64, n: usize, n_predict: usize) -> Self {
        let mut random = Random(seed);
        let n_vocab = u64::try_from(setup.model.config().n_vocab).unwrap();
        let prompt = (0..n).map(|_| u32::try_from(3 + random.next() % (n_vocab - 3)).unwrap());
        Self::of(prompt.collect(), seed, n_predict)
    }
}

/// The result of a choice.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    /// Bits of the log-probabilities: of the token, and of the two likeliest.
    pub(crate) probabilities: Vec<u32>,
    pub(crate) cached: usize,
    pub(crate) slot: u32,
    pub(crate) n_preempted: usize,
    pub(crate) timings: Timings,
    pub(crate) why: Option<Why>,
}

impl Answer {
    /// The parts of an answer that must be identical.
    pub(crate) fn bits(&self) -> (&[u32], &str, &[u32]) {
        (&self.tokens, &self.text, &self.probabilities)
    }
}

/// Collects all events of a job.
pub(crate) fn collect(mut events: mpsc::Receiver<Vec<Event>>) -> Vec<Answer> {
    let mut answers: Vec<Answer> = Vec::new();
    let (mut started, mut first_slot) = (0, 0);
    let all = core::iter::from_fn(|| events.blocking_recv());
    for event in all.flatten() {
        match event {
            Event::Started { cached, slot, .. } => (started, first_slot) = (cached, slot),
            Event::Moved { .. }
            | Event::Progress { .. }
            | Event::ReadAgain { .. }
            | Event::EndToken { .. } => {}
            Event::Token {
                choice,
                token,
                piece,
                report,
            } => {
                answers.resize_with(answers.len().max(choice + 1), Answer::default);
                let answer = &mut answers[choice];
                answer.tokens.push(token);
                answer.text += &piece;
                let report = report.unwrap();
                assert_eq!(report.chosen.id, token);
                let all = core::iter::once(&report.chosen).chain(&report.top);
                answer
                    .probabilities
                    .extend(all.map(|one| one.log_probability.to_bits()));
            }
            Event::Ended {
                choice,
                why,
                timings,
            } => {
                assert!(!matches!(why, Why::Failed(JobError::Failed(_))), "{why:?}");
                answers.resize_with(answers.len().max(choice + 1), Answer::default);
                answers[choice].why = Some(why);
                answers[choice].n_preempted = timings.n_preempted;
                answers[choice].timings = timings;
            }
        }
    }
    for answer in &mut answers {
        (answer.cached, answer.slot) = (started, first_slot);
    }
    answers
}

/// Reproducible random numbers (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n).unwrap()).unwrap()
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
