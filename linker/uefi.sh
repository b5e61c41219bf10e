#!/usr/bin/env bash
# Makes a disk image that boots by UEFI and runs a model:
#
#   linker/uefi.sh MODEL DISK [WORD...]    linker/uefi.sh model.gguf sluice.img n=64 'prompt=Once upon a time'
#
# Words are those of linker/src/options.rs. The disk is one FAT volume with EFI/BOOT/BOOTX64.EFI, the
# image, the model and the words (cmdline.txt, to be edited there). Write it to a USB stick, or:
#
#   qemu-system-x86_64 -accel tcg -cpu max -M q35 -m 1024 -bios /usr/share/ovmf/OVMF.fd -net none \
#       -drive format=raw,file=sluice.img -display none -serial stdio \
#       -no-reboot -device isa-debug-exit,iobase=0xf4,iosize=4
#
# Needs mtools (Debian: mtools; for QEMU: ovmf). BUILT names a folder with sluice-metal and
# sluice-efi instead of building them.
set -euo pipefail
if (($# < 2)) || [[ $1 == -* ]]; then
    sed -n '2,15s/^# \{0,1\}//p' "$0"
    exit 2
fi
model=$1 disk=$2
shift 2
[[ -f $model ]] || { echo "uefi.sh: $model: no such file" >&2; exit 2; }
root=$(dirname "${BASH_SOURCE[0]}")/..
if [[ -z ${BUILT:-} ]]; then
    cargo build --manifest-path "$root/Cargo.toml" --profile metal -p sluice-metal
    BUILT=${CARGO_TARGET_DIR:-$root/target}/metal
fi
case $model in
    *.slc) name=model.slc ;;
    *) name=model.gguf ;;
esac
words=
for word in "$@"; do
    if [[ $word == *' '* ]]; then words+=" \"$word\""; else words+=" $word"; fi
done
# Room for the files and the file system, and enough clusters to be FAT32.
bytes=$(stat -Lc %s "$model")
mib=$(((bytes >> 20) + 48))
rm -f "$disk"
truncate -s "${mib}M" "$disk"
export MTOOLS_SKIP_CHECK=1
mformat -i "$disk" -F -v SLUICE ::
mmd -i "$disk" ::/EFI ::/EFI/BOOT
mcopy -i "$disk" "$BUILT/sluice-efi" ::/EFI/BOOT/BOOTX64.EFI
mcopy -i "$disk" "$BUILT/sluice-metal" ::/sluice-metal
mcopy -i "$disk" "$model" "::/$name"
printf '%s\n' "${words# }" | mcopy -i "$disk" - ::/cmdline.txt
