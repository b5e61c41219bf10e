//! The Rust programs of README.md and docs/embedding.md, built and run outside the workspace.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// The programs in their order: a name, and its maximum number of lines.
const PROGRAMS: [(&str, usize); 6] = [
    ("readme", 9),
    ("text", 12),
    ("two", 20),
    ("embeddings", 10),
    ("sparse", 24),
    ("adapters", 16),
];

#[test]
fn the_programs_of_the_documents_run_outside_the_workspace() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let pages = ["README.md", "docs/embedding.md"];
    let pages = pages.map(|name| fs::read_to_string(root.join(name)).unwrap());
    let programs: Vec<_> = pages.iter().flat_map(|page| blocks(page)).collect();
    assert_eq!(programs.len(), PROGRAMS.len());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    fs::create_dir_all(folder.join("src/bin")).unwrap();
    let hosted = root.join("hosted").canonicalize().unwrap();
    let hf = hosted.join("hf");
    let manifest = format!(
        "[package]\nname = \"outside\"\nedition = \"2024\"\n\n\
         [dependencies]\nsluice = {{ path = {hosted:?} }}\nsluice-hf = {{ path = {hf:?} }}\n\n\
         [profile.dev]\nopt-level = 2\ndebug = false\n\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    // The versions of this workspace, so that nothing has to be fetched.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    for ((name, lines), program) in PROGRAMS.iter().zip(&programs) {
        assert!(program.lines().count() <= *lines, "{name}");
        fs::write(folder.join(format!("src/bin/{name}.rs")), program).unwrap();
    }
    let tale = fs::read(sluice_tests::hosted::TALE).unwrap();
    fs::write(folder.join("model.gguf"), tale).unwrap();
    fs::create_dir_all(folder.join("adapter")).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let from = root.join("tests/fixtures/adapters/tale/one").join(name);
        fs::copy(from, folder.join("adapter").join(name)).unwrap();
    }

    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--offline"])
        .env_remove("CARGO_TARGET_DIR");
    assert!(build.current_dir(&folder).status().unwrap().success());
    let text = run(&folder, "text");
    assert!(text.starts_with(','), "{text}");
    assert!(text.split(' ').count() > 20, "{text}");
    assert!(run(&folder, "readme").starts_with(&text));
    let two = run(&folder, "two");
    for beginning in ["A little bird", "An old boat"] {
        let line = two.split(beginning).nth(1).unwrap();
        assert!(line.split(' ').count() > 20, "{two}");
    }
    let adapted = run(&folder, "adapters");
    assert!(!adapted.is_empty() && !text.starts_with(&adapted));
    let sparse = run(&folder, "sparse");
    assert!(sparse.contains("average_active_ratio: 0.0996"), "{sparse}");
    assert!(sparse.contains("honest: true"), "{sparse}");
    let vectors = run(&folder, "embeddings");
    assert_eq!(
        vectors
            .lines()
            .filter(|line| line.contains("numbers: ["))
            .count(),
        2,
        "{vectors}"
    );
}

/// The blocks of Rust in a page.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    let behind = page.split("```rust\n").skip(1);
    behind.filter_map(|text| text.split("```").next())
}

fn run(folder: &Path, name: &str) -> String {
    let program = folder.join("target/debug").join(name);
    let output = Command::new(program).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
