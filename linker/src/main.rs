//! Sluice without an operating system.
//!
//! ```text
//! cargo build --profile metal -p sluice-metal          # target/metal/sluice-metal
//! qemu-system-x86_64 -accel tcg -cpu max -M microvm,pit=on,isa-serial=on -m 512 \
//!     -display none -serial stdio -no-reboot -device isa-debug-exit,iobase=0xf4,iosize=4 \
//!     -kernel target/metal/sluice-metal -initrd model.gguf -append 'prompt="Once upon a time"'
//! ```
//!
//! `linker/run.sh MODEL [WORD...]` builds the image and starts it this way.
//!
//! This package proves that `sluice-core` and `sluice-kernels` run on nothing at all: it links
//! them into a `no_std`, `no_main` binary with its own panic handler, on the stable compiler
//! and the ordinary target `x86_64-unknown-linux-gnu`. As soon as any dependency pulls std in,
//! the build fails with E0152 (a second `panic_impl`); with `alloc` it fails for want of a
//! global allocator. The target is the ordinary one because the "none" and "uefi" targets are
//! soft-float, where float intrinsics silently become library calls.
//!
//! The image exists in the profile `metal` only, the one with `panic = "abort"`. In every other
//! profile the package is an ordinary program that prints the command above, so that
//! `cargo build`, `test` and `clippy --workspace` need no exceptions. `build.rs` decides.
//!
//! # What happens at start
//!
//! 1. A PVH loader (`qemu -kernel`) reads the entry point from an ELF note, a multiboot2 loader
//!    (GRUB) from a header in the same file. Both enter `boot.s` in 32-bit mode. Under UEFI a small
//!    program (`sluice-efi`, in `src/efi`) reads image and model from its volume, leaves the
//!    firmware and does what a PVH loader does; `linker/uefi.sh MODEL DISK` makes the disk.
//! 2. `boot.s` maps memory one to one (1 GiB pages, or 2 MiB where the CPU has none), enters
//!    long mode, enables the SSE, AVX, AVX-512 and AMX state that the CPU has, loads a TSS and an
//!    IDT, and enters ring 3. All Rust runs in ring 3: a KVM nested without VMX or SVM emulates
//!    ring 0 instruction by instruction and has no SSE there. Elsewhere it costs nothing. It
//!    is not a security boundary: every page is writable from ring 3.
//! 3. `kmain` reports on the first serial port what it found, measures the clock, takes the
//!    largest piece of free RAM, starts the other cores, and runs the model that the loader
//!    supplied as its first module (GGUF, or `.slc`, which is used in place): the library
//!    half of this package ([`sluice_metal::story`]), which is independent of the machine.
//!
//! Stacks are in windows above all memory, with nothing mapped below them: an overflow is a page
//! fault. The command line is [`sluice_metal::options`].
//!
//! # How it ends
//!
//! The image exits through QEMU's isa-debug-exit, whose exit status is always odd:
//!
//! | status | meaning |
//! |---|---|
//! | 33 | success |
//! | 35 | a line `ERROR: …` gives the reason |
//! | 65 + 2 × vector | a CPU exception (#UD 77, #GP 91, #PF 93), described by a line `TRAP …` |
//! | 255 | a panic, described by a line `PANIC …` |
//!
//! Without that device the image stops in a loop. On the kernel command line (`-append`),
//! `trap=ud`, `gp`, `pf`, `write`, `execute`, `stack` and `panic` provoke a fault of that kind, and `cores` one on every core
//! at once, of which the first is reported.
//!
//! # Not supported
//!
//! A model on another disk or linked in, x2APIC, interrupts. It has run only under QEMU (TCG and KVM),
//! never on a physical machine.
#![cfg_attr(sluice_image, no_std, no_main)]

#[cfg(sluice_image)]
mod image;

#[cfg(all(sluice_image, not(panic = "abort")))]
compile_error!("the image has no unwinder: the profile `metal` needs `panic = \"abort\"`");

#[cfg(not(sluice_image))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "sluice-metal: this is not the bare-metal image, because it was built without the metal profile; use: cargo \
         build --profile metal -p sluice-metal"
    );
    std::process::ExitCode::FAILURE
}
