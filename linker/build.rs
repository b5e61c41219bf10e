//! Decides whether this build is the bare-metal image, and if so how it is linked.
//!
//! The image is what the profile `metal` builds. A build script cannot ask for its profile:
//! `PROFILE` and `CARGO_CFG_PANIC` describe the base profile, `release`. The folder that cargo
//! puts the outputs into is named after the profile, so that is what is looked at. One answer
//! then decides both halves, the `cfg` that selects the freestanding source and the linker
//! arguments: neither can be on without the other.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(sluice_image)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=image.ld");
    let out_dir = env::var("OUT_DIR").expect("cargo sets it for build scripts");
    if profile_folder(Path::new(&out_dir)) != Some("metal") {
        return; // an ordinary program that says how to build the image
    }
    let target = env::var("TARGET").expect("cargo sets it for build scripts");
    if target != "x86_64-unknown-linux-gnu" {
        // The "none" targets are soft-float: vector code would silently become library calls.
        println!("cargo::error=the image is built for x86_64-unknown-linux-gnu, not {target}");
        return;
    }
    println!("cargo::rustc-cfg=sluice_image");
    let manifest_dir = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
    let script = format!("-T{manifest_dir}/image.ld");
    let arguments = [
        "-nostartfiles", // the entry point is ours
        "-nostdlib",
        "-static", // objects are position-independent; the linker relaxes their GOT loads
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=4096", // a small file; the image maps itself with large pages
        "-Wl,--gc-sections",
        &script,
    ];
    for argument in arguments {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}

/// The folder above the innermost `build`: `…/target/PROFILE/build/PACKAGE-HASH/out`.
fn profile_folder(out_dir: &Path) -> Option<&str> {
    let build = out_dir
        .ancestors()
        .find(|folder| folder.ends_with("build"))?;
    build.parent()?.file_name()?.to_str()
}
