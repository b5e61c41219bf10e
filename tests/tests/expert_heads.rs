//! Heads that predict a token further, where the experts of their model stay on disk: theirs do, too, in the same cache,
//! and no bit is another.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice::Team;
use sluice::experts::ExpertOptions;
use sluice::file::{LoadMode, OutputFile};
use sluice::host::topology::Cores;
use sluice::model::{LoadOptions, ModelSource};
use sluice::session::StepHooks;
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, PackOptions, SlcWatch, pack};
use sluice_tests::run;
use std::path::{Path, PathBuf};

/// Mixtures whose heads are mixtures.
const NAMES: [&str; 3] = ["qwen35moe-mtp", "qwen3next-mtp", "glm4moe-norms"];
const N_TOKENS: u32 = 12;

#[test]
fn experts_of_heads_are_read_from_disk() {
    for name in NAMES {
        let plain = sluice_tests::fixture(&format!("models/{name}.gguf"));
        let packed = packed(&plain, name);
        for path in [&plain, &packed] {
            for mode in [LoadMode::Map, LoadMode::Read] {
                let expected = logits(path, mode, None);
                for share in [0, 40, 100] {
                    let found = logits(path, mode, Some(share));
                    assert!(found == expected, "{} {mode:?} {share}%", path.display());
                }
            }
        }
        std::fs::remove_file(packed).unwrap();
    }
}

/// The logits of a model and of its head, which read in turn. `share` of a hundred of all experts are in memory, one at
/// least; without it, all are, and none is read.
fn logits(path: &Path, mode: LoadMode, share: Option<usize>) -> Vec<Vec<u32>> {
    let team = Team::new(2, &Cores::detect()).unwrap();
    let opened = ModelSource::open(path, mode).unwrap();
    let load = |cache_bytes: Option<usize>| {
        let options = LoadOptions {
            experts: cache_bytes.map(ExpertOptions::new),
            ..LoadOptions::default()
        };
        opened.load_with(&team, options).unwrap()
    };
    let cache_bytes = share.map(|share| {
        let all = load(Some(1 << 30)).experts().unwrap().stats();
        let of_layers = opened.config().experts().map(|shape| shape.n_expert);
        assert!(all.n_experts > of_layers.sum(), "the head's are among them");
        all.slot_bytes * (all.n_experts * share / 100).max(1)
    });
    let model = load(cache_bytes);
    let head = model.next_token_head(&team).unwrap().unwrap();
    assert_eq!(head.weights().has_experts(), share.is_none());
    let needed = || model.experts().map_or(0, |experts| experts.stats().needed);
    let limits = sluice::Limits {
        n_ctx: 64,
        n_outputs: 32,
        ..sluice::Limits::default()
    };
    let mut sessions = [&model, &head].map(|model| model.session_on(&team, limits).unwrap());
    let n_embd = head.config().n_embd;
    let hidden = states(n_embd * N_TOKENS as usize);
    let ids: Vec<u32> = (0..N_TOKENS)
        .map(|i| 3 + (7 * i * i + 11 * i) % 256)
        .collect();
    let mut rows = Vec::new();
    for chunk in [12, 5, 1] {
        for (ids, first) in ids.chunks(chunk).zip((0..).step_by(chunk)) {
            let given = &hidden[first * n_embd..][..ids.len() * n_embd];
            for (session, hidden) in sessions.iter_mut().zip([None, Some(given)]) {
                let hooks = StepHooks {
                    hidden,
                    ..StepHooks::default()
                };
                let (batch, before) = (run::entries(ids, 0, first), needed());
                let read = session.run(&batch, &hooks, |outputs, _| {
                    let last = outputs.logits(batch.len() - 1).unwrap();
                    last.iter().map(|x| x.to_bits()).collect()
                });
                rows.push(read.unwrap());
                assert!(share.is_none() || needed() > before, "{}", path.display());
            }
        }
        for session in &mut sessions {
            session.with_state(|state| state.clear(0)).unwrap();
        }
    }
    rows
}

/// Hidden states by chance, about as large as norms give them.
fn states(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 * 2.0 - 2.0
    };
    core::iter::repeat_with(next).take(n).collect()
}

/// The model as `.slc`, in the temporary folder.
fn packed(path: &Path, name: &str) -> PathBuf {
    let opened = ModelSource::open(path, LoadMode::Read).unwrap();
    let packed = format!("sluice-heads-{}-{name}.slc", std::process::id());
    let packed = std::env::temp_dir().join(packed);
    let output = OutputFile::create(&packed, true).unwrap();
    let options = PackOptions {
        n_threads: 1,
        verify: false,
        ffn: FfnLayout::Panels,
    };
    let stop = StopFlag::new();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    pack(opened.file(), opened.gguf(), output, options, &watch).unwrap();
    packed
}
