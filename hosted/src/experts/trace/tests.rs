//! Lines read and written, and what is said of broken ones.

use super::*;
use std::path::PathBuf;

fn read_all(text: &str) -> Result<Vec<Step>, String> {
    let mut reader = TraceReader::new("t", text.as_bytes());
    let (mut step, mut steps) = (Step::default(), Vec::new());
    while reader.read(&mut step).map_err(|error| error.to_string())? {
        steps.push(step.clone());
    }
    Ok(steps)
}

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let name = format!("sluice-trace-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _removed = std::fs::remove_file(&self.0);
    }
}

#[test]
fn lines_are_read() {
    let text = "{\"token\":5,\"layer\":3,\"experts\":[17,4],\"cache_hit\":[true,false],\"predicted\":[4]}\n\n  \n\
        {\"layer\": 0, \"more\": {\"a\": [1]}, \"experts\": [], \"token\": 6}";
    let steps = read_all(text).unwrap();
    let first = Step {
        token: 5,
        layer: 3,
        experts: vec![17, 4],
        cache_hit: vec![true, false],
        predicted: vec![4],
    };
    let second = Step {
        token: 6,
        ..Step::default()
    };
    assert_eq!(steps, [first, second]);
    assert_eq!(read_all("").unwrap(), []);
}

#[test]
fn errors_name_the_line_and_the_field() {
    let good = "{\"token\":1,\"layer\":0,\"experts\":[1]}\n";
    let long = format!("{{\"token\":1,\"x\":\"{}\"}}", "x".repeat(70_000));
    let many = format!(
        "{{\"token\":1,\"layer\":0,\"experts\":[{}1]}}",
        "1,".repeat(1024)
    );
    for (line, expected) in [
        (
            "{\"token\":1,",
            "not JSON: EOF while parsing a value, column 11",
        ),
        ("[1]", "a JSON object is expected"),
        ("{}", "\"token\" is missing"),
        ("{\"token\":-1}", "\"token\": a whole number is expected"),
        ("{\"token\":1,\"layer\":1.5}", "\"layer\": a whole number"),
        ("{\"token\":1,\"layer\":512}", "at most 512 layers"),
        ("{\"token\":1,\"layer\":1}", "\"experts\" is missing"),
        (
            "{\"token\":1,\"layer\":1,\"experts\":3}",
            "\"experts\": a list is expected",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[524288]}",
            "\"experts\": ids of experts are whole numbers below 524288",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[3,4,3]}",
            "\"experts\": 3 is there twice",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[3],\"predicted\":[\"a\"]}",
            "\"predicted\": ids of",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[3],\"cache_hit\":[1]}",
            "\"cache_hit\": true and false",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[3],\"cache_hit\":[true,true]}",
            "\"cache_hit\" has 2 values, \"experts\" has 1",
        ),
        (&*long, "more than 64 KiB"),
        (&*many, "at most 1024 experts"),
    ] {
        let message = read_all(&format!("{good}{line}\n")).unwrap_err();
        let found = message.starts_with("trace t, line 2: ") && message.contains(expected);
        assert!(found, "{expected:?}: {message}");
    }
    let error = |path: &str| TraceReader::open(Path::new(path)).unwrap_err().to_string();
    assert!(error("/no/such").starts_with("cannot open trace /no/such: No such file"));
    assert_eq!(error("/"), "trace / is a directory");
}

#[test]
fn what_is_recorded_is_read() {
    let file = Temporary::new("recorded");
    for token in 0..2 {
        let mut writer = TraceWriter::append(&file.0).unwrap();
        assert!(writer.record(token, 7, &[3, 1], &[true, false], &[1, 9]));
        assert!(writer.record(u64::MAX, 511, &[], &[], &[]));
        writer.flush().unwrap();
    }
    let text = std::fs::read_to_string(&file.0).unwrap();
    let line = "{\"token\":0,\"layer\":7,\"experts\":[3,1],\"cache_hit\":[true,false],\"predicted\":[1,9]}";
    assert_eq!(text.lines().next(), Some(line));
    let steps = read_all(&text).unwrap();
    assert_eq!(steps.len(), 4);
    assert_eq!((steps[2].token, &*steps[2].predicted), (1, &[1, 9][..]));
    assert_eq!(steps[3].token, u64::MAX);
}

#[test]
fn recording_is_bounded_and_does_not_allocate() {
    let file = Temporary::new("bounded");
    let mut writer = TraceWriter::append(&file.0).unwrap();
    let ids: Vec<u32> = (0..1024).map(|id| u32::MAX - id).collect();
    let before = writer.buffer_address();
    let mut n_kept = 0;
    for _ in 0..200 {
        n_kept += u64::from(writer.record(u64::MAX, u32::MAX, &ids, &[false; 1024], &ids));
    }
    assert_eq!(writer.buffer_address(), before);
    assert_eq!((n_kept + writer.n_lost(), n_kept > 30), (200, true));
    writer.flush().unwrap();
    assert!(writer.record(1, 1, &[1], &[], &[]));
}

#[test]
fn other_files_are_not_appended_to() {
    let file = Temporary::new("foreign");
    std::fs::write(&file.0, "a letter").unwrap();
    let error = TraceWriter::append(&file.0).unwrap_err().to_string();
    assert!(
        error.ends_with("is not a trace; it was left as it is"),
        "{error}"
    );
    let error = TraceWriter::append(Path::new("/")).unwrap_err();
    assert!(matches!(error, TraceError::Directory { .. }), "{error}");
}
