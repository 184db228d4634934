// tidegate bench --subject cuda: decode in CUDA graphs on rotating slots of a pool larger than L2, beside a plain copy
// of as many state bytes.
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "cases/request.h"
#include "cases/suite.h"
#include "cli/exit_code.h"
#include "cli/report.h"
#include "cli/verbs.h"
#include "cuda/cuda.h"
#include "problem/number.h"
#include "subjects/spec.h"
#include "tidegate/error.h"

namespace tidegate::cli {
namespace {

constexpr double kRotate = 512e6;  ///< bytes of states that calls rotate over: several times an L2
constexpr int kMostCalls = 256, kRepeats = 100;

template <class P>
inline constexpr bool kDecodes =
    std::is_same_v<std::decay_t<P>, Decode> || std::is_same_v<std::decay_t<P>, PackedDecode>;

using Memory = std::unique_ptr<void, decltype(&cuda::release)>;

/// A case's tensors on the device, its two generated requests repeated to B, its slots to the pool that calls rotate
/// over.
class Rotating {
public:
    explicit Rotating(const cases::Case& c) : B_(c.B) {
        cases::Case small = c;
        small.B = 2;
        request_ = cases::generate(small);
        problem_ = cases::bind(request_);
        cases::inputs_of(problem_).check_values = false;
        const NormalForm nf = cases::form_of(problem_);
        const std::int64_t slot = nf.value_heads * nf.K * nf.V * bytes_of(nf.initial_state.dtype);
        columns_ = std::max<std::int64_t>(cases::columns_of(c), 1);
        const double call = static_cast<double>(B_ * columns_ * slot);
        sets_ = static_cast<int>(std::clamp(kRotate / call, 2.0, 64.0));
        state_bytes_ = static_cast<double>(B_ * slot);
        for (Tensor* t : cases::tensors_of(problem_)) place(*t);
        Tensor o = dense(nullptr, cases::dtype_from(request_.meta("out_dtype")), {B_, c.T, c.HV, c.V});
        o.data = allocate(o.size() * bytes_of(o.dtype));
        o.device = Device::cuda;
        std::visit(
            [&](auto& p) {
                if constexpr (kDecodes<decltype(p)>) p.o = o;
            },
            problem_);
        for (int i = 0; i < sets_; ++i) slots_.push_back(indices(i));
    }

    int sets() const { return sets_; }
    double state_bytes() const { return state_bytes_; }
    void run(void* stream, int i) {
        std::visit(
            [&](auto& p) {
                if constexpr (kDecodes<decltype(p)>) p.state_indices = slots_[static_cast<std::size_t>(i % sets_)];
            },
            problem_);
        Options options;
        options.stream = stream;
        cases::run(problem_, options);
    }
    Plan plan() { return cases::plan_of(problem_, {}); }
    /// As many bytes as a call's states, between two places of the pool.
    void copy(void* stream, int i) const {
        const auto bytes = static_cast<std::size_t>(state_bytes_);
        std::byte* const pool = static_cast<std::byte*>(pool_);
        const std::size_t half = static_cast<std::size_t>(sets_ / 2) * bytes,
                          at = static_cast<std::size_t>(i % (sets_ / 2)) * bytes;
        cuda::copy(pool + half + at, pool + at, bytes, stream);
    }

private:
    void* allocate(std::int64_t bytes) {
        memory_.emplace_back(cuda::allocate(static_cast<std::size_t>(bytes)), cuda::release);
        return memory_.back().get();
    }

    void place(Tensor& t) {
        if (!t.present() || t.data == nullptr) return;
        const Inputs& p = cases::inputs_of(problem_);
        const bool head_only = t.data == p.A_log.data || t.data == p.dt_bias.data;
        const io::Array* state = request_.find("state");
        const bool pool = t.data == state->bytes.data();
        const std::int64_t rows = head_only ? t.shape[0] : pool ? sets_ * B_ * columns_ : B_;
        const std::int64_t row = t.size() / t.shape[0] * bytes_of(t.dtype), have = t.shape[0] * row;
        auto* to = static_cast<std::byte*>(allocate(rows * row));
        for (std::int64_t at = 0; at < rows * row; at += have)
            cuda::to_device(to + at, t.data, static_cast<std::size_t>(std::min(have, rows * row - at)));
        if (pool) pool_ = to;
        t.data = to;
        t.shape[0] = rows;
        t.device = Device::cuda;
    }

    /// Slots of the i-th set, in an order that is none.
    Tensor indices(int set) {
        std::vector<std::int32_t> slots(static_cast<std::size_t>(B_ * columns_));
        for (std::size_t j = 0; j < slots.size(); ++j)
            slots[j] =
                static_cast<std::int32_t>(static_cast<std::size_t>(set) * slots.size() + (j * 7 + 3) % slots.size());
        Tensor t =
            columns_ > 1 ? dense(slots.data(), Dtype::int32, {B_, columns_}) : dense(slots.data(), Dtype::int32, {B_});
        t.data = allocate(t.size() * 4);
        cuda::to_device(t.data, slots.data(), slots.size() * 4);
        t.device = Device::cuda;
        return t;
    }

    std::int64_t B_, columns_ = 1;
    int sets_ = 1;
    double state_bytes_ = 0;
    io::Bundle request_;
    cases::Problem problem_;
    std::vector<Memory> memory_;
    std::vector<Tensor> slots_;
    void* pool_ = nullptr;
};

}  // namespace

int bench_cuda(const BenchOptions& o, const std::vector<cases::Case>& list) {
    if (cuda::unavailable() != nullptr)
        throw subjects::Unavailable("subject", std::string("subject: given 'cuda', but ") + cuda::unavailable());
    Records records(o.json, o.sink);
    records.run({"bench", o.suite.empty() ? o.target : o.suite, o.subject, {}, {}});
    std::FILE* to = o.json == "-" ? stderr : stdout;
    fmt::print(to, "{}; CUDA graphs, slots rotating over {:.0f} MB, median of {} replays\n", cuda::device_name(),
               kRotate * 1e-6, kRepeats);
    Table table({"case", "path", "us", "TB/s", "copy TB/s", "of copy"});
    for (const cases::Case& c : list) {
        if (!cases::decodes(c))
            throw Error("pass", "pass: given " + c.pass + " with --subject cuda, expected decode or packed");
        Rotating r(c);
        const int calls = std::min(kMostCalls, std::max(r.sets(), 16));
        const double seconds = cuda::median_seconds(calls, kRepeats, [&](void* s, int i) { r.run(s, i); });
        const double copied = cuda::median_seconds(calls, kRepeats, [&](void* s, int i) { r.copy(s, i); });
        const double bytes = 2 * r.state_bytes();
        const Plan plan = r.plan();
        table.add({cases::id_of(c), std::string(plan.arithmetic.path), fmt::format("{:.2f}", seconds * 1e6),
                   fmt::format("{:.3f}", bytes / seconds * 1e-12), fmt::format("{:.3f}", bytes / copied * 1e-12),
                   fmt::format("{:.0f} %", 100 * copied / seconds)});
        records.bench(fmt::format(
            R"("record":"bench","protocol":1,"case":{},"path":"{}","isa":"{}","device":{},"ms":{},"gbytes_s":{},"copy_gbytes_s":{})",
            quoted(cases::id_of(c)), plan.arithmetic.path, plan.arithmetic.isa, quoted(cuda::device_name()),
            number(seconds * 1e3), number(bytes / seconds * 1e-9), number(bytes / copied * 1e-9)));
    }
    table.print(to);
    fmt::print(to, "  TB/s: the states read and written once; copy: as many bytes copied in the same run\n");
    return kPass;
}

}  // namespace tidegate::cli
