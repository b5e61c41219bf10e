//! Heads that predict a token further: hidden states and logits against an f64 evaluation of the formula, alone and
//! chained; the same bits whatever the kernels, the workers and the cut; and what is refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use sluice::Team;
use sluice::file::{LoadMode, OutputFile};
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice::session::StepHooks;
use sluice_core::engine::{
    BatchEntry, Engine, EngineError, EngineLimits, Outputs, StepOptions, Wants,
};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::kernels::{CpuFeatures, GgmlType, KernelTable, KvType};
use sluice_core::model::{Loader, ModelConfig, ModelError, ModelPlan, ModelWeights};
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, PackOptions, SlcWatch, pack};
use sluice_tests::build::{Shape, Tensor};
use sluice_tests::fuzz;
use sluice_tests::goldens::distance;
use sluice_tests::run::{self, Aligned, Room, Weights, YieldWait};
use std::path::{Path, PathBuf};

/// Models with a head, the width of their streams, and the number of layers before it. The values that `next_token.py`
/// computes for them are stored next to the models.
const NAMES: [(&str, usize, usize); 5] = [
    ("qwen35-mtp", 32, 2),
    ("qwen35moe-mtp", 16, 2),
    ("qwen3next-mtp", 16, 2),
    ("glm4moe-norms", 48, 2),
    ("deepseek2-mtp", 32, 1),
];
const N_VOCAB: usize = 272;
/// The number of tokens whose states are the trunk's, and of tokens after those, which read the head's own.
const N_GIVEN: usize = 12;
const N_OWN: usize = 4;

/// The tokens of the script.
fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| 3 + (7 * i * i + 11 * i + 5) % 256).collect()
}

/// What the script made: the states that the head reads, (N_GIVEN, n_embd), and its own and its logits, of all tokens.
struct Golden {
    file: Vec<u8>,
    given: Vec<f32>,
    hidden: Vec<Vec<f64>>,
    logits: Vec<Vec<f64>>,
}

impl Golden {
    fn open((name, n_embd, _): (&str, usize, usize)) -> Self {
        let path = |end: &str| sluice_tests::fixture(&format!("models/{name}.{end}"));
        let bytes = std::fs::read(path("next.f32")).unwrap();
        let floats: Vec<f32> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        let (given, rest) = floats.split_at(N_GIVEN * n_embd);
        let (hidden, logits) = rest.split_at((N_GIVEN + N_OWN) * n_embd);
        assert_eq!(logits.len(), (N_GIVEN + N_OWN) * N_VOCAB);
        let rows = |floats: &[f32], len| {
            let rows = floats.chunks_exact(len);
            rows.map(|row| row.iter().copied().map(f64::from).collect())
                .collect()
        };
        Self {
            file: std::fs::read(path("gguf")).unwrap(),
            given: given.to_vec(),
            hidden: rows(hidden, n_embd),
            logits: rows(logits, N_VOCAB),
        }
    }
}

/// Rows of hidden states and of logits.
type Rows = (Vec<Vec<f32>>, Vec<Vec<f32>>);

/// One step over tokens of sequence 0; appends what it gives back.
fn step(
    engine: &mut Engine<'_>,
    team: &Team,
    (ids, first): (&[u32], usize),
    hidden: Option<&[f32]>,
    rows: &mut Rows,
) -> Result<(), EngineError> {
    let mut batch = run::entries(ids, 0, first);
    for entry in &mut batch {
        entry.wants = Wants::LogitsAndHidden;
    }
    let stop = StopFlag::new();
    let options = StepOptions {
        hidden,
        ..StepOptions::new(&YieldWait, &stop)
    };
    let outputs: Outputs<'_> = run::step_on(team, engine, &batch, options)?;
    for i in 0..batch.len() {
        rows.0.push(outputs.hidden(i).unwrap().to_vec());
        rows.1.push(outputs.logits(i).unwrap().to_vec());
    }
    Ok(())
}

fn limits(kv_type: KvType, n_workers: usize) -> EngineLimits {
    EngineLimits {
        n_batch: 300,
        n_outputs: 300,
        type_k: kv_type,
        type_v: kv_type,
        ..EngineLimits::single(300, n_workers)
    }
}

/// The head's outputs for `ids`: the states before the first tokens are `given`, in steps of `chunk`; before the
/// others, its own.
fn follow(
    head: &ModelWeights<'_>,
    (table, kv_type): (&'static KernelTable, KvType),
    (n_workers, chunk): (usize, usize),
    given: &[f32],
    ids: &[u32],
) -> Rows {
    let (limits, team) = (
        limits(kv_type, n_workers),
        Team::new(n_workers, &Cores::detect()).unwrap(),
    );
    let mut room = Room::plan(head.config(), &limits).unwrap();
    let mut engine = room.engine(head.clone(), table, &limits).unwrap();
    let n_embd = head.config().n_embd;
    let mut rows = Rows::default();
    let n_given = given.len() / n_embd;
    for (i, ids) in ids[..n_given].chunks(chunk).enumerate() {
        let first = i * chunk;
        let hidden = &given[first * n_embd..(first + ids.len()) * n_embd];
        step(&mut engine, &team, (ids, first), Some(hidden), &mut rows).unwrap();
    }
    for i in n_given..ids.len() {
        let last = rows.0[i - 1].clone();
        step(&mut engine, &team, (&ids[i..=i], i), Some(&last), &mut rows).unwrap();
    }
    rows
}

/// Calls `f` with the model of a file and its head.
fn with_head<R>(file: &[u8], f: impl FnOnce(&ModelWeights<'_>, &ModelWeights<'_>) -> R) -> R {
    let mut weights = Weights::plan(file).unwrap();
    let trunk = weights.load(file, 2).unwrap();
    let mut weights = Weights::plan_head(file).unwrap().unwrap();
    let head = weights.load_head(file, &trunk).unwrap();
    f(&trunk, &head)
}

#[test]
fn heads_are_near_the_f64_evaluation() {
    for case in NAMES {
        let golden = Golden::open(case);
        let ids = ids(16);
        let far = |kv_type| {
            let how = ((run::table(), kv_type), (1, 5));
            let (hidden, logits) = with_head(&golden.file, |_, head| {
                follow(head, how.0, how.1, &golden.given, &ids)
            });
            let of = |found: &[Vec<f32>], expected| distance(found, expected).rms_relative;
            [of(&hidden, &golden.hidden), of(&logits, &golden.logits)]
        };
        let (f16, f32) = (far(KvType::F16), far(KvType::F32));
        println!(
            "{:14} states and logits: cache in f16 {f16:?}, in f32 {f32:?}",
            case.0
        );
        // Nothing but f32 arithmetic is left with an f32 cache.
        assert!(f32.iter().all(|far| *far < 1e-5), "{}: {f32:?}", case.0);
        assert!(f16.iter().all(|far| *far < 0.0025), "{}: {f16:?}", case.0);
    }
}

/// The hidden states of the trunk's steps are what the head reads; llama.cpp's are in the files.
#[test]
fn states_of_trunks_are_what_heads_read() {
    for case in NAMES {
        let (golden, n_embd) = (Golden::open(case), case.1);
        let found = with_head(&golden.file, |trunk, _| {
            let (limits, team) = (
                limits(KvType::F16, 2),
                Team::new(2, &Cores::detect()).unwrap(),
            );
            let mut room = Room::plan(trunk.config(), &limits).unwrap();
            let mut engine = room.engine(trunk.clone(), run::table(), &limits).unwrap();
            let mut rows = Rows::default();
            step(&mut engine, &team, (&ids(11), 0), None, &mut rows).unwrap();
            rows.0
        });
        // Before the first token there are zeros.
        let (first, given) = golden.given.split_at(n_embd);
        assert!(first.iter().all(|x| x.to_bits() == 0));
        let given: Vec<Vec<f64>> = given
            .chunks_exact(n_embd)
            .map(|row| row.iter().copied().map(f64::from).collect())
            .collect();
        let far = distance(&found, &given).rms_relative;
        println!("{:14} {far:.1e}", case.0);
        assert!(far < 0.0025, "{}: {far}", case.0);
    }
}

#[test]
fn kernels_workers_and_chunks_change_no_bit() {
    for case in NAMES {
        let golden = Golden::open(case);
        let ids = ids(104);
        // States by chance, about as large as norms give them.
        let mut state = 1u32;
        let given: Vec<f32> = core::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 * 2.0 - 2.0
        })
        .take(100 * case.1)
        .collect();
        with_head(&golden.file, |_, head| {
            let of = |table, cut| follow(head, (table, KvType::F16), cut, &given, &ids);
            let scalar = KernelTable::by_name("scalar", CpuFeatures::empty()).unwrap();
            let expected = of(scalar, (1, 300));
            for table in run::tables() {
                for cut in [(1, 300), (2, 7), (3, 64), (5, 1), (1, 33)] {
                    let found = of(table, cut);
                    assert!(found == expected, "{} {} {cut:?}", case.0, table.name());
                }
            }
        });
    }
}

/// What the shell makes of a file: a model, its head, a session of that.
fn through_the_shell(path: &Path, mode: LoadMode, given: &[f32]) -> Vec<Vec<f32>> {
    let team = Team::new(2, &Cores::detect()).unwrap();
    let model = ModelSource::open(path, mode).unwrap().load(&team).unwrap();
    let head = model.next_token_head(&team).unwrap().unwrap();
    assert!(head.next_token_head(&team).unwrap().is_none());
    let n_layer = model.config().n_layer();
    assert_eq!(
        (head.config().n_layer(), head.config().block(0)),
        (1, n_layer)
    );
    // It keeps what it shares.
    drop(model);
    let limits = sluice::Limits {
        n_ctx: 64,
        n_outputs: N_GIVEN,
        ..sluice::Limits::default()
    };
    let mut session = head.session_on(&team, limits).unwrap();
    let batch = run::entries(&ids(12), 0, 0);
    let hooks = StepHooks {
        hidden: Some(given),
        ..StepHooks::default()
    };
    let rows = session.run(&batch, &hooks, |outputs, _| {
        let rows = 0..batch.len();
        rows.map(|i| outputs.logits(i).unwrap().to_vec()).collect()
    });
    rows.unwrap()
}

#[test]
fn packed_files_and_maps_give_the_same_bits() {
    for case in NAMES {
        let golden = Golden::open(case);
        let how = ((run::table(), KvType::F16), (1, 5));
        let expected = with_head(&golden.file, |_, head| {
            follow(head, how.0, how.1, &golden.given, &ids(12)).1
        });
        let plain = sluice_tests::fixture(&format!("models/{}.gguf", case.0));
        let packed = packed(&golden.file, case.0);
        for path in [&plain, &packed] {
            for mode in [LoadMode::Map, LoadMode::Read] {
                let found = through_the_shell(path, mode, &golden.given);
                assert!(found == expected, "{} {mode:?}", path.display());
            }
        }
        std::fs::remove_file(packed).unwrap();
    }
}

/// The file as `.slc`, in the temporary folder.
fn packed(file: &[u8], name: &str) -> PathBuf {
    let path = format!("sluice-next-{}-{name}.slc", std::process::id());
    let path = std::env::temp_dir().join(path);
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let output = OutputFile::create(&path, true).unwrap();
    let stop = StopFlag::new();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    let options = PackOptions {
        n_threads: 1,
        verify: false,
        ffn: FfnLayout::Panels,
    };
    pack(&SliceSource(file), &gguf, output, options, &watch).unwrap();
    path
}

#[test]
fn a_head_takes_memory_for_what_is_its_own() {
    for (case, own_tables) in NAMES.iter().zip([0, 0, 1, 0, 2]) {
        let golden = Golden::open(*case);
        with_head(&golden.file, |trunk, head| {
            let config = head.config();
            assert_eq!((config.n_layer(), config.block(0)), (1, case.2));
            assert!(config.next_token.is_some() && !config.is_recurrent());
            assert!(trunk.config().next_token.is_none());
            assert_eq!(head.weight_bytes(), head.weight_memory().len());
        });
        let gguf = Gguf::parse(&golden.file, golden.file.len() as u64).unwrap();
        let block = format!("blk.{}.", case.2);
        let bytes: u64 = gguf
            .tensors()
            .filter(|tensor| tensor.name.starts_with(&block))
            .map(|tensor| tensor.len_bytes)
            .sum();
        let config = ModelConfig::next_token_head(&gguf).unwrap().unwrap();
        let plan = ModelPlan::new(&gguf, &config).unwrap();
        let table = (2 * N_VOCAB * case.1) as u64;
        // Its tensors, an output norm, and what panels and lines are rounded up to.
        assert!(bytes > own_tables * table);
        assert!((bytes..bytes + 4096 + bytes / 20).contains(&(plan.weight_bytes as u64)));
        // No tensor of the file is left over.
        let mut used = vec![false; usize::try_from(gguf.tensor_count()).unwrap()];
        let config = ModelConfig::from_gguf(&gguf).unwrap();
        ModelPlan::used_tensors(&gguf, &config, |index| used[index] = true).unwrap();
        assert!(used.iter().all(|used| *used), "{}", case.0);
    }
}

#[test]
fn hidden_states_are_for_heads_alone_and_one_for_each_entry() {
    let golden = Golden::open(NAMES[0]);
    with_head(&golden.file, |trunk, head| {
        let (limits, team) = (
            limits(KvType::F16, 1),
            Team::new(1, &Cores::detect()).unwrap(),
        );
        let refused = |model: &ModelWeights<'_>, hidden: Option<&[f32]>| {
            let mut room = Room::plan(model.config(), &limits).unwrap();
            let mut engine = room.engine(model.clone(), run::table(), &limits).unwrap();
            let mut rows = Rows::default();
            step(&mut engine, &team, (&[5, 6], 0), hidden, &mut rows)
        };
        let states = [0.5; 2 * 32];
        let wrong = |found| EngineError::HiddenLength {
            expected: 64,
            found,
        };
        assert_eq!(refused(head, None), Err(wrong(0)));
        assert_eq!(refused(head, Some(&states[..63])), Err(wrong(63)));
        assert_eq!(refused(head, Some(&states)), Ok(()));
        assert_eq!(
            refused(trunk, Some(&states)),
            Err(EngineError::HiddenUnwanted)
        );
        let mut room = Room::plan(head.config(), &limits).unwrap();
        let mut engine = room.engine(head.clone(), run::table(), &limits).unwrap();
        let (stop, mut entry) = (StopFlag::new(), BatchEntry::new(5, 0, 0, Wants::Logits));
        entry.adapter = Some(0);
        let options = StepOptions {
            hidden: Some(&states[..32]),
            ..StepOptions::new(&YieldWait, &stop)
        };
        let error = engine.step(&[entry], options).unwrap_err();
        assert_eq!(error, EngineError::HeadAdapted { entry: 0 });
    });
}

#[test]
fn a_head_wants_its_own_trunk() {
    let [first, other] = [NAMES[0], NAMES[4]].map(Golden::open);
    let gguf = Gguf::parse(&first.file, first.file.len() as u64).unwrap();
    let config = ModelConfig::next_token_head(&gguf).unwrap().unwrap();
    let plan = ModelPlan::new(&gguf, &config).unwrap();
    let (mut weights, mut tables) = (
        Aligned::new(plan.weight_bytes),
        Aligned::new(plan.table_bytes),
    );
    let (weights, tables) = (weights.bytes_mut(), tables.bytes_mut());
    let loader = Loader::new(&gguf, &config, weights, tables).unwrap();
    let source = SliceSource(&first.file);
    loader.work(&source, &mut [], || true).unwrap();
    assert_eq!(loader.finish(&source).unwrap_err(), ModelError::NeedsTrunk);
    with_head(&other.file, |trunk, head| {
        for model in [trunk, head] {
            let mut weights = Weights::plan_head(&first.file).unwrap().unwrap();
            let error = weights.load_head(&first.file, model).unwrap_err();
            assert_eq!(error, ModelError::OtherTrunk);
        }
    });
}

/// Damages the directory of tensors, and metadata before the vocabulary.
#[test]
fn damaged_headers_are_refused_or_run() {
    for case in [NAMES[1], NAMES[4]] {
        let Golden { mut file, .. } = Golden::open(case);
        let find = |text: &str| {
            file.windows(text.len())
                .position(|at| at == text.as_bytes())
        };
        let vocabulary = find("tokenizer.ggml").unwrap();
        let block = find(&format!("blk.{}.attn_norm", case.2)).unwrap();
        for at in (0..vocabulary).chain(block..block + 1500).step_by(2) {
            file[at] ^= 0x81;
            fuzz::gguf(&file);
            file[at] ^= 0x81;
        }
    }
}

#[test]
fn files_without_a_head_and_heads_of_others() {
    let head_of = |bytes: &[u8]| {
        let gguf = Gguf::parse(bytes, bytes.len() as u64).unwrap();
        ModelConfig::next_token_head(&gguf).map(|config| config.is_some())
    };
    let mut file = Shape::SMALL.file();
    assert_eq!(head_of(&file.bytes()), Ok(false));
    // The key alone does not make a head.
    let n_block = Shape::SMALL.n_layer + 1;
    file.set("llama.block_count", n_block);
    file.set("llama.nextn_predict_layers", 1);
    assert_eq!(head_of(&file.bytes()), Ok(false));
    let name = format!("blk.{}.nextn.eh_proj.weight", n_block - 1);
    file.tensors.push(Tensor {
        name: name.clone(),
        dims: vec![2, 2],
        ty: GgmlType::F32,
        data: vec![0; 16],
    });
    let error = head_of(&file.bytes()).unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
}
