//! Started by a boot loader and by firmware, not by QEMU itself.

use super::hosted::{hash_of, hosted, story_of};
use super::{LINE, TALE, scratch};
use sluice_tests::metal::{IMAGE, Machine, kvm};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn grub_starts_it_by_multiboot2() {
    let iso = scratch("grub");
    let boot_dir = iso.join("boot/grub");
    std::fs::create_dir_all(&boot_dir).unwrap();
    std::fs::copy(&*IMAGE, iso.join("boot/sluice-metal")).unwrap();
    std::fs::copy(TALE, iso.join("boot/model.gguf")).unwrap();
    let config = include_str!("../../../linker/grub.cfg");
    std::fs::write(boot_dir.join("grub.cfg"), config).unwrap();
    let image = scratch("grub.iso");
    let made = Command::new("grub-mkrescue")
        .arg("-o")
        .args([&image, &iso])
        .output();
    let Ok(made) = made else {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "grub-mkrescue is missing"
        );
        sluice_tests::skipped("no grub-mkrescue (Debian: grub-common grub-pc-bin xorriso mtools)");
        return;
    };
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let machine = Machine {
        board: "pc",
        smp: "4,sockets=2,cores=2",
        ..Machine::MICROVM
    };
    let Some(boot) = machine.start(&["-cdrom".as_ref(), image.as_os_str()]) else {
        return;
    };
    assert_eq!(boot.status, Some(33), "{}", boot.text);
    assert!(boot.text.contains("loader multiboot2"), "{}", boot.text);
    assert!(boot.text.contains("\n4 cores, TSC"), "{}", boot.text);
    // The words of linker/grub.cfg.
    let line = "\"prompt=Once upon a time\" n=64 temp=0.8 seed=1";
    let expected = hosted(&std::fs::read(TALE).unwrap(), line, 1).unwrap();
    assert_eq!(hash_of(&boot.text), hash_of(&expected), "{}", boot.text);
}

/// UEFI firmware starts the disk that one documented command makes.
#[test]
fn uefi_starts_it_from_a_disk() {
    const FIRMWARE: &str = "/usr/share/ovmf/OVMF.fd";
    let in_ci = std::env::var("CI").as_deref() == Ok("true");
    let has_mtools = Command::new("mformat").arg("--version").output().is_ok();
    if !has_mtools || !Path::new(FIRMWARE).exists() {
        assert!(!in_ci, "mtools or {FIRMWARE} is missing");
        sluice_tests::skipped("no UEFI firmware, or no mtools (Debian: ovmf mtools)");
        return;
    }
    let expected = hosted(&std::fs::read(TALE).unwrap(), LINE, 1).unwrap();
    let machine = Machine {
        board: "q35",
        smp: "4,sockets=2,cores=2",
        ..Machine::MICROVM
    };
    let disk = uefi_disk("uefi.img", Path::new(TALE));
    let drive = format!("format=raw,file={}", disk.display());
    let options = ["-bios", FIRMWARE, "-drive", &drive].map(std::ffi::OsStr::new);
    let Some(boot) = machine.start(&options) else {
        return;
    };
    if kvm() && boot.text.contains("emulation failure") {
        sluice_tests::skipped(
            "this KVM cannot run UEFI firmware: it emulates ring 0 without an FPU",
        );
        return;
    }
    assert_eq!(boot.status, Some(33), "{}", boot.text);
    assert!(boot.text.contains("loader PVH"), "{}", boot.text);
    assert!(boot.text.contains("\n4 cores, TSC"), "{}", boot.text);
    assert!(boot.text.contains(story_of(&expected)), "{}", boot.text);
    assert_eq!(hash_of(&boot.text), hash_of(&expected), "{}", boot.text);

    // A disk without the image: the loader reports that on the firmware's console.
    let removed = Command::new("mdel")
        .args(["-i".as_ref(), disk.as_os_str(), "::/sluice-metal".as_ref()])
        .env("MTOOLS_SKIP_CHECK", "1")
        .status();
    assert!(removed.unwrap().success());
    let Some(boot) = machine.start(&options) else {
        return;
    };
    assert_eq!(boot.status, Some(35), "{}", boot.text);
    let error = "ERROR: \\sluice-metal: not found on the volume";
    assert!(boot.text.contains(error), "{}", boot.text);
}

/// A disk made by `linker/uefi.sh`, of the binaries that this test built.
fn uefi_disk(name: &str, model: &Path) -> PathBuf {
    let disk = scratch(name);
    let made = Command::new(sluice_tests::metal::workspace().join("linker/uefi.sh"))
        .args([model, &disk])
        .args(["n=12", "seed=7", "prompt=Once upon a time"])
        .env("BUILT", IMAGE.parent().unwrap())
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        sluice_tests::metal::text_of(&made)
    );
    disk
}
