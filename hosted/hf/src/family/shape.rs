//! The sizes of a model, from `config.json`.

use super::dense::Dense;
use super::mixers::Mixer;
use super::{Family, Kind};
use crate::HfError;
use crate::config::{Config, whole};
use serde_json::Value;

/// The sizes of a model, from `config.json`.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The number of layers.
    pub n_layer: u32,
    /// The width of the residual stream.
    pub n_embd: u32,
    /// The number of query heads.
    pub n_head: u32,
    /// The number of key-value heads.
    pub n_head_kv: u32,
    /// Columns of a head; `head_dim` where it is given, a head's share of `n_embd` otherwise.
    pub head_dim: u32,
    /// Whether the head size is written: given, or implied by the family.
    pub(super) says_head_dim: bool,
    pub(super) n_ff: u32,
    /// Columns of an expert.
    pub(super) n_ff_exp: Option<u32>,
    pub(super) n_expert: Option<u32>,
    /// The number of tokens.
    pub n_vocab: u32,
    /// Whether the output matrix is tied to the embedding.
    pub is_tied: bool,
    pub(super) has_attention_bias: bool,
    pub(super) has_mlp_bias: bool,
    /// Each layer's mixer; empty if all layers attend to the whole text.
    pub(super) mixers: Vec<Mixer>,
    /// Number of MTP blocks after the layers, which predict further tokens.
    pub n_nextn: u32,
    /// The answer tokens of a reranker: yes and no.
    pub answers: Option<[u64; 2]>,
    /// Number of outputs of a scoring head.
    pub(super) n_labels: u32,
    /// Matrices after an encoder's pooling.
    pub dense: Vec<Dense>,
    /// Sizes specific to the family, by config.json's names.
    sizes: Vec<(&'static str, u32)>,
    /// For encoders: rows of the position embeddings, how many of them are skipped, token types.
    pub(super) positions: [u32; 3],
}

/// Where a model keeps its MTP blocks (multi-token prediction), and whether they are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nextn {
    /// The family does not have any.
    Never,
    /// Stored as layers; `num_nextn_predict_layers` gives their number.
    Counted,
    /// Stored as layers, and left out.
    Dropped,
    /// Stored separately, under `mtp.`.
    Mtp,
    /// A single separate block in two halves: attention and experts.
    Halves,
}

/// The size of heads where config.json does not give it, and whether the file states it.
#[derive(Clone, Copy)]
pub(super) enum HeadDim {
    /// A head's share of the width; stated only if config.json gives a size.
    IfGiven,
    /// A head's share of the width.
    Share,
    /// This size.
    Of(u32),
    /// A head's share of the width: the file has no place for another.
    Hidden,
    /// A head's share of the width; the family's own keys state it.
    InKeys,
}

/// Whether a family has experts, and which key gives their width.
#[derive(Clone, Copy)]
pub(super) enum ExpertSizes {
    Never,
    /// The width under this name in config.json, or else the feed-forward width.
    Always(&'static str),
    /// Only if config.json gives a number of experts.
    Maybe(&'static str),
}

/// The labels by number; transformers' two defaults if none are given.
pub(super) fn labels(config: &Config) -> Vec<String> {
    let Some(Value::Object(map)) = config.find(&["id2label"]) else {
        return ["LABEL_0", "LABEL_1"].map(str::to_owned).into();
    };
    let mut labels: Vec<(u64, String)> = Vec::new();
    for (id, label) in map {
        let label = label.as_str().unwrap_or_default();
        labels.push((id.parse().unwrap_or(u64::MAX), label.into()));
    }
    labels.sort();
    labels.into_iter().map(|(_, label)| label).collect()
}

/// Rows of the position embeddings in the file, how many of them are unused, and the number of token types. RoBERTa
/// counts positions from the one after the padding token's ID.
fn positions(family: &Family, config: &Config) -> Result<[u32; 3], HfError> {
    let n_rows = config.count(&["max_position_embeddings"])?;
    let n_types = config.maybe_count(&["type_vocab_size"])?.unwrap_or(2);
    if let Some(kind) = config
        .str("position_embedding_type")
        .filter(|kind| *kind != "absolute")
    {
        let what = format!("is {kind:?}, but bert in GGUF has absolute positions");
        return Err(config.error(&["position_embedding_type"], &what));
    }
    let n_skipped = match family.kind {
        Kind::Roberta => 1 + config.maybe_count(&["pad_token_id"])?.unwrap_or(1),
        _ => 0,
    };
    if n_skipped >= n_rows {
        let what = format!("is {n_rows}, but positions begin at {n_skipped}");
        return Err(config.error(&["max_position_embeddings"], &what));
    }
    Ok([n_rows, n_skipped, n_types])
}

/// How many experts a layer has, and their width.
fn experts(
    family: &Family,
    config: &Config,
    n_ff: u32,
) -> Result<(Option<u32>, Option<u32>), HfError> {
    let names = [
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_num_experts",
        "moe_num_primary_experts",
    ];
    let (width, n_expert) = match family.traits.experts {
        ExpertSizes::Never => return Ok((None, None)),
        ExpertSizes::Always(width) => (width, Some(config.count(&names)?)),
        ExpertSizes::Maybe(width) => (width, config.maybe_whole(&names)?.filter(|n| *n > 0)),
    };
    if n_expert.is_none() {
        return Ok((None, None));
    }
    // If each layer has its own number, all must be equal.
    let widths = match config.find(&[width]) {
        Some(Value::Array(_)) => Some(same_of_all(config, width)?),
        Some(_) => config.maybe_count(&[width])?,
        None => None,
    };
    Ok((n_expert, Some(widths.unwrap_or(n_ff))))
}

/// The value shared by all entries of a per-layer list.
pub(super) fn same_of_all(config: &Config, key: &str) -> Result<u32, HfError> {
    let list = config.find(&[key]).and_then(Value::as_array);
    let list = list.map(Vec::as_slice).unwrap_or_default();
    let number = list
        .first()
        .and_then(whole)
        .and_then(|n| u32::try_from(n).ok());
    match number.filter(|n| (1..=1 << 24).contains(n)) {
        Some(n) if list.iter().all(|other| whole(other) == Some(n.into())) => Ok(n),
        _ => Err(config.error(&[key], "is not one number above 0 for all layers")),
    }
}

/// The name under which config.json has a size.
fn named(config: &Config, name: &'static str, other: &'static str) -> &'static str {
    match config.find(&[other]) {
        Some(_) => other,
        None => name,
    }
}

/// Sizes specific to the family.
fn own_sizes(family: &Family, config: &Config) -> Result<Vec<(&'static str, u32)>, HfError> {
    let mut sizes = Vec::new();
    for &(key, default) in family.traits.sizes {
        let size = match config.find(&[key]).and_then(Value::as_bool) {
            Some(flag) => Some(u32::from(flag)),
            None => config.maybe_whole(&[key])?.or(default),
        };
        sizes.push((key, size.ok_or_else(|| config.error(&[key], "is missing"))?));
    }
    Ok(sizes)
}

/// Attention heads.
struct Heads {
    n: u32,
    n_kv: u32,
    /// Columns of a head.
    dim: u32,
    says_dim: bool,
}

impl Heads {
    fn read(family: &Family, config: &Config, n_embd: u32) -> Result<Self, HfError> {
        let is_gemma3 = family.kind == Kind::Gemma3;
        let key = named(config, "num_attention_heads", "n_head");
        let n = match config.maybe_count(&[key])? {
            None if is_gemma3 => 8,
            None => config.count(&[key])?,
            Some(n) => n,
        };
        let n_kv = config.maybe_count(&["num_key_value_heads"])?;
        let n_kv = n_kv.unwrap_or(if is_gemma3 { 4 } else { n });
        let given = config.maybe_count(&["head_dim", "attention_head_dim"])?;
        let own = family.traits.head_dim;
        let share = n_embd / n;
        let dim = given.unwrap_or(match own {
            HeadDim::Of(dim) => dim,
            _ => share,
        });
        if matches!(own, HeadDim::Hidden) && dim != share {
            let architecture = family.architecture;
            let what = format!("is {dim}, which {architecture} in GGUF cannot express");
            return Err(config.error(&["head_dim"], &what));
        }
        if dim == 0 || (family.permutes() && !dim.is_multiple_of(2)) {
            let what = format!("gives heads of {dim} columns, which cannot be rotated");
            return Err(config.error(&["head_dim", "num_attention_heads"], &what));
        }
        if !n.is_multiple_of(n_kv) {
            let what = format!("is {n_kv}, which does not divide the {n} heads");
            return Err(config.error(&["num_key_value_heads"], &what));
        }
        Ok(Self {
            n,
            n_kv,
            dim,
            says_dim: match own {
                HeadDim::IfGiven => given.is_some(),
                HeadDim::Share | HeadDim::Of(_) => true,
                HeadDim::Hidden | HeadDim::InKeys => false,
            },
        })
    }
}

impl Shape {
    /// Reads the sizes.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn read(family: &Family, config: &Config) -> Result<Self, HfError> {
        let is_gemma3 = family.kind == Kind::Gemma3;
        let traits = family.traits;
        let n_layer = config.count(&[named(config, "num_hidden_layers", "n_layer")])?;
        let n_embd = config.count(&[named(config, "hidden_size", "n_embd")])?;
        let heads = Heads::read(family, config, n_embd)?;
        let n_ff = (traits.n_ff)(config)?;
        let (n_expert, n_ff_exp) = experts(family, config, n_ff)?;
        let flag = |key| config.bool(key) == Some(true);
        let is_tied = config
            .find(&["tie_word_embeddings", "tie_embedding"])
            .and_then(Value::as_bool)
            .unwrap_or(traits.is_tied);
        Ok(Self {
            n_layer,
            n_embd,
            n_head: heads.n,
            n_head_kv: heads.n_kv,
            head_dim: heads.dim,
            says_head_dim: heads.says_dim,
            n_ff,
            n_ff_exp,
            n_expert,
            n_vocab: match config.maybe_count(&["vocab_size"])? {
                // Gemma 3's published text_config omits transformers' defaults.
                None if is_gemma3 => 262_208,
                None => config.count(&["vocab_size"])?,
                Some(n) => n,
            },
            is_tied,
            has_attention_bias: flag("attention_bias"),
            has_mlp_bias: flag("mlp_bias"),
            mixers: (traits.mixers)(config, n_layer)?,
            n_nextn: 0,
            n_labels: u32::try_from(labels(config).len()).unwrap_or(u32::MAX),
            dense: Vec::new(),
            answers: None,
            sizes: own_sizes(family, config)?,
            positions: match family.kind {
                Kind::Bert | Kind::Roberta => positions(family, config)?,
                _ => [0; 3],
            },
        })
    }

    /// Counts the MTP blocks after the layers that the folder has. Blocks that only config.json mentions cause a
    /// warning.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn count_nextn<'n>(
        &mut self,
        family: &Family,
        config: &Config,
        mut names: impl Iterator<Item = &'n str>,
        warnings: &mut Vec<String>,
    ) -> Result<(), HfError> {
        let keys = ["num_nextn_predict_layers", "mtp_num_hidden_layers"];
        let said = config.maybe_whole(&keys)?;
        let first = format!(".layers.{}.", self.n_layer);
        let number = |name: &str| -> Option<u32> {
            let rest = name.strip_prefix("mtp.layers.")?;
            rest.split('.').next()?.parse().ok()
        };
        self.n_nextn = match family.traits.nextn {
            Nextn::Halves if names.any(|name| name.starts_with("mtp.")) => 1,
            Nextn::Counted if names.any(|name| name.contains(&first)) => said.unwrap_or(0),
            Nextn::Mtp => names
                .filter_map(number)
                .max()
                .map_or(0, |last| last.saturating_add(1)),
            _ => 0,
        };
        if let Some(said) = said.filter(|said| *said > 0 && self.n_nextn == 0) {
            let told = config.named(
                keys.iter()
                    .find(|key| config.find(&[key]).is_some())
                    .unwrap_or(&keys[0]),
            );
            warnings.push(format!(
                "{told} is {said}: these blocks, which predict further tokens, are omitted"
            ));
        }
        Ok(())
    }

    /// Number of experts of a layer; 0 without experts.
    pub(crate) fn n_expert(&self) -> u32 {
        self.n_expert.unwrap_or(0)
    }

    /// A size specific to the family.
    pub(crate) fn size(&self, key: &str) -> u64 {
        let found = self.sizes.iter().find(|(name, _)| *name == key);
        found.map_or(0, |(_, size)| u64::from(*size))
    }

    /// A layer's mixer. MTP blocks after the layers use full attention.
    pub(super) fn mixer(&self, layer: u32) -> Mixer {
        let mixer = self.mixers.get(layer as usize);
        mixer.copied().unwrap_or(Mixer::Full)
    }

    /// Whether each layer has a window; empty if the configuration does not list mixers.
    pub(super) fn windows(&self) -> Vec<bool> {
        let mixers = self.mixers.iter();
        mixers.map(|mixer| *mixer == Mixer::Window).collect()
    }

    /// Checks that the folder has enough tensors for its layers and experts, which bounds the list of wanted tensors.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn check_counts(
        &self,
        family: &Family,
        config: &Config,
        n_tensors: usize,
    ) -> Result<(), HfError> {
        let told = |n| format!("is {n}, but the files have only {n_tensors} tensors");
        let n_tensors = n_tensors as u64;
        let n_layer = u64::from(self.n_layer) + u64::from(self.n_nextn);
        if n_layer > n_tensors {
            return Err(config.error(&["num_hidden_layers"], &told(n_layer)));
        }
        match self.n_expert.map(u64::from) {
            Some(n_expert) if !family.stacks_experts() && n_layer * n_expert > n_tensors => {
                Err(config.error(&["num_local_experts", "num_experts"], &told(n_expert)))
            }
            _ => Ok(()),
        }
    }
}
