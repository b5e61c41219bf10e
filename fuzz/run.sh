#!/usr/bin/env bash
# Fuzzes every target, one after the other: fuzz/run.sh [SECONDS [TARGET...]]
#
# Needs a nightly compiler (or any, with RUSTC_BOOTSTRAP=1 and TOOLCHAIN= to name it) and cargo-fuzz. An
# input that breaks a promise is left in fuzz/artifacts/TARGET, and the status is then not zero.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

seconds=${1:-60}
shift || true
targets=("$@")
if ((${#targets[@]} == 0)); then
    mapfile -t targets < <(cargo fuzz list)
fi
failed=()
for target in "${targets[@]}"; do
    printf '==== %s\n' "$target"
    options=(-max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=10)
    if [[ $target == chat_template ]]; then
        # A template may take a second of a processor; with the sanitizer and counters it is many.
        options+=(-timeout=60)
    fi
    options+=(-max_len=65536 -print_final_stats=1)
    if [[ -f dict/$target.dict ]]; then
        options+=(-dict="dict/$target.dict")
    fi
    cargo "+${TOOLCHAIN:-nightly}" fuzz run --fuzz-dir . "$target" -- "${options[@]}" || failed+=("$target")
done
if ((${#failed[@]} > 0)); then
    printf 'FAILED: %s\n' "${failed[*]}"
    exit 1
fi
