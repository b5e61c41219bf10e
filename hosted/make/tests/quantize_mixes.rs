//! Every tensor's type in every mix equals llama-quantize's choice.
//!
//! `mixes.tsv` was written by `tools/mixes.py` with the llama-quantize that
//! llama-cpp-python 0.3.36 vendors, from files of the shapes below made by a generator of random models.

use core::str::FromStr as _;
use sluice::core::gguf::Gguf;
use sluice::core::kernels::GgmlType;
use sluice::file::{GgufHeader, MetaValue};
use sluice_make::quantize::{
    FileType, Importance, ImportanceMatrix, Plan, PlanError, QuantizeRequest,
};
use std::collections::BTreeMap;

const GOLDEN: &str = include_str!("goldens/mixes.tsv");

struct Shape {
    name: &'static str,
    n_embd: u64,
    n_ff: u64,
    n_layer: u32,
    n_head: u32,
    n_head_kv: u32,
    n_expert: u32,
    tied: bool,
}

const fn shape(name: &'static str, n_embd: u64, n_ff: u64, n_layer: u32, n_head: u32) -> Shape {
    Shape {
        name,
        n_embd,
        n_ff,
        n_layer,
        n_head,
        n_head_kv: n_head,
        n_expert: 0,
        tied: false,
    }
}

/// Heads have 32 dimensions, vocabularies 512 tokens.
const SHAPES: [Shape; 5] = [
    Shape {
        n_head_kv: 1,
        ..shape("l80", 256, 256, 80, 8)
    },
    Shape {
        n_head_kv: 2,
        n_expert: 8,
        ..shape("mix16", 256, 256, 16, 8)
    },
    Shape {
        n_head_kv: 3,
        tied: true,
        ..shape("odd", 288, 352, 8, 9)
    },
    Shape {
        tied: true,
        ..shape("odd2", 256, 300, 9, 8)
    },
    shape("l24", 256, 256, 24, 8),
];

/// A header with the keys that every architecture has.
fn header(arch: &str, n_layer: u32, n_head: u32, n_expert: u32) -> GgufHeader {
    let mut header = GgufHeader::new();
    header.set("general.architecture", arch);
    header.set(&format!("{arch}.block_count"), n_layer);
    header.set(&format!("{arch}.attention.head_count"), n_head);
    if n_expert > 0 {
        header.set(&format!("{arch}.expert_count"), n_expert);
    }
    header
}

/// Adds a tensor. Matrices are F16; vectors, routers, taps and biases F32.
fn add(header: &mut GgufHeader, name: &str, dims: &[u64]) {
    let kept = ["gate_inp.", "shortconv.conv.", ".bias"];
    let is_kept = dims.len() == 1 || kept.iter().any(|part| name.contains(part));
    let ty = if is_kept {
        GgmlType::F32
    } else {
        GgmlType::F16
    };
    header.add_tensor(name, dims, ty);
}

impl Shape {
    fn header(&self) -> GgufHeader {
        let mut header = header("llama", self.n_layer, self.n_head, self.n_expert);
        header.set("llama.attention.head_count_kv", self.n_head_kv);
        let mut add = |name: &str, dims: &[u64]| add(&mut header, name, dims);
        let (embd, ff) = (self.n_embd, self.n_ff);
        let q = 32 * u64::from(self.n_head);
        let kv = 32 * u64::from(self.n_head_kv);
        add("token_embd.weight", &[embd, 512]);
        add("output_norm.weight", &[embd]);
        if !self.tied {
            add("output.weight", &[embd, 512]);
        }
        for layer in 0..self.n_layer {
            let mut add = |name: &str, dims: &[u64]| add(&format!("blk.{layer}.{name}"), dims);
            add("attn_norm.weight", &[embd]);
            add("attn_q.weight", &[embd, q]);
            add("attn_k.weight", &[embd, kv]);
            add("attn_v.weight", &[embd, kv]);
            add("attn_output.weight", &[q, embd]);
            add("ffn_norm.weight", &[embd]);
            let n_expert = u64::from(self.n_expert);
            if n_expert > 0 {
                add("ffn_gate_inp.weight", &[embd, n_expert]);
                add("ffn_gate_exps.weight", &[embd, ff, n_expert]);
                add("ffn_up_exps.weight", &[embd, ff, n_expert]);
                add("ffn_down_exps.weight", &[ff, embd, n_expert]);
            } else {
                add("ffn_gate.weight", &[embd, ff]);
                add("ffn_up.weight", &[embd, ff]);
                add("ffn_down.weight", &[ff, embd]);
            }
        }
        header
    }
}

/// 16 layers of convolutions, six of them with attention instead, as in the published models.
fn lfm2() -> GgufHeader {
    let mut header = header("lfm2", 16, 8, 0);
    let has_attention = |layer: i32| [2, 5, 8, 10, 12, 14].contains(&layer);
    let n_head_kv = (0..16).map(|layer| if has_attention(layer) { 2 } else { 0 });
    let n_head_kv: Vec<i32> = n_head_kv.collect();
    header.set("lfm2.attention.head_count_kv", MetaValue::i32s(&n_head_kv));
    let mut add = |name: &str, dims: &[u64]| add(&mut header, name, dims);
    add("token_embd.weight", &[256, 512]);
    add("token_embd_norm.weight", &[256]);
    for layer in 0..16 {
        let mut add = |name: &str, dims: &[u64]| add(&format!("blk.{layer}.{name}.weight"), dims);
        add("attn_norm", &[256]);
        if has_attention(layer) {
            add("attn_q", &[256, 256]);
            add("attn_k", &[256, 64]);
            add("attn_v", &[256, 64]);
            add("attn_q_norm", &[32]);
            add("attn_k_norm", &[32]);
            add("attn_output", &[256, 256]);
        } else {
            add("shortconv.in_proj", &[256, 768]);
            add("shortconv.conv", &[3, 256]);
            add("shortconv.out_proj", &[256, 256]);
        }
        add("ffn_norm", &[256]);
        add("ffn_gate", &[256, 256]);
        add("ffn_up", &[256, 256]);
        add("ffn_down", &[256, 256]);
    }
    header
}

/// 24 layers of 32 experts, with a width that is not a whole number of blocks of 256, as in the published model.
fn gpt_oss() -> GgufHeader {
    let mut header = header("gpt-oss", 24, 8, 32);
    header.set("gpt-oss.attention.head_count_kv", 1u32);
    let mut add = |name: &str, dims: &[u64]| add(&mut header, name, dims);
    add("token_embd.weight", &[288, 512]);
    add("output_norm.weight", &[288]);
    add("output.weight", &[288, 512]);
    for layer in 0..24 {
        let mut add = |name: &str, dims: &[u64]| add(&format!("blk.{layer}.{name}"), dims);
        add("attn_norm.weight", &[288]);
        add("attn_sinks.weight", &[8]);
        add("post_attention_norm.weight", &[288]);
        for (name, columns, rows) in [
            ("attn_q", 288, 512),
            ("attn_k", 288, 64),
            ("attn_v", 288, 64),
            ("attn_output", 512, 288),
            ("ffn_gate_inp", 288, 32),
        ] {
            add(&format!("{name}.weight"), &[columns, rows]);
            add(&format!("{name}.bias"), &[rows]);
        }
        for name in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
            add(&format!("{name}.weight"), &[288, 288, 32]);
            add(&format!("{name}.bias"), &[288, 32]);
        }
    }
    header
}

/// Types by kind of tensor, as the golden file writes them.
fn described(plan: &Plan) -> Vec<String> {
    let mut kinds: BTreeMap<&str, Vec<GgmlType>> = BTreeMap::new();
    for tensor in &plan.tensors {
        let name = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
        let kind = match name.strip_prefix("blk.") {
            Some(rest) => rest.split_once('.').expect("a layer and a name").1,
            None => name,
        };
        kinds.entry(kind).or_default().push(tensor.target);
    }
    let line = |(kind, types): (&str, Vec<GgmlType>)| {
        let runs = types.chunk_by(|a, b| a == b);
        let runs: Vec<_> = runs
            .map(|run| format!("{}*{}", run.len(), run[0]))
            .collect();
        format!("{kind}={}", runs.join(","))
    };
    kinds.into_iter().map(line).collect()
}

#[test]
fn equal_to_llama_quantize() {
    let mut lines = 0;
    for line in GOLDEN.lines() {
        let mut cells = line.split('\t');
        let (name, file_type) = (cells.next().unwrap(), cells.next().unwrap());
        let header = match name {
            "lfm2" => lfm2(),
            "gpt-oss" => gpt_oss(),
            _ => SHAPES
                .iter()
                .find(|shape| shape.name == name)
                .unwrap()
                .header(),
        };
        let bytes = header.bytes();
        let gguf = Gguf::parse(&bytes, header.file_bytes()).unwrap();
        let request = QuantizeRequest::new(FileType::from_str(file_type).unwrap());
        let plan = Plan::new(&gguf, &request).unwrap();
        assert_eq!(
            described(&plan),
            cells.collect::<Vec<_>>(),
            "{name} {file_type}"
        );
        lines += 1;
    }
    assert_eq!(lines, 7 * 33);
}

#[test]
fn what_cannot_be_done_is_named() {
    let header = SHAPES[4].header();
    let bytes = header.bytes();
    let gguf = Gguf::parse(&bytes, header.file_bytes()).unwrap();
    let check = |name: &str| {
        let request = QuantizeRequest::new(FileType::from_str(name).unwrap());
        Plan::new(&gguf, &request).unwrap().check(&request, None)
    };
    assert_eq!(check("Q8_0"), Ok(()));
    let error = check("IQ2_XXS").unwrap_err();
    assert!(
        matches!(error, PlanError::NeedsImportance { .. }),
        "{error}"
    );
    let request = QuantizeRequest {
        has_importance: true,
        ..QuantizeRequest::new(FileType::from_str("IQ2_XXS").unwrap())
    };
    let plan = Plan::new(&gguf, &request).unwrap();
    let mut matrix = ImportanceMatrix::default();
    for tensor in &plan.tensors {
        matrix
            .weights
            .insert(tensor.name.clone(), Importance::default());
    }
    assert_eq!(plan.check(&request, Some(&matrix)), Ok(()));
    assert!(plan.unknown_to(&matrix).is_empty());
    // A matrix that lacks a weight does not count for it.
    let lacking = "blk.0.ffn_up.weight";
    assert!(matrix.weights.remove(lacking).is_some());
    let error = plan.check(&request, Some(&matrix)).unwrap_err();
    assert!(error.to_string().starts_with(lacking), "{error}");
    assert_eq!(plan.unknown_to(&matrix), [lacking]);
}
