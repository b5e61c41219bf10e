//! The command line from the loader: words of the form `key=value`.
//!
//! A value with spaces is quoted, either alone (`prompt="Once upon"`) or with its key
//! (`"prompt=Once upon"`, as GRUB writes it). There are no escapes: quote a text that contains one kind of
//! quote with the other.

use core::fmt;
use core::str::FromStr;
use sluice_core::speculate::POSITIONS_MAX;

/// The settings of a run. The defaults are `sluice run`'s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options<'a> {
    /// `prompt=TEXT`.
    pub prompt: &'a str,
    /// `n=TOKENS`: maximum number of tokens to generate.
    pub n_predict: usize,
    /// `ctx=TOKENS`: size of the KV cache; 0 is the size that prompt and `n` need.
    pub n_ctx: usize,
    /// `temp=NUMBER`; 0 chooses the best token.
    pub temperature: f32,
    /// `seed=NUMBER`.
    pub seed: u64,
    /// `draft=TOKENS`: maximum draft tokens in a step, 0 to 16; default 8, or 4 if the model is recurrent.
    /// The text is the same with any value; `bench` drafts none.
    pub n_draft: Option<usize>,
    /// `threads=NUMBER` of cores; 0 is all.
    pub n_threads: usize,
    /// `wait=MILLISECONDS`: how long to wait for another core after the last one was admitted. Late
    /// cores halt.
    pub wait_ms: u32,
    /// `isa=NAME`: the kernel table to use; if empty, the best one.
    pub isa: &'a str,
    /// `bench`: time prompt and decode. The text is not shown, an end token does not end it, and when the
    /// context is full it starts over, so that `n` may be any number.
    pub bench: bool,
    /// `chat` or `prompts`: read lines from the console until an empty one.
    pub lines: Lines,
    /// `trap=ud|gp|pf|write|execute|stack|panic|cores`: provoke a fault, to see it reported.
    pub trap: &'a str,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            prompt: "Once upon a time",
            n_predict: 128,
            n_ctx: 0,
            temperature: 0.8,
            seed: 0,
            n_draft: None,
            n_threads: 0,
            wait_ms: 100,
            isa: "",
            bench: false,
            lines: Lines::None,
            trap: "",
        }
    }
}

/// What is read from the console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lines {
    /// Nothing.
    #[default]
    None,
    /// A user's turns of a conversation, in the form of the model's chat template.
    Chat,
    /// Texts to continue, as they are.
    Prompts,
}

/// A word that could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionError<'a> {
    /// The word.
    pub word: &'a str,
    /// What was expected.
    pub expected: &'static str,
}

impl fmt::Display for OptionError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "command line: '{}': expected {}",
            self.word, self.expected
        )
    }
}

impl core::error::Error for OptionError<'_> {}

const KEYS: &str = "one of prompt= n= ctx= temp= seed= draft= threads= wait= isa= trap= bench, and chat or prompts";

impl<'a> Options<'a> {
    /// Reads the command line.
    ///
    /// # Errors
    /// The first word that is unknown, or whose value is out of range.
    pub fn parse(line: &'a str) -> Result<Self, OptionError<'a>> {
        let mut options = Self::default();
        for word in Words(line) {
            let (key, value) = word
                .split_once('=')
                .map_or((word, None), |(k, v)| (k, Some(v)));
            let fail = |expected| OptionError { word, expected };
            match (key, value) {
                ("prompt", Some(text)) => options.prompt = unquoted(text),
                ("n", Some(n)) => options.n_predict = number(n).ok_or(fail(COUNT))?,
                ("ctx", Some(n)) => options.n_ctx = number(n).ok_or(fail(COUNT))?,
                ("draft", Some(n)) => {
                    let n = number(n).filter(|n| *n <= POSITIONS_MAX);
                    options.n_draft = Some(n.ok_or(fail(DRAFTS))?);
                }
                ("threads", Some(n)) => options.n_threads = number(n).ok_or(fail(COUNT))?,
                ("wait", Some(n)) => options.wait_ms = number(n).ok_or(fail(MILLISECONDS))?,
                ("seed", Some(n)) => options.seed = number(n).ok_or(fail(COUNT))?,
                ("temp", Some(n)) => {
                    options.temperature = decimal(unquoted(n)).ok_or(fail(DECIMAL))?;
                }
                ("isa", Some(name)) => options.isa = unquoted(name),
                ("trap", Some(name)) => options.trap = unquoted(name),
                ("bench", None) => options.bench = true,
                ("chat", None) if options.lines == Lines::None => options.lines = Lines::Chat,
                ("prompts", None) if options.lines == Lines::None => options.lines = Lines::Prompts,
                _ => return Err(fail(KEYS)),
            }
        }
        Ok(options)
    }
}

const COUNT: &str = "an integer";

const DRAFTS: &str = "an integer of at most 16";

const MILLISECONDS: &str = "an integer of milliseconds below 2^32";

const DECIMAL: &str = "a number such as 0.8, of at most 15 digits, 8 of them after the point";

/// The f32 nearest to a number without exponent: the result of `str::parse`, whose code and tables for
/// numbers of any length would take 14 KB.
fn decimal(text: &str) -> Option<f32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let n_digits = whole.len() + fraction.len();
    if !(1..=15).contains(&n_digits) || fraction.len() > 8 {
        return None;
    }
    let (mut digits, mut scale) = (0.0, 1.0);
    for byte in whole.bytes().chain(fraction.bytes()) {
        if !byte.is_ascii_digit() {
            return None;
        }
        digits = digits * 10.0 + f64::from(byte - b'0');
    }
    for _ in fraction.bytes() {
        scale *= 10.0;
    }
    // Both are whole and exact, so the quotient has a relative error of up to 2^-53. If it is not a tie between
    // two f32 it is further from any: D / 10^k and a tie, an odd number of 2^-t, differ by 1 / (5^k · 2^max(t, k)) or
    // more, which is larger than the error as long as 5^k < 2^29 and D < 2^53.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to nearest")]
    let value = (digits / scale) as f32;
    Some(value)
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    unquoted(text).parse().ok()
}

/// Removes the quotes around it, if there is a pair.
fn unquoted(text: &str) -> &str {
    ['"', '\'']
        .iter()
        .find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
        .unwrap_or(text)
}

/// Words between spaces that are not in quotes.
struct Words<'a>(&'a str);

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let mut open = None;
        let end = text.find(|c: char| {
            match open {
                Some(quote) if c == quote => open = None,
                None if c == '"' || c == '\'' => open = Some(c),
                None => return c.is_whitespace(),
                Some(_) => {}
            }
            false
        });
        let (word, rest) = text.split_at(end.unwrap_or(text.len()));
        self.0 = rest;
        (!word.is_empty()).then(|| unquoted(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn decimals_are_the_librarys() {
        for text in [
            "0",
            "0.8",
            ".5",
            "1.",
            "16777217",
            "0.33333333",
            "0.05960465",
        ] {
            assert_eq!(decimal(text), text.parse().ok(), "{text}");
        }
        for i in 0..200_000_u32 {
            let text = std::format!("{}.{:05}", i / 100_000, i % 100_000);
            assert_eq!(decimal(&text), text.parse().ok(), "{text}");
        }
        for text in [
            "",
            ".",
            "-1",
            "1e5",
            "inf",
            "0.123456789",
            "1234567890123456",
            "0,8",
        ] {
            assert_eq!(decimal(text), None, "{text}");
        }
    }

    #[test]
    fn every_word_is_read() {
        let line = " prompt=\"The cat's hat\" n=7 ctx=64 temp=0 seed=42 draft=3 threads=2 wait=9 isa=avx2 bench chat \
                    trap=ud ";
        let expected = Options {
            prompt: "The cat's hat",
            n_predict: 7,
            n_ctx: 64,
            temperature: 0.0,
            seed: 42,
            n_draft: Some(3),
            n_threads: 2,
            wait_ms: 9,
            isa: "avx2",
            bench: true,
            lines: Lines::Chat,
            trap: "ud",
        };
        assert_eq!(Options::parse(line), Ok(expected));
        assert_eq!(Options::parse(""), Ok(Options::default()));
    }

    #[test]
    fn quotes_around_the_word_or_the_value() {
        for line in [
            "\"prompt=Once upon\" n=1",
            "prompt='Once upon' n=1",
            "n=1 'prompt=Once upon'",
        ] {
            let options = Options::parse(line).expect(line);
            assert_eq!(
                (options.prompt, options.n_predict),
                ("Once upon", 1),
                "{line}"
            );
        }
        let empty = Options::parse("prompt=").expect("no text is a text");
        assert_eq!(empty.prompt, "");
        // A quote that is not closed extends to the end.
        let open = Options::parse("prompt=\"a b n=1").expect("one word");
        assert_eq!((open.prompt, open.n_predict), ("\"a b n=1", 128));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, word) in [
            ("n=1 bogus", "bogus"),
            ("n=-1", "n=-1"),
            ("n", "n"),
            ("bench=1", "bench=1"),
            ("chat prompts", "prompts"),
            ("temp=inf", "temp=inf"),
            ("draft=17", "draft=17"),
            ("draft", "draft"),
            ("wait=4294967296", "wait=4294967296"),
            ("seed=18446744073709551616", "seed=18446744073709551616"),
        ] {
            assert_eq!(Options::parse(line).map_err(|error| error.word), Err(word));
        }
    }
}
