//! The program `sluice` from the outside: its output, messages and exit codes.

mod bench;
mod chat;
mod chat_parts;
mod constraints;
mod convert;
mod convert_activations;
mod convert_class;
mod convert_positions;
mod convert_says;
mod convert_tiktoken;
mod convert_tokens;
mod embed;
mod experts;
mod families;
mod gate;
mod gguf_split;
mod hash;
mod hints;
mod hot;
mod imatrix;
mod import;
mod input;
mod inspect;
mod interrupt;
mod killed;
mod lanes;
mod launch;
mod lora;
mod lora_merge;
mod lora_says;
mod perplexity;
mod predictor;
mod presets;
mod prompt_cache;
mod prompts;
mod pty;
mod pull;
mod quantize;
mod readme;
mod rerank;
mod run;
mod saved_again;
mod serve;
#[expect(
    unreachable_pub,
    reason = "a public function of the crate `sluice-tests`"
)]
#[path = "../../../../tests/src/shared.rs"]
mod shared;
mod shell;
mod shrunk;
mod slc;
mod sparse;
#[path = "../../../pull/tests/stand_in/mod.rs"]
mod stand_in;
mod support;
#[cfg(feature = "train")]
mod train;
