/* The Sluice engine without a C library. Made by cbindgen from core/capi/src: edit that. */

#ifndef SLUICE_CORE_H
#define SLUICE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 The version of this interface.
 */
#define SLUICE_CORE_ABI_VERSION 2

/*
 What the host's memory is aligned to, in bytes.
 */
#define SLUICE_CORE_ALIGN 128

/*
 What a function returns.
 */
typedef enum sluice_core_status {
  /*
   It is done.
   */
  SLUICE_CORE_OK = 0,
  /*
   A pointer that has to point somewhere is null, or the memory is misaligned.
   */
  SLUICE_CORE_BAD_POINTER = 1,
  /*
   A setting is outside its range.
   */
  SLUICE_CORE_INVALID_ARGUMENT = 2,
  /*
   The bytes are no model that can be run.
   */
  SLUICE_CORE_INVALID_MODEL = 3,
  /*
   The memory is too small.
   */
  SLUICE_CORE_OUT_OF_MEMORY = 4,
  /*
   The text does not fit into the context.
   */
  SLUICE_CORE_CONTEXT_FULL = 5,
  /*
   The callback or `sluice_core_cancel` ended it.
   */
  SLUICE_CORE_CANCELLED = 6,
} sluice_core_status;

/*
 An engine in the host's memory. It runs the model alone: adapters (LoRA) are not offered here, but in `sluice.h` and
 to programs in Rust.
 */
typedef struct sluice_core sluice_core;

/*
 A part of a step: calls `job(argument, rank)`.
 */
typedef void (*sluice_core_job)(void *argument, size_t rank);

/*
 Calls `job(argument, rank)` with every rank below `n_ranks`, all at the same time, each on a
 core or thread of its own, and returns when all have returned. Null for one core.
 */
typedef void (*sluice_core_spread)(void *host,
                                   size_t n_ranks,
                                   sluice_core_job job,
                                   void *argument);

/*
 How the engine is made. Begin with `sluice_core_params_default()`, and hand the same to
 `sluice_core_memory_bytes` and `sluice_core_init`.
 */
typedef struct sluice_core_params {
  /*
   `SLUICE_CORE_ABI_VERSION`.
   */
  uint32_t abi_version;
  /*
   Tokens of context; 0 is what the model was trained on.
   */
  uint32_t n_ctx;
  /*
   Most tokens of a prompt that are computed at once, 1 to 256. The results are the same.
   */
  uint32_t n_batch;
  /*
   Cores that a step runs on, 1 to 256; more than 1 needs `spread`. The results are the same.
   */
  uint32_t n_threads;
  /*
   Most bytes of a prompt.
   */
  uint32_t prompt_bytes;
  /*
   0 chooses the best token.
   */
  float temperature;
  /*
   Key of the random numbers.
   */
  uint64_t seed;
  /*
   Runs a step on several cores.
   */
  sluice_core_spread spread;
  /*
   Handed to `spread`.
   */
  void *host;
  /*
   1 reads names of control tokens in a prompt as those tokens; 0 is for text that others wrote.
   */
  uint32_t parse_special;
  /*
   0.
   */
  uint32_t reserved;
} sluice_core_params;

/*
 What went wrong. Functions fill it in where they fail and the pointer is not null.
 */
typedef struct sluice_core_error {
  /*
   As returned.
   */
  enum sluice_core_status status;
  /*
   Names what and where; a zero ends it.
   */
  char message[244];
} sluice_core_error;

/*
 Is handed a text as it comes, in whole characters of UTF-8; returns whether it wants more.
 */
typedef bool (*sluice_core_callback)(const char *piece, size_t piece_len, void *user_data);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 One core, the model's own context, prompts of 4096 bytes, temperature 0.8, seed 0.
 */
struct sluice_core_params sluice_core_params_default(void);

/*
 How much memory the model in `bytes` takes, with its weights: arithmetic on the header.

 # Safety
 - `bytes` points to `len` bytes; `params`, `memory_bytes` and `error` are null or point to what
   they say.
 */
enum sluice_core_status sluice_core_memory_bytes(const uint8_t *bytes,
                                                 size_t len,
                                                 const struct sluice_core_params *params,
                                                 size_t *memory_bytes,
                                                 struct sluice_core_error *error);

/*
 Loads the GGUF model in `bytes` into `memory`, which is aligned to `SLUICE_CORE_ALIGN`. Both stay the
 library's for as long as `*core` is used; the bytes must not change.

 # Safety
 - `bytes` points to `len` bytes, `memory` to `memory_len` that nobody else uses; the other
   pointers are null or point to what they say.
 */
enum sluice_core_status sluice_core_init(const uint8_t *bytes,
                                         size_t len,
                                         const struct sluice_core_params *params,
                                         void *memory,
                                         size_t memory_len,
                                         struct sluice_core **core,
                                         struct sluice_core_error *error);

/*
 Goes on from `prompt`, with at most `n_predict` tokens, behind what was said before. The
 callback may be null.

 # Safety
 - `core` is null or came from `sluice_core_init`, and meanwhile it is used for
   `sluice_core_cancel` and `sluice_core_isa` alone; `prompt` points to `prompt_len` bytes; the
   callback may be called with `user_data`; `error` is null or points to one.
 */
enum sluice_core_status sluice_core_generate(struct sluice_core *core,
                                             const char *prompt,
                                             size_t prompt_len,
                                             size_t n_predict,
                                             sluice_core_callback callback,
                                             void *user_data,
                                             struct sluice_core_error *error);

/*
 Forgets what was said, and a request to cancel. Null is allowed.

 # Safety
 - `core` is null or came from `sluice_core_init`, and nobody else is using it.
 */
void sluice_core_reset(struct sluice_core *core);

/*
 Asks the generation that is running, or else the next one, to end with
 `SLUICE_CORE_CANCELLED`. From another core or an interrupt. Null is allowed.

 # Safety
 - `core` is null or came from `sluice_core_init`.
 */
void sluice_core_cancel(const struct sluice_core *core);

/*
 A hash over the bits of all logits that tokens were drawn from since the last reset: the same on
 every CPU, with any number of cores. 0 for null.

 # Safety
 - `core` is null or came from `sluice_core_init`, and nobody else is using it.
 */
uint64_t sluice_core_logits_hash(const struct sluice_core *core);

/*
 The kernels in use, such as `avx2`: a text that is `*len` bytes long. Null for null.

 # Safety
 - `core` is null or came from `sluice_core_init`; `len` is writable.
 */
const char *sluice_core_isa(const struct sluice_core *core, size_t *len);

extern void sluice_core_panic(const uint8_t *message, size_t len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLUICE_CORE_H */
