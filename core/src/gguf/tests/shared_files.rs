//! The view of real files against what another reader says of them.
//!
//! Expected values: `GGUFReader` of the Python package `gguf` 0.19.0 (from llama.cpp), for each
//! file: entries, tensors, tokens, architecture, data offset, file length; then the last
//! tensor's name, dimensions, type, offset and length.

use core::fmt::Display;
use std::io::Write as _;
use std::{format, fs, io, path::Path};

use super::{Gguf, read_all, std};

#[test]
fn real_files_read_as_the_python_package_reads_them() {
    let shared = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared"));
    if !shared.is_dir() {
        skip(&shared.display());
        return;
    }
    for (name, expected, last_expected) in FILES {
        let Ok(file) = fs::read(shared.join(name)) else {
            skip(&name);
            continue;
        };
        let gguf = Gguf::parse(&file, file.len() as u64).unwrap_or_else(|e| panic!("{name}: {e}"));
        read_all(&gguf);
        let found = format!(
            "{} {} {} {} {} {}",
            gguf.metadata_count(),
            gguf.tensor_count(),
            gguf.strings("tokenizer.ggml.tokens")
                .map_or(0, Iterator::count),
            gguf.str("general.architecture")
                .expect("every model states it"),
            gguf.data_offset(),
            file.len()
        );
        assert_eq!(found, expected, "{name}");
        let last = gguf.tensors().last().map(|last| {
            let dims = &last.dims[..last.n_dims];
            format!(
                "{} {dims:?} {} {} {}",
                last.name, last.ty, last.offset, last.len_bytes
            )
        });
        assert_eq!(last.as_deref().unwrap_or(""), last_expected, "{name}");
        // The header alone is enough.
        let again = Gguf::parse(gguf.header_bytes(), file.len() as u64).expect("the same header");
        assert_eq!(again.header_bytes(), gguf.header_bytes());
    }
}

/// Not `eprintln!`: the test harness hides that when the test passes.
fn skip(what: &dyn Display) {
    writeln!(io::stderr(), "SKIPPED: {what} not found").expect("stderr is writable");
}

#[rustfmt::skip]
const FILES: [(&str, &str, &str); 25] = [
    ("goldens/logits/tiny-llama-IQ4_XS.gguf",
     "23 21 2048 llama 44832 1233696", "blk.1.ffn_up.weight [256, 512] IQ4_XS 1164064 69632"),
    ("goldens/logits/tiny-llama-Q4_0.gguf",
     "23 21 2048 llama 44832 1303328", "blk.1.ffn_up.weight [256, 512] Q4_0 1229600 73728"),
    ("goldens/logits/tiny-llama-Q4_K.gguf",
     "23 21 2048 llama 44832 1303328", "blk.1.ffn_up.weight [256, 512] Q4_K 1229600 73728"),
    ("goldens/logits/tiny-llama-Q5_K.gguf",
     "23 21 2048 llama 44832 1581856", "blk.1.ffn_up.weight [256, 512] Q5_K 1491744 90112"),
    ("goldens/logits/tiny-llama-Q6_K.gguf",
     "23 21 2048 llama 44832 1877792", "blk.1.ffn_up.weight [256, 512] Q6_K 1770272 107520"),
    ("goldens/logits/tiny-llama-Q8_0.gguf",
     "23 21 2048 llama 44832 2417440", "blk.1.ffn_up.weight [256, 512] Q8_0 2278176 139264"),
    ("goldens/logits/tiny-llama-f16.gguf",
     "22 21 2048 llama 44768 4506336", "blk.1.ffn_down.weight [512, 256] F16 4244192 262144"),
    ("goldens/logits/tiny-mixtral-f16.gguf",
     "24 23 2048 llama 45056 6087680", "blk.1.ffn_down_exps.weight [256, 256, 4] F16 5563392 524288"),
    ("goldens/logits/tiny-olmoe-f16.gguf",
     "25 27 2048 olmoe 45344 9508128", "blk.1.ffn_down_exps.weight [256, 256, 8] F16 8459552 1048576"),
    ("goldens/logits/tiny-phi3-f16.gguf",
     "22 15 2048 phi3 44384 4505952", "blk.1.ffn_down.weight [512, 256] F16 4243808 262144"),
    ("goldens/logits/tiny-qwen2-f16.gguf",
     "22 26 2048 qwen2 45024 3462112", "blk.1.ffn_down.weight [512, 256] F16 3199968 262144"),
    ("goldens/logits/tiny-qwen3-f16.gguf",
     "22 24 2048 qwen3 44960 4246432", "blk.1.ffn_down.weight [512, 256] F16 3984288 262144"),
    ("goldens/logits/tiny-qwen3moe-f16.gguf",
     "25 27 2048 qwen3moe 45376 10030400", "blk.1.ffn_down_exps.weight [256, 256, 8] F16 8981824 1048576"),
    ("goldens/tokenizer/ggml-vocab-bert-bge.gguf",
     "20 0 30522 bert 627552 627549", ""),
    ("goldens/tokenizer/ggml-vocab-deepseek-llm.gguf",
     "23 0 102400 llama 3970176 3970167", ""),
    ("goldens/tokenizer/ggml-vocab-gpt-2.gguf",
     "16 0 50257 gpt2 1766816 1766807", ""),
    ("goldens/tokenizer/ggml-vocab-llama-bpe.gguf",
     "20 0 128256 llama 7818144 7818140", ""),
    ("goldens/tokenizer/ggml-vocab-llama-spm.gguf",
     "22 0 32000 llama 723872 723869", ""),
    ("goldens/tokenizer/ggml-vocab-phi-3.gguf",
     "26 0 32064 phi3 726048 726019", ""),
    ("goldens/tokenizer/ggml-vocab-qwen2.gguf",
     "20 0 151936 qwen2 5928704 5928681", ""),
    ("models/stories260k-f32.gguf",
     "21 47 512 llama 14176 1054304", "blk.4.ffn_up.weight [64, 172] F32 1010272 44032"),
    ("models/tale-5.8m-Q4_K_M.gguf",
     "25 56 4096 llama 131584 3777536", "blk.5.ffn_up.weight [256, 768] Q4_K 3666944 110592"),
    ("models/tale-5.8m-Q8_0.gguf",
     "25 56 4096 llama 131584 6272512", "blk.5.ffn_up.weight [256, 768] Q8_0 6063616 208896"),
    ("models/tale-5.8m-f16.gguf",
     "24 56 4096 llama 131552 11679200", "blk.5.ffn_down.weight [768, 256] F16 11285984 393216"),
    ("models/tinystories-656k-f16.gguf",
     "32 20 2048 llama 50784 1364064", "output_norm.weight [128] F32 1363552 512"),
];
