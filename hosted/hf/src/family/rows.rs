//! Tensors as rows of tables: their names in both formats, and their sizes.
//!
//! A family lists [`Block`]s of [`Row`]s, and which layers have a block. [`Row::add`] and [`Experts::add`] make [`Wanted`]
//! tensors of them.

use super::Shape;
use super::wanted::{Change, Map, Slice, Wanted, one};

/// A size, of a model's shape.
pub(super) type Size = fn(&Shape) -> u64;

/// A tensor of every layer, or of the model, with its bias.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// GGUF's name, without layer and `.weight`.
    to: &'static str,
    /// The name in Hugging Face files, without the layer's module and `.weight`.
    from: &'static str,
    /// Whether the names are complete, without `.weight`.
    is_bare: bool,
    /// (rows, columns), a length, or (matrices, rows, columns).
    shape: &'static [Size],
    /// The shape in the folder, if it differs.
    source: Option<&'static [Size]>,
    change: fn(&Shape) -> Change,
    map: Map,
    need: Need,
    bias: Need,
}

/// Whether a folder must have a tensor.
#[derive(Clone, Copy)]
pub(super) enum Need {
    Always,
    IfThere,
    Never,
    /// Required if this holds, ignored otherwise.
    Where(fn(&Shape) -> bool),
    /// Required unless this holds; omitted if it does.
    Unless(fn(&Shape) -> bool),
}

/// Rows for the layers for which `when` holds.
pub(super) struct Block {
    pub(super) when: fn(&Shape, u32) -> bool,
    pub(super) rows: &'static [Row],
    pub(super) experts: Option<Experts>,
}

/// The experts of a layer: a tensor for each, or all gates and ups in one and all downs in another.
#[derive(Clone, Copy)]
pub(super) struct Experts {
    /// Prefix before an expert's number, such as `mlp.experts`.
    pub(super) from: &'static str,
    /// GGUF's and Hugging Face's names, in the order in which they are written.
    pub(super) parts: &'static [(&'static str, &'static str)],
    /// Input and output size.
    pub(super) width: Size,
    /// Where all experts are in one tensor, its matrices may be transposed.
    pub(super) may_be_turned: bool,
}

/// Gate, down and up under Mixtral's names.
pub(super) const MIXTRAL_EXPERTS: Experts = Experts {
    from: "block_sparse_moe.experts",
    parts: &[("gate", "w1"), ("down", "w2"), ("up", "w3")],
    width: n_embd,
    may_be_turned: false,
};

/// Gate, down and up, under the names most families use.
pub(super) const EXPERTS: Experts = Experts {
    from: "mlp.experts",
    parts: &[
        ("down", "down_proj"),
        ("gate", "gate_proj"),
        ("up", "up_proj"),
    ],
    width: n_embd,
    may_be_turned: false,
};

pub(super) const fn row(to: &'static str, from: &'static str, shape: &'static [Size]) -> Row {
    Row {
        to,
        from,
        is_bare: false,
        shape,
        source: None,
        change: |_| Change::None,
        map: Map::Same,
        need: Need::Always,
        bias: Need::Never,
    }
}

/// A tensor whose names do not end in `.weight`.
pub(super) const fn bare(to: &'static str, from: &'static str, shape: &'static [Size]) -> Row {
    Row {
        is_bare: true,
        ..row(to, from, shape)
    }
}

impl Row {
    /// Whether GGUF has it under this name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.to == name
    }

    /// The name of its weight in Hugging Face files, without the layer's module.
    pub(super) fn weight(&self) -> String {
        format!("{}.weight", self.from)
    }

    /// Whether it is a matrix after the pooling, of a separate folder.
    pub(super) fn is_dense(&self) -> bool {
        self.to.starts_with("dense_")
    }

    pub(super) const fn need(self, need: Need) -> Self {
        Self { need, ..self }
    }

    pub(super) const fn if_there(self) -> Self {
        self.need(Need::IfThere)
    }

    pub(super) const fn bias(self, bias: Need) -> Self {
        Self { bias, ..self }
    }

    /// Made from a tensor of another shape.
    pub(super) const fn of(self, source: &'static [Size], change: fn(&Shape) -> Change) -> Self {
        Self {
            source: Some(source),
            change,
            ..self
        }
    }

    /// The elements, or the rows together with the bias, in another order.
    pub(super) const fn changed(self, change: fn(&Shape) -> Change) -> Self {
        Self { change, ..self }
    }

    pub(super) const fn mapped(self, map: Map) -> Self {
        Self { map, ..self }
    }

    /// Adds the tensor and its bias; `to` and `from` are the prefixes in GGUF and in the folder.
    pub(super) fn add(&self, [to, from]: [&str; 2], shape: &Shape, all: &mut Vec<Wanted>) {
        let sizes = |list: &[Size]| list.iter().map(|size| size(shape)).collect::<Vec<_>>();
        let parts: &[(&str, Need)] = match self.is_bare {
            true => &[("", self.need)],
            false => &[(".weight", self.need), (".bias", self.bias)],
        };
        for (end, need) in parts {
            let (is_left_out, is_optional) = match need {
                Need::Always => (false, false),
                Need::IfThere => (false, true),
                Need::Never => (true, false),
                Need::Where(must) => (false, !must(shape)),
                Need::Unless(leaves) => (leaves(shape), false),
            };
            if is_left_out {
                continue;
            }
            let (to, from) = (
                format!("{to}{}{end}", self.to),
                format!("{from}{}{end}", self.from),
            );
            let mut dims = sizes(self.shape);
            let mut source = self.source.map_or_else(|| dims.clone(), sizes);
            if *end == ".bias" {
                dims.truncate(1);
                source.truncate(1);
            }
            let mut wanted = one(&to, &from, &dims);
            wanted.source = source;
            wanted.change = (self.change)(shape);
            wanted.map = self.map;
            wanted.is_optional = is_optional;
            wanted.is_ignored = is_optional && matches!(need, Need::Where(_));
            all.push(wanted);
        }
    }
}

impl Experts {
    /// Adds the tensors of a layer's experts; `dims` returns the dimensions of a tensor, if the folder has it.
    pub(super) fn add(
        &self,
        [to, from]: [&str; 2],
        shape: &Shape,
        dims: &dyn Fn(&str) -> Option<Vec<u64>>,
        all: &mut Vec<Wanted>,
    ) {
        let has = |name: &str| dims(name).is_some();
        let (n_expert, width, n_ff) = (n_expert(shape), (self.width)(shape), n_ff_exp(shape));
        let from = format!("{from}{}", self.from);
        let end = |name: String| match has(&name) {
            true => name,
            false => format!("{name}.weight"),
        };
        let fused = end(format!("{from}.gate_up_proj"));
        let is_stacked = has(&fused);
        // A square matrix does not show it, but one of the two is not square.
        let (turned, down) = match n_ff == width {
            true => ([n_expert, width, n_ff.saturating_mul(2)], fused.clone()),
            false => ([n_expert, n_ff, width], end(format!("{from}.down_proj"))),
        };
        let is_turned = self.may_be_turned && dims(&down).is_some_and(|found| found == turned);
        for (part, projection) in self.parts {
            let [rows, columns] = match *part {
                "down" => [width, n_ff],
                _ => [n_ff, width],
            };
            let name = format!("{to}ffn_{part}_exps.weight");
            let mut wanted = one(&name, "", &[rows, columns]);
            if !is_stacked {
                let experts = 0..n_expert;
                let part = |expert| format!("{from}.{expert}.{projection}.weight");
                wanted.parts = experts.map(part).collect();
                all.push(wanted);
                continue;
            }
            wanted.shape = vec![n_expert, rows, columns];
            wanted.source.clone_from(&wanted.shape);
            let start = if *part == "up" { n_ff } else { 0 };
            if *part == "down" {
                wanted.parts = vec![end(format!("{from}.{projection}"))];
            } else {
                wanted.parts = vec![fused.clone()];
                wanted.source[1] = rows.saturating_mul(2);
                wanted.change = of_each(n_expert, [start, n_ff], n_ff.saturating_mul(2));
            }
            if is_turned {
                wanted.source.swap(1, 2);
                let (step, of) = (1, columns);
                wanted.change = Change::Turned { start, step, of };
            }
            all.push(wanted);
        }
    }
}

/// The `len` rows from `start` on in each of `n` groups of `of` rows.
pub(super) fn of_each(n: u64, [start, len]: [u64; 2], of: u64) -> Change {
    let n = n.saturating_mul(len);
    let len = len.max(1);
    Change::Rows(vec![Slice { start, len, of, n }])
}

/// `n` rows from `start` on.
pub(super) fn run(start: u64, n: u64) -> Change {
    Change::Rows(vec![Slice::run(start, n.max(1))])
}

// Conditions for a layer to have a block.

pub(super) const fn always(_: &Shape, _: u32) -> bool {
    true
}

/// A layer after the leading ones without experts.
pub(super) fn is_sparse(shape: &Shape, layer: u32) -> bool {
    u64::from(layer) >= shape.size("first_k_dense_replace")
}

pub(super) fn is_dense(shape: &Shape, layer: u32) -> bool {
    !is_sparse(shape, layer)
}

/// An MTP block after the model's own layers, which predicts the token after the next.
pub(super) const fn is_nextn(shape: &Shape, layer: u32) -> bool {
    layer >= shape.n_layer
}

// Sizes.

pub(super) fn n_embd(shape: &Shape) -> u64 {
    shape.n_embd.into()
}

pub(super) fn n_vocab(shape: &Shape) -> u64 {
    shape.n_vocab.into()
}

pub(super) fn head_dim(shape: &Shape) -> u64 {
    shape.head_dim.into()
}

pub(super) fn n_head(shape: &Shape) -> u64 {
    shape.n_head.into()
}

/// Columns of all queries.
pub(super) fn n_q(shape: &Shape) -> u64 {
    n_head(shape) * head_dim(shape)
}

/// Columns of all keys, or of all values.
pub(super) fn n_kv(shape: &Shape) -> u64 {
    u64::from(shape.n_head_kv) * head_dim(shape)
}

pub(super) fn n_ff(shape: &Shape) -> u64 {
    shape.n_ff.into()
}

pub(super) fn n_expert(shape: &Shape) -> u64 {
    shape.n_expert.unwrap_or(0).into()
}

pub(super) fn n_ff_exp(shape: &Shape) -> u64 {
    shape.n_ff_exp.unwrap_or(0).into()
}

pub(super) const fn one_row(_: &Shape) -> u64 {
    1
}

pub(super) const fn is_tied(shape: &Shape) -> bool {
    shape.is_tied
}

/// Whether another tensor is the output matrix, or a reranker's answers are made of it.
const fn has_no_output(shape: &Shape) -> bool {
    shape.is_tied || shape.answers.is_some()
}

const fn has_mlp_bias(shape: &Shape) -> bool {
    shape.has_mlp_bias
}

// Rows that many families have.

/// The embedding, the last norm, and the output matrix.
pub(super) const GLOBALS: &[Row] = &[
    row("token_embd", "model.embed_tokens", &[n_vocab, n_embd]),
    row("output_norm", "model.norm", &[n_embd]),
    row("output", "lm_head", &[n_vocab, n_embd]).need(Need::Unless(has_no_output)),
];

/// The norms before attention and before the feed-forward network.
pub(super) const NORMS: &[Row] = &[
    row("attn_norm", "input_layernorm", &[n_embd]),
    row("ffn_norm", "post_attention_layernorm", &[n_embd]),
];

pub(super) const MLP_BIAS: Need = Need::Where(has_mlp_bias);

pub(super) const SWIGLU: &[Row] = &[
    row("ffn_gate", "mlp.gate_proj", &[n_ff, n_embd]).bias(MLP_BIAS),
    row("ffn_up", "mlp.up_proj", &[n_ff, n_embd]).bias(MLP_BIAS),
    row("ffn_down", "mlp.down_proj", &[n_embd, n_ff]).bias(MLP_BIAS),
];

/// Gates, ups and downs of a network without biases; gates and ups have `$n_ff` rows.
macro_rules! gated {
    ($end:literal, $module:literal, $n_ff:expr) => {
        &[
            $crate::family::rows::row(
                concat!("ffn_gate", $end),
                concat!($module, ".gate_proj"),
                &[$n_ff, $crate::family::rows::n_embd],
            ),
            $crate::family::rows::row(
                concat!("ffn_up", $end),
                concat!($module, ".up_proj"),
                &[$n_ff, $crate::family::rows::n_embd],
            ),
            $crate::family::rows::row(
                concat!("ffn_down", $end),
                concat!($module, ".down_proj"),
                &[$crate::family::rows::n_embd, $n_ff],
            ),
        ]
    };
}
pub(super) use gated;

/// The router.
pub(super) const ROUTER: &[Row] = &[row("ffn_gate_inp", "mlp.gate", &[n_expert, n_embd])];

/// A block of every layer.
pub(super) const fn block(rows: &'static [Row]) -> Block {
    block_when(always, rows)
}

pub(super) const fn block_when(when: fn(&Shape, u32) -> bool, rows: &'static [Row]) -> Block {
    Block {
        when,
        rows,
        experts: None,
    }
}

/// Routers and experts, for the layers that have them.
pub(super) const fn sparse(
    when: fn(&Shape, u32) -> bool,
    rows: &'static [Row],
    experts: Experts,
) -> Block {
    Block {
        when,
        rows,
        experts: Some(experts),
    }
}
