//! Functions that are the same are linked once: the wheel is smaller for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,--icf=all");
    println!("cargo:rerun-if-changed=build.rs");
}
