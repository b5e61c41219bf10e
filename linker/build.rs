//! Decides whether this build is the bare-metal image, and if so how it is linked.
//!
//! The image is what the profile `metal` builds. A build script cannot query its profile:
//! `PROFILE` and `CARGO_CFG_PANIC` describe the base profile, `release`. Cargo names the output
//! folder after the profile, so this script reads the name from there. That one answer
//! decides both the `cfg` that selects the freestanding source and the linker
//! arguments: neither can be set without the other.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(sluice_image)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=image.ld");
    println!("cargo::rerun-if-changed=efi.ld");
    let out_dir = env::var("OUT_DIR").expect("cargo sets it for build scripts");
    if profile_folder(Path::new(&out_dir)) != Some("metal") {
        return; // an ordinary program that prints how to build the image
    }
    let target = env::var("TARGET").expect("cargo sets it for build scripts");
    if target != "x86_64-unknown-linux-gnu" {
        // The "none" targets are soft-float: vector code would silently become library calls.
        println!(
            "cargo::error=the image requires the target x86_64-unknown-linux-gnu, not {target}"
        );
        return;
    }
    println!("cargo::rustc-cfg=sluice_image");
    let manifest_dir = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
    let script = |name: &str| format!("-T{manifest_dir}/{name}.ld");
    let image = [
        "-static", // objects are position-independent; the linker relaxes their GOT loads
        "-no-pie",
        "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=4096", // a small file; the image maps itself with large pages
        &script("image"),
    ];
    let efi = [
        "-static-pie", // the firmware picks the address
        "-Wl,-pie",
        "-Wl,--no-dynamic-linker",
        "-Wl,-z,notext",
        "-Wl,-z,norelro",
        "-Wl,--hash-style=sysv",
        "-Wl,--pack-dyn-relocs=none", // efi.s reads plain Elf64_Rela entries
        "-Wl,--oformat,binary",       // the linker script writes the PE headers
        &script("efi"),
    ];
    let both = [
        "-nostartfiles", // the entry points are ours
        "-nostdlib",
        "-Wl,--build-id=none",
        "-Wl,--gc-sections",
    ];
    for (binary, arguments) in [("sluice-metal", &image[..]), ("sluice-efi", &efi)] {
        for argument in both.iter().chain(arguments) {
            println!("cargo::rustc-link-arg-bin={binary}={argument}");
        }
    }
}

/// The folder above the innermost `build`: `…/target/PROFILE/build/PACKAGE-HASH/out`.
fn profile_folder(out_dir: &Path) -> Option<&str> {
    let build = out_dir
        .ancestors()
        .find(|folder| folder.ends_with("build"))?;
    build.parent()?.file_name()?.to_str()
}
