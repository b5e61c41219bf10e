//! Reading folders with adapted parameters.

use super::*;
use crate::adapter::read;
use crate::base::Base;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// An adapter's folder that also has the model's `config.json`.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, model: &Value, about: &Value, tensors: &[(String, [usize; 2])]) -> Self {
        let name = format!("sluice-peft-{}-{name}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).expect("a place for a folder");
        let mut config =
            json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "peft_version": "0.21.2"});
        for (key, value) in about.as_object().expect("an object") {
            config[key] = value.clone();
        }
        folder.write("adapter_config.json", config.to_string().as_bytes());
        folder.write("config.json", model.to_string().as_bytes());
        folder.write("adapter_model.safetensors", &safetensors(tensors));
        folder
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.0.join(name), content).expect("a file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// A safetensors file of ones.
fn safetensors(tensors: &[(String, [usize; 2])]) -> Vec<u8> {
    let (mut header, mut data) = (json!({}), Vec::new());
    for (name, shape) in tensors {
        let begin = data.len();
        data.extend(1f32.to_le_bytes().repeat(shape[0] * shape[1]));
        let name = format!("base_model.model.{name}.weight");
        header[name] = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
    }
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(data);
    file
}

/// A pair for `module` with these (rows, columns).
fn pair(module: &str, rank: usize, [rows, columns]: [usize; 2]) -> [(String, [usize; 2]); 2] {
    let named = |letter| format!("{module}.lora_{letter}");
    [(named("A"), [rank, columns]), (named("B"), [rows, rank])]
}

fn qwen3moe() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 32, "hidden_size": 8,
        "intermediate_size": 16, "moe_intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "num_experts": 3, "num_experts_per_tok": 2, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "rope_theta": 1e4, "hidden_act": "silu", "norm_topk_prob": true,
        "tie_word_embeddings": false,
    })
}

fn mixtral() -> Value {
    json!({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32, "hidden_size": 8,
        "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "num_local_experts": 3, "num_experts_per_tok": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
        "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": false,
    })
}

const MODULE: &str = "model.layers.0.mlp.experts";
const INNER: &str = "model.layers.0.mlp.experts.base_layer";
const ROUTER: &str = "model.layers.0.mlp.gate";

/// Three experts of rank 2, gates and ups of rank 4, and a router of rank 1.
fn all() -> Vec<(String, [usize; 2])> {
    let (gate_up, down) = (pair(INNER, 12, [12, 8]), pair(MODULE, 6, [8, 6]));
    [gate_up, down, pair(ROUTER, 1, [3, 8])].concat()
}

fn about() -> Value {
    json!({
        "target_parameters": ["down_proj", "gate.weight", "gate_up_proj"],
        "rank_pattern": {"experts.gate_up_proj": 4, "gate.weight": 1},
        "alpha_pattern": {"down_proj": 1},
    })
}

/// Tensor, part, rank and scale of each pair.
fn listed(file: &AdapterFile) -> Vec<(&str, Option<u32>, usize, f32)> {
    let factors = file.factors.iter();
    factors
        .map(|own| (&*own.tensor, own.part, own.rank, own.scale))
        .collect()
}

#[test]
fn experts_that_are_one_parameter_become_pairs_of_each() {
    for (name, model) in [("qwen3moe", qwen3moe()), ("mixtral", mixtral())] {
        let folder = Folder::new(name, &model, &about(), &all());
        let file = read(&folder.0, None, None).expect("it is sound");
        let mut found = listed(&file);
        found.sort_by_key(|(tensor, part, ..)| (*tensor, *part));
        let stack = |tensor, rank, scale| (0..3).map(move |e| (tensor, Some(e), rank, scale));
        let expected: Vec<_> = stack("blk.0.ffn_down_exps.weight", 2, 0.5)
            .chain(stack("blk.0.ffn_gate_exps.weight", 4, 1.0))
            .chain([("blk.0.ffn_gate_inp.weight", None, 1, 4.0)])
            .chain(stack("blk.0.ffn_up_exps.weight", 4, 1.0))
            .collect();
        assert_eq!(found, expected, "{name}");
        assert_eq!(file.warnings, Vec::<String>::new());
    }
}

#[test]
fn without_the_model_experts_are_counted_by_the_rank() {
    let folder = Folder::new("named", &json!({}), &about(), &all());
    let file = read_as_named(&folder.0).expect("it is sound");
    let (gate_up, down) = (
        format!("{MODULE}.gate_up_proj"),
        format!("{MODULE}.down_proj"),
    );
    let of_three = |name| (0..3).map(move |e| (name, Some(e)));
    let expected: Vec<_> = of_three(&*gate_up)
        .chain(of_three(&down))
        .chain([(ROUTER, None)])
        .collect();
    let found = file.factors.iter().map(|own| (&*own.tensor, own.part));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let gate_up = &file.factors[0];
    assert_eq!(
        [gate_up.rank, gate_up.n_rows(), gate_up.n_cols()],
        [4, 12, 8]
    );
}

#[test]
fn other_parameters_are_refused_by_name() {
    let (gate_up, down) = (pair(INNER, 12, [12, 8]), pair(MODULE, 6, [8, 6]));
    let bias = pair(&format!("{INNER}.base_layer"), 2, [6, 3]);
    let conv = pair("model.layers.0.mixer.conv1d", 2, [4, 8]);
    let of =
        |names: &[&str]| json!({"target_parameters": names, "rank_pattern": {"gate_up_proj": 4}});
    let cases = [
        (
            of(&[]),
            down.to_vec(),
            "experts has matrices of 1 parameters, but target_parameters names these of experts: none",
        ),
        (
            of(&["down_proj"]),
            [gate_up.clone(), down.clone()].concat(),
            "has matrices of 2 parameters, but target_parameters names these of experts: down_proj",
        ),
        (
            of(&["gate_up_proj", "gate_up_proj_bias", "down_proj"]),
            [bias, gate_up.clone(), down.clone()].concat(),
            "has matrices of 3 parameters, but target_parameters names these of experts: gate_up_proj, down_proj",
        ),
        // The outer pair is missing.
        (
            of(&["gate_up_proj"]),
            gate_up.to_vec(),
            "experts has matrices of 1 parameters",
        ),
        (
            of(&["conv1d.weight"]),
            conv.to_vec(),
            "conv1d is not a matrix of a model of architecture qwen3moe",
        ),
        (
            of(&["q_proj.weight"]),
            pair("model.layers.0.self_attn.q_proj.base_layer", 2, [8, 8]).to_vec(),
            "q_proj has matrices of several parameters",
        ),
        (
            of(&["gate.weight"]),
            pair(ROUTER, 6, [3, 8]).to_vec(),
            "lora_A.weight has rank 6, but adapter_config.json states 2 for model.layers.0.mlp.gate.weight",
        ),
        (
            of(&["down_proj"]),
            pair(MODULE, 4, [8, 6]).to_vec(),
            "experts.down_proj has 4 rows of A and 4 columns of B, but 3 experts of rank 2 have 6",
        ),
        (
            of(&["down_proj"]),
            pair(MODULE, 6, [8, 5]).to_vec(),
            "experts.down_proj was made for 8 x 5, but the model has 8 x 6",
        ),
        (
            of(&["down_proj"]),
            down[..1].to_vec(),
            "experts has a matrix A but no B",
        ),
    ];
    for (i, (about, tensors, expected)) in cases.into_iter().enumerate() {
        let folder = Folder::new(&format!("refused-{i}"), &qwen3moe(), &about, &tensors);
        let error = read(&folder.0, None, None).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// The parameters that transformers 5 has in these models, and the tensors they become.
#[test]
fn families_have_the_parameters_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/cli/families");
    let both: &[&str] = &["gate_up_proj", "down_proj"];
    for (family, module, parameters) in [
        ("deepseek3", "model.layers.1.mlp.experts", both),
        ("ernie4_5-moe", "model.layers.1.mlp.experts", both),
        ("gemma4-moe", "model.layers.0.experts", both),
        ("glm4moe", "model.layers.1.mlp.experts", both),
        ("gpt-oss", "model.layers.0.mlp.experts", both),
        (
            "granitemoe",
            "model.layers.0.block_sparse_moe.experts",
            both,
        ),
        (
            "granitemoe",
            "model.layers.0.block_sparse_moe.input_linear",
            &["weight"],
        ),
        (
            "granitehybrid",
            "model.layers.0.block_sparse_moe.experts",
            both,
        ),
        (
            "granitemoe-swa",
            "model.layers.0.block_sparse_moe.experts",
            both,
        ),
        ("hunyuan-moe", "model.layers.0.mlp.experts", both),
        ("lfm2moe", "model.layers.1.feed_forward.experts", both),
        ("minimax-m2", "model.layers.0.mlp.experts", both),
        (
            "nemotron-h-moe",
            "model.layers.1.mixer.experts",
            &["up_proj", "down_proj"],
        ),
        ("qwen2moe", "model.layers.0.mlp.experts", both),
        ("qwen35moe", "model.layers.0.mlp.experts", both),
        ("qwen3next", "model.layers.0.mlp.experts", both),
    ] {
        let case = fs::read(folder.join(family).with_extension("json")).expect("a fixture");
        let case: Value = serde_json::from_slice(&case).expect("JSON");
        let name = format!("{family}-{}", parameters.len());
        let own = Folder::new(&name, &case["config"], &json!({}), &[]);
        let base = Base::of_folder(&own.0, &[]).expect("a model");
        let places = Places::new(&base);
        let found = places
            .stacks(&format!("{module}.weight"))
            .unwrap_or_default();
        let found: Vec<_> = found.iter().map(|stack| &*stack.name).collect();
        assert_eq!(found, parameters, "{family}: {:?}", places.stacks.0.keys());
    }
}
