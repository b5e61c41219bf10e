//! Small sound inputs, from which fuzzing starts.

use super::folders::{BERT_CONFIG, LLAMA_CONFIG, saved_state, zeros};
use crate::build::{File, Meta, Shape, Vocab};
use crate::packing::packed;
use sluice::file::{GgufHeader, MetaValue};
use sluice_core::kernels::GgmlType;
use sluice_make::slc::FfnLayout;
use std::fs;
use std::path::Path;

/// Inputs for the target called `name`; empty for a name that is not one.
///
/// # Panics
/// If a sound file cannot be made, which is a mistake in here.
#[must_use]
pub fn seeds(name: &str) -> Vec<Vec<u8>> {
    match name {
        "gguf" => models().iter().map(File::bytes).chain(headers()).collect(),
        "slc" => {
            let pack = |file: File, ffn| packed(&file.bytes(), ffn).expect("a sound file");
            let panels = models().into_iter().chain([mixture(8, GgmlType::F16)]);
            let [.., quantised] = models();
            let by_neuron = [quantised, mixture(32, GgmlType::Q8_0)];
            let panels = panels.map(|file| pack(file, FfnLayout::Panels));
            let by_neuron = by_neuron.map(|file| pack(file, FfnLayout::Neurons));
            panels.chain(by_neuron).collect()
        }
        "uth" => vec![uth1(0), uth1(2), uth1(4), uth2()],
        "imatrix" => vec![imatrix(), legacy_imatrix(2), legacy_imatrix(1)],
        "chat_template" => templates(),
        "safetensors" => safetensors(),
        "tokenizer_json" => TOKENIZERS.map(|text| text.into()).into(),
        "sentencepiece" => vec![sentencepiece()],
        "gbnf" => GRAMMARS.map(|text| text.into()).into(),
        "json_schema" => SCHEMAS.map(|text| text.into()).into(),
        "trace" => TRACES.map(|text| text.into()).into(),
        "wav" => vec![
            wav(b"RIFF", 1, 16, 8),
            wav(b"RIFF", 3, 32, 0x7fff_f000),
            wav(b"RF64", 1, 24, u32::MAX),
        ],
        "csv" => TABLES.map(|text| text.into()).into(),
        "config_json" => vec![LLAMA_CONFIG.into(), BERT_CONFIG.into()],
        "wordpiece" => vec![b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\nd\xc3\xa9\n".to_vec()],
        "tiktoken" => vec![b"YQ== 0\nYg== 1\nYWI= 2\n4pc= 3\n".to_vec()],
        "adapter" => {
            let read = |name: &str| fs::read(crate::fixture(name)).expect("a fixture");
            let torch = ["adapter_config.json", "adapter_model.bin"];
            let torch = torch.map(|name| read(&format!("merges/bin/{name}")));
            vec![read("adapters/llama/two.gguf"), peft(), torch.join(&0)]
        }
        "prompt_cache" => vec![saved_state()],
        "predictor" => super::predictor::seeds(),
        "hub" => HUB_ANSWERS.map(|text| text.into()).into(),
        "body" => BODIES.map(|text| text.into()).into(),
        "wfdb" => vec![b"\x01\x00\x78\xff\x01\xf0\xff".to_vec()],
        _ => Vec::new(),
    }
}

/// An adapter of one matrix, in PEFT's two files.
fn peft() -> Vec<u8> {
    let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["q_proj"], "bias": "none"}"#;
    let name = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
    let n = 64;
    let weights = zeros(&[
        (&format!("{name}A.weight"), &[1, n]),
        (&format!("{name}B.weight"), &[n, 1]),
    ]);
    [config.as_bytes(), b"\0", &weights].concat()
}

/// The lists of files of two revisions.
const HUB_ANSWERS: [&str; 2] = [
    r#"{"sha":"0123456789abcdef0123456789abcdef01234567","siblings":[{"rfilename":"m-Q4_K_M.gguf","size":10,
"blobId":"89ab","lfs":{"sha256":"cdef","size":10,"pointerSize":1}}]}"#,
    r#"{"sha":"0123456789abcdef0123456789abcdef01234567","siblings":[{"rfilename":"a/b.json"},{"rfilename":"../c"}]}"#,
];

/// A route's path, a line feed, and a body.
const BODIES: [&str; 6] = [
    "/v1/chat/completions\n{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],\
     \"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],\"tool_choice\":\"auto\",\
     \"stop\":[\"x\"],\"logit_bias\":{\"5\":-1},\"logprobs\":true,\"top_logprobs\":3}",
    "/v1/chat/completions\n{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"structural_tag\",\
     \"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<f\"],\"tags\":[{\"type\":\"tag\",\"begin\":\"<f>\",\"content\":\
     {\"type\":\"json_schema\",\"json_schema\":{\"type\":\"integer\"}},\"end\":\"</f>\"}]}}}",
    "/v1/completions\n{\"prompt\":[[1,2],[3]],\"n\":2,\"max_tokens\":4,\"temperature\":0.5,\"echo\":true,\"logprobs\":2}",
    "/completion\n{\"prompt\":[\"a\",5],\"n_predict\":3,\"samplers\":[\"top_k\"],\"grammar\":\"root ::= \\\"a\\\"\",\"lora\":[{\"id\":0,\
     \"scale\":1}]}",
    "/v1/embeddings\n{\"input\":[\"a\",\"b\"],\"encoding_format\":\"base64\",\"dimensions\":4}",
    "/v1/rerank\n{\"query\":\"a\",\"documents\":[\"b\",{\"text\":\"c\"}],\"top_n\":1}",
];

/// A WAV file of two channels and twelve bytes of samples, or eight and four of something else.
fn wav(kind: &[u8; 4], tag: u8, bits: u8, data_len: u32) -> Vec<u8> {
    let mut bytes = [&kind[..], b"\0\x01\0\0WAVEds64\x1c\0\0\0"].concat();
    bytes.extend([200u64, 12, 2].map(u64::to_le_bytes).concat());
    bytes.extend(b"\0\0\0\0LIST\x03\0\0\0abc\0fmt \x10\0\0\0");
    bytes.extend([
        tag,
        0,
        2,
        0,
        0x40,
        0x1f,
        0,
        0,
        0,
        0,
        0,
        0,
        bits / 4,
        0,
        bits,
        0,
    ]);
    bytes.extend(b"data");
    bytes.extend(data_len.to_le_bytes());
    bytes.extend(*b"\0\0\0\x40\0\0\0\xc0\0\0\x80\x3f");
    bytes
}

const TABLES: [&str; 5] = [
    "0.5\n-1e-3\nNaN\n",
    "\u{feff}t;v\r\n0,5;1\r\n1,0;2\r\n",
    "\"a, b\",\"v\"\n1,\"2\"\n",
    "# t v\n0  5\n 1 6\n",
    "a\tv\n\t7\n",
];

/// Traces of a layer's own ids, of ids that count on, with wrong lines between; a profile.
const TRACES: [&str; 4] = [
    "{\"token\":0,\"layer\":0,\"experts\":[3,1],\"cache_hit\":[true,false],\"predicted\":[]}\n\
     {\"token\":0,\"layer\":1,\"experts\":[0,2],\"cache_hit\":[false,false],\"predicted\":[2,7,1]}\n\
     {\"token\":1,\"layer\":0,\"experts\":[1,7],\"cache_hit\":[true,true],\"predicted\":[1,3]}\n",
    "{\"token\":5,\"layer\":1,\"experts\":[9,15]}\n\n{\"layer\":3,\"experts\":[24,30],\"token\":5,\"more\":1.5e3}\r\n",
    "{\"token\":0,\"layer\":0,\"experts\":[1]}\n[]\n{\"token\":0,\"layer\":512,\"experts\":[]}\n{\"token\":",
    "{\"0\": 7, \"3\": 3, \"524287\": 18446744073709551615}\n",
];

/// A vocabulary of all bytes and an end, without a model.
pub(super) fn byte_vocabulary() -> Vec<u8> {
    let is_shown = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = '\u{100}'..;
    let mut tokens: Vec<String> = (0..=u8::MAX)
        .map(|byte| {
            let own = is_shown(&byte).then(|| char::from(byte));
            let c = own.or_else(|| hidden.next());
            c.map(String::from).unwrap_or_default()
        })
        .collect();
    tokens.push("<end>".into());
    let mut types = vec![1; 256];
    types.push(3);
    let mut header = GgufHeader::new();
    header.set("general.architecture", "llama");
    header.set("tokenizer.ggml.model", "gpt2");
    header.set("tokenizer.ggml.pre", "gpt-2");
    header.set("tokenizer.ggml.tokens", MetaValue::strings(&tokens));
    header.set("tokenizer.ggml.token_type", MetaValue::i32s(&types));
    header.set("tokenizer.ggml.merges", MetaValue::strings::<&str>(&[]));
    header.set("tokenizer.ggml.eos_token_id", 256u32);
    header.bytes()
}

const GRAMMARS: [&str; 5] = [
    "root ::= \"yes\" | \"no\"\n",
    "# sums\nroot ::= sum \"\\n\"\nsum ::= term (ws [-+] ws term)*\n\
     term ::= [0-9]+ | \"(\" sum \")\"\nws ::= [ \\t]?\n",
    "root ::= item{2,5} rest\nitem ::= \"- \" [^\\r\\n\\x00-\\x1f]{1,9} \"\\n\"\nrest ::= .*\n",
    "root ::= object\nvalue ::= object | string | (\"true\" | \"false\" | \"null\")\n\
     object ::= \"{\" (string \":\" value (\",\" string \":\" value)*)? \"}\"\n\
     string ::= \"\\\"\" ([^\"\\\\] | \"\\\\\" [\"\\\\nt])* \"\\\"\"\n",
    "root ::= [\u{e4}\u{f6}\\u00fc-\\U0001F600\\]] a\na ::= b | \"\"\nb ::= \"x\" a{0,} c?\nc ::= \"y\"{3}\n",
];

const SCHEMAS: [&str; 5] = [
    "{}",
    r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age":
        {"type": "integer", "minimum": 0, "maximum": 30}}, "required": ["name"],
        "additionalProperties": false}"#,
    r##"{"$defs": {"tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"},
        "id": {"const": 3}}}}, "anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}"##,
    r#"{"type": "array", "minItems": 1, "maxItems": 3, "items": {"enum": ["a", 1, null, [2]]}}"#,
    r#"{"oneOf": [{"type": "string", "pattern": "^[a-f]{2,4}$"}, {"type": "string", "format":
        "date-time"}, {"type": "number", "exclusiveMinimum": -1.5, "multipleOf": 0.5}]}"#,
];

/// Models of a few hundred weights.
fn models() -> [File; 3] {
    let tiny = Shape {
        n_embd: 8,
        n_head: 2,
        n_head_kv: 1,
        head_dim_k: 4,
        head_dim_v: 4,
        n_ff: 8,
        n_vocab: 8,
        ..Shape::TINY
    };
    let bytes = Shape {
        vocab: Vocab::ByteLevel,
        tied: false,
        version: 2,
        ..tiny
    };
    let quantised = Shape {
        n_embd: 32,
        n_ff: 32,
        n_head: 2,
        head_dim_k: 16,
        head_dim_v: 16,
        n_head_kv: 1,
        n_vocab: 8,
        vocab: Vocab::None,
        ty: GgmlType::Q4_0,
        ..tiny
    };
    [tiny.file(), bytes.file(), quantised.file()]
}

/// A model of experts, whose matrices a `.slc` file has side by side.
fn mixture(n_embd: u32, ty: GgmlType) -> File {
    let shape = Shape {
        n_embd,
        n_head: 1,
        n_head_kv: 1,
        head_dim_k: n_embd,
        head_dim_v: n_embd,
        n_ff: 2 * n_embd,
        ty,
        n_expert: 2,
        n_expert_used: 1,
        n_vocab: 8,
        vocab: Vocab::None,
        ..Shape::TINY
    };
    shape.file()
}

/// Headers without a model: a vocabulary with a template, values of every type.
fn headers() -> [Vec<u8>; 2] {
    let mut vocabulary = models()[0].clone();
    vocabulary.tensors.clear();
    vocabulary.set("tokenizer.chat_template", Meta::from("{{ messages }}"));
    let mut values = GgufHeader::new();
    values.set("general.alignment", 64u32);
    values.set("a.string", "text");
    values.set("a.bool", true);
    values.set("a.number", 0.5f32);
    values.set("f32s", MetaValue::f32s(&[1.0, f32::NAN]));
    values.set("i32s", MetaValue::i32s(&[-1, 1]));
    values.set("strings", MetaValue::strings(&["a", "", "\u{e9}"]));
    [vocabulary.bytes(), values.bytes()]
}

/// An expert of 32 rows of 32 weights of type `dtype` (0 F32, 2 Int8, 4 Q4_0).
fn uth1(dtype: u8) -> Vec<u8> {
    let mut blob = b"UTH1\x01\x00".to_vec();
    blob.extend([dtype, 3]);
    let scales = if dtype == 2 { 3 } else { 0 };
    let fields: [u32; 10] = [32, 32, 3, 0, 0, scales, 16, 16, 64, 0];
    blob.extend(fields.iter().flat_map(|x| x.to_le_bytes()));
    blob.resize(64, 0);
    blob.extend([0, 0, 128, 63].repeat(3));
    if dtype == 2 {
        blob.resize(64 + 12 + 3 * 32 * 32, 1);
    }
    blob
}

/// An expert of Q8_0, F16 and Q4_0.
fn uth2() -> Vec<u8> {
    let mut blob = b"UTH2\x02\x00\x03\x00".to_vec();
    let fields: [u32; 4] = [32, 32, 1, 0];
    blob.extend(fields.iter().flat_map(|x| x.to_le_bytes()));
    let mut offset = 0u64;
    for (role, dtype, len) in [(0, 5, 32 * 34u64), (1, 1, 32 * 64), (2, 4, 32 * 18)] {
        blob.extend([dtype, role, 0, 0]);
        blob.extend(offset.to_le_bytes());
        blob.extend(len.to_le_bytes());
        blob.extend(1024u32.to_le_bytes());
        offset += len;
    }
    blob.resize(128, 0);
    blob
}

fn imatrix() -> Vec<u8> {
    let mut header = GgufHeader::new();
    header.set("general.type", "imatrix");
    header.set("imatrix.datasets", MetaValue::strings(&["a text"]));
    header.set("imatrix.chunk_count", 3u32);
    header.set("imatrix.chunk_size", 512u32);
    for name in ["blk.0.attn_q.weight", "blk.0.ffn_down_exps.weight"] {
        let n = if name.contains("exps") { 2 } else { 1 };
        header.add_tensor(&format!("{name}.in_sum2"), &[8, n], GgmlType::F32);
        header.add_tensor(&format!("{name}.counts"), &[1, n], GgmlType::F32);
    }
    let mut file = header.bytes();
    let values = (0..).map(|i: u8| f32::from(i).to_le_bytes());
    let missing = usize::try_from(header.file_bytes()).expect("small") - file.len();
    file.extend(values.flatten().take(missing));
    file
}

fn legacy_imatrix(n_entries: i32) -> Vec<u8> {
    let mut file = n_entries.to_le_bytes().to_vec();
    let string = |text: &str| {
        let len = i32::try_from(text.len()).expect("short");
        [&len.to_le_bytes(), text.as_bytes()].concat()
    };
    for i in 0..n_entries {
        file.extend(string(&format!("blk.{i}.attn_q.weight")));
        file.extend(7i32.to_le_bytes());
        file.extend(4i32.to_le_bytes());
        file.extend([0.5f32, 1.0, 2.0, 0.0].iter().flat_map(|x| x.to_le_bytes()));
    }
    if n_entries > 1 {
        file.extend(3i32.to_le_bytes());
        file.extend(string("a text"));
    }
    file
}

/// The golden templates, and a list of expressions that they lack.
fn templates() -> Vec<Vec<u8>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/chat"));
    let entries = fs::read_dir(folder).expect("it is in the repository");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let mut paths: Vec<_> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jinja")
        })
        .collect();
    paths.sort();
    let files = paths.iter().map(|path| fs::read(path).expect("readable"));
    files.chain(TEMPLATES.map(|text| text.into())).collect()
}

/// Files of no tensors, of one, and of several with metadata.
fn safetensors() -> Vec<Vec<u8>> {
    let file = |json: &str, n: usize| {
        let len = json.len() as u64;
        [&len.to_le_bytes(), json.as_bytes(), &vec![1; n]].concat()
    };
    vec![
        file("{}", 0),
        file(
            r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#,
            24,
        ),
        file(
            r#"{"__metadata__":{"format":"pt"},
                "b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},
                "c":{"dtype":"I64","shape":[],"data_offsets":[8,16]},
                "d":{"dtype":"F8_E4M3","shape":[2,0,1],"data_offsets":[16,16]}}   "#,
            16,
        ),
    ]
}

fn sentencepiece() -> Vec<u8> {
    let mut file = Vec::new();
    for (text, score, kind) in [
        ("<unk>", 0.0f32, 2),
        ("\u{2581}a", -1.0, 1),
        ("<0x0A>", 0.0, 6),
    ] {
        let mut piece = vec![0x0a, u8::try_from(text.len()).expect("short")];
        piece.extend(text.as_bytes());
        piece.push(0x15);
        piece.extend(score.to_le_bytes());
        piece.extend([0x18, kind]);
        file.extend([0x0a, u8::try_from(piece.len()).expect("short")]);
        file.extend(piece);
    }
    // The trainer's kind of model: BPE.
    file.extend([0x12, 0x02, 0x18, 0x02]);
    file
}

const TEMPLATES: [&str; 8] = [
    "{% macro f(x, y=1) %}{{ x }}{{ caller() if caller else y }}{% endmacro %}{% call f(2) %}c{% endcall %}",
    "{% set ns = namespace(a=[1]) %}{% for i in range(3) %}{% set ns.a = ns.a + [i * 2] %}{% endfor %}{{ ns.a }}",
    "{% filter upper %}a{% endfilter %}{% set x | trim %} b {% endset %}{{ x ~ 'c' * 3 }}",
    "{% with a = 1, b = 2 %}{{ a - b ** 2 // 3 % 2 / 1 }}{% endwith %}{% raw %}{{ x }}{% endraw %}{# c #}",
    "{% for a, b in {'x': [1]} | dictsort recursive %}{{ loop(b) if b is mapping else loop.cycle(1, 2) }}{% endfor %}",
    "{% block a %}{{ self.a is defined }}{% endblock %}{% autoescape true %}{{ '<' | e }}{% endautoescape %}",
    "{{ messages | map(attribute='role') | unique | sort | batch(2) | list }}{{ '{:>5}'.format(1) }}",
    "{%- if 'a' not in ['b'] and not false or 1 >= 2 -%}{{ messages[0:2:1][-1]['role'][::-1] }}{%- endif +%}",
];
const TOKENIZERS: [&str; 2] = [
    r#"{"version":"1.0","added_tokens":[{"id":2,"content":"<s>","special":true}],
        "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
        "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}]},
        "decoder":{"type":"ByteLevel"},
        "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":3},"merges":["a b"],"ignore_merges":true}}"#,
    r#"{"model":{"vocab":[["a",-1.5]],"merges":[["a","b"]],"byte_fallback":true}}"#,
];
