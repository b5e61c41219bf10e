//! `.slc` files through core alone: the logits of every golden model are the recorded ones when
//! its weights lie in place, and damaged files are refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_core::engine::EngineLimits;
use sluice_core::gguf::source::SliceSource;
use sluice_core::kernels::KvType;
use sluice_core::model::ModelWeights;
use sluice_core::slc::{FileHeader, Gap, Layout, Slc, TensorHeader, seal};
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, SlcFileError, SlcWatch, verify};
use sluice_tests::goldens;
use sluice_tests::packing::{self, InPlace, unpacked};
use sluice_tests::run::{self, Room, Weights};

fn packed(gguf_file: &[u8]) -> Vec<u8> {
    packing::packed(gguf_file, FfnLayout::Panels).unwrap()
}

#[test]
fn golden_models_in_place_have_the_logits_of_the_gguf_file() {
    let limits = EngineLimits {
        n_batch: 600,
        n_outputs: 600,
        type_k: KvType::F16,
        type_v: KvType::F16,
        ..EngineLimits::single(640, 2)
    };
    let mut n_mixtures = 0;
    for (golden, folder) in goldens::all() {
        let gguf_file = std::fs::read(folder.join(golden.model)).unwrap();
        let mut weights = Weights::plan(&gguf_file).unwrap();
        let hash = |model: ModelWeights<'_>| {
            let mut room = Room::plan(model.config(), &limits).unwrap();
            let mut engine = room.engine(model, run::table(), &limits).unwrap();
            let logits = run::logits(&mut engine, golden.ids, 600).unwrap();
            run::hash(&logits)
        };
        let expected = hash(weights.load(&gguf_file, 1).unwrap());
        let file = packed(&gguf_file);
        assert_eq!(unpacked(&file).unwrap(), gguf_file, "{}", golden.name);
        let stacked = stacked(&file);
        let mut in_place = InPlace::new(file).unwrap();
        assert_eq!(hash(in_place.model().unwrap()), expected, "{}", golden.name);
        if let Some(stacked) = stacked {
            n_mixtures += 1;
            assert_eq!(unpacked(&stacked).unwrap(), gguf_file, "{}", golden.name);
            let mut in_place = InPlace::new(stacked).unwrap();
            assert_eq!(hash(in_place.model().unwrap()), expected, "{}", golden.name);
        }
    }
    assert!(n_mixtures > 10, "{n_mixtures}");
}

/// A file as it was packed before experts had records; `None` where it has none.
fn stacked(file: &[u8]) -> Option<Vec<u8>> {
    let slc = Slc::parse(file, file.len() as u64).unwrap();
    let has_records = |t: &TensorHeader| t.layout == Layout::ExpertRecords;
    if !slc.tensors().any(|(_, header)| has_records(&header)) {
        return None;
    }
    let range = |from: u64, len: u64| {
        let from = usize::try_from(from).unwrap();
        from..from + usize::try_from(len).unwrap()
    };
    let mut out = file[range(0, slc.header().payload_offset())].to_vec();
    let mut at = slc.header().table_offset();
    let mut end = slc.header().payload_offset();
    for (tensor, header) in slc.tensors() {
        let layout = match has_records(&header) {
            true => Layout::Stack,
            false => header.layout,
        };
        let stack = TensorHeader {
            checksum: header.checksum,
            ..TensorHeader::new(&tensor, layout, end).unwrap()
        };
        out[range(at, 64)].copy_from_slice(&stack.to_bytes());
        out.resize(range(0, stack.offset).end, 0);
        for i in 0..header.n_matrices() {
            out.extend(&file[range(header.matrix_offset(i), header.matrix_bytes())]);
        }
        (at, end) = (at + 64, stack.end());
    }
    for gap in slc.gaps() {
        let moved = Gap { offset: end, ..gap };
        out[range(at, 32)].copy_from_slice(&moved.to_bytes());
        out.extend(&file[range(gap.offset, gap.len_bytes)]);
        (at, end) = (at + 32, end + gap.len_bytes);
    }
    // No matrix is in a record, so there are no checksums of them.
    out[range(slc.header().matrices_offset(), 8 * slc.header().n_matrices)].fill(0);
    out[72..80].fill(0);
    out[8..16].copy_from_slice(&end.to_le_bytes());
    let header = FileHeader {
        n_matrices: 0,
        ..*slc.header()
    };
    seal(&mut out[range(0, header.payload_offset())]);
    Some(out)
}

/// The header of a GGUF file of alignment 64: name, shape, type and offset of each tensor.
fn gguf_header(tensors: &[(&str, &[u64], u32, u64)]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend(17u64.to_le_bytes());
    out.extend(b"general.alignment");
    out.extend(4u32.to_le_bytes());
    out.extend(64u32.to_le_bytes());
    for (name, dims, ty, offset) in tensors {
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(64), 0xee);
    out
}

fn noise(len: u32) -> impl Iterator<Item = u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
}

/// A GGUF file of three tensors in another order than their data, with gaps that hold bytes,
/// alignment 64 and bytes after the end.
fn odd_gguf() -> Vec<u8> {
    // (35 rows of 64 Q8_0) = 2380 bytes at 4096; (3) F32 at 0; (32, 17, 3 experts) F16 at 1024.
    let mut out = gguf_header(&[
        ("blk.0.ffn_up.weight", &[64, 35], 8, 4096),
        ("output_norm.weight", &[3], 0, 0),
        ("blk.0.ffn_up_exps.weight", &[16, 17, 3], 1, 1024),
    ]);
    let start = out.len();
    let len = 4096 + 35 * 2 * 34 + 200_000;
    out.extend(noise(len));
    // A gap of zeros that is implied, and one after the end that is too long for that.
    out[start + 12..start + 1024].fill(0);
    out[start + 4096 + 2380 + 10..].fill(0);
    out
}

#[test]
fn gaps_order_alignment_and_trailing_bytes_come_back() {
    let gguf_file = odd_gguf();
    for cut in [0, 199_900, 200_000] {
        let gguf_file = &gguf_file[..gguf_file.len() - cut];
        let file = packed(gguf_file);
        assert_eq!(unpacked(&file).unwrap(), gguf_file, "{cut}");
        let slc = Slc::parse(&file, file.len() as u64).unwrap();
        let layouts: Vec<_> = slc.tensors().map(|(_, t)| t.layout.name()).collect();
        assert_eq!(layouts, ["panels", "raw", "expert records"]);
    }
}

/// Experts of three blocks: an expert's blocks are stored together, whatever the order of its tensors and their types.
#[test]
fn experts_of_a_block_share_records() {
    const F32: u32 = 0;
    const F16: u32 = 1;
    const Q8_0: u32 = 8;
    let tensors: [(&str, &[u64], u32, u64); 9] = [
        ("blk.0.ffn_down_exps.weight", &[160, 64, 3], Q8_0, 170),
        ("blk.0.ffn_down_exps.bias", &[64, 3], F32, 256),
        ("blk.0.ffn_gate_exps.weight", &[64, 160, 3], F16, 128),
        ("blk.0.ffn_norm.weight", &[64], F32, 256),
        ("blk.0.ffn_up_exps.weight", &[64, 160, 3], Q8_0, 68),
        ("blk.1.ffn_gate_up_exps.weight", &[64, 320, 3], Q8_0, 68),
        ("blk.1.ffn_down_exps.weight", &[160, 64, 3], Q8_0, 170),
        ("blk.2.ffn_up_exps.weight", &[64, 32, 2], Q8_0, 68),
        ("blk.2.ffn_other_exps.weight", &[64, 32, 2], Q8_0, 68),
    ];
    let (mut placed, mut end) = (Vec::new(), 0u64);
    for (name, dims, ty, row_bytes) in tensors {
        placed.push((name, dims, ty, end));
        let bytes = row_bytes * dims[1..].iter().product::<u64>();
        end = (end + bytes).next_multiple_of(64);
    }
    let mut gguf_file = gguf_header(&placed);
    gguf_file.extend(noise(u32::try_from(end).unwrap()));
    let file = packed(&gguf_file);
    assert_eq!(unpacked(&file).unwrap(), gguf_file);
    assert_eq!(unpacked(&stacked(&file).unwrap()).unwrap(), gguf_file);
    let slc = Slc::parse(&file, file.len() as u64).unwrap();
    let first = slc.header().payload_offset();
    let lies: Vec<_> = slc
        .tensors()
        .map(|(_, t)| (t.offset - first, t.matrix_stride_bytes(), t.n_matrices()))
        .map(|(offset, stride, n)| (offset / 4096, stride.div_ceil(4096), n))
        .collect();
    // Pages: a gate has 20,480 bytes, an up or a down 10,880, and both in one 21,760.
    let expected = [
        (8, 11, 3),
        (33, 1, 1),
        (0, 11, 3),
        (34, 1, 1),
        (5, 11, 3),
        (35, 9, 3),
        (41, 9, 3),
        (62, 1, 2),
        (64, 1, 2),
    ];
    assert_eq!(lies, expected);
    for (tensor, header) in slc.tensors() {
        let mut damaged = file.clone();
        let at = header.matrix_offset(header.n_matrices() - 1) + 100;
        damaged[usize::try_from(at).unwrap()] ^= 1;
        let message = unpacked(&damaged).unwrap_err().to_string();
        assert!(message.contains(tensor.name), "{message}");
    }
}

/// A matrix that ends within a word, where a piece of a MiB does.
#[test]
fn many_experts_of_odd_sizes_come_back() {
    let mut file = gguf_header(&[("blk.0.ffn_up_exps.weight", &[501, 27, 40], 1, 0)]);
    file.extend(noise(501 * 27 * 40 * 2));
    let packed = packed(&file);
    assert_eq!(unpacked(&packed).unwrap(), file);
    let slc = Slc::parse(&packed, packed.len() as u64).unwrap();
    let (_, header) = slc.tensors().next().unwrap();
    assert_eq!(header.len_bytes, 40 * 7 * 4096);
}

#[test]
fn a_vocabulary_without_tensors_comes_back() {
    let gguf_file = std::fs::read(sluice_tests::fixture("tokenizer/bpe.gguf")).unwrap();
    assert_eq!(unpacked(&packed(&gguf_file)).unwrap(), gguf_file);
}

#[test]
fn damaged_payloads_are_named() {
    let file = packed(&odd_gguf());
    let slc = Slc::parse(&file, file.len() as u64).unwrap();
    let parts = slc
        .tensors()
        .map(|(tensor, header)| (tensor.name.to_owned(), header.offset));
    let gaps = slc.gaps().map(|gap| ("the gap at".to_owned(), gap.offset));
    for (part, offset) in parts.chain(gaps) {
        let mut damaged = file.clone();
        damaged[usize::try_from(offset).unwrap()] ^= 1;
        let message = unpacked(&damaged).unwrap_err().to_string();
        assert!(message.contains(&part), "{message}");
        assert!(message.contains("damaged"), "{message}");
    }
}

#[test]
fn a_gap_on_a_tensor_is_refused_and_a_wrong_hash_is_seen() {
    let file = packed(&odd_gguf());
    let slc = Slc::parse(&file, file.len() as u64).unwrap();
    let gaps_at = usize::try_from(slc.header().gaps_offset()).unwrap();
    let head_len = usize::try_from(slc.header().payload_offset()).unwrap();
    let (_, last) = slc.tensors().next().unwrap();
    let tensor = slc.gguf().tensor("blk.0.ffn_up.weight").unwrap();
    assert!(last.len_bytes > 0);
    // The last gap, after the tensors, moved onto the last tensor.
    let n_gaps = slc.gaps().count();
    let at = gaps_at + (n_gaps - 1) * 32;
    let mut overlapping = file.clone();
    overlapping[at..at + 8].copy_from_slice(&(tensor.offset + 2379).to_le_bytes());
    seal(&mut overlapping[..head_len]);
    let message = unpacked(&overlapping).unwrap_err().to_string();
    assert!(message.contains("gap"), "{message}");
    let mut hash = file.clone();
    hash[40] ^= 1;
    seal(&mut hash[..head_len]);
    let message = unpacked(&hash).unwrap_err().to_string();
    assert!(message.contains("SHA-256"), "{message}");
}

#[test]
fn verification_stops_when_told() {
    let file = packed(&odd_gguf());
    let slc = Slc::parse(&file, file.len() as u64).unwrap();
    let stop = StopFlag::new();
    stop.stop();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    let stopped = verify(&SliceSource(&file), &slc, &watch);
    assert!(matches!(stopped, Err(SlcFileError::Stopped)));
}
