# From a 32-bit entry to Rust in ring 3.
#
# PVH (and later multiboot2) arrives here in 32-bit protected mode without paging: ebx points at the
# boot information, eax holds multiboot2's magic (and nothing dependable under PVH).
#
# Only integer instructions are used, and Rust never runs in ring 0: a nested KVM without VMX or SVM
# executes ring 0 in its instruction emulator, which knows no SSE, and ring 3 natively. Elsewhere it
# costs nothing. Every page is writable from ring 3, so this protects nobody from anything.

# ---- PVH entry point ---------------------------------------------------------------------------
.section .note.Xen, "a", @note
.balign 4
    .long 4                             # name size
    .long 4                             # descriptor size
    .long 18                            # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long _start32

.section .boot, "ax"
.code32
.globl _start32
_start32:
    cli
    cld
    mov %eax, %esi                      # multiboot2 magic
    mov %ebx, %edi                      # boot information
    mov $boot_stack_top, %esp

# Identity map, pages user-accessible (the 7s and the 4 in 0x87). QEMU's qemu64 and Nehalem have no
# 1 GiB pages, so both sizes are needed. The tables lie in .bss, which the loader has zeroed.
    mov $0x80000000, %eax
    push %edi
    push %esi
    cpuid
    cmp $0x80000001, %eax
    jb 1f
    mov $0x80000001, %eax
    cpuid
    bt $26, %edx                        # 1 GiB pages
    jc 3f
1:  xor %ecx, %ecx                      # 2 MiB pages: 64 directories map 64 GiB
    mov $pd_tables, %ebp
2:  mov %ecx, %eax
    shl $21, %eax
    or $0x87, %eax                      # present, writable, user, large
    mov %eax, (%ebp,%ecx,8)
    mov %ecx, %eax
    shr $11, %eax
    mov %eax, 4(%ebp,%ecx,8)
    inc %ecx
    cmp $(64*512), %ecx
    jne 2b
    xor %ecx, %ecx
4:  mov %ecx, %eax
    shl $12, %eax
    add $(pd_tables + 7), %eax
    mov %eax, pdpt(,%ecx,8)
    inc %ecx
    cmp $64, %ecx
    jne 4b
    jmp 5f
3:  xor %ecx, %ecx                      # 1 GiB pages: one table maps 512 GiB
6:  mov %ecx, %eax
    shl $30, %eax
    or $0x87, %eax
    mov %eax, pdpt(,%ecx,8)
    mov %ecx, %eax
    shr $2, %eax
    mov %eax, pdpt+4(,%ecx,8)
    inc %ecx
    cmp $512, %ecx
    jne 6b
5:  mov $(pdpt + 7), %eax
    mov %eax, pml4
    mov $pml4, %eax
    mov %eax, %cr3

    mov %cr4, %eax
    or $0x620, %eax                     # PAE, OSFXSR, OSXMMEXCPT
    mov %eax, %cr4
    mov $0xC0000080, %ecx               # EFER
    rdmsr
    or $0x100, %eax                     # long mode
    wrmsr
    mov %cr0, %eax
    and $0x9ffffff3, %eax               # clear CD, NW (caches on), TS, EM (no SSE traps)
    or $0x80010033, %eax                # PG, WP, NE, ET, MP, PE
    mov %eax, %cr0

# Switch on as much of x87, SSE, AVX and AVX-512 state as the CPU has. AMX would be bits 17 and 18.
    mov $1, %eax
    cpuid
    bt $26, %ecx                        # XSAVE
    jnc 7f
    mov %cr4, %eax
    or $0x40000, %eax                   # OSXSAVE
    mov %eax, %cr4
    mov $0xD, %eax
    xor %ecx, %ecx
    cpuid
    and $0xE7, %eax
    mov %eax, %ebp
    and $0xE0, %ebp                     # xsetbv faults unless the three AVX-512 bits go together
    cmp $0xE0, %ebp
    je 8f
    and $0x07, %eax
8:  xor %edx, %edx
    xor %ecx, %ecx
    xsetbv
7:  pop %esi
    pop %edi
    lgdt gdt_ptr
    ljmp $0x08, $start64

.balign 8
gdt:
    .quad 0
    .quad 0x00AF9B000000FFFF            # 0x08 code, ring 0
    .quad 0x00CF93000000FFFF            # 0x10 data, ring 0
    .quad 0
    .quad 0x00CFFB000000FFFF            # 0x20 32-bit code, ring 3 (unused; SYSRET's order)
    .quad 0x00CFF3000000FFFF            # 0x28 data, ring 3
    .quad 0x00AFFB000000FFFF            # 0x30 code, ring 3
gdt_tss:
    .quad 0, 0                          # 0x38 TSS, filled in below
gdt_ptr:
    .short 71
    .long gdt

.code64
start64:
    mov $0x10, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    xor %eax, %eax
    mov %eax, %fs
    mov %eax, %gs
    mov $stack_top, %rsp
    xchg %edi, %esi                     # kmain(edi = magic, esi = information)
    mov %edi, %edi
    mov %esi, %esi
    xor %ebp, %ebp

# TSS: the stack that traps switch to (so the red zone of the interrupted code survives), and an
# all-zero I/O bitmap, so that ring 3 may use every port. IOPL 3 is not honoured by every KVM; the
# bitmap is.
    mov $tss, %eax
    mov $gdt_tss, %rbx
    movw $(104+8192), (%rbx)
    mov %ax, 2(%rbx)
    shr $16, %eax
    mov %al, 4(%rbx)
    movb $0x89, 5(%rbx)
    mov %ah, 7(%rbx)
    movq $boot_stack_top, tss+4         # RSP0
    movw $104, tss+102                  # where the bitmap starts
    movb $0xff, iobitmap+8192           # the byte after it must be all ones
    mov $0x38, %eax
    ltr %ax

# IDT: 32 interrupt gates into ring 0. External interrupts stay off for ever.
    xor %ecx, %ecx
    mov $idt, %rbx
1:  lea trap_stubs(,%rcx,8), %eax
    mov %ax, (%rbx)
    movw $8, 2(%rbx)
    movw $0x8E00, 4(%rbx)
    shr $16, %eax
    mov %ax, 6(%rbx)
    movl $0, 8(%rbx)
    add $16, %rbx
    inc %ecx
    cmp $32, %ecx
    jne 1b
    lidt idt_ptr

# Leave for ring 3. The stack is 8 below a multiple of 16, as after a call.
    mov $0x2b, %eax
    mov %eax, %ds
    mov %eax, %es
    pushq $0x2b
    pushq $stack_top - 8
    pushq $0x0002                       # flags: interrupts off, IOPL 0
    pushq $0x33
    pushq $kmain
    iretq
9:  hlt
    jmp 9b

# Traps go back to ring 3 as trap_report(vector, rip, cr2, error code): printing is Rust, and Rust
# is not run in ring 0.
.balign 8
trap_stubs:
.set i, 0
.rept 32
    .balign 8
    push $i
    jmp trap_common
    .set i, i+1
.endr
trap_common:
    pop %rdi
    xor %ecx, %ecx
    cmp $8, %edi                        # vectors 8, 10 to 14 and 17 push an error code
    je 1f
    cmp $17, %edi
    je 1f
    cmp $10, %edi
    jb 2f
    cmp $14, %edi
    ja 2f
1:  pop %rcx
2:  pop %rsi
    mov %cr2, %rdx
    pushq $0x2b
    pushq $trap_stack_top - 8
    pushq $0x0002
    pushq $0x33
    pushq $trap_report
    iretq
.balign 8
idt_ptr:
    .short 511
    .quad idt

.section .bss.boot, "aw", @nobits
.balign 4096
pml4: .skip 4096
pdpt: .skip 4096
pd_tables: .skip 4096*64
boot_stack: .skip 4096
boot_stack_top:
idt: .skip 512
tss: .skip 104
iobitmap: .skip 8192
.skip 8
.balign 16
trap_stack: .skip 8192
trap_stack_top:
stack: .skip 256*1024                   # no guard page below it: everything is mapped
.globl stack_top
stack_top:
