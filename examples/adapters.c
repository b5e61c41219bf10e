/* Adapters (LoRA) in a C program: a text with one or several, each with a factor.
 *
 *   cargo build --release -p sluice-capi
 *   cc examples/adapters.c -Ihosted/capi/include -Ltarget/release -lsluice_capi -o adapters
 *   LD_LIBRARY_PATH=target/release ./adapters model.gguf "Once upon a time" 64 7 style:0.5 pirate.gguf
 *
 * An adapter is a folder of PEFT's or llama.cpp's GGUF file. Without one the model speaks alone. */
#include "sluice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADAPTERS_MAX = 16 };

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

/* Loads PATH or PATH:SCALE, and returns what it takes of a context's adapter_rank. */
static uint32_t load(const sluice_model *model, char *given, sluice_adapter **adapter, float *scale)
{
    char *colon = strrchr(given, ':');
    *scale = 1.0f;
    if (colon != NULL) {
        *scale = strtof(colon + 1, NULL);
        *colon = 0;
    }
    check(sluice_adapter_load(model, given, NULL, adapter), "cannot load the adapter");
    sluice_adapter_info info = {.struct_bytes = sizeof info};
    check(sluice_adapter_get_info(*adapter, &info), "no adapter");
    fprintf(stderr, "%s: rank %u, %" PRIu64 " bytes\n%s", given, info.rank, info.n_bytes,
            info.warnings);
    return info.adapter_rank;
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc > 5 + ADAPTERS_MAX) {
        fprintf(stderr, "usage: %s MODEL PROMPT TOKENS SEED [ADAPTER[:SCALE]]...\n", argv[0]);
        return 2;
    }
    if (sluice_abi_version() != SLUICE_ABI_VERSION) {
        fprintf(stderr, "compiled for another version of the library\n");
        return 1;
    }

    sluice_model *model = NULL;
    check(sluice_model_open(argv[1], NULL, &model), "cannot open the model");

    sluice_adapter *adapters[ADAPTERS_MAX] = {NULL};
    float scales[ADAPTERS_MAX];
    size_t n_adapters = (size_t)argc - 5;
    sluice_context_params context_params = sluice_context_params_default();
    context_params.n_ctx = 512;
    for (size_t i = 0; i < n_adapters; i++)
        context_params.adapter_rank += load(model, argv[5 + i], &adapters[i], &scales[i]);

    sluice_context *context = NULL;
    check(sluice_context_new(model, &context_params, &context), "cannot make a context");
    check(sluice_context_set_adapters(context, (const sluice_adapter *const *)adapters, scales,
                                      n_adapters),
          "cannot set the adapters");
    for (size_t i = 0; i < n_adapters; i++)
        sluice_adapter_free(adapters[i]); /* the context keeps them alive */
    sluice_model_free(model);

    sluice_generate_params params = sluice_generate_params_default();
    params.n_predict = atoi(argv[3]);
    params.seed = strtoull(argv[4], NULL, 10);
    sluice_generate_result result = {.struct_bytes = sizeof result};
    check(sluice_generate(context, argv[2], strlen(argv[2]), &params, print_piece, stdout, &result),
          "cannot generate");
    printf("\n");
    fprintf(stderr, "logits hash = 0x%016" PRIx64 "\n", result.logits_hash);
    sluice_context_free(context);
    return 0;
}
