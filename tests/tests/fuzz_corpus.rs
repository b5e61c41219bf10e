//! Every input that fuzzing has kept, through the same functions, in bounded time and memory.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use sluice_tests::fuzz::{TARGETS, seeds};
use std::alloc::System;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Remembers the largest single request.
struct Largest;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Largest = Largest;

// SAFETY: passes everything on to the system's allocator; remembering changes no memory.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `run` on one input and holds it to the bounds.
fn bounded(label: &str, input: &[u8], run: fn(&[u8])) {
    LARGEST.store(0, Ordering::Relaxed);
    let start = Instant::now();
    run(input);
    let (took, largest) = (start.elapsed(), LARGEST.load(Ordering::Relaxed));
    assert!(took < TIME_MAX, "{label}: {took:?}");
    let max = ALLOCATION_MAX + ALLOCATION_MAX_PER_BYTE * input.len();
    assert!(largest <= max, "{label}: {largest} bytes at once");
}

/// One test, because all tests of a binary share the allocator.
#[test]
fn the_corpus_is_survived() {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus"));
    drop(core::hint::black_box(vec![1u8; 12_345]));
    assert!(
        LARGEST.load(Ordering::Relaxed) >= 12_345,
        "it does not count"
    );
    for target in TARGETS {
        let folder = corpus.join(target.name);
        let entries = fs::read_dir(&folder).expect("every target has a corpus");
        let mut paths: Vec<_> = entries
            .map(|entry| entry.expect("readable").path())
            .collect();
        paths.sort();
        assert!(!paths.is_empty(), "{}", folder.display());
        for path in paths {
            let input = fs::read(&path).expect("readable");
            bounded(&path.display().to_string(), &input, target.run);
        }
        // Each sound input cut short and with every 13th byte changed.
        for input in seeds(target.name) {
            let label = format!("a changed seed of {}", target.name);
            bounded(&label, &input, target.run);
            for at in (0..input.len()).step_by(13) {
                bounded(&label, &input[..at], target.run);
                let mut changed = input.clone();
                changed[at] ^= 1 << (at % 8);
                bounded(&label, &changed, target.run);
            }
        }
    }
}

/// For one input; the slowest takes a second on an idle machine.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum number of bytes of one allocation: a constant, which a template's largest value takes as a list ...
const ALLOCATION_MAX: usize = 256 << 20;
/// ... and this much for each byte of the input.
const ALLOCATION_MAX_PER_BYTE: usize = 16;
