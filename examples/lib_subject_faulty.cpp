// A faulty kernel for gdn as a shared library, fp32 and bf16. TIDEGATE_LIB_FAULT in the environment chooses the fault:
//   tail (default)  tokens are taken four at a time, and the loop over the rest ends one too early: the last token of a
//                   sequence whose length is no multiple of 4 is never computed
//   segfault        the table of kernels has no entry for K = 80, and nobody looks before the call
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tidegate/subject.h"

namespace {

struct Problem {
    std::string metadata;
    const tg_tensor *q = nullptr, *k = nullptr, *v = nullptr, *g = nullptr, *beta = nullptr, *h0 = nullptr,
                    *cu = nullptr, *o = nullptr, *final_state = nullptr;
    bool has(const char* entry) const { return metadata.find(entry) != std::string::npos; }
};

// Rows are dense here, as they are in every request so far.
float load(const tg_tensor& t, std::int64_t at) {
    if (t.dtype == TG_FP32) return static_cast<const float*>(t.data)[at];
    const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(t.data)[at]} << 16;
    float x = 0;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

void store(const tg_tensor& t, std::int64_t at, float x) {
    if (t.dtype == TG_FP32) {
        static_cast<float*>(t.data)[at] = x;
        return;
    }
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    bits = std::isnan(x) ? bits | 0x400000U : bits + 0x7FFFU + (bits >> 16 & 1U);
    static_cast<std::uint16_t*>(t.data)[at] = static_cast<std::uint16_t>(bits >> 16);
}

class Head {
public:
    Head(const Problem& p, std::int64_t n, std::int64_t h)
        : p_(p), h_(h), b_(p.cu != nullptr ? 0 : n), S_(static_cast<std::size_t>(K_ * V_)) {
        if (p.h0 != nullptr)
            for (std::size_t i = 0; i < S_.size(); ++i) S_[i] = load(*p.h0, first(n) + static_cast<std::int64_t>(i));
    }

    void token(std::int64_t t) {
        const std::int64_t key = ((b_ * T_ + t) * H_ + h_ / (HV_ / H_)) * K_, gate = (b_ * T_ + t) * HV_ + h_;
        const float decay = std::exp(load(*p_.g, gate)), beta = load(*p_.beta, gate);
        const float scale = 1 / std::sqrt(static_cast<float>(K_));
        for (std::int64_t j = 0; j < V_; ++j) {
            float error = load(*p_.v, gate * V_ + j), o = 0;
            for (std::int64_t i = 0; i < K_; ++i) error -= load(*p_.k, key + i) * (at(i, j) *= decay);
            for (std::int64_t i = 0; i < K_; ++i) {
                at(i, j) += load(*p_.k, key + i) * beta * error;
                o += load(*p_.q, key + i) * at(i, j);
            }
            store(*p_.o, gate * V_ + j, scale * o);
        }
    }

    void finish(std::int64_t n) {
        for (std::size_t i = 0; i < S_.size(); ++i)
            store(*p_.final_state, first(n) + static_cast<std::int64_t>(i), S_[i]);
    }

private:
    float& at(std::int64_t i, std::int64_t j) { return S_[static_cast<std::size_t>(i * V_ + j)]; }
    std::int64_t first(std::int64_t n) const { return (n * HV_ + h_) * K_ * V_; }

    const Problem& p_;
    std::int64_t h_, b_, T_ = p_.q->shape[1], H_ = p_.q->shape[2], K_ = p_.q->shape[3], HV_ = p_.v->shape[2],
                         V_ = p_.v->shape[3];
    std::vector<float> S_;
};

std::int64_t start_of(const tg_tensor& cu, std::int64_t n) {
    return cu.dtype == TG_INT64 ? static_cast<const std::int64_t*>(cu.data)[n]
                                : static_cast<const std::int32_t*>(cu.data)[n];
}

template <bool short_tail>
void forward(const Problem& p) {
    const std::int64_t N = p.cu != nullptr ? p.cu->shape[0] - 1 : p.v->shape[0];
    for (std::int64_t n = 0; n < N; ++n)
        for (std::int64_t h = 0; h < p.v->shape[2]; ++h) {
            std::int64_t t = p.cu != nullptr ? start_of(*p.cu, n) : 0;
            const std::int64_t end = p.cu != nullptr ? start_of(*p.cu, n + 1) : p.v->shape[1];
            Head head(p, n, h);
            for (; t + 4 <= end; t += 4)
                for (std::int64_t i = 0; i < 4; ++i) head.token(t + i);
            for (const std::int64_t stop = short_tail ? end - 1 : end; t < stop; ++t) head.token(t);
            head.finish(n);
        }
}

using Kernel = void (*)(const Problem&);

Kernel kernel_for(std::int64_t K, const std::string& fault) {
    if (fault == "segfault") return K == 80 ? nullptr : forward<false>;
    return forward<true>;
}

const tg_tensor* find(const tg_tensor* list, int n, const char* name) {
    for (int i = 0; i < n; ++i)
        if (std::strcmp(list[i].name, name) == 0) return &list[i];
    return nullptr;
}

}  // namespace

int tidegate_subject(const char* metadata_json, const tg_tensor* in, int n_in, tg_tensor* out, int n_out, char* message,
                     std::size_t message_size) {
    Problem p{metadata_json};
    bool narrow = false;
    for (int i = 0; i < n_in + n_out; ++i) {
        const std::int32_t dtype = (i < n_in ? in[i] : out[i - n_in]).dtype;
        narrow = narrow || dtype == TG_FP16 || dtype == TG_FP64;
    }
    bool unknown = narrow || !p.has(R"("rule":"gdn")");
    for (const char* key : {"gates\":\"logits", "qk_l2norm\":\"1", "head_map\":\"tiled", "state_layout\":\"vk",
                            "\"scale\":", "\"gate_min\":"})
        unknown = unknown || p.has(key);
    if (unknown) {
        std::strncpy(message, "only gdn in fp32 and bf16, gates given, defaults otherwise", message_size - 1);
        return TG_SKIPPED;
    }
    p.q = find(in, n_in, "q");
    p.k = find(in, n_in, "k");
    p.v = find(in, n_in, "v");
    p.g = find(in, n_in, "g");
    p.beta = find(in, n_in, "beta");
    p.h0 = find(in, n_in, "initial_state");
    p.cu = find(in, n_in, "cu_seqlens");
    p.o = find(out, n_out, "o");
    p.final_state = find(out, n_out, "final_state");
    const char* fault = std::getenv("TIDEGATE_LIB_FAULT");
    kernel_for(p.q->shape[3], fault != nullptr ? fault : "tail")(p);
    return TG_ANSWERED;
}
