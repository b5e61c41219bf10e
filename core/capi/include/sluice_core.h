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
 Required alignment of the host's memory, in bytes.
 */
#define SLUICE_CORE_ALIGN 128

/*
 The result of a function.
 */
typedef enum sluice_core_status {
  /*
   Success.
   */
  SLUICE_CORE_OK = 0,
  /*
   A required pointer is null, or the memory is misaligned.
   */
  SLUICE_CORE_BAD_POINTER = 1,
  /*
   A setting is out of range.
   */
  SLUICE_CORE_INVALID_ARGUMENT = 2,
  /*
   The bytes are not a model that can be run.
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
   Ended by the callback or by `sluice_core_cancel`.
   */
  SLUICE_CORE_CANCELLED = 6,
} sluice_core_status;

/*
 An engine in the host's memory. It runs only the model; adapters (LoRA) are available in `sluice.h` and in Rust.
 */
typedef struct sluice_core sluice_core;

/*
 A part of a step: call it as `job(argument, rank)`.
 */
typedef void (*sluice_core_job)(void *argument, size_t rank);

/*
 Calls `job(argument, rank)` for every rank below `n_ranks`, all at the same time, each on a core
 or thread of its own, and returns when all have returned. Null to use one core.
 */
typedef void (*sluice_core_spread)(void *host,
                                   size_t n_ranks,
                                   sluice_core_job job,
                                   void *argument);

/*
 Settings of an engine. Begin with `sluice_core_params_default()`, and pass the same settings to
 `sluice_core_memory_bytes` and `sluice_core_init`.
 */
typedef struct sluice_core_params {
  /*
   `SLUICE_CORE_ABI_VERSION`.
   */
  uint32_t abi_version;
  /*
   Context size in tokens; 0 is the size that the model was trained with.
   */
  uint32_t n_ctx;
  /*
   Maximum number of prompt tokens per step, 1 to 256. Does not change the results.
   */
  uint32_t n_batch;
  /*
   Number of cores per step, 1 to 256; more than 1 requires `spread`. Does not change the
   results.
   */
  uint32_t n_threads;
  /*
   Maximum length of a prompt, in bytes.
   */
  uint32_t prompt_bytes;
  /*
   Temperature; 0 always picks the most likely token.
   */
  float temperature;
  /*
   Random seed.
   */
  uint64_t seed;
  /*
   Runs a step on several cores.
   */
  sluice_core_spread spread;
  /*
   Passed to `spread`.
   */
  void *host;
  /*
   1 parses the names of control tokens in a prompt; use 0 for text from other people.
   */
  uint32_t parse_special;
  /*
   Must be 0.
   */
  uint32_t reserved;
} sluice_core_params;

/*
 An error. Functions fill it in on failure unless the pointer is null.
 */
typedef struct sluice_core_error {
  /*
   The status that is returned.
   */
  enum sluice_core_status status;
  /*
   What failed and where, terminated by a zero.
   */
  char message[244];
} sluice_core_error;

/*
 Receives text as it is generated, in whole UTF-8 characters; returns whether to continue.
 */
typedef bool (*sluice_core_callback)(const char *piece, size_t piece_len, void *user_data);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 One core, the model's own context size, prompts of up to 4096 bytes, temperature 0.8, seed 0.
 */
struct sluice_core_params sluice_core_params_default(void);

/*
 Computes the memory needed for the model in `bytes`, including its weights, from the header
 alone.

 # Safety
 - `bytes` points to `len` bytes; `params`, `memory_bytes` and `error` are null or valid.
 */
enum sluice_core_status sluice_core_memory_bytes(const uint8_t *bytes,
                                                 size_t len,
                                                 const struct sluice_core_params *params,
                                                 size_t *memory_bytes,
                                                 struct sluice_core_error *error);

/*
 Loads the GGUF model in `bytes` into `memory`, which must be aligned to `SLUICE_CORE_ALIGN`. Both
 belong to the library as long as `*core` is used; the bytes must not change.

 # Safety
 - `bytes` points to `len` bytes, `memory` to `memory_len` bytes that nothing else uses; the
   other pointers are null or valid.
 */
enum sluice_core_status sluice_core_init(const uint8_t *bytes,
                                         size_t len,
                                         const struct sluice_core_params *params,
                                         void *memory,
                                         size_t memory_len,
                                         struct sluice_core **core,
                                         struct sluice_core_error *error);

/*
 Continues the text so far with `prompt`, and generates at most `n_predict` tokens. The callback
 may be null.

 # Safety
 - `core` is null or was returned by `sluice_core_init`, and during the call only
   `sluice_core_cancel` and `sluice_core_isa` use it; `prompt` points to `prompt_len` bytes; the
   callback may be called with `user_data`; `error` is null or valid.
 */
enum sluice_core_status sluice_core_generate(struct sluice_core *core,
                                             const char *prompt,
                                             size_t prompt_len,
                                             size_t n_predict,
                                             sluice_core_callback callback,
                                             void *user_data,
                                             struct sluice_core_error *error);

/*
 Discards the text and a pending cancellation. `core` may be null.

 # Safety
 - `core` is null or was returned by `sluice_core_init`, and nothing else is using it.
 */
void sluice_core_reset(struct sluice_core *core);

/*
 Ends the current generation, or the next one if none is running, with `SLUICE_CORE_CANCELLED`.
 May be called from another core or an interrupt. `core` may be null.

 # Safety
 - `core` is null or was returned by `sluice_core_init`.
 */
void sluice_core_cancel(const struct sluice_core *core);

/*
 A hash over the bits of all logits since the last reset from which tokens were drawn: equal on
 every CPU, with any number of cores. 0 if `core` is null.

 # Safety
 - `core` is null or was returned by `sluice_core_init`, and nothing else is using it.
 */
uint64_t sluice_core_logits_hash(const struct sluice_core *core);

/*
 The name of the kernels in use, such as `avx2`, with its length in `*len`. Null if `core` is
 null.

 # Safety
 - `core` is null or was returned by `sluice_core_init`; `len` is writable.
 */
const char *sluice_core_isa(const struct sluice_core *core, size_t *len);

extern void sluice_core_panic(const uint8_t *message, size_t len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLUICE_CORE_H */
