//! `sluice convert` drops nothing silently: what a folder states about computation and tokens is written
//! to the file, refused by name, or named in a warning.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{Folder, data, object, refused, scalar, write_raw};
use crate::support::{Ran, fails, run_to};
use serde_json::{Map, Value, json};
use sluice::core::gguf::{Gguf, Value as GgufValue};
use std::collections::BTreeMap;
use std::fs;

const SPACE: &str = "\u{2581}";

/// The keys of the file that an edited folder converts to, without their common prefix, and the
/// messages.
pub(crate) fn converted(
    family: &str,
    edit: impl FnOnce(&Folder),
) -> (BTreeMap<String, Value>, Ran) {
    let folder = Folder::of(family, "says");
    edit(&folder);
    let out = folder.path("out.gguf");
    let ran = run_to(0, &["convert", &folder.path(family), &out]);
    let file = fs::read(&out).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let keys = gguf.metadata().map(|(key, value)| {
        let value = match value {
            GgufValue::Array(array) => array.iter().map(scalar).collect(),
            one => scalar(one),
        };
        let key = key.strip_prefix("tokenizer.ggml.").unwrap_or(key);
        (key.to_owned(), value)
    });
    let mut keys: BTreeMap<_, _> = keys.collect();
    let names = gguf.tensors().map(|tensor| json!(tensor.name));
    keys.insert("tensors".into(), names.collect());
    (keys, ran)
}

/// Changes one JSON file and converts.
pub(crate) fn edited(family: &str, file: &str, changes: &Value) -> (BTreeMap<String, Value>, Ran) {
    converted(family, |folder| {
        folder.edit(&format!("{family}/{file}"), changes)
    })
}

pub(crate) fn refuses(family: &str, file: &str, changes: &Value, expected: &[&str]) {
    let edit = |folder: &Folder| folder.edit(&format!("{family}/{file}"), changes);
    refused(family, edit, expected);
}

#[test]
fn what_a_normalizer_does_is_kept_or_refused() {
    let rule = |kind: &str| json!({"normalizer": {"type": kind}});
    let (keys, _) = edited("qwen2", "tokenizer.json", &rule("NFC"));
    assert_eq!(keys["normalizer.nfc"], true);
    for kind in [
        "Lowercase",
        "NFKC",
        "NFD",
        "NFKD",
        "Nmt",
        "StripAccents",
        "Strip",
    ] {
        let expected = ["tokenizer.json", "normalizer", kind, "cannot express"];
        refuses("qwen2", "tokenizer.json", &rule(kind), &expected);
    }
    let replace = json!({"type": "Replace", "pattern": {"String": "Once"}, "content": "Twice"});
    let expected = ["Replace", "Twice", "cannot express"];
    refuses(
        "qwen2",
        "tokenizer.json",
        &json!({"normalizer": replace}),
        &expected,
    );
    refuses(
        "mistral",
        "tokenizer.json",
        &rule("NFKC"),
        &["normalizer", "NFKC", "cannot express"],
    );
}

#[test]
fn components_and_settings_that_are_not_known_are_refused() {
    for (changes, expected) in [
        (
            json!({"normalizer": {"type": "Novel", "x": 1}}),
            "unknown component Novel (x 1)",
        ),
        (
            json!({"normalizer": {"type": "NFC", "x": 1}}),
            "NFC has the unknown setting \"x\"",
        ),
        (
            json!({"decoder": {"type": "Strip", "content": "a", "start": 1, "stop": 0}}),
            "decoder's step",
        ),
        (
            json!({"post_processor": {"type": "Digits"}}),
            "post_processor's step Digits",
        ),
        (
            json!({"new_part": {"a": 1}}),
            "\"new_part\" is {\"a\":1}, which is not supported",
        ),
    ] {
        refuses(
            "qwen2",
            "tokenizer.json",
            &changes,
            &["tokenizer.json", expected],
        );
    }
    for (key, value, expected) in [
        (
            "continuing_subword_prefix",
            json!("##"),
            "continuing_subword_prefix is \"##\"",
        ),
        (
            "end_of_word_suffix",
            json!("</w>"),
            "end_of_word_suffix is \"</w>\"",
        ),
        ("dropout", json!(0.1), "dropout"),
        ("byte_fallback", json!(true), "byte_fallback"),
        ("new_flag", json!(true), "\"new_flag\" is true"),
    ] {
        let edit = |folder: &Folder| {
            let mut model = object(&folder.0.join("qwen2/tokenizer.json"))["model"].clone();
            model[key] = value;
            folder.edit("qwen2/tokenizer.json", &json!({"model": model}));
        };
        refused("qwen2", edit, &["tokenizer.json", expected]);
    }
}

#[test]
fn what_is_put_around_a_text_is_kept_or_refused() {
    let template = |single: &[&str]| {
        let parts = single.iter().map(|part| match *part {
            "$A" => json!({"Sequence": {"id": "A", "type_id": 0}}),
            token => json!({"SpecialToken": {"id": token, "type_id": 0}}),
        });
        let single: Vec<_> = parts.collect();
        json!({"post_processor": {"type": "TemplateProcessing", "single": single, "pair": [],
            "special_tokens": {}}})
    };
    let (keys, _) = edited(
        "qwen2",
        "tokenizer.json",
        &template(&["<|begin|>", "$A", "<|end|>"]),
    );
    assert_eq!(
        (&keys["add_bos_token"], &keys["add_eos_token"]),
        (&json!(true), &json!(true))
    );
    let two = template(&["<|begin|>", "<|end|>", "$A"]);
    refuses("qwen2", "tokenizer.json", &two, &["adds more than a token"]);
    let other = template(&["<|tool|>", "$A"]);
    refuses(
        "qwen2",
        "tokenizer.json",
        &other,
        &["\"<|tool|>\" before a text", "<|begin|>"],
    );
}

#[test]
fn spaces_before_a_text_are_as_the_rules_put_them() {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let meta = |scheme: &str| {
        json!({"normalizer": null, "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE,
            "prepend_scheme": scheme, "split": false}})
    };
    let (prefix, first) = ("add_space_prefix", "add_space_prefix_first");
    for (changes, key, value) in [
        (json!({}), prefix, None),
        (json!({"normalizer": replace}), prefix, Some(json!(false))),
        (meta("never"), prefix, Some(json!(false))),
        (meta("always"), prefix, None),
        (meta("first"), first, Some(json!(true))),
    ] {
        let (keys, _) = edited("mistral", "tokenizer.json", &changes);
        assert_eq!(keys.get(key), value.as_ref(), "{changes}");
    }
    let nfkc =
        json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, replace]}});
    refuses(
        "mistral",
        "tokenizer.json",
        &nfkc,
        &["NFKC", "cannot express"],
    );
}

/// A folder whose `tokenizer.model` has these bytes appended, and no other file about its tokens.
fn with_model(folder: &Folder, more: &[u8]) {
    let model = folder.0.join("mixtral");
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    let tokens = json!({"add_prefix_space": null, "added_tokens_decoder": null, "legacy": null});
    folder.edit("mixtral/tokenizer_config.json", &tokens);
    let path = model.join("tokenizer.model");
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend(more);
    fs::write(path, bytes).unwrap();
}

#[test]
fn all_of_a_tokenizer_model_is_read() {
    // Fields of the protobuf message: the last value of a field counts.
    let piece = [&[0x0a, 9, 0x0a, 5][..], b"<sep>", &[0x18, 4]].concat();
    let (keys, ran) = converted("mixtral", |folder| with_model(folder, &piece));
    assert_eq!(keys["tokens"][322], "<sep>");
    assert_eq!(keys["token_type"][322], 4);
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
    let no_prefix = [0x1a, 2, 0x18, 0];
    let (keys, _) = converted("mixtral", |folder| with_model(folder, &no_prefix));
    assert_eq!(keys["add_space_prefix"], false);
    let removes = [0x1a, 2, 0x20, 1];
    let (keys, _) = converted("mixtral", |folder| with_model(folder, &removes));
    assert_eq!(keys["remove_extra_whitespaces"], true);
    let unknown = [0x12, 3, 0xf8, 6, 1];
    let (_, ran) = converted("mixtral", |folder| with_model(folder, &unknown));
    assert!(
        ran.stderr
            .contains("unknown field 111 of TrainerSpec is ignored"),
        "{ran:?}"
    );
    for (more, expected) in [
        (&[0x1a, 4, 0x12, 2, 1, 2][..], "precompiled_charsmap"),
        (&[0x1a, 2, 0x28, 0], "escape_whitespaces is false"),
        (&[0x12, 3, 0xc0, 1, 1], "treat_whitespace_as_suffix is true"),
        (&[0x2a, 4, 0x12, 2, 1, 2], "denormalizer"),
        (&[0x12, 2, 0x18, 3], "word (kind 3) model"),
        (&[0x12, 2, 0x18, 4], "char (kind 4) model"),
        (&[0x12, 2, 0x18, 9], "kind 9"),
    ] {
        let edit = |folder: &Folder| with_model(folder, more);
        refused("mixtral", edit, &["tokenizer.model", expected]);
    }
}

#[test]
fn flags_and_kinds_of_added_tokens_are_kept() {
    let flags = |id: u64, flag: &str| {
        let mut token = json!({"id": id, "content": format!("<{id}>"), "special": true});
        token[flag] = json!(true);
        token
    };
    let added = [
        flags(323, "rstrip"),
        flags(324, "lstrip"),
        flags(325, "single_word"),
    ];
    let (keys, _) = edited("qwen2", "tokenizer.json", &json!({"added_tokens": added}));
    for (flag, id) in [("rstrip", 323), ("lstrip", 324), ("single_word", 325)] {
        assert_eq!(keys[&format!("added_tokens.{flag}")], json!([id]));
    }
    // A list of added tokens without their kinds.
    let list = json!({"<unk>": 0, "<s>": 1, "</s>": 2, "<|im_start|>": 323});
    let (keys, _) = converted("mixtral", |folder| {
        with_model(folder, &[]);
        let path = folder.0.join("mixtral/added_tokens.json");
        fs::write(path, list.to_string()).unwrap();
    });
    let types = keys["token_type"].as_array().unwrap();
    assert_eq!(types[..3], [2, 3, 3]);
    assert_eq!(types[323], 4);
}

#[test]
fn tokens_beyond_the_embedding_are_left_out_with_a_warning() {
    let pad = json!({"added_tokens": [{"id": 330, "content": "[PAD]", "special": true}]});
    let (keys, ran) = edited("qwen2", "tokenizer.json", &pad);
    assert_eq!(keys["tokens"].as_array().unwrap().len(), 330);
    assert!(
        ran.stderr
            .contains("warning: token 330, \"[PAD]\", is beyond"),
        "{ran:?}"
    );
    let (_, ran) = converted("mixtral", |folder| {
        with_model(folder, &[]);
        fs::write(
            folder.0.join("mixtral/added_tokens.json"),
            r#"{"<pad>": 330}"#,
        )
        .unwrap();
    });
    assert!(
        ran.stderr
            .contains("warning: token 330, \"<pad>\", is beyond"),
        "{ran:?}"
    );
}

#[test]
fn configurations_that_compute_something_else_are_refused() {
    for (family, changes, expected) in [
        ("qwen2", json!({"hidden_act": "gelu"}), "hidden_act"),
        (
            "llama3",
            json!({"hidden_act": "mish"}),
            "is \"mish\", but llama in GGUF computes silu",
        ),
        ("phi3", json!({"hidden_act": "gelu_new"}), "gelu_new"),
        (
            "llama3",
            json!({"logit_scale": 0.25}),
            "logit_scale is 0.25: it changes what the model computes",
        ),
        (
            "llama3",
            json!({"embedding_multiplier": 12}),
            "embedding_multiplier",
        ),
        ("llama3", json!({"odd_multiplier": 0.5}), "odd_multiplier"),
        (
            "llama3",
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor",
        ),
        ("olmoe", json!({"clip_qkv": 8.0}), "clip_qkv"),
        (
            "olmoe",
            json!({"norm_topk_prob": true}),
            "norm_topk_prob is true",
        ),
        (
            "qwen3moe",
            json!({"norm_topk_prob": null}),
            "norm_topk_prob is missing",
        ),
        (
            "qwen3moe",
            json!({"mlp_only_layers": [0]}),
            "mlp_only_layers",
        ),
        (
            "qwen3",
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}}),
            "mscale",
        ),
        ("qwen2", json!({"rms_norm_eps": "Infinity"}), "rms_norm_eps"),
        (
            "qwen2",
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            "\"gptq\"",
        ),
    ] {
        refuses(family, "config.json", &changes, &["config.json", expected]);
    }
    let neutral = json!({"logit_scale": 1.0, "embedding_multiplier": 1, "hidden_act": "swish",
        "use_cache": true, "clip_qkv": null, "layer_types": ["full_attention", "full_attention"]});
    let (_, ran) = edited("qwen2", "config.json", &neutral);
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
    let (_, ran) = edited("qwen2", "config.json", &json!({"marvel": 3}));
    assert!(
        ran.stderr
            .contains("config.json: marvel is 3: unknown, ignored"),
        "{ran:?}"
    );
}

#[test]
fn all_tokens_that_end_a_text_are_kept() {
    let ends = |keys: &BTreeMap<String, Value>| {
        [
            "eos_token_id",
            "eot_token_id",
            "eom_token_id",
            "eog_token_ids",
        ]
        .map(|key| keys.get(key).cloned().unwrap_or_default())
    };
    let (keys, _) = converted("qwen2", |folder| {
        folder.edit("qwen2/config.json", &json!({"eos_token_id": [2, 5, 7]}));
        folder.edit("qwen2/tokenizer_config.json", &json!({"eos_token": null}));
    });
    assert_eq!(ends(&keys), [json!(2), json!(5), json!(7), Value::Null]);
    let generation = |text: &'static str| {
        converted("qwen2", move |folder| {
            fs::write(folder.0.join("qwen2/generation_config.json"), text).unwrap();
        })
    };
    let (keys, _) = generation(r#"{"eos_token_id": [1, 5, 7, 9, 11]}"#);
    assert_eq!(ends(&keys), [json!(1), json!(5), json!(7), json!([9, 11])]);
    let (keys, ran) = generation(r#"{"eos_token_id": [1, 5], "temperature": NaN}"#);
    assert_eq!(ends(&keys)[..2], [json!(1), json!(5)]);
    assert!(
        ran.stderr
            .contains("temperature is \"NaN\", not a number: ignored"),
        "{ran:?}"
    );
    let (_, ran) = generation(r#"{"eos_token_id": [1, 9999]}"#);
    assert!(
        ran.stderr.contains("end token 9999 is not a token"),
        "{ran:?}"
    );
    let (_, ran) = generation("{");
    assert!(ran.stderr.contains("generation_config.json"), "{ran:?}");
}

#[test]
fn what_is_said_about_generation_is_kept_or_named() {
    let generation = |text: &'static str| {
        converted("qwen2", move |folder| {
            fs::write(folder.0.join("qwen2/generation_config.json"), text).unwrap();
        })
    };
    let (keys, ran) =
        generation(r#"{"suppress_tokens": [3, 4], "num_beams": 1, "do_sample": true}"#);
    assert_eq!(keys["suppress_tokens"], json!([3, 4]));
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
    let (_, ran) = generation(r#"{"no_repeat_ngram_size": 3, "begin_suppress_tokens": [2]}"#);
    for key in ["no_repeat_ngram_size is 3", "begin_suppress_tokens is [2]"] {
        assert!(ran.stderr.contains(key), "{key}: {ran:?}");
    }
    let edit = |folder: &Folder| {
        let path = folder.0.join("qwen2/generation_config.json");
        fs::write(path, r#"{"suppress_tokens": [3, 9999]}"#).unwrap();
    };
    refused(
        "qwen2",
        edit,
        &["suppress_tokens", "is not a list of token ids"],
    );
}

/// Rewrites a folder's tensors with changes.
fn rewrite(folder: &Folder, family: &str, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
    let about = object(&folder.0.join(family).join("tensors.json"));
    let tensors = about.into_iter().map(|(name, about)| {
        let dtype = about[0].as_str().unwrap().to_owned();
        let shape: Vec<u64> = serde_json::from_value(about[1].clone()).unwrap();
        let bytes = data(&name, shape.iter().product(), &dtype);
        (
            name,
            Tensor {
                dtype,
                shape,
                bytes,
            },
        )
    });
    let mut tensors = tensors.collect();
    change(&mut tensors);
    let (mut header, mut blob) = (Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let begin = blob.len();
        blob.extend(tensor.bytes);
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape,
            "data_offsets": [begin, blob.len()]});
        header.insert(name, entry);
    }
    let path = folder.0.join(family).join("model.safetensors");
    write_raw(&path, &Value::Object(header), &blob);
}

struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

fn tensor(dtype: &str, shape: &[u64], bytes: Vec<u8>) -> Tensor {
    Tensor {
        dtype: dtype.into(),
        shape: shape.into(),
        bytes,
    }
}

#[test]
fn tensors_that_are_not_read_do_no_harm() {
    let (_, ran) = converted("qwen2", |folder| {
        rewrite(folder, "qwen2", |tensors| {
            let frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned();
            tensors.insert(frequencies, tensor("F64", &[8], vec![0; 64]));
            tensors.insert(
                "model.position_ids".into(),
                tensor("I64", &[1, 4], vec![0; 32]),
            );
            tensors.insert("model.marker".into(), tensor("F32", &[0], Vec::new()));
        });
    });
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
}

#[test]
fn an_output_matrix_that_differs_from_the_embedding_is_used_whatever_the_flag_says() {
    for (equal, is_used) in [(true, false), (false, true)] {
        let (keys, ran) = converted("qwen2", |folder| {
            rewrite(folder, "qwen2", |tensors| {
                let embedding = &tensors["model.embed_tokens.weight"];
                let mut bytes = embedding.bytes.clone();
                if !equal {
                    bytes.fill(0);
                }
                let head = tensor("BF16", &[330, 64], bytes);
                tensors.insert("lm_head.weight".into(), head);
            });
        });
        let names = keys["tensors"].as_array().unwrap();
        assert_eq!(names.contains(&json!("output.weight")), is_used);
        assert_eq!(
            ran.stderr
                .contains("lm_head.weight is the output matrix, since it differs"),
            is_used,
            "{ran:?}"
        );
    }
}

#[test]
fn values_that_are_not_finite_or_too_large_are_refused() {
    let poke = |name: &'static str, value: f32| {
        let folder = Folder::of("qwen2", "values");
        rewrite(&folder, "qwen2", |tensors| {
            let bytes = &mut tensors.get_mut(name).unwrap().bytes;
            bytes[6..8].copy_from_slice(&value.to_le_bytes()[2..]);
        });
        folder
    };
    let (matrix, norm) = ("model.layers.0.mlp.up_proj.weight", "model.norm.weight");
    for (name, value, ty, expected) in [
        (matrix, 1e6, "f16", "too large"),
        (matrix, f32::NAN, "auto", "not finite"),
        (matrix, f32::INFINITY, "f32", "not finite"),
        (matrix, f32::NAN, "q8_0", "not finite"),
        (norm, f32::NAN, "auto", "not finite"),
    ] {
        let folder = poke(name, value);
        let (model, out) = (folder.path("qwen2"), folder.path("out.gguf"));
        let args = ["convert", &model, &out, "--type", ty];
        fails(1, &args, &[expected]);
        assert_eq!(folder.names(), ["qwen2"]);
    }
    let folder = poke(matrix, 1e6);
    let (model, out) = (folder.path("qwen2"), folder.path("out.gguf"));
    run_to(0, &["convert", &model, &out]);
}

#[test]
fn files_are_named_for_what_they_are() {
    const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    let put = |family: &'static str, name: &'static str, text: &'static str| {
        move |folder: &Folder| fs::write(folder.0.join(family).join(name), text).unwrap()
    };
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        refused(
            "qwen2",
            put("qwen2", name, POINTER),
            &[name, "a Git LFS pointer", "git lfs pull"],
        );
    }
    let html = put("qwen2", "config.json", "<!DOCTYPE html><html></html>");
    refused("qwen2", html, &["config.json", "an HTML page"]);
    let tiktoken = "IQ== 0\nIg== 1\n";
    let (_, ran) = converted("mixtral", put("mixtral", "tokenizer.model", tiktoken));
    assert!(ran.stderr.contains("tiktoken"), "{ran:?}");
    let alone = |folder: &Folder| {
        put("mixtral", "tokenizer.model", tiktoken)(folder);
        fs::remove_file(folder.0.join("mixtral/tokenizer.json")).unwrap();
    };
    refused("mixtral", alone, &["tokenizer.model", "tiktoken"]);
    let adapter = |folder: &Folder| {
        fs::rename(
            folder.0.join("qwen2/config.json"),
            folder.0.join("qwen2/adapter_config.json"),
        )
        .unwrap();
    };
    refused("qwen2", adapter, &["LoRA adapter", "merge"]);
    let parts = |folder: &Folder| {
        fs::remove_file(folder.0.join("qwen2/tokenizer.json")).unwrap();
        put("qwen2", "vocab.json", "{}")(folder);
        put("qwen2", "merges.txt", "")(folder);
    };
    refused(
        "qwen2",
        parts,
        &["vocab.json and merges.txt exist", "save_pretrained"],
    );
}

#[test]
fn json_is_read_as_python_writes_it() {
    let (_, ran) = converted("qwen2", |folder| {
        let path = folder.0.join("qwen2/config.json");
        let text = fs::read_to_string(&path).unwrap();
        let text = text.replacen('{', "{\"odd\": Infinity, \"head_dim\": 16.0,", 1);
        fs::write(path, format!("\u{feff}{text}")).unwrap();
    });
    assert!(
        ran.stderr.contains("odd is \"Infinity\": unknown, ignored"),
        "{ran:?}"
    );
}

#[test]
fn shards_beside_a_whole_file_are_explained() {
    let both = |folder: &Folder| {
        let model = folder.0.join("llama3");
        fs::remove_file(model.join("model.safetensors.index.json")).unwrap();
        fs::copy(
            model.join("model-00001-of-00003.safetensors"),
            model.join("model.safetensors"),
        )
        .unwrap();
    };
    refused(
        "llama3",
        both,
        &["model.safetensors exists next to", "3 safetensors files"],
    );
    let stale = |folder: &Folder| {
        let model = folder.0.join("llama3");
        fs::rename(
            model.join("model-00001-of-00003.safetensors"),
            model.join("model.safetensors"),
        )
        .unwrap();
    };
    refused(
        "llama3",
        stale,
        &["index.json", "model-00001-of-00003", "remove the index"],
    );
}
