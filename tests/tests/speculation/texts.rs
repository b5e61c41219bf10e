//! Texts of any kind, and what is recorded of them.

use core::fmt;
use sluice::adapter::{AdapterBlend, AdapterFile, Factors, LoadedAdapter, Precision};
use sluice::sequence::{ChoiceContext, ChoiceError, Choose, EndReason, Sequence, TokenReport};
use sluice::{Model, Session, Settings};
use sluice_core::hash::Hash64;
use sluice_core::sampler::{MirostatVersion, SamplerConfig};
use sluice_tests::build::Random;
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{Sampler, SamplingSettings};
use std::io;
use std::sync::{Arc, Mutex};

/// A text that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    prompt: Vec<u32>,
    sampling: SamplingSettings,
    grammar: Option<GrammarSource>,
    number: u32,
    n_predict: usize,
    stops: Vec<String>,
    ignore_eos: bool,
    adapter: Option<AdapterBlend>,
    /// The draw that fails.
    fails_at: Option<usize>,
    pub(super) shifts: bool,
}

impl Asked {
    pub(super) fn random(model: &Model, random: &mut Random) -> Self {
        let n_vocab = u32::try_from(model.config().n_vocab).unwrap();
        // Some are longer than a step.
        let most = [20, 20, 70][random.below(3) as usize];
        let n_words = 1 + random.below(most);
        let mut prompt: Vec<_> = (0..n_words).map(|_| random.below(n_vocab)).collect();
        if random.below(2) == 0 {
            // Repeats the prompt.
            let again = prompt.clone();
            prompt.extend(again);
        }
        let temperature = [0.0, 0.0, 0.05, 0.8, 1.5][random.below(5) as usize];
        let mut config = SamplerConfig {
            seed: random.next(),
            temperature,
            repeat_penalty: [1.0, 1.0, 1.1][random.below(3) as usize],
            presence_penalty: [0.0, 0.0, 0.5][random.below(3) as usize],
            top_k: [0, 3, 40][random.below(3) as usize],
            ..SamplerConfig::DEFAULT
        };
        match random.below(12) {
            0 => config.mirostat = MirostatVersion::V2,
            1 => config.dry.multiplier = 0.8,
            2 => config.xtc_probability = 0.5,
            _ => {}
        }
        let grammar = match random.below(4) {
            0 => Some(GRAMMARS[random.below(3) as usize].to_owned()),
            _ => None,
        };
        Self {
            prompt,
            sampling: SamplingSettings {
                config,
                n_probs: [None, Some(3)][random.below(2) as usize],
                ..SamplingSettings::default()
            },
            grammar: grammar.map(GrammarSource::Gbnf),
            number: random.below(3),
            n_predict: 1 + random.below(60) as usize,
            stops: match random.below(3) {
                0 => vec!["e".into(), "th".into()],
                _ => Vec::new(),
            },
            ignore_eos: random.below(3) > 0,
            adapter: match random.below(4) {
                0 => Some(adapter(model, random)),
                _ => None,
            },
            fails_at: match random.below(8) {
                0 => Some(random.below(20) as usize),
                _ => None,
            },
            shifts: false,
        }
    }
}

/// An adapter of the outputs of attention, large enough to change them.
fn adapter(model: &Model, random: &mut Random) -> AdapterBlend {
    const RANK: usize = 4;
    let n_layer = model.config().n_layer();
    let adapted = |name: &str| (0..n_layer).any(|i| name == format!("blk.{i}.attn_output.weight"));
    let gguf = model.gguf();
    let tensors = gguf.tensors().filter(|tensor| adapted(tensor.name));
    let mut vector = |n: usize| (0..n).map(|_| 0.3 * random.signed()).collect();
    let factors = tensors.map(|tensor| {
        let [n_cols, n_rows] = [0, 1].map(|i| usize::try_from(tensor.dims[i]).unwrap());
        Factors {
            tensor: tensor.name.to_owned(),
            part: None,
            rank: RANK,
            a: vector(RANK * n_cols),
            b: vector(n_rows * RANK),
            scale: 1.0,
        }
    });
    let file = AdapterFile {
        path: "random".to_owned(),
        architecture: gguf.str("general.architecture").unwrap().to_owned(),
        base_model: None,
        factors: factors.collect(),
        warnings: Vec::new(),
    };
    let adapter = LoadedAdapter::load(model.config(), &file, Precision::Exact);
    adapter.unwrap().into()
}

/// Much that is forced, little, and texts that end.
const GRAMMARS: [&str; 3] = [
    r#"root ::= "{\"name\": \"" [a-c]{2} "\", \"kind\": \"" ("animal" | "plant") "\"}""#,
    r#"root ::= [a-z ]{1,40}"#,
    r#"root ::= ("one " | "two ") "and then " root | "the end""#,
];

/// What is recorded of a text.
#[derive(Clone, PartialEq)]
pub(super) struct Told {
    /// The prompt's and those that were drawn.
    pub(super) tokens: Vec<u32>,
    pieces: Vec<String>,
    reports: Vec<Option<TokenReport>>,
    ended: Option<EndReason>,
    /// Hashes of the logits that each token was drawn from.
    logits: Vec<u64>,
    /// Tokens that are in its state at the end.
    n_read: usize,
}

impl Told {
    /// Tokens that were drawn.
    pub(super) const fn n_drawn(&self) -> usize {
        self.reports.len()
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told")
            .field("tokens", &self.tokens)
            .field("text", &self.pieces.concat())
            .field("ended", &self.ended)
            .field("logits", &self.logits)
            .field("n_read", &self.n_read)
            .finish_non_exhaustive()
    }
}

/// Keeps a hash of each row of logits that it is shown.
#[derive(Debug)]
struct Hashing {
    sampler: Sampler,
    fails_at: Option<usize>,
    hashes: Arc<Mutex<Vec<u64>>>,
}

impl Choose for Hashing {
    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        let mut hash = Hash64::new();
        for logit in logits {
            hash.write(&logit.to_bits().to_le_bytes());
        }
        let mut hashes = self.hashes.lock().unwrap();
        if self.fails_at == Some(hashes.len()) {
            return Err(ChoiceError::new(io::Error::other("it fails here")));
        }
        hashes.push(hash.finish());
        drop(hashes);
        self.sampler.choose(logits, choice)
    }

    fn is_complete(&self) -> bool {
        self.sampler.is_complete()
    }

    fn report(&self) -> Option<&TokenReport> {
        self.sampler.report()
    }

    fn forced(&mut self) -> Vec<u32> {
        self.sampler.forced()
    }

    fn n_allowed(&mut self, tokens: &[u32]) -> usize {
        self.sampler.n_allowed(tokens)
    }

    fn copy(&self) -> Option<Box<dyn Choose + Send>> {
        self.sampler.copy()
    }
}

/// A text at work.
struct Running {
    index: usize,
    sequence: Sequence,
    hashes: Arc<Mutex<Vec<u64>>>,
    told: Told,
}

/// Writes all, `n_at_once` at a time.
pub(super) fn write(session: &mut Session, asked: &[Asked], n_at_once: usize) -> Vec<Told> {
    let mut all: Vec<Option<Told>> = vec![None; asked.len()];
    let (mut running, mut next) = (Vec::new(), 0);
    while next < asked.len() || !running.is_empty() {
        while running.len() < n_at_once && next < asked.len() {
            running.push(begin(session, next, &asked[next]));
            next += 1;
        }
        for text in &mut running {
            let is_full = text.sequence.tokens().len() >= session.limits().n_ctx;
            if asked[text.index].shifts && is_full {
                assert!(session.shift(&mut text.sequence, 4).unwrap() > 0);
            }
        }
        let mut sequences: Vec<_> = running.iter_mut().map(|text| &mut text.sequence).collect();
        let events = session.step(&mut sequences).unwrap();
        for event in events {
            let told = &mut running[event.sequence].told;
            assert_eq!(told.ended, None, "a token behind the end");
            told.tokens.push(event.token);
            told.pieces.push(event.piece);
            told.reports.push(event.report);
            told.ended = event.ended;
        }
        for text in &mut running {
            if let Some(error) = text.sequence.failure() {
                text.told.pieces.push(error.to_string());
            }
        }
        let (ended, others): (Vec<_>, Vec<_>) =
            (running.into_iter()).partition(|text: &Running| text.sequence.ended().is_some());
        running = others;
        for mut text in ended {
            text.told.ended = text.sequence.ended();
            text.told.n_read = text.sequence.tokens().len();
            // If a stop text ends within what was drafted, more tokens were drawn after it.
            let hashes = text.hashes.lock().unwrap();
            let n = hashes.len().min(text.told.reports.len());
            text.told.logits.extend_from_slice(&hashes[..n]);
            drop(hashes);
            assert_eq!(session.state().len(text.sequence.slot()), text.told.n_read);
            all[text.index] = Some(text.told);
            session.remove(text.sequence).unwrap();
        }
    }
    all.into_iter().map(Option::unwrap).collect()
}

fn begin(session: &mut Session, index: usize, asked: &Asked) -> Running {
    let (model, n_ctx) = (session.model().clone(), session.limits().n_ctx);
    let mut sampler = Sampler::new(&asked.sampling, model.tokenizer(), n_ctx).unwrap();
    if let Some(source) = &asked.grammar {
        sampler = sampler.with_grammar(Grammar::new(source, model.tokenizer()).unwrap());
    }
    let hashes = Arc::default();
    let sampler = Hashing {
        sampler,
        fails_at: asked.fails_at,
        hashes: Arc::clone(&hashes),
    };
    let settings = Settings {
        number: asked.number,
        n_predict: Some(asked.n_predict),
        ignore_eos: asked.ignore_eos,
        shifts: asked.shifts,
        stops: asked.stops.clone(),
        adapter: asked.adapter.clone(),
        ..Settings::default()
    };
    let mut sequence = session.add_with(&settings, Box::new(sampler)).unwrap();
    sequence.push(&asked.prompt, 1);
    Running {
        index,
        sequence,
        hashes,
        told: Told {
            tokens: asked.prompt.clone(),
            pieces: Vec::new(),
            reports: Vec::new(),
            ended: None,
            logits: Vec::new(),
            n_read: 0,
        },
    }
}
