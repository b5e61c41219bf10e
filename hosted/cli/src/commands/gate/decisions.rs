//! One line per frame.

use core::fmt::Write as _;
use core::time::Duration;
use sluice::core::gate::{Decision, Feature};
use std::io::{self, BufWriter, Stdout, Write as _};
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceFormat {
    Csv,
    Jsonl,
    None,
}

/// Lines on stdout, until the reader closes the pipe.
#[derive(Debug)]
pub(super) struct Decisions {
    format: SourceFormat,
    out: BufWriter<Stdout>,
    line: String,
    closed: bool,
    flushed: Instant,
}

/// Decisions of a live stream are buffered for at most this time plus one frame.
const FLUSH: Duration = Duration::from_millis(100);

impl Decisions {
    pub(super) fn new(format: &str, measure: String) -> Self {
        let format = match format {
            "csv" => SourceFormat::Csv,
            "jsonl" => SourceFormat::Jsonl,
            _ => SourceFormat::None,
        };
        let mut line = String::new();
        if format == SourceFormat::Csv {
            let measure = match measure.as_str() {
                // These names are taken by columns of the table.
                "max_abs" | "scaling" => "value".into(),
                name if Feature::ALL.iter().any(|feature| feature.name() == name) => "value".into(),
                _ => measure,
            };
            line = format!("frame,verdict,max_abs,{measure},level,scaling");
            for feature in Feature::ALL {
                line.push(',');
                line.push_str(feature.name());
            }
            line.push_str(",padded\n");
        }
        Self {
            format,
            out: BufWriter::new(io::stdout()),
            line,
            closed: format == SourceFormat::None,
            flushed: Instant::now(),
        }
    }

    /// Whether the reader has closed the pipe, or nothing is to be printed.
    pub(super) const fn is_closed(&self) -> bool {
        self.closed && !matches!(self.format, SourceFormat::None)
    }

    /// Writes the line of a frame; `n_zeros` of its samples pad it.
    pub(super) fn write(
        &mut self,
        index: u64,
        decision: &Decision,
        n_zeros: usize,
    ) -> anyhow::Result<()> {
        if self.closed {
            return Ok(());
        }
        match self.format {
            SourceFormat::Csv => csv(&mut self.line, index, decision, n_zeros)?,
            SourceFormat::Jsonl => json(&mut self.line, index, decision, n_zeros)?,
            SourceFormat::None => {}
        }
        let mut written = self.out.write_all(self.line.as_bytes());
        self.line.clear();
        if self.flushed.elapsed() >= FLUSH {
            written = written.and_then(|()| self.out.flush());
            self.flushed = Instant::now();
        }
        self.settle(written)
    }

    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        if self.closed {
            return Ok(());
        }
        // The header of a table without frames.
        let written = self.out.write_all(self.line.as_bytes());
        let written = written.and_then(|()| self.out.flush());
        self.settle(written)
    }

    fn settle(&mut self, written: io::Result<()>) -> anyhow::Result<()> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            result => {
                Ok(result.map_err(|error| anyhow::anyhow!("cannot write to stdout: {error}"))?)
            }
        }
    }
}

fn csv(line: &mut String, index: u64, decision: &Decision, n_zeros: usize) -> core::fmt::Result {
    let (verdict, max_abs) = (decision.verdict.name(), decision.max_abs);
    write!(line, "{index},{verdict},{max_abs},")?;
    if let Some(value) = decision.value {
        write!(line, "{value}")?;
    }
    write!(line, ",{},{}", decision.level, decision.scaling)?;
    for i in 0..Feature::ALL.len() {
        line.push(',');
        if let Some(features) = &decision.features {
            write!(line, "{}", features.0[i])?;
        }
    }
    writeln!(line, ",{n_zeros}")
}

fn json(line: &mut String, index: u64, decision: &Decision, n_zeros: usize) -> core::fmt::Result {
    let verdict = decision.verdict.name();
    write!(
        line,
        "{{\"frame\":{index},\"verdict\":\"{verdict}\",\"max_abs\":"
    )?;
    number(line, Some(decision.max_abs))?;
    line.push_str(",\"value\":");
    number(line, decision.value)?;
    line.push_str(",\"level\":");
    number(line, Some(decision.level))?;
    line.push_str(",\"scaling\":");
    number(line, Some(decision.scaling))?;
    if let Some(features) = &decision.features {
        for feature in Feature::ALL {
            write!(line, ",\"{}\":", feature.name())?;
            number(line, Some(features[feature]))?;
        }
    }
    writeln!(line, ",\"padded\":{n_zeros}}}")
}

/// A number. JSON cannot express infinity and NaN.
fn number(line: &mut String, x: Option<f32>) -> core::fmt::Result {
    match x {
        Some(x) if x.is_finite() => write!(line, "{x}"),
        Some(x) => write!(line, "\"{x}\""),
        None => line.write_str("null"),
    }
}
