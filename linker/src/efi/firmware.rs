//! The firmware's tables, by byte offset. Source: UEFI Specification 2.10, chapters 4, 7, 12, 13.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "fields of one table are read under one promise: that of its layout"
)]

use core::arch::asm;
use core::ffi::c_void;
use core::fmt;
use core::ptr::null;

pub(crate) type Handle = *mut c_void;
pub(crate) type Status = usize;
type Table = *const u8;

/// Errors before the image runs.
#[derive(Debug)]
pub(crate) enum Error {
    /// The firmware returned an error.
    Firmware(&'static str, Status),
    /// The image is not valid.
    Image(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Firmware(what, status) => write!(f, "{what}: UEFI status {status:#x}"),
            Self::Image(what) => write!(f, "\\sluice-metal: {what}"),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Guid(u32, u16, u16, [u8; 8]);

const LOADED_IMAGE: Guid = Guid(
    0x5B1B_31A1,
    0x9562,
    0x11D2,
    [0x8E, 0x3F, 0x00, 0xA0, 0xC9, 0x69, 0x72, 0x3B],
);
const SIMPLE_FILE_SYSTEM: Guid = Guid(
    0x964E_5B22,
    0x6459,
    0x11D2,
    [0x8E, 0x39, 0x00, 0xA0, 0xC9, 0x69, 0x72, 0x3B],
);
const ACPI_1: Guid = Guid(
    0xEB9D_2D30,
    0x2D88,
    0x11D3,
    [0x9A, 0x16, 0x00, 0x90, 0x27, 0x3F, 0xC1, 0x4D],
);
const ACPI_2: Guid = Guid(
    0x8868_E871,
    0xE4F1,
    0x11D3,
    [0xBC, 0x22, 0x00, 0x80, 0xC7, 0x3C, 0x88, 0x81],
);
/// `EfiLoaderData`: free memory for the image, except for what the loader itself hands over.
const LOADER_DATA: u32 = 2;
const NOT_FOUND: Status = 1 << 63 | 14;

/// The firmware, until boot services end.
pub(crate) struct Firmware {
    image: Handle,
    system: Table,
    boot: Table,
}

/// A file in memory.
#[derive(Clone, Copy)]
pub(crate) struct File {
    pub(crate) address: u64,
    pub(crate) len_bytes: u64,
}

/// An entry of the firmware's memory map.
pub(crate) struct Region {
    pub(crate) kind: u32,
    pub(crate) start: u64,
    pub(crate) n_pages: u64,
}

/// # Safety
/// - A readable `T` is at byte `offset` of `table`.
unsafe fn field<T: Copy>(table: Table, offset: usize) -> T {
    // SAFETY: by the caller.
    unsafe { table.wrapping_add(offset).cast::<T>().read_unaligned() }
}

fn check(what: &'static str, status: Status) -> Result<(), Error> {
    match status {
        0 => Ok(()),
        status => Err(Error::Firmware(what, status)),
    }
}

/// Calls the firmware, with interrupts on; all other code here runs with them off, from `efi.s` on.
///
/// The firmware's interrupts push onto the current stack, and leaf functions of this target keep
/// data below its top (the red zone of System V's ABI; UEFI has none).
#[inline(always)]
fn call<R>(function: impl FnOnce() -> R) -> R {
    // SAFETY: boot services are called with interrupts on, and the firmware handles them. The
    // caller is not a leaf function: none of its data is below the stack's top.
    unsafe { asm!("sti") };
    let result = function();
    // SAFETY: as above; nothing here waits for an interrupt.
    unsafe { asm!("cli") };
    result
}

impl Firmware {
    /// # Safety
    /// - The arguments are the entry point's, and boot services have not been exited.
    pub(crate) unsafe fn new(image: Handle, system: Table) -> Self {
        // SAFETY: EFI_SYSTEM_TABLE.BootServices.
        let boot = unsafe { field(system, 96) };
        Self {
            image,
            system,
            boot,
        }
    }

    /// Pages for the loader: at `address`, or below it if `below` is set.
    pub(crate) fn pages(
        &self,
        what: &'static str,
        address: u64,
        below: bool,
        len_bytes: u64,
    ) -> Result<u64, Error> {
        type AllocatePages = extern "efiapi" fn(u32, u32, u64, &mut u64) -> Status;
        let kind = if below { 1 } else { 2 }; // AllocateMaxAddress, AllocateAddress
        let mut at = address;
        // SAFETY: EFI_BOOT_SERVICES.AllocatePages.
        let allocate: AllocatePages = unsafe { field(self.boot, 40) };
        let n_pages = len_bytes.div_ceil(PAGE_BYTES).max(1);
        check(what, call(|| allocate(kind, LOADER_DATA, n_pages, &mut at)))?;
        Ok(at)
    }

    fn protocol(&self, what: &'static str, of: Handle, guid: &Guid) -> Result<Table, Error> {
        type HandleProtocol = extern "efiapi" fn(Handle, &Guid, &mut Table) -> Status;
        let mut found = null();
        // SAFETY: EFI_BOOT_SERVICES.HandleProtocol.
        let handle_protocol: HandleProtocol = unsafe { field(self.boot, 152) };
        check(what, call(|| handle_protocol(of, guid, &mut found)))?;
        Ok(found)
    }

    /// The root folder of the volume that this program was started from.
    pub(crate) fn volume(&self) -> Result<Volume, Error> {
        type OpenVolume = extern "efiapi" fn(Table, &mut Table) -> Status;
        let loaded = self.protocol("the loaded image", self.image, &LOADED_IMAGE)?;
        // SAFETY: EFI_LOADED_IMAGE_PROTOCOL.DeviceHandle.
        let device: Handle = unsafe { field(loaded, 24) };
        let system = self.protocol("the volume's file system", device, &SIMPLE_FILE_SYSTEM)?;
        // SAFETY: EFI_SIMPLE_FILE_SYSTEM_PROTOCOL.OpenVolume.
        let open: OpenVolume = unsafe { field(system, 8) };
        let mut root = null();
        check("the volume", call(|| open(system, &mut root)))?;
        Ok(Volume { root })
    }

    /// The address of ACPI's root pointer; of version 2 or later, if there are both. 0 without one.
    pub(crate) fn rsdp(&self) -> u64 {
        // SAFETY: EFI_SYSTEM_TABLE.NumberOfTableEntries and ConfigurationTable.
        let (count, tables): (usize, Table) =
            unsafe { (field(self.system, 104), field(self.system, 112)) };
        let find = |guid: Guid| {
            (0..count).find_map(|i| {
                // SAFETY: EFI_CONFIGURATION_TABLE: a GUID and an address, `count` times.
                let (found, address): (Guid, u64) =
                    unsafe { (field(tables, 24 * i), field(tables, 24 * i + 16)) };
                (found == guid).then_some(address)
            })
        };
        find(ACPI_2).or_else(|| find(ACPI_1)).unwrap_or(0)
    }

    /// Reads a file into pages below `address_max`, with a zero byte after it; `None` if the file does not exist.
    pub(crate) fn read(
        &self,
        volume: &Volume,
        name: &'static str,
        address_max: u64,
    ) -> Result<Option<File>, Error> {
        type Position = extern "efiapi" fn(Table, u64) -> Status;
        type GetPosition = extern "efiapi" fn(Table, &mut u64) -> Status;
        type Read = extern "efiapi" fn(Table, &mut u64, *mut c_void) -> Status;
        let Some(file) = volume.open(name)? else {
            return Ok(None);
        };
        // SAFETY: EFI_FILE_PROTOCOL.SetPosition, GetPosition and Read.
        let (set, position, read): (Position, GetPosition, Read) =
            unsafe { (field(file, 56), field(file, 48), field(file, 32)) };
        let mut len_bytes = 0;
        // The largest position means the end of the file.
        check(name, call(|| set(file, u64::MAX)))?;
        check(name, call(|| position(file, &mut len_bytes)))?;
        check(name, call(|| set(file, 0)))?;
        let address = self.pages(name, address_max, true, len_bytes + 1)?;
        let mut done = 0;
        while done < len_bytes {
            let mut n = (len_bytes - done).min(READ_BYTES);
            let to = at(address + done).cast();
            check(name, call(|| read(file, &mut n, to)))?;
            if n == 0 {
                return Err(Error::Firmware(name, 0));
            }
            done += n;
        }
        // SAFETY: the pages are large enough, and ours.
        unsafe { at(address + len_bytes).write(0) };
        Ok(Some(File { address, len_bytes }))
    }

    /// Exits boot services. `each` is called with the memory map that is valid then; the firmware
    /// must not be called afterwards.
    pub(crate) fn leave(self, mut each: impl FnMut(Region)) -> Result<(), Error> {
        type GetMemoryMap =
            extern "efiapi" fn(&mut usize, *mut c_void, &mut usize, &mut usize, &mut u32) -> Status;
        type ExitBootServices = extern "efiapi" fn(Handle, usize) -> Status;
        // SAFETY: EFI_BOOT_SERVICES.GetMemoryMap and ExitBootServices.
        let (get, exit): (GetMemoryMap, ExitBootServices) =
            unsafe { (field(self.boot, 56), field(self.boot, 232)) };
        let map = (&raw mut MAP).cast::<u8>();
        let mut outcome = Ok(());
        // A timer of the firmware may change the map in between; in that case, try again.
        for _ in 0..8 {
            let (mut len, mut key, mut entry_bytes, mut version) = (MAP_BYTES, 0, 0, 0);
            let numbers = (&mut len, &mut key, &mut entry_bytes, &mut version);
            let status = call(|| get(numbers.0, map.cast(), numbers.1, numbers.2, numbers.3));
            check("the memory map", status)?;
            outcome = check("leaving boot services", call(|| exit(self.image, key)));
            if outcome.is_ok() {
                for offset in (0..len).step_by(entry_bytes.max(40)) {
                    // SAFETY: EFI_MEMORY_DESCRIPTOR's type, physical start and number of pages.
                    each(unsafe {
                        Region {
                            kind: field(map, offset),
                            start: field(map, offset + 8),
                            n_pages: field(map, offset + 24),
                        }
                    });
                }
                break;
            }
        }
        outcome
    }
}

/// A volume's root folder.
pub(crate) struct Volume {
    root: Table,
}

impl Volume {
    fn open(&self, name: &'static str) -> Result<Option<Table>, Error> {
        type Open = extern "efiapi" fn(Table, &mut Table, *const u16, u64, u64) -> Status;
        const READ_ONLY: u64 = 1;
        let mut wide = [0u16; 32];
        for (to, from) in wide.iter_mut().zip(name.bytes()) {
            *to = from.into();
        }
        // SAFETY: EFI_FILE_PROTOCOL.Open.
        let open: Open = unsafe { field(self.root, 8) };
        let mut file = null();
        match call(|| open(self.root, &mut file, wide.as_ptr(), READ_ONLY, 0)) {
            NOT_FOUND => Ok(None),
            status => check(name, status).map(|()| Some(file)),
        }
    }
}

/// The firmware's console.
impl fmt::Write for &Firmware {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        type OutputString = extern "efiapi" fn(*mut c_void, *const u16) -> Status;
        // SAFETY: EFI_SYSTEM_TABLE.ConOut.
        let console: *mut c_void = unsafe { field(self.system, 64) };
        if console.is_null() {
            return Ok(());
        }
        // SAFETY: EFI_SIMPLE_TEXT_OUTPUT_PROTOCOL.OutputString.
        let output: OutputString = unsafe { field(console.cast_const().cast(), 8) };
        for unit in text.encode_utf16() {
            if unit == u16::from(b'\n') {
                call(|| output(console, [u16::from(b'\r'), 0].as_ptr()));
            }
            call(|| output(console, [unit, 0].as_ptr()));
        }
        Ok(())
    }
}

/// An address as a pointer: the firmware maps memory one to one.
pub(crate) fn at(address: u64) -> *mut u8 {
    #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits here")]
    core::ptr::with_exposed_provenance_mut(address as usize)
}

pub(crate) const PAGE_BYTES: u64 = 4096;
/// Maximum bytes of one read: some firmware's drivers fail on very long ones.
const READ_BYTES: u64 = 16 << 20;
const MAP_BYTES: usize = 64 << 10;
#[repr(align(16))]
#[expect(dead_code, reason = "used through its address")]
struct Map([u8; MAP_BYTES]);
static mut MAP: Map = Map([0; MAP_BYTES]);
