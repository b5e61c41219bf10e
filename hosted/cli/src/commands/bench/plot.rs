//! `--plot`: the roofline with all tests, and latencies by percentile, as one SVG image.

use super::row::Row;
use anyhow::Context as _;
use core::fmt::Write as _;
use sluice::file::OutputFile;
use std::path::Path;

/// Checks that the image can be written, before hours of measuring.
///
/// # Errors
/// The path is a folder or a model, or its folder does not exist.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    OutputFile::create(path, true).map(drop).context("--plot")
}

/// Writes the image.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let output = OutputFile::create(path, true)?;
    output.write_at(0, picture(rows).as_bytes())?;
    Ok(output.finish()?)
}

/// A panel of the image; its axes run from the first to the last value of `x` and `y`.
struct Panel {
    left: f64,
    x: (f64, f64),
    y: (f64, f64),
    is_y_log: bool,
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 360.0;
const TOP: f64 = 40.0;
const COLOURS: [&str; 8] = [
    "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f",
];

impl Panel {
    fn x(&self, value: f64) -> f64 {
        self.left + WIDTH * part(value.log10(), self.x.0.log10(), self.x.1.log10())
    }

    fn y(&self, value: f64) -> f64 {
        let part = if self.is_y_log {
            part(value.log10(), self.y.0.log10(), self.y.1.log10())
        } else {
            part(value, self.y.0, self.y.1)
        };
        TOP + HEIGHT * (1.0 - part)
    }

    fn frame(&self, svg: &mut String, title: &str, x_title: &str, y_title: &str) {
        let (left, bottom) = (self.left, TOP + HEIGHT);
        let _ = write!(
            svg,
            "<rect x='{left:.1}' y='{TOP}' width='{WIDTH}' height='{HEIGHT}' class='f'/>\
             <text x='{left:.1}' y='{:.1}' class='t'>{title}</text>\
             <text x='{:.1}' y='{:.1}' class='c'>{x_title}</text>\
             <text transform='translate({:.1} {:.1}) rotate(-90)' class='c'>{y_title}</text>",
            TOP - 12.0,
            left + WIDTH / 2.0,
            bottom + 38.0,
            left - 48.0,
            TOP + HEIGHT / 2.0,
        );
    }

    fn x_mark(&self, svg: &mut String, value: f64, label: &str) {
        let x = self.x(value);
        let bottom = TOP + HEIGHT;
        let _ = write!(
            svg,
            "<path d='M{x:.1} {TOP}V{bottom}' class='g'/>\
             <text x='{x:.1}' y='{:.1}' class='c'>{label}</text>",
            bottom + 16.0
        );
    }

    fn y_mark(&self, svg: &mut String, value: f64, label: &str) {
        let (y, left) = (self.y(value), self.left);
        let _ = write!(
            svg,
            "<path d='M{left:.1} {y:.1}h{WIDTH}' class='g'/>\
             <text x='{:.1}' y='{:.1}' class='e'>{label}</text>",
            left - 6.0,
            y + 4.0
        );
    }

    fn line(&self, svg: &mut String, points: &[(f64, f64)], colour: &str) {
        let mut path = String::new();
        for (i, &(x, y)) in points.iter().enumerate() {
            let command = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", self.x(x), self.y(y));
        }
        let _ = write!(
            svg,
            "<path d='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>"
        );
    }
}

fn part(value: f64, from: f64, to: f64) -> f64 {
    ((value - from) / (to - from)).clamp(0.0, 1.0)
}

fn picture(rows: &[Row]) -> String {
    let legend = rows.len() as f64 * 18.0;
    let height = TOP + HEIGHT + 60.0 + legend;
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='1120' height='{height}' \
         font-family='sans-serif' font-size='12'><style>.f{{fill:none;stroke:#000}}\
         .g{{stroke:#ccc;fill:none}}.t{{font-size:14px;font-weight:bold}}.c{{text-anchor:middle}}\
         .e{{text-anchor:end}}</style><rect width='100%' height='100%' fill='#fff'/>"
    );
    roofline(&mut svg, rows);
    latencies(&mut svg, rows);
    for (i, row) in rows.iter().enumerate() {
        let y = TOP + HEIGHT + 60.0 + 18.0 * i as f64;
        let (mean, deviation) = row.tokens_per_second();
        let text = format!(
            "{} {} ({}, {} threads): {mean:.2} ± {deviation:.2} t/s, {}",
            row.model.description,
            row.test.name(),
            row.isa,
            row.test.setting.n_threads,
            row.limit_percent().map_or_else(
                || "probe failed".into(),
                |p| format!("{p:.1}% of the limit")
            ),
        );
        let _ = write!(
            svg,
            "<circle cx='80' cy='{:.1}' r='5' fill='{}'/><text x='92' y='{y:.1}'>{}</text>",
            y - 4.0,
            colour(i),
            escaped(&text)
        );
    }
    svg + "</svg>\n"
}

fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()]
}

/// Operations per second over operations per byte.
fn roofline(svg: &mut String, rows: &[Row]) {
    let intensity = |row: &Row| row.ops / row.bytes.max(1.0);
    let top = rows
        .iter()
        .map(|row| row.roofline.int8_gops.max(row.roofline.bf16_gops))
        .fold(1.0, f64::max);
    let panel = Panel {
        left: 80.0,
        x: (0.1, rows.iter().map(intensity).fold(1000.0, f64::max) * 2.0),
        y: (1.0, top * 2.0),
        is_y_log: true,
    };
    panel.frame(svg, "Roofline", "operations per GGUF byte", "GOP/s");
    decades(panel.x.0, panel.x.1, |value| {
        panel.x_mark(svg, value, &number(value))
    });
    decades(panel.y.0, panel.y.1, |value| {
        panel.y_mark(svg, value, &number(value))
    });
    for (i, row) in rows.iter().enumerate() {
        let roof = row.roofline;
        for peak in [roof.int8_gops, roof.f32_gops] {
            let corner = (peak / roof.read_gb_per_s).clamp(panel.x.0, panel.x.1);
            let from = panel.x.0 * roof.read_gb_per_s;
            let points = [(panel.x.0, from), (corner, peak), (panel.x.1, peak)];
            panel.line(svg, &points, "#999");
        }
        let (x, y) = (panel.x(intensity(row)), panel.y(row.gops().max(panel.y.0)));
        let _ = write!(
            svg,
            "<circle cx='{x:.1}' cy='{y:.1}' r='5' fill='{}'/>",
            colour(i)
        );
    }
}

/// Step latency over 1 / (1 − percentile).
fn latencies(svg: &mut String, rows: &[Row]) {
    let max_ms = |row: &Row| row.samples.latency_ns.max() as f64 / 1e6;
    let panel = Panel {
        left: 630.0,
        x: (1.0, 10_000.0),
        y: (0.0, rows.iter().map(max_ms).fold(1e-3, f64::max) * 1.05),
        is_y_log: false,
    };
    panel.frame(svg, "Latency of a decode step", "percentile", "ms");
    for (one_in, label) in [
        (2.0, "50"),
        (10.0, "90"),
        (100.0, "99"),
        (1e3, "99.9"),
        (1e4, "99.99"),
    ] {
        panel.x_mark(svg, one_in, label);
    }
    for fifth in 0..=5 {
        let value = panel.y.1 * f64::from(fifth) / 5.0;
        panel.y_mark(svg, value, &format!("{value:.3}"));
    }
    for (i, row) in rows.iter().enumerate() {
        let latency = &row.samples.latency_ns;
        if latency.is_empty() {
            continue;
        }
        let points: Vec<_> = (0..=80)
            .map(|step| {
                let one_in = 10f64.powf(f64::from(step) / 20.0);
                let ns = latency.value_at_percentile(100.0 * (1.0 - 1.0 / one_in));
                (one_in, ns as f64 / 1e6)
            })
            .collect();
        panel.line(svg, &points, colour(i));
    }
}

/// The powers of ten in a range.
fn decades(from: f64, to: f64, mut each: impl FnMut(f64)) {
    for exponent in -3..12 {
        let value = 10f64.powi(exponent);
        if value >= from && value <= to {
            each(value);
        }
    }
}

fn number(value: f64) -> String {
    if value < 1.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// `text`, escaped for XML.
fn escaped(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .map(|c| match c {
            '&' => "&amp;".into(),
            '<' => "&lt;".into(),
            '>' => "&gt;".into(),
            c => c.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_point_a_row_and_no_markup_of_the_file() {
        let mut row = Row::example();
        row.model.description = "<script>&\u{1b}".into();
        row.samples.ns = vec![1000];
        row.samples.latency_ns.record(1000).unwrap();
        (row.bytes, row.ops) = (1000.0, 2000.0);
        row.roofline.read_gb_per_s = 10.0;
        row.roofline.int8_gops = 100.0;
        let svg = picture(&[row.clone(), row]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("&lt;script&gt;&amp; pp32"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let opened = svg.matches('<').count() - svg.matches("</").count();
        let closed = svg.matches("/>").count() + svg.matches("</").count();
        assert_eq!(opened, closed);
    }
}
