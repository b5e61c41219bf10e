//! The UEFI loader: starts the image from the volume that it was itself started from.
//!
//! It is stored as `\EFI\BOOT\BOOTX64.EFI` on a volume with `\sluice-metal` (the image), `\model.gguf` or
//! `\model.slc`, and optionally `\cmdline.txt` with a command line; `linker/uefi.sh` makes such a
//! volume. It reads them through the firmware, exits boot services, turns the firmware's memory
//! map into PVH's, and enters the image as a PVH loader does: from there on there is one path.
//!
//! It is a separate program, for the ordinary target like the image: position-independent, made
//! into a PE file by `efi.ld`. Which vector state is enabled is the firmware's choice here.
#![cfg_attr(sluice_image, no_std, no_main)]

#[cfg(sluice_image)]
mod elf;
#[cfg(sluice_image)]
mod firmware;
#[cfg(sluice_image)]
#[path = "../image/mem.rs"]
mod mem;
#[cfg(sluice_image)]
mod start;

#[cfg(not(sluice_image))]
fn main() -> std::process::ExitCode {
    eprintln!("sluice-efi: build it with: cargo build --profile metal -p sluice-metal");
    std::process::ExitCode::FAILURE
}
