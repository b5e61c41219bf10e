//! Links identical functions only once, which makes the wheel smaller.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    // On these targets, rustc's own linker is LLD, which supports that.
    if (target("ARCH"), target("OS"), target("ENV"))
        == ("x86_64".into(), "linux".into(), "gnu".into())
    {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--icf=all");
    }
}
