#!/usr/bin/env bash
# Builds the bare-metal image and starts it in QEMU with a model:
#
#   linker/run.sh MODEL [WORD...]          linker/run.sh model.gguf n=64 temp=0 'prompt=Once upon a time'
#
# Words are those of linker/src/options.rs. CORES (1), MEMORY (512 MiB) and TIMEOUT (300 s) are
# taken from the environment, and ACCEL, which is kvm where /dev/kvm can be used, else tcg
# (an emulator: about 100 times slower, and without AVX-512). Exit status: 0, or what QEMU gave
# (linker/src/main.rs says what it means; 124 is the time limit).
set -euo pipefail
if (($# == 0)) || [[ $1 == -* ]]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
fi
model=$1
shift
[[ -f $model ]] || { echo "run.sh: $model: no such file" >&2; exit 2; }
root=$(dirname "${BASH_SOURCE[0]}")/..
accel=${ACCEL:-$([[ -r /dev/kvm && -w /dev/kvm ]] && echo kvm || echo tcg)}
case $accel in
    kvm) cpu=host,-arch-capabilities ;; # some KVMs refuse to start with them
    *) cpu=max ;;
esac
words=
for word in "$@"; do
    if [[ $word == *' '* ]]; then words+=" \"$word\""; else words+=" $word"; fi
done
cores=$(nproc)
if ((${CORES:-1} > cores)); then
    echo "run.sh: CORES=$CORES is more than the $cores CPUs here: cores that wait for each other spin, so this will be very slow" >&2
fi
cargo build --manifest-path "$root/Cargo.toml" --profile metal -p sluice-metal
echo "accelerator: $accel" >&2
status=0
timeout --foreground "${TIMEOUT:-300}" qemu-system-x86_64 -accel "$accel" -cpu "$cpu" \
    -M microvm,pit=on,isa-serial=on -smp "${CORES:-1}" -m "${MEMORY:-512}" \
    -display none -serial stdio -no-reboot -net none -device isa-debug-exit,iobase=0xf4,iosize=4 \
    -kernel "${CARGO_TARGET_DIR:-$root/target}/metal/sluice-metal" -initrd "$model" -append "${words# }" || status=$?
((status == 33)) && status=0
exit "$status"
