// tidegate bench: medians over repeats, the machine's ceilings and a peer's kernel in the same run.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "bench/peer.h"
#include "cases/request.h"
#include "cases/suite.h"
#include "cli/bench_times.h"
#include "cli/exit_code.h"
#include "cli/report.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "faults/faults.h"
#include "problem/number.h"
#include "problem/rules.h"
#include "tidegate/error.h"

namespace tidegate::cli {
namespace {

/// A peer's plugin, loaded once; absent is a reason, not an error.
class Peer {
public:
    explicit Peer(std::string path) {
        if (path.empty())
            path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libtidegate_peer_ggml.so";
        if (!std::filesystem::exists(path)) {
            why_ = "skipped: run bench/setup.sh";
            return;
        }
        void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded
        if (library == nullptr) {
            why_ = std::string("skipped: ") + dlerror();
            return;
        }
        const auto symbol = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr) why_ = std::string("skipped: the plugin lacks ") + name;
        };
        symbol(name_, "tg_peer_name");
        symbol(open_, "tg_peer_open");
        symbol(run_, "tg_peer_run");
        symbol(answer_, "tg_peer_answer");
        symbol(close_, "tg_peer_close");
    }
    const std::string& why() const { return why_; }
    std::string name() const { return why_.empty() ? name_() : "none"; }

    decltype(&tg_peer_name) name_ = nullptr;
    decltype(&tg_peer_open) open_ = nullptr;
    decltype(&tg_peer_run) run_ = nullptr;
    decltype(&tg_peer_answer) answer_ = nullptr;
    decltype(&tg_peer_close) close_ = nullptr;

private:
    std::string why_;
};

/// The plain copy that a decode call is measured by: the same states, from one place to another, a head at a time.
class Copy {
public:
    explicit Copy(const NormalForm& nf) {
        if (!nf.pool) return;
        heads_ = nf.sequences * nf.value_heads;
        head_ = static_cast<std::size_t>(nf.K * nf.V * bytes_of(nf.initial_state.dtype));
        from_.assign(static_cast<std::size_t>(heads_) * head_, 1);
        to_ = from_;
    }
    void run(int threads) const {
        cpu::parallel_for(heads_, threads, [&](std::int64_t i, int) {
            const std::size_t at = static_cast<std::size_t>(i) * head_;
            std::memcpy(to_.data() + at, from_.data() + at, head_);
        });
    }
    double bytes() const { return 2.0 * static_cast<double>(from_.size()); }  ///< read and written

private:
    std::int64_t heads_ = 0;
    std::size_t head_ = 0;
    std::vector<char> from_;
    mutable std::vector<char> to_;
};

class Bench {
public:
    explicit Bench(const BenchOptions& options)
        : o_(options), peer_(options.peer), records_(options.json, options.sink) {
        if (!(o_.seconds > 0 && o_.seconds < 600))
            throw Error("seconds", "seconds: expected a time above 0 and below 600");
        for (const int t : o_.threads)
            if (t < 1 || t > 4096)
                throw Error("threads", "threads: given " + std::to_string(t) + ", expected 1 to 4096");
        threads_ = o_.threads;
        if (threads_.empty()) {
            threads_ = {1};
            if (cpu::this_machine().cores > 1) threads_.push_back(cpu::this_machine().cores);
        }
    }

    int run() {
        std::vector<cases::Case> list;
        if (o_.target.empty() == o_.suite.empty()) throw Error("bench", "bench: expected a case id or --suite NAME");
        if (o_.suite.empty()) {
            list.push_back(cases::parse(o_.target));
            if (!o_.pass.empty())
                throw Error("pass", "pass: given with a case id, which says it; expected it with --suite");
        } else {
            cases::Filter filter;
            if (!o_.rule.empty()) filter.rule = rule_from(o_.rule);
            if (!o_.dtype.empty()) filter.dtype = cases::dtype_from(o_.dtype);
            if (!o_.pass.empty()) filter.pass = o_.pass;
            list = cases::suite(o_.suite, filter);
        }
        if (list.empty()) return kNothing;
        if (o_.subject == "cuda") return bench_cuda(o_, list);
        if (list[0].pass == "backward") return bench_backward(o_, list, threads_);
        records_.run({"bench", o_.suite.empty() ? o_.target : o_.suite, o_.subject, {}, {}});
        if (o_.subject != "cpu")
            throw Error("subject", "subject: given '" + o_.subject + "' to bench, expected cpu or cuda");
        std::FILE* to = o_.json == "-" ? stderr : stdout;
        std::string ceilings;
        for (const int t : threads_) {
            peak_[t] = cpu::fma_peak(t);
            ceilings += fmt::format("; {} thread{}: {:.1f} GFLOP/s FMA, {:.1f} GB/s copy", t, t == 1 ? "" : "s",
                                    peak_[t] * 1e-9, cpu::copy_bandwidth(t) * 1e-9);
        }
        fmt::print(to, "isa {}, peer {}{}\n", cpu::current_isa(), peer_.name(), ceilings);
        const bool decodes = cases::decodes(list[0]);
        Table table({"case", "path", "threads", "ms", "spread", decodes ? "GB/s" : "GFLOP/s",
                     decodes ? "of copy" : "of peak", "peer ms", "ratio", "peer nrmse"});
        for (const cases::Case& c : list) one(c, table);
        table.print(to);
        const char* const unit = decodes
                                     ? "GB/s: the state read and written; copy: the same states copied, in the same run"
                                     : "GFLOP/s: of the products with states, 6 K V a head and row (free rules: 8)";
        fmt::print(to, "  {}; ms: median; spread: (90 % - 10 %) / median; ratio: peer ms / ms\n", unit);
        return kPass;
    }

private:
    void one(const cases::Case& c, Table& table) {
        io::Bundle request = cases::generate(c);
        io::Bundle answer = cases::empty_answer(request);
        cases::Problem problem = cases::bind(request);
        cases::attach(problem, answer);
        cases::check(problem);
        cases::inputs_of(problem).check_values = false;
        Aligned aligned;
        for (Tensor* t : cases::tensors_of(problem)) aligned.take(*t);
        const NormalForm form = cases::form_of(problem);
        const double flop = flop_of(form, false);
        const Copy copy(form);
        for (const int threads : threads_) {
            Options options;
            options.threads = threads;
            const Plan decided = cases::plan_of(problem, options);
            std::string why = peer_.why();
            void* peer = why.empty() ? open(c, request, threads, why) : nullptr;
            if (const io::Array* pool = answer.find("state"))  // as it was before the calls that were timed
                std::memcpy(form.initial_state.data, pool->bytes.data(), pool->bytes.size());
            Times ours, theirs, copies;
            cases::run(problem, options);  // pages, pool and caches
            const std::vector<float> first = peer != nullptr ? values_of(form.o) : std::vector<float>();
            if (peer != nullptr) peer_.run_(peer);
            // Blocks in turns, so that what disturbs the machine disturbs both. After its own, a threaded peer's
            // workers may spin for a while: they are given the time to sleep.
            const auto block = [](Times& times, const auto& body) {
                double total = 0;
                for (int i = 0; i == 0 || (total < 0.04 && i < 200); ++i)
                    total += times.all.emplace_back(seconds_of(body));
            };
            const auto start = std::chrono::steady_clock::now();
            const auto spent = [&] {
                return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            };
            while (ours.all.size() < 3 || spent() < o_.seconds) {
                block(ours, [&] { cases::run(problem, options); });
                if (form.pool) block(copies, [&] { copy.run(threads); });
                if (peer == nullptr) continue;
                block(theirs, [&] { peer_.run_(peer); });
                if (threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(15));
            }
            const double ms = ours.median() * 1e3, gflops = flop / ours.median() * 1e-9;
            const double spread = (ours.at(0.9) - ours.at(0.1)) / ours.median();
            const double gbytes = copy.bytes() / ours.median() * 1e-9;
            const double copied = form.pool ? copy.bytes() / copies.median() * 1e-9 : 0;
            std::string peer_ms = why, ratio, nrmse, json_ratio = "null";
            if (peer != nullptr) {
                peer_ms = fmt::format("{:.3f}", theirs.median() * 1e3);
                ratio = fmt::format("{:.2f}", theirs.median() / ours.median());
                nrmse = fmt::format("{:.1e}", difference(peer, first, form));
                json_ratio = number(theirs.median() / ours.median());
                peer_.close_(peer);
            }
            table.add({cases::id_of(c), std::string(decided.arithmetic.path), std::to_string(threads),
                       fmt::format("{:.3f}", ms), fmt::format("{:.0f} %", spread * 100),
                       fmt::format("{:.1f}", form.pool ? gbytes : gflops),
                       fmt::format("{:.0f} %", 100 * (form.pool ? gbytes / copied : gflops * 1e9 / peak_[threads])),
                       peer_ms, ratio, nrmse});
            std::string bandwidth;
            if (form.pool)
                bandwidth = fmt::format(R"("gbytes_s":{},"copy_gbytes_s":{},)", number(gbytes), number(copied));
            records_.bench(fmt::format(
                R"("record":"bench","protocol":1,"case":"{}","path":"{}","isa":"{}","threads":{},"ms":{},"spread":{},"runs":{},)"
                R"("gflops":{},"peak_gflops":{},{}"peer":{},"peer_ms":{},"ratio_ggml":{})",
                cases::id_of(c), decided.arithmetic.path, decided.arithmetic.isa, threads, number(ms), number(spread),
                ours.all.size(), number(gflops), number(peak_[threads] * 1e-9), bandwidth,
                quoted(peer != nullptr ? peer_.name() : why), peer != nullptr ? number(theirs.median() * 1e3) : "null",
                json_ratio));
        }
    }

    /// The peer on the same tensors; logits are turned into the gates that they mean.
    void* open(const cases::Case& c, io::Bundle request, int threads, std::string& why) {
        if (c.pass != "backward") faults::materialise_gates(cases::form_of(cases::bind(request)), request);
        const NormalForm nf = cases::form_of(cases::bind(request));
        const bool plain = c.pass != "backward" && nf.tied && nf.steps == 1 && nf.gate.decay != Decay::none &&
                           !nf.erase.vector && c.dtype == Dtype::fp32 && c.B == 1 && !nf.cu_seqlens.present() &&
                           nf.initial_state.present() && nf.initial_state.dtype == Dtype::fp32 && nf.source(0) >= 0 &&
                           !nf.qk_l2norm && nf.initial_state.stride[3] == 1 && !nf.every_token() &&
                           c.key("strides").empty();
        if (!plain) {
            why = "skipped: the peer takes plain fp32 gdn and kda of one sequence with a state, forward";
            return nullptr;
        }
        const auto floats = [](const Tensor& t) { return static_cast<const float*>(t.data); };
        const tg_peer_problem p{name_of(c.rule),
                                c.T,
                                c.H,
                                c.HV,
                                c.K,
                                c.V,
                                threads,
                                nf.scale,
                                floats(nf.q),
                                floats(nf.k),
                                floats(nf.v),
                                floats(nf.gate.x),
                                floats(nf.erase.x),
                                floats(nf.initial_state) + offset_of(nf.initial_state, nf.source(0))};
        char message[256] = "";
        void* peer = peer_.open_(&p, message, sizeof message);
        if (peer == nullptr) why = std::string("skipped: ") + message;
        return peer;
    }

    static std::vector<float> values_of(const Tensor& o) {
        std::vector<float> values;
        for (std::int64_t i = 0; i < o.size(); ++i)
            values.push_back(static_cast<float>(load_element(o.data, o.dtype, i)));
        return values;
    }

    /// RMS of the difference of both o, over ours: a peer that computes something else is no peer.
    double difference(void* peer, const std::vector<float>& ours, const NormalForm& form) const {
        std::vector<float> theirs(ours.size()),
            their_state(static_cast<std::size_t>(form.value_heads * form.K * form.V));
        if (peer_.answer_(peer, theirs.data(), their_state.data()) != 0) return HUGE_VAL;
        double err = 0, ref = 0;
        for (std::size_t i = 0; i < theirs.size(); ++i) {
            const double x = static_cast<double>(ours[i]), e = static_cast<double>(theirs[i]) - x;
            err += e * e;
            ref += x * x;
        }
        return std::sqrt(err / ref);
    }

    const BenchOptions& o_;
    Peer peer_;
    Records records_;
    std::vector<int> threads_;
    std::map<int, double> peak_;
};

}  // namespace

int bench(const BenchOptions& options) { return Bench(options).run(); }

}  // namespace tidegate::cli
