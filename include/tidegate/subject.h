/* A kernel as a shared library that `tidegate check --subject lib:PATH.so` tries: the C ABI. C99 and C++.
 *
 * The library exports one function, tidegate_subject, and is loaded into a process of its own: a crash or a hang is a
 * result. It is called for one request after another from one thread; what it keeps between calls stays.
 *
 * Tensors and metadata keys have the names of docs/protocol.md and docs/subjects.md. */
#ifndef TIDEGATE_SUBJECT_H
#define TIDEGATE_SUBJECT_H

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
extern "C" {
#else
#include <stddef.h>
#include <stdint.h>
#endif

/* tg_tensor.dtype. bf16 and fp16 are 16-bit patterns. */
enum { TG_FP32 = 0, TG_BF16 = 1, TG_FP16 = 2, TG_FP64 = 3, TG_INT32 = 4, TG_INT64 = 5 };

/* What tidegate_subject returns. Any other number is an error: the case fails, with the message as its reason. */
enum { TG_ANSWERED = 0, TG_SKIPPED = 77 };

typedef struct {
    const char* name;
    int32_t dtype, rank;
    int64_t shape[5], stride[5]; /* the first `rank` count; strides are in elements */
    void* data;                  /* host memory, aligned to 64 bytes; never dereferenced where an extent is 0 */
} tg_tensor;

/* Answers one request.
 *
 * metadata_json  the request's metadata: one JSON object of strings, without blanks between its tokens, such as
 *                {"gates":"given","rule":"gdn"}; an absent key means its default
 * in, n_in       the tensors that the request holds, in any order: names decide, and what is absent is not there (no
 *                initial_state: zeros). Read-only, a state pool too: a write to them is a segmentation fault
 * out, n_out     exactly the tensors to answer, allocated. `state` is preset to a copy of the pool; all others hold
 *                poison, NaNs that no arithmetic produces: what still holds it after the call was never written, and
 *                the case fails. Poison and then inaccessible pages lie around every tensor: a write outside is found
 * message        NUL-terminated UTF-8 with the reason of a skip or error, truncated to message_size bytes, NUL
 *                included. Empty at the call; may stay so
 *
 * TG_SKIPPED is for what the kernel does not do; a skipped case neither passes nor fails. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
int tidegate_subject(const char* metadata_json, const tg_tensor* in, int n_in, tg_tensor* out, int n_out, char* message,
                     size_t message_size);

#ifdef __cplusplus
}
#endif
#endif
