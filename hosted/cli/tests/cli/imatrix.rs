//! Importance matrices without a model: added up, shown, written in either format.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{Folder, Ran, fails, fixture, ran, run_to, sluice};
use sluice::file::OutputFile;
use sluice_make::quantize::{ImportanceFormat, ImportanceMatrix};
use std::fs;
use std::path::Path;

fn mixture() -> String {
    fixture("experts/odd-experts.imatrix.gguf")
}

fn open(path: &str) -> ImportanceMatrix {
    ImportanceMatrix::open(Path::new(path)).unwrap()
}

fn imatrix(args: &[&str]) -> Ran {
    run_to(0, &[&["imatrix"], args].concat())
}

#[test]
fn matrices_are_added_up_without_a_model() {
    let folder = Folder::new("imatrix-sum");
    let (one, sum) = (mixture(), folder.path("sum.gguf"));
    let ran = imatrix(&["--in-file", &one, "--in-file", &one, "-o", &sum]);
    assert!(ran.stderr.contains("sum.gguf: "), "{ran:?}");
    let (one, sum) = (open(&one), open(&sum));
    assert_eq!(sum.chunk_count, 2 * one.chunk_count);
    assert_eq!(sum.datasets.len(), 2 * one.datasets.len());
    for (name, weight) in &one.weights {
        let twice: Vec<f32> = weight.sums.iter().map(|x| x + x).collect();
        assert_eq!(sum.weights[name].sums, twice, "{name}");
    }
}

#[test]
fn statistics_are_shown_without_a_model_and_nothing_is_written() {
    let folder = Folder::new("imatrix-shown");
    let one = fs::canonicalize(mixture()).unwrap();
    let mut command = sluice();
    command
        .current_dir(&folder.0)
        .args(["imatrix", "--show-statistics", "--in-file"]);
    let ran = ran(command.arg(one).output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.starts_with("weight "), "{ran:?}");
    assert!(ran.stdout.lines().count() > 2, "{ran:?}");
    assert!(folder.names().is_empty(), "{:?}", folder.names());
}

#[test]
fn dat_is_the_older_format_and_reads_as_the_same_importance() {
    let folder = Folder::new("imatrix-dat");
    let (one, dat, named) = (mixture(), folder.path("im.dat"), folder.path("im.bin"));
    imatrix(&["--in-file", &one, "-o", &dat]);
    imatrix(&["--in-file", &one, "-o", &named, "--output-format", "dat"]);
    let bytes = fs::read(&dat).unwrap();
    assert_eq!(bytes, fs::read(&named).unwrap());
    assert_ne!(bytes[..4], *b"GGUF");
    let (one, dat) = (open(&one), open(&dat));
    assert_eq!(dat.weights.len(), one.weights.len());
    assert_eq!(
        (dat.chunk_count, dat.datasets.last()),
        (one.chunk_count, one.datasets.last())
    );
    for (name, weight) in &one.weights {
        let n_columns = weight.sums.len() / weight.counts.len();
        let means = (0..weight.counts.len()).flat_map(|index| weight.columns(index, n_columns));
        let read = dat.weights[name].columns(0, weight.sums.len());
        for (mean, read) in means.zip(read) {
            assert!((mean - read).abs() <= 2e-7 * mean, "{name}: {mean} {read}");
        }
    }
    // Both formats are added up, and a .gguf name stays GGUF.
    let sum = folder.path("sum.gguf");
    imatrix(&[
        "--in-file",
        &mixture(),
        "--in-file",
        &folder.path("im.dat"),
        "-o",
        &sum,
    ]);
    assert_eq!(open(&sum).weights.len(), one.weights.len());
    assert_eq!(fs::read(&sum).unwrap()[..4], *b"GGUF");
}

#[test]
fn nothing_to_read_and_nothing_to_add_is_named() {
    let sums = mixture();
    fails(
        2,
        &["imatrix", "--in-file", &sums, "-m", "no.gguf"],
        &["without -f FILE nothing is read"],
    );
    fails(
        2,
        &["imatrix", "-m", "no.gguf"],
        &["-f FILE", "--in-file FILE"],
    );
    fails(
        1,
        &["imatrix", "--in-file", "/no/such.gguf", "--show-statistics"],
        &["/no/such.gguf"],
    );
}

#[test]
fn damaged_importance_is_named() {
    let folder = Folder::new("damaged");
    let path = folder.path("im.dat");
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        ImportanceMatrix::open(Path::new(&path))
    };
    // The older format: one weight of two columns, three calls, sums of squares times calls.
    let mut good = Vec::new();
    good.extend(1i32.to_le_bytes());
    good.extend(1i32.to_le_bytes());
    good.extend(b"w");
    good.extend(3i32.to_le_bytes());
    good.extend(2i32.to_le_bytes());
    good.extend([3.0f32, 6.0].iter().flat_map(|x| x.to_le_bytes()));
    let matrix = open(&good).unwrap();
    assert_eq!(matrix.weights["w"].columns(0, 2), [1.0, 2.0]);
    for len in 1..good.len() {
        assert!(open(&good[..len]).is_err(), "{len}");
    }
    let mut huge = good.clone();
    huge[13..17].copy_from_slice(&i32::MAX.to_le_bytes());
    assert!(
        open(&huge)
            .unwrap_err()
            .to_string()
            .contains("bytes at byte")
    );
    let mut nan = good.clone();
    nan[17..21].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(open(&nan).unwrap_err().to_string().contains('w'));
    let output = OutputFile::create(Path::new(&folder.path("new.gguf")), false).unwrap();
    matrix.write(output, ImportanceFormat::Gguf).unwrap();
    let again = ImportanceMatrix::open(Path::new(&folder.path("new.gguf")));
    assert_eq!(again.unwrap().weights, matrix.weights);
}
