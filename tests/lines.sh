#!/usr/bin/env bash
# Lines of Rust that are neither blank nor comment, outside tests, by folder and in all.
#
#     tests/lines.sh [ROOT]
#
# Tests are files and folders named tests, the crates tests/ and benches/ and fuzz/, and what follows `#[cfg(test)] mod tests` in a file.
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
git ls-files '*.rs' | grep -vE '(^|/)(tests|benches|fuzz)/|(^|/)tests\.rs$' | while read -r file; do
    awk -v file="$file" '
        /^#\[cfg\(test\)\]/ { held = 1; next }
        held && /^(pub(\(crate\))? )?mod [a-z_]*tests? \{/ { exit }
        { if (held) { n += 1; held = 0 } }
        in_block { if (/\*\//) in_block = 0; next }
        /^[[:space:]]*\/\*/ { if (!/\*\//) in_block = 1; next }
        /^[[:space:]]*(\/\/|$)/ { next }
        { n += 1 }
        END { print n + 0, file }' "$file"
done | awk '{ split($2, part, "/"); folder = part[1] == "hosted" && part[2] != "src" ? part[1] "/" part[2] : part[1]
        lines[folder] += $1; all += $1 }
    END { for (folder in lines) print lines[folder], folder | "sort -k2"; close("sort -k2"); print all, "in all" }'
