//! Decides whether this is the freestanding library, built by the profile `metal`, which brings its
//! own panic handler. A build script cannot query its profile, but the output folder is named after
//! it (`linker/build.rs` does the same).

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
    if profile == Some("metal") {
        println!("cargo::rustc-cfg=sluice_freestanding");
    }
}
