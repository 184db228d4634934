/* A right kernel for gdn as a shared library: the recurrence, token by token, in fp32. README.md says how it is built.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tidegate/subject.h"

/* ---- elements ---- */

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float from_half(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = (uint32_t)(half & 0x7FFFu) << 13;
    const float x = rest >= 0x0F800000u ? float_of(rest | 0x7F800000u) : float_of(rest) * 0x1p112f;
    return float_of(bits_of(x) | sign);
}

static uint16_t to_half(float x) { /* to nearest, ties to even */
    const uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000u);
    const float size = fabsf(x);
    uint32_t bits = bits_of(size);
    if (isnan(x)) return sign | 0x7E00u;
    if (size >= 65520.0f) return sign | 0x7C00u;
    if (size < 0x1p-14f) return sign | (uint16_t)lrintf(size * 0x1p24f);
    bits += 0xFFFu + (bits >> 13 & 1u);
    return sign | (uint16_t)((bits - (112u << 23)) >> 13);
}

static uint16_t to_bf16(float x) {
    const uint32_t bits = bits_of(x);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static float load(const tg_tensor* t, int64_t at) {
    if (t->dtype == TG_FP32) return ((const float*)t->data)[at];
    if (t->dtype == TG_BF16) return float_of((uint32_t)((const uint16_t*)t->data)[at] << 16);
    return from_half(((const uint16_t*)t->data)[at]);
}

static void store(const tg_tensor* t, int64_t at, float x) {
    if (t->dtype == TG_FP32)
        ((float*)t->data)[at] = x;
    else
        ((uint16_t*)t->data)[at] = t->dtype == TG_BF16 ? to_bf16(x) : to_half(x);
}

/* Where row (i, j, h) starts. */
static int64_t row(const tg_tensor* t, int64_t i, int64_t j, int64_t h) {
    return i * t->stride[0] + j * t->stride[1] + h * t->stride[2];
}

/* ---- the request ---- */

static const tg_tensor* find(const tg_tensor* list, int n, const char* name) {
    for (int i = 0; i < n; ++i)
        if (strcmp(list[i].name, name) == 0) return &list[i];
    return NULL;
}

/* The value of a metadata key, up to its quote; "" if it is absent. */
static const char* value_of(const char* json, const char* key) {
    char quoted[64];
    const char* at;
    snprintf(quoted, sizeof quoted, "\"%s\":\"", key);
    at = strstr(json, quoted);
    return at == NULL ? "" : at + strlen(quoted);
}

static int is(const char* json, const char* key, const char* value) {
    const char* given = value_of(json, key);
    return strncmp(given, value, strlen(value)) == 0 && given[strlen(value)] == '"';
}

static double number(const char* json, const char* key, double otherwise) {
    const char* given = value_of(json, key);
    return *given == '\0' ? otherwise : strtod(given, NULL);
}

typedef struct {
    const tg_tensor *q, *k, *v, *g, *beta, *A_log, *dt_bias, *h0, *cu, *o, *final_state;
    int logits, bounded, twice, l2norm, tiled, v_first;
    double scale, lower_bound, gate_min;
} Problem;

static int64_t start_of(const tg_tensor* cu, int64_t n) {
    return cu->dtype == TG_INT64 ? ((const int64_t*)cu->data)[n] : ((const int32_t*)cu->data)[n];
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* The log-decay of a token. */
static double gate(const Problem* p, int64_t b, int64_t t, int64_t h) {
    double g = load(p->g, row(p->g, b, t, h));
    if (p->logits) {
        const double factor = exp((double)load(p->A_log, h * p->A_log->stride[0]));
        if (p->dt_bias) g += load(p->dt_bias, h * p->dt_bias->stride[0]);
        g = p->bounded ? p->lower_bound * sigmoid(factor * g) : -factor * (fmax(g, 0) + log1p(exp(-fabs(g))));
    }
    return g < p->gate_min ? p->gate_min : g;
}

static float strength(const Problem* p, int64_t b, int64_t t, int64_t h) {
    const float beta = load(p->beta, row(p->beta, b, t, h));
    return p->logits ? (float)((p->twice ? 2 : 1) * sigmoid(beta)) : beta;
}

/* A row of q or k. */
static void load_row(const Problem* p, const tg_tensor* t, int64_t at, int64_t K, float* to) {
    float sum = 0;
    for (int64_t i = 0; i < K; ++i) {
        to[i] = load(t, at + i * t->stride[3]);
        sum += to[i] * to[i];
    }
    for (int64_t i = 0; p->l2norm && i < K; ++i) to[i] /= sqrtf(sum + 1e-6f);
}

/* ---- the kernel: one sequence, one value head. S [K,V], and room for a row of q, k and the error ---- */

static void run(const Problem* p, int64_t n, int64_t h, float* S, float* q, float* k, float* error) {
    const int64_t H = p->q->shape[2], K = p->q->shape[3], HV = p->v->shape[2], V = p->v->shape[3];
    const int64_t hk = p->tiled ? h % H : h / (HV / H), b = p->cu ? 0 : n;
    const int64_t begin = p->cu ? start_of(p->cu, n) : 0, end = p->cu ? start_of(p->cu, n + 1) : p->v->shape[1];
    const tg_tensor* f = p->final_state;
    const int of_k = p->v_first ? 3 : 2, of_v = p->v_first ? 2 : 3; /* the states' dimensions */
    for (int64_t i = 0; i < K; ++i)
        for (int64_t j = 0; j < V; ++j)
            S[i * V + j] =
                p->h0 ? load(p->h0, row(p->h0, n, h, 0) + i * p->h0->stride[of_k] + j * p->h0->stride[of_v]) : 0;
    for (int64_t t = begin; t < end; ++t) {
        const float decay = (float)exp(gate(p, b, t, h)), beta = strength(p, b, t, h);
        load_row(p, p->q, row(p->q, b, t, hk), K, q);
        load_row(p, p->k, row(p->k, b, t, hk), K, k);
        for (int64_t j = 0; j < V; ++j) error[j] = 0;
        for (int64_t i = 0; i < K; ++i)
            for (int64_t j = 0; j < V; ++j) error[j] += k[i] * (S[i * V + j] *= decay);
        for (int64_t j = 0; j < V; ++j)
            error[j] = beta * (load(p->v, row(p->v, b, t, h) + j * p->v->stride[3]) - error[j]);
        for (int64_t i = 0; i < K; ++i)
            for (int64_t j = 0; j < V; ++j) S[i * V + j] += k[i] * error[j];
        for (int64_t j = 0; j < V; ++j) {
            float sum = 0;
            for (int64_t i = 0; i < K; ++i) sum += q[i] * S[i * V + j];
            store(p->o, row(p->o, b, t, h) + j * p->o->stride[3], (float)p->scale * sum);
        }
    }
    for (int64_t i = 0; i < K; ++i)
        for (int64_t j = 0; j < V; ++j)
            store(f, row(f, n, h, 0) + i * f->stride[of_k] + j * f->stride[of_v], S[i * V + j]);
}

static int reply(int code, char* message, size_t size, const char* text) {
    snprintf(message, size, "%s", text);
    return code;
}

int tidegate_subject(const char* metadata_json, const tg_tensor* in, int n_in, tg_tensor* out, int n_out, char* message,
                     size_t message_size) {
    const char* json = metadata_json;
    Problem p = {0};
    int64_t N, K, V;
    float* room;
    if (!is(json, "rule", "gdn")) return reply(TG_SKIPPED, message, message_size, "only gdn");
    if (*value_of(json, "pass") != '\0' && !is(json, "pass", "forward"))
        return reply(TG_SKIPPED, message, message_size, "only forward");
    for (int i = 0; i < n_in + n_out; ++i)
        if ((i < n_in ? in[i] : out[i - n_in]).dtype == TG_FP64)
            return reply(TG_SKIPPED, message, message_size, "no fp64");
    p.logits = is(json, "gates", "logits");
    p.bounded = is(json, "gate_form", "bounded");
    p.twice = is(json, "allow_neg_eigval", "1");
    p.l2norm = is(json, "qk_l2norm", "1");
    p.tiled = is(json, "head_map", "tiled");
    p.v_first = is(json, "state_layout", "vk");
    p.q = find(in, n_in, "q");
    p.k = find(in, n_in, "k");
    p.v = find(in, n_in, "v");
    p.g = find(in, n_in, p.logits ? "a" : "g");
    p.beta = find(in, n_in, p.logits ? "b" : "beta");
    p.A_log = find(in, n_in, "A_log");
    p.dt_bias = find(in, n_in, "dt_bias");
    p.h0 = find(in, n_in, "initial_state");
    p.cu = find(in, n_in, "cu_seqlens");
    p.o = find(out, n_out, "o");
    p.final_state = find(out, n_out, "final_state");
    if (!p.q || !p.k || !p.v || !p.g || !p.beta || (p.logits && !p.A_log) || !p.o || !p.final_state)
        return reply(1, message, message_size, "a tensor is missing");
    K = p.q->shape[3];
    V = p.v->shape[3];
    p.scale = number(json, "scale", 1 / sqrt((double)K));
    p.lower_bound = number(json, "lower_bound", -5);
    p.gate_min = number(json, "gate_min", -INFINITY);
    room = malloc((size_t)(K * V + 2 * K + V) * sizeof *room);
    if (room == NULL) return reply(1, message, message_size, "no memory");
    N = p.cu ? p.cu->shape[0] - 1 : p.v->shape[0];
    for (int64_t n = 0; n < N; ++n)
        for (int64_t h = 0; h < p.v->shape[2]; ++h)
            run(&p, n, h, room, room + K * V, room + K * V + K, room + K * V + 2 * K);
    free(room);
    return TG_ANSWERED;
}
