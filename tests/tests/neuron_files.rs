//! Files whose feed-forward networks are stored by row and by neuron: ordinary steps have the logits of the file in
//! panels, bit for bit, and the GGUF file comes back.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice::adapter::{AdapterBlend, AdapterFile, Factors, LoadedAdapter, Precision};
use sluice::file::GgufHeader;
use sluice_core::engine::{Engine, EngineLimits, StepOptions, Wants};
use sluice_core::gguf::Gguf;
use sluice_core::kernels::neuron::Form;
use sluice_core::kernels::{GgmlType, KvType};
use sluice_core::model::{ModelConfig, ModelWeights};
use sluice_core::slc::{FileHeader, Layout, Slc, TensorHeader, seal};
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, NoFormReason, SlcFileError};
use sluice_tests::build::{File, Random, Shape};
use sluice_tests::goldens;
use sluice_tests::packing::{InPlace, TYPES_BY_NEURON, packed, unpacked, with_quantised_ffn};
use sluice_tests::run::{self, Room, Weights, YieldWait, entries};

fn by_neuron(gguf_file: &[u8]) -> Vec<u8> {
    packed(gguf_file, FfnLayout::Neurons).unwrap()
}

fn limits(n_workers: usize) -> EngineLimits {
    EngineLimits {
        n_batch: 600,
        n_outputs: 600,
        type_k: KvType::F16,
        type_v: KvType::F16,
        ..EngineLimits::single(640, n_workers)
    }
}

fn with<T>(
    model: ModelWeights<'_>,
    limits: &EngineLimits,
    work: impl FnOnce(&mut Engine<'_>) -> T,
) -> T {
    let mut room = Room::plan(model.config(), limits).unwrap();
    work(&mut room.engine(model, run::table(), limits).unwrap())
}

/// A hash of all logits, in steps of `chunk` tokens.
fn hash(model: ModelWeights<'_>, ids: &[u32], chunk: usize) -> u64 {
    with(model, &limits(2), |engine| {
        run::hash(&run::logits(engine, ids, chunk).unwrap())
    })
}

/// Headers of the tensors in the two layouts.
fn headers(file: &[u8]) -> Vec<TensorHeader> {
    let slc = Slc::parse(file, file.len() as u64).unwrap();
    let headers = slc.tensors().map(|(_, header)| header);
    headers
        .filter(|header| header.form != Form::Panels)
        .collect()
}

#[test]
fn every_family_has_the_logits_of_panels() {
    let (mut n_models, mut n_mixtures, mut n_without_gate) = (0, 0, 0);
    let mut refused = Vec::new();
    for (golden, folder) in goldens::all() {
        let gguf_file = with_quantised_ffn(&std::fs::read(folder.join(golden.model)).unwrap());
        let file = match packed(&gguf_file, FfnLayout::Neurons) {
            Ok(file) => file,
            Err(error) => {
                let is_named = matches!(
                    &error,
                    SlcFileError::NoNeuronForm { .. } | SlcFileError::NoFeedForward
                );
                assert!(is_named, "{}: {error}", golden.name);
                refused.push(format!("{}: {error}", golden.name));
                continue;
            }
        };
        assert!(unpacked(&file).unwrap() == gguf_file, "{}", golden.name);
        let headers = headers(&file);
        let has = |of: &dyn Fn(&TensorHeader) -> bool| usize::from(headers.iter().any(of));
        n_models += 1;
        n_mixtures += has(&|header| header.layout == Layout::NeuronRecords);
        n_without_gate += 1 - has(&|header| header.form == Form::Rows);
        let mut weights = Weights::plan(&gguf_file).unwrap();
        let mut in_place = InPlace::new(file).unwrap();
        for chunk in [600, 3, 1] {
            let ids = &golden.ids[..golden.ids.len().min(40 * chunk)];
            let expected = hash(weights.load(&gguf_file, 1).unwrap(), ids, chunk);
            let found = hash(in_place.model().unwrap(), ids, chunk);
            assert_eq!(found, expected, "{}: {chunk} tokens a step", golden.name);
        }
    }
    // Most of the others have widths that are not a multiple of 32.
    let counts = (n_models, n_mixtures, n_without_gate);
    let is_enough = n_models > 45 && n_mixtures > 6 && n_without_gate > 2;
    assert!(is_enough, "{counts:?}; {refused:#?}");
}

/// Shapes of a network and of a mixture whose matrices have whole and partial chunks and groups.
fn shapes(ty: GgmlType) -> [Shape; 2] {
    let dense = Shape {
        ty,
        n_embd: if ty.block_len() > 32 { 256 } else { 288 },
        n_ff: if ty.block_len() > 32 { 768 } else { 352 },
        n_layer: 1,
        ..Shape::SMALL
    };
    let mixture = Shape {
        n_expert: 4,
        n_expert_used: 2,
        seed: 2,
        ..dense
    };
    [dense, mixture]
}

#[test]
fn every_type_comes_back_and_has_the_logits_of_panels() {
    let ids: Vec<u32> = (0..48).map(|i| i * 37 % 300).collect();
    for ty in TYPES_BY_NEURON {
        for shape in shapes(ty) {
            let gguf_file = shape.file().bytes();
            let file = by_neuron(&gguf_file);
            assert!(unpacked(&file).unwrap() == gguf_file, "{ty}");
            assert_eq!(headers(&file).len(), 2, "{ty}");
            let mut weights = Weights::plan(&gguf_file).unwrap();
            let mut in_place = InPlace::new(file).unwrap();
            for chunk in [48, 5, 1] {
                let expected = hash(weights.load(&gguf_file, 1).unwrap(), &ids, chunk);
                let found = hash(in_place.model().unwrap(), &ids, chunk);
                assert_eq!(found, expected, "{ty}: {chunk} tokens a step");
            }
        }
    }
}

#[test]
fn biases_have_the_bits_of_panels() {
    let ids: Vec<u32> = (0..20).map(|i| i * 37 % 300).collect();
    for shape in shapes(GgmlType::Q4_1) {
        let mut file = shape.file();
        let plain = hash(
            Weights::plan(&file.bytes())
                .unwrap()
                .load(&file.bytes(), 1)
                .unwrap(),
            &ids,
            20,
        );
        let mut random = Random(3);
        for tensor in file.tensors.clone() {
            let is_of_ffn = tensor.name.contains(".ffn_") && tensor.dims.len() > 1;
            if is_of_ffn && !tensor.name.contains("inp") {
                let n: u64 = tensor.dims[1..].iter().product();
                let values: Vec<f32> = (0..n).map(|_| 0.1 * random.signed()).collect();
                file.add_vector(&tensor.name.replace(".weight", ".bias"), &values);
                let bias = file.tensors.last_mut().unwrap();
                bias.dims = tensor.dims[1..].to_vec();
            }
        }
        let gguf_file = file.bytes();
        let mut weights = Weights::plan(&gguf_file).unwrap();
        let expected = hash(weights.load(&gguf_file, 1).unwrap(), &ids, 20);
        assert_ne!(expected, plain);
        let mut in_place = InPlace::new(by_neuron(&gguf_file)).unwrap();
        assert_eq!(hash(in_place.model().unwrap(), &ids, 20), expected);
    }
}

/// Pairs for each matrix of a feed-forward network, all experts included.
fn factors(gguf_file: &[u8]) -> Vec<Factors> {
    let gguf = Gguf::parse(gguf_file, gguf_file.len() as u64).unwrap();
    let mut random = Random(7);
    let mut all = Vec::new();
    for tensor in gguf.tensors().filter(|t| t.name.contains(".ffn_")) {
        let [n_cols, n_rows, n_parts] = [0, 1, 2].map(|i| tensor.dims[i]);
        if tensor.n_dims < 2 || tensor.name.contains("inp") {
            continue;
        }
        let n_parts = u32::try_from(n_parts).unwrap();
        for part in 0..n_parts {
            let mut vector = |n: u64, size: f32| (0..n).map(|_| size * random.signed()).collect();
            all.push(Factors {
                tensor: tensor.name.into(),
                part: (tensor.n_dims > 2).then_some(part),
                rank: 3,
                a: vector(3 * n_cols, 0.3),
                b: vector(n_rows * 3, 0.05),
                scale: 1.5,
            });
        }
    }
    all
}

#[test]
fn adapters_of_gate_up_and_down_have_the_bits_of_panels() {
    let ids: Vec<u32> = (0..30).map(|i| i * 37 % 300).collect();
    for shape in shapes(GgmlType::Q4_0) {
        let gguf_file = shape.file().bytes();
        let mut in_place = InPlace::new(by_neuron(&gguf_file)).unwrap();
        let mut weights = Weights::plan(&gguf_file).unwrap();
        let config = weights.load(&gguf_file, 1).unwrap().config().clone();
        let file = AdapterFile {
            factors: factors(&gguf_file),
            ..AdapterFile::default()
        };
        let adapter = LoadedAdapter::load(&config, &file, Precision::Exact).unwrap();
        let blend = AdapterBlend::new(vec![(adapter, 0.8)]);
        let logits = |model: ModelWeights<'_>, chunk: usize, has_adapter: bool| {
            let limits = EngineLimits {
                adapter_rank: blend.rank(),
                ..limits(2)
            };
            with(model, &limits, |engine| {
                let (parts, stop) = ([blend.parts()], StopFlag::new());
                let mut options = StepOptions::new(&YieldWait, &stop);
                if has_adapter {
                    options.adapters = &parts;
                }
                run::hash(&run::in_steps(engine, &ids, chunk, options).unwrap().0)
            })
        };
        for chunk in [30, 4, 1] {
            let expected = logits(weights.load(&gguf_file, 1).unwrap(), chunk, true);
            assert_eq!(logits(in_place.model().unwrap(), chunk, true), expected);
            assert_ne!(logits(in_place.model().unwrap(), chunk, false), expected);
        }
    }
}

#[test]
fn some_layers_have_the_bits_of_panels() {
    let shape = Shape {
        n_layer: 3,
        ..shapes(GgmlType::Q5_1)[0]
    };
    let gguf_file = shape.file().bytes();
    let ids: Vec<u32> = (0..20).map(|i| i * 37 % 300).collect();
    let hidden = |model: ModelWeights<'_>| {
        with(model, &limits(2), |engine| {
            let n_embd = engine.model().config().n_embd;
            let mut stream = vec![0.0; ids.len() * n_embd];
            for (id, x) in ids.iter().zip(stream.chunks_exact_mut(n_embd)) {
                engine.model().embed(*id, x);
            }
            let mut batch = entries(&ids, 0, 0);
            let wants = |entry: &mut sluice_core::engine::BatchEntry| entry.wants = Wants::Hidden;
            batch.iter_mut().for_each(wants);
            let stop = StopFlag::new();
            let options = StepOptions::new(&YieldWait, &stop);
            let step = engine.step_layers(1..3, &stream, &batch, options).unwrap();
            std::thread::scope(|scope| {
                for rank in 0..step.n_workers() {
                    let worker = step.join(rank).unwrap();
                    scope.spawn(|| worker.run());
                }
            });
            let outputs = step.finish().unwrap();
            let rows: Vec<_> = (0..ids.len())
                .map(|i| outputs.hidden(i).unwrap().to_vec())
                .collect();
            run::hash(&rows)
        })
    };
    let mut weights = Weights::plan(&gguf_file).unwrap();
    let mut in_place = InPlace::new(by_neuron(&gguf_file)).unwrap();
    let expected = hidden(weights.load(&gguf_file, 1).unwrap());
    assert_eq!(hidden(in_place.model().unwrap()), expected);
}

/// The reason for which the tensor called `name` has no form.
fn refused(file: &File, name: &str) -> NoFormReason {
    match packed(&file.bytes(), FfnLayout::Neurons) {
        Err(SlcFileError::NoNeuronForm {
            name: found,
            reason,
        }) => {
            assert_eq!(found, name);
            reason
        }
        other => panic!("{name}: {:?}", other.map(|file| file.len())),
    }
}

#[test]
fn what_has_no_form_is_named() {
    let file = |ty| shapes(ty)[0].file();
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
        let reason = refused(&file(ty), "blk.0.ffn_up.weight");
        assert_eq!(reason, NoFormReason::Float(ty));
        assert!(reason.to_string().contains("quantise"));
    }
    let large_blocks = Shape {
        ty: GgmlType::IQ2_S,
        n_layer: 1,
        ..Shape::SMALL
    };
    let reason = refused(&large_blocks.file(), "blk.0.ffn_up.weight");
    assert_eq!(reason, NoFormReason::Type(GgmlType::IQ2_S));
    // 272 rows are a multiple of 16, not of 32.
    let mut odd = file(GgmlType::Q4_0);
    let down = odd.tensor("blk.0.ffn_down.weight");
    down.dims[1] = 272;
    down.data.truncate(352 / 32 * 18 * 272);
    let reason = refused(&odd, "blk.0.ffn_down.weight");
    assert!(reason.to_string().contains("272 x 352"), "{reason}");
    // A vocabulary has no network.
    let vocabulary = std::fs::read(sluice_tests::fixture("tokenizer/bpe.gguf")).unwrap();
    let error = packed(&vocabulary, FfnLayout::Neurons).unwrap_err();
    assert!(matches!(error, SlcFileError::NoFeedForward), "{error}");
}

/// Infinite and NaN scales of up or down: 0 times one of them is not 0.
#[test]
fn scales_that_are_not_finite_are_named() {
    for ty in TYPES_BY_NEURON {
        for &(at, _) in sluice_tests::build::scales(ty) {
            for bits in [0x7c00u16, 0xfc00, 0x7e00] {
                for name in ["blk.0.ffn_up.weight", "blk.0.ffn_down.weight"] {
                    let mut file = shapes(ty)[0].file();
                    let tensor = file.tensor(name);
                    let n_rows = usize::try_from(tensor.dims[1]).unwrap();
                    let row_bytes = tensor.data.len() / n_rows;
                    // The last block of row 17.
                    let block = 18 * row_bytes - ty.block_bytes();
                    tensor.data[block + at..][..2].copy_from_slice(&bits.to_le_bytes());
                    let reason = refused(&file, name);
                    assert_eq!(reason, NoFormReason::NotFinite { row: 17 }, "{ty}");
                }
            }
        }
    }
    // In panels, and in a gate, they are kept.
    let mut file = shapes(GgmlType::Q4_0)[0].file();
    let gate = file.tensor("blk.0.ffn_gate.weight");
    gate.data[..2].copy_from_slice(&[0, 0x7c]);
    let gguf_file = file.bytes();
    assert!(unpacked(&by_neuron(&gguf_file)).unwrap() == gguf_file);
    // The one of the fifth row of the third expert.
    let mut file = shapes(GgmlType::Q4_0)[1].file();
    let down = file.tensor("blk.0.ffn_down_exps.weight");
    let row = 2 * 288 + 4;
    down.data[row * 352 / 32 * 18..][..2].copy_from_slice(&[0, 0x7c]);
    let reason = refused(&file, "blk.0.ffn_down_exps.weight");
    assert_eq!(reason, NoFormReason::NotFinite { row: row as u64 });
}

/// A byte of the headers that is wrong under a right checksum: the file is refused, or its model runs.
#[test]
fn hostile_headers_are_refused_or_harmless() {
    for shape in [
        Shape::TINY,
        Shape {
            n_expert: 3,
            n_expert_used: 2,
            ..Shape::TINY
        },
    ] {
        let shape = Shape {
            ty: GgmlType::Q8_0,
            n_embd: 64,
            n_ff: 96,
            ..shape
        };
        let file = by_neuron(&shape.file().bytes());
        let slc = Slc::parse(&file, file.len() as u64).unwrap();
        let FileHeader { n_tensors, .. } = *slc.header();
        let table = usize::try_from(slc.header().table_offset()).unwrap();
        let head_len = usize::try_from(slc.header().payload_offset()).unwrap();
        let mut n_run = 0;
        for at in table..table + 64 * n_tensors as usize {
            for value in [0, 1, 2, 3, 4, 5, 0x40, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = value;
                seal(&mut damaged[..head_len]);
                if Slc::parse(&damaged, damaged.len() as u64).is_err() {
                    continue;
                }
                let Ok(mut in_place) = InPlace::new(damaged) else {
                    continue;
                };
                if let Ok(model) = in_place.model() {
                    n_run += 1;
                    if n_run % 16 == 0 {
                        let _any = hash(model, &[1, 2, 3], 2);
                    }
                }
            }
        }
        assert!(n_run > 100, "{n_run}");
    }
}

#[test]
fn every_truncation_is_an_error_and_damage_is_named() {
    let file = by_neuron(&shapes(GgmlType::Q4_K)[1].file().bytes());
    let slc = Slc::parse(&file, file.len() as u64).unwrap();
    let head_len = usize::try_from(slc.header().payload_offset()).unwrap();
    let payloads = slc.tensors().flat_map(|(_, header)| {
        let matrices = (0..header.n_matrices()).map(move |i| header.matrix_offset(i));
        matrices.flat_map(|at| [at, at + 1])
    });
    let borders = payloads.map(|at| usize::try_from(at).unwrap());
    for len in (0..head_len).chain(borders).chain([file.len() - 1]) {
        let error = Slc::parse(&file[..len], len as u64).map(drop).unwrap_err();
        assert!(error.to_string().contains("cut"), "{len}: {error}");
    }
    for (tensor, header) in slc.tensors().filter(|(_, t)| t.form != Form::Panels) {
        for at in [header.offset, header.end() - 1] {
            let mut damaged = file.clone();
            damaged[usize::try_from(at).unwrap()] ^= 1;
            let message = unpacked(&damaged).unwrap_err().to_string();
            assert!(message.contains(tensor.name), "{message}");
        }
    }
}

/// Gate and up in one tensor stay in panels, and so does up without a gate.
#[test]
fn forms_follow_from_the_network() {
    let fused = Shape {
        arch: "phi3",
        ..shapes(GgmlType::Q8_0)[0]
    };
    let forms = |gguf_file: &[u8]| -> Vec<(String, Form)> {
        let file = by_neuron(gguf_file);
        let slc = Slc::parse(&file, file.len() as u64).unwrap();
        let of_ffn = slc.tensors().filter(|(t, _)| t.name.contains("ffn_"));
        of_ffn
            .filter(|(tensor, _)| tensor.n_dims > 1)
            .map(|(tensor, header)| (tensor.name.replace(".weight", ""), header.form))
            .collect()
    };
    let expected = [
        ("blk.0.ffn_up", Form::Panels),
        ("blk.0.ffn_down", Form::Neurons),
    ];
    let expected = expected.map(|(name, form)| (name.to_owned(), form));
    assert_eq!(forms(&fused.file().bytes()), expected);
    let mut headless = GgufHeader::new();
    headless.set("general.architecture", "llama");
    headless.add_tensor("blk.0.ffn_up.weight", &[64, 96], GgmlType::Q8_0);
    headless.add_tensor("blk.0.ffn_down.weight", &[96, 64], GgmlType::Q8_0);
    let mut bytes = headless.bytes();
    bytes.resize(bytes.len() + 2 * 96 * 68, 0);
    assert_eq!(forms(&bytes), expected);
    let gated = forms(&shapes(GgmlType::Q8_0)[1].file().bytes());
    let of = |part: &str| {
        gated
            .iter()
            .find(|(name, _)| name.contains(part))
            .unwrap()
            .1
    };
    assert_eq!(of("gate_exps"), Form::Panels);
    assert_eq!(of("up_exps"), Form::Rows);
    assert_eq!(of("down_exps"), Form::Neurons);
}

/// Panel file and neuron file are the same model: one configuration, one GGUF file.
#[test]
fn both_files_hold_the_same_gguf_file() {
    let gguf_file = shapes(GgmlType::Q6_K)[0].file().bytes();
    let headers = [FfnLayout::Panels, FfnLayout::Neurons].map(|ffn| {
        let file = packed(&gguf_file, ffn).unwrap();
        let slc = Slc::parse(&file, file.len() as u64).unwrap();
        let config = ModelConfig::from_gguf(slc.gguf()).unwrap();
        (slc.header().gguf_sha256, format!("{config:?}"))
    });
    assert_eq!(headers[0], headers[1]);
}
