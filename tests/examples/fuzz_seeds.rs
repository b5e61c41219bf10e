//! Writes the inputs that fuzzing starts from into `fuzz/corpus`, keeping existing files:
//! `cargo run --release -p sluice-tests --example fuzz_seeds`.

use sluice_tests::fuzz::{TARGETS, seeds};
use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus"));
    for target in TARGETS {
        let folder = corpus.join(target.name);
        fs::create_dir_all(&folder)?;
        for (i, bytes) in seeds(target.name).iter().enumerate() {
            fs::write(folder.join(format!("seed-{i:02}")), bytes)?;
        }
    }
    Ok(())
}
