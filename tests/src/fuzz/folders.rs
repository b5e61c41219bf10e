//! Folders of Hugging Face and PEFT and caches, which are read by their paths; the hub's answers, and requests.

use super::accepted;
use core::sync::atomic::{AtomicUsize, Ordering};
use serde_json::{Map, json};
use sluice::adapter::Precision;
use sluice::file::LoadMode;
use sluice::generate::prompt_cache::PromptCache;
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice::{Limits, Model, Session, Settings, Team};
use sluice_hf::adapter;
use sluice_make::convert::{Conversion, Options};
use sluice_pull::Revision;
use sluice_serve::parse_body;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::{env, fs, process};

/// A folder of one input, removed when dropped.
struct InputFolder(PathBuf);

impl InputFolder {
    fn new(files: &[(&str, &[u8])]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("sluice-fuzz-{}-{count}", process::id()));
        fs::create_dir_all(&path).expect("temporary folders can be made");
        for (name, bytes) in files {
            fs::write(path.join(name), bytes).expect("temporary files can be written");
        }
        Self(path)
    }
}

impl Drop for InputFolder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// A `config.json`, in a folder with a tokenizer and the weights of a small Llama.
pub fn config_json(file: &[u8]) {
    convert(&[
        ("config.json", file),
        ("tokenizer.json", TOKENIZER),
        ("model.safetensors", &LLAMA),
    ]);
}

/// A `vocab.txt` of an encoder.
pub fn wordpiece(file: &[u8]) {
    let config = BERT_CONFIG.as_bytes();
    convert(&[
        ("config.json", config),
        ("vocab.txt", file),
        ("model.safetensors", &LLAMA),
    ]);
}

/// A `tiktoken.model`.
pub fn tiktoken(file: &[u8]) {
    let about = br#"{"tokenizer_class": "TikTokenTokenizer"}"#;
    convert(&[
        ("config.json", LLAMA_CONFIG.as_bytes()),
        ("tokenizer_config.json", about),
        ("tiktoken.model", file),
        ("model.safetensors", &LLAMA),
    ]);
}

fn convert(files: &[(&str, &[u8])]) {
    let folder = InputFolder::new(files);
    let options = Options::default();
    if let Some(conversion) = accepted(Conversion::plan(&folder.0, &options)) {
        assert!(
            conversion
                .warnings()
                .iter()
                .all(|warning| warning.len() > 3)
        );
    }
}

/// A GGUF file of an adapter; or PEFT's two files, with a zero between them. Weights that begin with `PK` are torch's.
pub fn adapter(file: &[u8]) {
    let (path, folder);
    if file.starts_with(b"GGUF") {
        folder = InputFolder::new(&[("adapter.gguf", file)]);
        path = folder.0.join("adapter.gguf");
    } else {
        let mut halves = file.splitn(2, |&byte| byte == 0);
        let mut half = || halves.next().unwrap_or_default();
        let (config, weights) = (half(), half());
        let name = match weights.starts_with(b"PK") {
            true => "adapter_model.bin",
            false => "adapter_model.safetensors",
        };
        folder = InputFolder::new(&[("adapter_config.json", config), (name, weights)]);
        path = folder.0.clone();
    }
    let session = small();
    let loaded = adapter::load(&path, None, session.model(), Precision::Exact);
    if let Some((loaded, warnings)) = accepted(loaded) {
        assert!(loaded.rank() > 0);
        assert!(warnings.iter().all(|warning| warning.len() > 3));
    }
}

/// The hub's description of a revision.
pub fn hub(file: &[u8]) {
    let Ok(text) = core::str::from_utf8(file) else {
        return;
    };
    if let Some(revision) = accepted(Revision::parse(text)) {
        assert_eq!(revision.commit.len(), 40);
    }
}

/// A route's path, a line feed, and the body of a request.
pub fn body(file: &[u8]) {
    let text = core::str::from_utf8(file).ok();
    let Some((path, body)) = text.and_then(|text| text.split_once('\n')) else {
        return;
    };
    if let Ok(body) = serde_json::from_str(body) {
        parse_body(path, &body).map(accepted);
    }
}

/// A prompt cache; then the state in one, without the tag that authenticates it.
pub fn prompt_cache(file: &[u8]) {
    let folder = InputFolder::new(&[("cache", file)]);
    accepted(PromptCache::read(&folder.0.join("cache")));
    let mut session = small();
    if accepted(session.restore_state(0, None, file)).is_some() {
        // The next one has to be restored into an empty state.
        session
            .with_state(|state| state.clear(0))
            .expect("it is there");
    }
}

fn small() -> MutexGuard<'static, Session> {
    static SMALL: LazyLock<Mutex<Session>> = LazyLock::new(|| Mutex::new(new_session()));
    SMALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// With the model of `adapters/llama`, on one thread.
fn new_session() -> Session {
    static MODEL: LazyLock<(Model, Team)> = LazyLock::new(|| {
        let path = crate::fixture("adapters/llama/base.gguf");
        let team = Team::new(1, &Cores::detect()).expect("one thread");
        let source = ModelSource::open(path, LoadMode::Read).expect("a fixture");
        (source.load(&team).expect("a fixture"), team)
    });
    let limits = Limits {
        n_ctx: 64,
        ..Limits::default()
    };
    let (model, team) = &*MODEL;
    model.session_on(team, limits).expect("a small session")
}

/// The state of a short text.
pub(super) fn saved_state() -> Vec<u8> {
    let mut session = new_session();
    let mut sequence = session.add(&Settings::default()).expect("there is room");
    sequence.push(&[1, 2, 3], 0);
    session.step(&mut [&mut sequence]).expect("a short text");
    let (state, identity) = (session.state(), session.identity(&sequence));
    let mut bytes = vec![0; state.saved_bytes(0)];
    state.save(0, &identity, &mut bytes).expect("there is room");
    bytes
}

/// A safetensors file of zeros in BF16.
pub(super) fn zeros(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let (mut entries, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        entries.insert((*name).to_owned(), entry);
    }
    let header = json!(entries).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.resize(file.len() + end, 0);
    file
}

const TOKENIZER: &[u8] = include_bytes!("../../fixtures/tale-hf/tokenizer.json");

/// The weights that the seed of `config_json` describes.
static LLAMA: LazyLock<Vec<u8>> = LazyLock::new(|| {
    zeros(&[
        ("model.embed_tokens.weight", &[4096, 8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.down_proj.weight", &[8, 16]),
        ("model.norm.weight", &[8]),
    ])
});

pub(super) const LLAMA_CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
"max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn",
"factor": 4.0}, "tie_word_embeddings": true, "vocab_size": 4096, "torch_dtype": "bfloat16"}"#;

pub(super) const BERT_CONFIG: &str = r#"{"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 8,
"intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64,
"layer_norm_eps": 1e-12, "type_vocab_size": 2, "vocab_size": 8, "hidden_act": "gelu"}"#;
