//! `sluice gate`: decisions, files, pipes, plots and errors.

use crate::interrupt::{interrupt, interruptible, read_some};
use crate::support::{Ran, TemporaryFile, fails, ran, run_to, sluice};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};

const FRAME_LEN: usize = 64;
/// Frames of [`signal`].
const N_FRAMES: usize = 12;
/// Which of them are loud.
const LOUD: [usize; 4] = [2, 3, 7, 11];

/// Samples after the last whole frame.
const N_REST: usize = 10;

/// Loud frames of 0.5, the others of 0.001, and some samples that do not fill a frame.
fn signal() -> Vec<i16> {
    let n = N_FRAMES * FRAME_LEN + N_REST;
    let level = |i: usize| {
        let amplitude = if LOUD.contains(&(i / FRAME_LEN)) {
            16384
        } else {
            33
        };
        if i.is_multiple_of(3) {
            amplitude
        } else {
            -amplitude
        }
    };
    (0..n).map(level).collect()
}

fn i16_bytes(samples: &[i16]) -> Vec<u8> {
    samples.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn f32_bytes(samples: &[f32]) -> Vec<u8> {
    samples.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn floats(samples: &[i16]) -> Vec<f32> {
    samples.iter().map(|&x| f32::from(x) / 32768.0).collect()
}

/// A WAV file of one channel at 8 kHz, whose header promises `promised` bytes of data.
fn wav(samples: &[i16], promised: usize) -> Vec<u8> {
    let promised = u32::try_from(promised).expect("a short file");
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((promised + 36).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend(8000u32.to_le_bytes());
    bytes.extend(16000u32.to_le_bytes());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend(promised.to_le_bytes());
    bytes.extend(i16_bytes(samples));
    bytes
}

fn wav_file(name: &str) -> TemporaryFile {
    let samples = signal();
    TemporaryFile::new(name, &wav(&samples, 2 * samples.len()))
}

/// The flags of every run here, after the file's name.
fn gate(file: &str, more: &[&str]) -> Vec<String> {
    let policy = ["gate", file, "--frame-len", "64", "--threshold", "0.25"];
    let args = policy.iter().chain(more);
    args.map(|&arg| arg.to_owned()).collect()
}

fn gated(file: &str, more: &[&str]) -> Ran {
    let args = gate(file, more);
    run_to(0, &args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The cells of a table's rows, without its header.
fn rows(ran: &Ran) -> Vec<Vec<&str>> {
    let lines = ran.stdout.lines().skip(1);
    lines.map(|line| line.split(',').collect()).collect()
}

#[test]
fn a_line_per_frame_as_csv() {
    let file = wav_file("decisions.wav");
    let ran = gated(file.path(), &["--hang-over", "1"]);
    assert!(
        ran.stdout
            .starts_with("frame,verdict,max_abs,value,level,scaling,zero_crossing_rate,"),
        "{ran:?}"
    );
    let rows = rows(&ran);
    assert_eq!(rows.len(), N_FRAMES + 1);
    for (i, row) in rows.iter().enumerate() {
        let expected = match i {
            2 | 3 | 7 | 11 => "active",
            4 | 8 | 12 => "hang_over",
            _ => "silent",
        };
        assert_eq!(row.len(), 14, "{row:?}");
        assert_eq!(row[13], if i == N_FRAMES { "54" } else { "0" });
        assert_eq!((row[0], row[1]), (i.to_string().as_str(), expected));
        let max_abs: f32 = row[2].parse().unwrap();
        let amplitude = if LOUD.contains(&i) { 16384.0 } else { 33.0 };
        assert!((max_abs - amplitude / 32768.0).abs() < 1e-7, "{row:?}");
        assert_eq!((row[3], row[4]), (row[2], "0.25"));
        // Features describe frames that pass.
        assert_eq!(row[6].is_empty(), expected == "silent", "{row:?}");
    }
    for part in [
        "778 samples (0.10 s), 13 frames of 64",
        "passed 7 (53.8%)",
        "4 active, 3 of hang-over; skipped 6 (46.2%)",
        "pushed 13 = processed 13 + queued 0 + dropped 0; the last frame is padded with 54 zeros",
    ] {
        assert!(ran.stderr.contains(part), "{part:?}: {ran:?}");
    }
}

#[test]
fn json_lines_say_the_same_as_the_table() {
    let file = wav_file("jsonl.wav");
    let table = gated(file.path(), &["--measure", "std"]);
    let head: Vec<_> = table.stdout.lines().next().unwrap().split(',').collect();
    let json = gated(file.path(), &["--measure", "std", "--decisions", "jsonl"]);
    let lines: Vec<Value> = json
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let rows = rows(&table);
    assert_eq!(lines.len(), rows.len());
    for (line, row) in lines.iter().zip(&rows) {
        for (&name, &cell) in head.iter().zip(row) {
            let found = line.get(if name == "std" { "value" } else { name });
            match found {
                Some(Value::String(text)) => assert_eq!(text, cell),
                Some(Value::Number(n)) => {
                    let bits = |text: &str| text.parse().map(f32::to_bits);
                    assert_eq!(bits(&n.to_string()), bits(cell), "{name}");
                }
                other => assert!(cell.is_empty(), "{name}: {other:?} {cell:?}"),
            }
        }
    }
}

#[test]
fn every_format_and_stdin_give_the_same_decisions() {
    let expected = gated(wav_file("formats.wav").path(), &[]).stdout;
    let samples = signal();
    let raw = i16_bytes(&samples);
    let i16_file = TemporaryFile::new("formats.i16", &raw);
    assert_eq!(gated(i16_file.path(), &[]).stdout, expected);
    let f32_file = TemporaryFile::new("formats.f32", &f32_bytes(&floats(&samples)));
    assert_eq!(gated(f32_file.path(), &[]).stdout, expected);

    // A channel of two, in raw numbers and in a column.
    let both: Vec<f32> = floats(&samples).iter().flat_map(|&x| [9.0, x]).collect();
    let both_file = TemporaryFile::new("both.f32", &f32_bytes(&both));
    let second = ["--channels", "2", "--channel", "1"];
    assert_eq!(gated(both_file.path(), &second).stdout, expected);
    let mut text = "time;signal\n".to_owned();
    for (i, x) in floats(&samples).iter().enumerate() {
        text.push_str(&format!("{i};{x}\n"));
    }
    let csv_file = TemporaryFile::new("formats.csv", text.as_bytes());
    assert_eq!(
        gated(csv_file.path(), &["--column", "signal"]).stdout,
        expected
    );
    assert_eq!(gated(csv_file.path(), &["--column", "2"]).stdout, expected);

    let mut child = piped(&["--format", "i16"]);
    let mut stdin = child.stdin.take().unwrap();
    // In pieces that cut samples and frames.
    for piece in raw.chunks(101) {
        stdin.write_all(piece).unwrap();
    }
    drop(stdin);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), expected.as_str()),
        "{}",
        ran.stderr
    );
}

/// A gate on a pipe.
fn piped(more: &[&str]) -> Child {
    let mut command = sluice();
    command.args(gate("-", more)).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// An output file that does not exist yet, removed when dropped.
fn output(name: &str) -> TemporaryFile {
    let file = TemporaryFile::new(name, b"");
    std::fs::remove_file(&file.0).expect("it was just made");
    file
}

#[test]
fn what_passed_is_written_and_nothing_else() {
    let file = wav_file("out-input.wav");
    let samples = floats(&signal());
    let frames = LOUD
        .iter()
        .flat_map(|&i| &samples[i * FRAME_LEN..][..FRAME_LEN]);
    let expected: Vec<f32> = frames.copied().collect();

    let raw = output("out.f32");
    let quiet = ["--decisions", "none", "--out"];
    let ran = gated(file.path(), &[&quiet[..], &[raw.path()]].concat());
    assert_eq!(ran.stdout, "");
    assert_eq!(std::fs::read(&raw.0).unwrap(), f32_bytes(&expected));

    let csv = output("out.csv");
    gated(file.path(), &[&quiet[..], &[csv.path()]].concat());
    let text = std::fs::read_to_string(&csv.0).unwrap();
    let found: Vec<f32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found, expected);

    // Read back: every frame passes, unchanged.
    let (once, twice) = (output("once.wav"), output("twice.wav"));
    gated(file.path(), &[&quiet[..], &[once.path()]].concat());
    let ran = gated(once.path(), &[&quiet[..], &[twice.path()]].concat());
    assert!(
        ran.stderr.contains("256 samples (0.03 s), 4 frames"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("passed 4 (100.0%)"), "{ran:?}");
    assert_eq!(
        std::fs::read(&once.0).unwrap(),
        std::fs::read(&twice.0).unwrap()
    );

    // An existing file is kept, unless overwriting is requested.
    let args = gate(file.path(), &[&quiet[..], &[once.path()]].concat());
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    fails(1, &args, &["once.wav", "--overwrite"]);
    run_to(0, &[&args[..], &["--overwrite"]].concat());
}

#[test]
fn the_end_of_a_stream_is_judged_and_whole_frames_can_be_kept() {
    let mut samples = floats(&signal());
    let end = N_FRAMES * FRAME_LEN;
    samples[end..].fill(0.75);
    let file = TemporaryFile::new("end.f32", &f32_bytes(&samples));
    for how in ["block", "drop-newest", "drop-oldest"] {
        let out = output("end-out.f32");
        let ran = gated(file.path(), &["--on-full", how, "--out", out.path()]);
        let rows = rows(&ran);
        let last = rows.last().unwrap();
        assert_eq!(
            (last[0], last[1], last[13]),
            ("12", "active", "54"),
            "{how}"
        );
        // Its samples are written, and the zeros are not.
        let passed = std::fs::read(&out.0).unwrap();
        assert!(passed.ends_with(&f32_bytes(&samples[end..])), "{how}");
        assert_eq!(passed.len(), 4 * (LOUD.len() * FRAME_LEN + N_REST), "{how}");
    }
    let out = output("whole-out.f32");
    let ran = gated(file.path(), &["--keep-whole-frames", "--out", out.path()]);
    assert_eq!(rows(&ran).len(), N_FRAMES);
    let told =
        "pushed 13 = processed 12 + queued 1 + dropped 0; the last 10 samples do not fill a frame";
    assert!(ran.stderr.contains(told), "{ran:?}");
    assert_eq!(
        std::fs::read(&out.0).unwrap().len(),
        4 * LOUD.len() * FRAME_LEN
    );
    // A whole number of frames is as before.
    let whole = TemporaryFile::new("whole.f32", &f32_bytes(&samples[..end]));
    assert_eq!(rows(&gated(whole.path(), &[])).len(), N_FRAMES);
}

#[test]
fn an_output_that_is_the_input_is_refused() {
    let file = wav_file("self.wav");
    let before = std::fs::read(&file.0).unwrap();
    let link = output("self-link.wav");
    std::os::unix::fs::symlink(&file.0, &link.0).unwrap();
    let plot = output("self.svg");
    std::fs::hard_link(&file.0, &plot.0).unwrap();
    for (flag, out) in [("--out", &file), ("--out", &link), ("--plot", &plot)] {
        let told = format!("{flag} would replace the input");
        let args = ["gate", file.path(), flag, out.path(), "--overwrite"];
        fails(1, &args, &[&told, "self.wav"]);
    }
    assert_eq!(std::fs::read(&file.0).unwrap(), before);
}

#[test]
fn a_plot_is_a_picture_of_all_frames() {
    let (file, svg) = (wav_file("plot.wav"), output("plot.svg"));
    gated(file.path(), &["--decisions", "none", "--plot", svg.path()]);
    let text = std::fs::read_to_string(&svg.0).unwrap();
    assert!(
        text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"),
        "{text}"
    );
    assert!(text.contains("max_abs"), "{text}");
    // Every number must be valid in XML.
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
}

#[test]
fn watching_without_a_terminal_writes_plain_lines() {
    let file = wav_file("watch.wav");
    let ran = gated(file.path(), &["--watch"]);
    assert_eq!(ran.stdout, "");
    assert!(
        ran.stderr.contains(" frames/s ") && ran.stderr.contains("dropped 0"),
        "{ran:?}"
    );
    assert!(!ran.stderr.contains(['\r', '\x1b']), "{ran:?}");
    let ran = gated(file.path(), &["--watch", "--decisions", "jsonl"]);
    assert_eq!(ran.stdout.lines().count(), N_FRAMES + 1);
}

#[test]
fn isolation_is_reported_and_changes_no_decision() {
    let file = wav_file("isolate.wav");
    let (plain, isolated) = (gated(file.path(), &[]), gated(file.path(), &["--isolate"]));
    assert_eq!(plain.stdout, isolated.stdout);
    for name in ["core", "scheduling", "memory lock", "numa"] {
        let has = |text: &str| text.lines().any(|line| line.starts_with(name));
        assert!(
            has(&isolated.stderr) && !has(&plain.stderr),
            "{name}: {isolated:?}"
        );
    }
}

#[test]
fn input_of_no_samples_is_no_mistake() {
    let empty = TemporaryFile::new("empty.f32", b"");
    let ran = gated(empty.path(), &[]);
    assert_eq!(ran.stdout.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("0 samples, 0 frames of 64"), "{ran:?}");
    let header = TemporaryFile::new("empty-data.wav", &wav(&[], 0));
    assert!(gated(header.path(), &[]).stderr.contains("0 samples"));
    let wav = TemporaryFile::new("empty.wav", b"");
    fails(
        1,
        &["gate", wav.path()],
        &["empty.wav", "shorter than a header"],
    );
}

#[test]
fn mistakes_are_named() {
    let folder = std::env::temp_dir();
    let folder = folder.to_str().unwrap();
    fails(
        1,
        &["gate", folder, "--format", "f32"],
        &[folder, "is a directory"],
    );
    fails(1, &["gate", "/nowhere.wav"], &["cannot open /nowhere.wav"]);
    let samples = signal();
    let cut = TemporaryFile::new("cut.wav", &wav(&samples, 2 * samples.len() + 100));
    fails(
        1,
        &["gate", cut.path()],
        &["cut.wav", "truncated", "100 bytes"],
    );
    // Everything before the cut has been decided.
    let ran = run_to(1, &["gate", cut.path(), "--frame-len", "64"]);
    assert_eq!(ran.stdout.lines().count(), 1 + N_FRAMES, "{ran:?}");
    let odd = TemporaryFile::new("odd.f32", &[0; 4 * FRAME_LEN + 3]);
    fails(
        1,
        &["gate", odd.path()],
        &["odd.f32", "3 bytes into a sample"],
    );
    let text = TemporaryFile::new("bad.csv", b"a,b\n1,2\n3,four\n");
    fails(
        1,
        &["gate", text.path(), "--column", "b"],
        &["bad.csv", "line 3", "four"],
    );
    fails(
        1,
        &["gate", text.path(), "--column", "c"],
        &["column \"c\" does not exist", "a,b"],
    );
    fails(1, &["gate", text.path()], &["bad.csv", "2 columns"]);
    let wav = wav_file("mistakes.wav");
    for (args, named) in [
        (["--channels", "2"], "--channels applies only to raw"),
        (["--column", "a"], "--column applies only to CSV"),
        (["--plot", "x.png"], "use the extension .svg"),
        (["--out", "x.mp3"], ".wav, .csv, .f32"),
    ] {
        fails(2, &["gate", wav.path(), args[0], args[1]], &[named]);
    }
    fails(
        1,
        &["gate", wav.path(), "--channel", "1"],
        &["channel 1", "there are 1"],
    );

    let unknown = TemporaryFile::new("samples.bin", b"");
    fails(2, &["gate", unknown.path()], &["--format"]);
    for args in [
        ["--threshold", "NaN"],
        ["--hysteresis", "0"],
        ["--measure", "loudness"],
        ["--frame-len", "0"],
        ["--num-bins", "0"],
        ["--noise-floor", "0.5"],
        ["--on-full", "panic"],
        ["--isa", "sse9"],
        ["--loudness", "1"],
    ] {
        let ran = run_to(2, &[&["gate", wav.path()], &args[..]].concat());
        assert!(ran.stderr.contains("error: "), "{args:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}

/// Enough decisions to fill any pipe.
#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let many = TemporaryFile::new("many.f32", &vec![0; 4 << 20]);
    let mut command = sluice();
    command.args(["gate", many.path(), "--frame-len", "16"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        !ran.stderr.contains("error") && !ran.stderr.contains("panicked"),
        "{ran:?}"
    );
}

#[test]
fn an_interrupted_live_stream_ends_with_its_summary() {
    let mut command = sluice();
    let args = gate("-", &["--format", "i16"]);
    command.args(args).stdin(Stdio::piped());
    let mut child = interruptible(command);
    let mut stdin = child.stdin.take().unwrap();
    // More than one push, so that decisions come while the stream is open.
    for _ in 0..50 {
        stdin.write_all(&i16_bytes(&signal())).unwrap();
    }
    read_some(&mut child, 200);
    interrupt(&child);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("dropped 0"), "{ran:?}");
    drop(stdin);
}

#[test]
fn bench_measures_every_share_of_silence() {
    let size = ["--memory", "2", "--cache", "64", "--seconds", "0.01"];
    let ran = run_to(0, &[&["gate", "bench", "--json"], &size[..]].concat());
    let lines: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    // Probe, scan and statistics of three places, and seven shares in two of them.
    assert_eq!(lines.len(), 3 * 3 + 2 * 7, "{ran:?}");
    for line in &lines {
        for name in [
            "frames_per_second",
            "cycles_per_frame",
            "gb_per_second",
            "probe_pct",
        ] {
            assert!(line[name].as_f64().unwrap() > 0.0, "{line}");
        }
        let bytes = line["frames_per_second"].as_f64().unwrap() * 4096.0;
        let ratio = line["gb_per_second"].as_f64().unwrap() * 1e9 / bytes;
        assert!((0.95..1.05).contains(&ratio), "{line}");
    }
    let dense = lines.iter().find(|line| line["what"] == "0%").unwrap();
    let silent = lines.iter().find(|line| line["what"] == "100%").unwrap();
    let rate = |line: &Value| line["frames_per_second"].as_f64().unwrap();
    assert!(
        rate(silent) > rate(dense),
        "silence costs more than signal: {ran:?}"
    );

    let ran = run_to(
        0,
        &[&["gate", "bench", "--isa", "scalar"], &size[..]].concat(),
    );
    assert!(ran.stdout.starts_with("kernels scalar, "), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 2 + 23, "{ran:?}");
    fails(2, &["gate", "bench", "--isa", "sse9"], &["sse9"]);
}
