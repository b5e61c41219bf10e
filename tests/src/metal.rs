//! The bare-metal image: built as a user builds it, and started in QEMU.
//!
//! It is built with the profile `metal` into a target folder of its own: the cargo that runs a
//! test holds the lock of the ordinary one. Emulation (TCG) is the default;
//! `SLUICE_QEMU_ACCEL=kvm` uses /dev/kvm. A missing QEMU fails where `CI=true` and skips loudly
//! elsewhere. Every run of QEMU has a time limit, because a guest that loops or pauses never
//! ends by itself.

use crate::skipped;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// The image, built once for all tests of a binary, with its symbol table kept.
pub static IMAGE: LazyLock<PathBuf> =
    LazyLock::new(|| build(&["build", "-p", "sluice-metal"], "sluice-metal"));

/// The engine as a static library for C programs without a C library, built the same way.
///
/// # Panics
/// If it does not compile.
#[must_use]
pub fn core_library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let command = [
            "rustc",
            "-p",
            "sluice-core-capi",
            "--lib",
            "--crate-type",
            "staticlib",
        ];
        build(&command, "libsluice_core_capi.a")
    });
    &LIBRARY
}

/// The example of a freestanding Rust program, built the same way.
///
/// # Panics
/// If it does not compile.
#[must_use]
pub fn freestanding_example() -> &'static Path {
    static EXAMPLE: LazyLock<PathBuf> = LazyLock::new(|| {
        let command = ["build", "-p", "sluice-examples", "--bin", "freestanding"];
        build(&command, "freestanding")
    });
    &EXAMPLE
}

/// Builds a freestanding program or library; returns the path of `file`.
fn build(command: &[&str], file: &str) -> PathBuf {
    let target_dir = target_dir().join("tmp/freestanding/metal");
    let output = cargo()
        .args(command)
        .args([
            "--profile",
            "metal",
            "--locked",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(&target_dir)
        .env("CARGO_PROFILE_METAL_STRIP", "none")
        .current_dir(workspace())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", text_of(&output));
    target_dir.join(TARGET).join("metal").join(file)
}

/// Named in full, so that a configured target cannot change the output path.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The folder that cargo builds this test in: `target` of `target/PROFILE/deps/TEST`.
fn target_dir() -> PathBuf {
    let test = env::current_exe().expect("a test is a file");
    let dir = test
        .ancestors()
        .nth(3)
        .expect("cargo builds tests three folders down");
    dir.to_path_buf()
}

/// The cargo of the same toolchain. The default overrides compiler flags that the caller of a test, or a configuration
/// file, meant for hosted code: an image built for this machine's CPU would not run on an emulated one.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-cpu=x86-64");
    command
}

/// The checkout.
///
/// # Panics
/// Never: this package is a member of it.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a member lies in the workspace")
}

/// The output of a program.
#[must_use]
pub fn text_of(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!("{stdout}{stderr}")
}

/// A machine of QEMU. Under KVM `cpu` is not used: the guest has the host's.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// `-M`.
    pub board: &'static str,
    /// `-cpu`.
    pub cpu: &'static str,
    /// `-smp`: cores, and how packages and dies hold them.
    pub smp: &'static str,
    /// `-m`.
    pub memory_mib: usize,
}

impl Machine {
    /// The smallest one, with all that the emulator can.
    pub const MICROVM: Self = Self {
        board: "microvm,pit=on,isa-serial=on",
        cpu: "max",
        smp: "1",
        memory_mib: 256,
    };

    /// Starts the image by PVH; `None` if QEMU is not installed.
    ///
    /// # Panics
    /// If `timeout` cannot be started, or QEMU is missing where `CI=true`.
    #[must_use]
    pub fn boot(&self, module: Option<&Path>, command_line: &str) -> Option<Boot> {
        let mut options: Vec<&std::ffi::OsStr> = vec!["-kernel".as_ref(), IMAGE.as_os_str()];
        options.extend(["-append".as_ref(), std::ffi::OsStr::new(command_line)]);
        if let Some(module) = module {
            options.extend(["-initrd".as_ref(), module.as_os_str()]);
        }
        self.start(&options)
    }

    /// Starts QEMU with these options in addition to the machine's; `None` if QEMU is not installed.
    ///
    /// # Panics
    /// As [`Self::boot`].
    #[must_use]
    pub fn start(&self, options: &[&std::ffi::OsStr]) -> Option<Boot> {
        const QEMU: &str = "qemu-system-x86_64";
        if let Err(error) = Command::new(QEMU).arg("--version").output() {
            assert!(env::var("CI").as_deref() != Ok("true"), "{QEMU}: {error}");
            skipped(&format!("{QEMU} not found (Debian: qemu-system-x86)"));
            return None;
        }
        // A KVM without arch-capabilities refuses to start with them.
        let (accel, cpu) = if kvm() {
            ("kvm", "host,-arch-capabilities")
        } else {
            ("tcg", self.cpu)
        };
        let output = Command::new("timeout")
            .args(["240", QEMU, "-accel", accel, "-cpu", cpu, "-M", self.board])
            .args(["-smp", self.smp])
            .args(["-m", &self.memory_mib.to_string()])
            .args([
                "-display",
                "none",
                "-serial",
                "stdio",
                "-no-reboot",
                "-net",
                "none",
            ])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .args(options)
            .output()
            .expect("timeout is part of coreutils");
        Some(Boot {
            text: text_of(&output).replace('\r', ""),
            status: output.status.code(),
        })
    }
}

/// Whether tests use KVM.
#[must_use]
pub fn kvm() -> bool {
    env::var("SLUICE_QEMU_ACCEL").is_ok_and(|accel| accel == "kvm")
}

/// How a start ended.
#[derive(Clone, Debug)]
pub struct Boot {
    /// What came out of the serial port.
    pub text: String,
    /// QEMU's exit status.
    pub status: Option<i32>,
}
