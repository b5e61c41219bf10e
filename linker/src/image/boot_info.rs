//! The loader's information, in one form for PVH and multiboot2.
//!
//! Sources of the layouts: Xen's `public/arch-x86/hvm/start_info.h`; Multiboot2 Specification
//! version 2.0, section 3.6. Structures are copied out with unaligned reads, because QEMU puts
//! its module list on a multiple of 4 only.

use core::ffi::CStr;
use core::ops::Range;

use heapless::{String, Vec};
use spin::Once;
use static_assertions::const_assert_eq;

use super::serial::println;

/// The parts of the boot information that the image uses.
pub(super) struct BootInfo {
    /// The protocol's name.
    pub(super) protocol: &'static str,
    /// Empty if the loader gave none, or one that is not UTF-8. A copy: the other cores start
    /// in low memory, where loaders keep it.
    pub(super) command_line: &'static str,
    /// The address of ACPI's root pointer, if the loader gives it.
    pub(super) rsdp: Option<u64>,
    /// The first module: `-initrd`, or `module2`.
    pub(super) module: Option<Range<u64>>,
    /// What the loader calls RAM, including the image and the module.
    pub(super) ram: Ranges,
    /// The parts of it that are in use: the image, the module, this information itself.
    pub(super) taken: Ranges,
}

/// A few ranges of physical addresses.
#[derive(Clone, Default)]
pub(super) struct Ranges {
    list: Vec<Range<u64>, 64>,
    /// The number of ranges that did not fit in the list.
    pub(super) dropped_count: usize,
}

impl Ranges {
    fn add(&mut self, start: u64, len_bytes: u64) {
        let range = start..start.saturating_add(len_bytes);
        self.dropped_count += usize::from(self.list.push(range).is_err());
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + Clone {
        self.list.iter().cloned()
    }
}

impl BootInfo {
    /// `None` if neither protocol's information is found.
    ///
    /// PVH is tried first, by the magic number in its structure: eax is not reliable there
    /// (QEMU leaves multiboot1's magic in it).
    ///
    /// # Safety
    /// - `magic` and `info` are what the loader left in eax and ebx, and the loader's memory is
    ///   untouched since.
    pub(super) unsafe fn read(magic: u32, info: u32) -> Option<Self> {
        let mut boot = Self {
            protocol: "PVH",
            command_line: "",
            rsdp: None,
            module: None,
            ram: Ranges::default(),
            taken: Ranges::default(),
        };
        let image = (&raw const IMAGE_START).addr() as u64..(&raw const IMAGE_END).addr() as u64;
        boot.take(image);
        boot.take(0..LOW_MEMORY_END);
        // SAFETY: every protocol that enters here points ebx at four readable bytes or more.
        if unsafe { read::<u32>(info.into()) } == PVH_MAGIC {
            // SAFETY: the magic number says so.
            unsafe { boot.read_pvh(info.into()) };
        } else if magic == MULTIBOOT2_MAGIC {
            boot.protocol = "multiboot2";
            // SAFETY: the magic number says so.
            unsafe { boot.read_multiboot2(info.into()) };
        } else {
            return None;
        }
        Some(boot)
    }

    fn take(&mut self, range: Range<u64>) {
        self.taken.add(range.start, range.end - range.start);
    }

    fn take_module(&mut self, start: u64, len_bytes: u64) {
        let end = start.saturating_add(len_bytes);
        self.take(start..end);
        self.module.get_or_insert(start..end);
    }

    /// # Safety
    /// - PVH start information is at `info`.
    unsafe fn read_pvh(&mut self, info: u64) {
        // SAFETY: by the caller.
        let start: StartInfo = unsafe { read(info) };
        self.take(info..info + size_of::<StartInfo>() as u64);
        self.rsdp = Some(start.rsdp).filter(|address| *address != 0);
        self.taken.add(
            start.memory_map,
            u64::from(start.memory_map_count) * MEMORY_RANGE_BYTES,
        );
        for i in 0..u64::from(start.memory_map_count) {
            // SAFETY: the loader wrote that many entries.
            let range: MemoryRange = unsafe { read(start.memory_map + i * MEMORY_RANGE_BYTES) };
            // QEMU ends its list with an entry of length 0.
            if range.kind == MEMORY_KIND_RAM && range.len_bytes > 0 {
                self.ram.add(range.address, range.len_bytes);
            }
        }
        let list_bytes = size_of::<Module>() as u64;
        self.taken
            .add(start.modules, u64::from(start.module_count) * list_bytes);
        for i in 0..u64::from(start.module_count) {
            // SAFETY: the loader wrote that many entries.
            let module: Module = unsafe { read(start.modules + i * list_bytes) };
            self.take_module(module.address, module.len_bytes);
        }
        // SAFETY: the field is zero or the address of a C string.
        self.command_line = unsafe { copied(start.command_line) };
    }

    /// # Safety
    /// - Multiboot2 boot information is at `info`.
    unsafe fn read_multiboot2(&mut self, info: u64) {
        // SAFETY: the information starts with its own length.
        let end = info + u64::from(unsafe { read::<u32>(info) });
        self.take(info..end);
        let mut tag = info + 8;
        while tag + 8 <= end {
            // SAFETY: every tag starts with its kind and its length.
            let [kind, len_bytes]: [u32; 2] = unsafe { read(tag) };
            match kind {
                0 => break,
                // SAFETY: tag 1 is the command line, a C string.
                1 => self.command_line = unsafe { copied(tag + 8) },
                3 => {
                    // SAFETY: tag 3 is a module: its first address and the one after its last.
                    let [first, last]: [u32; 2] = unsafe { read(tag + 8) };
                    self.take_module(first.into(), last.saturating_sub(first).into());
                }
                // SAFETY: tag 6 is the memory map.
                6 => unsafe { self.read_multiboot2_map(tag, tag + u64::from(len_bytes)) },
                // Copies of ACPI's root pointer: the version 1 copy is used only without the other one.
                14 => self.rsdp = self.rsdp.or(Some(tag + 8)),
                15 => self.rsdp = Some(tag + 8),
                _ => {}
            }
            tag += u64::from(len_bytes.max(8)).next_multiple_of(8); // always forward
        }
    }

    /// # Safety
    /// - A memory map tag is at `tag..end`.
    unsafe fn read_multiboot2_map(&mut self, tag: u64, end: u64) {
        // SAFETY: by the caller: the size of an entry, and the version of its format.
        let [entry_bytes, _]: [u32; 2] = unsafe { read(tag + 8) };
        let mut entry = tag + 16;
        while entry + MEMORY_RANGE_BYTES <= end {
            // SAFETY: the entry is within the tag; it has PVH's form.
            let range: MemoryRange = unsafe { read(entry) };
            if range.kind == MEMORY_KIND_RAM {
                self.ram.add(range.address, range.len_bytes);
            }
            entry += u64::from(entry_bytes).max(MEMORY_RANGE_BYTES);
        }
    }

    /// Bytes of RAM in all ranges.
    pub(super) fn ram_bytes(&self) -> u64 {
        self.ram.iter().map(|range| range.end - range.start).sum()
    }
}

unsafe extern "C" {
    #[link_name = "_image_start"]
    static IMAGE_START: u8;
    #[link_name = "_image_end"]
    static IMAGE_END: u8;
}

/// Used by the firmware and the loader, and for starting other cores.
const LOW_MEMORY_END: u64 = 1 << 20;
const PVH_MAGIC: u32 = 0x336E_C578;
const MULTIBOOT2_MAGIC: u32 = 0x36D7_6289;
const MEMORY_KIND_RAM: u32 = 1;

#[repr(C)]
struct StartInfo {
    _magic: u32,
    _version: u32,
    _flags: u32,
    module_count: u32,
    modules: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_count: u32,
    _reserved: u32,
}

#[repr(C)]
struct Module {
    address: u64,
    len_bytes: u64,
    _command_line: u64,
    _reserved: u64,
}

#[repr(C)]
struct MemoryRange {
    address: u64,
    len_bytes: u64,
    kind: u32,
    _reserved: u32,
}

const MEMORY_RANGE_BYTES: u64 = size_of::<MemoryRange>() as u64;
const_assert_eq!(size_of::<StartInfo>(), 56);
const_assert_eq!(size_of::<Module>(), 32);
const_assert_eq!(size_of::<MemoryRange>(), 24);

/// A physical address as a pointer: memory is mapped one to one.
pub(super) fn at<T>(address: u64) -> *mut T {
    const { assert!(usize::BITS == 64) };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "usize has 64 bits, asserted above"
    )]
    core::ptr::with_exposed_provenance_mut(address as usize)
}

/// # Safety
/// - A `T`, for which every bit pattern is valid, is at `address`.
unsafe fn read<T>(address: u64) -> T {
    // SAFETY: the caller guarantees it; alignment does not matter.
    unsafe { at::<T>(address).read_unaligned() }
}

/// A copy of a C string; the part beyond [`COMMAND_LINE_MAX`] is left out and reported.
///
/// # Safety
/// - `address` is 0, or a C string starts there.
unsafe fn copied(address: u64) -> &'static str {
    if address == 0 {
        return "";
    }
    // SAFETY: the caller guarantees that a C string starts here.
    let text = unsafe { CStr::from_ptr(at(address)) }.to_bytes();
    if text.len() > COMMAND_LINE_MAX {
        println!(
            "the command line has {} bytes; the rest after {COMMAND_LINE_MAX} is ignored",
            text.len()
        );
    }
    let text = core::str::from_utf8(&text[..text.len().min(COMMAND_LINE_MAX)]).unwrap_or("");
    COMMAND_LINE.call_once(|| String::try_from(text).unwrap_or_default())
}

const COMMAND_LINE_MAX: usize = 4096;
static COMMAND_LINE: Once<String<COMMAND_LINE_MAX>> = Once::new();
