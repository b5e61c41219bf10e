/* The Sluice engine in a C program without a C library: no headers of one, no start-up code, no
 * heap. The model is linked in as bytes, memory is one static array, and the only thing asked of
 * the system is to write and to end; on another board those two functions are a serial port.
 *
 *   cargo rustc --profile metal -p sluice-core-capi --crate-type staticlib
 *   gcc -std=c11 -O2 -ffreestanding -nostdlib -static -DMODEL='"model.gguf"' -Icore/capi/include \
 *       examples/freestanding.c target/metal/libsluice_core_capi.a -o freestanding
 */
#include "sluice_core.h"

/* The model's bytes. */
__asm__(".section .rodata\n"
        ".balign 64\n"
        "model_start: .incbin \"" MODEL "\"\n"
        "model_end:\n"
        ".text\n");
extern const uint8_t model_start[], model_end[];

/* All the memory there is; sluice_core_memory_bytes says how much of it is used. */
static _Alignas(SLUICE_CORE_ALIGN) uint8_t memory[24 << 20];

static long system_call(long number, long a, const void *b, size_t c)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static void put(const char *text, size_t len)
{
    system_call(1, 1, text, len);
}

static void put_text(const char *text)
{
    size_t len = 0;
    while (text[len] != 0) len++;
    put(text, len);
}

static void put_number(uint64_t number, unsigned base, unsigned digits)
{
    char text[20];
    size_t at = sizeof text;
    while (number != 0 || sizeof text - at < digits) {
        text[--at] = "0123456789abcdef"[number % base];
        number /= base;
    }
    put(text + at, sizeof text - at);
}

static _Noreturn void end(int status)
{
    for (;;) system_call(231, status, 0, 0);
}

/* What the library says when it finds a bug in itself. */
_Noreturn void sluice_core_panic(const uint8_t *message, size_t len)
{
    put((const char *)message, len);
    put_text("\n");
    end(3);
}

static bool print_piece(const char *piece, size_t piece_len, void *user_data)
{
    size_t *count = user_data;
    *count += piece_len;
    put(piece, piece_len);
    return true;
}

static void check(sluice_core_status status, const sluice_core_error *error)
{
    if (status != SLUICE_CORE_OK) {
        put_text("ERROR: ");
        put_text(error->message);
        put_text("\n");
        end(1);
    }
}

__attribute__((used)) static void run(void)
{
    static const char prompt[] = "Once upon a time";
    size_t model_bytes = (size_t)(model_end - model_start);
    sluice_core_params params = sluice_core_params_default();
    params.n_ctx = 128;
    params.seed = 7;

    sluice_core_error error;
    size_t needed = 0;
    check(sluice_core_memory_bytes(model_start, model_bytes, &params, &needed, &error), &error);
    sluice_core *core = 0;
    check(sluice_core_init(model_start, model_bytes, &params, memory, sizeof memory, &core, &error),
          &error);

    size_t text_bytes = 0;
    check(sluice_core_generate(core, prompt, sizeof prompt - 1, 24, print_piece, &text_bytes, &error),
          &error);
    put_text("\nlogits hash = 0x");
    put_number(sluice_core_logits_hash(core), 16, 16);
    put_text("\nmemory = ");
    put_number(needed, 10, 1);
    put_text(" bytes of ");
    put_number(sizeof memory, 10, 1);
    put_text(", kernels = ");
    size_t isa_len = 0;
    const char *isa = sluice_core_isa(core, &isa_len);
    put(isa, isa_len);
    put_text("\n");
    end(0);
}

/* The entry point: the stack as C functions expect it. */
__asm__(".globl _start\n"
        "_start: xor %ebp, %ebp\n"
        "and $-16, %rsp\n"
        "call run\n");
