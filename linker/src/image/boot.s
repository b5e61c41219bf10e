# From a 32-bit entry to Rust in ring 3, on the first core and on the others.
#
# PVH and multiboot2 arrive here in 32-bit protected mode without paging: ebx points at the boot
# information, eax holds multiboot2's magic (under PVH it is not reliable). Other cores arrive
# at ap_trampoline in real mode, when the first one sends them there (smp.rs).
#
# Only integer instructions are used, and Rust never runs in ring 0: a nested KVM without VMX or SVM
# executes ring 0 in its instruction emulator, which knows no SSE, and ring 3 natively. Elsewhere it
# costs nothing. It is no protection of one from the other: both use the same pages.
#
# Code cannot be written, and nothing else can be executed (image.ld keeps them on pages of their own).
#
# Memory is mapped one to one. Above that, at 511 GiB, each core has a window of 4 MiB for its
# stack, whose lower part is not mapped: an overflow faults instead of running into something.

.set CORES_MAX, 64                      # smp.rs says the same
.set STACKS, 0x7FC0000000               # 511 GiB; smp.rs says the same

# ---- PVH entry point ---------------------------------------------------------------------------
.section .note.Xen, "a", @note
.balign 4
    .long 4                             # name size
    .long 4                             # descriptor size
    .long 18                            # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long _start32

# ---- multiboot2 header -------------------------------------------------------------------------
.section .boot.header, "a"
.balign 8
mb2_start:
    .long 0xE85250D6                    # magic
    .long 0                             # i386 protected mode
    .long mb2_end - mb2_start
    .long -(0xE85250D6 + 0 + (mb2_end - mb2_start))
    .short 6, 0                         # tag: put modules on page boundaries
    .long 8
    .short 0, 0                         # end tag
    .long 8
mb2_end:

# ---- what every core does to itself ------------------------------------------------------------
# Paging, long mode and vector state. Uses no stack: the other cores share none yet.
.macro ENTER_LONG_MODE
    mov $pml4, %eax
    mov %eax, %cr3
    mov %cr4, %eax
    or $0x620, %eax                     # PAE, OSFXSR, OSXMMEXCPT
    mov %eax, %cr4
    mov $0xC0000080, %ecx               # EFER
    rdmsr
    or $0x100, %eax                     # long mode
    cmpl $0, no_execute
    je 8f
    or $0x800, %eax                     # no-execute bits
8:  wrmsr
    mov %cr0, %eax
    and $0x9ffffff3, %eax               # clear CD, NW (caches on), TS, EM (no SSE traps)
    or $0x80010033, %eax                # PG, WP, NE, ET, MP, PE
    mov %eax, %cr0

# As much of x87, SSE, AVX, AVX-512 and AMX state as the CPU has. xsetbv faults unless the three
# AVX-512 bits go together, and the two of AMX.
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
    and $0x600E7, %eax
    mov %eax, %ebp
    and $0xE0, %ebp
    cmp $0xE0, %ebp
    je 8f
    and $0x07, %eax                     # AMX without AVX-512 does not exist
8:  mov %eax, %ebp
    and $0x60000, %ebp
    cmp $0x60000, %ebp
    je 8f
    and $0xE7, %eax
8:  xor %edx, %edx
    xor %ecx, %ecx
    xsetbv
7:
.endm

.section .boot, "ax"
.code32
.globl _start32
_start32:
    cli
    cld
    mov %eax, %esi                      # multiboot2 magic
    mov %ebx, %edi                      # boot information

# Identity map, pages user-accessible (the 7s and the 4 in 0x87). QEMU's qemu64 and Nehalem have no
# 1 GiB pages, so both sizes are needed. The tables lie in .bss, which the loader has zeroed.
    mov $512, %ebp                      # 2 MiB pages that are needed: those of the first GiB
    mov $0x80000000, %eax
    cpuid
    cmp $0x80000001, %eax
    jb 1f
    mov $0x80000001, %eax
    cpuid
    bt $20, %edx                        # no-execute bits
    jnc 2f
    movl $0x80000000, no_execute
2:  bt $26, %edx                        # 1 GiB pages
    jc 3f
1:  mov $(64*512), %ebp                 # 64 directories map 64 GiB
3:  xor %ecx, %ecx
2:  mov %ecx, %eax
    shl $21, %eax
    or $0x87, %eax                      # present, writable, user, large
    mov %eax, pd_tables(,%ecx,8)
    mov %ecx, %eax
    shr $11, %eax
    or no_execute, %eax
    mov %eax, pd_tables+4(,%ecx,8)
    inc %ecx
    cmp %ebp, %ecx
    jne 2b
# The image's first 2 MiB in small pages: its code, then its constants, then what it writes.
    mov $_image_start, %eax
    xor %ecx, %ecx
1:  mov %eax, %ebx
    or $5, %ebx                         # present, user
    xor %edx, %edx
    cmp $_text_end, %eax
    jb 2f
    mov no_execute, %edx
    cmp $_rodata_end, %eax
    jb 2f
    or $2, %ebx                         # writable
2:  mov %ebx, pt_image(,%ecx,8)
    mov %edx, pt_image+4(,%ecx,8)
    add $4096, %eax
    inc %ecx
    cmp $512, %ecx
    jne 1b
    movl $(pt_image + 7), pd_tables+8
    movl $0, pd_tables+12
    cmp $512, %ebp
    je 3f
    xor %ecx, %ecx
4:  mov %ecx, %eax
    shl $12, %eax
    add $(pd_tables + 7), %eax
    mov %eax, pdpt(,%ecx,8)
    inc %ecx
    cmp $64, %ecx
    jne 4b
    jmp 5f
3:  movl $(pd_tables + 7), pdpt
    mov $1, %ecx                        # 1 GiB pages: one table maps 512 GiB
6:  mov %ecx, %eax
    shl $30, %eax
    or $0x87, %eax
    mov %eax, pdpt(,%ecx,8)
    mov %ecx, %eax
    shr $2, %eax
    or no_execute, %eax
    mov %eax, pdpt+4(,%ecx,8)
    inc %ecx
    cmp $512, %ecx
    jne 6b
# The window of stacks; the first core's is 128 pages of .bss at the top of its 4 MiB. smp.rs maps
# the others.
5:  movl $(pd_stacks + 7), pdpt+511*8
    movl $0, pdpt+511*8+4
    movl $(pt_stack + 7), pd_stacks+8
    mov $(stack + 7), %eax
    mov no_execute, %edx
    xor %ecx, %ecx
1:  mov %eax, pt_stack+384*8(,%ecx,8)
    mov %edx, pt_stack+384*8+4(,%ecx,8)
    add $4096, %eax
    inc %ecx
    cmp $128, %ecx
    jne 1b
    movl $(pdpt + 7), pml4
    ENTER_LONG_MODE
    lgdt gdt_ptr
    ljmp $0x08, $start64

# Written to: segments of tasks, and that they are in use.
.section .data.boot, "aw"
.balign 8
gdt:
    .quad 0
    .quad 0x00AF9B000000FFFF            # 0x08 code, ring 0
    .quad 0x00CF93000000FFFF            # 0x10 data, ring 0
    .quad 0x00CF9B000000FFFF            # 0x18 32-bit code, ring 0: other cores on their way
    .quad 0x00CFFB000000FFFF            # 0x20 32-bit code, ring 3 (unused; SYSRET's order)
    .quad 0x00CFF3000000FFFF            # 0x28 data, ring 3
    .quad 0x00AFFB000000FFFF            # 0x30 code, ring 3
gdt_tss:
    .skip 16*CORES_MAX                  # 0x38 a TSS for each core, filled in below
gdt_ptr:
    .short 55 + 16*CORES_MAX
    .long gdt

.section .boot, "ax"
.code32
# ---- other cores -------------------------------------------------------------------------------
# Copied to a page below 1 MiB, where a start-up interrupt finds them in real mode, at offset 0 of
# their code segment.
.balign 8
.globl ap_trampoline, ap_trampoline_end
.code16
ap_trampoline:
    cli
    cld
    mov %cs, %ax
    mov %ax, %ds
    lgdtl 9f - ap_trampoline
    mov %cr0, %eax
    or $1, %al
    mov %eax, %cr0
    ljmpl $0x18, $ap_start32
.balign 4
9:  .short 55 + 16*CORES_MAX
    .long gdt
ap_trampoline_end:

.code32
ap_start32:
    mov $0x10, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    ENTER_LONG_MODE
    ljmp $0x08, $ap_start64

.code64
ap_start64:
# Admission (smp.rs): the first to come is core 1, and the door may be closed meanwhile.
    mov ap_admitted, %eax
1:  cmp ap_limit, %eax
    jae 9f
    lea 1(%rax), %r8d
    lock cmpxchg %r8d, ap_admitted
    jne 1b
    mov %r8d, %edi                      # ap_main(core)
    mov $ap_main, %r9d
    jmp enter_ring3
9:  hlt
    jmp 9b

start64:
    movb $0xff, iobitmap+8192           # the byte after the bitmap must be all ones
# IDT: 32 interrupt gates into ring 0. External interrupts stay off.
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
    xchg %edi, %esi                     # kmain(edi = magic, esi = information)
    mov %edi, %edi
    mov %esi, %esi
    xor %r8d, %r8d                      # core 0
    mov $kmain, %r9d

# Core r8 leaves for the function at r9 in ring 3, with rdi and rsi as they are.
enter_ring3:
    mov $0x10, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    xor %eax, %eax
    mov %eax, %fs
    mov %eax, %gs
    xor %ebp, %ebp
    mov %r8, %rsp
    shl $9, %rsp
    add $ring0_stacks + 512, %rsp

# TSS: the stack that traps switch to (so the red zone of the interrupted code survives), and an
# all-zero I/O bitmap behind all TSSs, so that ring 3 may use every port. IOPL 3 is not honoured by
# every KVM; the bitmap is.
    imul $104, %r8, %rax
    add $tss, %rax
    mov %r8, %rbx
    shl $4, %rbx
    add $gdt_tss, %rbx
    mov $iobitmap + 8192, %ecx
    sub %eax, %ecx
    mov %cx, (%rbx)                     # limit
    mov %ax, 2(%rbx)
    mov %eax, %edx
    shr $16, %edx
    mov %dl, 4(%rbx)
    movb $0x89, 5(%rbx)
    mov %dh, 7(%rbx)
    mov %rsp, 4(%rax)                   # RSP0
    sub $8192, %ecx
    mov %cx, 102(%rax)                  # where the bitmap starts
    sub $gdt, %ebx                      # the selector
    ltr %bx
    lidt idt_ptr

# The stack is 8 below a multiple of 16, as after a call.
    mov %r8, %rcx
    shl $22, %rcx
    mov $STACKS + 0x400000 - 8, %rax
    add %rax, %rcx
    mov $0x2b, %eax
    mov %eax, %ds
    mov %eax, %es
    pushq $0x2b
    push %rcx
    pushq $0x0002                       # flags: interrupts off, IOPL 0
    pushq $0x33
    push %r9
    iretq

# Traps go back to ring 3 as trap_report(vector, rip, cr2, error code): printing is Rust, and Rust
# is not run in ring 0. The first core to trap reports; others halt. If the report itself traps, its
# core leaves QEMU without one (exit.rs).
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
    mov %rsp, %rbx
    sub $ring0_stacks, %rbx
    shr $9, %ebx
    inc %ebx                            # the core, from 1
    xor %eax, %eax
    lock cmpxchg %ebx, trap_owner
    je 3f
    cmp %ebx, %eax
    jne 9f
    lea 0x20(%rdi), %eax                # exit::TRAP
    mov $0xf4, %edx
    out %eax, %dx
9:  hlt
    jmp 9b
3:  xor %ecx, %ecx
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
.globl pd_stacks
pd_stacks: .skip 4096
pt_stack: .skip 4096
pt_image: .skip 4096
stack: .skip 128*4096                   # the first core's, seen through the window of stacks
ring0_stacks: .skip 512*CORES_MAX       # where traps land; a frame and a few words
idt: .skip 512
tss: .skip 104*CORES_MAX
iobitmap: .skip 8192
.skip 8
.balign 16
trap_stack: .skip 8192
trap_stack_top:
trap_owner: .skip 4                     # the core that reports, from 1
.globl no_execute
no_execute: .skip 4                     # the upper half of a page's entry: bit 31 where the CPU has it
