// The peer ggml for `tidegate bench`: its fused operation gated_delta_net on the CPU.
//
// What ggml wants, and how our problem gets there (all of it outside the timed call):
//  * q, k [H, T] rows of S, v [HV, T] rows of S, g [HV, T] rows of 1 (gdn) or S (kda), beta the same with rows of 1:
//    our order. S = K = V; it knows no other shape. g is the log of the decay, exp is taken inside.
//  * Value head h reads key head h % H (tiled). Ours reads hv / (HV / H) (grouped), so the value heads are dealt out
//    anew where HV > H.
//  * The state is transposed: [HV, V, K].
//  * The output is multiplied by 1 / sqrt(S) inside; what remains of `scale` goes into q.
//
// A timed call is one ggml_graph_compute of a graph of one node: plan, work buffer, tensors and threads exist already,
// and no page of them is touched for the first time. This is less than what a ggml_backend does per call.
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "peer.h"

namespace {

// Rows of S floats then do not cross cache lines; ggml's own allocator gives 32 bytes.
constexpr std::size_t alignment = 64;

struct AlignedDelete {
    void operator()(void* p) const { ::operator delete (p, std::align_val_t{alignment}); }
};
struct ContextDelete {
    void operator()(ggml_context* context) const { ggml_free(context); }
};
struct PoolDelete {
    void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
};

struct Peer {
    std::int64_t T = 0, H = 0, HV = 0, S = 0;
    std::vector<std::unique_ptr<void, AlignedDelete>> memory;
    std::unique_ptr<ggml_context, ContextDelete> context;
    std::unique_ptr<ggml_threadpool, PoolDelete> pool;
    ggml_cgraph* graph = nullptr;
    ggml_tensor* result = nullptr;
    ggml_cplan plan{};

    // ggml's value head that is our hv.
    std::int64_t theirs(std::int64_t hv) const {
        const std::int64_t group = HV / H;
        return hv % group * H + hv / group;
    }

    void* allocate(std::size_t size) {
        const std::size_t whole = std::max<std::size_t>(size, 1);
        memory.emplace_back(::operator new (whole, std::align_val_t{alignment}));
        std::memset(memory.back().get(), 0, whole);
        return memory.back().get();
    }

    ggml_tensor* tensor(std::int64_t n0, std::int64_t n1, std::int64_t n2) {
        ggml_tensor* made = ggml_new_tensor_4d(context.get(), GGML_TYPE_F32, n0, n1, n2, 1);
        made->data = allocate(ggml_nbytes(made));
        return made;
    }
};

float* floats(ggml_tensor* tensor) { return static_cast<float*>(tensor->data); }

// [T, HV] rows of n floats, the heads in ggml's order.
void deal(const Peer& peer, std::int64_t n, const float* from, float* to) {
    for (std::int64_t t = 0; t < peer.T; ++t) {
        for (std::int64_t hv = 0; hv < peer.HV; ++hv) {
            std::copy_n(from + (t * peer.HV + hv) * n, n, to + (t * peer.HV + peer.theirs(hv)) * n);
        }
    }
}

// Why ggml cannot do it; empty if it can. ggml itself would abort.
std::string objection(const tg_peer_problem& p) {
    const std::string rule = p.rule != nullptr ? p.rule : "";
    if (rule != "gdn" && rule != "kda") return "ggml: no rule '" + rule + "', only gdn and kda";
    if (p.K != p.V) return "ggml: K and V must be the same";
    if (p.T < 1 || p.H < 1 || p.HV < 1 || p.K < 1) return "ggml: empty problem";
    if (p.HV % p.H != 0) return "ggml: HV must be a multiple of H";
    if (p.threads < 1 || p.threads > GGML_MAX_N_THREADS) {
        return "ggml: 1 to " + std::to_string(GGML_MAX_N_THREADS) + " threads";
    }
#if defined(__x86_64__) && defined(__GNUC__)
    // What the library was compiled for; it does not ask the machine.
    if ((ggml_cpu_has_avx2() && !__builtin_cpu_supports("avx2")) ||
        (ggml_cpu_has_fma() && !__builtin_cpu_supports("fma")) ||
        (ggml_cpu_has_avx512() && !__builtin_cpu_supports("avx512f"))) {
        return "ggml: built for a newer CPU than this one";
    }
#endif
    return {};
}

std::unique_ptr<Peer> open(const tg_peer_problem& p) {
    auto peer = std::make_unique<Peer>();
    peer->T = p.T;
    peer->H = p.H;
    peer->HV = p.HV;
    peer->S = p.K;
    const std::int64_t S = p.K;
    const bool per_channel = std::strcmp(p.rule, "kda") == 0;
    constexpr std::size_t nodes = 16;  // 6 inputs and the operation, rounded up

    ggml_cpu_init();
    peer->context.reset(
        ggml_init({.mem_size = nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false),
                   .mem_buffer = nullptr,
                   .no_alloc = true}));
    if (!peer->context) throw std::bad_alloc();

    ggml_tensor* q = peer->tensor(S, p.H, p.T);
    ggml_tensor* k = peer->tensor(S, p.H, p.T);
    ggml_tensor* v = peer->tensor(S, p.HV, p.T);
    ggml_tensor* g = peer->tensor(per_channel ? S : 1, p.HV, p.T);
    ggml_tensor* beta = peer->tensor(1, p.HV, p.T);
    ggml_tensor* state = peer->tensor(S, S, p.HV);
    const double rest = p.scale * std::sqrt(static_cast<double>(S));
    const float factor = std::abs(rest - 1) < 1e-6 ? 1.0F : static_cast<float>(rest);
    std::transform(p.q, p.q + p.T * p.H * S, floats(q), [factor](float x) { return x * factor; });
    std::copy_n(p.k, p.T * p.H * S, floats(k));
    deal(*peer, S, p.v, floats(v));
    deal(*peer, per_channel ? S : 1, p.g, floats(g));
    deal(*peer, 1, p.beta, floats(beta));
    for (std::int64_t hv = 0; hv < p.HV; ++hv) {
        for (std::int64_t i = 0; i < S; ++i) {
            for (std::int64_t j = 0; j < S; ++j) {
                floats(state)[(peer->theirs(hv) * S + j) * S + i] = p.state[(hv * S + i) * S + j];
            }
        }
    }

    // One snapshot: the final state alone.
    peer->result = ggml_gated_delta_net(peer->context.get(), q, k, v, g, beta, state, 1);
    peer->result->data = peer->allocate(ggml_nbytes(peer->result));
    peer->graph = ggml_new_graph_custom(peer->context.get(), nodes, false);
    ggml_build_forward_expand(peer->graph, peer->result);

    // Threads of its own: without a pool ggml starts and joins threads in each call. They wait for the next call by
    // spinning, so that one that follows at once wakes nobody. poll 1 spins for some milliseconds, which is as fast
    // there as the default of 50 (or 100) and leaves the core to whoever is measured next; 50 keeps it busy for much
    // longer.
    ggml_threadpool_params params = ggml_threadpool_params_default(p.threads);
    params.poll = 1;
    peer->pool.reset(ggml_threadpool_new(&params));
    if (!peer->pool) throw std::bad_alloc();
    peer->plan = ggml_graph_plan(peer->graph, p.threads, peer->pool.get());
    peer->plan.work_data = static_cast<std::uint8_t*>(peer->allocate(peer->plan.work_size));
    return peer;
}

void say(char* message, std::size_t size, const char* text) {
    if (message != nullptr && size > 0) std::snprintf(message, size, "%s", text);
}

}  // namespace

extern "C" {

const char* tg_peer_name(void) {
    const char* const isa = ggml_cpu_has_avx512() ? " (AVX-512)" : ggml_cpu_has_avx2() ? " (AVX2)" : "";
    static const std::string name = std::string("ggml ") + ggml_version() + isa;
    return name.c_str();
}

void* tg_peer_open(const tg_peer_problem* problem, char* message, size_t message_size) {
    try {
        const std::string why_not = objection(*problem);
        if (why_not.empty()) return open(*problem).release();
        say(message, message_size, why_not.c_str());
    } catch (const std::exception& error) {
        say(message, message_size, (std::string("ggml: ") + error.what()).c_str());
    }
    return nullptr;
}

int tg_peer_run(void* handle) {
    Peer& peer = *static_cast<Peer*>(handle);
    return ggml_graph_compute(peer.graph, &peer.plan) == GGML_STATUS_SUCCESS ? 0 : 1;
}

int tg_peer_answer(void* handle, float* o, float* final_state) {
    const Peer& peer = *static_cast<const Peer*>(handle);
    const std::int64_t S = peer.S;
    const float* outputs = floats(peer.result);  // [T, HV, S], then [HV, V, K]
    const float* states = outputs + peer.T * peer.HV * S;
    for (std::int64_t t = 0; t < peer.T; ++t) {
        for (std::int64_t hv = 0; hv < peer.HV; ++hv) {
            std::copy_n(outputs + (t * peer.HV + peer.theirs(hv)) * S, S, o + (t * peer.HV + hv) * S);
        }
    }
    for (std::int64_t hv = 0; hv < peer.HV; ++hv) {
        for (std::int64_t i = 0; i < S; ++i) {
            for (std::int64_t j = 0; j < S; ++j) {
                final_state[(hv * S + i) * S + j] = states[(peer.theirs(hv) * S + j) * S + i];
            }
        }
    }
    return 0;
}

void tg_peer_close(void* handle) { delete static_cast<Peer*>(handle); }

}  // extern "C"
