//! Encodes a text on demand and reports the time: our side of `tests/tools/tokenizer_speed.py`, which alternates it
//! with another tokenizer.
//!
//! ```sh
//! cargo run --release -p sluice-tests --example tokenizer_speed -- MODEL.gguf TEXT [REPEATS]
//! ```
//!
//! With a number of repeats, encodes that often and prints the median. Without, every line on
//! standard input is one encoding, answered by seconds and the number of tokens; a line that is
//! not empty names the file that takes the tokens, as little-endian 32-bit integers.

use core::error::Error;
use std::io::{BufRead as _, Write as _};
use std::time::Instant;

use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::{EncodeOptions, Tokenizer, plan};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, text, repeats @ ..] = args.as_slice() else {
        return Err("usage: tokenizer_speed MODEL.gguf TEXT [REPEATS]".into());
    };
    let file = std::fs::read(model)?;
    let text = std::fs::read_to_string(text)?;
    let gguf = Gguf::parse(&file, file.len() as u64)?;
    let mut memory = vec![0; plan(&gguf)?.words];
    let tokenizer = Tokenizer::new(&gguf, &mut memory)?;
    let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
    let mut out = vec![0; tokenizer.max_tokens(text.len())];
    let mut encode = |path: &str| -> Result<(f64, usize), Box<dyn Error>> {
        let start = Instant::now();
        let options = EncodeOptions::default();
        let ids = tokenizer.encode(&text, options, &mut workspace, &mut out)?;
        let seconds = start.elapsed().as_secs_f64();
        if !path.is_empty() {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            std::fs::write(path, bytes)?;
        }
        Ok((seconds, ids.len()))
    };
    let mut stdout = std::io::stdout();
    if let [repeats] = repeats {
        let repeats: usize = repeats.parse()?;
        let mut times = Vec::new();
        let mut count = 0;
        for _ in 0..repeats.max(1) {
            let (seconds, tokens) = encode("")?;
            times.push(seconds);
            count = tokens;
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        #[expect(clippy::cast_precision_loss, reason = "megabytes, for show")]
        let rate = text.len() as f64 / median / 1e6;
        let line = format!(
            "{model}: {count} tokens, {:.2} ms, {rate:.1} MB/s",
            median * 1e3
        );
        writeln!(stdout, "{line}")?;
        return Ok(());
    }
    for line in std::io::stdin().lock().lines() {
        let (seconds, tokens) = encode(&line?)?;
        writeln!(stdout, "{seconds} {tokens}")?;
        stdout.flush()?;
    }
    Ok(())
}
