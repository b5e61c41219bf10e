/* Children of a process whose model has its experts on disk: each a line. Arguments: a mixture, and
 * how its experts are read, "" for the first way that works. */
#include "sluice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char PROMPT[] = "Once upon a time";

static void say(const char *what, sluice_status status)
{
    printf("%s: %s: %s\n", what, sluice_status_name(status),
           status == SLUICE_OK ? "" : sluice_last_error());
    fflush(stdout);
}

static sluice_status new_context(const sluice_model *model, sluice_context **context)
{
    sluice_context_params params = sluice_context_params_default();
    params.n_ctx = 128;
    params.n_threads = 2;
    return sluice_context_new(model, &params, context);
}

/* The hash over the logits of a text. */
static void tell(const char *what, sluice_context *context, sluice_token_callback callback,
                 void *user_data)
{
    sluice_generate_params params = sluice_generate_params_default();
    params.seed = 7;
    params.n_predict = 16;
    sluice_generate_result result = {.struct_bytes = sizeof result};
    sluice_context_reset(context);
    sluice_status status = sluice_generate(context, PROMPT, strlen(PROMPT), &params, callback,
                                           user_data, &result);
    if (status != SLUICE_OK) {
        say(what, status);
        exit(4);
    }
    printf("%s: %016llx\n", what, (unsigned long long)result.logits_hash);
    fflush(stdout);
}

static int ended(pid_t child)
{
    int status = -1;
    return waitpid(child, &status, 0) == child ? status : -1;
}

static void frees(sluice_model *model, sluice_context *context)
{
    sluice_context *other = NULL;
    say("child: generate",
        sluice_generate(context, PROMPT, strlen(PROMPT), NULL, NULL, NULL, NULL));
    say("child: new context", new_context(model, &other));
    sluice_context_free(context);
    sluice_model_free(model);
    exit(0);
}

enum { N_CHILDREN = 4 };

typedef struct children {
    pid_t made[N_CHILDREN];
    int n;
} children;

/* Forks between two tokens, while experts may be on their way. */
static bool forks(uint32_t token, const char *piece, size_t piece_len, void *user_data)
{
    (void)token, (void)piece, (void)piece_len;
    children *all = user_data;
    if (all->n < N_CHILDREN) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            exit(0);
        }
        all->made[all->n++] = child;
    }
    return true;
}

int main(int argc, char **argv)
{
    sluice_model *model = NULL;
    sluice_context *context = NULL;
    if (argc != 3 || sluice_model_open(argv[1], NULL, &model) != SLUICE_OK) return 2;
    if (new_context(model, &context) != SLUICE_OK) return 2;
    tell("in memory", context, NULL, NULL);
    sluice_context_free(context);
    sluice_model_free(model);

    sluice_model_params params = sluice_model_params_default();
    params.expert_io = argv[2][0] == 0 ? NULL : argv[2];
    params.expert_cache_bytes = (uint64_t)1 << 30;
    sluice_expert_stats stats = {.struct_bytes = sizeof stats};
    if (sluice_model_open(argv[1], &params, &model) != SLUICE_OK) return 3;
    sluice_model_get_expert_stats(model, &stats);
    sluice_model_free(model);
    /* Few of them, so that each text reads. */
    params.expert_cache_bytes = stats.slot_bytes * (stats.n_experts / 3);
    if (sluice_model_open(argv[1], &params, &model) != SLUICE_OK) return 3;
    if (new_context(model, &context) != SLUICE_OK) return 3;
    tell("on disk", context, NULL, NULL);

    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        frees(model, context);
    }
    printf("child that frees: %d\n", ended(child));
    tell("again", context, NULL, NULL);

    child = fork();
    if (child == 0) exit(0);
    printf("child that ends: %d\n", ended(child));
    tell("again", context, NULL, NULL);

    children all = {.n = 0};
    tell("again", context, forks, &all);
    printf("children of a text:");
    for (int i = 0; i < all.n; ++i) printf(" %d", ended(all.made[i]));
    printf("\n");

    uint64_t before = stats.read_bytes;
    sluice_model_get_expert_stats(model, &stats);
    printf("read: %d\n", stats.read_bytes > before && stats.evictions > 0 && stats.failures == 0);
    sluice_context_free(context);
    sluice_model_free(model);
    return 0;
}
