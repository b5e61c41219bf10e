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
mod turns;

pub use error::StoryError;
pub use turns::Turns;

use core::fmt;
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::model::{Loader, ModelConfig, ModelPlan, ModelWeights};
use sluice_core::slc::Slc;
use sluice_core::team::{WORKERS_MAX, WaitPolicy};
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use spin::Once;

use crate::options::{Lines, Options};
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
    let mut lines = ConsoleLines::new(&gguf, options.lines, &mut room)?;
    let mut encoder = Encoder::new(
        &tokenizer,
        options.prompt.len().max(lines.bytes_max()),
        &mut room,
    )?;
    let n_prompt = encoder.encode(options.prompt, true)?.len();
    let n_ctx = n_ctx(options, n_prompt, config.n_ctx_train);
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
    if options.lines == Lines::None {
        if !options.bench {
            machine.print(format_args!("{}", options.prompt));
        }
        let ids = encoder.encode(options.prompt, true)?;
        teller.tell(ids, options.n_predict, start_ticks)?;
        machine.print(format_args!("\n"));
    } else {
        let n_predict = options.n_predict;
        converse(
            &mut teller,
            &mut encoder,
            &mut lines,
            n_predict,
            start_ticks,
        )?;
    }
    teller.print_footer();
    Ok(())
}

/// Tokens of the context: as many as are asked for, or needed.
fn n_ctx(options: &Options<'_>, n_prompt: usize, n_ctx_train: usize) -> usize {
    match options.n_ctx {
        0 if options.lines != Lines::None => n_ctx_train,
        0 => n_prompt
            .saturating_add(options.n_predict)
            .min(n_ctx_train)
            .max(n_prompt),
        n => n,
    }
}

/// Answers, or continues, lines from the console until there are no more.
fn converse(
    teller: &mut Teller<'_, '_>,
    encoder: &mut Encoder<'_, '_>,
    lines: &mut ConsoleLines<'_>,
    n_predict: usize,
    mut start: u64,
) -> Result<(), StoryError> {
    let (machine, mut is_first) = (teller.machine(), true);
    loop {
        let asked = machine.ticks();
        let Some(text) = lines.next(machine, is_first) else {
            return Ok(());
        };
        // The time that the user took does not count for the model.
        start = start.wrapping_add(machine.ticks().wrapping_sub(asked));
        let ids = encoder.encode(text, is_first)?;
        teller.tell(ids, n_predict, start)?;
        machine.print(format_args!("\n"));
        is_first = false;
    }
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

/// Lines from the console, and what the model reads of them.
struct ConsoleLines<'m> {
    turns: Option<Turns<'m>>,
    line: &'m mut [u8],
    text: &'m mut [u8],
}

impl<'m> ConsoleLines<'m> {
    fn new(gguf: &Gguf<'m>, lines: Lines, room: &mut Room<'m>) -> Result<Self, StoryError> {
        let turns = match lines {
            Lines::None | Lines::Prompts => None,
            Lines::Chat => {
                let template = gguf.str("tokenizer.chat_template");
                let template = template.map_err(|_| StoryError::NoTemplate)?;
                Some(Turns::of(template).ok_or(StoryError::Template)?)
            }
        };
        let line_bytes = if lines == Lines::None { 0 } else { LINE_BYTES };
        let text_bytes = turns.map_or(0, |turns| line_bytes + turns.more_bytes());
        Ok(Self {
            turns,
            line: room.bytes("a line", line_bytes)?,
            text: room.bytes("a turn", text_bytes)?,
        })
    }

    /// Bytes of the longest text.
    fn bytes_max(&self) -> usize {
        self.line.len().max(self.text.len())
    }

    /// What the model reads of the next line; `None` if it is empty.
    fn next(&mut self, machine: &dyn Machine, is_first: bool) -> Option<&str> {
        machine.print(format_args!("> "));
        let len = machine.read_line(self.line)?;
        let line = core::str::from_utf8(&self.line[..len]).ok()?;
        let line = Some(line).filter(|line| !line.is_empty())?;
        match (&self.turns, is_first) {
            (None, _) => Some(line),
            (Some(turns), true) => turns.first(line, self.text),
            (Some(turns), false) => turns.next(line, self.text),
        }
    }
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
