/* Texts longer than memory, and handles behind a fork: each a line. Argument: a model. */
#include "sluice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t MIB = (size_t)1 << 20;

static void say(const char *what, sluice_status status)
{
    printf("%s: %s: %s\n", what, sluice_status_name(status),
           status == SLUICE_OK ? "" : sluice_last_error());
    fflush(stdout);
}

/* Zeros that take no memory until they are read. */
static const char *zeros(size_t len)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *zeros = mmap(NULL, len, PROT_READ, flags, -1, 0);
    if (zeros == MAP_FAILED) exit(3);
    return zeros;
}

/* Leaves room for so many bytes more than the process has mapped by now. */
static void limit(size_t room)
{
    size_t pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm == NULL || fscanf(statm, "%zu", &pages) != 1) exit(3);
    fclose(statm);
    rlim_t most = pages * (size_t)sysconf(_SC_PAGESIZE) + room;
    struct rlimit limit = {most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) exit(3);
}

static void in_a_child(const sluice_model *model, sluice_context *context,
                       sluice_embedder *embedder)
{
    alarm(60);
    const char *texts[] = {"Once"};
    float vector[4096];
    size_t n = 0;
    say("generate", sluice_generate(context, "Once", 4, NULL, NULL, NULL, NULL));
    say("embed", sluice_embed(embedder, texts, 1, vector, 4096, &n));
    sluice_context_free(context);
    sluice_embedder_free(embedder);
    say("tokenize", sluice_tokenize(model, "Once", 4, true, true, NULL, 0, &n));
    sluice_context_params params = sluice_context_params_default();
    params.n_ctx = 24;
    params.n_threads = 2;
    say("new context", sluice_context_new(model, &params, &context));
    say("generate", sluice_generate(context, "Once", 4, NULL, NULL, NULL, NULL));
    sluice_context_free(context);
}

int main(int argc, char **argv)
{
    sluice_model *model = NULL;
    sluice_context *context = NULL;
    sluice_embedder *embedder = NULL;
    if (argc != 2 || sluice_model_open(argv[1], NULL, &model) != SLUICE_OK) return 2;
    sluice_context_params params = sluice_context_params_default();
    params.n_ctx = 24;
    params.n_threads = 2;
    if (sluice_context_new(model, &params, &context) != SLUICE_OK) return 2;
    if (sluice_embedder_new(model, NULL, &embedder) != SLUICE_OK) return 2;

    pid_t child = fork();
    if (child == 0) {
        in_a_child(model, context, embedder);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child: %d\n", status);
    say("parent", sluice_generate(context, "Once", 4, NULL, NULL, NULL, NULL));

    size_t n = 0;
    const char *endless = zeros(1024 * MIB), *long_word = zeros(64 * MIB);
    limit(400 * MIB);
    say("endless", sluice_tokenize(model, endless, 1024 * MIB, true, true, NULL, 0, &n));
    say("long word", sluice_tokenize(model, long_word, 64 * MIB, true, true, NULL, 0, &n));
    say("prompt", sluice_generate(context, long_word, 64 * MIB, NULL, NULL, NULL, NULL));
    say("parent", sluice_generate(context, "Once", 4, NULL, NULL, NULL, NULL));
    sluice_embedder_free(embedder);
    sluice_context_free(context);
    sluice_model_free(model);
    return 0;
}
