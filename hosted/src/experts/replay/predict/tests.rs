//! Each arm's numbers by hand, from the formulas.

use super::super::steps::tests::{read, steps_of};
use super::unified::summed;
use super::*;
use core::fmt::Write as _;

/// A step of layer 1, where a layer has 4 experts: ids 4 to 7.
fn situation<'s>(before: &'s [u32], before_that: &'s [u32]) -> Situation<'s> {
    Situation {
        layer: 1,
        layer_index: 1,
        n_expert: 4,
        predicted: &[],
        before,
        is_same_token: true,
        before_that,
        last: &[],
    }
}

fn close(found: &[(u32, f64)], expected: &[(u32, f64)]) {
    let is_close = |((a, p), (b, q)): (&(u32, f64), &(u32, f64))| a == b && (p - q).abs() < 1e-12;
    let all = found.len() == expected.len() && found.iter().zip(expected).all(is_close);
    assert!(all, "{found:?}, expected {expected:?}");
}

#[test]
fn markov_by_hand() {
    let mut ranking = Ranking::new(4);
    for (members, expected) in [
        // c[1] = {5: 2, 6: 1, 7: 1}, so p(5|1) = (2+1)/(4+4), p(6|1) = p(7|1) = 2/8, p(4|1) = 1/8.
        (
            Members::Last,
            [(5, 3.0 / 8.0), (6, 0.25), (7, 0.25), (4, 1.0 / 8.0)],
        ),
        // And c[0] = {5: 1, 6: 1}: p(5|0) = p(6|0) = 2/6, p(4|0) = p(7|0) = 1/6.
        (
            Members::All,
            [
                (5, 3.0 / 8.0 + 2.0 / 6.0),
                (6, 0.25 + 2.0 / 6.0),
                (7, 0.25 + 1.0 / 6.0),
                (4, 1.0 / 8.0 + 1.0 / 6.0),
            ],
        ),
    ] {
        let mut arm = Markov::new(members);
        arm.observe(&situation(&[0, 1], &[]), &[5, 6]);
        arm.observe(&situation(&[1], &[]), &[5, 7]);
        let found: Vec<_> = arm
            .score(&situation(&[0, 1], &[]), &mut ranking)
            .best(4)
            .collect();
        close(&found, &expected);
        // What was never seen has the prior, 1/4, and ties go to the smaller id.
        let found: Vec<_> = arm
            .score(&situation(&[3], &[]), &mut ranking)
            .best(2)
            .collect();
        close(&found, &[(4, 0.25), (5, 0.25)]);
        assert!(
            arm.score(&situation(&[], &[]), &mut ranking)
                .best(4)
                .next()
                .is_none()
        );
    }
}

#[test]
fn second_order_by_hand() {
    let mut arm = SecondOrder::default();
    let mut ranking = Ranking::new(4);
    // The pair (9, 1) was followed by 7, the member 1 by 5, 5 and 7.
    arm.observe(&situation(&[1], &[]), &[5]);
    arm.observe(&situation(&[1], &[8]), &[5]);
    arm.observe(&situation(&[1], &[9]), &[7]);
    let mut best = |before_that: &[u32], n| -> Vec<(u32, f64)> {
        arm.score(&situation(&[1], before_that), n, &mut ranking)
            .best(n)
            .collect()
    };
    // p(5|1) = 3/7, p(7|1) = 2/7; p(7|9,1) = 2/5.
    close(
        &best(&[9], 2),
        &[(7, 0.5 * 2.0 / 7.0 + 0.5 * 2.0 / 5.0), (5, 0.5 * 3.0 / 7.0)],
    );
    // A list of one has 5 alone, and the pair adds 7.
    close(&best(&[9], 1), &[(5, 0.5 * 3.0 / 7.0)]);
    close(&best(&[4], 2), &[(5, 3.0 / 7.0), (7, 2.0 / 7.0)]);
}

#[test]
fn the_other_arms_by_hand() {
    let mut ranking = Ranking::new(4);
    let mut predict = |arm: &mut dyn Arm, situation: &Situation<'_>| {
        let best = arm.rank(situation, 4, &mut ranking).best(4);
        best.map(|(id, _)| id).collect::<Vec<_>>()
    };
    let last = |last| Situation {
        last,
        ..situation(&[], &[])
    };
    let mut affinity = Affinity::new(2);
    for experts in [[4, 5], [4, 5], [5, 6], [6, 7]] {
        affinity.observe(&last(&[]), &experts);
    }
    // With 4 went 5 twice; with 6 went 5 and 7 once.
    assert_eq!(predict(&mut affinity, &last(&[4, 6])), [5, 7]);
    assert_eq!(predict(&mut affinity, &last(&[])), [0_u32; 0]);

    let mut pre_gate = PreGate::default();
    pre_gate.observe(&situation(&[0, 1], &[]), &[6, 7]);
    pre_gate.observe(&situation(&[1], &[]), &[7]);
    assert_eq!(predict(&mut pre_gate, &situation(&[1], &[])), [7, 6]);
    let first = Situation {
        is_same_token: false,
        ..situation(&[1], &[])
    };
    assert_eq!(predict(&mut pre_gate, &first), [0_u32; 0]);

    let mut locality = Locality::new(2);
    for i in 0..256 {
        // 4 in all steps, 6 in 26 of 256, 5 in 25: less than a tenth.
        let experts: &[u32] = match i {
            0..26 => &[4, 6],
            26..51 => &[4, 5],
            _ => &[4],
        };
        locality.observe(&last(&[]), experts);
    }
    assert_eq!(predict(&mut locality, &last(&[])), [4, 6]);
    // The step that saw 6 first leaves the window.
    locality.observe(&last(&[]), &[7]);
    assert_eq!(predict(&mut locality, &last(&[])), [4]);
}

#[test]
fn the_unified_score_by_hand() {
    let mut arm = Unified::new(2, true);
    let mut ranking = Ranking::new(4);
    let seen = situation(&[1], &[]);
    for _ in 0..96 {
        arm.observe(&seen, &[5]);
    }
    arm.observe(&seen, &[5, 7]);
    let asked = Situation {
        predicted: &[6, 5],
        ..seen
    };
    arm.collect(&asked, 2, &mut ranking);
    // p(5|1) = 98/102, p(7|1) = 2/102. 5: 0.42 * 0.9999 + 0.33 * p + 0.25 = 0.987 is a seed; 7 goes with it, and 4
    // and 6 stand beside it.
    let found: Vec<_> = summed(&arm.sums, &asked, &mut ranking).best(4).collect();
    let five = 0.42 * 0.9999 + 0.33 * 98.0 / 102.0 + 0.25;
    let seven = 0.33 * 2.0 / 102.0 + 0.10;
    close(
        &found,
        &[(5, five), (6, 0.42 + 0.05 * 0.9999), (7, seven), (4, 0.05)],
    );
}

/// The layer, the step before, whether it is of the same token, the one before that, and the layer's last.
type Known<'s> = (usize, &'s [u32], bool, &'s [u32], &'s [u32]);

#[test]
fn steps_know_their_token_and_their_layer() {
    // Two tokens, layer by layer, and then one token alone.
    let lines: Vec<(u64, u32, &[u32])> = vec![
        (0, 0, &[0]),
        (1, 0, &[1]),
        (0, 2, &[2]),
        (1, 2, &[3]),
        (1, 3, &[0]),
        (2, 0, &[1]),
    ];
    let steps = steps_of(&lines, 4);
    let mut history = History::new(&steps);
    let mut found = Vec::new();
    for i in 0..steps.len() {
        let s = history.before(i);
        found.push((
            s.layer_index,
            s.before,
            s.is_same_token,
            s.before_that,
            s.last,
        ));
        history.passed(i);
    }
    let none: &[u32] = &[];
    let expected: [Known<'_>; 6] = [
        (0, none, false, none, none),
        (0, &[0], false, none, &[0]),
        (1, &[0], true, none, none),
        (1, &[1], true, none, &[8 + 2]),
        (2, &[8 + 3], true, &[1], none),
        (0, &[12], false, none, &[1]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn recall_and_precision_by_hand() {
    let text = "{\"token\":0,\"layer\":0,\"experts\":[1,2],\"predicted\":[2,0,3,1]}\n\
        {\"token\":1,\"layer\":0,\"experts\":[1,2],\"predicted\":[3]}\n\
        {\"token\":1,\"layer\":1,\"experts\":[0,3],\"predicted\":[0]}\n";
    let steps = read(text, None).unwrap();
    assert_eq!(cuts(steps.top_k()), [2, 4, 6, 4]);
    let reports = predictions(&steps);
    let names: Vec<_> = reports.iter().map(|report| report.name).collect();
    let expected = [
        "recorded",
        "markov",
        "markov-last",
        "markov-2",
        "affinity",
        "pre-gate",
        "locality",
        "unified",
        "unified+recorded",
    ];
    assert_eq!(names, expected);
    let first = Recall {
        n_used: 4,
        n_found: [1, 2, 2, 2],
        n_predicted: [3, 5, 5, 5],
    };
    assert_eq!(reports[0].layers[0], first);
    let total = reports[0].total();
    assert!((total.recall(0) - 2.0 / 6.0).abs() < 1e-12);
    assert!((total.precision(1) - 3.0 / 6.0).abs() < 1e-12);
}

/// Layer 1 follows from layer 0 without exception: whoever counts that finds it, after the first of each.
#[test]
fn arms_learn_what_is_there_to_learn() {
    let mut text = String::new();
    for token in 0..400_u32 {
        let a = token * token % 7 % 4;
        let b = (a * 3 + 1) % 4;
        let (first, second) = ([a, a + 4], [b, b + 4]);
        for (layer, experts) in [first, second].into_iter().enumerate() {
            let _ = writeln!(
                text,
                "{{\"token\":{token},\"layer\":{layer},\"experts\":{experts:?}}}"
            );
        }
    }
    let steps = read(&text, Some(8)).unwrap();
    let reports = predictions(&steps);
    let recall = |name: &str| {
        let found = reports.iter().find(|report| report.name == name).unwrap();
        found.layers[1].recall(0)
    };
    for name in ["markov", "markov-last", "markov-2", "pre-gate"] {
        assert!(recall(name) > 0.9, "{name}: {}", recall(name));
    }
    assert!(recall("locality") < 0.9);
    // Twice the same.
    let again = predictions(&steps);
    assert!(
        again
            .iter()
            .zip(&reports)
            .all(|(a, b)| a.layers == b.layers)
    );
}
