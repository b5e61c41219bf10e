//! Parses GBNF into rules.

use super::{DEPTH_MAX, Expr, GbnfError, REPEAT_MAX, RULES_MAX, Rule, Rules};
use core::cell::Cell;
use std::collections::HashMap;

pub(super) fn parse(text: &str) -> Result<Rules, GbnfError> {
    let mut parser = Parser {
        text,
        at: 0,
        counted: Cell::new((0, 1)),
        depth: 0,
        numbers: HashMap::new(),
        uses: Vec::new(),
    };
    let mut bodies: Vec<Option<Rule>> = Vec::new();
    parser.skip_space(true);
    while parser.peek().is_some() {
        let line = parser.line();
        let name = parser.name("the name of a rule")?.to_owned();
        parser.skip_space(false);
        parser.expect("::=")?;
        parser.skip_space(true);
        let body = parser.alternatives(false)?;
        let number = parser.number(&name);
        if !matches!(parser.peek(), None | Some('\r' | '\n')) {
            return Err(parser.expected("an element or the end of the line"));
        }
        parser.skip_space(true);
        if bodies.len() <= number {
            bodies.resize_with(number + 1, || None);
        }
        if bodies[number].is_some() {
            return Err(GbnfError::Twice { line, name });
        }
        bodies[number] = Some(Rule { name, line, body });
    }
    bodies.resize_with(parser.numbers.len(), || None);
    if bodies.len() > RULES_MAX {
        return Err(GbnfError::TooManyRules);
    }
    let root = parser.numbers.get("root").copied();
    if let Some(&(number, line)) = parser.uses.iter().find(|(n, _)| bodies[*n].is_none()) {
        let of_number = |(name, n): (&String, &usize)| (*n == number).then(|| name.clone());
        let name = parser
            .numbers
            .iter()
            .find_map(of_number)
            .unwrap_or_default();
        return Err(GbnfError::UnknownRule { line, name });
    }
    let root = root.ok_or(GbnfError::NoRoot)?;
    let rules = bodies.into_iter().flatten().collect();
    Ok(Rules { rules, root })
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    /// A position and its line.
    counted: Cell<(usize, usize)>,
    /// The number of open parentheses.
    depth: usize,
    numbers: HashMap<String, usize>,
    /// Rules that are used, with the line of the use.
    uses: Vec<(usize, usize)>,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn takes(&mut self, written: &str) -> bool {
        let is_it = self.text[self.at..].starts_with(written);
        self.at += if is_it { written.len() } else { 0 };
        is_it
    }

    /// The line of a position, counted from the last position that was asked for.
    fn line(&self) -> usize {
        let (at, line) = self.counted.get();
        let (at, line) = if at <= self.at { (at, line) } else { (0, 1) };
        let line = line + self.text[at..self.at].matches('\n').count();
        self.counted.set((self.at, line));
        line
    }

    fn expected(&self, what: &'static str) -> GbnfError {
        let rest = self.text[self.at..].lines().next().unwrap_or_default();
        let found: String = match self.peek() {
            None => "end of input".into(),
            Some('\r' | '\n') => "end of line".into(),
            Some(_) => format!("\"{}\"", rest.chars().take(20).collect::<String>()),
        };
        let line = self.line();
        GbnfError::Expected { line, what, found }
    }

    fn expect(&mut self, written: &'static str) -> Result<(), GbnfError> {
        if self.takes(written) {
            Ok(())
        } else {
            Err(self.expected(written))
        }
    }

    /// Skips spaces and comments, and line ends if `lines`.
    fn skip_space(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' => {}
                '\r' | '\n' if lines => {}
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find(['\r', '\n']).unwrap_or(rest.len());
                    continue;
                }
                _ => break,
            }
            self.at += 1;
        }
    }

    fn name(&mut self, what: &'static str) -> Result<&'t str, GbnfError> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        let name = &rest[..end.unwrap_or(rest.len())];
        if name.is_empty() {
            return Err(self.expected(what));
        }
        self.at += name.len();
        Ok(name)
    }

    fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.numbers.len();
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn alternatives(&mut self, nested: bool) -> Result<Expr, GbnfError> {
        let mut alternatives = vec![self.sequence(nested)?];
        loop {
            // A line may begin with a bar.
            let before = self.at;
            self.skip_space(true);
            if !self.takes("|") {
                self.at = before;
                break;
            }
            self.skip_space(true);
            alternatives.push(self.sequence(nested)?);
        }
        Ok(match alternatives.len() {
            1 => alternatives.remove(0),
            _ => Expr::Alt(alternatives),
        })
    }

    fn sequence(&mut self, nested: bool) -> Result<Expr, GbnfError> {
        let mut items = Vec::new();
        loop {
            self.skip_space(nested);
            let item = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => self.group()?,
                Some('.') => {
                    self.at += 1;
                    Expr::Class {
                        ranges: Vec::new(),
                        negated: true,
                    }
                }
                Some('<' | '!') => return Err(GbnfError::Token { line: self.line() }),
                Some(c) if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                    let line = self.line();
                    let name = self.name("a rule")?;
                    let number = self.number(name);
                    self.uses.push((number, line));
                    Expr::Rule(number)
                }
                _ => break,
            };
            items.push(self.repeated(item, nested)?);
        }
        Ok(match items.len() {
            1 => items.remove(0),
            _ => Expr::Seq(items),
        })
    }

    fn group(&mut self) -> Result<Expr, GbnfError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(GbnfError::Depth { line: self.line() });
        }
        self.at += 1;
        let inner = self.alternatives(true)?;
        self.skip_space(true);
        self.expect(")")?;
        self.depth -= 1;
        Ok(inner)
    }

    /// Applies the repetitions written after `item` to it.
    fn repeated(&mut self, mut item: Expr, nested: bool) -> Result<Expr, GbnfError> {
        for _ in 0..DEPTH_MAX {
            self.skip_space(nested);
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let (least, most) = self.bounds()?;
                    let largest = most.unwrap_or(least).max(least);
                    if largest > REPEAT_MAX || most.is_some_and(|most| most < least) {
                        return Err(GbnfError::Repetitions { line: self.line() });
                    }
                    (least, most)
                }
                _ => return Ok(item),
            };
            self.at += 1;
            item = Expr::Repeat(Box::new(item), least, most);
        }
        Err(GbnfError::Repetitions { line: self.line() })
    }

    /// Parses the numbers in braces; stops at the closing brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GbnfError> {
        self.at += 1;
        self.skip_space(false);
        let least = self.count()?;
        self.skip_space(false);
        if !self.takes(",") {
            return self.brace(least, Some(least));
        }
        self.skip_space(false);
        let most = match self.peek() {
            Some('}') => None,
            _ => Some(self.count()?),
        };
        self.skip_space(false);
        self.brace(least, most)
    }

    fn brace(&self, least: u32, most: Option<u32>) -> Result<(u32, Option<u32>), GbnfError> {
        match self.peek() {
            Some('}') => Ok((least, most)),
            _ => Err(self.expected("}")),
        }
    }

    fn count(&mut self) -> Result<u32, GbnfError> {
        let rest = &self.text[self.at..];
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("a number"));
        }
        self.at += end;
        let too_many = GbnfError::Repetitions { line: self.line() };
        rest[..end].parse().map_err(|_| too_many)
    }

    fn literal(&mut self) -> Result<Expr, GbnfError> {
        self.at += 1;
        let mut text = String::new();
        while !self.takes("\"") {
            text.push(self.character()?);
        }
        Ok(Expr::Text(text))
    }

    fn class(&mut self) -> Result<Expr, GbnfError> {
        self.at += 1;
        let negated = self.takes("^");
        let mut ranges = Vec::new();
        while !self.takes("]") {
            let first = self.character()?;
            let is_range =
                self.text[self.at..].starts_with('-') && !self.text[self.at..].starts_with("-]");
            let mut last = first;
            if is_range {
                self.at += 1;
                last = self.character()?;
            }
            if last < first {
                let line = self.line();
                return Err(GbnfError::Range { line, first, last });
            }
            ranges.push((first, last));
        }
        Ok(Expr::Class { ranges, negated })
    }

    /// A character of a string or class, with escapes resolved.
    fn character(&mut self) -> Result<char, GbnfError> {
        let unclosed = "the end of a literal or character class";
        match self.peek() {
            Some('\\') => {}
            Some('\r' | '\n') | None => return Err(self.expected(unclosed)),
            Some(_) => return self.take().ok_or_else(|| self.expected(unclosed)),
        }
        let escape = self.at;
        self.at += 1;
        let digits = match self.take() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        let code = self.text.get(self.at..self.at + digits);
        let code = code.filter(|_| digits > 0);
        let number = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        let Some(character) = number.and_then(char::from_u32) else {
            self.at = escape;
            return Err(self.expected("an escape such as \\n or \\x41"));
        };
        self.at += digits;
        Ok(character)
    }
}
