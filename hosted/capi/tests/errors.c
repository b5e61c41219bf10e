/* What goes wrong, each with its status and message: a line a case. Arguments: a good model, a
 * file that is cut, a folder, an adapter for the model, one for another, another model. */
#include "sluice.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char STORY[] = "Once upon a time";

static void say(const char *what, sluice_status status)
{
    printf("%s: %s: %s\n", what, sluice_status_name(status),
           status == SLUICE_OK ? "" : sluice_last_error());
}

static sluice_status generate(sluice_context *context, const sluice_generate_params *params,
                              sluice_token_callback callback, void *user_data,
                              sluice_generate_result *result)
{
    return sluice_generate(context, STORY, strlen(STORY), params, callback, user_data, result);
}

/* Wants three tokens and no more. */
static bool three(uint32_t token, const char *piece, size_t piece_len, void *user_data)
{
    (void)token;
    int *count = user_data;
    return piece[piece_len] == 0 && ++*count < 3;
}

/* Uses the context that is calling it. */
static bool again(uint32_t token, const char *piece, size_t piece_len, void *user_data)
{
    (void)token, (void)piece, (void)piece_len;
    say("context in use", sluice_context_reset(user_data));
    return false;
}

/* Cancels from another thread as soon as there is a token, and waits until that is done. */
static void *cancel(void *context)
{
    sluice_cancel(context);
    return NULL;
}

static bool cancel_elsewhere(uint32_t token, const char *piece, size_t piece_len, void *user_data)
{
    (void)token, (void)piece, (void)piece_len;
    pthread_t thread;
    if (pthread_create(&thread, NULL, cancel, user_data) != 0) exit(3);
    pthread_join(thread, NULL);
    return true;
}

static void models(char **argv, sluice_model **good)
{
    sluice_model *model = (sluice_model *)argv;
    say("null path", sluice_model_open(NULL, NULL, &model));
    if (model != NULL) exit(3);
    say("null out", sluice_model_open(argv[1], NULL, NULL));
    say("no such file", sluice_model_open("/nonexistent/model.gguf", NULL, &model));
    say("path that is not UTF-8", sluice_model_open("\xff", NULL, &model));
    say("cut file", sluice_model_open(argv[2], NULL, &model));
    say("folder", sluice_model_open(argv[3], NULL, &model));
    say("null bytes", sluice_model_from_bytes(NULL, 5, NULL, &model));
    say("no model in memory", sluice_model_from_bytes((const uint8_t *)STORY, 5, NULL, &model));
    sluice_model_params params = sluice_model_params_default();
    params.n_threads = 1000;
    say("threads", sluice_model_open(argv[1], &params, &model));
    params.struct_bytes = 4096;
    say("foreign struct", sluice_model_open(argv[1], &params, &model));
    params = sluice_model_params_default();
    params.activation = "gelu";
    say("activation", sluice_model_open(argv[1], &params, &model));
    if (model != NULL) exit(3);
    params.activation = "fatrelu:0.5";
    say("another activation", sluice_model_open(argv[1], &params, &model));
    sluice_model_free(model);
    model = NULL;
    params = sluice_model_params_default();
    params.n_threads = 2;
    say("good model", sluice_model_open(argv[1], &params, good));
    sluice_model_free(NULL);
}

static void vocabulary(const sluice_model *model)
{
    uint32_t tokens[2];
    size_t n = 0;
    say("small buffer", sluice_tokenize(model, STORY, 16, true, true, tokens, 2, &n));
    printf("tokens needed: %zu\n", n);
    say("not UTF-8", sluice_tokenize(model, "\xc3", 1, true, true, tokens, 2, &n));
    uint32_t unknown = 1u << 30;
    say("unknown token", sluice_detokenize(model, &unknown, 1, NULL, 0, &n));
    say("null model", sluice_tokenize(NULL, STORY, 16, true, true, tokens, 2, &n));
    sluice_model_info info = {.struct_bytes = sizeof info};
    say("info", sluice_model_get_info(model, &info));
    printf("vocabulary %u, context %u, layers %u\n", info.n_vocab, info.n_ctx_train, info.n_layer);
}

/* Settings of speculation. */
static void speculation(const sluice_model *model)
{
    sluice_context *context = NULL;
    sluice_context_params params = sluice_context_params_default();
    params.speculation = "oracle";
    say("speculation", sluice_context_new(model, &params, &context));
    params.speculation = "none";
    params.draft_model = model;
    say("draft for none", sluice_context_new(model, &params, &context));
    params = sluice_context_params_default();
    params.n_draft = 17;
    say("long draft", sluice_context_new(model, &params, &context));
    params.n_draft = 0;
    params.n_draft_min = 17;
    say("short draft", sluice_context_new(model, &params, &context));
    params.n_draft_min = 0;
    params.draft_p_min = 0.0f / 0.0f;
    say("least probability", sluice_context_new(model, &params, &context));
    if (context != NULL) exit(3);
}

/* A model that drafts has the vocabulary of the one that it drafts for. */
static void foreign_draft(const sluice_model *model, const char *path)
{
    sluice_model *other = NULL;
    sluice_context *context = NULL;
    if (sluice_model_open(path, NULL, &other) != SLUICE_OK) exit(3);
    sluice_context_params params = sluice_context_params_default();
    params.draft_model = other;
    say("draft of another vocabulary", sluice_context_new(model, &params, &context));
    if (context != NULL) exit(3);
    sluice_model_free(other);
}

static void contexts(const sluice_model *model)
{
    sluice_context *context = NULL;
    sluice_context_params params = sluice_context_params_default();
    params.isa = "altivec";
    say("isa", sluice_context_new(model, &params, &context));
    params = sluice_context_params_default();
    params.type_k = "f17";
    say("KV type", sluice_context_new(model, &params, &context));
    params = sluice_context_params_default();
    params.sparse = "predictor";
    say("no predictor", sluice_context_new(model, &params, &context));
    params.sparse = "target";
    params.sparse_file = "none.sparse.json";
    say("no calibration", sluice_context_new(model, &params, &context));
    params.sparse_file = NULL;
    params.sparse = "exact";
    say("no neurons", sluice_context_new(model, &params, &context));
    say("null model", sluice_context_new(NULL, NULL, &context));
    speculation(model);
    params = sluice_context_params_default();
    params.n_ctx = 24;
    params.n_threads = 2;
    say("good context", sluice_context_new(model, &params, &context));

    say("null context", generate(NULL, NULL, NULL, NULL, NULL));
    say("null prompt", sluice_generate(context, NULL, 3, NULL, NULL, NULL, NULL));
    sluice_generate_params settings = sluice_generate_params_default();
    settings.temperature = 0.0f / 0.0f;
    say("temperature", generate(context, &settings, NULL, NULL, NULL));
    char longer[400];
    memset(longer, 'x', sizeof longer);
    say("long prompt", sluice_generate(context, longer, sizeof longer, NULL, NULL, NULL, NULL));

    sluice_generate_result result = {.struct_bytes = sizeof result};
    int count = 0;
    say("callback cancels", generate(context, NULL, three, &count, &result));
    printf("%u generated, ended %d\n", result.n_generated, (int)result.ended);
    say("callback uses the context", generate(context, NULL, again, context, &result));
    say("other thread cancels", generate(context, NULL, cancel_elsewhere, context, &result));
    printf("%u generated, ended %d\n", result.n_generated, (int)result.ended);
    sluice_cancel(context);
    say("cancelled before", generate(context, NULL, NULL, NULL, &result));
    say("and goes on", generate(context, NULL, NULL, NULL, &result));
    printf("ended %d\n", (int)result.ended);

    uint32_t unknown = 1u << 30;
    size_t n = 0;
    say("unknown token", sluice_eval(context, &unknown, 1, NULL, 0, &n));
    say("no tokens", sluice_eval(context, NULL, 0, NULL, 0, &n));
    uint32_t token = 5;
    float logit = 0;
    say("few logits", sluice_eval(context, &token, 1, &logit, 1, &n));
    printf("logits needed: %zu\n", n);
    sluice_cancel(NULL);
    sluice_context_free(NULL);
    sluice_context_free(context);
}

static void conversations(const sluice_model *model)
{
    size_t n = 0;
    sluice_chat_message messages[] = {{"user", "Hello"}, {"assistant", NULL}};
    sluice_chat_params params = sluice_chat_params_default();
    say("no template", sluice_chat_render(model, messages, 1, NULL, NULL, 0, &n));
    params.chat_template = "chatml";
    say("message of nothing", sluice_chat_render(model, messages, 2, &params, NULL, 0, &n));
    say("small text", sluice_chat_render(model, messages, 1, &params, (char[1]){0}, 1, &n));
    params.variables = "[1]";
    say("variables", sluice_chat_render(model, messages, 1, &params, NULL, 0, &n));
    params.variables = NULL;
    params.chat_template = "{{ raise_exception('no') }}";
    say("template refuses", sluice_chat_render(model, messages, 1, &params, NULL, 0, &n));

    sluice_context *context = NULL;
    sluice_context_params small = sluice_context_params_default();
    small.n_ctx = 24;
    if (sluice_context_new(model, &small, &context) != SLUICE_OK) exit(3);
    sluice_generate_params settings = sluice_generate_params_default();
    settings.grammar = "root ::= nothing";
    say("grammar", generate(context, &settings, NULL, NULL, NULL));
    settings.json_schema = "{}";
    say("grammar and schema", generate(context, &settings, NULL, NULL, NULL));
    sluice_context_free(context);

    sluice_embedder *embedder = NULL;
    sluice_embedder_params embedding = sluice_embedder_params_default();
    embedding.pooling = "none";
    say("pooling", sluice_embedder_new(model, &embedding, &embedder));
    if (sluice_embedder_new(model, NULL, &embedder) != SLUICE_OK) exit(3);
    const char *texts[] = {STORY, NULL};
    say("text of nothing", sluice_embed(embedder, texts, 2, NULL, 0, &n));
    say("numbers asked for", sluice_embed(embedder, texts, 1, NULL, 0, &n));
    float number = 0;
    say("few numbers", sluice_embed(embedder, texts, 1, &number, 1, &n));
    printf("numbers needed: %zu\n", n);
    sluice_embedder_free(NULL);
    sluice_embedder_free(embedder);
}

/* The adapter of the last call is freed while a context has it. */
static void adapters(const sluice_model *model, const char *good, const char *foreign)
{
    sluice_adapter *adapter = (sluice_adapter *)&model;
    say("no adapter", sluice_adapter_load(model, "/nonexistent/adapter", NULL, &adapter));
    if (adapter != NULL) exit(3);
    say("foreign adapter", sluice_adapter_load(model, foreign, NULL, &adapter));
    sluice_adapter_params params = sluice_adapter_params_default();
    params.dtype = "int4";
    say("adapter's type", sluice_adapter_load(model, good, &params, &adapter));
    params.dtype = "int8";
    say("good adapter", sluice_adapter_load(model, good, &params, &adapter));
    sluice_adapter_info info = {.struct_bytes = sizeof info};
    say("adapter's info", sluice_adapter_get_info(adapter, &info));
    printf("rank %u, takes %u, warns '%s'\n", info.rank, info.adapter_rank, info.warnings);
    if (info.n_bytes == 0) exit(3);

    sluice_context *context = NULL;
    sluice_context_params small = sluice_context_params_default();
    small.n_ctx = 24;
    if (sluice_context_new(model, &small, &context) != SLUICE_OK) exit(3);
    const sluice_adapter *both[] = {adapter, NULL};
    say("no room", sluice_context_set_adapters(context, both, NULL, 1));
    sluice_context_free(context);
    small.adapter_rank = info.adapter_rank;
    if (sluice_context_new(model, &small, &context) != SLUICE_OK) exit(3);
    say("adapter of nothing", sluice_context_set_adapters(context, both, NULL, 2));
    float infinite = 1.0f / 0.0f;
    say("factor", sluice_context_set_adapters(context, both, &infinite, 1));
    both[1] = adapter;
    say("less room than both take", sluice_context_set_adapters(context, both, NULL, 2));
    say("room for one", sluice_context_set_adapters(context, both, NULL, 1));
    sluice_adapter_free(NULL);
    sluice_adapter_free(adapter);
    say("without its handle", generate(context, NULL, NULL, NULL, NULL));
    say("null adapters", sluice_context_set_adapters(context, NULL, NULL, 1));
    say("none", sluice_context_set_adapters(context, NULL, NULL, 0));
    sluice_context_free(context);
}

/* An adapter is for the model that it was loaded for, even where another has the same shape. */
static void models_of_adapters(const sluice_model *model, const char *good, const char *path)
{
    sluice_model *other = NULL;
    sluice_adapter *adapter = NULL;
    sluice_embedder *embedder = NULL;
    if (sluice_model_open(path, NULL, &other) != SLUICE_OK) exit(3);
    if (sluice_adapter_load(model, good, NULL, &adapter) != SLUICE_OK) exit(3);
    sluice_embedder_params params = sluice_embedder_params_default();
    params.adapter_rank = 64;
    if (sluice_embedder_new(other, &params, &embedder) != SLUICE_OK) exit(3);
    const sluice_adapter *one[] = {adapter};
    say("adapter of another model", sluice_embedder_set_adapters(embedder, one, NULL, 1));
    sluice_embedder_free(embedder);
    sluice_adapter_free(adapter);
    sluice_model_free(other);
}

int main(int argc, char **argv)
{
    if (argc != 7) return 2;
    sluice_model *model = NULL;
    models(argv, &model);
    vocabulary(model);
    contexts(model);
    conversations(model);
    adapters(model, argv[4], argv[5]);
    models_of_adapters(model, argv[4], argv[6]);
    foreign_draft(model, argv[6]);
    sluice_model_free(model);
    return 0;
}
