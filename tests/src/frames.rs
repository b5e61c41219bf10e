//! How much of the stack a program's functions take, read from its machine code: also those that
//! this CPU cannot run.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Bytes that a loop which touches a large frame page by page moves the stack pointer by.
const PAGE: isize = 4096;
/// Bytes that a call pushes.
const CALL: usize = 8;

/// Functions of an x86-64 program by their mangled names.
#[derive(Debug)]
pub struct Frames(HashMap<String, Function>);

#[derive(Debug, Default)]
struct Function {
    /// What it takes of the stack itself.
    bytes: usize,
    /// Functions that it calls or jumps to by their addresses.
    calls: Vec<String>,
    /// Whether it calls by pointer.
    calls_pointer: bool,
    /// Whether the last instruction copied the stack pointer.
    copies_pointer: bool,
}

/// The deepest of some functions.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deepest {
    /// With all that it calls.
    pub bytes: usize,
    /// Mangled name of the function.
    pub name: String,
}

impl Frames {
    /// Reads a program with symbols, by binutils' disassembler.
    ///
    /// # Panics
    /// If no disassembler is installed (Debian: binutils), or it fails.
    #[must_use]
    pub fn of_program(path: &Path) -> Self {
        let mut objdump = Command::new("objdump")
            .args(["-d", "--no-show-raw-insn"])
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("objdump (Debian: binutils) runs");
        let text = BufReader::new(objdump.stdout.take().expect("a pipe"));
        let mut all = HashMap::new();
        let (mut name, mut function) = (String::new(), Function::default());
        for line in text.lines() {
            let line = line.expect("names are ASCII");
            if let Some(next) = line
                .strip_suffix(">:")
                .and_then(|line| line.split_once('<'))
            {
                all.insert(
                    core::mem::replace(&mut name, next.1.to_owned()),
                    core::mem::take(&mut function),
                );
            } else if let Some((_, instruction)) = line.split_once(":\t") {
                function.add(instruction, &name);
            }
        }
        all.insert(name, function);
        assert!(objdump.wait().expect("objdump ends").success());
        Self(all)
    }

    /// The deepest of the functions whose names contain `part`, with all that they call. What they
    /// call by pointer has a name that contains `by_pointer`, or belongs to the C library.
    ///
    /// # Panics
    /// If no function has either name.
    #[must_use]
    pub fn deepest(&self, part: &str, by_pointer: &str) -> Deepest {
        let pointers = self.deepest_with(by_pointer, 0).bytes;
        self.deepest_with(part, pointers)
    }

    /// The smallest frame of the functions whose names contain `part`, without what they call.
    ///
    /// # Panics
    /// If no function has that name.
    #[must_use]
    pub fn smallest(&self, part: &str) -> usize {
        let named = self.0.iter().filter(|(name, _)| name.contains(part));
        let frames = named.map(|(_, function)| function.bytes);
        frames.min().expect("a function of that name")
    }

    fn deepest_with(&self, part: &str, pointers: usize) -> Deepest {
        let mut known = HashMap::new();
        let names = self.0.keys().filter(|name| name.contains(part));
        let depths = names.map(|name| Deepest {
            bytes: self.depth(name, pointers, &mut known),
            name: name.clone(),
        });
        depths.max().expect("a function of that name")
    }

    /// Stack bytes of `name` and all that it calls; `pointers`: the maximum of what is called by pointer.
    fn depth(&self, name: &str, pointers: usize, known: &mut HashMap<String, usize>) -> usize {
        let function = match self.0.get(name) {
            Some(function) if !panics(name) => function,
            _ => return 0,
        };
        if let Some(depth) = known.get(name) {
            return *depth;
        }
        // Ends cycles: only panicking code is recursive.
        known.insert(name.to_owned(), function.bytes);
        let calls = function.calls.iter();
        let deepest = calls.map(|name| self.depth(name, pointers, known)).max();
        let by_pointer = if function.calls_pointer { pointers } else { 0 };
        let depth = function.bytes + CALL + deepest.unwrap_or(0).max(by_pointer);
        known.insert(name.to_owned(), depth);
        depth
    }
}

/// Whether a function of the standard library is called only to panic.
fn panics(name: &str) -> bool {
    ["panick", "_fail", "expect_failed", "unwrap_failed"]
        .iter()
        .any(|part| name.contains(part))
}

impl Function {
    /// An instruction as objdump writes it. Compilers move the stack pointer down at the start of a
    /// function only, so what all instructions move it down by is the frame.
    fn add(&mut self, instruction: &str, name: &str) {
        let (operation, operands) = instruction.split_once(' ').unwrap_or((instruction, ""));
        let operands = operands.trim();
        match operation {
            "addr32" | "bnd" | "data16" | "notrack" | "rex.W" => self.add(operands, name),
            "push" => self.bytes += CALL,
            "sub" => self.bytes += constant(operands, "%rsp").max(0).unsigned_abs(),
            "add" | "and" => self.bytes += constant(operands, "%rsp").min(0).unsigned_abs(),
            "call" | "jmp" if operands.starts_with('*') => {
                self.calls_pointer |= operation == "call";
            }
            "call" | "jmp" => {
                let target = operands
                    .split_once('<')
                    .map(|(_, to)| to.trim_end_matches('>'));
                let other = target.filter(|target| !target.contains('+') && *target != name);
                self.calls.extend(other.map(str::to_owned));
            }
            _ => {}
        }
        // A large frame is touched page by page, in a loop that ends at a copy of the pointer.
        if self.copies_pointer && operation == "sub" {
            self.bytes += constant(operands, "%r11").max(PAGE).unsigned_abs() - PAGE.unsigned_abs();
        }
        self.copies_pointer = operation == "mov" && operands == "%rsp,%r11";
    }
}

/// The constant of an instruction on `register`; 0 if it has none, or another register.
fn constant(operands: &str, register: &str) -> isize {
    let constant = operands
        .strip_suffix(register)
        .and_then(|rest| rest.strip_suffix(','));
    let digits = constant.and_then(|constant| constant.strip_prefix("$0x"));
    let number = digits.and_then(|digits| usize::from_str_radix(digits, 16).ok());
    number.map_or(0, usize::cast_signed)
}
