//! Sets the shared library's name for the dynamic linker, as is usual for C libraries.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // The number is that of `SLUICE_ABI_VERSION`.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsluice_capi.so.5");
    }
}
