//! How the extension module is linked.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if (target("ARCH"), target("OS"), target("ENV"))
        != ("x86_64".into(), "linux".into(), "gnu".into())
    {
        return;
    }
    // Cargo names a linker if it is not rustc's own.
    if std::env::var_os("RUSTC_LINKER").is_none() {
        // LLD links identical functions only once, which makes the wheel smaller.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--icf=all");
        return;
    }
    // zig puts an unwinder of its own into the module. At its end Python unwinds threads with libgcc's, and the functions
    // that this calls in the module have to be of the same one.
    let folders = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];
    let mut files = folders
        .iter()
        .map(|folder| Path::new(folder).join("libgcc_s.so.1"));
    match files.find(|file| file.exists()) {
        Some(file) => println!("cargo::rustc-cdylib-link-arg={}", file.display()),
        None => println!(
            "cargo::error=libgcc_s.so.1 is in none of {}",
            folders.join(", ")
        ),
    }
}
