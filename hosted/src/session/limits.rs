//! The size of a session.

use crate::model::Model;
use crate::sparse_modes::{SparseMode, SparsePlan};
use sluice_core::engine::{self, Sparse};
use sluice_core::kernels::activation::ActivationKinds;
use sluice_core::kernels::{KernelTable, KvType};
use sluice_core::model::{LongRope, PredictorLimits};
use sluice_core::state::StateConfig;

/// The size of a session. The default is one text as long as the model was trained on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens that the KV cache holds, over all sequences; 0 for as many as the model was trained on,
    /// for each sequence.
    pub n_ctx: usize,
    /// Tokens in addition, in pages that the host holds without a sequence, as prefix caches do.
    pub n_held: usize,
    /// Sequences at once.
    pub n_seq: usize,
    /// Maximum tokens computed at once; 0 for 512, and for a whole text where the model is an encoder.
    pub n_batch: usize,
    /// Maximum tokens of a step that give logits or hidden states; 0 for one a sequence, and for all
    /// where the model is an encoder.
    pub n_outputs: usize,
    /// Additional entries of a step that may want their hidden state alone.
    pub n_hidden: usize,
    /// Element types of keys and of values in the KV cache; `None` for f16, and for f32 where the
    /// model is an encoder, which keeps them for a step only.
    pub types: Option<(KvType, KvType)>,
    /// Whether keys and values of q8_0, q4_0 and fp8 are rotated ([`engine::EngineLimits::kv_rotation`]).
    pub kv_rotation: bool,
    /// Room for the ranks of a text's adapters: the largest of their [`AdapterBlend::rank`](crate::adapter::AdapterBlend::rank); 0 for
    /// no adapters.
    pub adapter_rank: usize,
    /// In which kinds inputs of layers are kept for adapters ([`engine::EngineLimits::adapter_kinds`]): less is faster.
    pub adapter_kinds: ActivationKinds,
    /// Whether steps may have an observer.
    pub observes: bool,
    /// Whether steps may have a selector of neurons.
    pub selects: bool,
    /// Number of tokens that can be taken back from the end of a text where the model is recurrent. Each takes
    /// the room of a recurrent state.
    pub n_behind: usize,
    /// Maximum draft tokens of a text in a step ([`Session::set_speculation`](crate::Session::set_speculation)); 0 for
    /// none. They take rows of logits, and recurrent states.
    pub n_draft: usize,
    /// Named recurrent states.
    pub n_checkpoints: usize,
    /// Whether layers with a window give back the pages that it has left.
    pub windows_give_back: bool,
    /// Which divisors of its rotary frequencies a longrope model uses.
    pub longrope: LongRope,
    /// Which neurons are left unread; `None` for those that change no bit, where the file is by neuron. To ask for
    /// [`SparseMode::Exact`] refuses other files. Modes that change results are the model's
    /// ([`ModelSource::with_sparse`](crate::model::ModelSource::with_sparse)): to ask for one refuses a model without it.
    pub sparse: Option<SparseMode>,
    /// The kernels; `None` for the fastest that run here.
    pub table: Option<&'static KernelTable>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            n_ctx: 0,
            n_held: 0,
            n_seq: 1,
            n_batch: 0,
            n_outputs: 0,
            n_hidden: 0,
            types: None,
            kv_rotation: true,
            adapter_rank: 0,
            adapter_kinds: ActivationKinds::F32 | ActivationKinds::INT8_256,
            observes: false,
            selects: false,
            n_behind: 1,
            n_draft: 0,
            n_checkpoints: 0,
            windows_give_back: false,
            longrope: LongRope::ByLength,
            sparse: None,
            table: None,
        }
    }
}

impl Limits {
    /// The limits in the form that core takes.
    pub(super) fn resolved(&self, model: &Model, n_workers: usize) -> engine::EngineLimits {
        let or = |n: usize, default: usize| if n == 0 { default } else { n };
        let trained = model.config().n_ctx_train.max(1);
        let n_ctx = or(
            self.n_ctx,
            trained.saturating_mul(self.n_seq).min(N_CTX_MAX),
        );
        let whole = if model.embeds() { trained } else { 512 };
        let n_batch = or(self.n_batch, whole).min(n_ctx);
        let ty = if model.embeds() {
            KvType::F32
        } else {
            KvType::F16
        };
        let (type_k, type_v) = self.types.unwrap_or((ty, ty));
        let n_draft = if model.embeds() { 0 } else { self.n_draft };
        let n_rows = self.n_seq + (self.n_seq * n_draft).min(DRAFTS_MAX.max(n_draft));
        let n_batch = n_batch.max(n_rows.min(n_ctx));
        let outputs = if model.embeds() { n_batch } else { n_rows };
        let sparse = model.sparse_plan().map(SparsePlan::sparse);
        engine::EngineLimits {
            n_held: self.n_held,
            n_batch,
            n_outputs: or(self.n_outputs, outputs),
            n_hidden: self.n_hidden,
            n_seq: self.n_seq,
            type_k,
            type_v,
            kv_rotation: self.kv_rotation,
            adapter_rank: self.adapter_rank,
            adapter_kinds: self.adapter_kinds,
            observes: self.observes,
            selects: self.selects,
            // Those who observe may calibrate such a mode.
            ranks_gates: match sparse {
                Some(Sparse::Approximate(asked)) => asked.ranks_gates(),
                _ => self.observes,
            },
            cold_neurons: model.has_cold_neurons(),
            predictor: match sparse {
                Some(Sparse::Predictor(predictor)) => predictor.limits(),
                _ => PredictorLimits::NONE,
            },
            n_behind: self.n_behind + n_draft,
            n_checkpoints: self.n_checkpoints,
            windows_give_back: self.windows_give_back,
            longrope: self.longrope,
            ..engine::EngineLimits::single(n_ctx, n_workers)
        }
    }
}

/// Sizes of the state of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSizes {
    /// Bytes of the keys and values of a page.
    pub page_bytes: usize,
    /// Bytes of a recurrent state; 0 in a model of attention alone.
    pub recurrent_bytes: usize,
}

impl Model {
    /// Sizes of a page and of a recurrent state in a session of these limits.
    #[must_use]
    pub fn state_sizes(&self, limits: &Limits) -> StateSizes {
        let limits = limits.resolved(self, 1);
        let config = StateConfig::new(self.config(), &limits.state());
        let pages = config.groups().iter().map(|group| group.page_bytes());
        StateSizes {
            page_bytes: pages.sum(),
            recurrent_bytes: config.state_len() * size_of::<f32>(),
        }
    }
}

/// Maximum draft tokens in a step over several texts.
pub(super) const DRAFTS_MAX: usize = 64;
/// Maximum tokens of a KV cache, as in core.
const N_CTX_MAX: usize = 1 << 24;
