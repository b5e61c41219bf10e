//! Traces and profiles of a mixture's experts.

use super::accepted;
use serde_json::json;
use sluice::experts::policy::{EvictionPolicy, ExpertProfile};
use sluice::experts::trace::{EXPERTS_MAX, IDS_MAX, LAYERS_MAX};
use sluice_experts::{
    CacheSetup, PolicyHits, Pool, Recall, Steps, TraceFigures, TraceReader, TraceStep, recalls,
    replay,
};
use std::collections::BTreeSet;

/// A trace, line by line and as a whole, replayed where it is short; the same bytes as a profile.
pub fn trace(file: &[u8]) {
    let is_sound = lines(file);
    for n_expert in [None, Some(8)] {
        let read = accepted(Steps::read(TraceReader::new("t", file), n_expert));
        if let Some(steps) = read {
            assert!(is_sound, "a line of it is refused");
            whole(&steps);
        }
    }
    profile(file);
}

/// Reads every line, continuing after invalid ones. Returns whether all lines were valid.
fn lines(file: &[u8]) -> bool {
    let mut reader = TraceReader::new("t", file);
    let (mut step, mut is_sound) = (TraceStep::default(), true);
    // Each call takes a byte at least.
    for _ in 0..=file.len() {
        match accepted(reader.read(&mut step)) {
            Some(false) => return is_sound,
            Some(true) => check(&step),
            None => is_sound = false,
        }
    }
    panic!("{} bytes have more lines", file.len());
}

/// A step keeps what a trace promises, and is the same when it is written and read again.
fn check(step: &TraceStep) {
    assert!(step.layer < LAYERS_MAX);
    for ids in [&step.experts, &step.predicted] {
        assert!(ids.len() <= EXPERTS_MAX as usize);
        assert!(ids.iter().all(|&id| id < IDS_MAX));
        let different: BTreeSet<_> = ids.iter().collect();
        assert_eq!(different.len(), ids.len(), "twice");
    }
    assert!(step.cache_hit.is_empty() || step.cache_hit.len() == step.experts.len());
    let line = json!({
        "token": step.token, "layer": step.layer, "experts": step.experts,
        "cache_hit": step.cache_hit, "predicted": step.predicted,
    });
    let line = line.to_string();
    let mut again = TraceStep::default();
    let read = TraceReader::new("t", line.as_bytes()).read(&mut again);
    assert_eq!(accepted(read), Some(true));
    assert_eq!(again, *step);
}

/// All steps have experts of their layers, and caches have the hits that they can have.
fn whole(steps: &Steps) {
    let n_expert = steps.n_expert();
    for step in steps.iter() {
        assert!(step.experts.iter().all(|id| id / n_expert == step.layer));
        assert!(steps.layers().contains(&step.layer));
    }
    let n_uses: u64 = steps.profile().iter().map(|(_, count)| count).sum();
    let widths = steps.iter().map(|step| step.experts.len() as u64);
    assert_eq!(n_uses, widths.sum::<u64>());
    if steps.len() > STEPS_MAX || steps.n_ids() > IDS_REPLAYED_MAX {
        return;
    }
    let figures = TraceFigures::of(steps);
    assert!(figures.n_seen() <= steps.n_experts());
    for (n_slots, pool) in [(steps.widest(), Pool::All), (steps.n_ids(), Pool::Layer)] {
        let setup = CacheSetup { n_slots, pool };
        let Some(report) = accepted(replay(steps, setup, &EvictionPolicy::ALL, None)) else {
            continue;
        };
        let best = report.bypass.total().n_hits;
        let optimum = report.optimum.total().n_hits;
        assert!(optimum <= best);
        for PolicyHits { policy, hits } in &report.policies {
            let total = hits.total();
            assert_eq!(total.n_uses, n_uses, "{policy}");
            assert!(total.n_hits <= optimum, "{policy}");
        }
    }
    if let Some(layers) = recalls(steps) {
        let total = Recall::total(&layers);
        assert_eq!(total.n_used, n_uses);
        assert!(total.n_found.iter().all(|&found| found <= n_uses));
    }
}

/// What is read of a profile is the same when it is written and read again.
fn profile(file: &[u8]) {
    let Some(profile) = accepted(ExpertProfile::parse("p", file)) else {
        return;
    };
    let again = accepted(ExpertProfile::parse("p", profile.to_json().as_bytes()));
    assert_eq!(again.as_ref(), Some(&profile));
    assert!(profile.iter().all(|(id, _)| id < IDS_MAX));
    let order: Vec<u64> = profile.most_counted().map(|id| profile.count(id)).collect();
    assert_eq!(order.len(), profile.iter().len());
    assert!(order.is_sorted_by(|a, b| a >= b));
    assert_eq!(profile.for_slots(3).iter().len(), order.len().min(1));
}

/// Longer traces are not replayed: that takes time by steps and by experts.
const STEPS_MAX: usize = 64;
const IDS_REPLAYED_MAX: usize = 1 << 12;
