/* Sluice as a C library. Made by cbindgen from hosted/capi/src: edit those files. */

#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 The version of this interface. A program compiled against another version must not use the
 library.
 */
#define SLUICE_ABI_VERSION 5

/*
 The result of a function. `sluice_last_error()` describes every result except `SLUICE_OK`.
 */
typedef enum sluice_status {
  /*
   Success.
   */
  SLUICE_OK = 0,
  /*
   A required pointer is null.
   */
  SLUICE_NULL_POINTER = 1,
  /*
   A setting is out of range, or a struct has another version.
   */
  SLUICE_INVALID_ARGUMENT = 2,
  /*
   A text is not UTF-8.
   */
  SLUICE_INVALID_UTF8 = 3,
  /*
   The file does not exist, cannot be read, or is not a model that can be run.
   */
  SLUICE_INVALID_MODEL = 4,
  /*
   Not enough memory.
   */
  SLUICE_OUT_OF_MEMORY = 5,
  /*
   A text has more tokens than the context.
   */
  SLUICE_CONTEXT_FULL = 6,
  /*
   Ended by the callback or by `sluice_cancel`. What was done before remains valid.
   */
  SLUICE_CANCELLED = 7,
  /*
   Another thread is using the context.
   */
  SLUICE_BUSY = 8,
  /*
   The caller's buffer is too small; the required length was written.
   */
  SLUICE_BUFFER_TOO_SMALL = 9,
  /*
   The library failed. The process is unharmed, and other handles can still be used.
   */
  SLUICE_INTERNAL = 10,
  /*
   The adapter does not exist, cannot be read, or does not match the model.
   */
  SLUICE_INVALID_ADAPTER = 11,
  /*
   An expert could not be read from disk. What was done before remains valid, and the next call
   tries again.
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
 An adapter in memory, for one model. Contexts and embedders that use it keep it alive.
 */
typedef struct sluice_adapter sluice_adapter;

/*
 The state of one text: its KV cache, threads and working memory.
 */
typedef struct sluice_context sluice_context;

/*
 A model that computes embeddings. Threads that use it at the same time wait for each other.
 */
typedef struct sluice_embedder sluice_embedder;

/*
 A model in memory. Contexts share it and keep it alive.
 */
typedef struct sluice_model sluice_model;

/*
 Settings for loading an adapter. Begin with `sluice_adapter_params_default()`.
 */
typedef struct sluice_adapter_params {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Type in memory: `int8`, `bf16`, `f16`, `f32`, or `auto`, which is the smallest of the last three
   that represents a matrix exactly; null is `auto`.
   */
  const char *dtype;
  /*
   Folder of the Hugging Face model that a PEFT adapter belongs to (its config.json is enough);
   null takes the sizes from the model.
   */
  const char *base;
} sluice_adapter_params;

/*
 Information about an adapter. Set `struct_bytes` before the call.
 */
typedef struct sluice_adapter_info {
  /*
   Set to `sizeof` this struct.
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
   Its share of a context's `adapter_rank`: the rank, rounded up to 16.
   */
  uint32_t adapter_rank;
  /*
   Parts of its file that have no effect, one sentence per line; empty if there are none. Valid
   as long as the handle.
   */
  const char *warnings;
} sluice_adapter_info;

/*
 Settings for rendering a conversation. Begin with `sluice_chat_params_default()`.
 */
typedef struct sluice_chat_params {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   A Jinja template, or the name of a built-in one (`chatml`, `llama3`, …); null is the model's
   own.
   */
  const char *chat_template;
  /*
   Functions that the model may call, as a JSON array of schemas; null for none.
   */
  const char *tools;
  /*
   Further variables of the template, as a JSON object; null for none.
   */
  const char *variables;
  /*
   1 appends the beginning of the assistant's turn.
   */
  uint32_t add_generation_prompt;
  /*
   Must be 0.
   */
  uint32_t reserved;
  /*
   The conversation as a JSON array of messages as in OpenAI's API, which may have calls and their results; null
   for `messages`, which has to be empty otherwise.
   */
  const char *messages_json;
} sluice_chat_params;

/*
 A message of a conversation. The size of this struct never changes.
 */
typedef struct sluice_chat_message {
  /*
   `system`, `user`, `assistant`, or another role that the template knows.
   */
  const char *role;
  /*
   The text of the message.
   */
  const char *content;
} sluice_chat_message;

/*
 Settings of a context. Begin with `sluice_context_params_default()`.
 */
typedef struct sluice_context_params {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Context size in tokens; 0 is the size that the model was trained with.
   */
  uint32_t n_ctx;
  /*
   Maximum number of prompt tokens per step.
   */
  uint32_t n_batch;
  /*
   Number of threads, including the calling one; 0 is one per physical core. They are not
   pinned.
   */
  uint32_t n_threads;
  /*
   1 stores keys and values of q8_0, q4_0 and fp8 as they are; 0 rotates them first, which preserves more
   accuracy.
   */
  uint32_t no_kv_rotation;
  /*
   Kernels by name (`scalar`, `avx2`, …); null for the fastest. All give identical bits.
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
   Room for adapters: the total of those that are set at once (`sluice_adapter_info`); 0 for
   none.
   */
  uint32_t adapter_rank;
  /*
   Maximum number of draft tokens per step, 1 to 16; 0 is 8, or 4 if the model is recurrent.
   */
  uint32_t n_draft;
  /*
   Source of draft tokens that a step verifies. `auto` uses the text itself, earlier texts of the context, and
   `draft_model` or else the model's own head for further tokens if its file has one; `none` uses nothing. Null is
   `auto`. Texts, logits and hashes do not depend on it.
   */
  const char *speculation;
  /*
   A smaller model with the same vocabulary that drafts on the threads of the context; null for none. The
   context keeps it alive, and has a KV cache for it.
   */
  const struct sluice_model *draft_model;
  /*
   Minimum number of draft tokens that is worth verifying, 0 to 16; fewer are discarded.
   */
  uint32_t n_draft_min;
  /*
   A draft ends at a token that is less probable than this, 0 to 1.
   */
  float draft_p_min;
  /*
   Which neurons are left unread: `exact`, which changes no bit and takes a file packed by neuron, or `off`. Null is
   `exact` where the file allows it; given by name, `exact` refuses other files. `threshold`, `target`, `top-k:N` and
   `budget:SHARE` change results (docs/sparsity.md), and the fingerprint of states.
   */
  const char *sparse;
  /*
   The calibration file of `threshold` and `target`; null is the one next to the model.
   */
  const char *sparse_file;
} sluice_context_params;

/*
 Settings of an embedder. Begin with `sluice_embedder_params_default()`.
 */
typedef struct sluice_embedder_params {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Maximum number of tokens per text; 0 is the size that the model was trained with.
   */
  uint32_t n_ctx;
  /*
   Maximum number of tokens per step; encoders use more if a text is longer.
   */
  uint32_t n_batch;
  /*
   Number of threads, including the calling one; 0 is one per physical core. They are not
   pinned.
   */
  uint32_t n_threads;
  /*
   Vectors are divided by their p-norm with this p; 0 leaves them unscaled.
   */
  uint32_t norm;
  /*
   Pooling of token vectors: `mean`, `cls` (the first) or `last`; null is the model file's
   setting, or else `mean`.
   */
  const char *pooling;
  /*
   Room for adapters: the total of those that are set at once (`sluice_adapter_info`); 0 for
   none.
   */
  uint32_t adapter_rank;
  /*
   Must be 0.
   */
  uint32_t reserved;
} sluice_embedder_params;

/*
 Statistics of a model's experts since it was opened. Set `struct_bytes` before the call.
 */
typedef struct sluice_expert_stats {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Experts of all layers; 0 if they are in memory, and then all other numbers are 0 as well.
   */
  uint64_t n_experts;
  /*
   Number of experts that fit into memory.
   */
  uint64_t n_slots;
  /*
   Bytes per expert.
   */
  uint64_t slot_bytes;
  /*
   Number of times a layer of a step needed an expert.
   */
  uint64_t needed;
  /*
   How many of them were in memory.
   */
  uint64_t hits;
  /*
   How many of them were being read because of a correct guess.
   */
  uint64_t late;
  /*
   Number of experts evicted.
   */
  uint64_t evictions;
  /*
   Number of experts read speculatively.
   */
  uint64_t guessed;
  /*
   How many of them were used.
   */
  uint64_t guessed_needed;
  /*
   Number of completed reads.
   */
  uint64_t reads;
  /*
   Bytes read.
   */
  uint64_t read_bytes;
  /*
   Number of failed reads that were retried.
   */
  uint64_t retries;
  /*
   Number of experts that could not be read.
   */
  uint64_t failures;
  /*
   Time that threads waited for experts, in nanoseconds, summed over threads.
   */
  uint64_t stall_ns;
} sluice_expert_stats;

/*
 Settings for generating text. Begin with `sluice_generate_params_default()`; names and defaults
 are llama.cpp's.
 */
typedef struct sluice_generate_params {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Random seed: the same seed gives the same text.
   */
  uint64_t seed;
  /*
   Maximum number of tokens; -1 for as many as fit.
   */
  int32_t n_predict;
  /*
   Temperature; 0 always picks the most likely token.
   */
  float temperature;
  /*
   Number of most likely tokens to sample from; 0 keeps all.
   */
  uint32_t top_k;
  /*
   Total probability of the most likely tokens to keep; 1 keeps all.
   */
  float top_p;
  /*
   Minimum probability relative to the most likely token; 0 keeps all.
   */
  float min_p;
  /*
   Number of most recent tokens to penalise.
   */
  uint32_t repeat_last_n;
  /*
   Repetition penalty; 1 is off.
   */
  float repeat_penalty;
  /*
   Frequency penalty; 0 is off.
   */
  float frequency_penalty;
  /*
   Presence penalty; 0 is off.
   */
  float presence_penalty;
  /*
   1 continues after tokens that end a text.
   */
  uint32_t ignore_eos;
  /*
   1 adds the special tokens that the model needs around the prompt; use 0 for a prompt that
   contains them, such as one from `sluice_chat_render`.
   */
  uint32_t add_special;
  /*
   1 parses the names of control tokens in the prompt; use 0 for text from other people.
   */
  uint32_t parse_special;
  /*
   A grammar in GBNF that constrains the text; null for none.
   */
  const char *grammar;
  /*
   A JSON schema that constrains the text; null for none. Cannot be combined with `grammar`.
   */
  const char *json_schema;
} sluice_generate_params;

/*
 Receives text as it is generated: a token, and the whole characters that it completes, as
 `piece_len` bytes of UTF-8 followed by a zero. Bytes left over at the end are passed with the
 last token once more. Returns whether to continue. Called on the generating thread; it must not
 throw, and the only function it may call with this context is `sluice_cancel`.
 */
typedef bool (*sluice_token_callback)(uint32_t token,
                                      const char *piece,
                                      size_t piece_len,
                                      void *user_data);

/*
 The result of a generation. Set `struct_bytes` before the call.
 */
typedef struct sluice_generate_result {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Hash over the bits of all logits from which tokens were drawn: equal on every CPU, with any
   number of threads.
   */
  uint64_t logits_hash;
  /*
   Time for the prompt, in nanoseconds.
   */
  uint64_t prompt_ns;
  /*
   Time for the tokens after the first one, in nanoseconds.
   */
  uint64_t eval_ns;
  /*
   Number of prompt tokens.
   */
  uint32_t n_prompt;
  /*
   How many of them the context already held.
   */
  uint32_t n_reused;
  /*
   Number of generated tokens.
   */
  uint32_t n_generated;
  /*
   Why it ended.
   */
  enum sluice_ended ended;
  /*
   Number of draft tokens that were verified; `eval_ns` includes their rows.
   */
  uint32_t n_draft;
  /*
   How many of them were accepted, and thus took no step of their own.
   */
  uint32_t n_accepted;
} sluice_generate_result;

/*
 Settings for opening a model. Begin with `sluice_model_params_default()`.
 */
typedef struct sluice_model_params {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Number of threads that load the model; 0 is one per physical core.
   */
  uint32_t n_threads;
  /*
   0 reads the file into memory, 1 maps it unless its experts stay on disk. If a mapped file is truncated while it
   is in use, the process gets a SIGBUS: the library installs no signal handler.
   */
  uint32_t use_mmap;
  /*
   Memory for a mixture's experts, in bytes: experts stay on disk, and as many as fit are cached. 0 keeps all in
   memory. Also for the cold neurons of a dense model by neuron, of which 64 count as an expert.
   */
  uint64_t expert_cache_bytes;
  /*
   How experts are read: `uring`, `pread` or `mmap`; null is the first that works.
   */
  const char *expert_io;
  /*
   Eviction policy: `aged`, `lru`, `lfu`, `fifo`, `heat`, or `static` with a profile; null is `aged`.
   */
  const char *expert_policy;
  /*
   Profile of the experts that `static` keeps; null for none.
   */
  const char *expert_profile;
  /*
   1 reads experts only when their layer is reached; 0 also prefetches them by prediction.
   */
  uint32_t no_expert_prefetch;
  /*
   1 verifies the checksums of experts as they are read.
   */
  uint32_t expert_check;
  /*
   The activation of the networks' gates instead of the file's: `relu`, `drelu`, or `fatrelu:0.01` with a threshold,
   for files of models with zeros that do not name it; null is the file's.
   */
  const char *activation;
} sluice_model_params;

/*
 Information about a model. Set `struct_bytes` before the call.
 */
typedef struct sluice_model_info {
  /*
   Set to `sizeof` this struct.
   */
  size_t struct_bytes;
  /*
   Bytes of weights in memory.
   */
  uint64_t weight_bytes;
  /*
   Number of tokens in the vocabulary.
   */
  uint32_t n_vocab;
  /*
   Context size that it was trained with, in tokens.
   */
  uint32_t n_ctx_train;
  /*
   Length of the hidden state.
   */
  uint32_t n_embd;
  /*
   Number of layers.
   */
  uint32_t n_layer;
  /*
   The beginning-of-sequence token, or -1.
   */
  int32_t token_bos;
  /*
   The end-of-sequence token, or -1.
   */
  int32_t token_eos;
} sluice_model_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The [`SLUICE_ABI_VERSION`] of the loaded library.
 */
uint32_t sluice_abi_version(void);

/*
 The library's version, such as `0.1.0`.
 */
const char *sluice_version(void);

/*
 The default settings.
 */
struct sluice_adapter_params sluice_adapter_params_default(void);

/*
 Loads the adapter at `path` for a model: a PEFT folder, or llama.cpp's GGUF file. `params` may be
 null. On failure `*adapter` is null. The model may be freed before the adapter.

 # Safety
 - `model` is a handle, `path` a zero-terminated text, `params` null or a struct that begins with
   its size and whose texts are null or zero-terminated, `adapter` writable.
 */
enum sluice_status sluice_adapter_load(const struct sluice_model *model,
                                       const char *path,
                                       const struct sluice_adapter_params *params,
                                       struct sluice_adapter **adapter);

/*
 Frees an adapter; contexts and embedders that use it keep it in memory. `adapter` may be null.

 # Safety
 - `adapter` is null or a handle, which must not be used afterwards.
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
 Applies adapters from now on, each multiplied by its factor, to generated text and to the logits of
 `sluice_eval`. `n_adapters` 0 selects the model alone; if `scales` is null, all factors are 1. If the
 context holds a text that was computed with other adapters, the text is discarded, because a text is
 always computed with the same ones. The adapters must fit into the `adapter_rank` of
 `sluice_context_params`. On failure nothing changes.

 # Safety
 - `context` is a handle, `adapters` points to `n_adapters` handles, `scales` is null or points to as
   many numbers.
 */
enum sluice_status sluice_context_set_adapters(const struct sluice_context *context,
                                               const struct sluice_adapter *const *adapters,
                                               const float *scales,
                                               size_t n_adapters);

/*
 The model's own template, with the beginning of the assistant's turn.
 */
struct sluice_chat_params sluice_chat_params_default(void);

/*
 Renders the prompt for a conversation, without a terminating zero, and writes its length in bytes
 to `*text_len`; with a null `text` only the length is written. Messages and tools that the template cannot take are
 rewritten. The prompt includes the beginning-of-sequence token if the model needs one, so generate from it with
 `add_special` 0 and `parse_special` 1. `params` may be null.

 # Safety
 - `model` is a handle, `messages` points to `n_messages` messages whose texts are
   zero-terminated, `params` is null or a struct that begins with its size and whose texts are null
   or zero-terminated, `text` is null or has room for `capacity` bytes, `text_len` is writable.
 */
enum sluice_status sluice_chat_render(const struct sluice_model *model,
                                      const struct sluice_chat_message *messages,
                                      size_t n_messages,
                                      const struct sluice_chat_params *params,
                                      char *text,
                                      size_t capacity,
                                      size_t *text_len);

/*
 The default settings.
 */
struct sluice_context_params sluice_context_params_default(void);

/*
 Creates a context over a model. `params` may be null. On failure `*context` is null. A child
 created by fork has no threads of its parent's contexts: it can free them and create new ones
 from the model.

 # Safety
 - `model` is a handle, `params` null or a struct that begins with its size, whose texts are null or
   zero-terminated and whose model is null or a handle, `context` writable.
 */
enum sluice_status sluice_context_new(const struct sluice_model *model,
                                      const struct sluice_context_params *params,
                                      struct sluice_context **context);

/*
 Frees a context. `context` may be null.

 # Safety
 - `context` is null or a handle that no thread is using, and that is not used afterwards.
 */
void sluice_context_free(struct sluice_context *context);

/*
 Discards the text and a pending cancellation.

 # Safety
 - `context` is a handle.
 */
enum sluice_status sluice_context_reset(const struct sluice_context *context);

/*
 Cancels the current call on the context, or the next one if none is running: it returns
 `SLUICE_CANCELLED` at the engine's next barrier, within microseconds to a few milliseconds, and
 the request is consumed. May be called from any thread and from a signal handler. `context` may
 be null.

 # Safety
 - `context` is null or a handle that is not freed during the call.
 */
void sluice_cancel(const struct sluice_context *context);

/*
 Computes the logits after a text of tokens, `n_vocab` numbers. A prefix that the context already
 holds is not computed again. With a null `logits` only their number is written.

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
 The default settings: vectors of length 1.
 */
struct sluice_embedder_params sluice_embedder_params_default(void);

/*
 Creates an embedder over a model: an encoder or any other. `params` may be null. On failure
 `*embedder` is null. Like a context, it cannot be used in a child created by fork.

 # Safety
 - `model` is a handle, `params` null or a struct that begins with its size and whose text is null
   or zero-terminated, `embedder` writable.
 */
enum sluice_status sluice_embedder_new(const struct sluice_model *model,
                                       const struct sluice_embedder_params *params,
                                       struct sluice_embedder **embedder);

/*
 Frees an embedder. `embedder` may be null.

 # Safety
 - `embedder` is null or a handle that no thread is using, and that is not used afterwards.
 */
void sluice_embedder_free(struct sluice_embedder *embedder);

/*
 Applies adapters from now on, as `sluice_context_set_adapters` does for contexts.

 # Safety
 - `embedder` is a handle, `adapters` points to `n_adapters` handles, `scales` is null or points to
   as many numbers.
 */
enum sluice_status sluice_embedder_set_adapters(const struct sluice_embedder *embedder,
                                                const struct sluice_adapter *const *adapters,
                                                const float *scales,
                                                size_t n_adapters);

/*
 Computes a vector for each text, stored consecutively: (n_texts, n_embd). Writes the number of
 floats to `*n_numbers`; with a null `vectors` nothing else is done.

 # Safety
 - `embedder` is a handle, `texts` points to `n_texts` zero-terminated texts, `vectors` is null
   or has room for `capacity` numbers, `n_numbers` is writable.
 */
enum sluice_status sluice_embed(const struct sluice_embedder *embedder,
                                const char *const *texts,
                                size_t n_texts,
                                float *vectors,
                                size_t capacity,
                                size_t *n_numbers);

/*
 Fills in `*stats`. May be called while contexts of the model are in use.

 # Safety
 - `model` is a handle, `stats` a struct that begins with its size.
 */
enum sluice_status sluice_model_get_expert_stats(const struct sluice_model *model,
                                                 struct sluice_expert_stats *stats);

/*
 llama.cpp's defaults, with seed 0.
 */
struct sluice_generate_params sluice_generate_params_default(void);

/*
 Generates a continuation of `prompt` and passes tokens to `callback`. A prefix that the context
 already holds is not computed again, so a longer prompt continues a conversation cheaply.
 `params`, `callback` and `result` may be null. `*result` is filled in even after
 `SLUICE_CANCELLED`.

 # Safety
 - `context` is a handle, `prompt` points to `prompt_len` bytes, `params` is null or begins with
   its size and its texts are null or zero-terminated, `result` begins with its size and is
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
 The default settings.
 */
struct sluice_model_params sluice_model_params_default(void);

/*
 Opens the GGUF or .slc file at `path` and loads its weights. `params` may be null. On failure
 `*model` is null. A model whose experts stay on disk cannot be used in a child created by fork.

 # Safety
 - `path` is a zero-terminated text, `params` null or a struct that begins with its size, whose texts
   are null or zero-terminated, `model` writable.
 */
enum sluice_status sluice_model_open(const char *path,
                                     const struct sluice_model_params *params,
                                     struct sluice_model **model);

/*
 Like `sluice_model_open`, but for a GGUF file in memory. The bytes must not change until the
 model and its contexts are freed.

 # Safety
 - `bytes` points to `len` bytes that do not change during that time; otherwise as for
   `sluice_model_open`.
 */
enum sluice_status sluice_model_from_bytes(const uint8_t *bytes,
                                           size_t len,
                                           const struct sluice_model_params *params,
                                           struct sluice_model **model);

/*
 Frees a model; contexts that use it keep it in memory. `model` may be null.

 # Safety
 - `model` is null or a handle, which must not be used afterwards.
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
 Tokenizes `text`. `add_special` adds the special tokens that the model needs around it;
 `parse_special` parses the names of control tokens in it. Writes the number of tokens to
 `*n_tokens`; with a null `tokens` only the number is written.

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
 Converts tokens to text, without a terminating zero, and writes its length in bytes to
 `*text_len`; with a null `text` only the length is written.

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
 Describes the last failed call of this thread; an empty text if none has failed. Valid until
 another call of this thread fails.
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
