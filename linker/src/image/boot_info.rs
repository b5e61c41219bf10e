//! What the loader handed over, read from the PVH start information.
//!
//! Source of the layout: Xen's `public/arch-x86/hvm/start_info.h`. Structures are copied out
//! with unaligned reads, because QEMU puts its module list on a multiple of 4 only.

use core::ffi::CStr;

/// The parts of the start information that the image uses.
pub(super) struct BootInfo {
    /// Empty where the loader gave none, or one that is not UTF-8.
    pub(super) command_line: &'static str,
    /// Length of the first module (`-initrd`).
    pub(super) module_len_bytes: Option<u64>,
    /// Sum over the ranges that the loader calls RAM, the image and the module among them.
    pub(super) ram_bytes: u64,
    /// How many ranges that are.
    pub(super) ram_range_count: u32,
}

impl BootInfo {
    /// `None` if no PVH start information lies at `info`.
    ///
    /// The magic number there is what identifies the protocol: eax says nothing dependable
    /// under PVH (QEMU leaves multiboot1's magic in it).
    ///
    /// # Safety
    /// - `info` is what the loader left in ebx, and the loader's memory is untouched since.
    pub(super) unsafe fn from_pvh(info: u32) -> Option<Self> {
        // SAFETY: every protocol that enters here points ebx at four readable bytes or more.
        if unsafe { read::<u32>(info.into()) } != PVH_MAGIC {
            return None;
        }
        // SAFETY: the magic number says that this structure lies there.
        let start: StartInfo = unsafe { read(info.into()) };
        let (mut ram_bytes, mut ram_range_count) = (0_u64, 0);
        for i in 0..u64::from(start.memory_map_count) {
            // SAFETY: the loader wrote that many entries.
            let range: MemoryRange = unsafe { read(start.memory_map + i * MEMORY_RANGE_BYTES) };
            // QEMU ends its list with an entry of length 0.
            if range.kind == MEMORY_KIND_RAM && range.len_bytes > 0 {
                ram_bytes = ram_bytes.saturating_add(range.len_bytes);
                ram_range_count += 1;
            }
        }
        let module_len_bytes = (start.module_count > 0).then(|| {
            // SAFETY: the loader wrote at least one entry.
            let module: Module = unsafe { read(start.modules) };
            module.len_bytes
        });
        // SAFETY: the field is zero or the address of a C string.
        let command_line = unsafe { text(start.command_line) };
        Some(Self {
            command_line,
            module_len_bytes,
            ram_bytes,
            ram_range_count,
        })
    }
}

const PVH_MAGIC: u32 = 0x336E_C578;
const MEMORY_KIND_RAM: u32 = 1;

#[repr(C)]
struct StartInfo {
    _magic: u32,
    _version: u32,
    _flags: u32,
    module_count: u32,
    modules: u64,
    command_line: u64,
    _rsdp: u64,
    memory_map: u64,
    memory_map_count: u32,
    _reserved: u32,
}

#[repr(C)]
struct Module {
    _address: u64,
    len_bytes: u64,
    _command_line: u64,
    _reserved: u64,
}

#[repr(C)]
struct MemoryRange {
    _address: u64,
    len_bytes: u64,
    kind: u32,
    _reserved: u32,
}

const MEMORY_RANGE_BYTES: u64 = 24;
const _: () = assert!(size_of::<StartInfo>() == 56);
const _: () = assert!(size_of::<Module>() == 32);
const _: () = assert!(size_of::<MemoryRange>() as u64 == MEMORY_RANGE_BYTES);

/// A physical address as a pointer: memory is mapped one to one.
fn at<T>(address: u64) -> *const T {
    const { assert!(usize::BITS == 64) };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "usize has 64 bits, asserted above"
    )]
    core::ptr::with_exposed_provenance(address as usize)
}

/// # Safety
/// - A `T`, for which every bit pattern is valid, lies at `address`.
unsafe fn read<T>(address: u64) -> T {
    // SAFETY: the caller says so; alignment does not matter.
    unsafe { at::<T>(address).read_unaligned() }
}

/// # Safety
/// - `address` is 0, or a C string starts there that lives and stays unchanged for ever.
unsafe fn text(address: u64) -> &'static str {
    if address == 0 {
        return "";
    }
    // SAFETY: the caller says that a C string starts here.
    unsafe { CStr::from_ptr(at(address)) }
        .to_str()
        .unwrap_or("")
}
