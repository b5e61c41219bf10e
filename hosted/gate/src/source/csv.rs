//! Numbers in a column of text lines.

use super::SignalError;
use std::borrow::Cow;
use std::io::{BufRead as _, BufReader, Read};

/// A column that is read line by line.
pub(super) struct Csv {
    lines: BufReader<Box<dyn Read + Send>>,
    /// Separator between fields: the same in all lines.
    separator: char,
    column: usize,
    /// Fields of the first line.
    n_columns: usize,
    /// Lines read.
    n_lines: usize,
    /// The first line, if it holds a number and not names.
    first: Option<f32>,
}

impl Csv {
    /// Reads the first line, which sets the number of columns and may name them.
    ///
    /// # Errors
    /// The column does not exist, or there are several and none is named; as [`Csv::read`].
    pub(super) fn new(
        reader: Box<dyn Read + Send>,
        column: Option<&str>,
    ) -> Result<Self, SignalError> {
        let mut csv = Self {
            lines: BufReader::new(reader),
            separator: ' ',
            column: 0,
            n_columns: 0,
            n_lines: 0,
            first: None,
        };
        let Some(line) = csv.line()? else {
            return Ok(csv);
        };
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line);
        // Some programs mark the line of names as a comment.
        let line = line.trim_start_matches('#').trim_matches(' ');
        csv.separator = separator(line);
        let names: Vec<_> = fields(line, csv.separator).collect();
        csv.n_columns = names.len();
        csv.column = find(&names, column, line)?;
        csv.first = names[csv.column].parse().ok();
        Ok(csv)
    }

    /// Appends as many numbers as came with one read of the input, and at least one line's. Returns
    /// whether there may be more.
    ///
    /// # Errors
    /// A line without the column or with more fields than the first, a field that is not a number,
    /// text that is not UTF-8, or a line without an end.
    pub(super) fn read(&mut self, out: &mut Vec<f32>) -> Result<bool, SignalError> {
        out.extend(self.first.take());
        loop {
            let Some(line) = self.line()? else {
                return Ok(false);
            };
            out.push(self.number(&line)?);
            if !self.lines.buffer().contains(&b'\n') {
                return Ok(true);
            }
        }
    }

    /// The column's number in `line`.
    fn number(&self, line: &str) -> Result<f32, SignalError> {
        let fields: Vec<_> = fields(line, self.separator).collect();
        let line = self.n_lines;
        // A separator may follow the last field as well.
        let n = fields.len() - fields.iter().rev().take_while(|f| f.is_empty()).count();
        if n > self.n_columns {
            let n_columns = self.n_columns;
            return Err(SignalError::LongLine { line, n, n_columns });
        }
        let column = self.column + 1;
        let short = SignalError::ShortLine { line, column };
        let field = fields.get(self.column).ok_or(short)?;
        let text = field.to_string();
        field
            .parse()
            .map_err(|_| SignalError::NotANumber { line, text })
    }

    /// The next line with text, without space around it.
    fn line(&mut self) -> Result<Option<String>, SignalError> {
        loop {
            let mut bytes = Vec::new();
            let n = (&mut self.lines)
                .take(LINE_LEN_MAX + 1)
                .read_until(b'\n', &mut bytes)?;
            if n == 0 {
                return Ok(None);
            }
            self.n_lines += 1;
            let line = self.n_lines;
            if n as u64 > LINE_LEN_MAX {
                return Err(SignalError::EndlessLine { line });
            }
            let text = String::from_utf8(bytes).map_err(|_| SignalError::NotText { line })?;
            let text = text.trim_end_matches('\n').trim_end_matches('\r');
            if text.contains('\r') {
                return Err(SignalError::LoneReturn { line });
            }
            // Tabs stay: they may be empty fields.
            let text = text.trim_matches(' ');
            if !text.is_empty() {
                return Ok(Some(text.to_owned()));
            }
        }
    }
}

/// The column's place, from 0.
fn find(names: &[Cow<'_, str>], column: Option<&str>, line: &str) -> Result<usize, SignalError> {
    let line: String = line.chars().take(LINE_SHOWN).collect();
    let Some(name) = column else {
        return match names.len() {
            1 => Ok(0),
            n => Err(SignalError::WhichColumn { n, line }),
        };
    };
    let number = name.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
    let by_number = number.filter(|&at| at < names.len());
    // A line of numbers has no names: what looks like one is a sample.
    let is_header = names.iter().any(|name| name.parse::<f32>().is_err());
    let by_name = names.iter().position(|field| is_header && field == name);
    by_name.or(by_number).ok_or_else(|| SignalError::NoColumn {
        name: name.to_owned(),
        line,
    })
}

/// The separator of the first line's fields. A comma has the lowest priority except for spaces: it may be a decimal
/// comma next to another separator.
fn separator(line: &str) -> char {
    let bare: String = line.split('"').step_by(2).collect();
    let found = ['\t', ';', ','].into_iter().find(|&c| bare.contains(c));
    found.unwrap_or(' ')
}

/// The fields of a line, without the quotes around them (RFC 4180).
fn fields(line: &str, separator: char) -> impl Iterator<Item = Cow<'_, str>> {
    let mut is_quoted = false;
    let fields = line.split(move |c: char| {
        is_quoted ^= c == '"';
        !is_quoted && c == separator
    });
    fields
        .filter(move |field| separator != ' ' || !field.is_empty())
        .map(|field| {
            let field = field.trim();
            let bare = field.strip_prefix('"').and_then(|f| f.strip_suffix('"'));
            match bare {
                Some(bare) if bare.contains('"') => bare.replace("\"\"", "\"").into(),
                _ => bare.unwrap_or(field).into(),
            }
        })
}

/// Maximum bytes in a line: a thousand columns and more.
const LINE_LEN_MAX: u64 = 1 << 20;

/// Maximum characters of the first line in a message.
const LINE_SHOWN: usize = 200;

/// U+FEFF (Unicode 23.8).
const BYTE_ORDER_MARK: char = '\u{feff}';
