//! The vocabulary of the project's own model, extended by control tokens that it lacks.

use sluice_core::gguf::Gguf;
use sluice_core::kernels::words;
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};

/// A small random number generator.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % n as u64).expect("small")
    }
}

/// Runs `test` with the vocabulary and, after its tokens, `marks`.
pub(crate) fn with_tokenizer(marks: &[&str], test: impl FnOnce(&Tokenizer<'_>)) {
    let model = Gguf::parse(MODEL, MODEL.len() as u64).expect("the project's own file");
    let header = header(&model, marks);
    let gguf = Gguf::parse(&header, header.len() as u64).expect("well formed");
    let mut words = vec![0; tokenizer::plan(&gguf).expect("a vocabulary").words];
    test(&Tokenizer::new(&gguf, &mut words).expect("a vocabulary"));
}

pub(crate) fn encode(tokenizer: &Tokenizer<'_>, text: &str) -> Vec<u32> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
    let mut tokens = vec![0; tokenizer.max_tokens(text.len())];
    let tokens = tokenizer.encode(text, options, &mut workspace, &mut tokens);
    tokens.expect("byte-level: every text").to_vec()
}

/// A GGUF file without tensors.
fn header(model: &Gguf<'_>, marks: &[&str]) -> Vec<u8> {
    let strings = |key: &str| -> Vec<Vec<u8>> {
        let all = model.strings(key).expect("it has them");
        all.map(<[u8]>::to_vec).collect()
    };
    let mut tokens = strings("tokenizer.ggml.tokens");
    let mut types = vec![1_i32; tokens.len()];
    types[0] = 3;
    for mark in marks {
        tokens.push(mark.as_bytes().to_vec());
        types.push(3);
    }
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.extend(7_u64.to_le_bytes());
    let string = |out: &mut Vec<u8>, text: &[u8]| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text);
    };
    for (key, value) in [
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "gpt-2"),
    ] {
        string(&mut out, key.as_bytes());
        out.extend(8_u32.to_le_bytes());
        string(&mut out, value.as_bytes());
    }
    let merges = strings("tokenizer.ggml.merges");
    for (key, list) in [
        ("tokenizer.ggml.tokens", &tokens),
        ("tokenizer.ggml.merges", &merges),
    ] {
        string(&mut out, key.as_bytes());
        out.extend(9_u32.to_le_bytes());
        out.extend(8_u32.to_le_bytes());
        out.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|text| string(&mut out, text));
    }
    string(&mut out, b"tokenizer.ggml.token_type");
    out.extend(9_u32.to_le_bytes());
    out.extend(5_u32.to_le_bytes());
    out.extend((types.len() as u64).to_le_bytes());
    types.iter().for_each(|kind| out.extend(kind.to_le_bytes()));
    string(&mut out, b"tokenizer.ggml.eos_token_id");
    out.extend(4_u32.to_le_bytes());
    out.extend(0_u32.to_le_bytes());
    out
}

/// The dialects' control tokens.
pub(crate) const MARKS: [&str; 42] = words(
    "<tool_call> </tool_call> <think> </think> [TOOL_CALLS] [ARGS] [THINK] [/THINK] <|channel|> \
     <|message|> <|start|> <|end|> <|constrain|> <|call|> <|return|> <｜tool▁calls▁begin｜> \
     <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <|START_ACTION|> \
     <|END_ACTION|> <arg_key> </arg_key> <arg_value> </arg_value> <minimax:tool_call> \
     </minimax:tool_call> <|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> \
     <|tool_call_argument_begin|> <|tool_call_end|> <|tools_prefix|> <|tools_suffix|> <|tool_call|> \
     <TOOLCALL> <|tool_call> <tool_call|> <|channel> <channel|> <|\"|>",
);

const MODEL: &[u8] = include_bytes!("../../models/tale-5.8m-Q4_K_M.gguf");
