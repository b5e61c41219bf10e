//! What the gate reads.

use super::accepted;
use sluice_gate::source::{Source, SourceChannel, SourceFormat};

/// A WAV file for the gate.
pub fn wav(file: &[u8]) {
    samples(file, &SourceFormat::Wav);
}

/// A table for the gate: its only column, one by its place, one by its name.
pub fn csv(file: &[u8]) {
    for column in [None, Some("2"), Some("v")] {
        let column = column.map(str::to_owned);
        samples(file, &SourceFormat::Csv { column });
    }
}

/// Samples of PhysioNet's format 212 for the gate; the first byte is the number of channels.
pub fn wfdb(file: &[u8]) {
    let Some((n, file)) = file.split_first() else {
        return;
    };
    let channels = usize::from(*n % 4) + 1;
    samples(file, &SourceFormat::Wfdb212 { channels });
}

/// Reads all samples twice, as the mean of the channels and from the first channel: the counts have to be equal.
fn samples(file: &[u8], format: &SourceFormat) {
    let counts = [SourceChannel::Mean, SourceChannel::One(0)].map(|channel| {
        let reader = Box::new(std::io::Cursor::new(file.to_vec()));
        let mut source = accepted(Source::new(reader, format, channel))?;
        let (mut n, mut out) = (0, Vec::new());
        while accepted(source.read(&mut out)).unwrap_or(false) {
            n += out.len();
            out.clear();
        }
        n += out.len();
        // The shortest sample is a number and its separator, or half of three bytes.
        assert!(n <= file.len(), "{n} samples of {} bytes", file.len());
        Some(n)
    });
    assert_eq!(counts[0], counts[1], "samples of a channel");
}
