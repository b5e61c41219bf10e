//! Tokens of converted folders, as the models' own code makes them: added tokens in every kind of vocabulary, spaces before
//! texts, ids of roles (`tests/tools/hf_added_tokens.py`).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{Folder, object};
use crate::families::{FAMILIES, folder_of};
use crate::support::run_to;
use serde_json::{Value, json};
use sluice::core::gguf::Gguf;
use sluice::core::tokenizer::{EncodeOptions, Tokenizer, plan};
use sluice::encode::encode;
use std::fs;
use std::path::Path;

/// The folder of a case.
fn folder(case: &Value) -> (Folder, String) {
    let family = case["family"].as_str().unwrap().to_owned();
    let own = Path::new(FAMILIES).join(format!("{family}.json"));
    let folder = match own.exists() {
        true => folder_of(&family, &object(&own)),
        false => Folder::of(&family, "tokens"),
    };
    let model = folder.0.join(&family);
    if let Some(bytes) = case["model"].as_str() {
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::remove_file(model.join(name)).unwrap();
        }
        fs::write(model.join("tokenizer.model"), base64(bytes)).unwrap();
        return (folder, family);
    }
    let path = model.join("tokenizer.json");
    let mut tokenizer = object(&path);
    tokenizer.extend(case["tokenizer"].as_object().unwrap().clone());
    fs::write(path, Value::Object(tokenizer).to_string()).unwrap();
    let about = model.join("tokenizer_config.json");
    match &case["about"] {
        Value::Null => {
            let _absent = fs::remove_file(about);
            let config = json!({"bos_token_id": null, "eos_token_id": null, "pad_token_id": null});
            folder.edit(&format!("{family}/config.json"), &config);
        }
        changes => {
            let mut map = object(&about);
            map.extend(changes.as_object().unwrap().clone());
            fs::write(about, Value::Object(map).to_string()).unwrap();
        }
    }
    (folder, family)
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: u8| DIGITS.iter().position(|digit| *digit == byte);
    let digits: Vec<usize> = text.bytes().map_while(digit).collect();
    let quads = digits.chunks(4).flat_map(|quad| {
        let bits = quad
            .iter()
            .enumerate()
            .map(|(at, digit)| digit << (18 - 6 * at));
        let bits: usize = bits.sum();
        let bytes = [bits >> 16, bits >> 8, bits].map(|byte| u8::try_from(byte & 0xff).unwrap());
        bytes.into_iter().take(quad.len() - 1)
    });
    quads.collect()
}

#[test]
fn converted_vocabularies_give_the_tokens_of_the_models_own_code() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/cli/tokens/added_tokens.json"
    );
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let (mut wrong, mut n_texts) = (Vec::new(), 0);
    for case in &cases {
        let (folder, family) = folder(case);
        let out = folder.path("out.gguf");
        run_to(0, &["convert", &folder.path(&family), &out]);
        let file = fs::read(&out).unwrap();
        let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
        let mut words = vec![0; plan(&gguf).unwrap().words];
        let tokenizer = Tokenizer::new(&gguf, &mut words).unwrap();
        let options = EncodeOptions {
            add_special: case["model"].is_null(),
            parse_special: true,
        };
        for pair in case["texts"].as_array().unwrap() {
            let text = pair[0].as_str().unwrap();
            let expected: Vec<u32> = serde_json::from_value(pair[1].clone()).unwrap();
            let found = encode(&tokenizer, text, options).unwrap();
            if found != expected {
                wrong.push(format!(
                    "{}: {text:?}: {found:?}, expected {expected:?}",
                    case["name"]
                ));
            }
            n_texts += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {n_texts}: {wrong:#?}", wrong.len());
    assert!(
        cases.len() >= 17 && n_texts > 500,
        "{} {n_texts}",
        cases.len()
    );
}
