//! Signals for the gate's tests.

use sluice_gate::source::{Source, SourceChannel, SourceFormat};
use std::fs::File;
use std::path::PathBuf;

/// `n` numbers from -1 to 1: the upper 24 bits of splitmix64.
#[must_use]
pub fn uniform(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) >> 40
    };
    (0..n)
        .map(|_| next() as f32 / 16_777_216.0 * 2.0 - 1.0)
        .collect()
}

/// 11 s of speech, 16 kHz; prints that it was skipped if the file is absent.
#[must_use]
pub fn speech() -> Option<Vec<f32>> {
    read("jfk.wav", &SourceFormat::Wav, SourceChannel::Mean)
}

/// The first channel of an electrocardiogram, 30 minutes at 360 Hz, -1 to 1 for the converter's range; prints that it
/// was skipped if the file is absent.
#[must_use]
pub fn ecg() -> Option<Vec<f32>> {
    read(
        "100.dat",
        &SourceFormat::Wfdb212 { channels: 2 },
        SourceChannel::One(0),
    )
}

/// A file of the recordings' folder.
#[must_use]
pub fn recording(name: &str) -> Option<PathBuf> {
    crate::shared(&format!("data/{name}"))
}

fn read(name: &str, format: &SourceFormat, channel: SourceChannel) -> Option<Vec<f32>> {
    let file = File::open(recording(name)?).expect("it is there");
    let mut source = Source::new(Box::new(file), format, channel).expect("its header is right");
    let mut samples = Vec::new();
    while source.read(&mut samples).expect("it is whole") {}
    Some(samples)
}
