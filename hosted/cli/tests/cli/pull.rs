//! `sluice pull` and `-hf`, from a stand-in of the hub on this machine.

use crate::stand_in::StandIn;
use crate::support::{MODEL, Ran, TemporaryFile, ran, sluice};
use std::path::Path;

/// A cache of its own, removed when dropped.
struct Cache(TemporaryFile);

impl Cache {
    fn new(name: &str) -> Self {
        let file = TemporaryFile::new(name, b"");
        std::fs::remove_file(&file.0).expect("it is there");
        Self(file)
    }

    fn run(&self, server: &StandIn, args: &[&str]) -> Ran {
        let mut command = sluice();
        command
            .env("HF_HUB_CACHE", self.0.path())
            .env_remove("LLAMA_CACHE");
        command
            .env("HF_ENDPOINT", server.endpoint())
            .env_remove("HF_TOKEN");
        ran(command.args(args).output().expect("the program starts"))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0.0);
    }
}

#[test]
fn a_model_is_fetched_and_runs() {
    let (server, cache) = (StandIn::start(), Cache::new("hf"));
    server.add("tale-Q4_K_M.gguf", &std::fs::read(MODEL).unwrap());
    let pulled = cache.run(&server, &["pull", "u/m"]);
    assert_eq!(pulled.code, Some(0), "{pulled:?}");
    let path = pulled.stdout.trim_end();
    assert!(
        Path::new(path).is_file() && path.ends_with("tale-Q4_K_M.gguf"),
        "{pulled:?}"
    );
    let story = ["-p", "The little dog", "-n", "8", "--temp", "0"];
    let of = |model: &[&str]| {
        let ran = cache.run(&server, &[&["run"], model, &story[..]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    };
    let expected = of(&["-m", MODEL]);
    let ways: [&[&str]; 6] = [
        &["-hf", "u/m"],
        &["-hfr", "u/m:q4_k_m", "--offline"],
        &["--hf-repo=u/m", "-hff", "tale-Q4_K_M.gguf"],
        &["-hf", "u/m", "-hft", "hf_x"],
        &[path],
        &["-m", path],
    ];
    for way in ways {
        assert_eq!(of(way), expected, "{way:?}");
    }
}

#[test]
fn what_cannot_be_fetched_is_said() {
    let (server, cache) = (StandIn::start(), Cache::new("hf-fails"));
    server.add("m-Q8_0.gguf", b"GGUF");
    let cases: [(&[&str], i32, &str); 7] = [
        (&["pull", "m"], 2, "invalid repository"),
        (&["pull", "u/absent"], 1, "HTTP 404; no such repository"),
        (
            &["pull", "u/m:Q4_0"],
            1,
            "no model in Q4_0; available: m-Q8_0.gguf",
        ),
        (&["pull", "u/m", "--folder"], 1, "no .safetensors file"),
        (
            &["run", "-hf", "u/m", "--offline"],
            1,
            "is not in the cache",
        ),
        (
            &["run", "-hf", "u/m", "-m", "x"],
            2,
            "several models are named",
        ),
        (&["run", "-hff", "x.gguf"], 2, "-hf USER/NAME"),
    ];
    for (args, code, expected) in cases {
        let ran = cache.run(&server, args);
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?}: {ran:?}");
    }
}
