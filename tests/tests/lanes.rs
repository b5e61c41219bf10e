//! Models in precision lanes: `.slc` files whose weights have 3, 5 or 7 bits, and what refuses them elsewhere.

use sluice_core::engine::EngineLimits;
use sluice_core::gguf::Gguf;
use sluice_core::kernels::GgmlType::{self, LANE3, LANE5, LANE7};
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::quantize::quantize_rows;
use sluice_core::kernels::{CpuFeatures, KernelTable, KvType};
use sluice_core::model::ModelWeights;
use sluice_core::slc::Slc;
use sluice_make::quantize::{FileType, Plan, QuantizeRequest};
use sluice_make::slc::{FfnLayout, SlcFileError};
use sluice_tests::build::{Random, Shape};
use sluice_tests::fuzz;
use sluice_tests::packing::{InPlace, packed, unpacked};
use sluice_tests::run::{self, Room, Weights};

const LANES: [(GgmlType, usize); 3] = [(LANE3, 14), (LANE5, 22), (LANE7, 30)];

/// What `sluice quantize` packs: a GGUF file, but for its types.
fn quantised(ty: GgmlType) -> Vec<u8> {
    Shape { ty, ..Shape::SMALL }.file().bytes()
}

#[test]
fn a_packed_model_has_the_logits_of_its_tensors_on_every_table() {
    let mut random = Random(6);
    let ids: Vec<u32> = (0..33).map(|_| random.below(300)).collect();
    for (ty, _) in LANES {
        let file = quantised(ty);
        let mut in_place = InPlace::new(packed(&file, FfnLayout::Panels).unwrap()).unwrap();
        let mut weights = Weights::plan(&file).unwrap();
        let mut expected = None;
        for table in KernelTable::available(CpuFeatures::detect()) {
            for (n_workers, n_batch) in [(1, 33), (2, 33), (2, 1), (1, 7)] {
                let limits = EngineLimits {
                    n_batch,
                    n_outputs: n_batch,
                    type_k: KvType::F32,
                    type_v: KvType::F32,
                    ..EngineLimits::single(64, n_workers)
                };
                let hash = |model: ModelWeights<'_>| {
                    let mut room = Room::plan(model.config(), &limits).unwrap();
                    let mut engine = room.engine(model, table, &limits).unwrap();
                    run::hash(&run::logits(&mut engine, &ids, n_batch).unwrap())
                };
                let loaded = hash(weights.load(&file, n_workers).unwrap());
                let placed = hash(in_place.model().unwrap());
                let expected = *expected.get_or_insert(loaded);
                let case = (ty, table.name(), n_workers, n_batch);
                assert_eq!((loaded, placed), (expected, expected), "{case:?}");
            }
        }
    }
}

#[test]
fn a_payload_has_the_bytes_that_the_type_states() {
    for (ty, block_bytes) in LANES {
        let file = packed(&quantised(ty), FfnLayout::Panels).unwrap();
        let slc = Slc::parse(&file, file.len() as u64).unwrap();
        let mut n_lanes = 0;
        for (tensor, header) in slc.tensors().filter(|(tensor, _)| tensor.ty == ty) {
            let n_blocks = tensor.n_elements() / 32;
            assert_eq!(
                header.len_bytes,
                n_blocks * block_bytes as u64,
                "{}",
                tensor.name
            );
            n_lanes += 1;
        }
        assert!(n_lanes > 10, "{n_lanes}");
    }
}

#[test]
fn gguf_files_with_lanes_are_refused_by_name() {
    for (ty, _) in LANES {
        let file = quantised(ty);
        let error = Gguf::parse(&file, file.len() as u64).unwrap_err();
        let expected = format!("type {ty} exists in .slc files only: GGUF has no number for it");
        let message = error.to_string();
        assert!(message.ends_with(&expected), "{message}");
        assert!(message.contains("token_embd.weight"), "{message}");
        // The field itself is named by its place.
        let at = message.split("at byte ").nth(1).unwrap();
        let at: usize = at.split(':').next().unwrap().parse().unwrap();
        assert_eq!(file[at..at + 4], (ty as u32).to_le_bytes());
        let packed = packed(&file, FfnLayout::Panels).unwrap();
        let error = unpacked(&packed).unwrap_err();
        assert!(matches!(&error, SlcFileError::Lane { ty: found, .. } if *found == ty));
        assert!(error.to_string().contains("token_embd.weight"), "{error}");
    }
}

#[test]
fn lanes_by_neuron_are_refused_by_name() {
    let error = packed(&quantised(LANE5), FfnLayout::Neurons).unwrap_err();
    assert!(
        error.to_string().contains("type LANE5 has no such form"),
        "{error}"
    );
}

#[test]
fn a_plan_names_the_tensor_that_cannot_be_a_lane() {
    let shape = Shape {
        n_ff: 48,
        ..Shape::SMALL
    };
    let file = shape.file().bytes();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let request = |name: &str, into_slc| QuantizeRequest {
        pure: true,
        into_slc,
        allow_requantize: true,
        ..QuantizeRequest::new(name.parse::<FileType>().unwrap())
    };
    let check = |request: &QuantizeRequest| {
        let checked = Plan::new(&gguf, request).unwrap().check(request, None);
        checked.map_err(|error| error.to_string())
    };
    let error = check(&request("lane5", false)).unwrap_err();
    let expected = "token_embd.weight would become LANE5, which GGUF has no number for";
    assert!(error.starts_with(expected), "{error}");
    let error = check(&request("lane5", true)).unwrap_err();
    let expected =
        "blk.0.ffn_down.weight would become LANE5, but its rows of 48 are not a multiple of 32";
    assert!(error.starts_with(expected), "{error}");
    assert_eq!(check(&request("q8_0", true)), Ok(()));
}

/// Damaged headers of files with lanes: errors, or files that hold what they state.
#[test]
fn damaged_and_cut_files_are_refused_or_sound() {
    let mut random = Random(12);
    for (ty, _) in LANES {
        let gguf_file = Shape { ty, ..Shape::TINY }.file().bytes();
        let file = packed(&gguf_file, FfnLayout::Panels).unwrap();
        let slc = Slc::parse(&file, file.len() as u64).unwrap();
        let head = u32::try_from(slc.header().payload_offset()).unwrap();
        fuzz::slc(&file);
        for _ in 0..300 {
            let len = random.below(u32::try_from(file.len()).unwrap()) as usize;
            assert!(Slc::parse(&file[..len], len as u64).is_err());
            fuzz::slc(&file[..len]);
            let mut damaged = file.clone();
            for _ in 0..=random.below(3) {
                damaged[random.below(head) as usize] ^= 1 << random.below(8);
            }
            fuzz::slc(&damaged);
        }
        // Another lane's number: the payload's length is then wrong.
        let mut other = file.clone();
        let from = (ty as u32).to_le_bytes();
        let to = (if ty == LANE3 { LANE5 } else { LANE3 } as u32).to_le_bytes();
        for at in 0..head as usize - 4 {
            if other[at..at + 4] == from {
                other[at..at + 4].copy_from_slice(&to);
            }
        }
        fuzz::slc(&other);
    }
}

/// What an embedding provider does with a vector.
#[test]
fn vectors_are_packed_and_unpacked_without_a_model() {
    let mut random = Random(8);
    let x: Vec<f32> = (0..384).map(|_| random.signed()).collect();
    for ((ty, block_bytes), error_max) in LANES.into_iter().zip([0.3, 0.07, 0.016]) {
        let mut packed = vec![0; 384 / 32 * block_bytes];
        quantize_rows(ty, &x, x.len(), None, &mut packed).unwrap();
        let mut back = vec![0.0; x.len()];
        dequantize_row(ty, &packed, &mut back);
        let worst = x.iter().zip(&back).map(|(x, y)| (x - y).abs());
        let worst = worst.fold(0f32, f32::max);
        assert!(worst < error_max, "{ty}: {worst}");
        let error = quantize_rows(ty, &x[..40], 40, None, &mut packed[..35]).unwrap_err();
        let expected = format!("rows of 40 are not whole blocks of {ty}, which have 32");
        assert_eq!(error.to_string(), expected);
    }
}
