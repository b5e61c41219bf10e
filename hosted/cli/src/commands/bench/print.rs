//! Results in llama-bench's formats, with our fields after its own.

use super::args::Format;
use super::by_layer;
use super::plan::Test;
use super::row::{BACKEND, BUILD_COMMIT, Field, Kind, Row};
use core::fmt::Write as _;

/// Formats rows; the caller writes the text.
#[derive(Debug)]
pub(super) struct Printer {
    format: Format,
    columns: Vec<Column>,
    n_rows: usize,
    /// Lines after the table.
    after: String,
}

/// A column of the Markdown table.
#[derive(Clone, Copy, Debug)]
struct Column {
    title: &'static str,
    /// Minimum width, in characters.
    width: usize,
    is_left: bool,
    value: fn(&Row) -> String,
}

const fn column(title: &'static str, width: usize, value: fn(&Row) -> String) -> Column {
    Column {
        title,
        width,
        is_left: false,
        value,
    }
}

impl Printer {
    /// A printer of the results of `tests`. The table shows settings that vary or are unusual.
    pub(super) fn new(format: Format, tests: &[Test]) -> Self {
        Self {
            format,
            columns: columns(tests),
            n_rows: 0,
            after: String::new(),
        }
    }

    /// The text before all rows.
    pub(super) fn header(&self) -> String {
        let names = || Row::field_names().map(|(name, _)| name);
        match self.format {
            Format::Csv => names().collect::<Vec<_>>().join(",") + "\n",
            Format::Json => "[\n".into(),
            Format::Jsonl => String::new(),
            Format::Md => self.table_header(),
            Format::Sql => {
                let fields: Vec<_> = Row::field_names()
                    .map(|(name, kind)| format!("  {name} {}", sql_type(kind)))
                    .collect();
                let fields = fields.join(",\n");
                format!("CREATE TABLE IF NOT EXISTS llama_bench (\n{fields}\n);\n\n")
            }
        }
    }

    /// A row.
    pub(super) fn row(&mut self, row: &Row) -> String {
        let is_first = self.n_rows == 0;
        self.n_rows += 1;
        let all = || row.theirs().into_iter().chain(row.ours());
        match self.format {
            Format::Csv => {
                let values = all().map(|field| format!("\"{}\"", field.value.replace('"', "\"\"")));
                values.collect::<Vec<_>>().join(",") + "\n"
            }
            Format::Json => {
                let comma = if is_first { "" } else { ",\n" };
                let fields = json_fields(row).join(",\n    ");
                format!("{comma}  {{\n    {fields}\n  }}")
            }
            Format::Jsonl => format!("{{{}}}\n", json_fields(row).join(", ")),
            Format::Md => {
                let of = format!("{}, {}", row.model.description, row.test.name());
                if let Some(percent) = row.skipped_percent() {
                    let _ = writeln!(self.after, "neurons skipped: {percent:.1} % ({of})");
                }
                self.after += &by_layer::table(&row.layers, &of);
                self.table_row(row)
            }
            Format::Sql => {
                let names: Vec<_> = all().map(|field| field.name).collect();
                let values: Vec<_> = all()
                    .map(|field| format!("'{}'", field.value.replace('\'', "''")))
                    .collect();
                let (names, values) = (names.join(", "), values.join(", "));
                format!("INSERT INTO llama_bench ({names}) VALUES ({values});\n")
            }
        }
    }

    /// The text after all rows.
    pub(super) fn footer(&self) -> String {
        match self.format {
            Format::Json => "\n]\n".into(),
            Format::Md if !self.after.is_empty() => {
                format!("\n{}\nbuild: {BUILD_COMMIT} (0)\n", self.after)
            }
            Format::Md => format!("\nbuild: {BUILD_COMMIT} (0)\n"),
            Format::Csv | Format::Jsonl | Format::Sql => String::new(),
        }
    }

    fn table_header(&self) -> String {
        let (mut titles, mut rule) = (String::from("|"), String::from("|"));
        for column in &self.columns {
            let _ = write!(titles, " {} |", padded(column, column.title));
            let dashes = "-".repeat(column.width - 1);
            let end = if column.is_left { '-' } else { ':' };
            let _ = write!(rule, " {dashes}{end} |");
        }
        format!("{titles}\n{rule}\n")
    }

    fn table_row(&self, row: &Row) -> String {
        let mut line = String::from("|");
        for column in &self.columns {
            let _ = write!(line, " {} |", padded(column, &(column.value)(row)));
        }
        line + "\n"
    }
}

fn padded(column: &Column, text: &str) -> String {
    let width = column.width;
    if column.is_left {
        format!("{text:<width$}")
    } else {
        format!("{text:>width$}")
    }
}

impl Row {
    /// Names and kinds of all fields, without values.
    fn field_names() -> impl Iterator<Item = (&'static str, Kind)> {
        let row = Self::example();
        let fields: Vec<_> = row.theirs().into_iter().chain(row.ours()).collect();
        fields.into_iter().map(|field| (field.name, field.kind))
    }
}

fn json_fields(row: &Row) -> Vec<String> {
    let written = |field: Field| format!("\"{}\": {}", field.name, json_value(&field));
    let list = |values: Vec<String>| values.join(", ");
    let ns = row.samples.ns.iter().map(u64::to_string).collect();
    let ts = row
        .rates()
        .iter()
        .map(|rate| format!("{rate:.6}"))
        .collect();
    let theirs = row.theirs().into_iter().map(written);
    let samples = [
        format!("\"samples_ns\": [ {} ]", list(ns)),
        format!("\"samples_ts\": [ {} ]", list(ts)),
    ];
    let ours = row.ours().into_iter().map(written);
    let layers = (!row.layers.is_empty()).then(|| {
        let layers = list(row.layers.iter().map(by_layer::json).collect());
        format!("\"layers\": [ {layers} ]")
    });
    theirs.chain(samples).chain(ours).chain(layers).collect()
}

fn json_value(field: &Field) -> String {
    match field.kind {
        Kind::Text => serde_json::Value::from(field.value.as_str()).to_string(),
        Kind::Bool => (field.value != "0").to_string(),
        Kind::Int | Kind::Float => field.value.clone(),
    }
}

const fn sql_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "TEXT",
        Kind::Bool | Kind::Int => "INTEGER",
        Kind::Float => "REAL",
    }
}

/// The columns of the table: llama-bench's for a CPU, then ours.
fn columns(tests: &[Test]) -> Vec<Column> {
    let varies =
        |value: fn(&Test) -> String, usual: &str| tests.iter().any(|test| value(test) != usual);
    let mut columns = vec![
        Column {
            is_left: true,
            ..column("model", 30, |row| row.model.description.clone())
        },
        column("size", 10, |row| size(row.model.size)),
        column("params", 10, |row| n_params(row.model.n_params)),
        Column {
            is_left: true,
            ..column("backend", 10, |_| BACKEND.into())
        },
        column("threads", 7, |row| row.test.setting.n_threads.to_string()),
    ];
    if varies(|test| test.setting.n_batch.to_string(), "2048") {
        columns.push(column("n_batch", 7, |row| {
            row.test.setting.n_batch.to_string()
        }));
    }
    if varies(|test| test.setting.n_ubatch.to_string(), "512") {
        columns.push(column("n_ubatch", 8, |row| {
            row.test.setting.n_ubatch.to_string()
        }));
    }
    if varies(|test| test.setting.kv.0.to_string(), "f16")
        || varies(|test| test.setting.kv.1.to_string(), "f16")
    {
        columns.push(column("type_k", 6, |row| row.test.setting.kv.0.to_string()));
        columns.push(column("type_v", 6, |row| row.test.setting.kv.1.to_string()));
    }
    columns.extend([
        column("test", 15, |row| row.test.name()),
        column("t/s", 20, |row| {
            let (mean, deviation) = row.tokens_per_second();
            format!("{mean:.2} ± {deviation:.2}")
        }),
        column("isa", 6, |row| row.isa.into()),
        column("% limit", 12, |row| {
            row.limit_percent()
                .map_or_else(|| "probe failed".into(), |percent| format!("{percent:.1}"))
        }),
    ]);
    if tests.iter().any(|test| test.n_gen > 0) {
        columns.push(column("p50/p99/p99.9 ms", 20, latencies));
    }
    columns
}

fn latencies(row: &Row) -> String {
    let latency = &row.samples.latency_ns;
    if latency.is_empty() {
        return "-".into();
    }
    let ms = |percentile| latency.value_at_percentile(percentile) as f64 / 1e6;
    format!("{:.2}/{:.2}/{:.2}", ms(50.0), ms(99.0), ms(99.9))
}

fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes < 1024.0 * 1024.0 * 1024.0 {
        format!("{:.2} MiB", bytes / 1024.0 / 1024.0)
    } else {
        format!("{:.2} GiB", bytes / 1024.0 / 1024.0 / 1024.0)
    }
}

pub(super) fn n_params(n: u64) -> String {
    let n = n as f64;
    if n < 1e9 {
        format!("{:.2} M", n / 1e6)
    } else {
        format!("{:.2} B", n / 1e9)
    }
}

#[cfg(test)]
mod tests;
