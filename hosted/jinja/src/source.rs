//! Prepares the source of a template: removes tags that minijinja does not know, and refuses tags
//! that are too long for it.

use crate::error::TemplateError;
use crate::names::GENERATION;
use minijinja::Error;
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Whitespace is handled as in Hugging Face's jinja2 settings.
pub(crate) fn syntax() -> Result<SyntaxConfig, Error> {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build()
}

/// Converts all line endings to `\n`, in string literals, too: jinja2's `newline_sequence`.
pub(crate) fn with_newlines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Replaces `{% generation %}` and `{% endgeneration %}` by a scope that sets [`GENERATION`], which handles the
/// whitespace around it in the same way and keeps line numbers; `rebuild` marks where its text begins and ends. Also
/// returns the number of tags that were replaced.
pub(crate) fn without_generation_tags(source: &str) -> (String, usize) {
    let opening = format!("with {GENERATION} = 0");
    let mut out = String::with_capacity(source.len());
    let mut n_tags = 0;
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let inner = tag.trim_start_matches(['-', '+']);
        let open = &tag[..tag.len() - inner.len()];
        let word = inner.trim_start();
        let space = &inner[..inner.len() - word.len()];
        for (name, instead) in [("generation", &*opening), ("endgeneration", "endwith")] {
            let Some(behind) = word.strip_prefix(name) else {
                continue;
            };
            let end = behind.trim_start().trim_start_matches(['-', '+']);
            if end.starts_with("%}") {
                out.extend([open, space, instead]);
                rest = behind;
                n_tags += 1;
            }
        }
    }
    out.push_str(rest);
    (out, n_tags)
}

/// Spells the escapes of Python's string literals that minijinja does not know, or reads differently, in its own way.
pub(crate) fn with_escapes(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut done = 0;
    let tokens = syntax().map(|syntax| tokenize(source, false, syntax));
    for (token, span) in tokens.into_iter().flatten().map_while(Result::ok) {
        let range = span.start_offset as usize..span.end_offset as usize;
        // A literal without escapes is a `Str`.
        if let (Token::String(_), Some(before), Some(literal)) = (
            token,
            source.get(done..range.start),
            source.get(range.clone()),
        ) {
            out.push_str(before);
            respell(literal, &mut out);
            done = range.end;
        }
    }
    out.push_str(&source[done..]);
    out
}

fn respell(literal: &str, out: &mut String) {
    let mut rest = literal;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let code = escape.get(2..10).filter(|_| escape.starts_with("\\U"));
        let code = code.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let (spelled, len) = match (escape.as_bytes().get(1), code.and_then(char::from_u32)) {
            (Some(b'a'), _) => ("\\u0007", 2),
            (Some(b'v'), _) => ("\\u000b", 2),
            (Some(b'/'), _) => ("\\\\/", 2),
            (_, Some(c)) => {
                out.extend(matches!(c, '\\' | '\'' | '"').then_some('\\'));
                out.push(c);
                ("", 10)
            }
            _ => {
                let len = 1 + escape.chars().nth(1).map_or(0, char::len_utf8);
                (&escape[..len], len)
            }
        };
        out.push_str(spelled);
        rest = &escape[len..];
    }
    out.push_str(rest);
}

/// Refuses tags with more tokens, and templates with more `elif`s, than the parser can handle: it recurses
/// for each operator and could overflow the stack.
pub(crate) fn check_tags(source: &str) -> Result<(), TemplateError> {
    let (mut tokens, mut elifs) = (0, 0);
    for token in tokenize(
        source,
        false,
        syntax().map_err(|error| TemplateError::syntax(&error))?,
    ) {
        let (token, span) = token.map_err(|error| TemplateError::syntax(&error))?;
        match token {
            Token::BlockStart | Token::VariableStart => tokens = 0,
            Token::Ident("elif") if tokens == 0 => elifs += 1,
            Token::Str(text) if text.contains("\\N{") => return Err(by_name(span.start_line)),
            Token::String(text) if text.contains("\\N{") => return Err(by_name(span.start_line)),
            _ => tokens += 1,
        }
        let what = if tokens > TAG_TOKENS_MAX {
            "this tag has"
        } else if elifs > ELIFS_MAX {
            "the conditions have"
        } else {
            continue;
        };
        let line = span.start_line.into();
        let reason = format!("{what} too many parts");
        return Err(TemplateError::Syntax { line, reason });
    }
    Ok(())
}

fn by_name(line: impl Into<usize>) -> TemplateError {
    let line = line.into();
    let reason = "characters by name (\\N{...}) are not supported".to_owned();
    TemplateError::Syntax { line, reason }
}

/// Maximum number of tokens between `{%` and `%}`.
const TAG_TOKENS_MAX: usize = 1000;
/// Maximum number of `elif`s in a template.
const ELIFS_MAX: usize = 250;

#[cfg(test)]
mod tests {
    use crate::template::{Template, Variables};
    use std::time::SystemTime;

    fn rendered(source: &str) -> String {
        let template = Template::parse(source).expect("a template");
        let text = template.render(Variables::default(), SystemTime::UNIX_EPOCH);
        text.unwrap_or_else(|error| error.to_string())
    }

    /// Expected values are jinja2's.
    #[test]
    fn escapes_and_globals_are_python_s() {
        for (source, expected) in [
            (r"{{ 'a\ab\vc' }}\a'\v'", "a\u{7}b\u{b}c\\a'\\v'"),
            (r"{{ 'a\\a\/\q' }}", r"a\a\/\q"),
            (
                r"{{ '\U0001F642\U00000027\x41\101\u00e9' }}",
                "\u{1f642}'AA\u{e9}",
            ),
            (
                "{{ namespace() is mapping }}{{ {} is mapping }}",
                "FalseTrue",
            ),
            (
                "{{ namespace(a=1) is iterable or namespace() is sequence or namespace() is callable }}",
                "False",
            ),
            (
                "{{ lipsum is defined }}{{ lipsum is callable }}",
                "TrueTrue",
            ),
        ] {
            assert_eq!(rendered(source), expected, "{source}");
        }
        assert!(rendered("{{ lipsum() }}").contains("lipsum(), a random text, is not supported"));
    }
}
