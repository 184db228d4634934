// From an outcome to a verdict. An answer that a mutant of the right one would also pass proves nothing: "blind".
#pragma once

#include "judge/measure.h"
#include "subjects/subject.h"

namespace tidegate::judge {

enum class Verdict { pass, fail, blind, crashed, hung, skipped, not_run };
const char* name_of(Verdict verdict);

struct TensorResult {
    std::string name;
    Verdict verdict = Verdict::pass;
    std::string reason;  ///< of a failure, or the mutants that blind it
    bool measured = false;
    Measures measures;
    std::int64_t unwritten = -1;  ///< -1: not checked
};

struct CaseResult {
    std::string id;
    Verdict verdict = Verdict::not_run;
    std::string reason;
    int signal = 0;
    double seconds = 0;
    std::string first_try;
    std::vector<TensorResult> tensors;
};

/// Mutants of the right answer, made from it alone; `passing` lists those that the gate lets through.
std::vector<std::string> passing_mutants(const Gauge& gauge);

/// What a gate can see of one request, computed once for all subjects.
class Bench {
public:
    Bench(const io::Bundle& request, const Twin& twin, const Gate& gate);
    const Expected& expected() const { return expected_; }
    CaseResult judge(const subjects::Outcome& outcome) const;
    /// Judges an answer alone, tensor by tensor.
    std::vector<TensorResult> judge(const io::Bundle& answer,
                                    const std::map<std::string, std::int64_t>& unwritten) const;
    const io::Bundle& request() const { return request_; }
    const Gauge& gauge(std::size_t output) const { return gauges_[output]; }

private:
    std::int64_t changed_slot(const io::Array& state, const Output& output) const;
    const io::Bundle& request_;
    Expected expected_;
    std::vector<Gauge> gauges_;
    std::vector<std::vector<std::string>> blinding_;  ///< by tensor: mutants that pass
};

/// Whether an answer has every output of a request, in its shape and type.
bool fits(const io::Bundle& answer, const io::Bundle& request);

Verdict case_verdict(const std::vector<TensorResult>& tensors, const std::vector<bool>& zero_reference);

}  // namespace tidegate::judge
