//! The documents stay short, and their links lead somewhere.
//!
//! README.md, ARCHITECTURE.md, CHANGELOG.md and docs/*.md have limits on their lines and
//! paragraphs. Every relative link names a file and a heading that exist, and the README leads to
//! every page of docs/. The words of STYLE.md's list are rare in all that people read.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of characters in a line.
const LINE_CHARS: usize = 160;
/// Maximum number of words in a paragraph or list item. Rows of tables are bounded by the line alone.
const PARAGRAPH_WORDS: usize = 120;
/// Maximum number of lines of a document, where there is a limit.
const LINES: [(&str, usize); 2] = [("README.md", 150), ("ARCHITECTURE.md", 220)];

#[test]
fn lines_and_paragraphs_are_short() {
    let problems: Vec<_> = documents()
        .iter()
        .flat_map(|path| too_long(path, &read(path)))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn links_lead_to_files_and_headings() {
    let problems: Vec<_> = documents()
        .iter()
        .flat_map(|path| broken_links(path, &read(path)))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_readme_leads_to_every_page() {
    let readme = read(&root().join("README.md"));
    let links = links(&readme);
    let docs = root().join("docs");
    for path in documents() {
        if let Ok(page) = path.strip_prefix(&docs) {
            let target = format!("docs/{}", page.display());
            assert!(links.contains(&target), "README.md has no link to {target}");
        }
    }
}

/// Phrases that no native engineer writes, and how often all files together may have them: fewer with each sweep.
const RARE: [&str; 14] = [
    "is no",
    "so many",
    "is none",
    "are none",
    "nobody",
    "whoever",
    "is told",
    "are told",
    "for ever",
    "at hand",
    "anew",
    "says how",
    "says what",
    "says which",
];
const RARE_MAX: usize = 75;
/// Words that are right now and then.
const DOUBTFUL: [&str; 4] = ["behind", "beside", "that of", "those of"];
const DOUBTFUL_MAX: usize = 418;

#[test]
fn the_language_is_plain() {
    let text = texts();
    for (phrases, max) in [(&RARE[..], RARE_MAX), (&DOUBTFUL, DOUBTFUL_MAX)] {
        let counts: Vec<_> = phrases
            .iter()
            .map(|phrase| (phrase, count(&text, phrase)))
            .collect();
        let all: usize = counts.iter().map(|(_, n)| n).sum();
        assert!(
            all <= max,
            "{all} of these, at most {max}; see STYLE.md: {counts:?}"
        );
        assert!(all + 20 > max, "{all} of these: lower the limit of {max}");
    }
}

#[test]
fn phrases_are_counted_as_words() {
    let text = "There is no tea; this is nothing.\nIs\n    // no way. is_no Anew, renewed anew.";
    assert_eq!(count(&words(text), "is no"), 2);
    assert_eq!(count(&words(text), "anew"), 2);
    assert_eq!(count(&words("if x is None: it is none"), "is none"), 1);
}

/// How often the words of `phrase` follow each other.
fn count(words: &[String], phrase: &str) -> usize {
    let phrase: Vec<_> = phrase.split(' ').collect();
    words
        .windows(phrase.len())
        .filter(|window| *window == phrase)
        .count()
}

/// The words of all tracked texts, except this list and the page that contains it.
fn texts() -> Vec<String> {
    let listed = std::process::Command::new("git")
        .args(["ls-files", "*.rs", "*.md", "*.py", "*.pyi", "*.h"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let listed = String::from_utf8(listed.stdout).expect("names of files are UTF-8");
    let own = ["STYLE.md", "tests/tests/documents.rs"];
    let files = listed.lines().filter(|name| !own.contains(name));
    let texts: Vec<_> = files.map(|name| read(&root().join(name))).collect();
    assert!(texts.len() > 500, "{} texts were found", texts.len());
    texts.iter().flat_map(|text| words(text)).collect()
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words = words.filter(|word| !word.is_empty());
    // `None` is a value of Rust and Python, not English.
    let word = |word: &str| match word {
        "None" => word.to_owned(),
        _ => word.to_lowercase(),
    };
    words.map(word).collect()
}

#[test]
fn the_check_of_lengths_can_fail() {
    let path = Path::new("README.md");
    let words = |n| "word ".repeat(n).replace("word word ", "word word\n");
    assert_eq!(too_long(path, &words(120)), [""; 0]);
    assert_eq!(too_long(path, &words(121)).len(), 1);
    // Two items of a list are two paragraphs, and so is what a blank line or a heading parts.
    for between in ["\n- ", "\n12. ", "\n\n", "\n## Heading\n"] {
        let text = format!("{}{between}{}", words(70), words(70));
        assert_eq!(too_long(path, &text), [""; 0], "{between:?}");
    }
    assert_eq!(
        too_long(path, &format!("- {}  {}", words(70), words(70))).len(),
        1
    );
    // Code and table rows are not paragraphs; their lines are bounded all the same.
    let code = format!("```sh\n{}```\n", words(200));
    assert_eq!(too_long(path, &code), [""; 0]);
    let row = "| word word |\n".repeat(100);
    assert_eq!(too_long(path, &row), [""; 0]);
    for line in ["é".repeat(160), format!("| {} |", "x".repeat(156))] {
        assert_eq!(too_long(path, &line), [""; 0]);
        assert_eq!(too_long(path, &format!("{line}x")).len(), 1);
        assert_eq!(too_long(path, &format!("```\n{line}x\n```")).len(), 1);
    }
    assert_eq!(too_long(path, &"\n".repeat(150)), [""; 0]);
    assert_eq!(too_long(path, &"\n".repeat(151)).len(), 1);
    assert_eq!(
        too_long(Path::new("docs/run.md"), &"\n".repeat(151)),
        [""; 0]
    );
}

#[test]
fn the_check_of_links_can_fail() {
    let readme = root().join("README.md");
    let text = "# A `b`, c\n[site](https://example.org/x) [self](README.md) [above](#a-b-c)\n\
        `[code](missing.md)`\n```\n[code](missing.md)\n```\n";
    assert_eq!(broken_links(&readme, text), [""; 0]);
    for bad in [
        "[a](missing.md)",
        "[a](#missing)",
        "[a](README.md#missing)",
        "[a](docs)",
        "[two](README.md) [links](docs/missing.md)",
    ] {
        assert_eq!(broken_links(&readme, bad).len(), 1, "{bad}");
    }
}

/// What is too long in a document, one line each.
fn too_long(path: &Path, text: &str) -> Vec<String> {
    let name = name(path);
    let mut problems = Vec::new();
    let mut words = 0;
    let mut in_code = false;
    for (i, line) in text.lines().enumerate() {
        let n_chars = line.chars().count();
        if n_chars > LINE_CHARS {
            problems.push(format!("{name}:{}: {n_chars} characters in a line", i + 1));
        }
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if in_code || is_fence || starts_block(line) {
            words = 0;
        }
        if in_code || is_fence || line.trim_start().starts_with('|') {
            continue;
        }
        let before = words;
        words += line.split_whitespace().count();
        if before <= PARAGRAPH_WORDS && words > PARAGRAPH_WORDS {
            let at = i + 1;
            problems.push(format!(
                "{name}:{at}: over {PARAGRAPH_WORDS} words in a paragraph"
            ));
        }
    }
    let n_lines = text.lines().count();
    let limit = LINES.iter().find(|(limited, _)| *limited == name);
    if let Some((_, most)) = limit.filter(|(_, most)| n_lines > *most) {
        problems.push(format!("{name}: {n_lines} lines, of at most {most}"));
    }
    problems
}

/// Whether a line ends the paragraph before it: blank, a heading, a row of a table, or the
/// beginning of a list's item.
fn starts_block(line: &str) -> bool {
    let line = line.trim_start();
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = number.len() < line.len() && number.starts_with(". ");
    line.is_empty() || line.starts_with(['#', '|']) || line.starts_with("- ") || is_numbered
}

/// Relative links of a document that lead nowhere, one line each.
fn broken_links(path: &Path, text: &str) -> Vec<String> {
    let leads_nowhere = |link: &String| {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => path.to_path_buf(),
            file => path.with_file_name(file),
        };
        // A link within the text being checked, which may differ from the file on disk.
        let other = (!file.is_empty()).then(|| fs::read_to_string(&target));
        let headings = match &other {
            None => headings(text),
            Some(Ok(text)) => headings(text),
            // A picture has no headings.
            Some(Err(_)) => return !heading.is_empty() || !target.is_file(),
        };
        !heading.is_empty() && !headings.iter().any(|name| name == heading)
    };
    let mut links = links(text);
    links.retain(|link| !link.contains("://") && leads_nowhere(link));
    let name = name(path);
    links
        .iter()
        .map(|link| format!("{name}: {link} is not there"))
        .collect()
}

/// The targets of all links, in order.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // What is between backticks is code.
        let line: String = line.split('`').step_by(2).collect();
        let targets = line.split("](").skip(1);
        found.extend(targets.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    found
}

/// The names by which links call a document's headings, as GitHub makes them.
fn headings(text: &str) -> Vec<String> {
    let is_kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    let name = |heading: &str| -> String {
        let kept = heading.trim().chars().filter(is_kept);
        kept.flat_map(char::to_lowercase)
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| name(line.trim_start_matches('#')))
        .collect()
}

/// The lines that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// All documents.
fn documents() -> Vec<PathBuf> {
    let mut paths =
        Vec::from(["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|n| root().join(n)));
    let docs = fs::read_dir(root().join("docs")).expect("docs is there");
    let docs = docs.map(|entry| entry.expect("docs can be read").path());
    paths.extend(docs.filter(|path| path.extension().is_some_and(|ext| ext == "md")));
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap_or(path);
    path.display().to_string()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
