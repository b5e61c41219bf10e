//! The vocabulary of the project's own model with control tokens that it lacks, and folders for files of tests.

use crate::config::SftConfig;
use sluice::file::{GgufHeader, LoadMode, MetaValue};
use sluice::vocabulary::VocabularyFile;
use sluice_core::gguf::Gguf;
use std::fs;
use std::path::PathBuf;

/// A folder of one test, removed at its end.
pub(crate) struct TestFolder(PathBuf);

impl TestFolder {
    pub(crate) fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("sluice-train-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let model = Gguf::parse(MODEL, MODEL.len() as u64).expect("the project's own file");
        fs::write(folder.join("vocabulary.gguf"), header(&model, "<s>")).unwrap();
        fs::write(folder.join("bos.gguf"), with_bos(&model)).unwrap();
        Self(folder)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A vocabulary without a token that begins texts; `bos.gguf` has one.
    pub(crate) fn vocabulary(&self, name: &str) -> VocabularyFile {
        VocabularyFile::open(self.0.join(name), LoadMode::Read).expect("a vocabulary")
    }

    /// The configuration of a text, whose paths are names in the folder.
    pub(crate) fn config(&self, text: &str) -> SftConfig {
        let place = self.0.display();
        let text = text.replace("DIR", &place.to_string());
        let model = format!("model: {place}/vocabulary.gguf\n");
        fs::write(self.0.join("run.yaml"), model + &text).unwrap();
        SftConfig::load(Some(&self.0.join("run.yaml")), &[]).expect("a configuration")
    }

    /// An error without the folder's path.
    pub(crate) fn shortened(&self, error: &str) -> String {
        error.replace(&format!("{}/", self.0.display()), "")
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// A header with the vocabulary and [`MARKS`].
fn header(model: &Gguf<'_>, bos: &str) -> Vec<u8> {
    built(model, bos).bytes()
}

fn with_bos(model: &Gguf<'_>) -> Vec<u8> {
    let mut header = built(model, "<s>");
    header.set("tokenizer.ggml.add_bos_token", true);
    header.bytes()
}

fn built(model: &Gguf<'_>, bos: &str) -> GgufHeader {
    let pieces = model.strings("tokenizer.ggml.tokens").expect("it has them");
    let mut tokens: Vec<String> = pieces
        .map(|piece| String::from_utf8_lossy(piece).into_owned())
        .collect();
    let mut types = vec![1_i32; tokens.len()];
    types[0] = 3;
    let bos_id = u32::try_from(tokens.len()).unwrap();
    for mark in [bos].into_iter().chain(MARKS) {
        tokens.push(mark.to_owned());
        types.push(3);
    }
    let mut header = GgufHeader::with_metadata_of(model);
    header.set("tokenizer.ggml.tokens", MetaValue::strings(&tokens));
    header.set("tokenizer.ggml.token_type", MetaValue::i32s(&types));
    header.set("tokenizer.ggml.bos_token_id", bos_id);
    header.set("tokenizer.ggml.eos_token_id", 0_u32);
    header.set("tokenizer.ggml.add_bos_token", false);
    header
}

const MARKS: [&str; 6] = [
    "<|im_start|>",
    "<|im_end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<think>",
    "</think>",
];
const MODEL: &[u8] = include_bytes!("../../models/tale-5.8m-Q4_K_M.gguf");
