//! The image boots, generates the same text as a hosted run, bit for bit, and reports errors.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod firmware;
mod hosted;
mod script;
mod speculation;
mod turns;

use hosted::{hash_of, hosted, story_of};
use sluice::file::OutputFile;
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, PackOptions, SlcWatch, pack};
use sluice_metal::story::StoryError;
use sluice_tests::metal::{Machine, kvm};
use std::path::{Path, PathBuf};

const TALE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../hosted/models/tale-5.8m-Q4_K_M.gguf"
);
const LINE: &str = "\"prompt=Once upon a time\" n=12 seed=7";

/// Boards and CPUs; the last has no XSAVE and no 1 GiB pages: the other branches of boot.s.
const MACHINES: [(Machine, bool); 3] = [
    (Machine::MICROVM, true),
    (
        Machine {
            board: "pc",
            cpu: "Haswell",
            ..Machine::MICROVM
        },
        true,
    ),
    (
        Machine {
            board: "q35",
            cpu: "Nehalem",
            ..Machine::MICROVM
        },
        false,
    ),
];

#[test]
fn it_boots_and_reports_the_machine() {
    for (machine, has_avx2) in MACHINES {
        let Some(boot) = machine.boot(None, "n=1") else {
            return;
        };
        assert_eq!(boot.status, Some(35), "{machine:?}: {}", boot.text);
        for line in [
            "long mode, ring 3",
            "loader PVH, command line 'n=1'",
            "no module\n",
            "ERROR: no model: the loader passed no module",
        ] {
            assert!(
                boot.text.contains(line),
                "{machine:?}: no '{line}' in: {}",
                boot.text
            );
        }
        if kvm() {
            continue; // the CPU is the host's
        }
        let kernels = if has_avx2 {
            "kernels avx2\n"
        } else {
            "kernels none\n"
        };
        assert!(boot.text.contains(kernels), "{machine:?}: {}", boot.text);
        // AVX state must be switched on, or CPUID promises what faults.
        assert_eq!(
            boot.text.contains("xcr0 0x7\n"),
            has_avx2,
            "{machine:?}: {}",
            boot.text
        );
    }
}

#[test]
fn it_reports_faults_instead_of_hanging() {
    let faults = [
        ("trap=ud", "TRAP 6 at 0x", 77),
        ("trap=gp", "TRAP 13 at 0x", 91),
        ("trap=pf", "TRAP 14 at 0x", 93),
        // Present, a write; present, a fetch of an instruction.
        ("trap=write", "error code 0x7", 93),
        ("trap=execute", "error code 0x15", 93),
        ("trap=stack", "TRAP 14 at 0x", 93),
        ("trap=panic", "PANIC at linker/src/image/mod.rs:", 255),
        (
            "bogus",
            "ERROR: command line: 'bogus': expected one of prompt=",
            35,
        ),
    ];
    for (line, expected, status) in faults {
        let Some(boot) = Machine::MICROVM.boot(None, line) else {
            return;
        };
        assert_eq!(boot.status, Some(status), "{line}: {}", boot.text);
        assert!(boot.text.contains(expected), "{line}: {}", boot.text);
        assert!(!boot.text.contains("done"), "{line}: {}", boot.text);
    }
}

/// The image has no scalar kernels.
#[test]
fn it_says_that_a_cpu_lacks_vectors() {
    let (nehalem, _) = MACHINES[2];
    let Some(boot) = nehalem.boot(Some(TALE.as_ref()), LINE) else {
        return;
    };
    if kvm() {
        return; // the CPU is the host's
    }
    assert_eq!(boot.status, Some(35), "{}", boot.text);
    let line = "ERROR: the CPU lacks AVX2, FMA or F16C";
    assert!(boot.text.contains(line), "no '{line}' in: {}", boot.text);
}

/// Every machine produces the text and bits of a hosted run, with any number of cores.
#[test]
fn it_tells_the_story_of_a_hosted_run() {
    let expected = hosted(&std::fs::read(TALE).unwrap(), LINE, 2).unwrap();
    let (story, hash) = (story_of(&expected), hash_of(&expected));
    assert!(story.starts_with("Once upon a time, there was"), "{story}");
    for (smp, n_cores) in [("1", 1), ("2", 2), ("4", 4)] {
        let machine = Machine {
            smp,
            ..Machine::MICROVM
        };
        let Some(boot) = machine.boot(Some(TALE.as_ref()), LINE) else {
            return;
        };
        let text = &boot.text;
        assert_eq!(boot.status, Some(33), "{n_cores} cores: {text}");
        assert!(text.contains(&format!("{n_cores} cores, TSC")), "{text}");
        assert!(
            text.contains(&format!("kernels, {n_cores} threads")),
            "{text}"
        );
        assert!(text.contains(story), "no '{story}' in: {text}");
        assert_eq!(hash_of(text), hash, "{n_cores} cores: {text}");
        assert!(text.contains("time to first token = "), "{text}");
        assert!(text.contains("token latency = p50 "), "{text}");
    }
}

/// CPUID counts the cores of one package; there are more.
#[test]
fn cores_of_every_package_and_die_work() {
    const LINE: &str = "\"prompt=Once upon a time\" n=1 seed=7";
    let expected = hosted(&std::fs::read(TALE).unwrap(), LINE, 1).unwrap();
    let machines = [
        ("q35", "2,sockets=2,cores=1", 2),
        ("q35", "4,sockets=4,cores=1", 4),
        ("pc", "4,sockets=2,cores=2", 4),
        ("q35", "8,sockets=2,dies=2,cores=2", 8),
        ("q35", "4,dies=2,cores=2", 4),
        ("q35", "3,cores=3", 3),
        (Machine::MICROVM.board, "4,sockets=2,cores=1,threads=2", 4),
        // Many more than this machine has.
        ("q35", "16,sockets=4,cores=4", 16),
        (Machine::MICROVM.board, "64", 64),
        ("q35", "68,sockets=2,cores=34", 64),
    ];
    for (board, smp, n_cores) in machines {
        let machine = Machine {
            board,
            smp,
            memory_mib: 512,
            ..Machine::MICROVM
        };
        let Some(boot) = machine.boot(Some(TALE.as_ref()), LINE) else {
            return;
        };
        assert_eq!(boot.status, Some(33), "{smp}: {}", boot.text);
        assert_eq!(hash_of(&boot.text), hash_of(&expected), "{}", boot.text);
        let found = boot.text.contains(&format!("\n{n_cores} cores, TSC"));
        let has_said = boot.text.contains(" cores run; the others are late");
        // On a busy host, more than 8 cores may not start in time.
        assert!(found || n_cores > 8 && has_said, "{smp}: {}", boot.text);
        assert!(!smp.starts_with("68") || has_said, "{}", boot.text);
    }
}

/// The door is closed before they come, or while they do.
#[test]
fn late_cores_change_nothing() {
    let line = "\"prompt=Once upon a time\" n=3 seed=7 wait=";
    let expected = hosted(&std::fs::read(TALE).unwrap(), &format!("{line}0"), 1).unwrap();
    let machine = Machine {
        smp: "16,sockets=2,cores=8",
        board: "q35",
        ..Machine::MICROVM
    };
    for wait_ms in [0, 0, 1, 2] {
        let line = format!("{line}{wait_ms}");
        let Some(boot) = machine.boot(Some(TALE.as_ref()), &line) else {
            return;
        };
        assert_eq!(boot.status, Some(33), "{line}: {}", boot.text);
        assert_eq!(hash_of(&boot.text), hash_of(&expected), "{}", boot.text);
    }
    // Half of the memory is left to the model, so there are fewer stacks than cores.
    let machine = Machine {
        memory_mib: 64,
        ..machine
    };
    let Some(boot) = machine.boot(Some(TALE.as_ref()), &format!("{line}100")) else {
        return;
    };
    assert_eq!(boot.status, Some(33), "{}", boot.text);
    assert_eq!(hash_of(&boot.text), hash_of(&expected), "{}", boot.text);
    assert!(boot.text.contains(" of 16 cores run;"), "{}", boot.text);
}

#[test]
fn of_several_traps_one_is_reported() {
    let machine = Machine {
        smp: "16",
        ..Machine::MICROVM
    };
    for _ in 0..3 {
        let Some(boot) = machine.boot(Some(TALE.as_ref()), "trap=cores") else {
            return;
        };
        assert_eq!(boot.status, Some(77), "{}", boot.text);
        let reports = boot
            .text
            .lines()
            .filter(|line| line.starts_with("TRAP 6 at 0x"));
        assert_eq!(reports.count(), 1, "{}", boot.text);
        let n_traps = boot.text.matches("TRAP").count();
        assert_eq!(n_traps, 1, "{}", boot.text);
    }
}

/// Convolutions, experts with biases, sinks: the image and this process give the hosted bits.
#[test]
fn layers_of_every_kind_run_in_it() {
    for name in ["lfm2", "gpt-oss-MXFP4_MOE"] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models");
        let path = PathBuf::from(format!("{folder}/{name}.gguf"));
        let expected = sluice_tests::hosted::story(&path, "Once upon a time", 12, 7).hash_line();
        let told = hosted(&std::fs::read(&path).unwrap(), LINE, 2).unwrap();
        assert!(
            told.contains(&expected),
            "{name}: no '{expected}' in {told}"
        );
        let Some(boot) = Machine::MICROVM.boot(Some(&path), LINE) else {
            return;
        };
        assert_eq!(boot.status, Some(33), "{name}: {}", boot.text);
        assert!(boot.text.contains(&expected), "{name}: {}", boot.text);
    }
}

#[test]
fn a_packed_model_is_used_where_it_lies() {
    let slc = packed();
    let expected = hosted(&std::fs::read(TALE).unwrap(), LINE, 1).unwrap();
    // The machine's memory does not suffice for the module and a copy of the weights.
    let Some(boot) = Machine::MICROVM.boot(Some(&slc), LINE) else {
        return;
    };
    assert_eq!(boot.status, Some(33), "{}", boot.text);
    assert_eq!(hash_of(&boot.text), hash_of(&expected), "{}", boot.text);
}

/// GRUB starts the same file by multiboot2, from a CD image that one command makes.
#[test]
fn what_is_missing_is_said() {
    let tale = std::fs::read(TALE).unwrap();
    let cut = scratch("cut.gguf");
    std::fs::write(&cut, &tale[..tale.len() / 2]).unwrap();
    let cases = [
        (Some(cut.as_path()), 256, "ERROR: ", "bytes"),
        (
            Some(Path::new(TALE)),
            8,
            "ERROR: not enough memory: ",
            "KiB are free",
        ),
    ];
    for (module, memory_mib, start, part) in cases {
        let machine = Machine {
            memory_mib,
            ..Machine::MICROVM
        };
        let Some(boot) = machine.boot(module, LINE) else {
            return;
        };
        assert_eq!(boot.status, Some(35), "{}", boot.text);
        let error = boot.text.lines().find(|line| line.starts_with(start));
        assert!(
            error.is_some_and(|error| error.contains(part)),
            "{}",
            boot.text
        );
    }
}

/// A module cut anywhere is an error with a reason, never a panic: the code that the image runs.
#[test]
fn a_cut_module_is_an_error_wherever_it_is_cut() {
    let tale = std::fs::read(TALE).unwrap();
    for i in 0..64 {
        let cut = tale.len() * i / 64;
        let error = hosted(&tale[..cut], LINE, 1).expect_err("half a model");
        assert!(!error.to_string().is_empty());
        assert!(
            !matches!(error, StoryError::Memory { .. }),
            "{cut}: {error}"
        );
    }
}

/// Of twelve tokens eleven are timed; the percentiles are consistent with the total time.
#[test]
fn latencies_are_in_order_and_add_up() {
    let text = hosted(&std::fs::read(TALE).unwrap(), LINE, 1).unwrap();
    let line = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in: {text}"))
    };
    let latencies: Vec<u64> = line("token latency")
        .split([' ', ','])
        .filter_map(|word| word.parse().ok())
        .collect();
    let [p50, p99, p999] = latencies[..] else {
        panic!("{latencies:?}");
    };
    assert!(0 < p50 && p50 <= p99 && p99 == p999, "{latencies:?}");
    let whole = line("eval time").split(['=', 'm']).nth(2).unwrap();
    let whole_ms: f64 = whole.trim().parse().unwrap();
    // Six of eleven take p50 or more, one takes p99.
    let least_us = u32::try_from(5 * p50 + p99).unwrap();
    assert!(f64::from(least_us) <= whole_ms * 1000.0 + 20.0, "{text}");
}

/// A benchmark continues when its context is full: the second story has the times of the first, not its text.
#[test]
fn a_benchmark_begins_its_context_anew() {
    let tale = std::fs::read(TALE).unwrap();
    let line = "\"prompt=Once upon a time\" n=40 ctx=16 seed=7";
    let text = hosted(&tale, line, 1).unwrap();
    assert!(text.contains("Once upon a time, there was"), "{text}");
    assert!(text.contains("ms /    11 ("), "{text}");
    let text = hosted(&tale, &format!("{line} bench"), 1).unwrap();
    assert!(!text.contains("there was"), "{text}");
    assert!(text.contains("ms /    39 ("), "{text}");
}

#[test]
fn settings_that_do_not_fit_are_errors() {
    let tale = std::fs::read(TALE).unwrap();
    for (line, expected) in [
        ("threads=3", "threads= exceeds the 2 available cores"),
        (
            "isa=altivec",
            "isa= does not name a kernel table of the image that this CPU supports",
        ),
        (
            "ctx=2",
            "the prompt has 5 tokens, more than the context of 2 (ctx=)",
        ),
        ("n=5 ctx=0 temp=1000000", ""),
        ("n=18446744073709551615 ctx=0", ""),
    ] {
        let found = hosted(&tale, line, 2);
        match found {
            Err(error) => assert_eq!(error.to_string(), expected, "{line}"),
            Ok(_) => assert_eq!(expected, "", "{line}"),
        }
    }
}

/// The model as `sluice pack` writes it.
fn packed() -> PathBuf {
    let path = scratch("tale.slc");
    let tale = std::fs::read(TALE).unwrap();
    let gguf = Gguf::parse(&tale, tale.len() as u64).unwrap();
    let output = OutputFile::create_model(&path, true, *b"SLCM").unwrap();
    let stop = StopFlag::new();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    let options = PackOptions {
        n_threads: 1,
        verify: false,
        ffn: FfnLayout::Panels,
    };
    pack(&SliceSource(&tale), &gguf, output, options, &watch).unwrap();
    path
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boot");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}
