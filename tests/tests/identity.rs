//! A model's identity is its whole file: what another model computed is never taken for its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::num::NonZero;
use core::time::Duration;
use sha2::{Digest as _, Sha256};
use sluice::core::gguf::Gguf;
use sluice::file::{FileStamp, HashRecords, LoadMode, ModelFile, OutputFile};
use sluice::generate::GenerateError;
use sluice::generate::prompt_cache::{CacheSalt, PromptCache};
use sluice::host::topology::Cores;
use sluice::identity::{HashError, Identity, identify, sha256};
use sluice::model::{LoadOptions, ModelSource};
use sluice::session::SavedText;
use sluice::{Limits, Model, Sequence, Session, Settings, Team};
use sluice_core::engine::EngineError;
use sluice_core::gguf::source::SliceSource;
use sluice_core::model::Activation;
use sluice_core::state::{SnapshotError, StateError};
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, PackOptions, SlcWatch, pack};
use sluice_make::split::{PartMax, SplitPlan};
use sluice_tests::build::{Random, Shape};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

const DENSE: Shape = Shape::TINY;

const MIXTURE: Shape = Shape {
    n_expert: 4,
    n_expert_used: 2,
    ..Shape::TINY
};

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("sluice-identity-{name}-{id}"));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn records(&self) -> HashRecords {
        HashRecords::at(&self.0.join("hashes"))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

fn team() -> &'static Team {
    static TEAM: OnceLock<Team> = OnceLock::new();
    TEAM.get_or_init(|| Team::new(1, &Cores::detect()).unwrap())
}

fn open(path: &Path) -> ModelFile {
    ModelFile::open(path, LoadMode::Read).unwrap()
}

fn hash_of(file: &ModelFile) -> Identity {
    sha256(file.source(), |_| true).unwrap().unwrap()
}

fn load(path: &Path, records: &HashRecords) -> Model {
    let options = LoadOptions {
        hashes: Some(records.clone()),
        ..LoadOptions::default()
    };
    let opened = ModelSource::open(path, LoadMode::Read).unwrap();
    opened.load_with(team(), options).unwrap()
}

fn session(model: &Model) -> Session {
    let limits = Limits {
        n_ctx: 192,
        n_held: 128,
        ..Limits::default()
    };
    model.session_on(team(), limits).unwrap()
}

/// A session with a text of more than a page.
fn read(model: &Model) -> (Session, Sequence) {
    let mut session = session(model);
    let tokens: Vec<u32> = (0..70).map(|i| 3 + i % 12).collect();
    let mut sequence = session.add(&Settings::default()).unwrap();
    sequence.push(&tokens, 1);
    while sequence.tokens().len() < tokens.len() {
        session.step(&mut [&mut sequence]).unwrap();
    }
    (session, sequence)
}

/// Flips a bit of the weights, never the same one twice.
struct Flips {
    first_bit: u64,
    n_bits: u64,
    random: Random,
    done: HashSet<u64>,
}

impl Flips {
    fn of(bytes: &[u8]) -> Self {
        let gguf = Gguf::parse(bytes, bytes.len() as u64).unwrap();
        let first = gguf.tensors().map(|tensor| tensor.offset).min().unwrap();
        Self {
            first_bit: 8 * first,
            n_bits: 8 * (bytes.len() as u64 - first),
            random: Random(1),
            done: HashSet::new(),
        }
    }

    fn next(&mut self, bytes: &[u8]) -> Vec<u8> {
        loop {
            let bit = self.first_bit + self.random.next() % self.n_bits;
            if self.done.insert(bit) {
                let mut other = bytes.to_vec();
                other[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
                return other;
            }
        }
    }
}

#[test]
fn ten_thousand_models_that_differ_in_one_bit_have_ten_thousand_identities() {
    let folder = Folder::new("bits");
    for (name, shape) in [("dense", DENSE), ("mixture", MIXTURE)] {
        let bytes = shape.file().bytes();
        let mut flips = Flips::of(&bytes);
        let base = hash_of(&open(&folder.write(name, &bytes)));
        let mut known = HashSet::from([base]);
        for _ in 0..5000 {
            let other = hash_of(&open(&folder.write(name, &flips.next(&bytes))));
            assert!(known.insert(other), "{name}");
        }
    }
}

#[test]
fn a_file_its_parts_and_its_slc_are_one_model() {
    let folder = Folder::new("forms");
    for shape in [DENSE, MIXTURE] {
        let bytes = shape.file().bytes();
        let expected = Identity(Sha256::digest(&bytes).into());
        let whole = folder.write("m.gguf", &bytes);
        let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
        let max = PartMax::Tensors(NonZero::new(3).unwrap());
        let plan = SplitPlan::split(&gguf, max, false).unwrap();
        let n = plan.parts().len();
        let path = |i: usize| folder.0.join(format!("m-{:05}-of-{n:05}.gguf", i + 1));
        let outputs = (0..n).map(|i| OutputFile::create_model(&path(i), true, *b"GGUF").unwrap());
        let source = SliceSource(&bytes);
        let written = plan.write(&source, outputs.collect(), &StopFlag::new(), |_| ());
        written.unwrap();
        let slc = folder.0.join("m.slc");
        let output = OutputFile::create_model(&slc, true, sluice_core::slc::MAGIC).unwrap();
        let options = PackOptions {
            n_threads: 1,
            verify: false,
            ffn: FfnLayout::Panels,
        };
        let stop = StopFlag::new();
        let watch = SlcWatch::new(0, &stop, &|_| ());
        pack(&source, &gguf, output, options, &watch).unwrap();
        for path in [whole, path(0), slc] {
            assert_eq!(hash_of(&open(&path)), expected, "{}", path.display());
        }
    }
}

/// Whether `model` refuses all that another one left: a snapshot, a prompt cache (slots are such files, too) and a page.
fn refuses(model: &Model, left: &Left) -> bool {
    let mut session = session(model);
    let mut sequence = session.add(&Settings::default()).unwrap();
    let other = |error: &StateError| *error == StateError::Snapshot(SnapshotError::OtherModel);
    let cache = PromptCache::read(&left.cache).unwrap().unwrap();
    let mut is_refused = |text: &SavedText| {
        let restored = session.restore(&mut sequence, text);
        let error = restored.as_ref().err();
        matches!(error, Some(GenerateError::Engine(EngineError::State(error))) if other(error))
    };
    let (snapshot, cache) = (is_refused(&left.snapshot), is_refused(&cache.text));
    let identity = session.identity(&sequence);
    let written = session.with_state(|state| {
        let written = state.write_page(&identity, &left.page);
        written.map(|page| state.release(page))
    });
    snapshot && cache && written.as_ref().is_err_and(other)
}

/// What a model's session leaves for later.
struct Left {
    snapshot: SavedText,
    cache: PathBuf,
    page: Vec<u8>,
}

fn write(text: &SavedText, path: &Path) {
    let salt = CacheSalt::Plain("".into());
    let text = text.clone();
    PromptCache { text, salt }.write(path).unwrap();
}

/// Restores a prompt cache of 70 tokens.
fn restore(session: &mut Session, path: &Path) -> Sequence {
    let mut sequence = session.add(&Settings::default()).unwrap();
    let cache = PromptCache::read(path).unwrap().unwrap();
    session.restore(&mut sequence, &cache.text).unwrap();
    assert_eq!(sequence.tokens().len(), 70);
    sequence
}

fn leave(model: &Model, cache: PathBuf) -> Left {
    let (mut session, sequence) = read(model);
    let snapshot = session.save(&sequence).unwrap();
    write(&snapshot, &cache);
    let identity = session.identity(&sequence);
    let held = session.retain(&sequence, 0).unwrap();
    let mut page = vec![0; session.state().page_bytes()];
    session
        .state()
        .read_page(&held, &identity, &mut page)
        .unwrap();
    session.with_state(|state| state.release(held));
    Left {
        snapshot,
        cache,
        page,
    }
}

#[test]
fn nothing_that_a_model_left_is_taken_by_one_that_differs_in_a_bit() {
    let folder = Folder::new("left");
    let records = folder.records();
    for (name, shape) in [("dense", DENSE), ("mixture", MIXTURE)] {
        let bytes = shape.file().bytes();
        let mut flips = Flips::of(&bytes);
        let base_path = folder.write(name, &bytes);
        for i in 0..100 {
            let other_path = folder.write("other", &flips.next(&bytes));
            // Known by their hashes, or by their places.
            if i % 2 == 0 {
                for path in [&base_path, &other_path] {
                    identify(&open(path), Some(&records), |_| true).unwrap();
                }
            }
            let base = load(&base_path, &records);
            // A flipped bit may have made a norm infinite, which is refused when loading.
            let options = LoadOptions {
                hashes: Some(records.clone()),
                ..LoadOptions::default()
            };
            let opened = ModelSource::open(&other_path, LoadMode::Read).unwrap();
            let Ok(other) = opened.load_with(team(), options) else {
                continue;
            };
            assert_eq!(other.identity().hash_at_load().is_some(), i % 2 == 0);
            let left = leave(&base, folder.0.join("base.cache"));
            assert!(!refuses(&base, &left), "{name}");
            assert!(refuses(&other, &left), "{name}");
            let left = leave(&other, folder.0.join("other.cache"));
            assert!(refuses(&base, &left), "{name}");
        }
    }
}

#[test]
fn what_was_saved_before_the_hash_was_known_is_taken_over() {
    let folder = Folder::new("over");
    let records = folder.records();
    let path = folder.write("m.gguf", &DENSE.file().bytes());
    let unknown = load(&path, &records);
    assert!(unknown.fingerprint().ends_with("-u"));
    let left = leave(&unknown, folder.0.join("cache"));
    let hash = identify(&open(&path), Some(&records), |_| true).unwrap();
    let known = load(&path, &records);
    assert_eq!(known.identity().hash_at_load(), Some(hash));
    assert_eq!(known.fingerprint(), hash.to_string());
    let mut session = session(&known);
    let sequence = restore(&mut session, &left.cache);
    // Saved again, it is marked by the hash alone: a copy elsewhere takes it.
    write(&session.save(&sequence).unwrap(), &left.cache);
    let copy = folder.write("copy.gguf", &fs::read(&path).unwrap());
    identify(&open(&copy), Some(&records), |_| true).unwrap();
    let mut elsewhere = load(&copy, &records).session(Limits::default()).unwrap();
    restore(&mut elsewhere, &left.cache);
}

fn wait(millis: u64) {
    let until = Instant::now() + Duration::from_millis(millis);
    while Instant::now() < until {
        std::thread::park_timeout(Duration::from_millis(millis));
    }
}

#[test]
fn an_unknown_file_is_hashed_after_the_first_answer_when_nothing_runs() {
    let folder = Folder::new("idle");
    let records = folder.records();
    let path = folder.write("m.gguf", &DENSE.file().bytes());
    let model = load(&path, &records);
    model.identify_when_idle(|error| panic!("{error}"));
    wait(600);
    assert_eq!(model.identity().hash(), None, "before the first answer");
    let _answer = read(&model);
    let until = Instant::now() + Duration::from_secs(60);
    while model.identity().hash().is_none() {
        assert!(Instant::now() < until);
        wait(10);
    }
    let expected = hash_of(&open(&path));
    assert_eq!(model.identity().hash(), Some(expected));
    // What the model is called does not change while it is loaded.
    assert!(model.fingerprint().ends_with("-u"));
    assert_eq!(load(&path, &records).fingerprint(), expected.to_string());
}

#[test]
fn a_file_that_is_replaced_under_its_name_is_not_recorded() {
    let folder = Folder::new("replaced");
    let records = folder.records();
    let bytes = DENSE.file().bytes();
    let path = folder.write("m.gguf", &bytes);
    let opened = open(&path);
    let other = Flips::of(&bytes).next(&bytes);
    fs::rename(folder.write("other.gguf", &other), &path).unwrap();
    let found = identify(&opened, Some(&records), |_| true);
    assert!(matches!(found, Err(HashError::Changed { .. })), "{found:?}");
    assert_eq!(records.find(open(&path).stamp().unwrap()), None);
    let expected = hash_of(&open(&path));
    assert_eq!(
        identify(&open(&path), Some(&records), |_| true).unwrap(),
        expected
    );
}

#[test]
fn a_record_is_for_the_file_as_it_was() {
    let folder = Folder::new("records");
    let records = folder.records();
    let bytes = DENSE.file().bytes();
    let path = folder.write("m.gguf", &bytes);
    let stamp = || FileStamp::of([&*path]).unwrap();
    identify(&open(&path), Some(&records), |_| true).unwrap();
    assert!(records.find(&stamp()).is_some());
    // One byte in place, with the time of the last modification set back.
    let times = fs::metadata(&path).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[1], bytes.len() as u64 - 1).unwrap();
    file.set_modified(times).unwrap();
    drop(file);
    assert_eq!(records.find(&stamp()), None);
    // A folder that others may write to is not believed.
    identify(&open(&path), Some(&records), |_| true).unwrap();
    assert!(records.find(&stamp()).is_some());
    let hashes = folder.0.join("hashes");
    fs::set_permissions(&hashes, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(records.find(&stamp()), None);
    let refused = records.record(&stamp(), Identity([0; 32])).unwrap_err();
    assert!(
        refused.to_string().contains("others may write"),
        "{refused}"
    );
    // Stopped, and changed while it is read.
    let stopped = identify(&open(&path), None, |_| false);
    assert!(matches!(stopped, Err(HashError::Stopped)));
    let changed = identify(&open(&path), None, |_| {
        fs::write(&path, &bytes).unwrap();
        true
    });
    assert!(matches!(changed, Err(HashError::Changed { .. })));
}

#[test]
fn states_of_other_adapters_are_not_the_models_own() {
    let folder = Folder::new("adapters");
    let path = folder.write("m.gguf", &DENSE.file().bytes());
    let model = load(&path, &folder.records());
    let (session, sequence) = read(&model);
    let plain = session.identity(&sequence);
    let place = model.identity().place();
    assert_eq!(plain, place);
    let of = |adapter| session.identity_at(sequence.slot(), Some(adapter));
    let (one, two) = (of(Identity([1; 32])), of(Identity([2; 32])));
    assert!(one != two && one != plain && two != plain);
}

/// The same file with another activation is another model, to caches, saved texts and users; the file's own is not.
#[test]
fn another_activation_is_another_model() {
    let folder = Folder::new("activation");
    let path = folder.write("model.gguf", &DENSE.file().bytes());
    let records = folder.records();
    for is_hashed in [false, true] {
        if is_hashed {
            identify(&open(&path), Some(&records), |_| true).unwrap();
        }
        let load = |activation: Option<&str>| {
            let mut opened = ModelSource::open(&path, LoadMode::Read).unwrap();
            if let Some(name) = activation {
                let activation = Activation::parse(name).unwrap();
                opened = opened.with_activation(activation).unwrap();
            }
            let options = LoadOptions {
                hashes: Some(records.clone()),
                ..LoadOptions::default()
            };
            opened.load_with(team(), options).unwrap()
        };
        let names = [
            None,
            Some("relu"),
            Some("drelu"),
            Some("fatrelu:0.5"),
            Some("fatrelu:0.25"),
        ];
        let models = names.map(load);
        let known = models.each_ref().map(|model| {
            let identity = model.identity();
            assert_eq!(identity.hash().is_some(), is_hashed);
            let all = identity.all().collect::<Vec<_>>();
            (
                identity.current(),
                identity.at_load(),
                all,
                model.fingerprint(),
            )
        });
        for (i, one) in known.iter().enumerate() {
            for other in &known[..i] {
                assert!(one.0 != other.0 && one.1 != other.1 && one.3 != other.3);
                assert!(one.2.iter().all(|identity| !other.2.contains(identity)));
            }
        }
        let again = load(Some("silu"));
        assert_eq!(again.identity().current(), known[0].0);
        assert_eq!(again.fingerprint(), known[0].3);
        // What one has read, another does not take.
        let (session, sequence) = read(&models[1]);
        let saved = session.save(&sequence).unwrap();
        for (model, is_same) in [(1, true), (2, false), (0, false)] {
            let mut session = self::session(&models[model]);
            let mut sequence = session.add(&Settings::default()).unwrap();
            let restored = session.restore(&mut sequence, &saved);
            assert_eq!(restored.is_ok(), is_same, "{model}");
        }
    }
}
