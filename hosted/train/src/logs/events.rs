//! Files of events for TensorBoard.
//!
//! A file is records of TensorFlow (`tensorflow/core/lib/io/record_writer.h`): a length of 8 bytes, its masked CRC-32C, the
//! bytes, their masked CRC-32C. Each is an `Event` (`tensorflow/core/util/event.proto`) in protobuf's encoding.

use super::error::LogError;
use super::line::LogLine;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A file of events.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Begins a file in `folder`. A run that goes on after `step` steps replaces what an earlier part of it has reported of
    /// later steps.
    pub(super) fn begin(folder: &Path, step: Option<u64>) -> Result<Self, LogError> {
        fs::create_dir_all(folder).map_err(LogError::of(folder))?;
        let (seconds, pid) = (now().floor(), std::process::id());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim().replace('/', "_");
        // A program that was started twice in a second uses the next number.
        for n in 0_u64.. {
            let name = format!("events.out.tfevents.{seconds}.{host}.{pid}.{n}");
            let path = folder.join(name);
            let created = File::options().append(true).create_new(true).open(&path);
            let file = match created {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                created => created.map_err(LogError::of(&path))?,
            };
            let mut events = Self { path, file };
            events.write(&Event::version(now()))?;
            if let Some(step) = step {
                events.write(&Event::start(now(), step + 1))?;
            }
            return Ok(events);
        }
        unreachable!("there are more names than files")
    }

    /// Adds the scalars of a line.
    pub(super) fn add(&mut self, line: &LogLine) -> Result<(), LogError> {
        self.write(&Event::scalars(now(), line))
    }

    fn write(&mut self, event: &Event) -> Result<(), LogError> {
        let written = self.file.write_all(&record(&event.0));
        written.map_err(LogError::of(&self.path))
    }
}

/// A message in protobuf's encoding.
#[derive(Default)]
struct Event(Vec<u8>);

impl Event {
    fn at(wall_time: f64) -> Self {
        let mut event = Self::default();
        event.key(WALL_TIME, 1);
        event.0.extend(wall_time.to_le_bytes());
        event
    }

    /// The first event of a file.
    fn version(wall_time: f64) -> Self {
        Self::at(wall_time).text(FILE_VERSION, b"brain.Event:2")
    }

    /// TensorBoard drops what it has of this step and later ones.
    fn start(wall_time: f64, step: u64) -> Self {
        let start = Self::default().number(STATUS, START);
        let event = Self::at(wall_time).number(STEP, step);
        event.text(SESSION_LOG, &start.0)
    }

    fn scalars(wall_time: f64, line: &LogLine) -> Self {
        let own = line
            .values
            .iter()
            .map(|(metric, value)| (metric.tag(), *value));
        let mut summary = Self::default();
        for (tag, value) in own.chain([("train/epoch".to_owned(), line.epoch)]) {
            let scalar = Self::default().text(TAG, tag.as_bytes());
            summary = summary.text(VALUE, &scalar.float(SIMPLE_VALUE, value).0);
        }
        let event = Self::at(wall_time).number(STEP, line.step);
        event.text(SUMMARY, &summary.0)
    }

    fn number(mut self, field: u64, number: u64) -> Self {
        self.key(field, 0);
        self.varint(number);
        self
    }

    fn float(mut self, field: u64, number: f64) -> Self {
        self.key(field, 5);
        #[expect(clippy::cast_possible_truncation, reason = "the field is an f32")]
        let number = number as f32;
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Text, bytes or a message.
    fn text(mut self, field: u64, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn varint(&mut self, mut number: u64) {
        loop {
            let low = number.to_le_bytes()[0] & 0x7f;
            number >>= 7;
            self.0.push(if number > 0 { low | 0x80 } else { low });
            if number == 0 {
                return;
            }
        }
    }
}

fn record(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    let sums = [&len[..], data].map(|bytes| masked(crc32c(bytes)).to_le_bytes());
    [&len[..], &sums[0], data, &sums[1]].concat()
}

/// Records may hold checksums: their own is made unlike one.
const fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: a line has few bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let feedback = if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            crc >> 1 ^ feedback
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Fields of `Event`.
const WALL_TIME: u64 = 1;
const STEP: u64 = 2;
const FILE_VERSION: u64 = 3;
const SUMMARY: u64 = 5;
const SESSION_LOG: u64 = 7;
/// Of `Summary`.
const VALUE: u64 = 1;
/// Of `Summary.Value`.
const TAG: u64 = 1;
const SIMPLE_VALUE: u64 = 2;
/// Of `SessionLog`.
const STATUS: u64 = 1;
const START: u64 = 1;

#[cfg(test)]
mod tests {
    use super::{Event, EventFile, crc32c, masked, record};
    use crate::logs::{LogLine, Metric};

    fn line() -> LogLine {
        LogLine {
            step: 300,
            epoch: 0.5,
            values: vec![(Metric::Loss, 1.25)],
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for (bytes, crc) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&descending, 0x113f_db5c),
            (b"123456789", 0xe306_9283),
        ] {
            assert_eq!(crc32c(bytes), crc);
        }
        assert_eq!(masked(0), 0xa282_ead8);
    }

    /// Written by tensorboard 2.21.0: its `RecordWriter` and its messages.
    #[test]
    fn records_are_those_of_tensorboard() {
        for (event, expected) in [
            (
                Event::version(1.5),
                "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c",
            ),
            (
                Event::scalars(1.5, &line()),
                "3500000000000000d6c55de609000000000000f83f10ac022a270a110a0a747261696e2f6c6f7373150000a03f0a120a0b\
                 747261696e2f65706f6368150000003f1c1d74ab",
            ),
            (
                Event::start(1.5, 301),
                "100000000000000095fbfe1809000000000000f83f10ad023a020801d17949d4",
            ),
        ] {
            assert_eq!(hex(&record(&event.0)), expected);
        }
    }

    /// With `SLUICE_EVENTS=FOLDER` the files stay there, for TensorBoard.
    #[test]
    fn a_run_that_goes_on_has_a_file_of_its_own() {
        let name = format!("sluice-events-{}", std::process::id());
        let kept = std::env::var_os("SLUICE_EVENTS");
        let folder = std::env::temp_dir().join(name);
        let folder = kept.clone().map_or(folder, std::path::PathBuf::from);
        for step in [None, Some(200)] {
            let mut events = EventFile::begin(&folder, step).unwrap();
            for step in [100, 200, 300] {
                let line = LogLine { step, ..line() };
                events.add(&line).unwrap();
            }
        }
        let files = std::fs::read_dir(&folder).unwrap();
        let mut lens: Vec<_> = files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .collect();
        lens.sort_unstable();
        assert_eq!(lens[1] - lens[0], 32, "the event that begins a session");
        if kept.is_none() {
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
}
