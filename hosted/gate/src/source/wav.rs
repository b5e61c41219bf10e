//! The header of a WAV file: RIFF, and RF64 for files beyond 4 GiB (EBU Tech 3306).

use super::{Encoding, SignalError, at_end};
use std::io::{self, Read};

/// What is known when the data begins.
pub(super) struct Wav {
    pub(super) encoding: Encoding,
    pub(super) channels: usize,
    /// Samples a second of each channel.
    pub(super) rate: u32,
    /// Bytes of samples; unknown in the header of a pipe.
    pub(super) data_len: Option<u64>,
}

/// Contents of a format chunk.
type SourceFormat = (Encoding, usize, u32);

impl Wav {
    /// Reads up to the data.
    ///
    /// # Errors
    /// Not a WAV file, not a supported format, or a header without an end.
    pub(super) fn read(reader: &mut dyn Read) -> Result<Self, SignalError> {
        let mut head = [0; 12];
        at_end(reader.read_exact(&mut head), "shorter than a header")?;
        check_kind(&head)?;
        let (mut format, mut long_len) = (None, None);
        let mut left = HEADER_LEN_MAX;
        loop {
            let mut chunk = [0; 8];
            at_end(reader.read_exact(&mut chunk), "it contains no data")?;
            let short_len = u32::from_le_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]);
            let len = u64::from(short_len);
            if &chunk[..4] == b"data" {
                let missing = SignalError::NotWav("the data comes before the format");
                let (encoding, channels, rate) = format.ok_or(missing)?;
                return Ok(Self {
                    encoding,
                    channels,
                    rate,
                    data_len: data_len(short_len, long_len),
                });
            }
            let padded = len + len % 2;
            let endless = SignalError::NotWav("no data chunk within the first 64 MiB");
            left = left.checked_sub(8 + padded).ok_or(endless)?;
            match &chunk[..4] {
                b"fmt " => format = Some(read_format(reader, padded)?),
                b"ds64" => long_len = Some(read_long_len(reader, padded)?),
                _ => skip(reader, padded, "a chunk before the data is truncated")?,
            }
        }
    }
}

/// # Errors
/// The file is not of a supported kind.
fn check_kind(head: &[u8; 12]) -> Result<(), SignalError> {
    let is_known = matches!(&head[..4], b"RIFF" | b"RF64" | b"BW64") && &head[8..] == b"WAVE";
    let name = match &head[..4] {
        _ if is_known => return Ok(()),
        b"RIFX" => "it is RIFX (big endian)",
        b"riff" => "it is Sony Wave64",
        b"FORM" => "it is AIFF",
        b"fLaC" => "it is FLAC",
        b"OggS" => "it is Ogg",
        [b'I', b'D', b'3', _] => "it is MP3",
        b"caff" => "it is Apple's Core Audio Format",
        _ => "it does not begin with RIFF and WAVE",
    };
    Err(SignalError::NotWav(name))
}

/// The length of the data, if a header gives it.
fn data_len(short: u32, long: Option<u64>) -> Option<u64> {
    match (short, long) {
        (u32::MAX, Some(len)) => (len != 0 && len != u64::MAX).then_some(len),
        _ => is_known(short).then_some(u64::from(short)),
    }
}

/// A writer to a pipe does not know the length. It sets 0, the maximum, or half of it, less the header's length or
/// rounded down (sox 0x7ffff000, arecord 0x7fffff00, GStreamer 0x7fff0000).
fn is_known(len: u32) -> bool {
    let near_half = (0x7ffe_0000..=0x8001_0000).contains(&len);
    len != 0 && len < u32::MAX - 0xffff && !near_half
}

fn read_format(reader: &mut dyn Read, padded: u64) -> Result<SourceFormat, SignalError> {
    let cut = "its format chunk is truncated";
    let mut bytes = [0; 40];
    let taken = usize::try_from(padded).map_or(bytes.len(), |len| len.min(bytes.len()));
    at_end(reader.read_exact(&mut bytes[..taken]), cut)?;
    skip(reader, padded - taken as u64, cut)?;
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let (mut tag, channels, block_len, bits) = (word(0), word(2), word(12), word(14));
    // WAVE_FORMAT_EXTENSIBLE: the tag is the beginning of a GUID.
    if tag == 0xfffe {
        tag = word(24);
    }
    let encoding = match (tag, bits) {
        (1, 8) => Encoding::U8,
        (1, 16) => Encoding::I16,
        (1, 24) => Encoding::I24,
        (1, 32) => Encoding::I32,
        (3, 32) => Encoding::F32,
        (3, 64) => Encoding::F64,
        _ => return Err(SignalError::WavFormat { tag, bits }),
    };
    if taken < 16 || channels == 0 {
        let cut = "its format chunk is truncated or has no channels";
        return Err(SignalError::NotWav(cut));
    }
    // 24 bits in four bytes, say, would be read as other samples.
    if block_len != 0 && usize::from(block_len) != usize::from(channels) * encoding.unit() {
        return Err(SignalError::WavBlock {
            block_len,
            channels,
            bits,
        });
    }
    let rate = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    Ok((encoding, usize::from(channels), rate))
}

/// The length of the data in RF64's chunk of long sizes.
fn read_long_len(reader: &mut dyn Read, padded: u64) -> Result<u64, SignalError> {
    let cut = "its ds64 chunk is truncated";
    let mut sizes = [0; 16];
    at_end(reader.read_exact(&mut sizes), cut)?;
    let rest = padded.checked_sub(16).ok_or(SignalError::NotWav(cut))?;
    skip(reader, rest, cut)?;
    Ok(u64::from_le_bytes(
        sizes[8..].try_into().unwrap_or_default(),
    ))
}

/// # Errors
/// Reading fails, or fewer than `n` bytes are left: `cut`.
fn skip(reader: &mut dyn Read, n: u64, cut: &'static str) -> Result<(), SignalError> {
    let skipped = io::copy(&mut reader.take(n), &mut io::sink())?;
    if skipped < n {
        return Err(SignalError::NotWav(cut));
    }
    Ok(())
}

/// Maximum bytes before the data: pictures and tags are shorter, endless pipes are not.
const HEADER_LEN_MAX: u64 = 64 << 20;
