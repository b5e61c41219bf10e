//! Experts that stay in another system's files: the model is the one that they were copied into.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::fmt::Write as _;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice::core::engine::{BatchEntry, Wants};
use sluice::core::gguf::Gguf;
use sluice::experts::{ExpertError, ExpertIo, ExpertOptions};
use sluice::file::{GgufHeader, LoadMode, ModelFile, OutputFile};
use sluice::host::topology::Cores;
use sluice::identity::{self, Identity};
use sluice::model::{LoadError, LoadOptions, ModelSource};
use sluice::session::{StepError, StepHooks};
use sluice::{Limits, Model, Session, Team};
use sluice_core::kernels::GgmlType;
use sluice_core::slc::seal;
use sluice_core::team::StopFlag;
use sluice_make::import::{Directory, ImportError, ImportSummary, import, link};
use sluice_make::slc::{FfnLayout, PackOptions, SlcWatch, pack};
use sluice_make::uth::BlobType;
use sluice_tests::build::{File, Shape, Vocab};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (id, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("sluice-expert-links-{id}-{n}"));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn output(&self, name: &str) -> OutputFile {
        OutputFile::create(&self.path(name), false).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

const N_EMBD: u32 = 256;
const N_FF: u32 = 512;
const N_LAYER: u32 = 2;
const N_EXPERT: u32 = 5;

/// How a directory stores experts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Bare,
    Uth1,
    /// With the payload at a page's beginning.
    Uth1Aligned,
    Uth2,
    /// In one blob, last expert first.
    Packed,
}

/// A mixture whose gates, ups and downs are of these types.
fn model(types: [BlobType; 3]) -> File {
    let shape = |ty, seed| Shape {
        n_embd: N_EMBD,
        n_ff: N_FF,
        n_layer: N_LAYER,
        n_expert: N_EXPERT,
        n_expert_used: 2,
        n_vocab: 29,
        vocab: Vocab::SentencePiece,
        tied: false,
        ty,
        seed,
        ..Shape::TINY
    };
    let mut file = shape(GgmlType::F16, 1).file();
    for (part, dtype) in ["gate", "up", "down"].into_iter().zip(types) {
        let mut of_type = shape(dtype.ggml().unwrap(), 2).file();
        for layer in 0..N_LAYER {
            let name = format!("blk.{layer}.ffn_{part}_exps.weight");
            *file.tensor(&name) = of_type.tensor(&name).clone();
        }
    }
    file
}

/// The three matrices of an expert.
fn matrices(file: &mut File, layer: u32, expert: u32) -> [Vec<u8>; 3] {
    ["gate", "up", "down"].map(|part| {
        let name = format!("blk.{layer}.ffn_{part}_exps.weight");
        let data = &file.tensor(&name).data;
        let len = data.len() / N_EXPERT as usize;
        data[expert as usize * len..][..len].to_vec()
    })
}

fn uth1(dtype: BlobType, is_aligned: bool, matrices: &[Vec<u8>; 3]) -> Vec<u8> {
    let mut out = b"UTH1\x01\0".to_vec();
    out.extend([dtype as u8, 3]);
    let flags = u32::from(is_aligned);
    for n in [N_FF, N_EMBD, 3, 0, 0, 0, 16, 16, 64, flags, 0, 0, 0, 0] {
        out.extend(n.to_le_bytes());
    }
    if is_aligned {
        out.resize(4096, 0);
    }
    out.extend(matrices.concat());
    out
}

/// With down first, and bytes between the matrices.
fn uth2(types: [BlobType; 3], matrices: &[Vec<u8>; 3]) -> Vec<u8> {
    let mut out = b"UTH2\x02\0\x03\0".to_vec();
    for n in [N_EMBD, N_FF, 0, 0] {
        out.extend(n.to_le_bytes());
    }
    let mut payload = Vec::new();
    let offsets = [2, 0, 1].map(|i: usize| {
        payload.resize(payload.len() + 7, 9);
        let offset = payload.len() as u64;
        payload.extend(&matrices[i]);
        offset
    });
    let [down, gate, up] = offsets;
    for (i, offset) in [gate, up, down].into_iter().enumerate() {
        out.extend([types[i] as u8, u8::try_from(i).unwrap(), 0, 0]);
        out.extend(offset.to_le_bytes());
        out.extend((matrices[i].len() as u64).to_le_bytes());
        out.extend((N_EMBD * N_FF).to_le_bytes());
    }
    out.resize(128, 0);
    out.extend(payload);
    out
}

/// Writes the files of a model into `dirs`, expert `id` into directory `id` modulo their number.
fn write(file: &mut File, types: [BlobType; 3], layout: Layout, dirs: &[PathBuf]) {
    let dtype = match types {
        [a, b, c] if a == b && b == c => a,
        _ => BlobType::Mixed,
    };
    let metadata = format!(
        r#"{{"format_version": 2, "model": "m", "architecture": "llama", "num_layers": {N_LAYER},
        "num_experts_per_layer": {N_EXPERT}, "top_k": 2, "d_model": {N_EMBD}, "d_ff": {N_FF},
        "dtype": "{}"}}"#,
        dtype.name()
    );
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(dirs[0].join("metadata.json"), metadata).unwrap();
    write_dense(file, dirs);
    let n_ids = N_LAYER * N_EXPERT;
    let mut packed = vec![(Vec::new(), String::new()); dirs.len()];
    for id in (0..n_ids).rev() {
        let matrices = matrices(file, id / N_EXPERT, id % N_EXPERT);
        let blob = match layout {
            Layout::Bare => matrices.concat(),
            Layout::Uth1 | Layout::Packed => uth1(dtype, false, &matrices),
            Layout::Uth1Aligned => uth1(dtype, true, &matrices),
            Layout::Uth2 => uth2(types, &matrices),
        };
        let drive = id as usize % dirs.len();
        if layout != Layout::Packed {
            fs::write(dirs[drive].join(format!("expert_{id}.bin")), blob).unwrap();
            continue;
        }
        let (all, entries) = &mut packed[drive];
        let comma = if entries.is_empty() { "" } else { "," };
        let (offset, len) = (all.len(), blob.len());
        write!(
            entries,
            r#"{comma}"{id}": {{"offset": {offset}, "len": {len}}}"#
        )
        .unwrap();
        all.extend(blob);
        all.resize(all.len().next_multiple_of(4096), 0);
    }
    if layout == Layout::Packed {
        for (dir, (blob, entries)) in dirs.iter().zip(packed) {
            fs::write(dir.join("experts.blob"), blob).unwrap();
            let manifest = format!(r#"{{"block_align": 4096, "entries": {{{entries}}}}}"#);
            fs::write(dir.join("experts.blob.manifest.json"), manifest).unwrap();
        }
    }
}

/// Tensors outside of experts, some in each directory, without a manifest: in F32.
fn write_dense(file: &mut File, dirs: &[PathBuf]) {
    let mut names = vec![
        ("embedding".to_owned(), "token_embd".to_owned()),
        ("final_norm".into(), "output_norm".into()),
        ("lm_head".into(), "output".into()),
    ];
    for l in 0..N_LAYER {
        for (to, from) in [
            ("layer_?_q", "attn_q"),
            ("layer_?_k", "attn_k"),
            ("layer_?_v", "attn_v"),
            ("layer_?_o", "attn_output"),
            ("layer_?_attn_norm", "attn_norm"),
            ("layer_?_ffn_norm", "ffn_norm"),
            ("gate_?", "ffn_gate_inp"),
        ] {
            names.push((to.replace('?', &l.to_string()), format!("blk.{l}.{from}")));
        }
    }
    for (i, (to, from)) in names.into_iter().enumerate() {
        let tensor = file.tensor(&(from + ".weight"));
        let bytes = match tensor.ty {
            GgmlType::F16 => {
                let halves = tensor.data.as_chunks::<2>().0.iter();
                let value = |half: &[u8; 2]| {
                    sluice_core::kernels::half::f16_to_f32(u16::from_le_bytes(*half))
                };
                halves.flat_map(|half| value(half).to_le_bytes()).collect()
            }
            _ => tensor.data.clone(),
        };
        fs::write(dirs[i % dirs.len()].join(format!("{to}.bin")), bytes).unwrap();
    }
}

/// A model that was imported, and one whose experts were left where they are.
fn import_and_link(
    folder: &Folder,
    file: &File,
    dirs: &[PathBuf],
) -> (
    Result<ImportSummary, ImportError>,
    Result<ImportSummary, ImportError>,
) {
    let bytes = file.bytes();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let header = GgufHeader::with_metadata_of(&gguf);
    let stop = StopFlag::new();
    let directory = Directory::open_all(dirs, None).unwrap();
    let output = folder.output("imported.gguf");
    let imported = import(&directory, header.clone(), None, output, &stop, |_| ());
    let linked = link(
        &directory,
        header,
        folder.output("linked.gguf"),
        &stop,
        |_| (),
    );
    (imported, linked)
}

fn packed(folder: &Folder, path: &Path, name: &str) -> Vec<u8> {
    let opened = ModelSource::open(path, LoadMode::Read).unwrap();
    let options = PackOptions {
        n_threads: 1,
        verify: true,
        ffn: FfnLayout::Panels,
    };
    let stop = StopFlag::new();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    let output = folder.output(name);
    pack(opened.file(), opened.gguf(), output, options, &watch).unwrap();
    fs::read(folder.path(name)).unwrap()
}

fn load(
    path: &Path,
    mode: LoadMode,
    team: &Team,
    experts: Option<ExpertOptions>,
) -> Result<Model, LoadError> {
    let options = LoadOptions {
        experts,
        ..LoadOptions::default()
    };
    ModelSource::open(path, mode)
        .unwrap()
        .load_with(team, options)
}

/// The bits of all logits of a text that is read in chunks.
fn logits(model: &Model, team: &Team, chunk: usize) -> Result<Vec<u32>, StepError> {
    let limits = Limits {
        n_ctx: 64,
        n_batch: 32,
        n_outputs: 32,
        ..Limits::default()
    };
    let mut session: Session = model.session_on(team, limits).unwrap();
    let ids: Vec<u32> = (0..20).map(|i| (i * 11 + 3) % 29).collect();
    let mut found = Vec::new();
    for (i, part) in ids.chunks(chunk).enumerate() {
        let at = |j: usize| u32::try_from(i * chunk + j).unwrap();
        let entries = part.iter().enumerate();
        let batch: Vec<_> = entries
            .map(|(j, &id)| BatchEntry::new(id, 0, at(j), Wants::Logits))
            .collect();
        found.extend(session.run(&batch, &StepHooks::default(), |outputs, _| {
            let rows = (0..part.len()).map(|i| outputs.logits(i).unwrap());
            rows.flatten().map(|x| x.to_bits()).collect::<Vec<_>>()
        })?);
    }
    Ok(found)
}

/// All bytes of a model as one file.
fn bytes(path: &Path) -> Vec<u8> {
    let file = ModelFile::open(path, LoadMode::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.source().len_bytes()).unwrap()];
    file.source().read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_model_whose_experts_stay_is_the_imported_one() {
    use BlobType::{BF16, F16, F32, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let cases = [
        (Layout::Uth1Aligned, [Q4_K; 3], 1),
        (Layout::Uth1, [F32; 3], 1),
        (Layout::Uth2, [Q4_K, Q6_K, F16], 1),
        (Layout::Bare, [Q8_0; 3], 1),
        (Layout::Packed, [Q5_K; 3], 1),
        (Layout::Uth1, [BF16; 3], 2),
        (Layout::Packed, [Q4_0; 3], 3),
    ];
    for (layout, types, n_dirs) in cases {
        let folder = Folder::new();
        let case = format!("{layout:?} {types:?} {n_dirs}");
        let mut file = model(types);
        let dirs: Vec<_> = (0..n_dirs).map(|i| folder.path(&format!("d{i}"))).collect();
        write(&mut file, types, layout, &dirs);
        let (imported, linked) = import_and_link(&folder, &file, &dirs);
        assert_eq!(imported.unwrap(), linked.unwrap());
        let (imported, linked) = (folder.path("imported.gguf"), folder.path("linked.gguf"));
        assert!(bytes(&linked) == fs::read(&imported).unwrap(), "{case}");
        let of_imported = packed(&folder, &imported, "imported.slc");
        assert!(
            packed(&folder, &linked, "linked.slc") == of_imported,
            "{case}"
        );
        compare(&imported, &linked, &case);
    }
}

/// The SHA-256 of the file with its experts.
fn sha256_of(model: &Model) -> Identity {
    identity::sha256(model.file().source(), |_| true)
        .unwrap()
        .unwrap()
}

/// Compares logits: with all experts in memory, and with some, however they are read.
fn compare(imported: &Path, linked: &Path, case: &str) {
    let team = Team::new(2, &Cores::detect()).unwrap();
    let model = load(imported, LoadMode::Read, &team, None).unwrap();
    let expected = logits(&model, &team, 20).unwrap();
    for mode in [LoadMode::Read, LoadMode::Map] {
        let linked = load(linked, mode, &team, None).unwrap();
        assert_eq!(sha256_of(&linked), sha256_of(&model));
        assert!(logits(&linked, &team, 20).unwrap() == expected, "{case}");
        assert_eq!(
            linked.file().n_parts() > 2,
            !case.starts_with("Packed [Q5_K")
        );
    }
    let all = ExpertOptions::new(usize::MAX >> 1);
    let all = load(linked, LoadMode::Map, &team, Some(all)).unwrap();
    let slot_bytes = all.experts().unwrap().stats().slot_bytes;
    for io in ExpertIo::ALL {
        for n_slots in [1, 4] {
            let options = ExpertOptions {
                io: Some(io),
                check: true,
                ..ExpertOptions::new(slot_bytes * n_slots)
            };
            let model = match load(linked, LoadMode::Map, &team, Some(options)) {
                Err(LoadError::Experts(ExpertError::Device { reason, .. })) => {
                    sluice_tests::skipped(&format!("{io}: {reason}"));
                    continue;
                }
                loaded => loaded.unwrap(),
            };
            for chunk in [20, 3, 1] {
                let found = logits(&model, &team, chunk).unwrap();
                assert!(found == expected, "{case} {io} {n_slots} {chunk}");
            }
            let stats = model.experts().unwrap().stats();
            assert!(stats.reads > 0, "{stats:?}");
            assert_eq!((stats.n_experts, stats.failures), (10, 0));
        }
    }
}

#[test]
fn copies_on_other_drives_stand_in() {
    let folder = Folder::new();
    let types = [BlobType::Q8_0; 3];
    let mut file = model(types);
    let dirs = [folder.path("d")];
    write(&mut file, types, Layout::Uth1, &dirs);
    import_and_link(&folder, &file, &dirs).1.unwrap();
    let copies = folder.path("copies");
    fs::create_dir(&copies).unwrap();
    for id in 0..10 {
        let name = format!("expert_{id}.bin");
        fs::copy(dirs[0].join(&name), copies.join(&name)).unwrap();
    }
    let team = Team::new(1, &Cores::detect()).unwrap();
    let linked = folder.path("linked.gguf");
    let resident = load(&linked, LoadMode::Read, &team, None).unwrap();
    let expected = logits(&resident, &team, 20).unwrap();
    let options = || ExpertOptions {
        dirs: vec![copies.clone()],
        ..ExpertOptions::new(1 << 21)
    };
    let model = load(&linked, LoadMode::Read, &team, Some(options())).unwrap();
    assert!(logits(&model, &team, 4).unwrap() == expected);
    let path = copies.join("expert_7.bin");
    let mut other = fs::read(&path).unwrap();
    other[100] ^= 1;
    fs::write(&path, other).unwrap();
    let error = load(&linked, LoadMode::Read, &team, Some(options())).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("expert_7.bin is not a copy"), "{error}");
}

#[test]
fn a_blob_that_becomes_shorter_is_named() {
    let folder = Folder::new();
    let types = [BlobType::F16; 3];
    let mut file = model(types);
    let dirs = [folder.path("d")];
    write(&mut file, types, Layout::Uth1, &dirs);
    import_and_link(&folder, &file, &dirs).1.unwrap();
    let team = Team::new(1, &Cores::detect()).unwrap();
    let linked = folder.path("linked.gguf");
    let options = ExpertOptions::new(1 << 21);
    let model = load(&linked, LoadMode::Read, &team, Some(options)).unwrap();
    for id in 0..10 {
        let path = dirs[0].join(format!("expert_{id}.bin"));
        let blob = fs::OpenOptions::new().write(true).open(path).unwrap();
        blob.set_len(4096).unwrap();
    }
    let error = logits(&model, &team, 20).unwrap_err().to_string();
    assert!(error.contains("d/expert_"), "{error}");
    assert!(error.contains("the file was truncated"), "{error}");
    let error = ModelFile::open(&linked, LoadMode::Read).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("d/expert_0.bin: it has 4096 bytes"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_left_is_refused() {
    let folder = Folder::new();
    let types = [BlobType::Q8_0; 3];
    let mut file = model(types);
    let dirs = [folder.path("a"), folder.path("b")];
    write(&mut file, types, Layout::Packed, &dirs);
    let stop = StopFlag::new();
    let try_to = |name: &str| {
        let directory = Directory::open_all(&dirs, None)?;
        let header = GgufHeader::new();
        link(&directory, header, folder.output(name), &stop, |_| ())
    };
    let metadata = fs::read_to_string(dirs[0].join("metadata.json")).unwrap();
    // Another directory of another model.
    fs::write(
        dirs[1].join("metadata.json"),
        metadata.replace(r#""top_k": 2"#, r#""top_k": 3"#),
    )
    .unwrap();
    let error = try_to("a.gguf").unwrap_err().to_string();
    assert!(error.contains("b/metadata.json: differs"), "{error}");
    fs::write(dirs[1].join("metadata.json"), metadata).unwrap();
    try_to("b.gguf").unwrap();
    // A blob that ends in the last of its experts.
    let path = dirs[1].join("experts.blob");
    let blob = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let len = fs::metadata(&path).unwrap().len();
    blob.set_len(len - 8192).unwrap();
    let error = try_to("c.gguf").unwrap_err().to_string();
    assert!(error.contains("b/experts.blob: "), "{error}");
    assert!(!folder.path("c.gguf").exists());
}

#[test]
fn a_packed_file_has_its_experts() {
    let folder = Folder::new();
    let mut file = model([BlobType::F16; 3]);
    let key = "sluice.experts.files";
    let other = key.replace("files", "filez");
    file.set(&other, "a");
    fs::write(folder.path("m.gguf"), file.bytes()).unwrap();
    let mut bytes = packed(&folder, &folder.path("m.gguf"), "m.slc");
    let at = bytes
        .windows(key.len())
        .position(|name| name == other.as_bytes());
    bytes[at.unwrap()..][..key.len()].copy_from_slice(key.as_bytes());
    let slc = ModelFile::open(&folder.path("m.slc"), LoadMode::Read).unwrap();
    let start = slc.slc().unwrap().unwrap().header().payload_offset();
    seal(&mut bytes[..usize::try_from(start).unwrap()]);
    fs::write(folder.path("m.slc"), bytes).unwrap();
    let error = ModelFile::open(&folder.path("m.slc"), LoadMode::Read).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("m.slc: it is a .slc file whose experts"),
        "{error}"
    );
}
