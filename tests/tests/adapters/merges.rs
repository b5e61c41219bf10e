//! Merges of adapters that an engine cannot run, compared with logits of peft (`fixtures/merges.py`).

use super::{outputs, relative};
use sluice::adapter::{AdapterBlend, LoadedAdapter, Precision};
use sluice::file::{LoadMode, ModelFile, OutputFile};
use sluice_core::model::ModelConfig;
use sluice_core::team::StopFlag;
use sluice_hf::adapter::{read, read_to_merge};
use sluice_make::lora::MergePlan;
use sluice_tests::reference::dequant::dequantise;
use std::path::{Path, PathBuf};

/// A line of `fixtures/merges/merges.tsv`.
struct Case {
    name: String,
    model: PathBuf,
    /// Whether an engine runs it without a merge.
    runs: bool,
    n_rows: usize,
    ids: Vec<u32>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

impl Case {
    fn all() -> Vec<Self> {
        let table = std::fs::read_to_string(fixtures().join("merges/merges.tsv")).unwrap();
        let line = |line: &str| {
            let cells: Vec<&str> = line.split('\t').collect();
            Self {
                name: cells[0].to_owned(),
                model: fixtures().join(cells[1]),
                runs: cells[2] == "yes",
                n_rows: cells[3].parse().unwrap(),
                ids: cells[4].split(',').map(|id| id.parse().unwrap()).collect(),
            }
        };
        table.lines().skip(1).map(line).collect()
    }

    fn folder(&self) -> PathBuf {
        fixtures().join("merges").join(&self.name)
    }

    fn exact(&self) -> Vec<f32> {
        let path = fixtures().join(format!("merges/{}.exact.f32", self.name));
        let bytes = std::fs::read(path).unwrap();
        dequantise(0, &bytes, bytes.len() / 4).unwrap()
    }

    /// The last rows of a model's logits.
    fn logits(&self, bytes: &[u8], blend: Option<&AdapterBlend>) -> Vec<f32> {
        let all = outputs(bytes, (2, self.ids.len()), blend, &self.ids);
        let n_vocab = all.len() / self.ids.len();
        all[(self.ids.len() - self.n_rows) * n_vocab..].to_vec()
    }

    fn merged(&self) -> Vec<u8> {
        let model = ModelFile::open(&self.model, LoadMode::Read).unwrap();
        let gguf = model.parse().unwrap();
        let adapter = read_to_merge(&self.folder(), None, &model);
        let adapter = adapter.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let adapters = [(adapter, 1.0)];
        let plan = MergePlan::new(&model, &gguf, &adapters, None).unwrap();
        let path = std::env::temp_dir().join(format!(
            "sluice-merge-{}-{}.gguf",
            std::process::id(),
            self.name
        ));
        let output = OutputFile::create_model(&path, true, *b"GGUF").unwrap();
        plan.write(output, 2, &StopFlag::new(), &mut |_| {})
            .unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        bytes
    }
}

#[test]
fn merged_models_have_the_logits_of_peft() {
    let cases = Case::all();
    assert!(cases.len() > 20, "{}", cases.len());
    for case in cases {
        let exact = case.exact();
        let plain = case.logits(&std::fs::read(&case.model).unwrap(), None);
        let merged = case.logits(&case.merged(), None);
        let (moved, distance) = (relative(&plain, &exact), relative(&merged, &exact));
        println!("{}: moved {moved:.1e}, from peft {distance:.1e}", case.name);
        assert!(moved > 1e-3, "{}: {moved}", case.name);
        assert!(distance < 1e-5, "{}: {distance}", case.name);
    }
}

#[test]
fn what_an_engine_can_run_it_runs_and_the_rest_names_the_merge() {
    for case in Case::all() {
        let model = ModelFile::open(&case.model, LoadMode::Read).unwrap();
        let adapter = match read(&case.folder(), None, Some(&model)) {
            Ok(adapter) => adapter,
            Err(error) => {
                let told = error.to_string();
                assert!(
                    !case.runs && told.contains("sluice lora merge"),
                    "{}: {told}",
                    case.name
                );
                continue;
            }
        };
        assert!(case.runs, "{}", case.name);
        // A copy of the model's own needs no warning.
        assert_eq!(adapter.warnings, Vec::<String>::new(), "{}", case.name);
        let config = ModelConfig::from_gguf(&model.parse().unwrap()).unwrap();
        let loaded = LoadedAdapter::load(&config, &adapter, Precision::Exact).unwrap();
        let bytes = std::fs::read(&case.model).unwrap();
        let found = case.logits(&bytes, Some(&AdapterBlend::new(vec![(loaded, 1.0)])));
        let distance = relative(&found, &case.exact());
        assert!(distance < 1e-5, "{}: {distance}", case.name);
    }
}
