//! From the firmware's call to the image's entry.

use core::arch::{asm, global_asm};
use core::fmt::{self, Write as _};
use core::panic::PanicInfo;

use crate::elf::Placement;
use crate::firmware::{Error, File, Firmware, Handle, PAGE_BYTES, Region, Status, at};

global_asm!(include_str!("efi.s"), options(att_syntax));

unsafe extern "C" {
    #[link_name = "jump_start"]
    static JUMP_START: u8;
    #[link_name = "jump_end"]
    static JUMP_END: u8;
}

/// `EFI_LOAD_ERROR`.
const LOAD_ERROR: Status = 1 << 63 | 1;
const BELOW_4_GIB: u64 = 0xFFFF_FFFF;
/// The range that the image maps on CPUs without 1 GiB pages.
const BELOW_64_GIB: u64 = (64 << 30) - 1;
const RANGES_MAX: usize = 128;

/// The information that PVH hands over, in one piece of memory. Source of the layouts: Xen's
/// `public/arch-x86/hvm/start_info.h`.
#[repr(C)]
struct HandOver {
    magic: u32,
    version: u32,
    flags: u32,
    module_count: u32,
    modules: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_count: u32,
    reserved: u32,
    module: [u64; 4],
    ranges: [Range; RANGES_MAX],
    /// A copy of the code that leaves long mode.
    jump: [u8; 256],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len_bytes: u64,
    kind: u32,
    reserved: u32,
}

#[unsafe(no_mangle)]
unsafe extern "efiapi" fn efi_main(image: Handle, system: *const u8) -> Status {
    // SAFETY: both are the firmware's.
    let firmware = unsafe { Firmware::new(image, system) };
    let Err(error) = load(firmware) else {
        return 0; // not reached: the image does not return
    };
    // SAFETY: as above. Boot services still run: `load` fails before it exits them.
    fail(
        &unsafe { Firmware::new(image, system) },
        format_args!("{error}"),
    );
    LOAD_ERROR
}

fn load(firmware: Firmware) -> Result<(), Error> {
    let volume = firmware.volume()?;
    let Some(image) = firmware.read(&volume, "\\sluice-metal", BELOW_64_GIB)? else {
        return Err(Error::Image("not found on the volume"));
    };
    let place = Placement::of(image)?;
    let len_bytes = place.end - place.start;
    firmware.pages("memory for the image", place.start, false, len_bytes)?;
    let mut model = firmware.read(&volume, "\\model.gguf", BELOW_64_GIB)?;
    if model.is_none() {
        model = firmware.read(&volume, "\\model.slc", BELOW_64_GIB)?;
    }
    let line = firmware.read(&volume, "\\cmdline.txt", BELOW_64_GIB)?;
    let size = size_of::<HandOver>() as u64;
    let info = firmware.pages("memory for the memory map", BELOW_4_GIB, true, size)?;
    // SAFETY: our own pages, large enough, and any bytes are valid numbers of this kind.
    let hand_over = unsafe { &mut *at(info).cast::<HandOver>() };
    hand_over.fill(model, line, info);
    hand_over.rsdp = firmware.rsdp();
    let mut n_ranges = 0;
    firmware.leave(|region| hand_over.add(&mut n_ranges, &region))?;
    hand_over.memory_map_count = u32::try_from(n_ranges).unwrap_or(0);
    // SAFETY: the firmware gave us these pages, and no longer runs.
    unsafe { place.fill() };
    // SAFETY: a copy of `jump_start` is there, below 4 GiB; it does not return.
    unsafe {
        asm!("jmp *{}", in(reg) hand_over.jump.as_ptr(), in("rdi") info, in("rsi") place.entry,
            options(att_syntax, noreturn));
    }
}

impl HandOver {
    fn fill(&mut self, model: Option<File>, line: Option<File>, info: u64) {
        let address = |field: *const u8| field.addr() as u64;
        self.magic = 0x336E_C578;
        self.version = 1;
        self.flags = 0;
        self.module_count = u32::from(model.is_some());
        self.modules = address((&raw const self.module).cast());
        self.module = model.map_or([0; 4], |file| [file.address, file.len_bytes, 0, 0]);
        self.command_line = line.map_or(0, one_line);
        self.rsdp = 0;
        self.memory_map = address((&raw const self.ranges).cast());
        self.memory_map_count = 0;
        self.reserved = 0;
        debug_assert_eq!(address((&raw const self.magic).cast()), info);
        let (from, to) = (&raw const JUMP_START, &raw const JUMP_END);
        let len = (to.addr() - from.addr()).min(self.jump.len());
        // SAFETY: both are symbols of one piece of code; the copy has room.
        unsafe { self.jump.as_mut_ptr().copy_from(from, len) };
    }

    /// Adds a region that is free after the firmware has exited, merging it with the last one if they touch.
    fn add(&mut self, count: &mut usize, region: &Region) {
        // EfiLoaderCode, EfiLoaderData, EfiBootServicesCode, EfiBootServicesData,
        // EfiConventionalMemory.
        if !matches!(region.kind, 1..=4 | 7) {
            return;
        }
        let len_bytes = region.n_pages.saturating_mul(PAGE_BYTES);
        let last = count.checked_sub(1).and_then(|i| self.ranges.get_mut(i));
        if let Some(last) = last.filter(|last| last.start + last.len_bytes == region.start) {
            last.len_bytes += len_bytes;
        } else if let Some(range) = self.ranges.get_mut(*count) {
            *range = Range {
                start: region.start,
                len_bytes,
                kind: 1, // RAM
                reserved: 0,
            };
            *count += 1;
        }
    }
}

/// The address of a file's text, with line ends replaced by spaces.
fn one_line(file: File) -> u64 {
    for i in 0..file.len_bytes {
        let byte = at(file.address + i);
        // SAFETY: inside the file's pages, which are ours.
        if matches!(unsafe { byte.read() }, b'\r' | b'\n') {
            // SAFETY: as above.
            unsafe { byte.write(b' ') };
        }
    }
    file.address
}

/// Prints the error and leaves QEMU; a real machine's firmware tries its next boot entry.
fn fail(firmware: &Firmware, what: fmt::Arguments<'_>) {
    // Errors of the console are ignored: there is nowhere to report them.
    let _ = write!(&mut &*firmware, "\nERROR: {what}\n");
    leave(0x11);
}

/// Through isa-debug-exit: `linker/src/image/exit.rs` lists the meanings of the numbers.
fn leave(code: u32) {
    // SAFETY: nothing else answers at this port on the machines that this runs on.
    unsafe { asm!("out dx, eax", in("dx") 0xF4u16, in("eax") code, options(nomem, nostack)) };
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    leave(0x7F);
    loop {
        core::hint::spin_loop();
    }
}
