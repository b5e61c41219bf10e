#!/usr/bin/env bash
# Reduces each corpus to files with the same coverage: at most 200 files and 512 KiB a target beside the
# seeds, the smallest first: fuzz/minimise.sh [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

files_max=200
bytes_max=$((512 << 10))

# keep FROM TO: copies the smallest files that TO does not have, within the limits.
keep() {
    local size path sum files=0 bytes=0 have
    have=$(sha1sum "$2"/* | cut -d' ' -f1)
    while read -r size path; do
        ((++files <= files_max && (bytes += size) <= bytes_max)) || break
        sum=$(sha1sum <"$path" | cut -d' ' -f1)
        grep -qx "$sum" <<<"$have" || cp -- "$path" "$2/$sum"
    done < <(find "$1" -type f -printf '%s %p\n' | sort -n)
}

targets=("$@")
if ((${#targets[@]} == 0)); then
    mapfile -t targets < <(cargo fuzz list)
fi
for target in "${targets[@]}"; do
    kept=$(mktemp -d)
    # `-set_cover_merge` finds fewer files than the merge of `cargo fuzz cmin`.
    cargo "+${TOOLCHAIN:-nightly}" fuzz run --fuzz-dir . "$target" -- \
        -set_cover_merge=1 -rss_limit_mb=2048 "$kept" "corpus/$target"
    find "corpus/$target" -type f ! -name 'seed-*' ! -name 'found-*' -delete
    keep "$kept" "corpus/$target"
    rm -r "$kept"
done
