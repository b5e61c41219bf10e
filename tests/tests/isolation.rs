//! Every line of the isolation report against the kernel's other interfaces, as root and as an ordinary user.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "the report, for a run with --nocapture"
)]

use core::ops::ControlFlow;
use sluice_core::gate::Decision;
use sluice_core::kernels::{CpuFeatures, FrameKernels};
use sluice_gate::isolation::{IsolationRequest, probe};
use sluice_gate::{FrameObserver, ObserverConfig};
use sluice_tests::skipped;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

/// The worker's directory in /proc.
fn worker() -> PathBuf {
    let tasks = fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path());
    let is_it = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == "sluice-gate")
    };
    tasks.into_iter().find(is_it).expect("the worker lives")
}

fn line(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .trim()
        .to_owned()
}

fn number(text: &str) -> usize {
    let digits = text.trim().split(|c: char| !c.is_ascii_digit()).next();
    digits
        .unwrap_or_default()
        .parse()
        .unwrap_or_else(|_| panic!("no number in {text:?}"))
}

/// Counters of all mappings of exactly `bytes`, (Rss, Locked, AnonHugePages) in KiB.
fn smaps_of(bytes: usize) -> Vec<[usize; 3]> {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let kib = bytes / 1024;
    let mut found: Vec<[usize; 3]> = Vec::new();
    let mut is_it = false;
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = || number(value);
        match name {
            "Size" => {
                is_it = value() == kib;
                if is_it {
                    found.push([0; 3]);
                }
            }
            "Rss" if is_it => found.last_mut().unwrap()[0] = value(),
            "Locked" if is_it => found.last_mut().unwrap()[1] = value(),
            "AnonHugePages" if is_it => found.last_mut().unwrap()[2] = value(),
            _ => {}
        }
    }
    found
}

/// Held by tests that lock memory: `VmLck` is one number for the whole process.
static LOCKS_MEMORY: Mutex<()> = Mutex::new(());

/// Starts an observer that asks for everything, and checks its report line by line.
#[expect(clippy::too_many_lines, reason = "one report, line by line")]
fn check_the_report() {
    // An unusual size, so that smaps has one such mapping; larger than a huge page.
    const FRAMES: usize = 1543;
    let _alone = LOCKS_MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let config = ObserverConfig {
        capacity_frames: FRAMES,
        isolation: IsolationRequest::all(),
        ..ObserverConfig::default()
    };
    let locked_before = locked();
    let sink = |_: u64, _: &[f32], _: &Decision| ControlFlow::Continue(());
    let kernels = FrameKernels::best(CpuFeatures::detect());
    let (observer, mut intake) = FrameObserver::start(&config, kernels, sink).unwrap();
    let report = observer.isolation().clone();
    println!("{report}");
    let names: Vec<_> = report
        .measures
        .iter()
        .map(|item| item.name.as_str())
        .collect();
    let expected = [
        "core",
        "smt",
        "timer slack",
        "cpu latency",
        "scheduling",
        "huge pages",
        "memory lock",
        "prefetch",
        "numa",
    ];
    assert_eq!(names, expected);
    let item = |name: &str| &report.measures[names.iter().position(|n| *n == name).unwrap()];
    for item in &report.measures {
        assert_eq!(item.is_held(), item.why_not.is_none());
    }
    let task = worker();
    let status = fs::read_to_string(task.join("status")).unwrap();
    let cpus = line(&status, "Cpus_allowed_list:");
    assert_eq!(item("core").found, format!("allowed CPUs: {cpus}"));
    let asked = number(item("core").requested.strip_prefix("CPU ").unwrap());
    assert_eq!(item("core").is_held(), cpus == asked.to_string());

    let siblings = format!("/sys/devices/system/cpu/cpu{asked}/topology/thread_siblings_list");
    match fs::read_to_string(siblings) {
        Ok(list) => assert_eq!(item("smt").is_held(), list.trim() == asked.to_string()),
        Err(_) => assert!(!item("smt").is_held()),
    }

    let stat = fs::read_to_string(task.join("stat")).unwrap();
    let after_name: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // Fields 40 and 41 of stat(5); SCHED_FIFO is 1.
    let (priority, policy) = (after_name[40 - 3], after_name[41 - 3]);
    assert_eq!(
        item("scheduling").is_held(),
        (priority, policy) == ("50", "1")
    );
    assert!(
        item("scheduling")
            .found
            .ends_with(&format!("priority {priority}"))
    );

    let tid = task.file_name().unwrap().to_str().unwrap().to_owned();
    match fs::read_to_string(format!("/proc/{tid}/timerslack_ns")) {
        // A real-time thread has none, and reports 0.
        Ok(slack) => assert!(number(&slack) <= 1, "{slack}"),
        Err(error) => skipped(&format!("timerslack_ns cannot be read: {error}")),
    }
    assert!(item("timer slack").is_held());

    let may_hold = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/cpu_dma_latency");
    assert_eq!(item("cpu latency").is_held(), may_hold.is_ok());

    let bytes = 4 * 1024 * FRAMES;
    let [smaps] = smaps_of(bytes)[..] else {
        panic!("there are several mappings of {bytes} bytes");
    };
    let [rss, locked_kib, huge] = smaps;
    assert_eq!(item("prefetch").found, format!("{rss} KiB in Rss"));
    assert_eq!(
        item("memory lock").found,
        format!("{locked_kib} KiB in Locked")
    );
    assert_eq!(item("memory lock").is_held(), locked_kib == bytes / 1024);
    assert_eq!(locked() - locked_before, locked_kib, "VmLck");
    assert_eq!(
        item("huge pages").found,
        format!("{huge} KiB in AnonHugePages")
    );
    assert_eq!(
        item("huge pages").is_held(),
        huge >= bytes / (2 << 20) * 2048
    );

    if fs::read_to_string("/sys/devices/system/node/online").is_ok_and(|list| list.trim() == "0") {
        assert!(
            item("numa").is_held(),
            "there is one node: {}",
            item("numa")
        );
    }
    assert_eq!(observer.snapshot().isolation_active, report.is_held());

    intake.push(&vec![0.25; 10_000]).unwrap();
    drop(intake);
    assert!(observer.finish().counts.adds_up());
    assert_eq!(locked(), locked_before, "the lock is gone with the ring");
}

/// `VmLck` in KiB.
fn locked() -> usize {
    number(&line(
        &fs::read_to_string("/proc/self/status").unwrap(),
        "VmLck:",
    ))
}

#[test]
fn every_line_is_true() {
    check_the_report();
}

/// Runs the check with only an ordinary user's rights if this is root.
#[test]
fn every_line_is_true_for_an_ordinary_user() {
    if env::var_os("SLUICE_ORDINARY_USER").is_some() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skipped("this is an ordinary user already");
        return;
    }
    // Where that user can read it.
    let copy = env::temp_dir().join(format!("sluice-isolation-{}", std::process::id()));
    fs::copy(env::current_exe().unwrap(), &copy).unwrap();
    let run = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(["sh", "-c", "ulimit -l 64; exec \"$0\" \"$@\""])
        .arg(&copy)
        .args(["--exact", "every_line_is_true", "--nocapture"])
        .env("SLUICE_ORDINARY_USER", "1")
        .output();
    fs::remove_file(&copy).unwrap();
    let Ok(run) = run else {
        skipped("setpriv is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{text}\n{errors}");
    assert!(text.contains("1 passed"), "{text}");
    // A user does not get all of it, and the report explains how to get it.
    for (name, remedy) in [("scheduling", "setcap"), ("memory lock", "ulimit -l")] {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .expect("a line of the report");
        assert!(line.contains("fix: ") && line.contains(remedy), "{line}");
    }
}

#[test]
fn a_probe_reports_and_leaves_no_trace() {
    let _alone = LOCKS_MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let locked_before = locked();
    let before = fs::read_to_string("/proc/thread-self/status").unwrap();
    let report = probe(&IsolationRequest::all(), 8 << 20).unwrap();
    assert_eq!(report.measures.len(), 9);
    let after = fs::read_to_string("/proc/thread-self/status").unwrap();
    let cpus = |text: &str| line(text, "Cpus_allowed_list:");
    assert_eq!(cpus(&before), cpus(&after));
    assert_eq!(locked(), locked_before);
    assert!(
        probe(&IsolationRequest::none(), 1)
            .unwrap()
            .measures
            .is_empty()
    );
}
