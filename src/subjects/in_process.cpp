#include "subjects/in_process.h"

#include <chrono>
#include <cstring>

#include "cases/request.h"
#include "io/safetensors.h"
#include "plan/cpu_plan.h"
#include "reference/recurrence.h"
#include "subjects/poison.h"
#include "subjects/reference_answer.h"
#include "tidegate/error.h"

namespace tidegate::subjects {
namespace {

class Clock {
public:
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Outcome skipped(const std::string& why) {
    Outcome o;
    o.status = Status::skipped;
    o.reason = why;
    return o;
}

/// An output in the middle of poisoned memory: guards before and behind, and spare rows of o that must stay untouched.
struct Guarded {
    static constexpr std::int64_t kGuard = 64, kSpareRows = 3;
    io::Array memory;
    Tensor view;
    std::int64_t spare_rows;

    explicit Guarded(const io::Array& spec) : spare_rows(spec.name == "o" ? kSpareRows : 0) {
        std::vector<std::int64_t> shape = spec.shape;
        shape[1] += spare_rows;
        const io::Array roomy(spec.name, spec.dtype, shape);
        memory = io::Array(spec.name, spec.dtype, {roomy.size() + 2 * kGuard});
        poison(memory.bytes.data(), spec.dtype, memory.size());
        view = roomy.view();
        view.data = memory.bytes.data() + kGuard * bytes_of(spec.dtype);
    }

    /// Moves the written part into `to`; returns how many elements outside it were written.
    std::int64_t collect(io::Array& to) const {
        const std::int64_t outer = to.shape[0], size = bytes_of(to.dtype);
        const std::int64_t inner = outer > 0 ? to.size() / outer : 0, room = view.stride[0];
        const auto* first = static_cast<const std::byte*>(view.data);
        for (std::int64_t b = 0; inner > 0 && b < outer; ++b)
            std::memcpy(to.bytes.data() + b * inner * size, first + b * room * size,
                        static_cast<std::size_t>(inner * size));
        const std::int64_t outside = memory.size() - outer * inner;
        return outside - (poisoned(memory.bytes.data(), to.dtype, memory.size()) -
                          poisoned(to.bytes.data(), to.dtype, to.size()));
    }
};

class Cpu : public Subject {
public:
    explicit Cpu(int threads) { options_.threads = threads; }
    std::string name() const override { return "cpu"; }

    Outcome answer(const io::Bundle& request) override {
        Outcome out;
        out.answer = cases::empty_answer(request);
        Forward problem = cases::bind(request);
        std::vector<Guarded> outputs;
        for (const io::Array& array : out.answer.tensors) {
            if (array.dtype == Dtype::fp64) return skipped("cpu computes in fp32; the case asks for fp64");
            outputs.emplace_back(array);
        }
        if (problem.q.dtype == Dtype::fp64 || problem.v.dtype == Dtype::fp64)
            return skipped("cpu takes fp32, bf16 and fp16; the case holds fp64");
        problem.o = outputs[0].view;
        problem.final_state = outputs[1].view;
        // What the contract promises, for `check --properties`.
        const Plan decided = plan(problem, options_);
        out.answer.metadata["bit_exact"] = "all";
        out.answer.metadata["step"] = std::to_string(decided.arithmetic.pass);
        out.answer.metadata["bucket"] = std::to_string(kCpuBucket);
        const Clock clock;
        forward(problem, options_);
        out.seconds = clock.seconds();
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            io::Array& array = out.answer.tensors[i];
            if (const std::int64_t outside = outputs[i].collect(array); outside > 0) {
                out.status = Status::failed;
                out.reason = array.name + ": " + std::to_string(outside) + " elements outside it were written";
            }
            out.unwritten[array.name] = poisoned(array.bytes.data(), array.dtype, array.size());
        }
        return out;
    }

private:
    Options options_;
};

class Reference : public Subject {
public:
    std::string name() const override { return "reference"; }
    Outcome answer(const io::Bundle& request) override {
        Outcome out;
        const Clock clock;
        out.answer = reference_answer(lower(cases::bind(request)), request);
        out.seconds = clock.seconds();
        return out;
    }
};

class File : public Subject {
public:
    explicit File(std::string path) : path_(std::move(path)) {}
    std::string name() const override { return "file:" + path_; }
    Outcome answer(const io::Bundle&) override {
        Outcome out;
        out.answer = io::read_safetensors(path_);
        out.unwritten = parse_unwritten(out.answer.meta("unwritten"));
        return out;
    }

private:
    std::string path_;
};

class Faulty : public Subject {
public:
    Faulty(std::unique_ptr<Subject> inner, const faults::Fault& fault) : inner_(std::move(inner)), fault_(fault) {}
    std::string name() const override {
        return inner_->name() + "+fault:" + fault_.name + (fault_.formula != nullptr ? " (reference)" : "");
    }
    bool crashes_apart() const override { return inner_->crashes_apart(); }

    Outcome answer(const io::Bundle& request) override {
        NormalForm nf = lower(cases::bind(request));
        if (!fault_.applies(nf)) return skipped(std::string(fault_.name) + " does not apply to this case");
        if (fault_.formula != nullptr) return formula(nf, request);
        if (fault_.input != nullptr) {
            io::Bundle changed = request;
            fault_.input(nf, changed);
            return inner_->answer(changed);
        }
        Outcome out = inner_->answer(request);
        if (out.status == Status::answered && complete(out.answer, request)) fault_.answer(nf, out.answer);
        return out;
    }

private:
    static bool complete(const io::Bundle& answer, const io::Bundle& request) {
        for (const cases::OutputSpec& spec : cases::outputs_of(request)) {
            const io::Array* array = answer.find(spec.name);
            if (array == nullptr || array->shape != spec.shape || array->dtype != spec.dtype) return false;
        }
        return true;
    }

    /// In fp32, as the kernel it stands for computes.
    Outcome formula(NormalForm& nf, const io::Bundle& request) {
        Outcome out;
        reference::Policy policy;
        fault_.formula(nf, policy);
        const Clock clock;
        out.answer = reference_answer(nf, request, policy, true);
        out.seconds = clock.seconds();
        return out;
    }

    std::unique_ptr<Subject> inner_;
    const faults::Fault& fault_;
};

}  // namespace

io::Bundle reference_answer(NormalForm form, const io::Bundle& request, const reference::Policy& policy, bool single) {
    io::Bundle answer = cases::empty_answer(request);
    Forward problem = cases::bind(request);
    cases::attach(problem, answer);
    const NormalForm outputs = lower(problem);
    form.o = outputs.o;
    form.final_state = outputs.final_state;
    reference::store(single ? reference::recurrence<float>(form, policy) : reference::recurrence<double>(form, policy),
                     form);
    return answer;
}

std::unique_ptr<Subject> make_cpu(int threads) { return std::make_unique<Cpu>(threads); }
std::unique_ptr<Subject> make_reference() { return std::make_unique<Reference>(); }
std::unique_ptr<Subject> make_file(const std::string& path) { return std::make_unique<File>(path); }
std::unique_ptr<Subject> with_fault(std::unique_ptr<Subject> inner, const faults::Fault& fault) {
    return std::make_unique<Faulty>(std::move(inner), fault);
}

}  // namespace tidegate::subjects
