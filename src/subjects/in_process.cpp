#include "subjects/in_process.h"

#include <chrono>
#include <cstring>

#include "cases/request.h"
#include "cuda/cuda.h"
#include "io/safetensors.h"
#include "plan/cpu_plan.h"
#include "reference/adjoint.h"
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

/// An output in the middle of poisoned memory: guards before and behind, and room inside that must stay untouched:
/// spare rows of o, and a spare head behind every slot of a pool, which holds what the request's pool does.
struct Guarded {
    static constexpr std::int64_t kGuard = 64;
    io::Array memory;
    Tensor view;

    explicit Guarded(const io::Array& spec) {
        std::vector<std::int64_t> shape = spec.shape;
        if (spec.name == "o" || spec.name == "state") shape[1] += spec.name == "o" ? 3 : 1;
        const io::Array roomy(spec.name, spec.dtype, shape);
        memory = io::Array(spec.name, spec.dtype, {roomy.size() + 2 * kGuard});
        poison(memory.bytes.data(), spec.dtype, memory.size());
        view = roomy.view();
        view.data = memory.bytes.data() + kGuard * bytes_of(spec.dtype);
        if (spec.name != "state") return;
        view.shape[1] = spec.shape[1];
        each_row(spec, [&](std::int64_t inner, std::int64_t outer, std::size_t bytes) {
            std::memcpy(static_cast<std::byte*>(view.data) + outer, spec.bytes.data() + inner, bytes);
        });
    }

    /// Moves the written part into `to`; returns how many elements outside it were written.
    std::int64_t collect(io::Array& to) const {
        each_row(to, [&](std::int64_t inner, std::int64_t outer, std::size_t bytes) {
            std::memcpy(to.bytes.data() + inner, static_cast<const std::byte*>(view.data) + outer, bytes);
        });
        const std::int64_t outside = memory.size() - to.size();
        return outside - (poisoned(memory.bytes.data(), to.dtype, memory.size()) -
                          poisoned(to.bytes.data(), to.dtype, to.size()));
    }

private:
    /// f(byte offset in the dense tensor, byte offset from view.data, bytes) for every row of the first dimension.
    template <class F>
    void each_row(const io::Array& dense, const F& f) const {
        const std::int64_t rows = dense.shape[0], size = bytes_of(dense.dtype),
                           inner = rows > 0 ? dense.size() / rows : 0;
        for (std::int64_t r = 0; inner > 0 && r < rows; ++r)
            f(r * inner * size, r * view.stride[0] * size, static_cast<std::size_t>(inner * size));
    }
};

/// Host memory copied to the device, and views moved with it.
class OnDevice {
public:
    ~OnDevice() {
        for (const Block& block : blocks_) cuda::release(block.device);
    }
    void take(std::vector<std::byte>& host) {
        blocks_.push_back({host.data(), host.size(), static_cast<std::byte*>(cuda::allocate(host.size()))});
        cuda::to_device(blocks_.back().device, host.data(), host.size());
    }
    void move(Tensor& t) const {
        if (!t.present()) return;
        t.device = Device::cuda;
        for (const Block& block : blocks_)
            if (auto* at = static_cast<std::byte*>(t.data); at >= block.host && at < block.host + block.bytes) {
                t.data = block.device + (at - block.host);
                return;
            }
    }
    void bring_back(const std::vector<std::byte>& host) const {
        for (const Block& block : blocks_)
            if (block.host == host.data()) cuda::to_host(block.host, block.device, block.bytes);
    }

private:
    struct Block {
        std::byte* host;
        std::size_t bytes;
        std::byte* device;
    };
    std::vector<Block> blocks_;
};

/// Our own kernels, on the CPU or on the device.
class Own : public Subject {
public:
    Own(Device device, int threads, std::int64_t memory_limit) : device_(device) {
        options_.threads = threads;
        options_.memory_limit = memory_limit;
    }
    std::string name() const override { return device_ == Device::cuda ? "cuda" : "cpu"; }

    Outcome answer(const io::Bundle& asked) override {
        Outcome out;
        io::Bundle request = asked;
        out.answer = cases::empty_answer(request);
        for (const io::Array& array : request.tensors)
            if (array.dtype == Dtype::fp64) return skipped(name() + " takes fp32, bf16 and fp16; the case holds fp64");
        cases::Problem problem = cases::bind(request);
        std::vector<Guarded> outputs;
        for (const io::Array& array : out.answer.tensors) {
            if (array.dtype == Dtype::fp64) return skipped(name() + " computes in fp32; the case asks for fp64");
            outputs.emplace_back(array);
        }
        attach(problem, out.answer, outputs);
        OnDevice device;
        if (device_ == Device::cuda) {
            if (std::holds_alternative<Forward>(problem)) return skipped("there is no CUDA prefill yet");
            if (std::holds_alternative<Backward>(problem)) return skipped("there is no CUDA backward yet");
            cases::check(problem);  // while values can be read
            cases::inputs_of(problem).check_values = false;
            for (io::Array& array : request.tensors) device.take(array.bytes);
            for (Guarded& output : outputs) device.take(output.memory.bytes);
            for (Tensor* t : cases::tensors_of(problem)) device.move(*t);
        }
        claims(problem, out.answer);
        const Clock clock;
        cases::run(problem, options_);
        if (device_ == Device::cuda) cuda::synchronise();
        out.seconds = clock.seconds();
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            if (device_ == Device::cuda) device.bring_back(outputs[i].memory.bytes);
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
    /// What the contract promises, for `check --properties`.
    void claims(const cases::Problem& problem, io::Bundle& answer) const {
        const Plan decided = cases::plan_of(problem, options_);
        // On the device, K that fills a bucket takes another kernel than K that does not.
        answer.metadata["bit_exact"] =
            device_ == Device::cuda ? "repeatable packed causal resumable isolated untouched" : "all";
        answer.metadata["step"] = std::to_string(decided.arithmetic.pass);
        answer.metadata["bucket"] = std::to_string(kCpuBucket);
    }

    static void attach(cases::Problem& problem, const io::Bundle& answer, const std::vector<Guarded>& outputs) {
        cases::attach(problem, [&](const std::string& name) {
            for (std::size_t i = 0; i < outputs.size(); ++i)
                if (answer.tensors[i].name == name) return outputs[i].view;
            return Tensor();
        });
    }

    Device device_;
    Options options_;
};

class Reference : public Subject {
public:
    std::string name() const override { return "reference"; }
    Outcome answer(const io::Bundle& request) override {
        Outcome out;
        const Clock clock;
        out.answer = reference_answer(request, request, cases::form_of(cases::bind(request)));
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
        NormalForm nf = cases::form_of(cases::bind(request));
        if (!faults::applies(fault_, request.meta("pass", "forward"), nf))
            return skipped(std::string(fault_.name) + " does not apply to this case");
        if (fault_.formula != nullptr) return formula(nf, request);
        if (fault_.input != nullptr) {
            io::Bundle changed = request;
            fault_.input(nf, changed);
            if (changed == request) return skipped(std::string(fault_.name) + " changes nothing of this case");
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
        out.answer = reference_answer(request, request, nf, policy, true);
        out.seconds = clock.seconds();
        return out;
    }

    std::unique_ptr<Subject> inner_;
    const faults::Fault& fault_;
};

}  // namespace

io::Bundle reference_answer(const io::Bundle& request, const io::Bundle& given, NormalForm form,
                            const reference::Policy& policy, bool single) {
    io::Bundle answer = cases::empty_answer(request);
    cases::Problem problem = cases::bind(request);
    cases::attach(problem, answer);
    if (const auto* asked = std::get_if<Backward>(&problem)) {
        const cases::Problem changed = cases::bind(given);
        BackwardForm backward = lower(std::get<Backward>(changed));
        backward.nf = form;
        backward.out = lower(*asked).out;
        reference::store(
            single ? reference::adjoint<float>(backward, policy) : reference::adjoint<double>(backward, policy),
            backward);
        return answer;
    }
    const NormalForm outputs = cases::form_of(problem);
    form.o = outputs.o;
    form.final_state = outputs.final_state;
    form.state_tokens = outputs.state_tokens;
    reference::store(single ? reference::recurrence<float>(form, policy) : reference::recurrence<double>(form, policy),
                     form);
    return answer;
}

std::unique_ptr<Subject> make_cpu(int threads, std::int64_t memory_limit) {
    return std::make_unique<Own>(Device::cpu, threads, memory_limit);
}
std::unique_ptr<Subject> make_cuda() { return std::make_unique<Own>(Device::cuda, 0, 0); }
std::unique_ptr<Subject> make_reference() { return std::make_unique<Reference>(); }
std::unique_ptr<Subject> make_file(const std::string& path) { return std::make_unique<File>(path); }
std::unique_ptr<Subject> with_fault(std::unique_ptr<Subject> inner, const faults::Fault& fault) {
    return std::make_unique<Faulty>(std::move(inner), fault);
}

}  // namespace tidegate::subjects
