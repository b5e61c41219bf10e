//! A picture of a stream: its samples, what was measured of each frame, and which frames passed.
//!
//! Of fixed size whatever the stream's length: neighbouring columns are merged, two into one, each
//! time that there are too many.

use core::fmt::Write as _;
use sluice::file::{OutputError, OutputFile};
use sluice_core::gate::{Decision, Verdict};
use std::path::Path;

/// Maximum number of columns kept.
const COLUMNS_MAX: usize = 4096;

/// Values merged over equal stretches of a stream.
#[derive(Debug)]
struct Columns<T> {
    columns: Vec<T>,
    /// Items in a column.
    per_column: u64,
    /// Items in the last column.
    n_last: u64,
    merge: fn(T, T) -> T,
}

impl<T: Copy> Columns<T> {
    const fn new(merge: fn(T, T) -> T) -> Self {
        Self {
            columns: Vec::new(),
            per_column: 1,
            n_last: 0,
            merge,
        }
    }

    fn add(&mut self, item: T) {
        match self.columns.last_mut() {
            Some(last) if self.n_last < self.per_column => {
                *last = (self.merge)(*last, item);
                self.n_last += 1;
            }
            _ => {
                if self.columns.len() == COLUMNS_MAX {
                    let merge = self.merge;
                    let pairs = self.columns.as_chunks::<2>().0.iter();
                    self.columns = pairs.map(|&[a, b]| merge(a, b)).collect();
                    self.per_column *= 2;
                }
                self.columns.push(item);
                self.n_last = 1;
            }
        }
    }

    /// Columns, the last one counted by how full it is.
    #[expect(clippy::cast_precision_loss, reason = "a place on paper")]
    fn width(&self) -> f64 {
        let last = 1.0 - self.n_last as f64 / self.per_column as f64;
        (self.columns.len() as f64 - last).max(f64::MIN_POSITIVE)
    }
}

/// The values of a frame that are drawn.
#[derive(Clone, Copy, Debug)]
struct Judged {
    value: f32,
    level: f32,
    verdict: Verdict,
}

/// A picture in the making, of a file that is complete under its name or not there.
#[derive(Debug)]
pub struct Plot {
    file: OutputFile,
    frame_len: usize,
    /// Smallest and largest sample of a sixteenth of a frame.
    signal: Columns<(f32, f32)>,
    judged: Columns<Judged>,
}

impl Plot {
    /// Of frames of `frame_len` samples, to be written to `path`.
    ///
    /// # Errors
    /// The file cannot be made, or is there and is not to be replaced.
    pub fn create(path: &Path, overwrite: bool, frame_len: u32) -> Result<Self, OutputError> {
        Ok(Self {
            file: OutputFile::create(path, overwrite)?,
            frame_len: frame_len as usize,
            signal: Columns::new(|a, b| (a.0.min(b.0), a.1.max(b.1))),
            judged: Columns::new(|a, b| Judged {
                value: a.value.max(b.value),
                level: a.level.max(b.level),
                verdict: if (a.verdict as u8) < b.verdict as u8 {
                    a.verdict
                } else {
                    b.verdict
                },
            }),
        })
    }

    /// Adds a frame and what was decided of it.
    pub fn add(&mut self, frame: &[f32], decision: &Decision) {
        for part in frame.chunks(self.frame_len.div_ceil(16)) {
            let finite = part.iter().copied().filter(|x| x.is_finite());
            let range = finite.fold(None, |range: Option<(f32, f32)>, x| {
                let (min, max) = range.unwrap_or((x, x));
                Some((min.min(x), max.max(x)))
            });
            self.signal.add(range.unwrap_or((0.0, 0.0)));
        }
        self.judged.add(Judged {
            value: decision.value.filter(|x| x.is_finite()).unwrap_or(0.0),
            level: decision.level,
            verdict: decision.verdict,
        });
    }

    /// Writes the picture, an SVG; `measure` is what its lower half is called.
    ///
    /// # Errors
    /// The file cannot be written.
    ///
    /// # Panics
    /// Never: a text takes whatever is written to it.
    pub fn finish(self, measure: &str) -> Result<(), OutputError> {
        let svg = self
            .svg(measure)
            .expect("a text takes whatever is written to it");
        self.file.write_at(0, svg.as_bytes())?;
        self.file.finish()
    }

    fn svg(&self, measure: &str) -> Result<String, core::fmt::Error> {
        let mut svg = String::from(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 420\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"1000\" height=\"420\" fill=\"white\"/>\n",
        );
        self.verdicts(&mut svg)?;
        self.samples(&mut svg)?;
        self.measured(&mut svg, measure)?;
        let n_frames = (self.judged.columns.len() as u64).saturating_sub(1)
            * self.judged.per_column
            + self.judged.n_last;
        writeln!(
            svg,
            "<text x=\"990\" y=\"412\" text-anchor=\"end\">{n_frames} frames of {}; \
             green: active, yellow: hang-over</text>\n</svg>",
            self.frame_len
        )?;
        Ok(svg)
    }

    /// Draws background bands where frames pass.
    fn verdicts(&self, svg: &mut String) -> core::fmt::Result {
        let step = WIDTH / self.judged.width();
        let columns = &self.judged.columns;
        let mut at = 0;
        for run in columns.chunk_by(|a, b| a.verdict == b.verdict) {
            let (from, to) = (place(at) * step, place(at + run.len()) * step);
            at += run.len();
            let colour = match run[0].verdict {
                Verdict::Active => "#c8ecc8",
                Verdict::HangOver => "#f6edb8",
                Verdict::Silent => continue,
            };
            let width = to.min(WIDTH) - from;
            writeln!(
                svg,
                "<rect x=\"{from:.2}\" y=\"20\" width=\"{width:.2}\" height=\"380\" fill=\"{colour}\"/>"
            )?;
        }
        Ok(())
    }

    fn samples(&self, svg: &mut String) -> core::fmt::Result {
        let columns = &self.signal.columns;
        let largest = columns
            .iter()
            .fold(0f32, |most, (min, max)| most.max(-min).max(*max));
        let smallest = columns.iter().map(|c| c.0).reduce(f32::min).unwrap_or(0.0);
        let highest = columns.iter().map(|c| c.1).reduce(f32::max).unwrap_or(0.0);
        let scale = Scale::new(smallest, highest, 20.0, 220.0);
        let step = WIDTH / self.signal.width();
        svg.push_str("<path stroke=\"#24588a\" stroke-width=\"0.6\" fill=\"none\" d=\"");
        for (i, (min, max)) in columns.iter().enumerate() {
            let x = (place(i) + 0.5) * step;
            write!(
                svg,
                "M{x:.2} {:.1}V{:.1}",
                scale.y(*min),
                scale.y(*max) - 0.3
            )?;
        }
        writeln!(
            svg,
            "\"/>\n<text x=\"4\" y=\"14\">signal, up to {largest}</text>"
        )
    }

    fn measured(&self, svg: &mut String, measure: &str) -> core::fmt::Result {
        let columns = &self.judged.columns;
        let most = columns.iter().fold(0f32, |most, c| most.max(c.value));
        // A threshold far above all values would hide them.
        let level = columns.iter().fold(0f32, |most, c| most.max(c.level));
        let most = most.max(level.min(2.0 * most));
        let scale = Scale::new(0.0, most, 240.0, 400.0);
        let step = WIDTH / self.judged.width();
        for (colour, pick) in [
            ("#222222", (|c: &Judged| c.value) as fn(&Judged) -> f32),
            ("#c03020", |c: &Judged| c.level),
        ] {
            write!(
                svg,
                "<path stroke=\"{colour}\" stroke-width=\"0.8\" fill=\"none\" d=\""
            )?;
            for (i, column) in columns.iter().enumerate() {
                let (from, to) = (place(i) * step, (place(i + 1) * step).min(WIDTH));
                let command = if i == 0 { 'M' } else { 'L' };
                let y = scale.y(pick(column).min(most));
                write!(svg, "{command}{from:.2} {y:.1}H{to:.2}")?;
            }
            svg.push_str("\"/>\n");
        }
        writeln!(
            svg,
            "<text x=\"4\" y=\"236\">{measure}, up to {most}; red: the threshold in force</text>"
        )
    }
}

const WIDTH: f64 = 1000.0;

#[expect(clippy::cast_precision_loss, reason = "a place on paper")]
const fn place(column: usize) -> f64 {
    column as f64
}

/// From values to places on paper, top down.
struct Scale {
    low: f64,
    per_unit: f64,
    bottom: f64,
}

impl Scale {
    fn new(low: f32, high: f32, top: f64, bottom: f64) -> Self {
        let range = f64::from(high) - f64::from(low);
        Self {
            low: f64::from(low),
            per_unit: if range > 0.0 {
                (bottom - top) / range
            } else {
                0.0
            },
            bottom,
        }
    }

    fn y(&self, value: f32) -> f64 {
        self.bottom - (f64::from(value) - self.low) * self.per_unit
    }
}
