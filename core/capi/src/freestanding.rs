//! What a library needs where there is nothing else: the C functions that compiled Rust calls by
//! name, and the panic message. All symbols are weak, so that a host's own take precedence.

use core::arch::global_asm;
use core::fmt::{self, Write as _};
use core::panic::PanicInfo;

// memcpy and memset use the CPU's string instructions, which are fast for long blocks; memmove
// copies backwards if the target begins inside the source.
global_asm!(
    ".weak memcpy, memmove, memset, memcmp, bcmp, sluice_core_panic",
    ".weak rust_eh_personality, _Unwind_Resume",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    "memmove:",
    "mov rax, rdi",
    "mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "mov rcx, rdx",
    "jb 2f",
    "rep movsb",
    "ret",
    "2: lea rdi, [rdi + rdx - 1]",
    "lea rsi, [rsi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    "memcmp:",
    "bcmp:",
    "xor eax, eax",
    "xor ecx, ecx",
    "3: cmp rcx, rdx",
    "je 4f",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx r8d, byte ptr [rsi + rcx]",
    "inc rcx",
    "sub eax, r8d",
    "je 3b",
    "4: ret",
    // A host that wants the message defines this function; it must not return.
    "sluice_core_panic: ud2",
    // The precompiled core library was built for unwinding and refers to these symbols; they are
    // never called.
    "rust_eh_personality:",
    "_Unwind_Resume: ud2",
);

unsafe extern "C" {
    fn sluice_core_panic(message: *const u8, len: usize) -> !;
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = Text {
        bytes: [0; 256],
        len: 0,
    };
    // A message that is too long is truncated.
    let _written = write!(text, "{info}");
    // SAFETY: the text is never freed, as the function does not return.
    unsafe { sluice_core_panic(text.bytes.as_ptr(), text.len) }
}

struct Text {
    bytes: [u8; 256],
    len: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let n = room.len().min(text.len());
        room[..n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}
