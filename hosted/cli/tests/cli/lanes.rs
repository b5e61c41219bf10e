//! Precision lanes from the outside: `sluice quantize IN OUT.slc`, and what cannot hold them.

use crate::support::{Folder, MODEL, fails, run_to};
use sluice::core::kernels::GgmlType;
use sluice::file::GgufHeader;
use std::fs;

/// The output of `quantize --allow-requantize` from `model`.
fn quantized(folder: &Folder, model: &str, name: &str, ty: &str) -> String {
    let out = folder.path(name);
    let args = ["quantize", "--allow-requantize", model, &out, ty];
    run_to(0, &args);
    out
}

#[test]
fn a_model_in_lanes_talks_and_has_their_bits() {
    let folder = Folder::new("lanes");
    let mut sizes = Vec::new();
    for (ty, row_bytes) in [("LANE3", 112), ("LANE5", 176), ("LANE7", 240)] {
        let out = quantized(&folder, MODEL, &format!("{ty}.slc"), ty);
        let report = run_to(0, &["inspect", &out]).stdout;
        // 768 rows of 256 columns.
        let kib = f64::from(768 * row_bytes) / 1024.0;
        let line = report.lines().find(|line| line.contains("blk.0.ffn_up"));
        let line = line.expect("the tensor is in the report");
        assert!(line.contains(ty), "{line}");
        assert!(line.contains(&format!("{kib:.2} KiB")), "{line}");
        let checked = run_to(0, &["unpack", &out, "--verify"]);
        assert!(checked.stderr.contains("verified"), "{checked:?}");
        let run = ["run", "-m", &out, "-p", "The little dog", "-n", "16"];
        let said = run_to(0, &[&run[..], &["--temp", "0"]].concat()).stdout;
        assert!(said.split_whitespace().count() > 10, "{said:?}");
        sizes.push(fs::metadata(&out).expect("it is there").len());
    }
    assert!(sizes.is_sorted(), "{sizes:?}");
    assert_eq!(folder.names(), ["LANE3.slc", "LANE5.slc", "LANE7.slc"]);
}

#[test]
fn lanes_of_single_tensors() {
    let folder = Folder::new("lanes-some");
    let out = folder.path("some.slc");
    let types = ["--tensor-type", "ffn_down=lane7"];
    let args = [
        &["quantize", "--allow-requantize"],
        &types[..],
        &[MODEL, &out, "Q8_0"],
    ];
    let ran = run_to(0, &args.concat());
    let count = |ty| ran.stdout.lines().filter(|line| line.contains(ty)).count();
    assert_eq!(count("-> LANE7"), 6, "{ran:?}");
    assert!(count("-> Q8_0") > 6, "{ran:?}");
}

#[test]
fn what_cannot_hold_lanes_is_named_and_nothing_is_left() {
    let folder = Folder::new("lanes-wrong");
    let gguf = &folder.path("out.gguf");
    let requantize = ["quantize", "--allow-requantize"];
    for (flag, ty, named) in [
        (&[][..], "LANE3", "the type LANE3: "),
        (
            &["--tensor-type", "ffn_down=lane5"],
            "Q8_0",
            "--tensor-type LANE5: ",
        ),
        (
            &["--output-tensor-type", "lane7"],
            "Q8_0",
            "--output-tensor-type LANE7: ",
        ),
        (
            &["--token-embedding-type", "lane3"],
            "Q8_0",
            "--token-embedding-type LANE3: ",
        ),
    ] {
        let args = [&requantize[..], flag, &[MODEL, gguf, ty]].concat();
        fails(2, &args, &[named, "GGUF has no number", "ends in .slc"]);
    }
    // Rows of 48: one block of a lane and a half.
    let narrow = folder.path("narrow.gguf");
    let mut header = GgufHeader::new();
    header.set("general.architecture", "llama");
    header.add_tensor("blk.0.ffn_up.weight", &[48, 16], GgmlType::F16);
    let mut file = header.bytes();
    file.resize(
        usize::try_from(header.file_bytes()).expect("it is small"),
        0,
    );
    fs::write(&narrow, file).expect("it can be written");
    let slc = folder.path("out.slc");
    fails(
        1,
        &["quantize", &narrow, &slc, "LANE5"],
        &[
            "blk.0.ffn_up.weight",
            "LANE5",
            "rows of 48 are not a multiple of 32",
        ],
    );
    assert_eq!(folder.names(), ["narrow.gguf"]);
}

#[test]
fn a_file_in_lanes_has_no_gguf_file_and_can_be_quantised_again() {
    let folder = Folder::new("lanes-again");
    let lanes = &quantized(&folder, MODEL, "lanes.slc", "LANE7");
    let gguf = &folder.path("out.gguf");
    let first = ["token_embd.weight", "LANE7"];
    fails(
        1,
        &["unpack", lanes, gguf],
        &[&first[..], &["has no GGUF file", "--allow-requantize"]].concat(),
    );
    fails(
        1,
        &["quantize", lanes, gguf, "Q4_0"],
        &[&first[..], &["is already", "--allow-requantize"]].concat(),
    );
    assert_eq!(folder.names(), ["lanes.slc"]);
    let other = quantized(&folder, lanes, "other.slc", "LANE3");
    let back = quantized(&folder, lanes, "back.gguf", "F32");
    for (model, words) in [(&other, "LANE3"), (&back, "F32")] {
        let report = run_to(0, &["inspect", model]).stdout;
        let line = report.lines().find(|line| line.contains("blk.0.ffn_up"));
        assert!(line.is_some_and(|line| line.contains(words)), "{report}");
    }
    // F32 holds a lane's numbers exactly; rows that they are multiplied with are rounded otherwise.
    let text = |model: &str| {
        let args = ["run", "-m", model, "-p", "The little dog", "-n", "16"];
        run_to(0, &[&args[..], &["--temp", "0"]].concat()).stdout
    };
    assert_eq!(text(&back), text(lanes));
}
