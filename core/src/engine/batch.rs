//! The entries of a step, and why a batch may be refused.

use crate::memory::MemoryError;
use crate::state::StateError;
use crate::team::Stop;
use core::fmt;

/// The output of an entry's row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wants {
    /// No output: the token only enters the KV cache.
    #[default]
    Nothing,
    /// Logits (n_vocab).
    Logits,
    /// The final hidden state after the output norm (n_embd).
    Hidden,
    /// Logits and the final hidden state.
    LogitsAndHidden,
}

impl Wants {
    /// Whether logits are wanted.
    pub const fn has_logits(self) -> bool {
        matches!(self, Self::Logits | Self::LogitsAndHidden)
    }

    /// Whether the hidden state is wanted.
    pub const fn has_hidden(self) -> bool {
        matches!(self, Self::Hidden | Self::LogitsAndHidden)
    }
}

/// One token of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    /// Token id, below `n_vocab`.
    pub token: u32,
    /// Sequence it belongs to, below `n_seq`.
    pub sequence: u32,
    /// Its position: the sequence's length plus the number of earlier entries of the sequence
    /// in this batch.
    pub position: u32,
    /// The outputs to compute for it.
    pub wants: Wants,
    /// Index into [`super::StepOptions::adapters`].
    pub adapter: Option<u32>,
}

impl BatchEntry {
    /// An entry without an adapter.
    pub const fn new(token: u32, sequence: u32, position: u32, wants: Wants) -> Self {
        Self {
            token,
            sequence,
            position,
            wants,
            adapter: None,
        }
    }
}

/// Why an engine could not be built or a step could not be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum EngineError {
    /// A limit is out of its range.
    Limit {
        name: &'static str,
        value: usize,
        min: usize,
        max: usize,
    },
    /// A head is longer than the KV cache handles.
    HeadTooLong { head_dim: usize, max: usize },
    /// Memory is misaligned or too small.
    Memory(MemoryError),
    /// A batch has no entries.
    EmptyBatch,
    /// A batch has more entries than [`super::EngineLimits::n_batch`].
    BatchTooLong { n_entries: usize, n_batch: usize },
    /// More entries want outputs than [`super::EngineLimits::n_outputs`].
    TooManyOutputs { wanted: usize, n_outputs: usize },
    /// Entry `entry` has a token outside the vocabulary.
    UnknownToken {
        entry: usize,
        token: u32,
        n_vocab: usize,
    },
    /// Entry `entry` wants logits of an encoder, which does not compute them.
    NoLogits { entry: usize },
    /// The position of entry `entry` is beyond the model's embeddings of positions.
    PositionWithoutEmbedding {
        entry: usize,
        position: u32,
        n_positions: usize,
    },
    /// The position of entry `entry` is not the next one of its sequence.
    WrongPosition {
        entry: usize,
        sequence: u32,
        position: u32,
        expected: usize,
    },
    /// Entry `entry` makes a longrope model's text longer than its divisors are for ([`super::Engine::fit`]).
    NotFitted { entry: usize, sequence: u32 },
    /// Entry `entry` names an adapter that was not given.
    UnknownAdapter { entry: usize, adapter: u32 },
    /// An entry's adapters need more room ([`super::Blend::rank`]) than [`super::EngineLimits::adapter_rank`].
    AdapterRank { rank: usize, max: usize },
    /// The engine was built without the limit of that name, or its model without its experts.
    NotMadeFor { what: &'static str },
    /// A mode that leaves out neurons does not fit the model or its own signal.
    Sparse { what: &'static str },
    /// Layers that the model does not have, or an empty range.
    UnknownLayers { end: usize, n_layer: usize },
    /// A residual stream of another length than the batch's.
    StreamLength { expected: usize, found: usize },
    /// Hidden states ([`super::StepOptions::hidden`]) of another length than the batch's; 0 for none, which a head
    /// needs.
    HiddenLength { expected: usize, found: usize },
    /// Hidden states for a model that is not a head, or where the caller supplies the residual stream.
    HiddenUnwanted,
    /// Entry `entry` names an adapter, which heads that predict a token further do not have.
    HeadAdapted { entry: usize },
    /// Entry `entry` does not ask for its hidden state only, where the stream is returned.
    StreamUnwanted { entry: usize },
    /// The state was replaced by one of another shape, through [`super::Engine::state_mut`].
    ForeignState,
    /// Another step records into the event rings.
    TraceInUse,
    /// Rings for fewer workers than the engine has.
    TraceTooSmall { n_workers: usize, rings: usize },
    /// The state of sequences has no room, or the sequence does not exist.
    State(StateError),
    /// The step stopped before its end; the KV cache is as before.
    Stopped(Stop),
    /// [`super::Step::finish`] was called before every rank had run.
    NotRun,
}

impl fmt::Display for EngineError {
    #[expect(clippy::too_many_lines, reason = "one arm a variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Limit {
                name,
                value,
                min,
                max,
            } => {
                write!(f, "{name} is {value}, expected {min} to {max}")
            }
            Self::HeadTooLong { head_dim, max } => {
                write!(
                    f,
                    "heads of {head_dim} dimensions are longer than the {max} supported"
                )
            }
            Self::Memory(error) => error.fmt(f),
            Self::EmptyBatch => f.write_str("the batch is empty"),
            Self::BatchTooLong { n_entries, n_batch } => {
                write!(
                    f,
                    "the batch has {n_entries} entries, the engine takes {n_batch}"
                )
            }
            Self::TooManyOutputs { wanted, n_outputs } => {
                write!(
                    f,
                    "{wanted} entries want outputs, the engine has room for {n_outputs}"
                )
            }
            Self::UnknownToken {
                entry,
                token,
                n_vocab,
            } => {
                write!(
                    f,
                    "entry {entry}: token {token} is outside the vocabulary of {n_vocab}"
                )
            }
            Self::NoLogits { entry } => {
                write!(
                    f,
                    "entry {entry}: an encoder gives hidden states, no logits"
                )
            }
            Self::PositionWithoutEmbedding {
                entry,
                position,
                n_positions,
            } => write!(
                f,
                "entry {entry}: position {position} has no embedding, the model has {n_positions}"
            ),
            Self::WrongPosition {
                entry,
                sequence,
                position,
                expected,
            } => write!(
                f,
                "entry {entry}: position {position} of sequence {sequence}, expected {expected}"
            ),
            Self::NotFitted { entry, sequence } => write!(
                f,
                "entry {entry}: sequence {sequence} was not prepared for a text of this length"
            ),
            Self::UnknownAdapter { entry, adapter } => {
                write!(
                    f,
                    "entry {entry}: adapter {adapter} was not given to the step"
                )
            }
            Self::AdapterRank { rank, max } => write!(
                f,
                "the adapters of an entry need an adapter_rank of {rank}, the engine was made with {max}"
            ),
            Self::NotMadeFor { what } => {
                write!(f, "the engine was made without {what}")
            }
            Self::Sparse { what } => write!(f, "sparse: {what}"),
            Self::UnknownLayers { end, n_layer } => {
                write!(f, "layers up to {end} of a model of {n_layer}")
            }
            Self::StreamLength { expected, found } => {
                write!(f, "a stream of {found} numbers, expected {expected}")
            }
            Self::HiddenLength { expected, found } => write!(
                f,
                "hidden states of {found} numbers, this head needs {expected}"
            ),
            Self::HiddenUnwanted => {
                f.write_str("hidden states for a model that does not read them")
            }
            Self::HeadAdapted { entry } => write!(
                f,
                "entry {entry}: a head that predicts a token further has no adapters"
            ),
            Self::StreamUnwanted { entry } => write!(
                f,
                "entry {entry} must want its hidden state alone where some layers run"
            ),
            Self::ForeignState => f.write_str("the KV cache was replaced by one of another shape"),
            Self::TraceInUse => f.write_str("another step records into the event rings"),
            Self::TraceTooSmall { n_workers, rings } => {
                write!(f, "{rings} event rings for {n_workers} workers")
            }
            Self::State(error) => error.fmt(f),
            Self::Stopped(stop) => stop.fmt(f),
            Self::NotRun => f.write_str("not every worker has run the step"),
        }
    }
}

impl core::error::Error for EngineError {}

impl From<MemoryError> for EngineError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

impl From<StateError> for EngineError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}
