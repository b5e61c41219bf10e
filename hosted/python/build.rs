//! Links identical functions only once, which makes the wheel smaller.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    // On these targets, rustc's own linker is LLD, which supports that. Cargo names another one, as zig's, which may not.
    let is_own = std::env::var_os("RUSTC_LINKER").is_none();
    let is_lld = (target("ARCH"), target("OS"), target("ENV"))
        == ("x86_64".into(), "linux".into(), "gnu".into());
    if is_lld && is_own {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--icf=all");
    }
}
