//! Logits with adapters, of transformers and peft in f64 and of llama.cpp.

use super::{outputs, relative};
use sluice::adapter::{AdapterBlend, AdapterFile, LoadedAdapter, Precision};
use sluice::file::{LoadMode, ModelFile};
use sluice_core::model::ModelConfig;
use sluice_tests::reference::dequant::dequantise;
use std::path::{Path, PathBuf};

/// A line of `fixtures/adapters/adapters.tsv`, which `fixtures/adapters.py` describes.
struct Golden {
    case: String,
    set: String,
    model: PathBuf,
    adapters: Vec<(PathBuf, f32)>,
    n_rows: usize,
    ids: Vec<u32>,
    /// llama.cpp's distance to f64, where it has logits.
    llama_cpp: Option<f64>,
}

impl Golden {
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        let table = std::fs::read_to_string(folder.join("adapters/adapters.tsv")).unwrap();
        let lines = table.lines().skip(1);
        lines
            .map(|line| {
                let cells: Vec<&str> = line.split('\t').collect();
                let case = cells[0].to_owned();
                let adapters = cells[3].split(',').filter(|part| *part != "-");
                let adapters = adapters.map(|part| {
                    let (name, scale) = part.split_once(' ').unwrap();
                    (
                        folder.join("adapters").join(&case).join(name),
                        scale.parse().unwrap(),
                    )
                });
                Self {
                    adapters: adapters.collect(),
                    set: cells[1].to_owned(),
                    model: match cells[2].strip_prefix("models/") {
                        Some(_) => sluice_tests::shared(cells[2]).unwrap_or_default(),
                        None => folder.join(cells[2]),
                    },
                    n_rows: cells[4].parse().unwrap(),
                    ids: cells[6].split(',').map(|id| id.parse().unwrap()).collect(),
                    llama_cpp: cells[9].parse().ok(),
                    case,
                }
            })
            .collect()
    }

    /// Logits of transformers and peft in f64.
    fn exact(&self) -> Vec<f32> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/adapters");
        let path = folder
            .join(&self.case)
            .join(format!("{}.exact.f32", self.set));
        let bytes = std::fs::read(path).unwrap();
        dequantise(0, &bytes, bytes.len() / 4).unwrap()
    }

    /// Our logits of the last rows, with adapters as `read` reads them.
    fn logits(&self, read: impl Fn(&Path, &ModelFile) -> AdapterFile) -> Vec<f32> {
        let file = ModelFile::open(&self.model, LoadMode::Read).unwrap();
        let bytes = std::fs::read(&self.model).unwrap();
        let config = ModelConfig::from_gguf(&file.parse().unwrap()).unwrap();
        let parts = self.adapters.iter().map(|(path, scale)| {
            let adapter = LoadedAdapter::load(&config, &read(path, &file), Precision::Exact);
            (adapter.unwrap(), *scale)
        });
        let parts: Vec<_> = parts.collect();
        let blend = (!parts.is_empty()).then(|| AdapterBlend::new(parts));
        let all = outputs(&bytes, (2, self.ids.len()), blend.as_ref(), &self.ids);
        all[(self.ids.len() - self.n_rows) * config.n_vocab..].to_vec()
    }
}

fn read_folder(path: &Path, model: &ModelFile) -> AdapterFile {
    let file = sluice_hf::adapter::read(path, None, Some(model));
    file.unwrap_or_else(|error| panic!("{error}"))
}

/// Logits with adapters are as near to f64 as those without, and nearer than llama.cpp's.
#[test]
fn logits_are_those_of_peft() {
    let mut of_base = std::collections::HashMap::new();
    for golden in Golden::all() {
        let (case, set) = (&golden.case, &golden.set);
        if golden.model.as_os_str().is_empty() {
            sluice_tests::skipped("the story model in f16");
            continue;
        }
        let distance = relative(&golden.logits(read_folder), &golden.exact());
        let llama_cpp = golden
            .llama_cpp
            .map_or_else(String::new, |d| format!("{d:.1e}"));
        println!("{case} {set}: {distance:.1e}, llama.cpp {llama_cpp}");
        if set == "base" {
            of_base.insert(case.clone(), distance);
        }
        let base: f64 = *of_base.get(case.trim_end_matches("-fused")).unwrap();
        // Rounding of f32 itself is 6e-8.
        assert!(
            distance <= 2.0 * base + 2e-7,
            "{case} {set}: {distance}, base {base}"
        );
        if let Some(llama_cpp) = golden.llama_cpp {
            assert!(
                distance <= llama_cpp,
                "{case} {set}: {distance} {llama_cpp}"
            );
        }
    }
}

/// Files that llama.cpp's converter made of the same adapters give the same logits.
#[test]
fn files_of_llama_cpp_are_read_as_the_folders() {
    let mut n = 0;
    for golden in Golden::all() {
        let gguf = |path: &Path| path.with_extension("gguf");
        if golden.adapters.is_empty()
            || !golden.adapters.iter().all(|(path, _)| gguf(path).exists())
        {
            continue;
        }
        let of_folder = golden.logits(read_folder);
        let of_file = golden.logits(|path, model| read_folder(&gguf(path), model));
        let distance = relative(&of_file, &of_folder);
        println!("{} {}: {distance:.1e}", golden.case, golden.set);
        assert!(
            distance < 1e-6,
            "{} {}: {distance}",
            golden.case,
            golden.set
        );
        n += 1;
    }
    assert_eq!(n, 6);
}
