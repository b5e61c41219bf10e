//! Core stands alone: the image links without std, and a leak of std or alloc is noticed.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use sluice_tests::measured;
use sluice_tests::metal::{IMAGE, TARGET, cargo, text_of, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn the_image_stands_alone() {
    let image = Elf::read(&IMAGE);
    // The names were not stripped, so an empty list below means something.
    for name in ["_start32", "kmain", "trap_report"] {
        assert!(
            image.defined.iter().any(|symbol| symbol == name),
            "{name} is not in the image"
        );
    }
    assert_eq!(image.undefined, Vec::<String>::new());
    let foreign: Vec<_> = image
        .defined
        .iter()
        .filter(|name| is_std_or_alloc(name))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    // Vector code is there: a soft-float accident would be right, and a hundred times slower.
    let vectors = vector_instructions(&IMAGE);
    assert!(
        vectors > 5000,
        "{vectors} instructions on ymm or zmm registers"
    );
    // No PT_DYNAMIC and no PT_INTERP: nothing is there to load a library.
    // Code, constants, data.
    assert_eq!(image.segment_kinds, [PT_LOAD, PT_LOAD, PT_LOAD, PT_NOTE]);
}

/// What a loader reads of the image, and how much of it is code of ours.
#[test]
fn the_image_grows_no_further() {
    // 1.5 MiB without a model.
    const BYTES_MAX: u64 = 3 << 19;
    let image = Elf::read(&IMAGE);
    let part = |crates: &str| {
        let mine = image.functions.iter().filter(|(name, _)| {
            // The first crate that a name has: what it makes of others' generics is its own.
            let crates_in = ["sluice_kernels", "sluice_core", "sluice_metal"];
            let first = crates_in
                .iter()
                .filter_map(|known| Some((name.find(known)?, *known)))
                .min();
            first.map_or("other", |(_, known)| known) == crates
        });
        mine.map(|(_, len)| len).sum::<u64>() / 1024
    };
    measured(&format!(
        "image {} KiB without symbols; code: core {} KiB, kernels {} KiB, metal {} KiB, generics \
         and compiler's {} KiB",
        image.file_bytes / 1024,
        part("sluice_core"),
        part("sluice_kernels"),
        part("sluice_metal"),
        part("other"),
    ));
    assert!(part("sluice_core") > 50);
    assert!(
        image.file_bytes <= BYTES_MAX,
        "the image is {} bytes long, {BYTES_MAX} are allowed",
        image.file_bytes
    );
}

#[test]
fn std_symbols_are_recognised() {
    for name in [
        "_ZN3std2io5Write9write_all17h0123456789abcdefE",
        "_RNvNtCs4fqI2P2rA04_3std2io4copy",
    ] {
        assert!(is_std_or_alloc(name), "{name}");
    }
    for name in [
        "_ZN4core5alloc6layout6Layout3new17h0E",
        "_RNvNtNtCs1_4core5alloc6layout3new",
    ] {
        assert!(!is_std_or_alloc(name), "{name}");
    }
}

/// The control of the link test: the same freestanding binary is accepted as it is, and refused
/// as soon as one dependency brings std or alloc with it.
#[test]
fn a_leak_of_std_or_alloc_is_noticed() {
    let clean = check_freestanding("clean", "");
    assert!(clean.status.success(), "{}", text_of(&clean));

    let leaks = [
        (
            "std",
            "error[E0152]: found duplicate lang item `panic_impl`",
        ),
        ("alloc", "error: no global memory allocator found"),
    ];
    for (leaked, error) in leaks {
        let output = check_freestanding(leaked, &format!("extern crate {leaked};\n"));
        assert!(!output.status.success(), "{leaked} went unnoticed");
        assert!(text_of(&output).contains(error), "{}", text_of(&output));
    }
}

#[test]
fn core_and_kernels_name_no_std_and_no_alloc() {
    for member in ["core", "kernels"] {
        let sources = rust_files(&workspace().join(member).join("src"));
        let root = sources
            .iter()
            .find(|path| path.ends_with("lib.rs"))
            .expect("a crate root");
        let root_text = fs::read_to_string(root).expect("readable");
        // Without condition: `cfg_attr(not(test), no_std)` would let std in for the tests.
        assert!(
            root_text.lines().any(|line| line.trim() == "#![no_std]"),
            "{member}"
        );
        for path in &sources {
            let text = fs::read_to_string(path).expect("readable");
            let found = extern_crates_outside_tests(&text);
            // `tests.rs` and the files in a folder `tests`; both are declared under cfg(test).
            let inside = path
                .strip_prefix(workspace())
                .expect("a file of the workspace");
            let mut parts = inside.iter().filter_map(|part| Path::new(part).file_stem());
            let test_file = parts.any(|stem| stem == "tests");
            assert!(
                found.is_empty() || test_file,
                "{}: lines {found:?}",
                path.display()
            );
        }
    }
}

#[test]
fn extern_crates_are_recognised() {
    let source = "//! extern crate std in a comment\n\
        extern crate alloc;\n\
        #[cfg(test)]\n\
        extern crate std;\n\
        #[cfg(feature = \"x\")]\n\
        pub extern crate std as s;\n\
        extern crate libm;\n\
        #[cfg(any(test, target_os = \"linux\"))]\n\
        extern crate std;\n\
        #[cfg(all(test, target_arch = \"x86_64\"))]\n\
        mod tests {\n\
        \textern crate alloc;\n\
        }\n";
    assert_eq!(extern_crates_outside_tests(source), [2, 6, 9]);
}

/// Checks a throw-away `no_std` binary that depends on core and on a crate with `source` in it.
/// The errors of interest are found without linking, so the linker's needs do not matter here.
fn check_freestanding(name: &str, source: &str) -> Output {
    const MAIN: &str = "#![no_std]\n#![no_main]\nuse leak as _;\nuse sluice_core as _;\n\
        #[panic_handler]\n\
        fn panic(_: &core::panic::PanicInfo<'_>) -> ! {\n    loop {}\n}\n";
    let folder = scratch("leak").join(name);
    let core = workspace().join("core");
    let manifest = format!(
        "[package]\nname = \"probe\"\nedition = \"2024\"\n[workspace]\n\
         [profile.dev]\npanic = \"abort\"\n\
         [dependencies]\nleak.path = \"leak\"\nsluice-core.path = {:?}\n",
        core.to_str().expect("the checkout's path is UTF-8")
    );
    for (file, text) in [
        ("Cargo.toml", manifest.as_str()),
        ("src/main.rs", MAIN),
        (
            "leak/Cargo.toml",
            "[package]\nname = \"leak\"\nedition = \"2024\"\n",
        ),
        ("leak/src/lib.rs", &format!("#![no_std]\n{source}")),
    ] {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().expect("a file in a folder")).expect("writable");
        fs::write(path, text).expect("writable");
    }
    // The workspace's versions, which are downloaded already: this cargo stays off the network.
    fs::copy(workspace().join("Cargo.lock"), folder.join("Cargo.lock")).expect("writable");
    cargo()
        .args(["check", "--offline", "--target", TARGET, "--target-dir"])
        .arg(scratch("leak").join("target"))
        .current_dir(folder)
        .output()
        .expect("cargo runs")
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("freestanding")
        .join(name)
}

/// Instructions on ymm and zmm registers, by binutils' disassembler.
fn vector_instructions(image: &Path) -> usize {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(image)
        .output()
        .expect("objdump (Debian: binutils) runs");
    assert!(output.status.success(), "{}", text_of(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let vector = |line: &&str| line.contains("%ymm") || line.contains("%zmm");
    text.lines().filter(vector).count()
}

/// Every `.rs` file below `folder`.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the checkout") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Numbers of the lines that name std or alloc as a crate, outside `#[cfg(test)]`. In this project a test module is the
/// last item of its file, so everything after its head is test.
fn extern_crates_outside_tests(source: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut previous = "";
    for (index, line) in source.lines().map(str::trim).enumerate() {
        let for_tests = previous == "#[cfg(test)]" || previous.starts_with("#[cfg(all(test, ");
        if for_tests && line.starts_with("mod tests {") {
            break;
        }
        let item = line.strip_prefix("pub ").unwrap_or(line);
        let name = item
            .strip_prefix("extern crate ")
            .and_then(|rest| rest.split([' ', ';']).next());
        if matches!(name, Some("std" | "alloc")) && !for_tests {
            found.push(index + 1);
        }
        previous = line;
    }
    found
}

/// Whether a mangled name belongs to std or alloc, in the old mangling or the v0 one.
fn is_std_or_alloc(symbol: &str) -> bool {
    ["_ZN3std", "_ZN5alloc"]
        .iter()
        .any(|prefix| symbol.starts_with(prefix))
        || symbol.starts_with("_R") && (symbol.contains("_3std") || symbol.contains("_5alloc"))
}

/// What the test asks of an ELF64 file. Source of the layout: System V ABI, chapters 4 and 5.
struct Elf {
    /// Names in the symbol table that have a definition.
    defined: Vec<String>,
    /// Names in the symbol table that have none.
    undefined: Vec<String>,
    /// `p_type` of each program header.
    segment_kinds: Vec<u64>,
    /// End of the last segment in the file: the length of a stripped file, without the names of sections.
    file_bytes: u64,
    /// Names and bytes of functions.
    functions: Vec<(String, u64)>,
}

impl Elf {
    fn read(path: &Path) -> Self {
        let file = fs::read(path).expect("the image was built");
        assert_eq!(file[..5], *b"\x7fELF\x02", "{}", path.display());
        let (segments, sections) = (number(&file, 32, 8), number(&file, 40, 8));
        let (segment_count, section_count) = (number(&file, 56, 2), number(&file, 60, 2));
        let segment_kinds = (0..segment_count).map(|i| number(&file, segments + i * 56, 4));
        let mut elf = Self {
            defined: vec![],
            undefined: vec![],
            segment_kinds: segment_kinds.collect(),
            file_bytes: (0..segment_count)
                .map(|i| segments + i * 56)
                .map(|header| number(&file, header + 8, 8) + number(&file, header + 32, 8))
                .max()
                .unwrap_or(0),
            functions: vec![],
        };
        for section in (0..section_count).map(|i| sections + i * 64) {
            if number(&file, section + 4, 4) != SHT_SYMTAB {
                continue;
            }
            let (symbols, len_bytes) = (
                number(&file, section + 24, 8),
                number(&file, section + 32, 8),
            );
            let names_header = sections + number(&file, section + 40, 4) * 64;
            let names = number(&file, names_header + 24, 8);
            for symbol in (symbols..symbols + len_bytes).step_by(24) {
                let name = c_string(&file, names + number(&file, symbol, 4));
                let is_undefined = number(&file, symbol + 6, 2) == 0;
                if number(&file, symbol + 4, 1) & 15 == STT_FUNC {
                    let len_bytes = number(&file, symbol + 16, 8);
                    elf.functions.push((name.clone(), len_bytes));
                }
                match (name.is_empty(), is_undefined) {
                    (true, _) => {} // the first symbol, and sections
                    (false, true) => elf.undefined.push(name),
                    (false, false) => elf.defined.push(name),
                }
            }
        }
        elf
    }
}

const PT_LOAD: u64 = 1;
const PT_NOTE: u64 = 4;
const SHT_SYMTAB: u64 = 2;
const STT_FUNC: u64 = 2;

/// The little-endian number in `len_bytes` bytes at `offset_bytes`.
fn number(file: &[u8], offset_bytes: u64, len_bytes: usize) -> u64 {
    let start = usize::try_from(offset_bytes).expect("an offset in a file in memory");
    file[start..start + len_bytes]
        .iter()
        .rev()
        .fold(0, |n, &byte| n << 8 | u64::from(byte))
}

fn c_string(file: &[u8], offset_bytes: u64) -> String {
    let start = usize::try_from(offset_bytes).expect("an offset in a file in memory");
    let bytes: Vec<u8> = file[start..]
        .iter()
        .copied()
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8(bytes).expect("symbol names are UTF-8")
}
