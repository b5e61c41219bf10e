/* Sluice as a C library. Made by cbindgen from hosted/capi/src: edit those files. */

#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 The version of this interface: a program that was compiled against another one must not go on.
 */
#define SLUICE_ABI_VERSION 5

/*
 What a function returns. `sluice_last_error()` says more about everything but
 `SLUICE_OK`.
 */
typedef enum sluice_status {
  /*
   It is done.
   */
  SLUICE_OK = 0,
  /*
   A pointer that has to point somewhere is null.
   */
  SLUICE_NULL_POINTER = 1,
  /*
   A setting is outside its range, or a struct is of another version.
   */
  SLUICE_INVALID_ARGUMENT = 2,
  /*
   A text is not UTF-8.
   */
  SLUICE_INVALID_UTF8 = 3,
  /*
   The file is not there, cannot be read, or is no model that can be run.
   */
  SLUICE_INVALID_MODEL = 4,
  /*
   There is no memory for it.
   */
  SLUICE_OUT_OF_MEMORY = 5,
  /*
   A text has more tokens than the context.
   */
  SLUICE_CONTEXT_FULL = 6,
  /*
   The callback or `sluice_cancel` ended it. What came before counts.
   */
  SLUICE_CANCELLED = 7,
  /*
   Another thread is using the context.
   */
  SLUICE_BUSY = 8,
  /*
   The caller's buffer is too small; the length that it needs was written.
   */
  SLUICE_BUFFER_TOO_SMALL = 9,
  /*
   The library failed. The process is unharmed, and other handles can still be used.
   */
  SLUICE_INTERNAL = 10,
  /*
   The adapter is not there, cannot be read, or is none for the model.
   */
  SLUICE_INVALID_ADAPTER = 11,
  /*
   An expert did not come from disk. What was done before counts, and the next call tries again.
   */
  SLUICE_EXPERT_FAILED = 12,
} sluice_status;

/*
 Why a text ended.
 */
typedef enum sluice_ended {
  /*
   The model ended it.
   */
  SLUICE_ENDED_BY_MODEL = 0,
  /*
   It has `n_predict` tokens.
   */
  SLUICE_ENDED_BY_LENGTH = 1,
  /*
   The context is full.
   */
  SLUICE_ENDED_BY_CONTEXT = 2,
  /*
   It was cancelled.
   */
  SLUICE_ENDED_BY_CANCEL = 3,
} sluice_ended;

/*
 An adapter in memory, for one model. Contexts and embedders that compute with it keep it alive.
 */
typedef struct sluice_adapter sluice_adapter;

/*
 A text in the making: KV cache, threads, and room to compute in.
 */
typedef struct sluice_context sluice_context;

/*
 A model that makes vectors of texts. Threads that use it at the same time wait for each other.
 */
typedef struct sluice_embedder sluice_embedder;

/*
 A model in memory. Shared by its contexts, which keep it alive.
 */
typedef struct sluice_model sluice_model;

/*
 How an adapter is loaded. Begin with `sluice_adapter_params_default()`.
 */
typedef struct sluice_adapter_params {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   How it lies in memory: `int8`, `bf16`, `f16`, `f32`, or `auto`, which is the smallest of the last
   three that holds a matrix exactly; null is `auto`.
   */
  const char *dtype;
  /*
   Folder of the Hugging Face model that a folder of PEFT's is for (config.json is enough); null
   takes the sizes of the model.
   */
  const char *base;
} sluice_adapter_params;

/*
 What there is to know of an adapter. Set `struct_bytes` before it is filled in.
 */
typedef struct sluice_adapter_info {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Bytes of its matrices in memory.
   */
  uint64_t n_bytes;
  /*
   Its largest rank.
   */
  uint32_t rank;
  /*
   What it takes of a context's `adapter_rank`: the rank, rounded up to 16.
   */
  uint32_t adapter_rank;
  /*
   What its file says that has no effect, a sentence a line; an empty text for nothing. Lives as
   long as the handle.
   */
  const char *warnings;
} sluice_adapter_info;

/*
 How a conversation is rendered. Begin with `sluice_chat_params_default()`.
 */
typedef struct sluice_chat_params {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   A template in Jinja, or the name of a known one (`chatml`, `llama3`, …); null is the model's
   own.
   */
  const char *chat_template;
  /*
   Functions that the model may call: a JSON array of schemas; null for none.
   */
  const char *tools;
  /*
   More variables for the template, as a JSON object; null for none.
   */
  const char *variables;
  /*
   1 ends with the beginning of the assistant's turn.
   */
  uint32_t add_generation_prompt;
  /*
   0.
   */
  uint32_t reserved;
} sluice_chat_params;

/*
 One turn of a conversation. Its size stays as it is.
 */
typedef struct sluice_chat_message {
  /*
   `system`, `user`, `assistant`, or what else the template knows.
   */
  const char *role;
  /*
   What was said.
   */
  const char *content;
} sluice_chat_message;

/*
 How a context is made. Begin with `sluice_context_params_default()`.
 */
typedef struct sluice_context_params {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Tokens that fit; 0 is what the model was trained on.
   */
  uint32_t n_ctx;
  /*
   Most tokens of a prompt that are computed at once.
   */
  uint32_t n_batch;
  /*
   Threads, the calling one among them; 0 is one for each physical core. They are not pinned.
   */
  uint32_t n_threads;
  /*
   1 stores keys and values of q8_0, q4_0 and fp8 as they are; 0 rotates them first, which costs less accuracy.
   */
  uint32_t no_kv_rotation;
  /*
   Kernels by name (`scalar`, `avx2`, …); null for the fastest. All give the same bits.
   */
  const char *isa;
  /*
   Type of keys in the KV cache (`f32`, `f16`, `bf16`, `q8_0`, …); null is `f16`.
   */
  const char *type_k;
  /*
   Type of values; null is `f16`.
   */
  const char *type_v;
  /*
   Room for adapters: what those set at once take together (`sluice_adapter_info`); 0 for none.
   */
  uint32_t adapter_rank;
  /*
   Most draft tokens of a step, 1 to 16; 0 is 8, and 4 where the model is recurrent.
   */
  uint32_t n_draft;
  /*
   What drafts tokens that a step verifies: `auto` is the text itself, what earlier texts of the context taught, and `draft_model` or
   else the model's own head for further tokens, where its file has one; `none`. Null is `auto`. Texts, logits and
   hashes are the same with any.
   */
  const char *speculation;
  /*
   A smaller model of the same vocabulary that drafts, on the threads of the context; null for none. The context
   keeps it alive, and has keys and values of its own for it.
   */
  const struct sluice_model *draft_model;
  /*
   Where fewer draft tokens than this are worth it, none are verified; 0 to 16.
   */
  uint32_t n_draft_min;
  /*
   A token that a model finds less likely ends its draft; 0 to 1.
   */
  float draft_p_min;
} sluice_context_params;

/*
 How an embedder is made. Begin with `sluice_embedder_params_default()`.
 */
typedef struct sluice_embedder_params {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Most tokens of a text; 0 is what the model was trained on.
   */
  uint32_t n_ctx;
  /*
   Most tokens that are computed at once; encoders take more where a text is longer.
   */
  uint32_t n_batch;
  /*
   Threads, the calling one among them; 0 is one for each physical core. They are not pinned.
   */
  uint32_t n_threads;
  /*
   The vectors are divided by their p-norm of this p; 0 leaves them as they are.
   */
  uint32_t norm;
  /*
   From tokens to a text: `mean`, `cls` (the first) or `last`; null is what the model's file
   says, or `mean`.
   */
  const char *pooling;
  /*
   Room for adapters: what those set at once take together (`sluice_adapter_info`); 0 for none.
   */
  uint32_t adapter_rank;
  /*
   0.
   */
  uint32_t reserved;
} sluice_embedder_params;

/*
 What was done with a model's experts since it was opened. Set `struct_bytes` before it is filled in.
 */
typedef struct sluice_expert_stats {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Experts of all layers; 0 where they are in memory, and all other numbers, too.
   */
  uint64_t n_experts;
  /*
   Experts that there is memory for.
   */
  uint64_t n_slots;
  /*
   Bytes of each.
   */
  uint64_t slot_bytes;
  /*
   Times that a layer of a step needed an expert.
   */
  uint64_t needed;
  /*
   Of them, those that were in memory.
   */
  uint64_t hits;
  /*
   Of them, those that were on their way because they had been guessed.
   */
  uint64_t late;
  /*
   Experts that made room for another.
   */
  uint64_t evictions;
  /*
   Experts that were read by a guess.
   */
  uint64_t guessed;
  /*
   Of them, those that were needed.
   */
  uint64_t guessed_needed;
  /*
   Reads that were done.
   */
  uint64_t reads;
  /*
   Their bytes.
   */
  uint64_t read_bytes;
  /*
   Reads that failed and were tried again.
   */
  uint64_t retries;
  /*
   Experts that did not come.
   */
  uint64_t failures;
  /*
   Nanoseconds that threads waited for experts, all threads together.
   */
  uint64_t stall_ns;
} sluice_expert_stats;

/*
 How text is made. Begin with `sluice_generate_params_default()`; names and defaults are
 llama.cpp's.
 */
typedef struct sluice_generate_params {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Key of the random numbers: the same one gives the same text.
   */
  uint64_t seed;
  /*
   Most tokens; -1 for as many as fit.
   */
  int32_t n_predict;
  /*
   0 chooses the best token.
   */
  float temperature;
  /*
   0 keeps all.
   */
  uint32_t top_k;
  /*
   1 keeps all.
   */
  float top_p;
  /*
   0 keeps all.
   */
  float min_p;
  /*
   Latest tokens that are penalised.
   */
  uint32_t repeat_last_n;
  /*
   1 is none.
   */
  float repeat_penalty;
  /*
   0 is none.
   */
  float frequency_penalty;
  /*
   0 is none.
   */
  float presence_penalty;
  /*
   1 goes on behind tokens that end a text.
   */
  uint32_t ignore_eos;
  /*
   1 puts the tokens around the prompt that the model wants; 0 is for a prompt that has them, such
   as one of `sluice_chat_render`.
   */
  uint32_t add_special;
  /*
   1 reads names of control tokens in the prompt as those tokens; 0 is for text that others wrote.
   */
  uint32_t parse_special;
  /*
   A grammar in GBNF that the text keeps to; null for none.
   */
  const char *grammar;
  /*
   A JSON schema, as JSON, that the text is a document of; null for none. One of the two at most.
   */
  const char *json_schema;
} sluice_generate_params;

/*
 Is handed a text as it comes: a token, and the whole characters that it completes, `piece_len`
 bytes of UTF-8 and a zero behind them. What is left over at the end comes with the last token
 once more. Returns whether it wants more. Called on the thread that generates; it must not
 throw, and must not use the context but for `sluice_cancel`.
 */
typedef bool (*sluice_token_callback)(uint32_t token,
                                      const char *piece,
                                      size_t piece_len,
                                      void *user_data);

/*
 What came of a generation. Set `struct_bytes` before it is filled in.
 */
typedef struct sluice_generate_result {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Over the bits of all logits that tokens were drawn from: the same on every CPU, with any
   number of threads.
   */
  uint64_t logits_hash;
  /*
   Nanoseconds for the prompt.
   */
  uint64_t prompt_ns;
  /*
   Nanoseconds for the tokens behind the first one.
   */
  uint64_t eval_ns;
  /*
   Tokens of the prompt.
   */
  uint32_t n_prompt;
  /*
   Of these, tokens that the context had already.
   */
  uint32_t n_reused;
  /*
   Tokens that were generated.
   */
  uint32_t n_generated;
  /*
   Why it ended.
   */
  enum sluice_ended ended;
  /*
   Draft tokens that were verified; their rows are among those that `eval_ns` is for.
   */
  uint32_t n_draft;
  /*
   Of these, those that were accepted: so many tokens came without a step of their own.
   */
  uint32_t n_accepted;
} sluice_generate_result;

/*
 How a model is opened. Begin with `sluice_model_params_default()`.
 */
typedef struct sluice_model_params {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Threads that load; 0 is one for each physical core.
   */
  uint32_t n_threads;
  /*
   0 reads the file, 1 maps it. A mapped file must not be cut while it is loaded.
   */
  uint32_t use_mmap;
  /*
   Memory for the experts of a mixture, in bytes: they stay on disk, and as many as fit are kept. 0 has all in memory.
   */
  uint64_t expert_cache_bytes;
  /*
   How they are read: `uring`, `pread`, `mmap`; null is the first that works.
   */
  const char *expert_io;
  /*
   Which makes room for another: `aged`, `lru`, `lfu`, `heat`, or `static` by a profile; null is `aged`.
   */
  const char *expert_policy;
  /*
   File of experts to hold, for `static`; null for none.
   */
  const char *expert_profile;
  /*
   1 reads experts only when their layer is reached; 0 also before, by a guess.
   */
  uint32_t no_expert_prefetch;
  /*
   1 compares what is read with checksums.
   */
  uint32_t expert_check;
} sluice_model_params;

/*
 What there is to know of a model. Set `struct_bytes` before it is filled in.
 */
typedef struct sluice_model_info {
  /*
   `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Bytes of weights in memory.
   */
  uint64_t weight_bytes;
  /*
   Tokens of the vocabulary.
   */
  uint32_t n_vocab;
  /*
   Tokens of context that it was trained on.
   */
  uint32_t n_ctx_train;
  /*
   Length of the hidden state.
   */
  uint32_t n_embd;
  /*
   Layers.
   */
  uint32_t n_layer;
  /*
   The token that begins a text; -1 for none.
   */
  int32_t token_bos;
  /*
   The token that ends a text; -1 for none.
   */
  int32_t token_eos;
} sluice_model_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The [`SLUICE_ABI_VERSION`] of the library that is loaded.
 */
uint32_t sluice_abi_version(void);

/*
 The library's version, such as `0.1.0`.
 */
const char *sluice_version(void);

/*
 The settings that most programs want.
 */
struct sluice_adapter_params sluice_adapter_params_default(void);

/*
 Loads the adapter at `path` for a model: a folder of PEFT's, or llama.cpp's GGUF file. `params` may be
 null. On failure `*adapter` is null. The model may be freed before the adapter.

 # Safety
 - `model` is a handle, `path` a text that a zero ends, `params` null or a struct that begins with
   its size and whose texts are null or end with a zero, `adapter` writable.
 */
enum sluice_status sluice_adapter_load(const struct sluice_model *model,
                                       const char *path,
                                       const struct sluice_adapter_params *params,
                                       struct sluice_adapter **adapter);

/*
 Gives an adapter back; contexts and embedders that compute with it keep it in memory. Null is
 allowed.

 # Safety
 - `adapter` is null or a handle, which must not be used any more.
 */
void sluice_adapter_free(struct sluice_adapter *adapter);

/*
 Fills in `*info`.

 # Safety
 - `adapter` is a handle, `info` a struct that begins with its size.
 */
enum sluice_status sluice_adapter_get_info(const struct sluice_adapter *adapter,
                                           struct sluice_adapter_info *info);

/*
 Computes with adapters from now on, the product of each times its factor: texts, and logits of
 `sluice_eval`. `n_adapters` 0 is the model alone; null `scales` are factors of 1. A text that the context
 holds is forgotten where it was computed with others: a text is computed with the same ones throughout.
 They need room: `adapter_rank` of `sluice_context_params`. On failure nothing changes.

 # Safety
 - `context` is a handle, `adapters` points to `n_adapters` handles, `scales` is null or points to as
   many numbers.
 */
enum sluice_status sluice_context_set_adapters(const struct sluice_context *context,
                                               const struct sluice_adapter *const *adapters,
                                               const float *scales,
                                               size_t n_adapters);

/*
 The model's own template, and the assistant's turn is begun.
 */
struct sluice_chat_params sluice_chat_params_default(void);

/*
 The prompt for a conversation, without a zero at its end. Its length in bytes is written to
 `*text_len`; with a null `text` that is all. The prompt begins with the name of the token that the
 model wants there, so generate from it with `add_special` 0 and `parse_special` 1. `params` may be
 null.

 # Safety
 - `model` is a handle, `messages` points to `n_messages` messages whose texts end with a zero,
   `params` is null or a struct that begins with its size and whose texts are null or end with a
   zero, `text` is null or has room for `capacity` bytes, `text_len` is writable.
 */
enum sluice_status sluice_chat_render(const struct sluice_model *model,
                                      const struct sluice_chat_message *messages,
                                      size_t n_messages,
                                      const struct sluice_chat_params *params,
                                      char *text,
                                      size_t capacity,
                                      size_t *text_len);

/*
 The settings that most programs want.
 */
struct sluice_context_params sluice_context_params_default(void);

/*
 A context over a model. `params` may be null. On failure `*context` is null. A child that fork
 makes has no threads of its parent's contexts: it can free them and make new ones of the model.

 # Safety
 - `model` is a handle, `params` null or a struct that begins with its size, whose texts are null or
   end with a zero and whose model is null or a handle, `context` writable.
 */
enum sluice_status sluice_context_new(const struct sluice_model *model,
                                      const struct sluice_context_params *params,
                                      struct sluice_context **context);

/*
 Gives a context back. Null is allowed.

 # Safety
 - `context` is null or a handle that no thread is using, and that is not used any more.
 */
void sluice_context_free(struct sluice_context *context);

/*
 Forgets the text, and a request to cancel.

 # Safety
 - `context` is a handle.
 */
enum sluice_status sluice_context_reset(const struct sluice_context *context);

/*
 Asks the call that is running on the context, or else the next one, to end: it returns
 `SLUICE_CANCELLED` within a barrier of the engine, a few microseconds to milliseconds, and the
 request is done with. May be called from any thread and from a signal handler. Null is allowed.

 # Safety
 - `context` is null or a handle that is not freed meanwhile.
 */
void sluice_cancel(const struct sluice_context *context);

/*
 The logits behind a text of tokens, `n_vocab` numbers. What the context begins with already is
 not computed again. With a null `logits` only their number is written.

 # Safety
 - `context` is a handle, `tokens` points to `n_tokens` tokens, `logits` is null or has room for
   `capacity` numbers, `n_logits` is writable.
 */
enum sluice_status sluice_eval(const struct sluice_context *context,
                               const uint32_t *tokens,
                               size_t n_tokens,
                               float *logits,
                               size_t capacity,
                               size_t *n_logits);

/*
 The settings that most programs want: vectors of length 1.
 */
struct sluice_embedder_params sluice_embedder_params_default(void);

/*
 An embedder over a model: an encoder, or any other. `params` may be null. On failure `*embedder`
 is null. As a context, it cannot be used in a child that fork makes.

 # Safety
 - `model` is a handle, `params` null or a struct that begins with its size and whose text is null
   or ends with a zero, `embedder` writable.
 */
enum sluice_status sluice_embedder_new(const struct sluice_model *model,
                                       const struct sluice_embedder_params *params,
                                       struct sluice_embedder **embedder);

/*
 Gives an embedder back. Null is allowed.

 # Safety
 - `embedder` is null or a handle that no thread is using, and that is not used any more.
 */
void sluice_embedder_free(struct sluice_embedder *embedder);

/*
 Computes with adapters from now on: as `sluice_context_set_adapters`, for an embedder.

 # Safety
 - `embedder` is a handle, `adapters` points to `n_adapters` handles, `scales` is null or points to
   as many numbers.
 */
enum sluice_status sluice_embedder_set_adapters(const struct sluice_embedder *embedder,
                                                const struct sluice_adapter *const *adapters,
                                                const float *scales,
                                                size_t n_adapters);

/*
 A vector for each text, one behind the other: (n_texts, n_embd). How many numbers that are is
 written to `*n_numbers`; with a null `vectors` nothing else is done.

 # Safety
 - `embedder` is a handle, `texts` points to `n_texts` texts that end with a zero, `vectors` is
   null or has room for `capacity` numbers, `n_numbers` is writable.
 */
enum sluice_status sluice_embed(const struct sluice_embedder *embedder,
                                const char *const *texts,
                                size_t n_texts,
                                float *vectors,
                                size_t capacity,
                                size_t *n_numbers);

/*
 Fills in `*stats`. May be called while contexts of the model are at work.

 # Safety
 - `model` is a handle, `stats` a struct that begins with its size.
 */
enum sluice_status sluice_model_get_expert_stats(const struct sluice_model *model,
                                                 struct sluice_expert_stats *stats);

/*
 llama.cpp's settings, with seed 0.
 */
struct sluice_generate_params sluice_generate_params_default(void);

/*
 Goes on from `prompt`, handing tokens to `callback` as they come. What the context begins with
 already is not computed again, so a longer prompt continues a conversation cheaply.
 `params`, `callback` and `result` may be null. After `SLUICE_CANCELLED` too `*result` is filled
 in.

 # Safety
 - `context` is a handle, `prompt` points to `prompt_len` bytes, `params` is null or begins with
   its size and its texts are null or end with a zero, `result` begins with its size and is
   writable; `callback` may be called with `user_data`.
 */
enum sluice_status sluice_generate(const struct sluice_context *context,
                                   const char *prompt,
                                   size_t prompt_len,
                                   const struct sluice_generate_params *params,
                                   sluice_token_callback callback,
                                   void *user_data,
                                   struct sluice_generate_result *result);

/*
 The settings that most programs want.
 */
struct sluice_model_params sluice_model_params_default(void);

/*
 Opens the GGUF or .slc file at `path` and loads its weights. `params` may be null. On failure
 `*model` is null. A model whose experts stay on disk cannot be used in a child that fork makes.

 # Safety
 - `path` is a text that a zero ends, `params` null or a struct that begins with its size, whose texts
   are null or end with a zero, `model` writable.
 */
enum sluice_status sluice_model_open(const char *path,
                                     const struct sluice_model_params *params,
                                     struct sluice_model **model);

/*
 As `sluice_model_open`, of a GGUF file in memory. The bytes have to stay as they are until
 the model and its contexts are freed.

 # Safety
 - `bytes` points to `len` bytes that do not change for so long; the rest as for
   `sluice_model_open`.
 */
enum sluice_status sluice_model_from_bytes(const uint8_t *bytes,
                                           size_t len,
                                           const struct sluice_model_params *params,
                                           struct sluice_model **model);

/*
 Gives a model back; contexts that use it keep it in memory. Null is allowed.

 # Safety
 - `model` is null or a handle, which must not be used any more.
 */
void sluice_model_free(struct sluice_model *model);

/*
 Fills in `*info`.

 # Safety
 - `model` is a handle, `info` a struct that begins with its size.
 */
enum sluice_status sluice_model_get_info(const struct sluice_model *model,
                                         struct sluice_model_info *info);

/*
 The tokens of `text`. `add_special` puts the tokens around it that the model wants;
 `parse_special` reads names of control tokens in it as those tokens. Their number is written
 to `*n_tokens`; with a null `tokens` that is all.

 # Safety
 - `model` is a handle, `text` points to `text_len` bytes, `tokens` is null or has room for
   `capacity` tokens, `n_tokens` is writable.
 */
enum sluice_status sluice_tokenize(const struct sluice_model *model,
                                   const char *text,
                                   size_t text_len,
                                   bool add_special,
                                   bool parse_special,
                                   uint32_t *tokens,
                                   size_t capacity,
                                   size_t *n_tokens);

/*
 The text of tokens, without a zero at its end. Its length in bytes is written to `*text_len`;
 with a null `text` that is all.

 # Safety
 - `model` is a handle, `tokens` points to `n_tokens` tokens, `text` is null or has room for
   `capacity` bytes, `text_len` is writable.
 */
enum sluice_status sluice_detokenize(const struct sluice_model *model,
                                     const uint32_t *tokens,
                                     size_t n_tokens,
                                     char *text,
                                     size_t capacity,
                                     size_t *text_len);

/*
 What went wrong in the last call of this thread that failed, naming what and where; an
 empty text if none did. Valid until another call of this thread fails.
 */
const char *sluice_last_error(void);

/*
 The name of a status, such as `SLUICE_CANCELLED`.
 */
const char *sluice_status_name(int32_t status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLUICE_H */
