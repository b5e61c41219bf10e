//! Reconstructs the sizes in `config.json` from a GGUF file.
//!
//! Sizes come from tensor shapes if possible, otherwise from metadata. Unknown sizes are left out; the caller compares
//! the resulting model with the file's tensors.

use serde_json::{Map, Value, json};
use sluice_core::gguf::{Gguf, TensorInfo};
use std::collections::HashMap;

/// The sizes of a model; `None` if the file has no layers.
pub(super) fn config_of(gguf: &Gguf<'_>) -> Option<Map<String, Value>> {
    let file = File::new(gguf)?;
    let mut sizes = Sizes(Map::new());
    sizes.common(&file)?;
    sizes.experts(&file);
    sizes.latent(&file);
    sizes.states(&file);
    sizes.gemma4(&file);
    sizes.encoder(&file);
    Some(sizes.0)
}

/// A file's header, queried by short names.
struct File<'a> {
    gguf: &'a Gguf<'a>,
    architecture: &'a str,
    tensors: HashMap<&'a str, TensorInfo<'a>>,
    n_layer: u32,
    n_nextn: u32,
}

impl<'a> File<'a> {
    fn new(gguf: &'a Gguf<'a>) -> Option<Self> {
        let architecture = gguf.str("general.architecture").ok()?;
        let mut file = Self {
            gguf,
            architecture,
            tensors: gguf.tensors().map(|tensor| (tensor.name, tensor)).collect(),
            n_layer: 0,
            n_nextn: 0,
        };
        file.n_nextn = file.number("nextn_predict_layers").unwrap_or(0);
        let n_layer = file.number("block_count")?.checked_sub(file.n_nextn)?;
        // Each layer has at least one tensor.
        if n_layer as usize > file.tensors.len() {
            return None;
        }
        file.n_layer = n_layer;
        Some(file)
    }

    /// A number; for a per-layer list, the largest.
    fn number(&self, key: &str) -> Option<u32> {
        let value = self.gguf.get(&format!("{}.{key}", self.architecture))?;
        let number = match value.as_array() {
            Some(list) => list.iter().filter_map(|value| value.as_u64()).max()?,
            None => value.as_u64()?,
        };
        u32::try_from(number).ok()
    }

    /// The number for one layer.
    fn at(&self, key: &str, layer: u32) -> Option<u64> {
        let value = self.gguf.get(&format!("{}.{key}", self.architecture))?;
        match value.as_array() {
            Some(list) => list.get(layer.into())?.as_u64(),
            None => value.as_u64(),
        }
    }

    /// A tensor of a layer.
    fn has(&self, layer: u32, name: &str) -> bool {
        let name = format!("blk.{layer}.{name}");
        self.tensors.contains_key(name.as_str())
    }

    /// Elements along a dimension of the first layer's tensor of that name; the row length is dimension 0.
    fn dim(&self, name: &str, dim: usize) -> Option<u64> {
        let layers = 0..self.n_layer;
        let found = layers
            .map(|layer| format!("blk.{layer}.{name}.weight"))
            .find_map(|name| self.tensors.get(name.as_str()));
        found.map(|tensor| tensor.dims[dim])
    }

    /// Elements along a dimension of a tensor of the model.
    fn dim_of(&self, name: &str, dim: usize) -> Option<u64> {
        self.tensors.get(name).map(|tensor| tensor.dims[dim])
    }
}

/// The keys of a `config.json` under construction.
struct Sizes(Map<String, Value>);

impl Sizes {
    fn set(&mut self, keys: &[&str], value: impl Into<Value>) {
        let value = value.into();
        for key in keys {
            self.0.insert((*key).to_owned(), value.clone());
        }
    }

    /// Sets keys if there is a value.
    fn put(&mut self, keys: &[&str], value: Option<impl Into<u64>>) {
        if let Some(value) = value {
            self.set(keys, value.into());
        }
    }

    fn common(&mut self, file: &File<'_>) -> Option<()> {
        let n_embd = file.number("embedding_length")?;
        let n_head = file.number("attention.head_count").filter(|n| *n > 0);
        self.set(&["num_hidden_layers"], file.n_layer);
        self.set(&["hidden_size"], n_embd);
        self.put(&["num_attention_heads"], n_head);
        let n_head_kv = file.number("attention.head_count_kv").filter(|n| *n > 0);
        self.put(&["num_key_value_heads"], n_head_kv.or(n_head));
        let own = n_head.and_then(|n_head| n_embd.checked_div(n_head));
        self.put(&["head_dim"], file.number("attention.key_length").or(own));
        let n_ff = file.number("feed_forward_length");
        let n_ff = n_ff.or_else(|| file.number("expert_feed_forward_length"));
        self.put(&["intermediate_size", "n_inner"], n_ff);
        // feed_forward_length is already the adjusted width.
        self.set(&["block_auto_adjust_ff_dim"], false);
        self.put(&["vocab_size"], file.dim_of("token_embd.weight", 1));
        let is_tied = !file.tensors.contains_key("output.weight");
        self.set(&["tie_word_embeddings"], is_tied);
        let mixers: Vec<_> = (0..file.n_layer).map(|layer| mixer(file, layer)).collect();
        // Omitted if all layers are full attention: families with implied windows would refuse it.
        if mixers.iter().any(|mixer| *mixer != "full_attention") {
            self.set(&["layer_types"], mixers.clone());
        }
        let blocks = (0..file.n_layer).zip(mixers).map(|(layer, mixer)| {
            let feeds = mixer == "full_attention" && !file.has(layer, "attn_q.weight");
            if feeds { "mlp" } else { mixer }
        });
        self.set(&["layers_block_type"], blocks.collect::<Vec<_>>());
        self.put(&["conv_L_cache"], file.number("shortconv.l_cache"));
        Some(())
    }

    fn experts(&mut self, file: &File<'_>) {
        let n_expert = file.number("expert_count").filter(|n| *n > 0);
        let names = [
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "moe_num_experts",
        ];
        self.put(&names, n_expert);
        let width = file.dim("ffn_down_exps", 0);
        self.put(&["moe_intermediate_size"], width);
        // Families whose experts are as wide as the dense networks of other families.
        let has_dense = (0..file.n_layer).any(|layer| file.has(layer, "ffn_down.weight"));
        if !has_dense {
            self.put(&["intermediate_size"], width);
        }
        let shared = file.dim("ffn_down_shexp", 0);
        let shared_names = [
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ];
        self.put(&shared_names, shared);
        let granite = shared.or_else(|| file.dim("ffn_down", 0));
        self.put(&["shared_intermediate_size"], granite);
        // In hunyuan-moe, this is the network in addition to the experts.
        if file.architecture == "hunyuan-moe" {
            self.put(&["intermediate_size"], shared);
        }
        let n_shared = file.number("expert_shared_count");
        self.put(&["n_shared_experts", "moe_num_shared_experts"], n_shared);
        let n_dense = file.number("leading_dense_block_count");
        let names = [
            "first_k_dense_replace",
            "num_dense_layers",
            "moe_layer_start_index",
        ];
        self.put(&names, n_dense);
        let interval = file.number("interleave_moe_layer_step");
        self.put(&["moe_layer_interval"], interval);
        self.put(&["moe_every_n_layers"], file.number("moe_every_n_layers"));
        let latent = file.number("moe_latent_size");
        self.put(&["moe_latent_size"], latent);
        let has_norms = file.has(0, "attn_q_norm.weight");
        self.set(&["use_qk_norm"], has_norms);
    }

    /// DeepSeek's attention.
    fn latent(&mut self, file: &File<'_>) {
        let Some(rank) = file.number("attention.kv_lora_rank") else {
            return;
        };
        self.set(&["kv_lora_rank"], rank);
        self.put(&["q_lora_rank"], file.number("attention.q_lora_rank"));
        self.put(&["v_head_dim"], file.dim("attn_v_b", 1));
        self.put(&["qk_nope_head_dim"], file.dim("attn_k_b", 0));
        let both = file.dim("attn_kv_a_mqa", 1);
        let rope = both.and_then(|both| both.checked_sub(rank.into()));
        self.put(&["qk_rope_head_dim"], rope);
    }

    /// Mamba 2 and delta nets.
    fn states(&mut self, file: &File<'_>) {
        let n_head = file.number("ssm.time_step_rank");
        let n_group = file.number("ssm.group_count");
        let (n_taps, n_state) = (
            file.number("ssm.conv_kernel"),
            file.number("ssm.state_size"),
        );
        let inner = file.number("ssm.inner_size");
        let dim = inner.and_then(|inner| inner.checked_div(n_head?));
        for (names, size) in [
            (
                ["mamba_n_heads", "mamba_num_heads", "linear_num_value_heads"],
                n_head,
            ),
            (
                ["mamba_n_groups", "n_groups", "linear_num_key_heads"],
                n_group,
            ),
            (
                ["mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim"],
                n_taps,
            ),
            (
                ["mamba_d_state", "ssm_state_size", "linear_key_head_dim"],
                n_state,
            ),
            (
                ["mamba_d_head", "mamba_head_dim", "linear_value_head_dim"],
                dim,
            ),
        ] {
            self.put(&names, size);
        }
    }

    /// Gemma 4's two head sizes, and features that only some of its models have.
    fn gemma4(&mut self, file: &File<'_>) {
        if file.architecture != "gemma4" {
            return;
        }
        let is_window = |layer: &u32| mixer(file, *layer) == "sliding_attention";
        let window = (0..file.n_layer).find(is_window);
        let full = (0..file.n_layer).find(|layer| !is_window(layer));
        let n_head_kv = |layer: Option<u32>| file.at("attention.head_count_kv", layer?);
        self.put(&["num_key_value_heads"], n_head_kv(window));
        self.put(&["num_global_key_value_heads"], n_head_kv(full));
        self.put(&["head_dim"], file.number("attention.key_length_swa"));
        self.put(&["global_head_dim"], file.number("attention.key_length"));
        let is_same = full.is_some_and(|layer| {
            file.has(layer, "attn_k.weight") && !file.has(layer, "attn_v.weight")
        });
        self.set(&["attention_k_eq_v"], is_same);
        let n_shared = file.number("attention.shared_kv_layers");
        self.put(&["num_kv_shared_layers"], n_shared);
        let n_embd = file.number("embedding_length_per_layer_input");
        self.put(&["hidden_size_per_layer_input"], n_embd);
        let n_vocab = file.dim_of("per_layer_token_embd.weight", 1);
        self.put(&["vocab_size_per_layer_input"], n_vocab);
        let width = |layer| file.at("feed_forward_length", layer);
        let last = file.n_layer.saturating_sub(1);
        self.set(&["use_double_wide_mlp"], width(0) < width(last));
        self.put(&["intermediate_size"], width(0));
        let has_experts = file.number("expert_count").is_some_and(|n| n > 0);
        self.set(&["enable_moe_block"], has_experts);
    }

    fn encoder(&mut self, file: &File<'_>) {
        let n_positions = file.dim_of("position_embd.weight", 1);
        self.put(&["max_position_embeddings"], n_positions);
        let n_types = file.dim_of("token_types.weight", 1);
        self.put(&["type_vocab_size"], n_types);
        let has_bias = file.has(0, "attn_qkv.bias");
        self.set(&["qkv_proj_bias"], has_bias);
        let n_labels = file.dim_of("cls.output.weight", 1).unwrap_or(0);
        // No model has this many labels.
        let labels = (0..n_labels.min(1 << 16)).map(|i| (i.to_string(), json!("")));
        if n_labels > 0 {
            self.set(&["id2label"], Value::Object(labels.collect()));
        }
    }
}

/// A layer's mixer, by transformers' name.
fn mixer(file: &File<'_>, layer: u32) -> &'static str {
    let key = format!("{}.attention.sliding_window_pattern", file.architecture);
    let pattern = file.gguf.get(&key).and_then(|value| value.as_array());
    let has_window = pattern
        .and_then(|list| list.get(layer.into())?.as_bool())
        .unwrap_or(false);
    let is_any = |names: &[&str]| names.iter().any(|name| file.has(layer, name));
    match () {
        () if is_any(&["ssm_out.weight", "shortconv.out_proj.weight"]) => "linear_attention",
        () if has_window => "sliding_attention",
        () => "full_attention",
    }
}
