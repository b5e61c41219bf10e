//! Stop strings against a search in the whole text.

use super::StopStrings;

/// The text emitted for `text` cut into `pieces`, and the string found.
fn shown(strings: &[(&str, bool)], pieces: &[&str]) -> (String, Option<String>) {
    let mut stops = StopStrings::new();
    for &(text, is_shown) in strings {
        stops.add(text, is_shown);
    }
    let mut shown = String::new();
    for piece in pieces {
        if stops.push(piece, |text| shown.push_str(text)) {
            assert!(stops.push("more", |_| panic!("nothing comes after the end")));
            return (shown, stops.found().map(str::to_owned));
        }
    }
    stops.finish(|text| shown.push_str(text));
    (shown, None)
}

/// The expected result, from the whole text at once and by definition.
fn expected(strings: &[(&str, bool)], text: &str) -> (String, Option<String>) {
    for end in 0..=text.len() {
        let complete = strings.iter().filter(|(stop, _)| {
            !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes())
        });
        let longest = complete.fold(None::<&(&str, bool)>, |best, stop| match best {
            Some(best) if best.0.len() >= stop.0.len() => Some(best),
            _ => Some(stop),
        });
        if let Some(&(stop, is_shown)) = longest {
            let kept = if is_shown { end } else { end - stop.len() };
            return (text[..kept].to_owned(), Some(stop.to_owned()));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn a_text_ends_at_the_same_place_however_it_is_cut() {
    let texts = [
        "",
        "a",
        "aab",
        "aaab",
        "aaaaaab tail",
        "abaabab",
        "one\nUser: two",
        "xä€ß€€Öx€",
        "€€€",
        "no stop in here",
        "ends with the beginning of one: \nUse",
    ];
    let sets: [&[(&str, bool)]; 8] = [
        &[],
        &[("", false)],
        &[("aab", false)],
        &[("aab", true), ("ab", false)],
        &[("ab", false), ("aab", true), ("b", true)],
        &[("\nUser:", false), ("\nUse cases", true)],
        &[("€€", false), ("ß€", true)],
        &[("abab", true), ("ba", false), ("in here", false)],
    ];
    let mut n_found = 0;
    for text in texts {
        for set in sets {
            let whole = expected(set, text);
            n_found += usize::from(whole.1.is_some());
            let chars: Vec<(usize, char)> = text.char_indices().collect();
            // Every cut into two pieces, and single characters.
            for at in chars.iter().map(|c| c.0).chain([text.len()]) {
                let pieces = [&text[..at], &text[at..]];
                assert_eq!(shown(set, &pieces), whole, "{text:?} {set:?} {at}");
            }
            let single: Vec<&str> = chars
                .iter()
                .map(|&(at, c)| &text[at..at + c.len_utf8()])
                .collect();
            assert_eq!(shown(set, &single), whole, "{text:?} {set:?}");
        }
    }
    assert!(n_found > 15, "{n_found} cases found something");
}

#[test]
fn only_what_may_begin_a_stop_string_is_held_back() {
    let mut stops = StopStrings::new();
    stops.add("abc", false);
    let mut out = Vec::new();
    for piece in ["xa", "b", "d", "ab", "ab"] {
        stops.push(piece, |text| out.push(text.to_owned()));
    }
    assert_eq!(out, ["x", "abd", "ab"]);
    stops.finish(|text| out.push(text.to_owned()));
    assert_eq!(out.concat(), "xabdabab");
}
