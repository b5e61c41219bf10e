//! Every tensor's type in every mix equals llama-quantize's choice.
//!
//! `mixes.tsv` was written by `tools/mixes.py` with the llama-quantize that
//! llama-cpp-python 0.3.36 vendors, from files of the shapes below made by a generator of random models.

use core::str::FromStr as _;
use sluice::core::gguf::Gguf;
use sluice::core::kernels::GgmlType;
use sluice::file::GgufHeader;
use sluice_make::quantize::{FileType, Plan, PlanError, Request};
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

impl Shape {
    fn header(&self) -> GgufHeader {
        let mut header = GgufHeader::new();
        header.set("general.architecture", "llama");
        header.set("llama.block_count", self.n_layer);
        header.set("llama.attention.head_count", self.n_head);
        header.set("llama.attention.head_count_kv", self.n_head_kv);
        if self.n_expert > 0 {
            header.set("llama.expert_count", self.n_expert);
        }
        let mut add = |name: &str, dims: &[u64]| {
            let vector = dims.len() == 1 || name.contains("gate_inp");
            let ty = if vector { GgmlType::F32 } else { GgmlType::F16 };
            header.add_tensor(name, dims, ty);
        };
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

/// Types by kind of tensor, as the golden file writes them.
fn described(plan: &Plan) -> Vec<String> {
    let mut kinds: BTreeMap<&str, Vec<GgmlType>> = BTreeMap::new();
    for tensor in &plan.tensors {
        let name = tensor
            .name
            .strip_suffix(".weight")
            .expect("all are weights");
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
        let shape = SHAPES.iter().find(|shape| shape.name == name).unwrap();
        let header = shape.header();
        let bytes = header.bytes();
        let gguf = Gguf::parse(&bytes, header.file_bytes()).unwrap();
        let request = Request::new(FileType::from_str(file_type).unwrap());
        let plan = Plan::new(&gguf, &request).unwrap();
        assert_eq!(
            described(&plan),
            cells.collect::<Vec<_>>(),
            "{name} {file_type}"
        );
        lines += 1;
    }
    assert_eq!(lines, 5 * 33);
}

#[test]
fn what_cannot_be_done_is_named() {
    let header = SHAPES[4].header();
    let bytes = header.bytes();
    let gguf = Gguf::parse(&bytes, header.file_bytes()).unwrap();
    let check = |name: &str| {
        let request = Request::new(FileType::from_str(name).unwrap());
        Plan::new(&gguf, &request).unwrap().check(&request)
    };
    assert_eq!(check("Q8_0"), Ok(()));
    let error = check("IQ2_XXS").unwrap_err();
    assert!(
        matches!(error, PlanError::NeedsImportance { .. }),
        "{error}"
    );
    let request = Request {
        has_importance: true,
        ..Request::new(FileType::from_str("IQ2_XXS").unwrap())
    };
    let plan = Plan::new(&gguf, &request).unwrap();
    assert_eq!(plan.check(&request), Ok(()));
}
