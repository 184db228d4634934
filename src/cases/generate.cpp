// Requests from cases. Only exact or correctly rounded steps (+ - * / sqrt), so that bytes are the same everywhere.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "cases/case.h"
#include "cases/pieces.h"
#include "cases/random.h"
#include "problem/number.h"
#include "problem/rules.h"
#include "tidegate/error.h"

namespace tidegate::cases {
namespace {

enum Stream : std::uint64_t {
    kQ = 1,
    kK,
    kV,
    kG,
    kBeta,
    kA,
    kB,
    kALog,
    kDtBias,
    kH0,
    kWhere,
    kCommon,
    kErase,
    kWrite,
    kRemoved,
    kOther,
    kEta,
    kDo,
    kDht
};

double value(const std::string& text) {
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    std::size_t used = 0;
    double x = 0;
    try {
        x = std::stod(text, &used);
    } catch (const std::exception&) {
        used = 0;
    }
    if (used != text.size() || text.empty()) throw Error("case", "case: given '" + text + "', expected a number");
    return x;
}

/// Where a packed or batched row stands: its sequence and its place in it, in tokens or in Householder steps.
struct Row {
    std::uint64_t sequence, token;
};

class Generator {
public:
    explicit Generator(const Case& c)
        : c_(c), rule_(row_of(c.rule)), steps_(steps_of(c)), vector_gate_(rule_.decay == Decay::vector) {
        std::vector<std::int64_t> lengths = lengths_of(c);
        packed_ = !lengths.empty();
        if (!packed_) lengths.assign(static_cast<std::size_t>(c.B), c.T);
        for (std::size_t n = 0; n < lengths.size(); ++n)
            for (std::int64_t t = 0; t < lengths[n]; ++t) rows_.push_back({n, static_cast<std::uint64_t>(t)});
        lengths_ = std::move(lengths);
    }

    io::Bundle bundle() {
        options();
        qkv();
        if (c_.key("gates") == "logits" || c_.pass == "packed")
            logits();
        else
            gates();
        if (rule_.erase == Width::vector_k) tokens("erase", gate_dtype(), c_.HV, c_.K, strength(kErase));
        if (rule_.write == Width::vector_v) tokens("write", gate_dtype(), c_.HV, c_.V, strength(kWrite));
        if (!rule_.tied) low_rank();
        const std::string h0 = c_.key("h0");
        const auto N = static_cast<std::int64_t>(lengths_.size());
        if (decodes(c_))
            pool(h0.empty() ? 1 : value(h0));
        else if (!h0.empty())
            states("initial_state", N, Dtype::fp32, value(h0), kH0);
        if (c_.pass == "backward") {
            tokens("do", c_.key("out").empty() ? c_.dtype : dtype_from(c_.key("out")), c_.HV, c_.V, normal(kDo));
            if (const std::string dht = c_.key("dht"); !dht.empty()) states("dht", N, Dtype::fp32, value(dht), kDht);
        }
        for (const char* bad : {"nan", "inf"})
            if (const std::string n = c_.key(bad); !n.empty()) poison(value(n), std::string(bad) == "nan");
        if (packed_) cu_seqlens();
        if (c_.pass == "packed") {
            pack(out_);
            if (c_.key("strides") == "padded") outer_gap(*out_.find("mixed_qkv"), 5);
        }
        return std::move(out_);
    }

private:
    using Fill = std::function<double(const Row&, std::int64_t head, std::int64_t channel)>;

    /// [B, T steps, heads, channels], or [B, T steps, heads] when channels is 0; `fill` gives each element before
    /// rounding.
    void tokens(const std::string& name, Dtype dtype, std::int64_t heads, std::int64_t channels, const Fill& fill,
                std::int64_t steps = 1) {
        std::vector<std::int64_t> shape{c_.B, c_.T * steps, heads};
        if (channels > 0) shape.push_back(channels);
        const std::int64_t width = std::max<std::int64_t>(channels, 1);
        io::Array array(name, dtype, shape);
        const std::string strides = c_.key("strides");
        // Decode: every other row of the batch, as a view of a larger buffer has it.
        const std::int64_t every = decodes(c_) ? 2 : 1;
        if (strides == "padded" && channels > 0) pad(array, channels + 5, every);
        if (strides == "interleaved" && channels == 0) pad(array, 2, 1);
        const Tensor view = array.view();
        for (std::size_t r = 0; r < rows_.size(); ++r)
            for (std::int64_t s = 0; s < steps; ++s) {
                const Row row{rows_[r].sequence,
                              rows_[r].token * static_cast<std::uint64_t>(steps) + static_cast<std::uint64_t>(s)};
                const std::int64_t b = static_cast<std::int64_t>(r) / c_.T, t = static_cast<std::int64_t>(r) % c_.T;
                for (std::int64_t h = 0; h < heads; ++h)
                    for (std::int64_t i = 0; i < width; ++i)
                        store_element(view.data, dtype, offset_of(view, b, t * steps + s, h) + i, fill(row, h, i));
            }
        out_.add(std::move(array));
    }

    /// Re-strides so that every head takes `head` elements; the gaps hold 1e30, which spoils any sum it enters.
    static void pad(io::Array& a, std::int64_t head, std::int64_t every) {
        a.stride.assign(a.shape.size(), 1);
        std::int64_t stride = head;
        for (std::size_t d = 3; d-- > 0;) {
            a.stride[d] = d == 0 ? stride * every : stride;
            stride = a.stride[d] * a.shape[d];
        }
        a.bytes.assign(static_cast<std::size_t>(stride * bytes_of(a.dtype)), std::byte{0});
        for (std::int64_t i = 0; i < stride; ++i)
            store_element(a.bytes.data(), a.dtype, i, a.dtype == Dtype::fp16 ? 65504 : 1e30);
    }

    std::uint64_t index(const Row& row, std::int64_t head, std::int64_t channel) const {
        const std::uint64_t sequence = c_.key("same") == "1" ? 0 : row.sequence;
        return mix(mix(sequence) ^ row.token) ^ (static_cast<std::uint64_t>(head) << 32) ^
               static_cast<std::uint64_t>(channel);
    }

    Fill normal(Stream stream) const {
        const Random random(c_.seed, stream);
        return [this, random](const Row& r, std::int64_t h, std::int64_t i) { return random.normal(index(r, h, i)); };
    }

    Fill unit_rows(Stream stream) const {
        struct Last {  // rows are filled in order: a row's norm is needed K times in a row
            std::uint64_t at = ~0ULL;
            double norm = 0;
        };
        return
            [this, x = normal(stream), last = std::make_shared<Last>()](const Row& r, std::int64_t h, std::int64_t i) {
                if (const std::uint64_t at = index(r, h, 0); at != last->at) {
                    double sum = 0;
                    for (std::int64_t j = 0; j < c_.K; ++j) sum += x(r, h, j) * x(r, h, j);
                    *last = {at, std::sqrt(sum)};
                }
                if (last->norm == 0) return i == 0 ? 1.0 : 0.0;  // no direction: any unit vector
                return x(r, h, i) / last->norm;
            };
    }

    void qkv() {
        const std::string x = c_.key("x");
        Fill q = unit_rows(kQ), k = unit_rows(kK), v = normal(kV);
        if (x == "ones")
            q = k = v = [](const Row&, std::int64_t, std::int64_t) { return 1.0; };
        else if (x == "raw" || c_.key("l2norm") == "1")
            q = normal(kQ), k = normal(kK);
        else if (x == "alike") {
            const Random common(c_.seed, kCommon);
            const double norm = std::sqrt(static_cast<double>(c_.K));
            k = [common, norm, own = normal(kK)](const Row& r, std::int64_t h, std::int64_t i) {
                return (common.normal(static_cast<std::uint64_t>(i)) + own(r, h, i) * 0.0625) / norm;
            };
        } else if (!x.empty())
            throw Error("case", "case: given x=" + x + ", expected ones, raw or alike");
        tokens("q", c_.dtype, c_.H, c_.K, q);
        tokens("k", c_.dtype, c_.H, c_.K, k, steps_);
        tokens("v", c_.dtype, c_.HV, c_.V, v, steps_);
    }

    /// Log-uniform in (-2, -2^-9]: heads that remember and heads that forget, as trained models have both.
    Fill random_gate() const {
        const Random random(c_.seed, kG);
        return [this, random](const Row& r, std::int64_t h, std::int64_t i) {
            const std::uint64_t at = index(r, h, i);
            return -std::ldexp(1 + random.uniform(at), -static_cast<int>(random.bits(~at) % 10));
        };
    }

    Fill gate() const {
        const std::string text = c_.key("gate");
        if (text.empty()) return random_gate();
        const std::string kind = text.substr(0, text.find(':'));
        const double x = kind == text ? 0 : value(text.substr(kind.size() + 1));
        const auto at_middle = [this](const Row& r) {
            return r.token == static_cast<std::uint64_t>(lengths_[static_cast<std::size_t>(r.sequence)] / 2);
        };
        const Random random(c_.seed, kG);
        if (kind == "zero") return [](const Row&, std::int64_t, std::int64_t) { return 0.0; };
        if (kind == "half-zero")
            return [this, random, g = random_gate()](const Row& r, std::int64_t h, std::int64_t i) {
                return (random.bits(index(r, h, i) + 1) & 1) != 0 ? 0.0 : g(r, h, i);
            };
        if (kind == "const") return [x](const Row&, std::int64_t, std::int64_t) { return x; };
        if (kind == "spike")
            return [x, at_middle](const Row& r, std::int64_t, std::int64_t) { return at_middle(r) ? x : 0.0; };
        if (kind == "mild-spike")
            return [this, x, at_middle, random](const Row& r, std::int64_t h, std::int64_t i) {
                return at_middle(r) ? x : random.uniform(index(r, h, i)) * -0x1p-7;
            };
        if (kind == "channel") return [x](const Row&, std::int64_t, std::int64_t i) { return i == 0 ? x : -0x1p-4; };
        throw Error("case", "case: given gate=" + text + ", expected another kind");
    }

    Dtype gate_dtype() const { return c_.key("gb").empty() ? Dtype::fp32 : dtype_from(c_.key("gb")); }

    /// In [2^-4, 1), or constant by key `beta`.
    Fill strength(Stream stream) const {
        if (const std::string text = c_.key("beta"); !text.empty())
            return [x = value(text)](const Row&, std::int64_t, std::int64_t) { return x; };
        const Random random(c_.seed, stream);
        return [this, random](const Row& r, std::int64_t h, std::int64_t i) {
            return 0x1p-4 + random.uniform(index(r, h, i)) * (1 - 0x1p-4);
        };
    }

    void gates() {
        if (rule_.decay != Decay::none) tokens("g", gate_dtype(), c_.HV, vector_gate_ ? c_.K : 0, gate());
        if (has_beta(rule_)) tokens("beta", gate_dtype(), c_.HV, 0, strength(kBeta), steps_);
        if (has_logits(rule_)) out_.metadata["gates"] = "given";
    }

    /// a = -u and b = eta o u + w / 4 of unit rows u, w and eta in [2^-4, 1): D + b a^T shrinks on average, and no
    /// choice of a tied form equals it.
    void low_rank() {
        const Fill u = unit_rows(kRemoved), w = unit_rows(kOther), eta = strength(kEta);
        tokens("lr_a", c_.dtype, c_.HV, c_.K,
               [u](const Row& r, std::int64_t h, std::int64_t i) { return -u(r, h, i); });
        tokens("lr_b", c_.dtype, c_.HV, c_.K, [u, w, eta](const Row& r, std::int64_t h, std::int64_t i) {
            return eta(r, h, i) * u(r, h, i) + w(r, h, i) * 0.25;
        });
    }

    void heads(const std::string& name, std::int64_t size, const std::function<double(std::uint64_t)>& fill) {
        const Dtype dtype = c_.key("params").empty() ? Dtype::fp32 : dtype_from(c_.key("params"));
        io::Array array(name, dtype, {size});
        for (std::int64_t i = 0; i < size; ++i)
            store_element(array.bytes.data(), dtype, i, fill(static_cast<std::uint64_t>(i)));
        out_.add(std::move(array));
    }

    void logits() {
        const std::string fixed_a = c_.key("a"), fixed_b = c_.key("b"), A_log = c_.key("A_log");
        Fill a = normal(kA), b = normal(kB);
        if (!fixed_a.empty()) a = [x = value(fixed_a)](const Row&, std::int64_t, std::int64_t) { return x; };
        if (fixed_b.rfind("split:", 0) == 0)
            b = [x = value(fixed_b.substr(6))](const Row& r, std::int64_t, std::int64_t) {
                return r.sequence % 2 == 0 ? -x : x;
            };
        else if (!fixed_b.empty())
            b = [x = value(fixed_b)](const Row&, std::int64_t, std::int64_t) { return x; };
        if (rule_.decay != Decay::none) tokens("a", c_.dtype, c_.HV, vector_gate_ ? c_.K : 0, a);
        if (has_beta(rule_)) tokens("b", c_.dtype, c_.HV, 0, b, steps_);
        out_.metadata["gates"] = "logits";
        if (c_.key("neg") == "1") out_.metadata["allow_neg_eigval"] = "1";
        if (rule_.decay == Decay::none) return;
        const Random log_random(c_.seed, kALog), bias_random(c_.seed, kDtBias);
        heads("A_log", c_.HV,
              [&](std::uint64_t i) { return A_log.empty() ? log_random.uniform(i) * 2 - 1.5 : value(A_log); });
        heads("dt_bias", vector_gate_ ? c_.HV * c_.K : c_.HV,
              [&](std::uint64_t i) { return fixed_a.empty() ? bias_random.uniform(i) * 4 - 4 : 0; });
        if (c_.key("form") == "bounded") {
            out_.metadata["gate_form"] = "bounded";
            out_.metadata["lower_bound"] = "-5";
        }
    }

    void states(const std::string& name, std::int64_t N, Dtype dtype, double size, Stream stream) {
        const bool vk = c_.key("layout") == "vk";
        io::Array array(name, dtype, {N, c_.HV, vk ? c_.V : c_.K, vk ? c_.K : c_.V});
        const Random random(c_.seed, stream);
        std::int64_t i = 0;
        for (std::int64_t n = 0; n < N; ++n)
            for (std::int64_t h = 0; h < c_.HV; ++h)
                for (std::int64_t r = 0; r < array.shape[2]; ++r)
                    for (std::int64_t s = 0; s < array.shape[3]; ++s) {
                        // The same state in either layout: indexed by channel and column.
                        const auto channel = static_cast<std::uint64_t>(vk ? s : r);
                        const auto column = static_cast<std::uint64_t>(vk ? r : s);
                        const auto sequence = static_cast<std::uint64_t>(c_.key("same") == "1" ? 0 : n);
                        const std::uint64_t at =
                            mix(mix(sequence) ^ static_cast<std::uint64_t>(h)) ^ (channel << 32) ^ column;
                        store_element(array.bytes.data(), array.dtype, i++, random.normal(at) * size);
                    }
        out_.add(std::move(array));
    }

    /// Slots from the pool's last one down, so that none is its request's own number by chance.
    void pool(double size) {
        const std::int64_t P = pool_of(c_), W = columns_of(c_);
        states("state", P, c_.key("state").empty() ? Dtype::fp32 : dtype_from(c_.key("state")), size, kH0);
        if (c_.key("strides") == "padded") outer_gap(*out_.find("state"), 7);
        const std::vector<std::int64_t> slots = numbers(c_.key("slots"), "slots");
        io::Array indices("state_indices", Dtype::int32, {c_.B});
        if (W > 0) indices = io::Array("state_indices", Dtype::int32, {c_.B, W});
        for (std::int64_t i = 0; i < indices.size(); ++i)
            store_element(indices.bytes.data(), indices.dtype, i,
                          static_cast<double>(slots.empty() ? P - 1 - i : slots[static_cast<std::size_t>(i)]));
        out_.add(std::move(indices));
        if (const auto accepted = numbers(c_.key("accepted"), "accepted"); !accepted.empty()) {
            io::Array array("num_accepted", Dtype::int32, {c_.B});
            for (std::int64_t i = 0; i < c_.B; ++i)
                store_element(array.bytes.data(), array.dtype, i,
                              static_cast<double>(accepted[static_cast<std::size_t>(i)]));
            out_.add(std::move(array));
        }
        if (!c_.key("null").empty()) out_.metadata["null_slot"] = c_.key("null");
        if (c_.key("each") == "1") out_.metadata["per_token_state"] = "1";
    }

    /// Re-strides so that `gap` elements of 1e30 follow every row of the first dimension.
    static void outer_gap(io::Array& a, std::int64_t gap) {
        const std::vector<std::byte> dense = std::move(a.bytes);
        const auto rows = a.shape[0], inner = rows > 0 ? a.size() / rows : 0, bytes = bytes_of(a.dtype);
        a.stride.assign(a.shape.size(), 1);
        for (std::size_t d = a.shape.size() - 1; d-- > 0;) a.stride[d] = a.stride[d + 1] * a.shape[d + 1];
        a.stride[0] = inner + gap;
        a.bytes.assign(static_cast<std::size_t>(rows * (inner + gap) * bytes), std::byte{0});
        for (std::int64_t i = 0; i < rows * (inner + gap); ++i)
            store_element(a.bytes.data(), a.dtype, i, a.dtype == Dtype::fp16 ? 65504 : 1e30);
        for (std::int64_t r = 0; r < rows; ++r)
            std::copy_n(dense.begin() + r * inner * bytes, inner * bytes, a.bytes.begin() + r * (inner + gap) * bytes);
    }

    /// One element of v, in the middle of the sequence.
    void poison(double sequence, bool nan) {
        const Tensor v = out_.find("v")->view();
        for (std::size_t r = 0; r < rows_.size(); ++r) {
            const auto n = static_cast<std::size_t>(rows_[r].sequence);
            if (static_cast<double>(n) != sequence || rows_[r].token != static_cast<std::uint64_t>(lengths_[n] / 2))
                continue;
            const std::int64_t at =
                offset_of(v, static_cast<std::int64_t>(r) / c_.T, static_cast<std::int64_t>(r) % c_.T * steps_, 0);
            store_element(v.data, v.dtype, at, nan ? std::nan("") : HUGE_VAL);
        }
    }

    void cu_seqlens() {
        const auto N = static_cast<std::int64_t>(lengths_.size());
        io::Array array("cu_seqlens", Dtype::int64, {N + 1});
        std::int64_t sum = 0;
        for (std::int64_t n = 0; n <= N; ++n) {
            reinterpret_cast<std::int64_t*>(array.bytes.data())[n] = sum;
            if (n < N) sum += lengths_[static_cast<std::size_t>(n)];
        }
        out_.add(std::move(array));
    }

    void options() {
        auto& m = out_.metadata;
        m["protocol"] = "1";
        m["case"] = id_of(c_);
        m["rule"] = name_of(c_.rule);
        m["pass"] = c_.pass;
        m["out_dtype"] = c_.key("out").empty() ? name_of(c_.dtype) : c_.key("out");
        const std::pair<const char*, const char*> plain[] = {{"scale", "scale"},       {"l2norm", "qk_l2norm"},
                                                             {"map", "head_map"},      {"layout", "state_layout"},
                                                             {"state", "state_dtype"}, {"gate_min", "gate_min"}};
        for (const auto& [key, name] : plain)
            if (const std::string text = c_.key(key); !text.empty()) m[name] = text;
        if (rule_.householder) m["n_householder"] = std::to_string(steps_);
        if (c_.pass != "forward") m.erase("state_dtype");  // the pool's own says it; a gradient is its input's
        if (c_.pass == "backward") m.erase("out_dtype");
    }

    const Case& c_;
    const RuleRow& rule_;
    std::int64_t steps_;
    bool vector_gate_;
    bool packed_ = false;
    std::vector<std::int64_t> lengths_;
    std::vector<Row> rows_;
    io::Bundle out_;
};

}  // namespace

io::Bundle generate(const Case& c) { return Generator(c).bundle(); }

}  // namespace tidegate::cases
