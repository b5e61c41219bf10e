//! Samples from files and pipes: WAV, raw numbers, CSV columns, WFDB records.
//!
//! Integers become -1 to 1 (divided by the power of two at the end of their range). Several
//! channels are one after the other in every format but CSV; one of them is taken, or their mean.
//! WAV is read here and not by a library because the header of a live pipe does not say how long
//! the data is, which the usual one takes for an error.

mod csv;
mod wav;

use csv::Csv;
use sluice_core::team::StopFlag;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd as _;
use wav::Wav;

/// How samples are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceFormat {
    /// RIFF WAVE or RF64: integers of 8, 16, 24 or 32 bits, floats of 32 or 64.
    Wav,
    /// f32, little endian.
    F32 {
        /// Interleaved channels.
        channels: usize,
    },
    /// i16, little endian.
    I16 {
        /// Interleaved channels.
        channels: usize,
    },
    /// PhysioNet's format 212: two samples of 12 bits in three bytes.
    Wfdb212 {
        /// Interleaved channels.
        channels: usize,
    },
    /// Text lines of numbers between commas, semicolons, tabs or spaces: the same in all lines.
    Csv {
        /// The column, by its name in the first line or counted from 1; none where there is one.
        column: Option<String>,
    },
}

/// Which of several channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SourceChannel {
    /// The mean of all. Signals in opposite phase cancel out.
    #[default]
    Mean,
    /// One, counted from 0.
    One(usize),
}

/// Why samples cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SignalError {
    #[error("cannot read: {0}")]
    Read(#[from] io::Error),
    #[error("not a WAV file: {0}")]
    NotWav(&'static str),
    #[error(
        "WAV format {tag:#x} of {bits} bits is not supported (PCM of 8 to 32, floats of 32 or 64 are)"
    )]
    WavFormat { tag: u16, bits: u16 },
    #[error(
        "blocks of {block_len} bytes for {channels} channels of {bits} bits are not supported: \
         samples have no bytes between them"
    )]
    WavBlock {
        block_len: u16,
        channels: u16,
        bits: u16,
    },
    #[error("channel {channel} does not exist: there are {channels}")]
    Channel { channel: usize, channels: usize },
    #[error("ends {bytes} bytes into a sample")]
    Partial { bytes: usize },
    #[error("ends after {samples} of the {channels} channels' samples")]
    PartialTuple { samples: usize, channels: usize },
    #[error("truncated: {bytes} bytes of the samples announced by the header are missing")]
    CutShort { bytes: u64 },
    #[error("column {name:?} does not exist; the first line is {line:?}")]
    NoColumn { name: String, line: String },
    #[error("line {line}: {text:?} is not a number")]
    NotANumber { line: usize, text: String },
    #[error("line {line} has no column {column}")]
    ShortLine { line: usize, column: usize },
    #[error(
        "line {line} has {n} fields, but the first line has {n_columns}: fields must be separated by one character, \
         and decimals need a point"
    )]
    LongLine {
        line: usize,
        n: usize,
        n_columns: usize,
    },
    #[error("there are {n} columns ({line:?}): select one by name or by number, counted from 1")]
    WhichColumn { n: usize, line: String },
    #[error("line {line} is not UTF-8")]
    NotText { line: usize },
    #[error("line {line} contains a carriage return: lines end with a newline, or with both")]
    LoneReturn { line: usize },
    #[error("line {line} exceeds 1 MiB")]
    EndlessLine { line: usize },
}

/// A stream of samples.
pub struct Source {
    kind: Kind,
    /// Samples a second, if the format gives it.
    rate: Option<u32>,
}

enum Kind {
    Binary(Binary),
    Csv(Csv),
}

impl core::fmt::Debug for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Source")
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Begins to read: headers, if the format has any.
    ///
    /// # Errors
    /// [`SignalError`].
    pub fn new(
        mut reader: Box<dyn Read + Send>,
        format: &SourceFormat,
        channel: SourceChannel,
    ) -> Result<Self, SignalError> {
        let (encoding, channels, left, rate) = match format {
            SourceFormat::Csv { column } => {
                let csv = Csv::new(reader, column.as_deref())?;
                return Ok(Self {
                    kind: Kind::Csv(csv),
                    rate: None,
                });
            }
            SourceFormat::Wav => {
                let wav = Wav::read(&mut reader)?;
                (wav.encoding, wav.channels, wav.data_len, Some(wav.rate))
            }
            SourceFormat::F32 { channels } => (Encoding::F32, *channels, None, None),
            SourceFormat::I16 { channels } => (Encoding::I16, *channels, None, None),
            SourceFormat::Wfdb212 { channels } => (Encoding::Wfdb212, *channels, None, None),
        };
        if let SourceChannel::One(channel) = channel
            && channel >= channels
        {
            return Err(SignalError::Channel { channel, channels });
        }
        let binary = Binary {
            reader,
            encoding,
            left,
            bytes: vec![0; 1 << 16],
            n_bytes: 0,
            channels: channels.max(1),
            channel,
            at: 0,
            sum: 0.0,
        };
        Ok(Self {
            kind: Kind::Binary(binary),
            rate,
        })
    }

    /// Samples a second, if the format gives it.
    pub const fn rate(&self) -> Option<u32> {
        self.rate
    }

    /// Appends the samples of one read of the input to `out`, and returns whether there may be more.
    ///
    /// # Errors
    /// [`SignalError`]. Samples before the error are in `out`.
    pub fn read(&mut self, out: &mut Vec<f32>) -> Result<bool, SignalError> {
        match &mut self.kind {
            Kind::Binary(binary) => binary.read(out),
            Kind::Csv(csv) => csv.read(out),
        }
    }
}

/// A file or pipe that ends when a flag is set, even if no data arrives.
#[derive(Debug)]
pub struct Interruptible {
    file: File,
    stop: &'static StopFlag,
}

impl Interruptible {
    /// Reads `file` until `stop` is set.
    pub const fn new(file: File, stop: &'static StopFlag) -> Self {
        Self { file, stop }
    }
}

impl Read for Interruptible {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.is_set() {
                return Ok(0);
            }
            let mut poll = libc::pollfd {
                fd: self.file.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry, of an open file.
            let n = unsafe { libc::poll(&raw mut poll, 1, 100) };
            // A file at its end, one that was hung up and one with an error can be read as well.
            if n > 0 {
                return self.file.read(into);
            }
            let error = io::Error::last_os_error();
            if n < 0 && error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    U8,
    I16,
    I24,
    I32,
    F32,
    F64,
    Wfdb212,
}

impl Encoding {
    /// Bytes that are decoded together.
    const fn unit(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I16 => 2,
            Self::I24 | Self::Wfdb212 => 3,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    fn decode(self, unit: &[u8], mut each: impl FnMut(f32)) {
        #[expect(clippy::cast_precision_loss, reason = "the nearest f32")]
        let scaled = |x: i32, bits: u32| x as f32 / (1u64 << (bits - 1)) as f32;
        match *unit {
            [x] => each(scaled(i32::from(x) - 128, 8)),
            [a, b] => each(scaled(i32::from(i16::from_le_bytes([a, b])), 16)),
            [a, b, c] if self == Self::Wfdb212 => {
                let extend = |x: u16| i32::from((x << 4).cast_signed() >> 4);
                let [a, b, c] = [a, b, c].map(u16::from);
                each(scaled(extend(a | (b & 0xf) << 8), 12));
                each(scaled(extend(c | (b & 0xf0) << 4), 12));
            }
            [a, b, c] => each(scaled(i32::from_le_bytes([0, a, b, c]) >> 8, 24)),
            [a, b, c, d] if self == Self::F32 => each(f32::from_le_bytes([a, b, c, d])),
            [a, b, c, d] => each(scaled(i32::from_le_bytes([a, b, c, d]), 32)),
            _ => {
                let bytes = unit.try_into().unwrap_or_default();
                #[expect(clippy::cast_possible_truncation, reason = "the nearest f32")]
                each(f64::from_le_bytes(bytes) as f32);
            }
        }
    }
}

struct Binary {
    reader: Box<dyn Read + Send>,
    encoding: Encoding,
    /// Remaining bytes of data, if the format gives their number.
    left: Option<u64>,
    bytes: Vec<u8>,
    /// Bytes of an incomplete unit.
    n_bytes: usize,
    channels: usize,
    channel: SourceChannel,
    /// The next sample's channel.
    at: usize,
    /// The sum of the channels so far.
    sum: f32,
}

impl Binary {
    /// Samples at the end that do not belong to a channel: format 212 has an even number of them.
    fn padding(&self) -> usize {
        usize::from(self.encoding == Encoding::Wfdb212)
    }

    fn read(&mut self, out: &mut Vec<f32>) -> Result<bool, SignalError> {
        let room = self.bytes.len() - self.n_bytes;
        let left = self.left.map(|left| usize::try_from(left).unwrap_or(room));
        let room = left.map_or(room, |left| room.min(left));
        let n = match self.reader.read(&mut self.bytes[self.n_bytes..][..room]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            result => result?,
        };
        if n == 0 {
            let missing = self.left.filter(|&left| left > 0);
            return match self.n_bytes {
                0 if let Some(bytes) = missing => Err(SignalError::CutShort { bytes }),
                0 if self.at > self.padding() => Err(SignalError::PartialTuple {
                    samples: self.at,
                    channels: self.channels,
                }),
                0 => Ok(false),
                bytes => Err(SignalError::Partial { bytes }),
            };
        }
        self.left = self.left.map(|left| left.saturating_sub(n as u64));
        let n_bytes = self.n_bytes + n;
        let whole = n_bytes - n_bytes % self.encoding.unit();
        #[expect(clippy::cast_precision_loss, reason = "few channels")]
        let scale = 1.0 / self.channels as f32;
        for unit in self.bytes[..whole].chunks_exact(self.encoding.unit()) {
            self.encoding.decode(unit, |x| {
                match self.channel {
                    SourceChannel::One(channel) if channel == self.at => self.sum = x,
                    SourceChannel::One(_) => {}
                    SourceChannel::Mean => self.sum += x,
                }
                self.at += 1;
                if self.at == self.channels {
                    self.at = 0;
                    let sum = core::mem::take(&mut self.sum);
                    let is_mixed = self.channel == SourceChannel::Mean && self.channels > 1;
                    out.push(if is_mixed { sum * scale } else { sum });
                }
            });
        }
        self.bytes.copy_within(whole..n_bytes, 0);
        self.n_bytes = n_bytes - whole;
        Ok(true)
    }
}

/// # Errors
/// Reading failed; at the end of the file, `message`.
fn at_end(read: io::Result<()>, message: &'static str) -> Result<(), SignalError> {
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => SignalError::NotWav(message),
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests;
