//! Links `freestanding` without anything, in the profile that has no unwinder. See `linker/build.rs` for how a profile
//! is recognised and why.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(sluice_freestanding)");
    println!("cargo::rerun-if-changed=build.rs");
    let out_dir = env::var("OUT_DIR").expect("cargo sets it for build scripts");
    let build = Path::new(&out_dir)
        .ancestors()
        .find(|folder| folder.ends_with("build"));
    let profile = build
        .and_then(Path::parent)
        .and_then(|folder| folder.file_name()?.to_str());
    if profile != Some("metal") {
        return;
    }
    println!("cargo::rustc-cfg=sluice_freestanding");
    let arguments = [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--gc-sections",
        // The precompiled core library was built for unwinding and names these; nothing calls them.
        "-Wl,--defsym=rust_eh_personality=0",
        "-Wl,--defsym=_Unwind_Resume=0",
    ];
    for argument in arguments {
        println!("cargo::rustc-link-arg-bin=freestanding={argument}");
    }
}
