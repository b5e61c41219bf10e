use super::*;
extern crate std;
use std::vec;
use std::vec::Vec;

/// Memory from address 0 on.
struct Ram(Vec<u8>);

impl Memory for Ram {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let start = usize::try_from(address).unwrap_or(usize::MAX);
        let piece = self.0.get(start..).and_then(|rest| rest.get(..into.len()));
        piece.map(|piece| into.copy_from_slice(piece)).is_some()
    }
}

impl Ram {
    fn put(&mut self, address: usize, bytes: &[u8]) {
        self.0[address..address + bytes.len()].copy_from_slice(bytes);
    }

    /// A table with its header; the byte at 9 makes its sum 0.
    fn table(&mut self, address: usize, signature: &[u8; 4], body: &[u8]) {
        let len = 36 + body.len();
        let mut table = vec![0; 36];
        table[..4].copy_from_slice(signature);
        table[4..8].copy_from_slice(&u32::try_from(len).expect("small").to_le_bytes());
        table.extend(body);
        table[9] = table
            .iter()
            .fold(0, |sum: u8, byte| sum.wrapping_sub(*byte));
        self.put(address, &table);
    }

    fn root(&mut self, address: usize, revision: u8, rsdt: u32, xsdt: u64) {
        let mut pointer = [0; 36];
        pointer[..8].copy_from_slice(b"RSD PTR ");
        pointer[15] = revision;
        pointer[16..20].copy_from_slice(&rsdt.to_le_bytes());
        pointer[24..32].copy_from_slice(&xsdt.to_le_bytes());
        pointer[8] = pointer[..20]
            .iter()
            .fold(0, |sum: u8, byte| sum.wrapping_sub(*byte));
        self.put(address, &pointer);
    }
}

fn local_apic(id: u8, flags: u8) -> [u8; 8] {
    [0, 8, id, id, flags, 0, 0, 0]
}

fn x2apic(flags: u8) -> [u8; 16] {
    [9, 16, 0, 0, 1, 1, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0]
}

const APIC: u32 = 0xFEE0_0000;

/// Entries of all kinds: 3 cores, and entries that are not usable cores.
fn madt() -> Vec<u8> {
    let mut body = APIC.to_le_bytes().to_vec();
    body.extend([1, 0, 0, 0]);
    body.extend(local_apic(0, 1));
    body.extend(local_apic(1, 0)); // not present
    body.extend(local_apic(2, 2)); // may be hot-plugged
    body.extend(local_apic(4, 1));
    body.extend([1, 12, 0, 0, 0, 0, 0xC0, 0xFE, 0, 0, 0, 0]); // an I/O APIC
    body.extend(x2apic(1));
    body.extend(x2apic(0));
    body.extend([4, 6, 0xFF, 0, 0, 1]); // NMI
    body
}

fn machine(madt: &[u8]) -> Ram {
    let mut ram = Ram(vec![0; 0x10_0000]);
    ram.table(0x5000, b"APIC", madt);
    ram.table(0x4000, b"FACP", &[7; 100]);
    let list = [0x4000_u32, 0x5000].map(u32::to_le_bytes);
    ram.table(0x3000, b"RSDT", list.as_flattened());
    // The long list has a table that is not mapped, and half of one more entry at its end.
    let mut list = [0x7FFF_FFFF_FFFF_0000_u64, 0x4000, 0x5000]
        .map(u64::to_le_bytes)
        .as_flattened()
        .to_vec();
    list.extend([0, 0x50, 0, 0]);
    ram.table(0x2000, b"XSDT", &list);
    ram.root(0x1000, 2, 0x3000, 0x2000);
    ram
}

const FOUND: Option<Cores> = Some(Cores {
    enabled: 3,
    local_apic: APIC as u64,
});

#[test]
fn cores_of_every_package_are_counted() {
    let mut ram = machine(&madt());
    assert_eq!(cores(&ram, Some(0x1000)), FOUND);
    // By the list of short addresses, if it is the only one.
    ram.root(0x1000, 0, 0x3000, 0);
    assert_eq!(cores(&ram, Some(0x1000)), FOUND);
    ram.root(0x1000, 2, 0x3000, 0x4000);
    assert_eq!(cores(&ram, Some(0x1000)), FOUND);
    let mut moved = madt();
    moved.extend([5, 12, 0, 0, 0, 0, 0, 0xFD, 0, 0, 0, 0]);
    let found = cores(&machine(&moved), Some(0x1000)).map(|cores| cores.local_apic);
    assert_eq!(found, Some(0xFD00_0000));
}

#[test]
fn the_root_is_found_where_a_bios_leaves_it() {
    for place in [0xE_0000, 0xF_5A40, 0xF_FFD0, 0x9_FC00, 0x9_FFD0] {
        let mut ram = machine(&madt());
        ram.put(0x1000, &[0; 36]);
        assert_eq!(cores(&ram, None), None);
        ram.put(0x40E, &0x9FC0_u16.to_le_bytes());
        ram.root(place, 2, 0x3000, 0x2000);
        assert_eq!(cores(&ram, None), FOUND, "{place:#x}");
        // The loader's address is used only if a valid root pointer is there.
        assert_eq!(cores(&ram, Some(0x1000)), FOUND, "{place:#x}");
        assert_eq!(cores(&ram, Some(u64::MAX - 10)), FOUND, "{place:#x}");
        ram.root(place + 8, 2, 0x3000, 0x2000);
        ram.put(place, &[0; 8]);
        assert_eq!(cores(&ram, None), None, "{place:#x}");
    }
}

#[test]
fn tables_that_are_not_sound_are_none() {
    for (at, what) in [
        (0x1000, "the root's name"),
        (0x1009, "the root's sum"),
        (0x5000, "the name"),
        (0x5005, "the length"),
        (0x5020, "the sum"),
    ] {
        let mut ram = machine(&madt());
        ram.0[at] ^= 1;
        assert_eq!(cores(&ram, Some(0x1000)), None, "{what}");
    }
    // Neither list is valid: no table is found.
    let mut ram = machine(&madt());
    ram.0[0x2010] ^= 1;
    assert_eq!(cores(&ram, Some(0x1000)), FOUND);
    ram.0[0x3010] ^= 1;
    assert_eq!(cores(&ram, Some(0x1000)), None);

    let head = [0, 0, 0xE0, 0xFE, 0, 0, 0, 0];
    let with = |entries: &[u8]| {
        let body = [&head[..], &local_apic(0, 1), entries].concat();
        cores(&machine(&body), Some(0x1000)).map(|cores| cores.enabled)
    };
    assert_eq!(with(&[]), Some(1));
    assert_eq!(with(&[0, 0, 1, 1]), None, "an entry of no length");
    assert_eq!(with(&[0, 8, 1, 1]), None, "an entry beyond the end");
    assert_eq!(with(&[0, 6, 1, 1, 1, 0]), Some(1), "an entry that is short");
    assert_eq!(with(&[0x80]), Some(1), "half an entry");
    assert_eq!(cores(&machine(&head), Some(0x1000)), None, "no core");
    assert_eq!(cores(&machine(&[]), Some(0x1000)), None, "no address");
}

#[test]
fn any_bytes_are_read_to_an_end() {
    let mut state = 1_u64;
    let mut draw = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(state >> 33).expect("31 bits") % n
    };
    for _ in 0..2000 {
        let mut ram = machine(&madt());
        for _ in 0..1 + draw(8) {
            let place = [0x1000, 0x2000, 0x3000, 0x5000][draw(4)] + draw(120);
            ram.0[place] = u8::try_from(draw(256)).expect("a byte");
        }
        // Sums are corrected, so that the fields after them are read.
        for place in [0x2000, 0x3000, 0x5000] {
            let len = usize::from(ram.0[place + 4]);
            ram.0[place + 9] = 0;
            let sum = ram.0[place..place + len.max(10)]
                .iter()
                .fold(0, |sum: u8, byte| sum.wrapping_sub(*byte));
            ram.0[place + 9] = sum;
        }
        let n = cores(&ram, Some(0x1000)).map_or(1, |cores| cores.enabled);
        assert!((1..1 << 17).contains(&n));
    }
}
