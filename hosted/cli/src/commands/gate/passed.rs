//! The passing frames, as a file.

use super::has_ending;
use crate::outcome::UsageError;
use anyhow::Context as _;
use core::fmt::Write as _;
use sluice::file::OutputFile;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceFormat {
    /// f32 in a RIFF WAVE file: the samples as processed by the gate.
    Wav,
    Csv,
    F32,
}

/// Appears under its name once it is complete.
#[derive(Debug)]
pub(super) struct PassedFile {
    file: OutputFile,
    format: SourceFormat,
    rate: u32,
    at: u64,
    bytes: Vec<u8>,
}

const WAV_HEADER_LEN: u64 = 44;

impl PassedFile {
    pub(super) fn create(path: &Path, overwrite: bool, rate: Option<u32>) -> anyhow::Result<Self> {
        let format = match () {
            () if has_ending(path, &["wav"]) => SourceFormat::Wav,
            () if has_ending(path, &["csv"]) => SourceFormat::Csv,
            () if path.extension().is_none() || has_ending(path, &["f32", "raw"]) => {
                SourceFormat::F32
            }
            () => {
                let message = format!(
                    "--out {}: unknown extension (expected .wav, .csv, .f32 or .raw)",
                    path.display()
                );
                return Err(UsageError(message).into());
            }
        };
        Ok(Self {
            file: OutputFile::create(path, overwrite)?,
            format,
            rate: rate.unwrap_or(1),
            at: if format == SourceFormat::Wav {
                WAV_HEADER_LEN
            } else {
                0
            },
            bytes: Vec::new(),
        })
    }

    pub(super) fn write(&mut self, frame: &[f32]) -> anyhow::Result<()> {
        match self.format {
            SourceFormat::Csv => {
                let mut text = String::new();
                for x in frame {
                    writeln!(text, "{x}").context("formatting a number")?;
                }
                self.bytes.extend(text.into_bytes());
            }
            SourceFormat::Wav | SourceFormat::F32 => {
                self.bytes
                    .extend(frame.iter().flat_map(|x| x.to_le_bytes()));
            }
        }
        if self.bytes.len() >= 1 << 20 {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.file.write_at(self.at, &self.bytes)?;
        self.at += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        self.flush()?;
        if self.format == SourceFormat::Wav {
            self.file.write_at(0, &self.wav_header()?)?;
        }
        Ok(self.file.finish()?)
    }

    fn wav_header(&self) -> anyhow::Result<Vec<u8>> {
        let data_len = u32::try_from(self.at - WAV_HEADER_LEN);
        let data_len = data_len.ok().filter(|&len| len < u32::MAX - 64);
        let data_len =
            data_len.context("the passing frames exceed the maximum size of a WAV file (4 GiB)")?;
        let mut header = b"RIFF".to_vec();
        header.extend((data_len + 36).to_le_bytes());
        header.extend(b"WAVEfmt \x10\0\0\0");
        // IEEE float, one channel.
        header.extend([3, 0, 1, 0]);
        header.extend(self.rate.to_le_bytes());
        header.extend((self.rate.saturating_mul(4)).to_le_bytes());
        // Bytes and bits per sample.
        header.extend([4, 0, 32, 0]);
        header.extend(b"data");
        header.extend(data_len.to_le_bytes());
        Ok(header)
    }
}
