//! The number of cores of the machine, from ACPI's table of interrupt controllers (MADT).
//!
//! CPUID counts within one package, which is not enough on machines with several. Firmware lists
//! every core, in tables that a root pointer (RSDP) leads to. The tables come from outside: every length is
//! bounded, and unmapped or inconsistent tables are treated as missing.
//!
//! Source: ACPI Specification 6.5, 5.2.5 (RSDP), 5.2.7 and 5.2.8 (RSDT, XSDT), 5.2.12 (MADT).

use core::ops::Range;

/// Memory by physical address.
pub trait Memory {
    /// Copies the bytes at `address` to `into`; false if not all of them are mapped.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// The contents of the MADT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Cores that are present and may be started, including the first: 1 or more.
    pub enabled: usize,
    /// The address at which each core finds the registers of its own interrupt controller.
    pub local_apic: u64,
}

/// Reads the MADT. `rsdp` is the root pointer's address from the loader; if it is missing or wrong,
/// the BIOS areas are searched. `None` without a valid table.
pub fn cores(memory: &impl Memory, rsdp: Option<u64>) -> Option<Cores> {
    let root = rsdp.and_then(|address| root(memory, address));
    let root = root.or_else(|| bios_places(memory).find_map(|address| self::root(memory, address)));
    let Root { list, entry_bytes } = root?;
    let mut entries = list
        .clone()
        .step_by(entry_bytes)
        .filter(|at| at + entry_bytes as u64 <= list.end);
    let madt = entries.find_map(|at| {
        let mut address = [0; 8];
        memory
            .read(at, &mut address[..entry_bytes])
            .then(|| table(memory, u64::from_le_bytes(address), *b"APIC"))?
    })?;
    count(memory, madt)
}

/// The list of the addresses of all tables.
struct Root {
    list: Range<u64>,
    entry_bytes: usize,
}

/// The list that the root pointer at `address` names: the one of long addresses, if there is one.
fn root(memory: &impl Memory, address: u64) -> Option<Root> {
    let pointer: [u8; 20] = bytes(memory, address)?;
    if !pointer.starts_with(b"RSD PTR ") || !adds_up(memory, address, pointer.len()) {
        return None;
    }
    if pointer[15] >= 2
        && let Some(xsdt) = bytes(memory, address.checked_add(24)?)
        && let Some(table) = table(memory, u64::from_le_bytes(xsdt), *b"XSDT")
    {
        return Some(Root {
            list: table.start + HEADER_BYTES..table.end,
            entry_bytes: 8,
        });
    }
    let rsdt = u32::from_le_bytes(bytes(memory, address.checked_add(16)?)?);
    let table = table(memory, rsdt.into(), *b"RSDT")?;
    Some(Root {
        list: table.start + HEADER_BYTES..table.end,
        entry_bytes: 4,
    })
}

/// Where the root pointer may be on machines with a BIOS: in the first KiB of its extended data, and in
/// the last 128 KiB below 1 MiB, on a multiple of 16.
fn bios_places(memory: &impl Memory) -> impl Iterator<Item = u64> {
    let segment = bytes(memory, 0x40E).map_or(0, u16::from_le_bytes);
    let data = u64::from(segment) << 4;
    let data = if data == 0 { 0..0 } else { data..data + 1024 };
    data.chain(0xE_0000..0x10_0000)
        .filter(|address| address % 16 == 0)
}

/// A table's position, if it has that name and is valid.
fn table(memory: &impl Memory, address: u64, signature: [u8; 4]) -> Option<Range<u64>> {
    let name: [u8; 4] = bytes(memory, address)?;
    let len = u32::from_le_bytes(bytes(memory, address.checked_add(4)?)?).into();
    if name != signature || !(HEADER_BYTES..=TABLE_BYTES_MAX).contains(&len) {
        return None;
    }
    let end = address.checked_add(len)?;
    let sound = adds_up(memory, address, usize::try_from(len).ok()?);
    sound.then_some(address..end)
}

/// Whether the bytes add up to 0, as in all tables.
fn adds_up(memory: &impl Memory, address: u64, len: usize) -> bool {
    let mut sum = 0_u8;
    for at in (0..len).step_by(64) {
        let mut piece = [0; 64];
        let piece = &mut piece[..(len - at).min(64)];
        let Some(address) = address.checked_add(at as u64) else {
            return false;
        };
        if !memory.read(address, piece) {
            return false;
        }
        sum = piece.iter().fold(sum, |sum, byte| sum.wrapping_add(*byte));
    }
    sum == 0
}

fn count(memory: &impl Memory, madt: Range<u64>) -> Option<Cores> {
    let local_apic = u32::from_le_bytes(bytes(memory, madt.start + HEADER_BYTES)?);
    let mut cores = Cores {
        enabled: 0,
        local_apic: local_apic.into(),
    };
    let mut at = madt.start + HEADER_BYTES + 8;
    while at + 2 <= madt.end {
        let [kind, len] = bytes(memory, at)?;
        let next = at + u64::from(len);
        if len < 2 || next > madt.end {
            return None;
        }
        match (kind, len) {
            (LOCAL_APIC, 8..) => cores.enabled += enabled(bytes(memory, at + 4)?),
            (LOCAL_X2APIC, 16..) => cores.enabled += enabled(bytes(memory, at + 8)?),
            (LOCAL_APIC_ADDRESS, 12..) => {
                cores.local_apic = u64::from_le_bytes(bytes(memory, at + 4)?);
            }
            _ => {}
        }
        at = next;
    }
    (cores.enabled > 0).then_some(cores)
}

/// Bit 0 of an entry's flags. Bit 1 is for cores that may be hot-plugged.
fn enabled(flags: [u8; 4]) -> usize {
    usize::from(flags[0] & 1)
}

fn bytes<const N: usize>(memory: &impl Memory, address: u64) -> Option<[u8; N]> {
    let mut into = [0; N];
    memory.read(address, &mut into).then_some(into)
}

/// The header length of every table but the root pointer.
const HEADER_BYTES: u64 = 36;
/// Maximum length of a table: one with thousands of cores is smaller.
const TABLE_BYTES_MAX: u64 = 1 << 20;
/// Kinds of entries in the MADT.
const LOCAL_APIC: u8 = 0;
const LOCAL_APIC_ADDRESS: u8 = 5;
const LOCAL_X2APIC: u8 = 9;

#[cfg(test)]
mod tests;
