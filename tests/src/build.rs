//! Small GGUF files of dense decoders made in memory, for tests that need a model of a certain
//! shape, a damaged one, or one whose right answer is known.
//!
//! [`Shape`] describes the model, [`Shape::file`] fills it with random weights of about the size that training gives,
//! and [`File`] is a list of metadata and tensors that a test changes before [`File::bytes`] writes it. The layout
//! follows the GGUF specification (`docs/gguf.md` of ggml-org/ggml); the block formats follow `ggml-common.h` of
//! llama.cpp.

use sluice_core::kernels::GgmlType;
use sluice_core::kernels::half::{f32_to_bf16, f32_to_f16};

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "each variant is the GGUF value type of that name"
)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strings(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    U32s(Vec<u32>),
}

impl From<u32> for Meta {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<f32> for Meta {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<&str> for Meta {
    fn from(value: &str) -> Self {
        Self::Str(value.into())
    }
}

/// A tensor; `dims[0]` is the row length, as in GGUF.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are a tensor info's")]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub ty: GgmlType,
    pub data: Vec<u8>,
}

/// A GGUF file before it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// 2 or 3.
    pub version: u32,
    /// Keys and values, in file order.
    pub metadata: Vec<(String, Meta)>,
    /// Tensors, in file order.
    pub tensors: Vec<Tensor>,
}

/// Bytes that tensor data is aligned to.
const ALIGNMENT: usize = 32;

impl File {
    /// Sets a key, or adds it.
    pub fn set(&mut self, key: &str, value: impl Into<Meta>) {
        self.unset(key);
        self.metadata.push((key.into(), value.into()));
    }

    /// Removes a key, if it is there.
    pub fn unset(&mut self, key: &str) {
        self.metadata.retain(|(other, _)| other != key);
    }

    /// The tensor called `name`.
    ///
    /// # Panics
    /// If the tensor does not exist.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        tensor.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Gives the tensor called `name` other values, row after row.
    ///
    /// # Panics
    /// If the tensor does not exist, or [`encode`] does not write its type.
    pub fn fill(&mut self, name: &str, values: &[f32]) {
        let tensor = self.tensor(name);
        tensor.data = encode(tensor.ty, values);
    }

    /// Adds a vector of f32.
    pub fn add_vector(&mut self, name: &str, values: &[f32]) {
        self.tensors.push(Tensor {
            name: name.into(),
            dims: vec![values.len() as u64],
            ty: GgmlType::F32,
            data: encode(GgmlType::F32, values),
        });
    }

    /// The file.
    ///
    /// # Panics
    /// If a tensor has 2^32 dimensions.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            value.put(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            let n_dims = u32::try_from(tensor.dims.len()).expect("few dimensions");
            out.extend(n_dims.to_le_bytes());
            tensor.dims.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend((tensor.ty as u32).to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.data);
        }
        // As ggml writes it: the last tensor is padded too.
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }
}

impl Meta {
    /// Writes type and value.
    fn put(&self, out: &mut Vec<u8>) {
        const ARRAY: u32 = 9;
        match self {
            Self::U32(x) => put_typed(out, 4, &x.to_le_bytes()),
            Self::F32(x) => put_typed(out, 6, &x.to_le_bytes()),
            Self::Bool(x) => put_typed(out, 7, &[u8::from(*x)]),
            Self::Str(text) => {
                put_typed(out, 8, &[]);
                put_string(out, text);
            }
            Self::Strings(texts) => {
                put_typed(out, ARRAY, &8u32.to_le_bytes());
                out.extend((texts.len() as u64).to_le_bytes());
                texts.iter().for_each(|text| put_string(out, text));
            }
            Self::F32s(values) => {
                put_typed(out, ARRAY, &6u32.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|x| out.extend(x.to_le_bytes()));
            }
            Self::I32s(values) => {
                put_typed(out, ARRAY, &5u32.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|x| out.extend(x.to_le_bytes()));
            }
            Self::U32s(values) => {
                put_typed(out, ARRAY, &4u32.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|x| out.extend(x.to_le_bytes()));
            }
        }
    }
}

fn put_typed(out: &mut Vec<u8>, ty: u32, value: &[u8]) {
    out.extend(ty.to_le_bytes());
    out.extend(value);
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The vocabulary that a built file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocab {
    /// No tokenizer keys.
    None,
    /// SentencePiece: `<unk>`, `<s>`, `</s>`, then the space mark, letters and their pairs.
    SentencePiece,
    /// Byte-level BPE: letters and their pairs, with the merges that make the pairs.
    ByteLevel,
}

/// What a model is, as in `sluice_core::model::ModelConfig`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are GGUF's")]
pub struct Shape {
    /// `llama`, or another dense architecture.
    pub arch: &'static str,
    pub version: u32,
    pub n_layer: u32,
    pub n_embd: u32,
    pub n_head: u32,
    pub n_head_kv: u32,
    pub head_dim_k: u32,
    pub head_dim_v: u32,
    pub n_ff: u32,
    /// Experts of `n_ff` neurons each (Mixtral); 0 for none.
    pub n_expert: u32,
    pub n_expert_used: u32,
    /// At most 29 with a vocabulary.
    pub n_vocab: u32,
    pub vocab: Vocab,
    /// Whether the output layer is the embedding.
    pub tied: bool,
    /// Type of all matrices.
    pub ty: GgmlType,
    /// What the random weights follow from.
    pub seed: u64,
}

impl Shape {
    /// One layer of width 32, 4 heads that share 2 KV heads, 16 tokens: 6 KB of weights in F16
    /// after a header of 1.7 KB.
    pub const TINY: Self = Self {
        arch: "llama",
        version: 3,
        n_layer: 1,
        n_embd: 32,
        n_head: 4,
        n_head_kv: 2,
        head_dim_k: 8,
        head_dim_v: 8,
        n_ff: 32,
        n_expert: 0,
        n_expert_used: 0,
        n_vocab: 16,
        vocab: Vocab::SentencePiece,
        tied: true,
        ty: GgmlType::F16,
        seed: 1,
    };

    /// Two layers that use every part of the engine: more than one strip in each phase, an
    /// output layer of its own, 300 tokens.
    pub const SMALL: Self = Self {
        n_layer: 2,
        n_embd: 256,
        n_head: 8,
        n_head_kv: 4,
        head_dim_k: 32,
        head_dim_v: 32,
        n_ff: 768,
        n_vocab: 300,
        vocab: Vocab::None,
        tied: false,
        ..Self::TINY
    };

    /// The model with random weights.
    #[must_use]
    pub fn file(&self) -> File {
        let mut metadata = self.hyperparameters();
        metadata.extend(self.tokenizer());
        let mut random = Random(self.seed);
        let tensors = self.names_and_shapes().into_iter();
        let tensors = tensors.map(|(name, dims)| self.tensor(&mut random, name, dims));
        File {
            version: self.version,
            metadata,
            tensors: tensors.collect(),
        }
    }

    fn hyperparameters(&self) -> Vec<(String, Meta)> {
        let pairs: [(&str, Meta); 11] = [
            ("block_count", self.n_layer.into()),
            ("context_length", 4096.into()),
            ("embedding_length", self.n_embd.into()),
            ("feed_forward_length", self.n_ff.into()),
            ("attention.head_count", self.n_head.into()),
            ("attention.head_count_kv", self.n_head_kv.into()),
            ("attention.key_length", self.head_dim_k.into()),
            ("attention.value_length", self.head_dim_v.into()),
            ("attention.layer_norm_rms_epsilon", 1e-5.into()),
            ("rope.dimension_count", self.head_dim_k.into()),
            ("rope.freq_base", 10_000.0.into()),
        ];
        let mut all = vec![("general.architecture".to_owned(), self.arch.into())];
        all.extend(pairs.map(|(key, value)| (format!("{}.{key}", self.arch), value)));
        if self.n_expert > 0 {
            let used = self.n_expert_used.into();
            all.push((format!("{}.expert_count", self.arch), self.n_expert.into()));
            all.push((format!("{}.expert_used_count", self.arch), used));
        }
        all
    }

    fn names_and_shapes(&self) -> Vec<(String, Vec<u32>)> {
        let (q, k) = (
            self.n_head * self.head_dim_k,
            self.n_head_kv * self.head_dim_k,
        );
        let (v, o) = (
            self.n_head_kv * self.head_dim_v,
            self.n_head * self.head_dim_v,
        );
        let (n_embd, n_ff) = (self.n_embd, self.n_ff);
        let mut all = vec![("token_embd".to_owned(), vec![n_embd, self.n_vocab])];
        let mut parts = vec![("attn_norm", vec![n_embd])];
        if self.arch == "phi3" {
            parts.push(("attn_qkv", vec![n_embd, q + k + v]));
        } else {
            parts.push(("attn_q", vec![n_embd, q]));
            parts.push(("attn_k", vec![n_embd, k]));
            parts.push(("attn_v", vec![n_embd, v]));
        }
        if ["qwen3", "gemma3"].contains(&self.arch) {
            parts.push(("attn_q_norm", vec![self.head_dim_k]));
            parts.push(("attn_k_norm", vec![self.head_dim_k]));
        }
        parts.push(("attn_output", vec![o, n_embd]));
        if self.arch.starts_with("gemma") {
            parts.push(("post_attention_norm", vec![n_embd]));
            parts.push(("post_ffw_norm", vec![n_embd]));
        }
        parts.push(("ffn_norm", vec![n_embd]));
        if self.arch == "phi3" {
            parts.push(("ffn_up", vec![n_embd, 2 * n_ff]));
        } else {
            parts.push(("ffn_gate", vec![n_embd, n_ff]));
            parts.push(("ffn_up", vec![n_embd, n_ff]));
        }
        parts.push(("ffn_down", vec![n_ff, n_embd]));
        for layer in 0..self.n_layer {
            for (part, dims) in &parts {
                let is_ffn = part.starts_with("ffn_") && *part != "ffn_norm";
                if is_ffn && self.n_expert > 0 {
                    let dims = [&dims[..], &[self.n_expert]].concat();
                    all.push((format!("blk.{layer}.{part}_exps"), dims));
                } else {
                    all.push((format!("blk.{layer}.{part}"), dims.clone()));
                }
            }
            if self.n_expert > 0 {
                let router = format!("blk.{layer}.ffn_gate_inp");
                all.push((router, vec![n_embd, self.n_expert]));
            }
        }
        all.push(("output_norm".to_owned(), vec![n_embd]));
        if !self.tied {
            all.push(("output".to_owned(), vec![n_embd, self.n_vocab]));
        }
        all
    }

    fn tensor(&self, random: &mut Random, stem: String, dims: Vec<u32>) -> Tensor {
        let dims: Vec<u64> = dims.into_iter().map(u64::from).collect();
        let n = usize::try_from(dims.iter().product::<u64>()).expect("small");
        let (ty, data) = if let [len] = dims[..] {
            let norms: Vec<f32> = (0..len).map(|_| 1.0 + 0.1 * random.signed()).collect();
            (GgmlType::F32, encode(GgmlType::F32, &norms))
        } else {
            // Files keep routers in F32.
            let is_router = stem.ends_with("ffn_gate_inp");
            let ty = if is_router { GgmlType::F32 } else { self.ty };
            (ty, random.weights(ty, n, dims[0]))
        };
        Tensor {
            name: stem + ".weight",
            dims,
            ty,
            data,
        }
    }

    fn tokenizer(&self) -> Vec<(String, Meta)> {
        let n = self.n_vocab as usize;
        let letters = || ('a'..='h').map(String::from);
        let pairs = || letters().zip(letters().skip(1)).map(|(a, b)| a + &b);
        let mut keys: Vec<(&str, Meta)> = Vec::new();
        let tokens: Vec<String> = match self.vocab {
            Vocab::None => return Vec::new(),
            Vocab::SentencePiece => {
                let specials = ["<unk>", "<s>", "</s>", "\u{2581}"].map(String::from);
                keys.push(("tokenizer.ggml.model", "llama".into()));
                // Merging prefers higher scores: pairs above letters.
                let scores = (0..n).map(|i| if i < 12 { 0.0 } else { 1.0 }).collect();
                keys.push(("tokenizer.ggml.scores", Meta::F32s(scores)));
                let types = (0..n).map(|i| [2, 3, 3].get(i).copied().unwrap_or(1));
                keys.push(("tokenizer.ggml.token_type", Meta::I32s(types.collect())));
                specials
                    .into_iter()
                    .chain(letters())
                    .chain(pairs())
                    .collect()
            }
            Vocab::ByteLevel => {
                keys.push(("tokenizer.ggml.model", "gpt2".into()));
                keys.push(("tokenizer.ggml.pre", "gpt-2".into()));
                let merges = letters().zip(letters().skip(1)).map(|(a, b)| a + " " + &b);
                let made = n.saturating_sub(9);
                keys.push((
                    "tokenizer.ggml.merges",
                    Meta::Strings(merges.take(made).collect()),
                ));
                let end = "<|endoftext|>".to_owned();
                letters().chain([end]).chain(pairs()).collect()
            }
        };
        let rest = (tokens.len()..n.max(tokens.len())).map(|i| format!("<{i}>"));
        let tokens = tokens.into_iter().take(n).chain(rest).collect();
        keys.push(("tokenizer.ggml.tokens", Meta::Strings(tokens)));
        keys.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }
}

/// Values as GGUF holds them. Q8_0 blocks are scaled to their largest value, as ggml does.
///
/// # Panics
/// For other types than F32, F16, BF16 and Q8_0, or values that are not whole blocks.
#[must_use]
pub fn encode(ty: GgmlType, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    match ty {
        GgmlType::F32 => values.iter().for_each(|x| out.extend(x.to_le_bytes())),
        GgmlType::F16 => {
            let halves = values.iter().map(|&x| f32_to_f16(x));
            halves.for_each(|x| out.extend(x.to_le_bytes()));
        }
        GgmlType::BF16 => {
            let halves = values.iter().map(|&x| f32_to_bf16(x));
            halves.for_each(|x| out.extend(x.to_le_bytes()));
        }
        GgmlType::Q8_0 => {
            assert!(values.len().is_multiple_of(32));
            for block in values.chunks_exact(32) {
                let max = block.iter().fold(0f32, |max, x| max.max(x.abs()));
                let d = max / 127.0;
                out.extend(f32_to_f16(d).to_le_bytes());
                let scale = if d == 0.0 { 0.0 } else { 1.0 / d };
                #[expect(clippy::cast_possible_truncation, reason = "within ±127")]
                out.extend(
                    block
                        .iter()
                        .flat_map(|x| ((x * scale).round() as i8).to_le_bytes()),
                );
            }
        }
        _ => panic!("{ty} is not written here"),
    }
    out
}

/// Positions of the f16 numbers of a block of type `ty`, `d` first, with about the largest product of code and
/// sub-block scale that each multiplies. Empty for types without blocks, and for types whose scales are not f16.
#[must_use]
pub const fn scales(ty: GgmlType) -> &'static [(usize, f32)] {
    match ty {
        GgmlType::Q8_0 | GgmlType::IQ4_NL => &[(0, 127.0)],
        GgmlType::Q4_0 => &[(0, 8.0)],
        GgmlType::Q5_0 | GgmlType::LANE5 => &[(0, 16.0)],
        GgmlType::LANE3 => &[(0, 4.0)],
        GgmlType::LANE7 => &[(0, 64.0)],
        // Twice the second number centres the values on zero.
        GgmlType::Q4_1 => &[(0, 15.0), (2, -2.0)],
        GgmlType::Q5_1 => &[(0, 31.0), (2, -2.0)],
        GgmlType::Q2_K => &[(80, 45.0), (82, 30.0)],
        GgmlType::Q3_K => &[(108, 80.0)],
        GgmlType::Q4_K => &[(0, 15.0 * 40.0), (2, 80.0)],
        GgmlType::Q5_K => &[(0, 31.0 * 40.0), (2, 80.0)],
        GgmlType::Q6_K => &[(208, 32.0 * 80.0)],
        GgmlType::IQ4_XS => &[(0, 2400.0)],
        GgmlType::IQ2_XXS | GgmlType::IQ2_XS | GgmlType::IQ2_S => &[(0, 100.0)],
        GgmlType::IQ3_XXS | GgmlType::IQ3_S => &[(0, 300.0)],
        GgmlType::IQ1_S => &[(0, 10.0)],
        GgmlType::IQ1_M => &[(48, 10.0)],
        GgmlType::TQ1_0 => &[(52, 1.0)],
        GgmlType::TQ2_0 => &[(64, 2.0)],
        _ => &[],
    }
}

/// Writes an f16 at a position from [`scales`]. IQ1_M stores a nibble of it in each of four words.
pub fn put_scale(ty: GgmlType, at: usize, bits: u16, block: &mut [u8]) {
    if ty == GgmlType::IQ1_M {
        for i in 0..4 {
            let [nibble, _] = (bits >> (4 * i) & 0xf).to_le_bytes();
            let byte = &mut block[at + 2 * i + 1];
            *byte = *byte & 0xf | nibble << 4;
        }
    } else {
        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        let product = (self.next() >> 32) * u64::from(n);
        u32::try_from(product >> 32).unwrap_or(0)
    }

    /// Between -1 and 1.
    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
    pub fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `n` weights of rows of `n_cols`, so that outputs are about as large as inputs.
    fn weights(&mut self, ty: GgmlType, n: usize, n_cols: u64) -> Vec<u8> {
        #[expect(clippy::cast_precision_loss, reason = "a scale")]
        let scale = (3.0 / n_cols as f32).sqrt();
        match ty {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::Q8_0 => {
                let values: Vec<f32> = (0..n).map(|_| scale * self.signed()).collect();
                encode(ty, &values)
            }
            _ => {
                let blocks = n / ty.block_len();
                (0..blocks).flat_map(|_| self.block(ty, scale)).collect()
            }
        }
    }

    /// A block of random codes; only its scales are chosen.
    fn block(&mut self, ty: GgmlType, scale: f32) -> Vec<u8> {
        let mut block: Vec<u8> = Vec::with_capacity(ty.block_bytes() + 8);
        while block.len() < ty.block_bytes() {
            block.extend(self.next().to_le_bytes());
        }
        block.truncate(ty.block_bytes());
        match ty {
            // 2^-7 and 2^-8, times up to 12.
            GgmlType::MXFP4 => block[0] = 121,
            GgmlType::NVFP4 => block[..4].iter_mut().for_each(|s| *s = 8 + *s % 8),
            _ => assert!(!scales(ty).is_empty(), "{ty} is not written here"),
        }
        for &(at, largest) in scales(ty) {
            put_scale(ty, at, f32_to_f16(scale / largest), &mut block);
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::gguf::Gguf;
    use sluice_core::tokenizer::{EncodeOptions, Tokenizer, plan};

    #[test]
    fn built_files_are_read_back() {
        for vocab in [Vocab::None, Vocab::SentencePiece, Vocab::ByteLevel] {
            for version in [2, 3] {
                let shape = Shape {
                    vocab,
                    version,
                    ..Shape::TINY
                };
                let bytes = shape.file().bytes();
                let gguf = Gguf::parse(&bytes, bytes.len() as u64).expect("sound");
                assert_eq!(gguf.version(), version);
                assert_eq!(gguf.tensor_count(), 11);
            }
        }
    }

    #[test]
    fn both_vocabularies_encode_and_merge() {
        for (vocab, expected) in [
            (Vocab::SentencePiece, vec![1, 3, 12, 6, 4]),
            (Vocab::ByteLevel, vec![9, 2, 0]),
        ] {
            let shape = Shape {
                vocab,
                ..Shape::TINY
            };
            let bytes = shape.file().bytes();
            let gguf = Gguf::parse(&bytes, bytes.len() as u64).expect("sound");
            let mut memory = vec![0; plan(&gguf).expect("sound").words];
            let tokenizer = Tokenizer::new(&gguf, &mut memory).expect("sound");
            let options = EncodeOptions {
                add_special: true,
                parse_special: false,
            };
            let (mut room, mut out) = (vec![0; 1000], [0; 20]);
            let ids = tokenizer.encode("abca", options, &mut room, &mut out);
            assert_eq!(ids.expect("letters of the vocabulary"), expected);
        }
    }
}
