//! Speculation changes neither a text nor a bit, on cores of the image and in this process.

use super::hosted::{hash_of, hosted, story_of};
use super::{LINE, TALE};
use sluice_tests::measured;
use sluice_tests::metal::Machine;
use std::path::{Path, PathBuf};

/// Draft tokens that were accepted and verified.
fn drafts_of(text: &str) -> (usize, usize) {
    let line = text.lines().find(|line| line.contains("draft acceptance"));
    let Some(line) = line else {
        return (0, 0);
    };
    let mut numbers = line.split([' ', '(', '/', ')']);
    let mut before = |word: &str| {
        let all: Vec<_> = numbers.by_ref().take_while(|part| *part != word).collect();
        let number = all.iter().rev().find_map(|part| part.parse().ok());
        number.unwrap_or_else(|| panic!("no {word} in: {line}"))
    };
    (before("accepted"), before("generated"))
}

fn fixture(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models");
    PathBuf::from(format!("{folder}/{name}.gguf"))
}

/// Attention alone and with windows, convolutions, Mamba 2; all but one repeat themselves.
#[test]
fn texts_are_those_without_drafts() {
    let models = [
        (PathBuf::from(TALE), true),
        (fixture("gemma3"), true),
        (fixture("lfm2"), false),
        (fixture("granitehybrid"), true),
        (fixture("nemotron_h"), true),
    ];
    for (path, repeats) in models {
        let (mut n_accepted, mut n_verified) = (0, 0);
        let model = std::fs::read(&path).unwrap();
        for (prompt, seed, temperature) in [
            ("a b a b a b", 1, "0"),
            ("zz zz zz", 1, "0"),
            ("a b a b a b", 2, "0.8"),
            ("zz zz zz", 3, "0.8"),
            ("a b a b a b", 4, "0.3"),
        ] {
            let line = format!("'prompt={prompt}' n=96 seed={seed} temp={temperature}");
            let plain = hosted(&model, &format!("{line} draft=0"), 1).unwrap();
            assert_eq!(drafts_of(&plain), (0, 0), "{plain}");
            for more in ["draft=8", "draft=16", "draft=1", ""] {
                let told = hosted(&model, &format!("{line} {more}"), 2).unwrap();
                let place = format!("{}, {line} {more}", path.display());
                assert_eq!(story_of(&told), story_of(&plain), "{place}");
                assert_eq!(hash_of(&told), hash_of(&plain), "{place}");
                let (accepted, verified) = drafts_of(&told);
                assert!(accepted <= verified, "{told}");
                n_accepted += accepted;
                n_verified += verified;
            }
        }
        measured(&format!(
            "{}: {n_verified} draft tokens verified, {n_accepted} accepted",
            path.display()
        ));
        assert!(n_accepted > 0 || !repeats, "{}", path.display());
    }
}

/// A text ends within drafts where it must: at its length, and where the context does.
#[test]
fn ends_are_where_they_were() {
    let model = std::fs::read(fixture("granitehybrid")).unwrap();
    for end in (1..24)
        .map(|n| format!("n={n}"))
        .chain((8..30).map(|n| format!("n=64 ctx={n}")))
    {
        let line = format!("'prompt=a b a b' seed=1 temp=0 {end}");
        let [plain, told] = ["draft=0", "draft=8"]
            .map(|more| hosted(&model, &format!("{line} {more}"), 1).map_err(|e| e.to_string()));
        let parts = |text: &Result<String, String>| {
            let text = text.as_ref().map_err(Clone::clone)?;
            let eval = text
                .lines()
                .find_map(|line| line.trim().strip_prefix("eval time = "));
            let n = eval
                .unwrap()
                .split(['/', '('])
                .nth(1)
                .unwrap()
                .trim()
                .to_owned();
            Ok::<_, String>((story_of(text).to_owned(), hash_of(text).to_owned(), n))
        };
        assert_eq!(parts(&plain), parts(&told), "{line}");
    }
}

/// A benchmark measures steps of one token.
#[test]
fn a_benchmark_drafts_nothing() {
    let model = std::fs::read(fixture("lfm2")).unwrap();
    let line = "'prompt=a b a b a b' n=96 temp=0 draft=8 bench";
    let told = hosted(&model, line, 1).unwrap();
    assert_eq!(drafts_of(&told), (0, 0), "{told}");
    assert!(told.contains("ms /    95 ("), "{told}");
}

/// The image accepts drafts, and generates the same text.
#[test]
fn the_image_speculates() {
    let path = fixture("granitehybrid");
    let line = format!("{} n=96 temp=0", LINE.replace(" n=12", ""));
    let model = std::fs::read(&path).unwrap();
    let plain = hosted(&model, &format!("{line} draft=0"), 1).unwrap();
    for more in ["draft=0", "draft=8"] {
        let Some(boot) = Machine::MICROVM.boot(Some(Path::new(&path)), &format!("{line} {more}"))
        else {
            return;
        };
        assert_eq!(boot.status, Some(33), "{}", boot.text);
        assert_eq!(hash_of(&boot.text), hash_of(&plain), "{}", boot.text);
        let (accepted, _) = drafts_of(&boot.text);
        assert_eq!(accepted > 0, more == "draft=8", "{}", boot.text);
    }
}
