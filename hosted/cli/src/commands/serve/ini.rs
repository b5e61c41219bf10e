//! INI files, as llama-server reads them for `--models-preset`.

/// A section: `[name]`, and the keys up to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    /// Empty for what precedes the first section.
    pub(super) name: String,
    /// The line of its name.
    pub(super) line: usize,
    pub(super) entries: Vec<Setting>,
}

/// `key = value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) line: usize,
}

/// The sections of a file; the first one has no name.
///
/// # Errors
/// The number of a line that is not a section, `key = value`, a comment or empty, and why.
pub(super) fn sections(text: &str) -> Result<Vec<Section>, (usize, String)> {
    let mut all = vec![Section::default()];
    for (line, content) in (1..).zip(text.lines()) {
        let content = without_comment(content).trim();
        if content.is_empty() {
            continue;
        }
        if let Some(rest) = content.strip_prefix('[') {
            let name = rest.strip_suffix(']').map(str::trim);
            let name = name.filter(|name| !name.is_empty() && !name.contains([']', ',']));
            let name = name.ok_or_else(|| (line, "expected [NAME], without a comma".to_owned()))?;
            if let Some(first) = all.iter().find(|section| section.name == name) {
                return Err((
                    line,
                    format!("[{name}] is there already, in line {}", first.line),
                ));
            }
            all.push(Section {
                name: name.to_owned(),
                line,
                entries: Vec::new(),
            });
            continue;
        }
        let setting = content.split_once('=').map(|(key, value)| Setting {
            key: key.trim().to_owned(),
            value: value.trim().to_owned(),
            line,
        });
        let setting = setting.filter(|setting| is_key(&setting.key));
        let setting = setting.ok_or_else(|| (line, "expected KEY = VALUE or [NAME]".to_owned()))?;
        if let Some(section) = all.last_mut() {
            section.entries.push(setting);
        }
    }
    Ok(all)
}

/// A line up to its comment: `;` or `#` at its start or after a space or tab.
fn without_comment(line: &str) -> &str {
    let marks = line.match_indices([';', '#']).map(|(at, _)| at);
    let mut begins = marks.filter(|&at| {
        line[..at]
            .chars()
            .next_back()
            .is_none_or(|c| c == ' ' || c == '\t')
    });
    &line[..begins.next().unwrap_or(line.len())]
}

fn is_key(key: &str) -> bool {
    let mut chars = key.chars();
    let first = chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    first && chars.all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keys_and_comments() {
        let text = "version = 1\r\n; all of them\n[*]\nc = 8192 ; tokens\n\n[ org/m-GGUF:Q8_0 ]\n  temp=0.5\n\
                    chat-template-kwargs = {\"a\": \"b;c\"}\t# JSON\nLLAMA_ARG_TOP_K = 3\nalias =\n";
        let found = sections(text).unwrap();
        let shown = |section: &Section| {
            let entries = section.entries.iter();
            let entries = entries.map(|one| format!("{}:{}={}", one.line, one.key, one.value));
            (section.name.clone(), entries.collect::<Vec<_>>())
        };
        let found: Vec<_> = found.iter().map(shown).collect();
        let strings = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        let expected = [
            (String::new(), strings(&["1:version=1"])),
            ("*".to_owned(), strings(&["4:c=8192"])),
            (
                "org/m-GGUF:Q8_0".to_owned(),
                strings(&[
                    "7:temp=0.5",
                    "8:chat-template-kwargs={\"a\": \"b;c\"}",
                    "9:LLAMA_ARG_TOP_K=3",
                    "10:alias=",
                ]),
            ),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_line_that_is_nothing_is_named() {
        for (text, line) in [
            ("a", 1),
            ("[x]\n= 3", 2),
            ("[x", 1),
            ("[]", 1),
            ("[a,b]", 1),
            ("\n[x]\n[x]", 3),
            ("9a = 1", 1),
        ] {
            assert_eq!(sections(text).unwrap_err().0, line, "{text:?}");
        }
    }
}
