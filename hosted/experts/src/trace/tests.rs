//! Lines read, and the errors of broken ones.

use super::*;
use sluice::experts::trace::TraceWriter;

fn read_all(text: &str) -> Result<Vec<TraceStep>, String> {
    let mut reader = TraceReader::new("t", text.as_bytes());
    let (mut step, mut steps) = (TraceStep::default(), Vec::new());
    while reader.read(&mut step).map_err(|error| error.to_string())? {
        steps.push(step.clone());
    }
    Ok(steps)
}

#[test]
fn lines_are_read() {
    let text = "{\"token\":5,\"layer\":3,\"experts\":[17,4],\"cache_hit\":[true,false],\"predicted\":[4]}\n\n  \n\
        {\"layer\": 0, \"more\": {\"a\": [1]}, \"experts\": [], \"token\": 6}";
    let steps = read_all(text).unwrap();
    let first = TraceStep {
        token: 5,
        layer: 3,
        experts: vec![17, 4],
        cache_hit: vec![true, false],
        predicted: vec![4],
    };
    let second = TraceStep {
        token: 6,
        ..TraceStep::default()
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
        ("[1]", "expected a JSON object"),
        ("{}", "\"token\" is missing"),
        ("{\"token\":-1}", "\"token\": expected an integer"),
        (
            "{\"token\":1,\"layer\":1.5}",
            "\"layer\": expected an integer",
        ),
        ("{\"token\":1,\"layer\":512}", "at most 512 layers"),
        ("{\"token\":1,\"layer\":1}", "\"experts\" is missing"),
        (
            "{\"token\":1,\"layer\":1,\"experts\":3}",
            "\"experts\": expected a list",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[524288]}",
            "\"experts\": expert ids are integers below 524288",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[3,4,3]}",
            "\"experts\": 3 is listed twice",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[3],\"predicted\":[\"a\"]}",
            "\"predicted\": expert ids are",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[3],\"cache_hit\":[1]}",
            "\"cache_hit\": expected true and false",
        ),
        (
            "{\"token\":1,\"layer\":1,\"experts\":[3],\"cache_hit\":[true,true]}",
            "\"cache_hit\" has 2 values, but \"experts\" has 1",
        ),
        (&*long, "exceeds 64 KiB"),
        (&*many, "more than the 1024 experts"),
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
    let name = format!("sluice-trace-{}-recorded", std::process::id());
    let path = std::env::temp_dir().join(name);
    for token in 0..2 {
        let mut writer = TraceWriter::append(&path).unwrap();
        assert!(writer.record(token, 7, &[3, 1], &[true, false], &[1, 9]));
        assert!(writer.record(u64::MAX, 511, &[], &[], &[]));
        writer.flush().unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let line = "{\"token\":0,\"layer\":7,\"experts\":[3,1],\"cache_hit\":[true,false],\"predicted\":[1,9]}";
    assert_eq!(text.lines().next(), Some(line));
    let steps = read_all(&text).unwrap();
    assert_eq!(steps.len(), 4);
    assert_eq!((steps[2].token, &*steps[2].predicted), (1, &[1, 9][..]));
    assert_eq!(steps[3].token, u64::MAX);
}
