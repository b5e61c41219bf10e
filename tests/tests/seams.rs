//! What later parts depend on: groups of pages that windows release, keys of another layer, layers run alone, experts
//! lent one at a time, reports, and how often workers meet.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sluice_core::engine::{
    Engine, EngineError, EngineLimits, ExpertPart, ExpertSource, Loan, StepOptions, Wants,
};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::kernels::GgmlType;
use sluice_core::model::{Loader, Mixer, ModelConfig, ModelPlan, ModelWeights, Residency};
use sluice_core::state::StateError;
use sluice_core::team::StopFlag;
use sluice_core::trace::{EventRing, Phase, TraceEvent};
use sluice_tests::build::{File, Shape};
use sluice_tests::drive::{Bench, bits, drive};
use sluice_tests::goldens::OURS;
use sluice_tests::run::{self, Aligned, Room, Weights, YieldWait, entries, step};
use std::path::Path;
use std::sync::{Condvar, Mutex};

fn ids(n: usize) -> Vec<u32> {
    let n = u32::try_from(n).unwrap();
    (0..n).map(|i| 3 + (7 * i * i + 11 * i + 5) % 256).collect()
}

fn golden(name: &str) -> Vec<u8> {
    let golden = OURS.iter().find(|golden| golden.name == name).unwrap();
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(golden.model)).unwrap()
}

fn with<R>(file: &[u8], limits: &EngineLimits, act: impl FnOnce(&mut Engine<'_>) -> R) -> R {
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 1).unwrap();
    let mut room = Room::plan(model.config(), limits).unwrap();
    act(&mut room.engine(model, run::table(), limits).unwrap())
}

/// Windows of 8 tokens, a text of 530: most pages of the windowed layers are released.
#[test]
fn pages_that_a_window_has_left_are_given_back_and_no_bit_changes() {
    for name in ["gpt-oss", "gemma2", "gemma3"] {
        let file = golden(name);
        let run = |windows_give_back: bool, chunk: usize| {
            let limits = EngineLimits {
                n_batch: chunk,
                n_outputs: chunk,
                n_behind: 5,
                windows_give_back,
                ..EngineLimits::single(640, 2)
            };
            with(&file, &limits, |engine| {
                let rows = run::logits(engine, &ids(530), chunk).unwrap();
                let groups = engine.state().config().groups();
                let pages: Vec<usize> = groups.iter().map(|group| group.n_pages).collect();
                let behind = engine.state_mut().rewind(0, 525);
                assert_eq!(behind, Ok(()));
                let again = step(engine, &entries(&ids(530)[525..], 0, 525)).unwrap();
                assert_eq!(again, rows[525..], "{name}");
                let far = engine.state_mut().rewind(0, 100);
                (rows, pages, far)
            })
        };
        let (expected, pages, far) = run(false, 100);
        assert_eq!((pages.as_slice(), far), (&[10][..], Ok(())));
        for chunk in [100, 64, 7] {
            let (rows, pages, far) = run(true, chunk);
            assert!(rows == expected, "{name}: {chunk}");
            assert!(
                pages.len() == 2 && *pages.iter().min().unwrap() < 10,
                "{name}: {pages:?}"
            );
            let len = 100;
            assert_eq!(far, Err(StateError::CannotRewind { len, nearest: 0 }));
        }
    }
}

/// Layer 0 adds nothing to the stream, and layer 1 has the same norm, keys and values. So it may as well read the keys
/// and values of layer 0.
#[test]
fn a_layer_may_read_the_keys_of_another() {
    let shape = Shape {
        ty: GgmlType::F16,
        ..Shape::SMALL
    };
    let mut file = shape.file();
    for name in ["blk.0.attn_output.weight", "blk.0.ffn_down.weight"] {
        file.tensor(name).data.fill(0);
    }
    for name in ["attn_norm", "attn_k", "attn_v"] {
        let data = file.tensor(&format!("blk.0.{name}.weight")).data.clone();
        file.tensor(&format!("blk.1.{name}.weight")).data = data;
    }
    let (bytes, ids) = (file.bytes(), ids(70));
    let limits = EngineLimits {
        n_batch: 70,
        n_outputs: 70,
        ..EngineLimits::single(128, 2)
    };
    let expected = with(&bytes, &limits, |engine| {
        run::logits(engine, &ids, 70).unwrap()
    });

    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let own = ModelConfig::from_gguf(&gguf).unwrap();
    let mut reader = *own.kind(1);
    match &mut reader.mixer {
        Mixer::Attention(shape) => shape.keys_of = Some(0),
        _ => unreachable!(),
    }
    let mut config = own.clone();
    config.layers.clear();
    config.push_layer(*own.kind(0)).unwrap();
    config.push_layer(reader).unwrap();
    let plan = ModelPlan::new(&gguf, &config).unwrap();
    let mut weights = Aligned::new(plan.weight_bytes);
    let mut tables = Aligned::new(plan.table_bytes);
    let source = SliceSource(&bytes);
    let loader = Loader::new(&gguf, &config, weights.bytes_mut(), tables.bytes_mut()).unwrap();
    loader.work(&source, &mut [], || true).unwrap();
    let model = loader.finish(&source).unwrap();
    let whole = Weights::plan(&bytes)
        .unwrap()
        .load(&bytes, 1)
        .unwrap()
        .weight_bytes();
    assert!(
        model.weight_bytes() < whole,
        "keys and values of layer 1 are not loaded"
    );
    for (n_workers, chunk) in [(1, 70), (2, 13), (3, 1)] {
        let limits = EngineLimits {
            n_workers,
            ..limits
        };
        let mut room = Room::plan(model.config(), &limits).unwrap();
        let mut engine = room.engine(model.clone(), run::table(), &limits).unwrap();
        assert_eq!(engine.state().config().groups()[0].n_layer, 1);
        let found = run::logits(&mut engine, &ids, chunk).unwrap();
        assert!(found == expected, "{n_workers} {chunk}");
    }
}

/// One layer after the other over the caller's stream gives the stream of both.
#[test]
fn layers_run_alone_over_a_callers_stream() {
    for (name, n_layer) in [
        ("gemma2", 3),
        ("gpt-oss", 2),
        ("lfm2", 5),
        ("llama-yarn", 1),
    ] {
        let file = golden(name);
        let limits = EngineLimits {
            n_batch: 30,
            n_outputs: 30,
            ..EngineLimits::single(64, 2)
        };
        with(&file, &limits, |engine| {
            let n_embd = engine.model().config().n_embd;
            let scale = engine.model().config().embedding_scale;
            let ids = ids(30);
            let mut stream = vec![0.0; 30 * n_embd];
            for (id, x) in ids.iter().zip(stream.chunks_exact_mut(n_embd)) {
                engine.model().embed(*id, x);
                x.iter_mut().for_each(|x| *x *= scale);
            }
            let mut batch = entries(&ids, 0, 0);
            batch
                .iter_mut()
                .for_each(|entry| entry.wants = Wants::Hidden);
            let stop = StopFlag::new();
            let mut run = |layers, input: &[f32]| -> Vec<f32> {
                let options = StepOptions::new(&YieldWait, &stop);
                let step = engine.step_layers(layers, input, &batch, options).unwrap();
                std::thread::scope(|scope| {
                    for rank in 0..step.n_workers() {
                        let worker = step.join(rank).unwrap();
                        scope.spawn(|| worker.run());
                    }
                });
                let outputs = step.finish().unwrap();
                (0..30)
                    .flat_map(|i| outputs.hidden(i).unwrap().to_vec())
                    .collect()
            };
            let whole = run(0..n_layer, &stream);
            let mut parts = stream.clone();
            for layer in 0..n_layer {
                parts = run(layer..layer + 1, &parts);
            }
            // Norms after a block are applied at another place, with the same sum.
            assert!(bits(&parts) == bits(&whole), "{name}");
            assert_ne!(whole, stream);
            assert_eq!(engine.state().len(0), 0, "nothing is kept");
            // The whole pass gives the same after its output norm: up to a factor, for each row.
            let options = StepOptions::new(&YieldWait, &stop);
            let rows = drive(engine, &batch, options).unwrap().result.unwrap();
            let hidden = rows.hidden[29].clone().unwrap();
            assert!(
                hidden
                    .iter()
                    .zip(&whole[29 * n_embd..])
                    .all(|(a, b)| a * b >= 0.0),
                "{name}"
            );
            let options = StepOptions::new(&YieldWait, &stop);
            let short = engine.step_layers(0..1, &stream[1..], &batch, options);
            let short = short.map(drop).unwrap_err();
            assert!(matches!(short, EngineError::StreamLength { .. }));
            let far = engine.step_layers(0..n_layer + 1, &stream, &batch, options);
            let far = far.map(drop).unwrap_err();
            assert!(matches!(far, EngineError::UnknownLayers { .. }));
        });
    }
}

/// A source with room for a single expert, which it takes back before it lends another.
struct OneSlot<'m> {
    model: ModelWeights<'m>,
    /// The layer and expert that is lent, and how often.
    slot: Mutex<(Option<(usize, u32)>, usize)>,
    freed: Condvar,
    arrivals: AtomicU32,
    loads: AtomicUsize,
}

impl ExpertSource for OneSlot<'_> {
    fn lend(&self, layer: usize, expert: u32, part: ExpertPart) -> Loan<'_> {
        let mut slot = self.slot.lock().unwrap();
        let wanted = Some((layer, expert));
        if slot.0 != wanted {
            if slot.1 > 0 {
                return Loan::OnItsWay;
            }
            slot.0 = wanted;
            self.loads.fetch_add(1, Ordering::Relaxed);
        }
        slot.1 += 1;
        self.model.lend(layer, expert, part)
    }

    fn give_back(&self, layer: usize, expert: u32, _: ExpertPart) {
        let mut slot = self.slot.lock().unwrap();
        assert_eq!(slot.0, Some((layer, expert)));
        slot.1 -= 1;
        if slot.1 == 0 {
            self.arrivals.fetch_add(1, Ordering::SeqCst);
            self.freed.notify_all();
        }
    }

    fn arrivals(&self) -> Option<&AtomicU32> {
        Some(&self.arrivals)
    }
}

#[test]
fn room_for_one_expert_is_enough() {
    for name in ["gpt-oss", "gpt-oss-MXFP4_MOE"] {
        let file = golden(name);
        for n_workers in [1, 2, 5] {
            let limits = EngineLimits {
                n_batch: 40,
                n_outputs: 40,
                ..EngineLimits::single(64, n_workers)
            };
            with(&file, &limits, |engine| {
                let expected = step(engine, &entries(&ids(40), 0, 0)).unwrap();
                let source = OneSlot {
                    model: engine.model().clone(),
                    slot: Mutex::new((None, 0)),
                    freed: Condvar::new(),
                    arrivals: AtomicU32::new(0),
                    loads: AtomicUsize::new(0),
                };
                for chunk in [40, 9, 3] {
                    engine.state_mut().clear(0).unwrap();
                    let mut found = Vec::new();
                    for (i, part) in ids(40).chunks(chunk).enumerate() {
                        let stop = StopFlag::new();
                        let options = StepOptions {
                            experts: Some(&source),
                            ..StepOptions::new(&YieldWait, &stop)
                        };
                        let batch = entries(part, 0, i * chunk);
                        let rows = drive(engine, &batch, options).unwrap().result.unwrap();
                        found.extend(rows.logits.into_iter().flatten());
                    }
                    assert!(found == expected, "{name}: {n_workers} {chunk}");
                }
                let (_, n_lent) = *source.slot.lock().unwrap();
                assert_eq!(n_lent, 0, "all were given back");
                assert!(source.loads.into_inner() > 10);
            });
        }
    }
}

/// A model loaded without its experts takes them from a source, with the same bits, or reports what is missing.
#[test]
fn the_loader_leaves_experts_out_where_it_is_told_to() {
    let file = golden("gpt-oss");
    let limits = EngineLimits {
        n_outputs: 40,
        ..EngineLimits::single(64, 2)
    };
    let mut resident = Weights::plan(&file).unwrap();
    let resident = resident.load(&file, 1).unwrap();
    let expected = with(&file, &limits, |engine| {
        step(engine, &entries(&ids(40), 0, 0)).unwrap()
    });
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    let plan = ModelPlan::with_residency(&gguf, &config, Residency::WithoutExperts).unwrap();
    assert!(plan.weight_bytes < ModelPlan::new(&gguf, &config).unwrap().weight_bytes);
    let mut weights = Aligned::new(plan.weight_bytes);
    let mut tables = Aligned::new(plan.table_bytes);
    let (weights, tables) = (weights.bytes_mut(), tables.bytes_mut());
    let source = SliceSource(&file);
    let loader = Loader::with_plan(&gguf, &config, &plan, weights, tables).unwrap();
    loader.work(&source, &mut [], || true).unwrap();
    let model = loader.finish(&source).unwrap();
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, run::table(), &limits).unwrap();
    let batch = entries(&ids(40), 0, 0);
    let missing = EngineError::NotMadeFor { what: "experts" };
    assert_eq!(step(&mut engine, &batch).unwrap_err(), missing);
    let stop = StopFlag::new();
    let options = StepOptions {
        experts: Some(&resident),
        ..StepOptions::new(&YieldWait, &stop)
    };
    let rows = drive(&mut engine, &batch, options).unwrap().result.unwrap();
    let found: Vec<_> = rows.logits.into_iter().flatten().collect();
    assert!(found == expected);
}

#[test]
fn a_step_reports_rows_positions_and_time() {
    Bench::new(&Shape::SMALL).with(&EngineLimits::single(64, 1), |engine| {
        let ticks = AtomicU64::new(0);
        let clock = || ticks.fetch_add(5, Ordering::Relaxed);
        let stop = StopFlag::new();
        let mut options = StepOptions::new(&YieldWait, &stop);
        options.clock = Some(&clock);
        let mut batch = entries(&ids(4), 0, 0);
        batch
            .iter_mut()
            .take(3)
            .for_each(|entry| entry.wants = Wants::Nothing);
        let step = engine.step(&batch, options).unwrap();
        step.join(0).unwrap().run().unwrap();
        let report = *step.finish().unwrap().report();
        assert_eq!((report.n_rows, report.n_outputs), (4, 1));
        assert_eq!(report.n_positions, 1 + 2 + 3 + 4);
        assert_eq!(report.ticks, 5);
    });
}

/// Barriers of a step, and all other events: one for each call of work.
fn meetings(file: &File, n_workers: usize, n: usize) -> (usize, usize) {
    let ticks = AtomicU64::new(0);
    let clock = || ticks.fetch_add(1, Ordering::Relaxed);
    let mut memory = vec![TraceEvent::EMPTY; n_workers * 400];
    let mut ring = EventRing::new(&mut memory, n_workers, &clock);
    let limits = EngineLimits {
        n_batch: 40,
        n_outputs: 40,
        ..EngineLimits::single(64, n_workers)
    };
    Bench::of(file).with(&limits, |engine| {
        let stop = StopFlag::new();
        let mut options = StepOptions::new(&YieldWait, &stop);
        options.trace = Some(&ring);
        let batch = entries(&ids(n), 0, 0);
        drive(engine, &batch, options).unwrap().result.unwrap();
    });
    let mut counts = (0, 0);
    ring.drain(|event| {
        if event.rank == 0 {
            match event.phase {
                Phase::Barrier => counts.0 += 1,
                _ => counts.1 += 1,
            }
        }
    });
    counts
}

/// A layer of llama's shape costs 4 barriers in decode and 6 in prefill, where KV heads divide evenly among
/// the workers and a head's outputs are whole groups; and as many calls of work as it did when all layers were
/// of one shape.
#[test]
fn workers_meet_as_often_as_they_must() {
    let shape = |n_layer| Shape {
        n_layer,
        n_embd: 512,
        n_head: 8,
        head_dim_k: 64,
        head_dim_v: 64,
        n_head_kv: 2,
        ty: GgmlType::Q8_0,
        ..Shape::SMALL
    };
    for (n, expected) in [(1, (4, 8)), (8, (4, 8)), (20, (6, 8))] {
        let [three, two] = [3, 2].map(|n_layer| meetings(&shape(n_layer).file(), 2, n));
        let found = (three.0 - two.0, three.1 - two.1);
        assert_eq!(found, expected, "{n} tokens");
    }
}
