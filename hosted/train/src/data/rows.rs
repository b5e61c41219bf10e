//! Files of rows: jsonl, json, csv and tsv, one row at a time.

use super::error::{DataError, RowPlace};
use csv::{ErrorKind, ReaderBuilder, StringRecord};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// A row before its form is known: columns by name.
#[derive(Clone, Debug)]
pub(super) struct RawRow {
    pub(super) place: RowPlace,
    pub(super) columns: Map<String, Value>,
}

/// The rows of a file, one after the other.
pub(super) type Rows = Box<dyn Iterator<Item = Result<RawRow, DataError>>>;

/// Opens a file of rows.
pub(super) fn open(path: &Path) -> Result<Rows, DataError> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let format = extension.unwrap_or_default().to_lowercase();
    let unknown = |hint| {
        Err(DataError::Format {
            path: path.to_path_buf(),
            hint,
        })
    };
    match &*format {
        "jsonl" | "ndjson" | "json" | "csv" | "tsv" => {}
        "parquet" => return unknown(": write the table as .jsonl first"),
        "gz" | "zst" | "bz2" | "xz" | "zip" => return unknown(": unpack it first"),
        "txt" => return unknown(": write {\"text\": ...} per line as .jsonl"),
        _ => return unknown(""),
    }
    let file = File::open(path).map_err(|error| unreadable(path, error))?;
    let reader = BufReader::with_capacity(1 << 16, file);
    match &*format {
        "json" => json(reader, path),
        "csv" => csv_rows(reader, path, b','),
        "tsv" => csv_rows(reader, path, b'\t'),
        _ => Ok(Box::new(Lines {
            reader,
            path: path.to_path_buf(),
            number: 0,
        })),
    }
}

fn unreadable(path: &Path, error: std::io::Error) -> DataError {
    DataError::Unreadable {
        path: path.to_path_buf(),
        error,
    }
}

/// One JSON object per line.
struct Lines {
    reader: BufReader<File>,
    path: PathBuf,
    number: u64,
}

impl Iterator for Lines {
    type Item = Result<RawRow, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut line = Vec::new();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => self.number += 1,
                Err(error) => return Some(Err(unreadable(&self.path, error))),
            }
            let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line);
            if !line.trim_ascii().is_empty() {
                return Some(self.row(line));
            }
        }
    }
}

impl Lines {
    fn row(&self, line: &[u8]) -> Result<RawRow, DataError> {
        let place = RowPlace {
            path: self.path.clone(),
            unit: "line",
            number: self.number,
        };
        match serde_json::from_slice(line) {
            Ok(Value::Object(columns)) => Ok(RawRow { place, columns }),
            Ok(_) => Err(DataError::Row {
                place,
                reason: "expected an object: {\"column\": value}".to_owned(),
            }),
            Err(error) => Err(not_json(place, &error)),
        }
    }
}

/// The message without the position, which counts from the line's start.
fn not_json(place: RowPlace, error: &serde_json::Error) -> DataError {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or_default();
    DataError::Json {
        place,
        column: error.column(),
        reason: reason.to_owned(),
    }
}

/// A list of objects, or an object with one field that is such a list.
fn json(mut reader: BufReader<File>, path: &Path) -> Result<Rows, DataError> {
    let mut bytes = Vec::new();
    let read = reader.read_to_end(&mut bytes);
    read.map_err(|error| unreadable(path, error))?;
    let place = |unit, number| RowPlace {
        path: path.to_path_buf(),
        unit,
        number,
    };
    if bytes.trim_ascii().is_empty() {
        let path = path.to_path_buf();
        return Err(DataError::Empty { path });
    }
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| not_json(place("line", error.line() as u64), &error))?;
    let wrong = |reason: String| DataError::Row {
        place: place("row", 1),
        reason,
    };
    let items = match value {
        Value::Array(items) => items,
        Value::Object(map) => {
            let mut lists: Vec<_> = map
                .into_iter()
                .filter(|(_, field)| field.is_array())
                .collect();
            match (lists.pop(), lists.pop()) {
                (Some((_, Value::Array(items))), None) => items,
                (None, _) => return Err(wrong("expected a list of rows".to_owned())),
                (Some((a, _)), other) => {
                    let b = other.map_or_else(String::new, |(name, _)| name);
                    let reason = format!("{b} and {a} are both lists: rows have to be in one");
                    return Err(wrong(reason));
                }
            }
        }
        _ => return Err(wrong("expected a list of rows".to_owned())),
    };
    let path = path.to_path_buf();
    let numbered = items.into_iter().zip(1..);
    let rows = numbered.map(move |(item, number)| {
        let place = RowPlace {
            path: path.clone(),
            unit: "row",
            number,
        };
        match item {
            Value::Object(columns) => Ok(RawRow { place, columns }),
            _ => Err(DataError::Row {
                place,
                reason: "expected an object: {\"column\": value}".to_owned(),
            }),
        }
    });
    Ok(Box::new(rows))
}

fn csv_rows(reader: BufReader<File>, path: &Path, delimiter: u8) -> Result<Rows, DataError> {
    let mut reader = ReaderBuilder::new()
        .delimiter(delimiter)
        .from_reader(reader);
    let header = reader.headers().map_err(|error| not_csv(path, &error))?;
    let mut names: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
    if let Some(first) = names.first_mut() {
        *first = first.trim_start_matches('\u{feff}').to_owned();
    }
    let path = path.to_path_buf();
    let rows = reader.into_records().map(move |record| {
        let record = record.map_err(|error| not_csv(&path, &error))?;
        Ok(csv_row(&path, &names, &record))
    });
    Ok(Box::new(rows))
}

fn csv_row(path: &Path, names: &[String], record: &StringRecord) -> RawRow {
    let cells = names.iter().cloned().zip(record.iter().map(Value::from));
    RawRow {
        place: RowPlace {
            path: path.to_path_buf(),
            unit: "line",
            number: record.position().map_or(0, csv::Position::line),
        },
        columns: cells.collect(),
    }
}

fn not_csv(path: &Path, error: &csv::Error) -> DataError {
    let number = error.position().map_or(1, csv::Position::line);
    let reason = match error.kind() {
        ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!("the header has {expected_len} columns, and this row {len}"),
        ErrorKind::Utf8 { .. } => "the text is not UTF-8".to_owned(),
        _ => error.to_string(),
    };
    DataError::Csv {
        place: RowPlace {
            path: path.to_path_buf(),
            unit: "line",
            number,
        },
        reason,
    }
}
