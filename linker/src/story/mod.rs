//! A model in memory, run to text on the caller's cores.
//!
//! The caller supplies everything: the model's bytes, free memory, cores, a clock and a console.
//! The output is what `sluice run` prints for the same model, prompt, settings and seed,
//! and a hash over the bits of all logits that tokens were drawn from.

mod drafts;
mod error;
mod figures;
mod room;
mod teller;

pub use error::StoryError;

use core::fmt;
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::model::{Loader, ModelConfig, ModelPlan, ModelWeights};
use sluice_core::slc::Slc;
use sluice_core::team::{WORKERS_MAX, WaitPolicy};
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use spin::Once;

use crate::options::Options;
use room::Room;
use teller::{Extent, Teller};

/// The machine interface of a run.
pub trait Machine {
    /// Cores that [`Self::spread`] can use; at least 1.
    fn n_cores(&self) -> usize;

    /// Calls `job` with every rank below `n_ranks` (up to [`Self::n_cores`]), each on a core
    /// of its own, all at the same time, and waits for them. Rank 0 is the caller's core.
    fn spread(&self, n_ranks: usize, job: &(dyn Fn(usize) + Sync));

    /// How ranks wait for each other.
    fn wait(&self) -> &dyn WaitPolicy;

    /// Time in ticks.
    fn ticks(&self) -> u64;

    /// Ticks a second.
    fn ticks_per_second(&self) -> u64;

    /// Writes text to the console.
    fn print(&self, text: fmt::Arguments<'_>);

    /// Reads a line from the console into `line`, without its end; returns its length in bytes,
    /// or `None` at the end of input.
    fn read_line(&self, line: &mut [u8]) -> Option<usize>;
}

/// Maximum length of a line that is read from the console, in bytes.
const LINE_BYTES: usize = 4096;

/// Runs the model in `file` (GGUF, or `.slc`, which must be aligned to 64 bytes and is used
/// in place) as `options` say. `memory` is aligned to 64 bytes; `start_ticks` is when the
/// loader handed over.
///
/// # Errors
/// [`StoryError`]; the text so far has been printed.
pub fn tell(
    machine: &dyn Machine,
    file: &[u8],
    memory: &mut [u8],
    options: &Options<'_>,
    start_ticks: u64,
) -> Result<(), StoryError> {
    let mut room = Room::new(memory)?;
    let slc = if Slc::is_slc(file) {
        Some(Slc::parse(file, file.len() as u64)?)
    } else {
        None
    };
    let gguf = match &slc {
        Some(slc) => *slc.gguf(),
        None => Gguf::parse(file, file.len() as u64)?,
    };
    let config = ModelConfig::from_gguf(&gguf)?;
    let table = table(options)?;
    let n_workers = n_workers(machine, options)?;
    let words = tokenizer::plan(&gguf)?.words;
    let tokenizer = Tokenizer::new(&gguf, room.slice("the vocabulary", words)?)?;
    let model = load(
        machine,
        file,
        slc.as_ref(),
        &gguf,
        &config,
        &mut room,
        n_workers,
    )?;
    machine.print(format_args!(
        "model {} layers of {}, {} KiB of weights; {} kernels, {n_workers} threads\n",
        config.n_layer(),
        config.n_embd,
        model.weight_bytes() / 1024,
        table.name(),
    ));
    let line = room.bytes("a line", if options.chat { LINE_BYTES } else { 0 })?;
    let mut encoder = Encoder::new(&tokenizer, options.prompt.len().max(line.len()), &mut room)?;
    let mut prompt = Some(options.prompt);
    if options.chat {
        prompt = ask(machine, line);
    }
    let n_prompt = encoder.encode(prompt.unwrap_or(""), true)?.len();
    let n_ctx = match options.n_ctx {
        0 if options.chat => config.n_ctx_train,
        0 => n_prompt
            .saturating_add(options.n_predict)
            .min(config.n_ctx_train)
            .max(n_prompt),
        n => n,
    };
    let mut teller = Teller::new(
        machine,
        &tokenizer,
        model,
        table,
        options,
        Extent { n_ctx, n_workers },
        &mut room,
    )?;
    teller.is_loaded(start_ticks);
    let mut is_first = true;
    while let Some(words) = prompt {
        if !options.chat && !options.bench {
            machine.print(format_args!("{words}"));
        }
        let ids = encoder.encode(words, is_first)?;
        teller.tell(ids, options.n_predict, start_ticks)?;
        machine.print(format_args!("\n"));
        is_first = false;
        prompt = options.chat.then(|| ask(machine, line)).flatten();
    }
    teller.print_footer();
    Ok(())
}

fn table(options: &Options<'_>) -> Result<&'static KernelTable, StoryError> {
    let tables = || KernelTable::vectorized(CpuFeatures::detect());
    let best = tables().next_back().ok_or(StoryError::NoVectors)?;
    if options.isa.is_empty() {
        return Ok(best);
    }
    tables()
        .find(|table| table.name() == options.isa)
        .ok_or(StoryError::Isa)
}

fn n_workers(machine: &dyn Machine, options: &Options<'_>) -> Result<usize, StoryError> {
    let n_cores = machine.n_cores().min(WORKERS_MAX);
    match options.n_threads {
        0 => Ok(n_cores),
        n if n <= n_cores => Ok(n),
        _ => Err(StoryError::Threads { n_cores }),
    }
}

/// The weights: in place, or converted on all cores.
fn load<'m>(
    machine: &dyn Machine,
    file: &'m [u8],
    slc: Option<&Slc<'_>>,
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    room: &mut Room<'m>,
    n_workers: usize,
) -> Result<ModelWeights<'m>, StoryError> {
    if let Some(slc) = slc {
        let plan = ModelPlan::in_place(slc, config)?;
        let tables = room.bytes("the model's tables", plan.table_bytes)?;
        let start = usize::try_from(slc.header().payload_offset());
        let start = start.map_err(|_| StoryError::TooLarge)?;
        let payloads = file.get(start..).unwrap_or(&[]);
        return Ok(ModelWeights::in_place(slc, config, payloads, tables)?);
    }
    let plan = ModelPlan::new(gguf, config)?;
    let weights = room.bytes("the weights", plan.weight_bytes)?;
    let tables = room.bytes("the model's tables", plan.table_bytes)?;
    let source = SliceSource(file);
    let loader = Loader::new(gguf, config, weights, tables)?;
    let failure = Once::new();
    machine.spread(n_workers, &|_| {
        if let Err(error) = loader.work(&source, &mut [], || true) {
            failure.call_once(|| error);
        }
    });
    match failure.try_into_inner() {
        Some(error) => Err(error.into()),
        None => Ok(loader.finish(&source)?),
    }
}

/// The next typed line, if it is not empty.
fn ask<'l>(machine: &dyn Machine, line: &'l mut [u8]) -> Option<&'l str> {
    machine.print(format_args!("> "));
    let len = machine.read_line(line)?;
    let line = core::str::from_utf8(&line[..len]);
    line.ok().filter(|line| !line.is_empty())
}

/// Encodes prompts to tokens, with memory for the longest.
struct Encoder<'t, 'm> {
    tokenizer: &'t Tokenizer<'m>,
    workspace: &'m mut [u32],
    ids: &'m mut [u32],
}

impl<'t, 'm> Encoder<'t, 'm> {
    fn new(
        tokenizer: &'t Tokenizer<'m>,
        text_bytes: usize,
        room: &mut Room<'m>,
    ) -> Result<Self, StoryError> {
        let words = tokenizer.encode_workspace_words(text_bytes);
        Ok(Self {
            tokenizer,
            workspace: room.slice("the prompt", words)?,
            ids: room.slice("the prompt", tokenizer.max_tokens(text_bytes))?,
        })
    }

    fn encode(&mut self, text: &str, add_special: bool) -> Result<&[u32], StoryError> {
        let options = EncodeOptions {
            add_special,
            parse_special: true,
        };
        let (workspace, ids) = (&mut *self.workspace, &mut *self.ids);
        Ok(self.tokenizer.encode(text, options, workspace, ids)?)
    }
}
