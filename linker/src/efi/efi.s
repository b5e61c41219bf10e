# The firmware calls this with rcx = image handle, rdx = system table (Microsoft's calling
# convention). It applies the ELF relocations, using only registers that a callee may change.
.text
.globl efi_start
efi_start:
    cli                         # firmware.rs: on only while the firmware runs
    lea _base(%rip), %r10
    lea _rela(%rip), %r11
    lea _erela(%rip), %rax
1:  cmp %rax, %r11
    jae 3f
    cmpl $8, 8(%r11)            # R_X86_64_RELATIVE is the only kind that occurs
    jne 2f
    mov (%r11), %r8
    mov 16(%r11), %r9
    add %r10, %r9
    mov %r9, (%r10,%r8)
2:  add $24, %r11
    jmp 1b
3:  sub $40, %rsp               # 32 bytes of home space for the callee, 8 for alignment
    call efi_main
    add $40, %rsp
    sti
    ret

# jump(start information, entry point), from a copy of this code below 4 GiB: leaves long mode as a
# PVH loader does. Paging is off then, and nothing of the firmware's CR4 is left: its protections
# (SMEP and the like) are not for the image, all of whose pages belong to ring 3.
.globl jump_start, jump_end
jump_start:
    cli
    mov %edi, %ebx
    mov %esi, %ebp
    lea 8f(%rip), %rax
    mov %rax, 9f+2(%rip)
    lgdt 9f(%rip)
    lea 1f(%rip), %rax
    pushq $0x08
    push %rax
    lretq
.code32
1:  mov $0x10, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov %cr0, %eax
    and $0x7fffffff, %eax
    mov %eax, %cr0
    mov $0xC0000080, %ecx       # EFER: long mode, and no-execute bits
    rdmsr
    and $0xfffff6ff, %eax
    wrmsr
    xor %eax, %eax
    mov %eax, %cr4
    jmp *%ebp
.code64
.balign 8
8:  .quad 0
    .quad 0x00CF9B000000FFFF    # 0x08 code, 32 bits
    .quad 0x00CF93000000FFFF    # 0x10 data
9:  .short 23
    .quad 0
jump_end:
