/* One turn of a conversation, as JSON of a schema; then how much the answer is like the question.
 *
 *   cargo build --release -p sluice-capi
 *   cc examples/chat.c -Ihosted/capi/include -Ltarget/release -lsluice_capi -lm -o chat
 *   LD_LIBRARY_PATH=target/release ./chat model.gguf "Name an animal and its age." chatml
 *
 * Without a third argument the model's own template is used. */
#include "sluice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SCHEMA[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99}},"
    "\"required\":[\"name\",\"age\"],\"additionalProperties\":false}";

/* Says what failed and ends the program. */
static void check(sluice_status status, const char *what)
{
    if (status != SLUICE_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, sluice_status_name(status), sluice_last_error());
        exit(1);
    }
}

/* Keeps the text as it comes, as far as there is room. */
static bool keep(uint32_t token, const char *piece, size_t piece_len, void *user_data)
{
    (void)token;
    char *answer = user_data;
    if (strlen(answer) + piece_len >= 1024) return false;
    memcpy(answer + strlen(answer), piece, piece_len + 1);
    return true;
}

static char *render(const sluice_model *model, const char *question, const char *chat_template,
                    size_t *len)
{
    const sluice_chat_message messages[] = {
        {"system", "Answer in JSON."},
        {"user", question},
    };
    sluice_chat_params params = sluice_chat_params_default();
    params.chat_template = chat_template;
    check(sluice_chat_render(model, messages, 2, &params, NULL, 0, len), "cannot render");
    char *prompt = malloc(*len);
    if (prompt == NULL) exit(1);
    check(sluice_chat_render(model, messages, 2, &params, prompt, *len, len), "cannot render");
    return prompt;
}

/* The cosine between the vectors of two texts. */
static double similarity(const sluice_model *model, const char *a, const char *b)
{
    sluice_embedder *embedder = NULL;
    check(sluice_embedder_new(model, NULL, &embedder), "cannot embed");
    const char *texts[] = {a, b};
    size_t n = 0;
    check(sluice_embed(embedder, texts, 2, NULL, 0, &n), "cannot embed");
    float *vectors = malloc(n * sizeof *vectors);
    if (vectors == NULL) exit(1);
    check(sluice_embed(embedder, texts, 2, vectors, n, &n), "cannot embed");
    double dot = 0;
    for (size_t i = 0; i < n / 2; i++) dot += (double)vectors[i] * vectors[n / 2 + i];
    free(vectors);
    sluice_embedder_free(embedder);
    return dot;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL QUESTION [TEMPLATE]\n", argv[0]);
        return 2;
    }
    sluice_model *model = NULL;
    check(sluice_model_open(argv[1], NULL, &model), "cannot open the model");
    sluice_context *context = NULL;
    check(sluice_context_new(model, NULL, &context), "cannot make a context");

    size_t len = 0;
    char *prompt = render(model, argv[2], argc > 3 ? argv[3] : NULL, &len);
    sluice_generate_params params = sluice_generate_params_default();
    params.n_predict = 200;
    params.json_schema = SCHEMA;
    params.add_special = 0; /* the prompt has what the model wants around it */
    char answer[1024] = "";
    check(sluice_generate(context, prompt, len, &params, keep, answer, NULL), "cannot generate");
    printf("%s\n", answer);
    printf("similarity %.3f\n", fabs(similarity(model, argv[2], answer)));

    free(prompt);
    sluice_context_free(context);
    sluice_model_free(model);
    return 0;
}
