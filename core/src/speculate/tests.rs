//! Sources against a plain search, and what is worth a row.

use super::*;
use crate::costs::Costs;
extern crate std;
use std::vec;
use std::vec::Vec;

const NONE: DraftToken = DraftToken::NONE;

/// A text of few distinct tokens that repeats itself now and then.
fn text(n: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut draw = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % n
    };
    let mut text = Vec::new();
    while text.len() < n {
        if text.len() > 20 && draw(3) == 0 {
            let start = usize::try_from(draw(text.len() as u64 - 10)).unwrap();
            let end = (start + 10).min(text.len());
            text.extend_from_within(start..end);
        } else {
            text.push(u32::try_from(draw(12)).unwrap());
        }
    }
    text.truncate(n);
    text
}

/// The longest match of the text's end, up to 64 tokens, by trying all positions.
fn longest(text: &[u32]) -> usize {
    let n = text.len();
    let len =
        |end: usize| (0..end.min(64)).take_while(move |i| text[end - 1 - i] == text[n - 1 - i]);
    (1..n).map(|end| len(end).count()).max().unwrap_or(0)
}

#[test]
fn matches_are_real_and_long() {
    let (mut found, mut wanted) = (0, 0);
    for seed in 0..40 {
        let text = text(400, seed);
        let mut index = Ngrams::new(400, vec![7; Ngrams::<Vec<u32>>::n_words(400)]).unwrap();
        for n in 2..400 {
            index.follow(&text[..n]);
            let mut drafts = [NONE; 4];
            let n_draft = index.draft(&mut drafts);
            let best = longest(&text[..n]);
            assert!(n_draft == 0 || best >= 2);
            if best >= 6 {
                // After six tokens, the newest eight positions are examined.
                wanted += 1;
                found += usize::from(drafts[0].class == Class::text(best));
            }
        }
    }
    assert!(found * 100 >= wanted * 95, "{found} of {wanted}");
}

/// An index that was shortened and extended again equals one that was only extended.
#[test]
fn an_index_follows_its_text() {
    let (a, b) = (text(300, 1), text(300, 2));
    let words = || vec![0; Ngrams::<Vec<u32>>::n_words(256)];
    let mut index = Ngrams::new(256, words()).unwrap();
    for (n, m) in [(300, 100), (50, 256), (0, 13), (200, 199), (3, 300)] {
        let mixed = [&a[..n.min(120)], &b[..m]].concat();
        let same = index
            .tokens()
            .iter()
            .zip(&mixed)
            .take_while(|(a, b)| a == b);
        let same = same.count();
        assert_eq!(index.follow(&mixed), same);
        let mut fresh = Ngrams::new(256, words()).unwrap();
        fresh.follow(&mixed);
        let (mut left, mut right) = ([NONE; 8], [NONE; 8]);
        assert_eq!(index.draft(&mut left), fresh.draft(&mut right));
        assert_eq!(left, right);
    }
    assert!(Ngrams::new(256, vec![0; 9]).is_none());
}

#[test]
fn what_repeats_goes_on_repeating() {
    let mut index = Ngrams::new(64, vec![0; Ngrams::<Vec<u32>>::n_words(64)]).unwrap();
    index.follow(&[9, 1, 2, 3, 1, 2, 3]);
    let mut drafts = [NONE; 7];
    assert_eq!(index.draft(&mut drafts), 7);
    assert_eq!(drafts.map(|draft| draft.token), [1, 2, 3, 1, 2, 3, 1]);
    assert_eq!(drafts[0].class, Class::text(3));
    assert_eq!(drafts[6].class, Class::text(9));
}

#[test]
fn a_table_learns_and_forgets() {
    let mut table = NgramTable::new(vec![0; 1 << 12]).unwrap();
    let line = [5, 6, 7, 8, 9, 10];
    table.learn(&line, 0);
    let mut drafts = [NONE; 4];
    assert_eq!(table.draft(&line[..3], &mut drafts), 3);
    assert_eq!(
        drafts[..3].iter().map(|g| g.token).collect::<Vec<_>>(),
        [8, 9, 10]
    );
    assert_eq!(table.draft(&[1], &mut drafts), 0);
    // Another end, several times.
    let other = [5, 6, 7, 8, 11];
    for _ in 0..4 {
        table.learn(&other, 0);
    }
    table.draft(&other[..4], &mut drafts);
    assert_eq!(drafts[0].token, 11);
    assert!(NgramTable::new(vec![0; 100]).is_none());
}

/// Rows that cost nearly nothing are worth it, expensive ones are not, and a change is noticed.
#[test]
fn rows_are_worth_it_where_they_are_cheap() {
    let mut costs = Costs::new();
    let half = || (1..).map(|i| 0.5f32.powi(i)).take(8);
    assert_eq!(worth(&costs, 1, 10, 1, half()), 0, "nothing is known");
    costs.note(1, 10, 1e6);
    assert!(worth(&costs, 1, 10, 1, half()) > 0, "it is tried");
    for (row, expected) in [(0.05, 3..=4), (0.3, 1..=1), (0.6, 0..=0)] {
        let mut costs = Costs::new();
        for _ in 0..20 {
            for n in 1..=9u32 {
                costs.note(n as usize, 0, 1e6 * (1.0 + row * f64::from(n - 1)));
            }
        }
        let n = worth(&costs, 1, 0, 1, half());
        assert!(expected.contains(&n), "{row}: {n}");
    }
}

/// Drafting stops within a few tokens for a text whose drafts were never right.
#[test]
fn wrong_drafts_are_noticed() {
    let (mut own, session) = (Acceptance::of_text(), Acceptance::of_session());
    let class = Class::text(40);
    let first = own.rate(&session, class);
    for _ in 0..6 {
        own.note(class, false);
    }
    assert!(own.rate(&session, class) < 0.4 * first);
    for _ in 0..20 {
        own.note(class, true);
    }
    assert!(own.rate(&session, class) > 0.85);
}
