#!/usr/bin/env bash
# Core and kernels on other processors than x86-64, with the scalar kernels.
#
#   tests/portable.sh                  compiles them for processors without an operating system, and runs the
#                                      embedded model on aarch64 (qemu-user) and wasm32 (Node): text
#                                      and logits have to be those of x86-64 (core/tests/story.rs)
#   tests/portable.sh --all            their unit tests there as well, which takes an emulator many minutes
#   tests/portable.sh --distribution   compiles only, by the distribution's compiler alone
#
# Targets come from rustup; what it cannot add is compiled by the distribution's compiler, core's own sources
# included (Debian: rustc-web, cargo-web, rust-web-src). Runners come from the system (Debian: qemu-user, nodejs).
# No cross compiler: musl and WASI bring their own C library, rust-lld links. What is missing is named in a line
# that begins with SKIPPED.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=${1-}
case $mode in
    '' | --all | --distribution) ;;
    *) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

# A folder of its own: these flags would otherwise rebuild what is there.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/portable" CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=0 RUSTFLAGS="-D warnings"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
export CARGO_TARGET_WASM32_WASIP1_RUNNER="node --no-warnings $PWD/tests/tools/wasi.mjs"

# has TARGET: whether the compiler has it now; asks rustup for it.
has() {
    local target=$1 libraries
    libraries=$(rustc --print sysroot)/lib/rustlib/$target/lib
    [[ -d $libraries ]] && return
    command -v rustup >/dev/null && timeout 120 rustup target add "$target" && [[ -d $libraries ]]
}

# Whether the distribution's compiler is new enough and has the library's sources.
distribution() {
    local least have
    least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(/usr/bin/rustc --version 2>/dev/null | cut -d' ' -f2)
    [[ -n $have && $(printf '%s\n' "$least" "$have" | sort -V | head -n 1) == "$least" ]] &&
        [[ -x /usr/bin/cargo && -d $(/usr/bin/rustc --print sysroot)/lib/rustlib/src/rust/library ]]
}

# compile COMMAND TARGET...: only code generation finds vector code where there are no hardware floats.
compile() {
    local command=$1 target targets=() others=()
    shift
    for target; do
        if [[ $mode != --distribution ]] && has "$target"; then
            targets+=(--target "$target")
        else
            others+=(--target "$target")
        fi
    done
    ((${#targets[@]} == 0)) || cargo "$command" --locked -p sluice-core "${targets[@]}"
    ((${#others[@]} == 0)) && return
    if ! distribution; then
        echo "SKIPPED:${others[*]/#--target/}: neither rustup nor the distribution's compiler has them"
        return
    fi
    # Full paths: rustup's cargo may come first. Its sources are for nightly compilers, or for this one.
    RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 /usr/bin/cargo "$command" --locked -p sluice-core \
        -Zbuild-std=core --target-dir "$CARGO_TARGET_DIR/distribution" "${others[@]}"
}
compile build x86_64-unknown-none
compile check thumbv7em-none-eabihf riscv64gc-unknown-none-elf i686-unknown-linux-gnu

[[ $mode == --distribution ]] && exit

export CARGO_PROFILE_DEV_OPT_LEVEL=1

missing() {
    echo "SKIPPED: the toolchain has no $1, and rustup could not add it"
}
targets=() units=()
if has aarch64-unknown-linux-musl; then
    qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
    if [[ -n $qemu ]]; then
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=$qemu
        targets+=(--target aarch64-unknown-linux-musl)
        units+=("--target aarch64-unknown-linux-musl")
    else
        echo "SKIPPED: no qemu-aarch64 (Debian: qemu-user), so nothing runs on aarch64"
    fi
else
    missing aarch64-unknown-linux-musl
fi
if has wasm32-wasip1; then
    if command -v node >/dev/null; then
        targets+=(--target wasm32-wasip1)
        # Neither threads nor unwinding there.
        units+=("--target wasm32-wasip1 -- --skip team:: --skip misuse::")
    else
        echo "SKIPPED: no node (Debian: nodejs), so nothing runs on wasm32"
    fi
else
    missing wasm32-wasip1
fi
((${#targets[@]} == 0)) || cargo test --locked -p sluice-core --test story "${targets[@]}" -- --nocapture
# The two functions of `examples/wasm`, compared with this machine's (examples/tests/wasm.rs prints them).
if has wasm32-wasip1 && command -v node >/dev/null; then
    cargo build --locked -p sluice-examples --lib --target wasm32-wasip1
    node --no-warnings examples/wasm/sparse.mjs \
        "$CARGO_TARGET_DIR/wasm32-wasip1/debug/sluice_examples.wasm" \
        "$(sed -n 's/^const BITS: &str = "\(.*\)";$/\1/p' examples/tests/wasm.rs)"
else
    echo "SKIPPED: examples/wasm in Node, which needs node and the target wasm32-wasip1"
fi
if [[ $mode == --all ]]; then
    for unit in "${units[@]}"; do
        # shellcheck disable=SC2086 # words
        cargo test --locked -p sluice-core -p sluice-kernels --lib $unit
    done
fi
