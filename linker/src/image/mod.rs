//! The image: entered from `boot.s`, reports what it found, and leaves.
//!
//! Ports, `cpuid`, `xgetbv` and `rdtsc` work in ring 3; `hlt`, `wrmsr`, `xsetbv`, control
//! registers and descriptor tables do not and belong into `boot.s`.

mod boot_info;
mod cpu;
mod exit;
mod mem;
mod port;
mod serial;

use core::arch::{asm, global_asm};
use core::hint::black_box;
use core::panic::PanicInfo;

use sluice_core::kernels::GgmlType;

use boot_info::BootInfo;
use serial::println;

global_asm!(include_str!("boot.s"), options(att_syntax));

/// Where `boot.s` enters Rust, in ring 3 under an identity map. `magic` and `info` are eax and
/// ebx as the loader left them.
#[unsafe(no_mangle)]
extern "C" fn kmain(magic: u32, info: u32) -> ! {
    serial::init();
    println!(
        "sluice-metal {}: long mode, ring {}",
        env!("CARGO_PKG_VERSION"),
        cpu::ring()
    );
    // SAFETY: the registers come straight from the loader by way of boot.s.
    let Some(boot) = (unsafe { BootInfo::from_pvh(info) }) else {
        panic!("started by something that is not a PVH loader (eax {magic:#x}, ebx {info:#x})");
    };
    report_machine(&boot);
    fault_on_request(boot.command_line);
    report_core();
    println!("done");
    exit::leave(exit::SUCCESS)
}

fn report_machine(boot: &BootInfo) {
    println!("command line '{}'", boot.command_line);
    println!(
        "ram {} KiB in {} ranges",
        boot.ram_bytes / 1024,
        boot.ram_range_count
    );
    match boot.module_len_bytes {
        Some(len_bytes) => println!("module {len_bytes} bytes"),
        None => println!("no module"),
    }
    println!("cpu {}", cpu::Identity::read());
    println!("features{}", cpu::Features);
    println!("xcr0 {:#x}", cpu::xcr0());
}

/// Calls into core. The number is opaque to the compiler, so the code that answers is in the image.
fn report_core() {
    let id = black_box(12); // Q4_K, as GGUF files number it
    match GgmlType::from_id(id) {
        Some(kind) => println!(
            "core ggml type {id} is {kind}, {} bytes for {} weights",
            kind.block_bytes(),
            kind.block_len()
        ),
        None => panic!("core does not know ggml type {id}"),
    }
}

/// `trap=ud`, `gp`, `pf` or `panic`: shows that faults are reported instead of hanging.
fn fault_on_request(command_line: &str) {
    match command_line
        .split(' ')
        .find_map(|word| word.strip_prefix("trap="))
    {
        // SAFETY: the exception is reported and never returns.
        Some("ud") => unsafe { asm!("ud2", options(noreturn)) },
        // SAFETY: as above: a privileged instruction in ring 3.
        Some("gp") => unsafe { asm!("hlt") },
        // SAFETY: as above: nothing is mapped that high.
        Some("pf") => unsafe {
            core::ptr::with_exposed_provenance_mut::<u8>(0x7FFF_FFFF_F000).write_volatile(1);
        },
        Some("panic") => panic!("on request"),
        _ => {}
    }
}

/// Where `boot.s` sends every CPU exception. `error` is 0 for vectors that push none.
#[unsafe(no_mangle)]
extern "C" fn trap_report(vector: u32, rip: u64, cr2: u64, error: u64) -> ! {
    println!("TRAP {vector} at {rip:#x}, cr2 {cr2:#x}, error code {error:#x}");
    exit::leave(exit::TRAP + vector)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // One line, because whoever reads the serial port looks for one.
    match info.location() {
        Some(place) => println!("PANIC at {place}: {}", info.message()),
        None => println!("PANIC: {}", info.message()),
    }
    exit::leave(exit::PANIC)
}
