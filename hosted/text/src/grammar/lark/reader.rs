//! Reads a grammar in Lark's notation.

use super::source::{Definition, Source, Symbol};
use super::terminals::{COMMON, check_anchors, delimited, escaped, has_special, quoted};
use super::{ADDED, Writing};
use crate::grammar::{pattern, shorten};
use regex_syntax::Parser;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

/// Reads a grammar's definitions.
pub(super) struct Reader<'s, 'm> {
    rest: &'s str,
    line: usize,
    writing: Writing<'m>,
    source: Source,
}

impl<'s, 'm> Reader<'s, 'm> {
    pub(super) fn new(rest: &'s str, writing: Writing<'m>) -> Self {
        Self {
            rest,
            line: 1,
            writing,
            source: Source::default(),
        }
    }

    pub(super) fn read(mut self) -> Result<Source, String> {
        loop {
            self.skip_space(true);
            if self.rest.is_empty() {
                return Ok(self.source);
            }
            match self.rest.starts_with('%') {
                true => self.directive()?,
                false => self.definition()?,
            }
        }
    }

    fn error(&self, what: &str) -> String {
        format!("line {}: {what}", self.line)
    }

    fn refused(&self, what: &str) -> String {
        self.error(&format!("{what} is not supported here"))
    }

    fn skip(&mut self, n: usize) -> &'s str {
        let (skipped, rest) = self.rest.split_at(n);
        self.rest = rest;
        skipped
    }

    /// Skips white space and comments, line breaks only if `breaks`.
    fn skip_space(&mut self, breaks: bool) {
        loop {
            let Some(c) = self.rest.chars().next() else {
                return;
            };
            if c == '#' || self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.skip(end);
            } else if c == '\n' && breaks {
                self.line += 1;
                self.skip(1);
            } else if c != '\n' && c.is_whitespace() {
                self.skip(c.len_utf8());
            } else {
                return;
            }
        }
    }

    /// Whether the definition ends here: at a line break that no alternative follows.
    fn is_at_end(&mut self) -> bool {
        self.skip_space(false);
        if self.rest.starts_with('\n') {
            let before = (self.rest, self.line);
            self.skip_space(true);
            if self.rest.starts_with('|') {
                return false;
            }
            (self.rest, self.line) = before;
            return true;
        }
        self.rest.is_empty()
    }

    fn take_name(&mut self) -> &'s str {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        self.skip(end)
    }

    fn definition(&mut self) -> Result<(), String> {
        self.rest = self.rest.trim_start_matches(['?', '!']);
        let line = self.line;
        let name = self.take_name();
        let first = name.trim_start_matches('_').chars().next();
        let Some(first) = first.filter(char::is_ascii_alphabetic) else {
            let found: String = self.rest.chars().take(12).collect();
            return Err(self.error(&format!("expected the name of a rule, found {found:?}")));
        };
        let is_terminal = first.is_ascii_uppercase();
        if self.rest.starts_with('.') {
            if is_terminal {
                return Err(self.refused("the priority of a terminal"));
            }
            // It selects one of several trees.
            self.skip(1);
            self.take_name();
        }
        self.skip_space(false);
        match self.rest.chars().next() {
            Some(':') if !self.rest.starts_with("::") => self.skip(1),
            Some('[') => return Err(self.refused("an attribute of a rule ([])")),
            Some('{') => return Err(self.refused("a template ({})")),
            Some(':') => return Err(self.refused("a parameter of a rule (::)")),
            _ => return Err(self.error(&format!("expected \":\" after {name}"))),
        };
        if name.starts_with(ADDED) || self.source.definitions.iter().any(|all| all.name == name) {
            return Err(self.error(&format!("the name {name} is taken")));
        }
        let body = self.body()?;
        self.source.definitions.push(Definition {
            name: name.to_owned(),
            is_terminal,
            body,
            line,
        });
        Ok(())
    }

    fn body(&mut self) -> Result<Vec<Symbol>, String> {
        let mut body = Vec::new();
        while !self.is_at_end() {
            let Some(c) = self.rest.chars().next() else {
                break;
            };
            match c {
                '/' => body.push(self.regex()?),
                '"' => body.push(self.string()?),
                '%' => {
                    let name: String = self
                        .rest
                        .chars()
                        .take_while(|c| !" {\n".contains(*c))
                        .collect();
                    return Err(self.refused(&name));
                }
                '<' => return Err(self.refused("a control token such as <name>")),
                '@' => return Err(self.refused("a reference to another grammar (@)")),
                '~' => {
                    self.skip(1);
                    self.skip_space(false);
                    if !self.rest.starts_with(|c: char| c.is_ascii_digit()) {
                        return Err(self.refused("a complement (~)"));
                    }
                    body.push(Symbol::Other("~".into()));
                }
                '-' if self.rest.starts_with("->") => {
                    // Names of alternatives have no meaning here.
                    self.skip(2);
                    self.skip_space(false);
                    self.take_name();
                }
                '{' if !self.rest[1..].starts_with(|c: char| c.is_ascii_digit() || c == ',') => {
                    return Err(self.refused("a template ({})"));
                }
                '(' | ')' | '[' | ']' | '|' | '&' | '+' | '*' | '?' | '{' | '}' | ',' => {
                    self.skip(1);
                    body.push(Symbol::Other(c.into()));
                }
                ':' => return Err(self.refused("a parameter of a rule (::)")),
                '.' if self.rest.starts_with("..") => {
                    self.skip(2);
                    body.push(Symbol::Other("..".into()));
                }
                _ if c.is_ascii_digit() => body.push(Symbol::Other(self.take_name().to_owned())),
                _ if c.is_ascii_alphabetic() || c == '_' => {
                    body.push(Symbol::Name(self.take_name().to_owned()));
                }
                c => return Err(self.error(&format!("{c:?} is not expected here"))),
            }
        }
        Ok(body)
    }

    /// `%ignore`, or `%import` of common terminals.
    fn directive(&mut self) -> Result<(), String> {
        let end = self.rest.find(['\n', ' ', '\t', '{']);
        let end = end.unwrap_or(self.rest.len());
        match &self.rest[..end] {
            "%ignore" => {
                self.skip(end);
                let ignored = self.body()?;
                self.source.ignored.push(ignored);
                Ok(())
            }
            "%import" => {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                let line = self.skip(end);
                let line = line.split("//").next().unwrap_or_default();
                self.import(line.trim_start_matches("%import").trim())
            }
            other => Err(self.refused(other)),
        }
    }

    /// Adds what is imported: `common.A`, `common.A -> B`, or `common (A, B)`.
    fn import(&mut self, what: &str) -> Result<(), String> {
        let listed = what.strip_suffix(')').and_then(|what| what.split_once('('));
        let pairs: Vec<(String, &str)> = match (listed, what.split_once("->")) {
            (Some((path, names)), _) => {
                let names = names.split(',').map(str::trim);
                let path = path.trim();
                names.map(|name| (format!("{path}.{name}"), name)).collect()
            }
            (None, Some((path, alias))) => vec![(path.trim().to_owned(), alias.trim())],
            (None, None) => {
                let name = what.rsplit('.').next().unwrap_or_default();
                vec![(what.to_owned(), name)]
            }
        };
        for (path, alias) in pairs {
            let name = path.strip_prefix("common.");
            let found = COMMON.iter().find(|(common, _)| name == Some(common));
            let Some((_, regex)) = found else {
                return Err(self.error(&format!("the terminal {path:?} does not exist")));
            };
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if alias.is_empty() || !alias.chars().all(is_name) {
                return Err(self.error(&format!("{alias:?} is not the name of a terminal")));
            }
            let terminal = self.terminal(regex, "", &path)?;
            self.source.definitions.push(Definition {
                name: alias.to_owned(),
                is_terminal: true,
                body: vec![terminal],
                line: self.line,
            });
        }
        Ok(())
    }

    /// The text of a string, and whether its case does not matter.
    fn take_string(&mut self) -> Result<(String, bool), String> {
        let mut end = 1;
        let mut is_escaped = false;
        loop {
            let Some(c) = self.rest[end..].chars().next().filter(|c| *c != '\n') else {
                return Err(self.error("a string does not end"));
            };
            end += c.len_utf8();
            match c {
                '"' if !is_escaped => break,
                '\\' => is_escaped = !is_escaped,
                _ => is_escaped = false,
            }
        }
        let text = self.skip(end);
        let mut json = String::with_capacity(text.len());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            json.push(c);
            if c == '\\' {
                // Python's escape of two digits.
                match chars.next() {
                    Some('x') => json.push_str("u00"),
                    Some(c) => json.push(c),
                    None => {}
                }
            }
        }
        let wrong = |_| self.error(&format!("{} is not a string", shorten(text)));
        let decoded = serde_json::from_str(&json).map_err(wrong)?;
        let ignores_case = self.rest.starts_with('i');
        self.skip(usize::from(ignores_case));
        Ok((decoded, ignores_case))
    }

    fn string(&mut self) -> Result<Symbol, String> {
        let (text, ignores_case) = self.take_string()?;
        let shown = quoted(&text);
        if self.rest.starts_with("..") {
            self.skip(2);
            if !self.rest.starts_with('"') {
                return Err(self.error("expected a string after \"..\""));
            }
            let (last, _) = self.take_string()?;
            return self.range(&text, &last);
        }
        if ignores_case {
            return self.terminal(&regex_syntax::escape(&text), "i", &shown);
        }
        let written = match self.writing {
            // Without its quotes, quoted once more.
            Writing::Json => quoted(&shown[1..shown.len() - 1]),
            Writing::UpTo(mark) if text.contains(mark) => {
                return Err(self.error(&format!(
                    "this model's calls cannot contain {mark:?}, as the string {shown} does"
                )));
            }
            Writing::UpTo(_) => shown.clone(),
        };
        Ok(Symbol::Terminal {
            is_escaped: shown.len() != text.len() + 2,
            text: written,
            shown,
            is_open: false,
            is_literal: true,
        })
    }

    fn range(&mut self, first: &str, last: &str) -> Result<Symbol, String> {
        let one = |text: &str| {
            let mut chars = text.chars();
            chars.next().filter(|_| chars.next().is_none())
        };
        let (Some(from), Some(to)) = (one(first), one(last)) else {
            return Err(self.error("a range is of two characters"));
        };
        let class = ClassUnicode::new([ClassUnicodeRange::new(from, to)]);
        let pattern = Hir::class(Class::Unicode(class)).to_string();
        self.terminal(&pattern, "", &format!("{first:?}..{last:?}"))
    }

    fn regex(&mut self) -> Result<Symbol, String> {
        let mut end = 1;
        loop {
            let Some(c) = self.rest[end..].chars().next().filter(|c| *c != '\n') else {
                return Err(self.error("a regular expression does not end"));
            };
            end += c.len_utf8();
            match c {
                '/' => break,
                '\\' => end += self.rest[end..].chars().next().map_or(0, char::len_utf8),
                _ => {}
            }
        }
        let shown = self.skip(end);
        let is_flag = |byte: &u8| b"imslux".contains(byte);
        let n_flags = self.rest.bytes().take_while(is_flag).count();
        let flags = self.skip(n_flags);
        if flags.contains('l') {
            return Err(self.refused("the flag l"));
        }
        self.terminal(&shown[1..shown.len() - 1], flags, shown)
    }

    /// A regular expression, as it is written now.
    fn terminal(&mut self, pattern: &str, flags: &str, shown: &str) -> Result<Symbol, String> {
        let plain = match flags {
            "" => pattern.to_owned(),
            flags => format!("(?{flags}){pattern}"),
        };
        pattern::check_repetitions(&plain).map_err(|error| self.error(&error))?;
        let hir = Parser::new().parse(&plain).map_err(|error| {
            let why = pattern::why_not(pattern, &error);
            self.error(&why)
        })?;
        check_anchors(&hir).map_err(|what| {
            let pattern = shorten(pattern);
            self.error(&format!(
                "{what} in the pattern {pattern:?} is not supported here"
            ))
        })?;
        let is_escaped = has_special(&hir);
        let is_one = matches!(hir.kind(), HirKind::Literal(_) | HirKind::Class(_));
        let text = match self.writing {
            Writing::Json => delimited(&escaped(&hir).to_string()),
            Writing::UpTo(mark) => self.without(&hir, mark),
        };
        Ok(Symbol::Terminal {
            text,
            shown: shorten(shown),
            is_escaped,
            is_open: is_escaped && !is_one,
            is_literal: false,
        })
    }

    /// A terminal whose text does not contain a mark.
    fn without(&mut self, hir: &Hir, mark: &str) -> String {
        let plain = delimited(&hir.to_string());
        let longest = hir.properties().maximum_len();
        if longest.is_some_and(|longest| longest < mark.len()) {
            return plain;
        }
        let name = format!("{ADDED}{}", self.source.added.len());
        let mark = regex_syntax::escape(mark);
        let has_mark = delimited(&format!("(?s:.*){mark}(?s:.*)"));
        let definition = format!("{name}: {plain} & ~{has_mark}\n");
        self.source.added.push(definition);
        name
    }
}
