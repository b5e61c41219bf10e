//! What architectures differ in: a table each.
//!
//! Sources: the models as published, and for names and defaults of keys what llama.cpp reads.

use super::super::experts::Score;
use super::super::network::Activation;

#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    /// `general.architecture`, and the beginning of its keys.
    pub(super) name: &'static str,
    /// Whether elements (2i, 2i + 1) of a head rotate together, otherwise (i, i + n_rot / 2).
    pub(super) is_neighbours: bool,
    pub(super) norms: Norms,
    /// Whether norms subtract the mean (`LayerNorm`, without a bias).
    pub(super) is_centred: bool,
    pub(super) ffn_norm: &'static str,
    pub(super) output_norm: &'static str,
    pub(super) qk_norm: QkNorm,
    /// Whether heads rotate before their norms.
    pub(super) is_norm_late: bool,
    /// Whether each head has a logit that takes part in the softmax without a value.
    pub(super) has_sinks: bool,
    pub(super) windows: Option<Windows>,
    pub(super) rotated: Rotated,
    pub(super) local_rope: LocalRope,
    /// Whether files say how YaRN's ramp and magnitude are made, and how queries grow with positions.
    pub(super) has_yarn_keys: bool,
    pub(super) scales: Scales,
    pub(super) activation: Activation,
    pub(super) router: Option<Router>,
    /// Whether routers read a layer's input, before its first norm.
    pub(super) routes_input: bool,
    /// Whether a layer without KV heads is a convolution.
    pub(super) has_convolutions: bool,
    /// Whether the last layer may be followed by others, which predict further tokens.
    pub(super) has_nextn: bool,
}

/// Where the norms of a layer's two parts stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norms {
    Before,
    Around,
    Behind,
    /// One before both parts, which read the same.
    Shared,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug)]
pub(super) enum QkNorm {
    None,
    Head,
    /// If the file has them.
    MaybeHead,
    /// Over all heads as one row.
    Row,
}

/// Layers that see few tokens, which `attention.sliding_window_pattern` may list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// Window for files that do not set one; 0: no windows.
    pub(super) default: usize,
    /// All layers but the last of each period have a window. 0: the file has to list them.
    pub(super) period: usize,
    /// Whether it is the first of each period that has none.
    pub(super) is_dense_first: bool,
}

/// Which layers rotate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rotated {
    All,
    ThreeOfFour,
    /// All but the first of four, if there are windows.
    FirstOfFourNot,
    /// Layers with windows, if there are any.
    Local,
    /// All or none, by `rope.scaling.finetuned`.
    Finetuned,
    /// By `attention.rope_pattern`.
    Listed,
}

/// How layers with windows rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocalRope {
    AsAll,
    /// By `rope.freq_base_swa`, if there is one.
    OwnBase,
    /// Without the file's scaling.
    Unscaled,
    /// By `rope.freq_base_swa`, 10,000 by default, and without the file's scaling.
    OwnBaseUnscaled,
}

/// Factors in addition to the ones that every architecture has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scales {
    None,
    /// Embeddings by the root of their length; soft caps, in gemma2 by default.
    Gemma {
        caps: [f64; 2],
    },
    /// Embeddings, residual sums, attention; a divisor of the logits.
    Granite,
    /// A factor on the logits.
    Logits,
    /// As Granite's, with defaults.
    MiniCpm,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Router {
    pub(super) gating: Gating,
    /// `None`: by `expert_weights_norm`.
    pub(super) is_normalised: Option<bool>,
    /// Whether `expert_weights_scale` is read.
    pub(super) has_scale: bool,
    /// Whether `exp_probs_b` may be there.
    pub(super) has_selection: bool,
    pub(super) shared: Shared,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Gating {
    Is(Score),
    /// By `expert_gating_func`, with what holds where it is absent.
    Key(Option<Score>),
}

/// Whether there is a shared expert, and of what width.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shared {
    None,
    /// `expert_shared_feed_forward_length`; none where it is absent.
    Length,
    /// `expert_shared_feed_forward_length`, or else `feed_forward_length`.
    LengthOrFf {
        is_gated: bool,
    },
    /// `expert_shared_count` times an expert's.
    Count,
}

impl Family {
    const PLAIN: Self = Self {
        name: "",
        is_neighbours: false,
        norms: Norms::Before,
        is_centred: false,
        ffn_norm: "ffn_norm",
        output_norm: "output_norm.weight",
        qk_norm: QkNorm::None,
        is_norm_late: false,
        has_sinks: false,
        windows: None,
        rotated: Rotated::All,
        local_rope: LocalRope::AsAll,
        has_yarn_keys: false,
        scales: Scales::None,
        activation: Activation::Silu,
        router: None,
        routes_input: false,
        has_convolutions: false,
        has_nextn: false,
    };

    pub(super) fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == name)
    }
}

impl Router {
    const PLAIN: Self = Self {
        gating: Gating::Is(Score::Softmax),
        is_normalised: Some(true),
        has_scale: false,
        has_selection: false,
        shared: Shared::None,
    };
}

/// A window in every layer, if the file has one and does not list the layers.
const ALL: Option<Windows> = period(usize::MAX);

const fn period(period: usize) -> Option<Windows> {
    Some(Windows {
        default: 0,
        period,
        is_dense_first: false,
    })
}

static FAMILIES: [Family; 31] = [
    Family {
        name: "llama",
        windows: ALL,
        is_neighbours: true,
        router: Some(Router::PLAIN),
        ..Family::PLAIN
    },
    Family {
        name: "qwen2",
        windows: ALL,
        ..Family::PLAIN
    },
    Family {
        name: "qwen2moe",
        windows: ALL,
        router: Some(Router {
            is_normalised: Some(false),
            shared: Shared::LengthOrFf { is_gated: true },
            ..Router::PLAIN
        }),
        ..Family::PLAIN
    },
    Family {
        name: "qwen3",
        windows: ALL,
        qk_norm: QkNorm::Head,
        ..Family::PLAIN
    },
    Family {
        name: "qwen3moe",
        windows: ALL,
        qk_norm: QkNorm::Head,
        router: Some(Router::PLAIN),
        ..Family::PLAIN
    },
    Family {
        name: "phi3",
        windows: ALL,
        ..Family::PLAIN
    },
    Family {
        name: "gemma2",
        norms: Norms::Around,
        windows: Some(Windows {
            default: 4096,
            period: 2,
            is_dense_first: false,
        }),
        local_rope: LocalRope::OwnBase,
        scales: Scales::Gemma { caps: [50.0, 30.0] },
        activation: Activation::Gelu,
        ..Family::PLAIN
    },
    Family {
        name: "gemma3",
        norms: Norms::Around,
        qk_norm: QkNorm::Head,
        windows: period(6),
        local_rope: LocalRope::OwnBaseUnscaled,
        scales: Scales::Gemma { caps: [0.0; 2] },
        activation: Activation::Gelu,
        ..Family::PLAIN
    },
    Family {
        name: "olmoe",
        qk_norm: QkNorm::Row,
        router: Some(Router {
            is_normalised: Some(false),
            ..Router::PLAIN
        }),
        ..Family::PLAIN
    },
    // Olmo 3 too, which has windows.
    Family {
        name: "olmo2",
        norms: Norms::Behind,
        qk_norm: QkNorm::Row,
        windows: period(4),
        local_rope: LocalRope::Unscaled,
        ..Family::PLAIN
    },
    LFM2,
    Family {
        name: "lfm2moe",
        router: Some(Router {
            gating: Gating::Key(None),
            has_selection: true,
            ..Router::PLAIN
        }),
        ..LFM2
    },
    Family {
        name: "gpt-oss",
        ffn_norm: "post_attention_norm",
        has_sinks: true,
        windows: period(2),
        local_rope: LocalRope::OwnBase,
        activation: Activation::Clamped,
        router: Some(Router::PLAIN),
        ..Family::PLAIN
    },
    GRANITE,
    Family {
        name: "granitemoe",
        rotated: Rotated::All,
        ..GRANITE
    },
    Family {
        name: "granite_swa",
        has_sinks: true,
        windows: period(0),
        rotated: Rotated::Listed,
        ..GRANITE
    },
    Family {
        name: "glm4",
        is_neighbours: true,
        norms: Norms::Around,
        has_nextn: true,
        ..Family::PLAIN
    },
    Family {
        name: "glm4moe",
        ffn_norm: "post_attention_norm",
        qk_norm: QkNorm::MaybeHead,
        router: Some(Router {
            gating: Gating::Key(Some(Score::Sigmoid)),
            is_normalised: None,
            has_scale: true,
            has_selection: true,
            shared: Shared::Count,
        }),
        has_nextn: true,
        ..Family::PLAIN
    },
    Family {
        name: "mistral3",
        windows: ALL,
        is_neighbours: true,
        has_yarn_keys: true,
        router: Some(Router::PLAIN),
        ..Family::PLAIN
    },
    Family {
        name: "smollm3",
        is_neighbours: true,
        rotated: Rotated::ThreeOfFour,
        ..Family::PLAIN
    },
    Family {
        name: "ernie4_5",
        is_neighbours: true,
        ..Family::PLAIN
    },
    Family {
        name: "ernie4_5-moe",
        is_neighbours: true,
        router: Some(Router {
            has_selection: true,
            shared: Shared::Length,
            ..Router::PLAIN
        }),
        ..Family::PLAIN
    },
    Family {
        name: "seed_oss",
        ffn_norm: "post_attention_norm",
        ..Family::PLAIN
    },
    Family {
        name: "cohere2",
        is_neighbours: true,
        norms: Norms::Shared,
        is_centred: true,
        windows: period(4),
        rotated: Rotated::Local,
        scales: Scales::Logits,
        ..Family::PLAIN
    },
    Family {
        name: "exaone4",
        norms: Norms::Behind,
        qk_norm: QkNorm::Head,
        windows: period(4),
        rotated: Rotated::Local,
        ..Family::PLAIN
    },
    Family {
        name: "minimax-m2",
        qk_norm: QkNorm::Row,
        router: Some(Router {
            gating: Gating::Key(None),
            has_selection: true,
            ..Router::PLAIN
        }),
        ..Family::PLAIN
    },
    Family {
        name: "smallthinker",
        windows: Some(Windows {
            default: 0,
            period: 4,
            is_dense_first: true,
        }),
        rotated: Rotated::FirstOfFourNot,
        local_rope: LocalRope::OwnBase,
        activation: Activation::Relu(0.0),
        router: Some(Router {
            gating: Gating::Key(Some(Score::Sigmoid)),
            ..Router::PLAIN
        }),
        routes_input: true,
        ..Family::PLAIN
    },
    Family {
        name: "minicpm",
        is_neighbours: true,
        scales: Scales::MiniCpm,
        router: Some(Router::PLAIN),
        ..Family::PLAIN
    },
    Family {
        name: "bamboo",
        is_neighbours: true,
        activation: Activation::Drelu,
        ..Family::PLAIN
    },
    HUNYUAN,
    Family {
        name: "hunyuan-moe",
        router: Some(Router {
            shared: Shared::LengthOrFf { is_gated: false },
            ..Router::PLAIN
        }),
        ..HUNYUAN
    },
];

const LFM2: Family = Family {
    name: "lfm2",
    output_norm: "token_embd_norm.weight",
    qk_norm: QkNorm::Head,
    has_convolutions: true,
    ..Family::PLAIN
};

const GRANITE: Family = Family {
    name: "granite",
    is_neighbours: true,
    rotated: Rotated::Finetuned,
    scales: Scales::Granite,
    router: Some(Router {
        shared: Shared::Length,
        ..Router::PLAIN
    }),
    ..Family::PLAIN
};

const HUNYUAN: Family = Family {
    name: "hunyuan-dense",
    qk_norm: QkNorm::Head,
    is_norm_late: true,
    ..Family::PLAIN
};
