//! Traces written: bounded, and never over another file.

use super::*;
use std::path::PathBuf;

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
        error.ends_with("is not a trace; it was not changed"),
        "{error}"
    );
    let error = TraceWriter::append(Path::new("/")).unwrap_err();
    assert!(matches!(error, TraceError::Directory { .. }), "{error}");
}
