//! YAML as the values of a configuration, with the lines of its keys.

use super::error::{ConfigError, ConfigPlace};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use serde_json::{Map, Number, Value};
use std::path::Path;

/// A key of the outermost mapping.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    /// From 1.
    pub(super) line: usize,
    pub(super) value: Value,
}

/// The keys of a YAML file, in the file's order.
pub(super) fn entries(text: &str, path: &Path) -> Result<Vec<Entry>, ConfigError> {
    let mut reader = Reader::new(text, Some(path));
    let (first, line) = reader.next_content()?;
    match first {
        Event::StreamEnd => Ok(Vec::new()),
        Event::MappingStart(anchor, _) => {
            reader.refuse_anchor(anchor, line)?;
            let entries = reader.mapping(0)?;
            match reader.next_content()? {
                (Event::StreamEnd, _) => Ok(entries),
                (_, line) => Err(reader.wrong(line, "a second document: only one is read")),
            }
        }
        // An empty document has one scalar without a text.
        Event::Scalar(text, ScalarStyle::Plain, ..) if text.is_empty() => Ok(Vec::new()),
        _ => Err(reader.wrong(line, "expected keys and values: `key: value`")),
    }
}

/// The value of a flag, written as in YAML: a number, a word, `[a, b]`, `{a: 1}`.
pub(super) fn value(text: &str) -> Result<Value, String> {
    let mut reader = Reader::new(text, None);
    let value = match reader.next_content() {
        Ok((Event::StreamEnd, _)) => return Ok(Value::Null),
        Ok((event, line)) => reader.value(event, line, 0),
        Err(error) => Err(error),
    };
    match (value, reader.next_content()) {
        (Ok(value), Ok((Event::StreamEnd, _))) => Ok(value),
        (Err(ConfigError::Syntax { reason, .. }), _)
        | (_, Err(ConfigError::Syntax { reason, .. })) => Err(reason),
        _ => Err("more than one value".to_owned()),
    }
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    path: Option<&'t Path>,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str, path: Option<&'t Path>) -> Self {
        let parser = Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
        Self { parser, path }
    }

    fn wrong(&self, line: usize, reason: &str) -> ConfigError {
        ConfigError::Syntax {
            place: match self.path {
                Some(path) => ConfigPlace::File {
                    path: path.to_path_buf(),
                    line: Some(line),
                },
                None => ConfigPlace::Default,
            },
            reason: reason.to_owned(),
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, usize), ConfigError> {
        let next: Option<Result<(Event<'t>, Span), ScanError>> = self.parser.next();
        match next {
            None => Ok((Event::StreamEnd, 0)),
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => Err(self.wrong(error.marker().line(), error.info())),
        }
    }

    /// The next event that is part of a value, or the end.
    fn next_content(&mut self) -> Result<(Event<'t>, usize), ConfigError> {
        loop {
            match self.next()? {
                (
                    Event::Nothing
                    | Event::StreamStart
                    | Event::DocumentStart(_)
                    | Event::DocumentEnd,
                    _,
                ) => {}
                content => return Ok(content),
            }
        }
    }

    /// A copy of what an anchor names may be of any size, and no configuration needs one.
    fn refuse_anchor(&self, anchor: usize, line: usize) -> Result<(), ConfigError> {
        match anchor {
            0 => Ok(()),
            _ => Err(self.wrong(line, "anchors are not supported: write the value out")),
        }
    }

    fn value(&mut self, event: Event<'t>, line: usize, depth: usize) -> Result<Value, ConfigError> {
        if depth > DEPTH_MAX {
            return Err(self.wrong(line, "values are nested too deep"));
        }
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_anchor(anchor, line)?;
                if tag.is_some() {
                    return Err(self.wrong(line, "tags are not supported"));
                }
                Ok(match style {
                    ScalarStyle::Plain => plain(&text),
                    _ => Value::String(text.into_owned()),
                })
            }
            Event::SequenceStart(anchor, _) => {
                self.refuse_anchor(anchor, line)?;
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => return Ok(Value::Array(items)),
                        (event, line) => items.push(self.value(event, line, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(anchor, _) => {
                self.refuse_anchor(anchor, line)?;
                let entries = self.mapping(depth + 1)?;
                let pairs = entries.into_iter().map(|entry| (entry.key, entry.value));
                Ok(Value::Object(pairs.collect::<Map<_, _>>()))
            }
            Event::Alias(_) => {
                Err(self.wrong(line, "aliases are not supported: write the value out"))
            }
            _ => Err(self.wrong(line, "a value is missing")),
        }
    }

    /// The entries of a mapping whose start has been read.
    fn mapping(&mut self, depth: usize) -> Result<Vec<Entry>, ConfigError> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, line) = self.next()?;
            let key = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(key, ..) => key.into_owned(),
                _ => return Err(self.wrong(line, "a key has to be a word")),
            };
            if key == "<<" {
                return Err(self.wrong(
                    line,
                    "merge keys (<<) are not supported: write the values out",
                ));
            }
            if let Some(before) = entries.iter().find(|entry| entry.key == key) {
                let first = before.line;
                let reason = format!("{key} is set twice, first in line {first}");
                return Err(self.wrong(line, &reason));
            }
            let (event, value_line) = self.next()?;
            let value = self.value(event, value_line, depth)?;
            entries.push(Entry { key, line, value });
        }
    }
}

/// A plain scalar of YAML 1.2's core schema.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_numeric = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.contains(|c: char| c.is_ascii_digit())
        && digits
            .bytes()
            .all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    if is_numeric {
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        if let Ok(number) = unsigned.parse::<i64>() {
            return number.into();
        }
        if let Ok(number) = unsigned.parse::<u64>() {
            return number.into();
        }
        if let Some(number) = unsigned.parse().ok().and_then(Number::from_f64) {
            return Value::Number(number);
        }
    }
    Value::String(text.to_owned())
}

/// Maximum depth of lists and mappings.
const DEPTH_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::{entries, plain, value};
    use serde_json::{Value, json};
    use std::path::Path;

    fn error(text: &str) -> String {
        let read = entries(text, Path::new("run.yaml"));
        read.expect_err("it is refused").to_string()
    }

    #[test]
    fn scalars_are_those_of_yaml_1_2() {
        for (text, expected) in [
            ("1e-4", json!(1e-4)),
            ("2.", json!(2.0)),
            (".5", json!(0.5)),
            ("-3", json!(-3)),
            ("+3", json!(3)),
            ("True", json!(true)),
            ("yes", json!("yes")),
            ("~", Value::Null),
            ("1.2.3", json!("1.2.3")),
            ("e5", json!("e5")),
            ("-", json!("-")),
            ("18446744073709551615", json!(u64::MAX)),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
    }

    #[test]
    fn keys_have_their_lines() {
        let text = "# a run\nmodel: m.gguf\nlora:\n  r: 8\n  target_modules: [q_proj, 'v_proj']\n\nlr: 1e-4\n";
        let read = entries(text, Path::new("run.yaml")).expect("it is YAML");
        let found: Vec<_> = read.iter().map(|entry| (&*entry.key, entry.line)).collect();
        assert_eq!(found, [("model", 2), ("lora", 3), ("lr", 7)]);
        assert_eq!(
            read[1].value,
            json!({"r": 8, "target_modules": ["q_proj", "v_proj"]})
        );
        assert_eq!(
            entries("# nothing\n", Path::new("x")).expect("it is empty"),
            []
        );
    }

    #[test]
    fn what_is_not_read_is_refused_with_its_line() {
        assert_eq!(
            error("a: 1\nb: 2\na: 3\n"),
            "run.yaml, line 3: a is set twice, first in line 1"
        );
        assert!(error("a: &x 1\nb: *x\n").starts_with("run.yaml, line 1: anchors"));
        assert!(error("base: {a: 1}\nb:\n  <<: {c: 1}\n").contains("merge keys"));
        assert!(error("- a\n- b\n").contains("expected keys and values"));
        assert!(error("a: 1\n---\nb: 2\n").contains("a second document"));
        assert!(error("a: [1, 2\n").starts_with("run.yaml, line "));
        let deep = format!("a: {}{}", "[".repeat(40), "]".repeat(40));
        assert!(error(&deep).contains("too deep"));
    }

    #[test]
    fn flags_are_values_of_yaml() {
        assert_eq!(value("[a, 2]"), Ok(json!(["a", 2])));
        assert_eq!(value("{gate_proj: 4}"), Ok(json!({"gate_proj": 4})));
        assert_eq!(value(""), Ok(Value::Null));
        assert!(value("[a").is_err());
    }
}
