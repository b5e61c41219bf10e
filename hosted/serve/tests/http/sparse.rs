//! Models packed by neuron: the mode in use and the neurons left unread are reported, and answers stay the same.

use crate::adapters::folder;
use crate::client::{Running, options};
use serde_json::json;
use sluice::Team;
use sluice::file::OutputFile;
use sluice::host::topology::Cores;
use sluice::sparse::SparseMode;
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::model::Activation;
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, PackOptions, SlcWatch, pack};
use sluice_serve::{Server, ServerConfig};
use std::path::Path;

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/models/llama-Q8_0.gguf"
);

fn pack_by_neuron(to: &Path) {
    let bytes = std::fs::read(MODEL).unwrap();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let output = OutputFile::create(to, true).unwrap();
    let stop = StopFlag::new();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    let how = PackOptions {
        n_threads: 1,
        verify: false,
        ffn: FfnLayout::Neurons,
    };
    pack(&SliceSource(&bytes), &gguf, output, how, &watch).unwrap();
}

/// A server of one model, whose gates have zeros.
fn server(path: &Path, sparse: Option<SparseMode>) -> ServerConfig {
    let mut options = options();
    options.models.named.truncate(1);
    options.models.named[0].path = path.into();
    options.models.limits.n_ctx = 256;
    options.models.limits.sparse = sparse;
    options.models.activation = Activation::parse("relu");
    options
}

/// Neurons in a state, according to `/metrics`.
fn neurons(server: &Running, state: &str) -> u64 {
    count(server, "neurons", state)
}

/// Neurons or bytes in a state, according to `/metrics`.
fn count(server: &Running, what: &str, state: &str) -> u64 {
    let text = server.get("/metrics").body;
    let head = &*format!("sluice:ffn_{what}_total{{");
    let state = format!("state=\"{state}\"}} ");
    let line = text
        .lines()
        .find(|line| line.starts_with(head) && line.contains(&state));
    let (_, value) = line.unwrap().rsplit_once(' ').unwrap();
    value.parse().unwrap()
}

#[test]
fn neurons_left_unread_are_counted_and_change_no_answer() {
    let folder = folder("sparse");
    let slc = folder.join("m.slc");
    pack_by_neuron(&slc);
    let ask = json!({"prompt": [11, 48, 85, 122], "n_predict": 12, "temperature": 0, "ignore_eos": true,
        "return_tokens": true, "n_probs": 2});
    let run = |path: &Path, sparse| {
        let server = Running::start(server(path, sparse));
        let reply = server.post("/completion", &ask).json();
        let answer = (
            reply["tokens"].clone(),
            reply["completion_probabilities"].clone(),
        );
        assert!(answer.0.as_array().unwrap().len() == 12, "{reply}");
        let props = server.get("/props").json();
        let counts = ["computed", "skipped"].map(|state| neurons(&server, state));
        let shown = props["sparse"].as_str().unwrap().to_owned();
        let bytes = ["read", "skipped"].map(|state| count(&server, "bytes", state));
        assert_eq!(bytes.map(|n| n > 0), counts.map(|n| n > 0), "{bytes:?}");
        (answer, shown, counts, props["system_fingerprint"].clone())
    };
    let (expected, shown, counts, _) = run(Path::new(MODEL), None);
    assert_eq!((&*shown, counts), ("off", [0, 0]));
    let (answer, shown, [computed, skipped], fingerprint) = run(&slc, None);
    assert_eq!((answer, &*shown), (expected.clone(), "exact"));
    assert!(computed > 0 && skipped > 0, "{computed}, {skipped}");
    let by_name = run(&slc, Some(SparseMode::Exact));
    assert_eq!(
        (by_name.0, by_name.2),
        (expected.clone(), [computed, skipped])
    );
    let (answer, shown, counts, same) = run(&slc, Some(SparseMode::Off));
    assert_eq!((answer, &*shown, counts), (expected, "off", [0, 0]));
    assert_eq!(same, fingerprint);
    let why = refusal(server(Path::new(MODEL), Some(SparseMode::Exact)));
    assert!(why.contains("sluice pack --ffn neuron"), "{why}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Why a server does not start.
fn refusal(options: ServerConfig) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ended = runtime.block_on(async {
        let team = Team::new(1, &Cores::detect()).unwrap();
        let server = Server::bind(options, team)
            .await
            .map_err(|error| error.to_string())?;
        let ended = server.run(Box::pin(core::future::pending())).await;
        ended.map_err(|error| error.to_string())
    });
    ended.unwrap_err()
}

#[test]
fn modes_that_change_results_have_their_own_fingerprint_and_the_same_answers_by_neuron() {
    let folder = folder("sparse-modes");
    let slc = folder.join("m.slc");
    pack_by_neuron(&slc);
    let ask = json!({"prompt": [11, 48, 85, 122], "n_predict": 12, "temperature": 0, "ignore_eos": true,
        "return_tokens": true, "n_probs": 2});
    let run = |path: &Path, mode: &str| {
        let server = Running::start(server(path, Some(mode.parse().unwrap())));
        let reply = server.post("/completion", &ask).json();
        let props = server.get("/props").json();
        assert_eq!(props["sparse"], mode, "{props}");
        let answer = (
            reply["tokens"].clone(),
            reply["completion_probabilities"].clone(),
        );
        let counts = ["computed", "skipped"].map(|state| neurons(&server, state));
        (
            answer,
            counts,
            props["system_fingerprint"].as_str().unwrap().to_owned(),
        )
    };
    let off = run(&slc, "off");
    let mut fingerprints = vec![off.2];
    for mode in [
        "threshold:0.02",
        "top-k:20",
        "top-k:20:product",
        "budget:0.3",
    ] {
        let (answer, [computed, skipped], fingerprint) = run(Path::new(MODEL), mode);
        assert!(answer != off.0, "{mode}");
        assert!(computed > 0 && skipped > 0, "{mode}");
        let packed = run(&slc, mode);
        assert_eq!(
            (packed.0, packed.1),
            (answer, [computed, skipped]),
            "{mode}"
        );
        assert!(!fingerprints.contains(&fingerprint), "{mode}");
        fingerprints.push(fingerprint);
    }
    let why = refusal(server(Path::new(MODEL), Some("target".parse().unwrap())));
    assert!(why.contains("sluice sparsify"), "{why}");
    std::fs::remove_dir_all(folder).unwrap();
}
