/* What a peer's plugin offers `tidegate bench`: somebody else's kernel on the same tensors in the same run. C ABI. */
#ifndef TIDEGATE_BENCH_PEER_H
#define TIDEGATE_BENCH_PEER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Dense fp32 tensors, one sequence; the plugin copies what it keeps in a layout of its own (outside the timed call). */
typedef struct {
    const char* rule; /* "gdn" or "kda" */
    int64_t T, H, HV, K, V;
    int threads;
    double scale;
    const float* q;     /* [T, H, K] */
    const float* k;     /* [T, H, K] */
    const float* v;     /* [T, HV, V] */
    const float* g;     /* gdn [T, HV], kda [T, HV, K]: natural log of the decay */
    const float* beta;  /* [T, HV] */
    const float* state; /* [HV, K, V] */
} tg_peer_problem;

const char* tg_peer_name(void); /* name and version, for the report */
/* NULL and a message if the peer cannot do it. */
void* tg_peer_open(const tg_peer_problem* problem, char* message, size_t message_size);
int tg_peer_run(void* peer);                                  /* the timed call; 0: done */
int tg_peer_answer(void* peer, float* o, float* final_state); /* [T, HV, V], [HV, K, V] of the last run; 0: done */
void tg_peer_close(void* peer);

#ifdef __cplusplus
}
#endif
#endif
