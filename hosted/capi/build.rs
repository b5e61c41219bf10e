//! Gives the shared library its name for the dynamic linker, as a C library has one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // The number is that of `SLUICE_ABI_VERSION`.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsluice_capi.so.5");
    }
}
