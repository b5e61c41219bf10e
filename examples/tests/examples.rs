//! The examples generate the same story as a hosted run; the ones in C are tested with their interfaces (`hosted/capi`,
//! `core/capi`).
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use sluice_tests::hosted::{TALE, story};
use sluice_tests::metal::{freestanding_example, text_of};
use std::process::Command;

#[test]
fn a_freestanding_program_wakes_a_model_by_a_gate() {
    let expected = story(TALE.as_ref(), "Once upon a time", 24, 7);
    let output = Command::new("timeout")
        .arg("60")
        .arg(freestanding_example())
        .output()
        .expect("timeout is part of coreutils");
    assert!(output.status.success(), "{}", text_of(&output));
    let text = text_of(&output);
    let woken = format!(
        "frame 4: up to 0.004, silent\nframe 5: up to 0.500, wakes the model\n{}\n{}\n\
         frame 6: up to 0.004, silent\n",
        expected.text,
        expected.hash_line()
    );
    assert!(text.contains(&woken), "no '{woken}' in: {text}");
    assert_eq!(text.matches("wakes").count(), 1, "{text}");
}

/// Another runtime's pool, also one that is larger than the machine.
#[test]
fn a_thread_pool_drives_the_workers() {
    let expected = story(TALE.as_ref(), "Once upon a time", 24, 7);
    let expected = format!("{}\n{}\n", expected.text, expected.hash_line());
    for n_threads in ["1", "3"] {
        let output = Command::new("timeout")
            .args(["120", env!("CARGO_BIN_EXE_thread_pool")])
            .args([TALE, "Once upon a time", "24", "7"])
            .env("RAYON_NUM_THREADS", n_threads)
            .output()
            .expect("timeout is part of coreutils");
        assert!(output.status.success(), "{}", text_of(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, expected, "{n_threads} threads");
    }
}
