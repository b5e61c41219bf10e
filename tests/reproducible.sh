#!/usr/bin/env bash
# Builds the bare-metal image and the Python wheel twice, from copies of the committed sources in two folders, and
# compares the results byte for byte:
#
#   tests/reproducible.sh [image|wheel]...     both by default; about 10 minutes and 6 GB of temporary files
#
# MATURIN is the program maturin, from PyPI (maturin by default). What a release publishes is built in the same way:
# with `flags` as RUSTFLAGS, and with the time of the last commit. Exit status: 0 if the results are equal.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_INCREMENTAL=0
unset CARGO_TARGET_DIR
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
status=0

# build FOLDER WHAT: builds in a fresh copy of the sources, and prints the paths of the results.
build() {
    local copy=$work/$1
    mkdir -p "$copy"
    [[ -f $copy/Cargo.toml ]] || git -C "$root" archive HEAD | tar -x -C "$copy"
    # Paths of the machine are in messages of panics.
    local flags="--remap-path-prefix=$copy=/sluice --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    case $2 in
        image)
            RUSTFLAGS=$flags cargo build --quiet --manifest-path "$copy/Cargo.toml" --profile metal -p sluice-metal --locked ||
                return
            echo "$copy/target/metal/sluice-metal" "$copy/target/metal/sluice-efi"
            ;;
        wheel)
            RUSTFLAGS=$flags "${MATURIN:-maturin}" build --quiet --compression-level 9 -m "$copy/hosted/python/Cargo.toml" \
                --out "$copy/wheels" >&2 || return
            echo "$copy"/wheels/*.whl
            ;;
        *)
            echo "reproducible.sh: $2: expected image or wheel" >&2
            return 2
            ;;
    esac
}

for what in "${@:-image wheel}"; do
    for what in $what; do
        built=$(build a "$what") || exit
        read -ra first <<<"$built"
        built=$(build a-longer-name "$what") || exit
        read -ra second <<<"$built"
        for i in "${!first[@]}"; do
            if cmp "${first[i]}" "${second[i]}"; then
                echo "equal: $(basename "${first[i]}") $(sha256sum <"${first[i]}" | cut -d' ' -f1)"
            else
                status=1
            fi
        done
    done
done
exit "$status"
