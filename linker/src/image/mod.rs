//! The image: entered from `boot.s`, runs the model that the loader supplied, and exits.
//!
//! Ports, `cpuid`, `xgetbv` and `rdtsc` work in ring 3; `hlt`, `wrmsr`, `xsetbv`, control
//! registers and descriptor tables do not, so that code is in `boot.s`.

mod boot_info;
mod clock;
mod cpu;
mod exit;
mod mem;
mod serial;
mod smp;

use core::arch::{asm, global_asm};
use core::fmt;
use core::hint::black_box;
use core::ops::Range;
use core::panic::PanicInfo;

use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::team::{SpinWait, WaitPolicy};
use sluice_metal::acpi;
use sluice_metal::memory_map::largest_free;
use sluice_metal::options::Options;
use sluice_metal::story::{self, Machine};

use boot_info::{BootInfo, at};
use serial::{last_words, println};

global_asm!(include_str!("boot.s"), options(att_syntax));

/// Where `boot.s` enters Rust, in ring 3 under an identity map. `magic` and `info` are eax and
/// ebx as the loader left them.
#[unsafe(no_mangle)]
extern "C" fn kmain(magic: u32, info: u32) -> ! {
    let start_ticks = clock::ticks();
    println!(
        "sluice-metal {}: long mode, ring {}",
        env!("CARGO_PKG_VERSION"),
        cpu::ring()
    );
    // SAFETY: boot.s passes the registers on as the loader left them.
    let Some(boot) = (unsafe { BootInfo::read(magic, info) }) else {
        fail(format_args!(
            "started by a loader that uses neither PVH nor multiboot2 (eax {magic:#x}, ebx {info:#x})"
        ));
    };
    report_machine(&boot);
    let options = match Options::parse(boot.command_line) {
        Ok(options) => options,
        Err(error) => fail(format_args!("{error}")),
    };
    fault_on_request(options.trap);
    let Some(module) = boot.module.clone() else {
        fail(format_args!(
            "no model: the loader passed no module (QEMU: -initrd FILE; GRUB: module2 FILE; UEFI: \\model.gguf on \
             its volume)"
        ));
    };
    let (machine, memory) = set_up(&boot, &options);
    if options.trap == "cores" {
        machine.spread(machine.n_cores(), &|_| provoke_invalid_opcode());
    }
    // SAFETY: the loader put the module there, and nothing else is given that memory.
    let model: &'static [u8] = unsafe { bytes(module) };
    if let Err(error) = story::tell(&machine, model, memory, &options, start_ticks) {
        fail(format_args!("{error}"));
    }
    println!("done");
    exit::leave(exit::SUCCESS)
}

fn report_machine(boot: &BootInfo) {
    println!(
        "loader {}, command line '{}'",
        boot.protocol, boot.command_line
    );
    println!(
        "ram {} KiB in {} ranges",
        boot.ram_bytes() / 1024,
        boot.ram.iter().count()
    );
    match &boot.module {
        Some(module) => println!(
            "module {} bytes at {:#x}",
            module.end - module.start,
            module.start
        ),
        None => println!("no module"),
    }
    println!("cpu {}", cpu::Identity);
    println!("features{}", cpu::Features);
    println!("xcr0 {:#x}", cpu::xcr0());
    let table = KernelTable::vectorized(CpuFeatures::detect()).next_back();
    println!("kernels {}", table.map_or("none", KernelTable::name));
}

/// Clock, free memory and cores.
fn set_up(boot: &BootInfo, options: &Options<'_>) -> (Metal, &'static mut [u8]) {
    let ticks_per_second = clock::ticks_per_second();
    if ticks_per_second.is_none() {
        println!("no clock found: times are in units of a billion ticks");
    }
    let ticks_per_second = ticks_per_second.unwrap_or(1_000_000_000);
    let mapped_end = if cpu::has_gib_pages() {
        511 << 30
    } else {
        64 << 30
    };
    let ram = boot
        .ram
        .iter()
        .map(|ram| ram.start..ram.end.min(mapped_end));
    let Some(free) = largest_free(ram, boot.taken.iter(), 4096) else {
        fail(format_args!(
            "not enough memory: image and model occupy all of it"
        ));
    };
    if boot.taken.dropped_count > 0 {
        fail(format_args!("the loader's list of modules is too long"));
    }
    let listed = acpi::cores(&Mapped { end: mapped_end }, boot.rsdp);
    let local_apic = listed.map_or(smp::APIC, |cores| cores.local_apic);
    let n_listed = listed.map_or_else(cpu::cores_hint, |cores| cores.enabled);
    let waiting = smp::Waiting {
        ticks_per_ms: ticks_per_second / 1000,
        patience_ms: options.wait_ms,
    };
    let (n_cores, free) = start_cores(n_listed, local_apic, free, waiting);
    if n_cores < n_listed {
        println!(
            "{n_cores} of {n_listed} cores run; the others are late (wait=) or do not fit into memory"
        );
    }
    println!(
        "{n_cores} cores, TSC {} MHz, {} KiB free",
        ticks_per_second / 1_000_000,
        (free.end - free.start) / 1024
    );
    let machine = Metal {
        n_cores,
        ticks_per_second,
    };
    // SAFETY: RAM that is not in use: largest_free excluded everything taken.
    (machine, unsafe { bytes_mut(free) })
}

/// Starts the other cores, on stacks from `free`; returns the number of cores now, and the remaining memory. Stacks
/// take up to half of it.
fn start_cores(
    n_listed: usize,
    local_apic: u64,
    free: Range<u64>,
    waiting: smp::Waiting,
) -> (usize, Range<u64>) {
    let first = free.start.next_multiple_of(smp::STACK_BYTES);
    let room = free.end.saturating_sub(first) / 2;
    let mut n_cores = n_listed.clamp(1, smp::CORES_MAX);
    while n_cores > 1 && smp::stack_bytes(n_cores) > room {
        n_cores -= 1;
    }
    if n_cores == 1 {
        return (1, free);
    }
    let stacks = first..first + smp::stack_bytes(n_cores);
    let rest = stacks.end..free.end;
    // SAFETY: called once, here; the stacks are taken from free memory, and nothing that the loader left in low
    // memory is needed any more. Memory up to 4 GiB and more is mapped.
    let n_cores = unsafe { smp::start(n_cores, stacks, local_apic, waiting) };
    (n_cores, rest)
}

/// All memory that `boot.s` maps.
struct Mapped {
    end: u64,
}

impl acpi::Memory for Mapped {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let end = address.checked_add(into.len() as u64);
        let is_mapped = end.is_some_and(|end| end <= self.end);
        if is_mapped {
            for (byte, address) in into.iter_mut().zip(address..) {
                // SAFETY: it is mapped; the firmware's tables are not written any more.
                *byte = unsafe { at::<u8>(address).read_volatile() };
            }
        }
        is_mapped
    }
}

/// The machine as `story` uses it.
struct Metal {
    n_cores: usize,
    ticks_per_second: u64,
}

impl Machine for Metal {
    fn n_cores(&self) -> usize {
        self.n_cores
    }

    fn spread(&self, n_ranks: usize, job: &(dyn Fn(usize) + Sync)) {
        smp::spread(self.n_cores, n_ranks, job);
    }

    fn wait(&self) -> &dyn WaitPolicy {
        &SpinWait
    }

    fn ticks(&self) -> u64 {
        clock::ticks()
    }

    fn ticks_per_second(&self) -> u64 {
        self.ticks_per_second
    }

    fn print(&self, text: fmt::Arguments<'_>) {
        serial::print(text);
    }

    fn read_line(&self, line: &mut [u8]) -> Option<usize> {
        Some(serial::read_line(line))
    }
}

/// # Safety
/// - The range holds bytes that are not written any more.
unsafe fn bytes(range: Range<u64>) -> &'static [u8] {
    let len = usize::try_from(range.end - range.start).unwrap_or(0);
    // SAFETY: by the caller; all memory is mapped one to one.
    unsafe { core::slice::from_raw_parts(at(range.start), len) }
}

/// # Safety
/// - The range is RAM that nothing else accesses.
unsafe fn bytes_mut(range: Range<u64>) -> &'static mut [u8] {
    if range.is_empty() {
        return &mut [];
    }
    let len = usize::try_from(range.end - range.start).unwrap_or(0);
    // SAFETY: by the caller; all memory is mapped one to one.
    unsafe { core::slice::from_raw_parts_mut(at(range.start), len) }
}

/// Prints the error and exits.
fn fail(what: fmt::Arguments<'_>) -> ! {
    println!("ERROR: {what}");
    exit::leave(exit::FAILURE)
}

/// `trap=ud`, `gp`, `pf`, `write`, `execute`, `stack`, `panic`, or `cores` (on all cores at once): shows that faults are reported instead
/// of hanging.
fn fault_on_request(trap: &str) {
    match trap {
        "" => {}
        "cores" => {} // after they run
        "ud" => provoke_invalid_opcode(),
        // SAFETY: as above: a privileged instruction in ring 3.
        "gp" => unsafe { asm!("hlt") },
        // SAFETY: as above: nothing is mapped that high.
        "pf" => unsafe { at::<u8>(0x7FFF_FFFF_F000).write_volatile(1) },
        // SAFETY: as above: code cannot be written.
        "write" => unsafe {
            at::<u8>(provoke_invalid_opcode as fn() as usize as u64).write_volatile(0)
        },
        "execute" => execute_data(),
        "stack" => println!("{}", deeper(1)),
        "panic" => panic!("on request"),
        other => fail(format_args!(
            "command line: 'trap={other}': expected ud, gp, pf, write, execute, stack, panic or cores"
        )),
    }
}

fn provoke_invalid_opcode() {
    // SAFETY: the exception is reported and never returns.
    unsafe { asm!("ud2", options(noreturn)) }
}

/// Jumps to a `ret` that is not code.
fn execute_data() {
    let data = black_box([0xC3_u8; 16]);
    // SAFETY: the exception is reported and never returns.
    unsafe { asm!("call {}", in(reg) data.as_ptr(), clobber_abi("C")) }
    println!("data was executed");
}

/// Overflows the stack.
#[expect(unconditional_recursion, reason = "the overflow is intended")]
fn deeper(n: u64) -> u64 {
    let frame = black_box([n; 64]);
    black_box(deeper(frame[1] + 1)) + frame[2]
}

/// The target of every CPU exception in `boot.s`. `error` is 0 for vectors that push none.
#[unsafe(no_mangle)]
extern "C" fn trap_report(vector: u32, rip: u64, cr2: u64, error: u64) -> ! {
    last_words!("TRAP {vector} at {rip:#x}, cr2 {cr2:#x}, error code {error:#x}");
    exit::leave(exit::TRAP + vector)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // One line, because tools that read the serial port look for one line.
    match info.location() {
        Some(place) => last_words!("PANIC at {place}: {}", info.message()),
        None => last_words!("PANIC: {}", info.message()),
    }
    exit::leave(exit::PANIC)
}
