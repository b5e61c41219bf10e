/* Sluice in a C program: streams a text, and prints what can be compared with any other run.
 *
 *   cargo build --release -p sluice-capi
 *   cc examples/hello.c -Ihosted/capi/include -Ltarget/release -lsluice_capi -o hello
 *   LD_LIBRARY_PATH=target/release ./hello model.gguf "Once upon a time" 64 7
 *
 * docs/embedding.md shows how to link the static library. */
#include "sluice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Is handed the text as it comes. */
static bool print_piece(uint32_t token, const char *piece, size_t piece_len, void *user_data)
{
    (void)token;
    return fwrite(piece, 1, piece_len, (FILE *)user_data) == piece_len; /* false cancels */
}

/* Says what failed and ends the program. */
static void check(sluice_status status, const char *what)
{
    if (status != SLUICE_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, sluice_status_name(status), sluice_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [TOKENS [SEED]]\n", argv[0]);
        return 2;
    }
    if (sluice_abi_version() != SLUICE_ABI_VERSION) {
        fprintf(stderr, "compiled for another version of the library\n");
        return 1;
    }

    sluice_model *model = NULL;
    check(sluice_model_open(argv[1], NULL, &model), "cannot open the model");

    sluice_context_params context_params = sluice_context_params_default();
    context_params.n_ctx = 512;
    sluice_context *context = NULL;
    check(sluice_context_new(model, &context_params, &context), "cannot make a context");
    sluice_model_free(model); /* the context keeps it alive */

    sluice_generate_params params = sluice_generate_params_default();
    params.n_predict = argc > 3 ? atoi(argv[3]) : 64;
    params.seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    sluice_generate_result result = {.struct_bytes = sizeof result};
    check(sluice_generate(context, argv[2], strlen(argv[2]), &params, print_piece, stdout, &result),
          "cannot generate");

    printf("\n");
    fprintf(stderr, "%u tokens of prompt, %u generated, %u of %u draft tokens accepted\n", result.n_prompt,
            result.n_generated, result.n_accepted, result.n_draft);
    fprintf(stderr, "logits hash = 0x%016" PRIx64 "\n", result.logits_hash);
    sluice_context_free(context);
    return 0;
}
