// All that is known of a request's right answer before a subject is asked.
#pragma once

#include <string>
#include <vector>

#include "io/bundle.h"
#include "problem/normal_form.h"
#include "reference/policy.h"

namespace tidegate::judge {

/// The arithmetic a subject declares, whose rounding is forgiven.
struct Twin {
    std::int64_t chunk = 0;       ///< 0: the fp32 recurrence
    Dtype operand = Dtype::fp32;  ///< what the chunked form's products read
};
/// "recurrent" or "chunked:<operand dtype>:<C>". Throws Error("twin").
Twin twin_from(const std::string& text);
std::string name_of(const Twin& twin);

/// A run of elements that share a sequence, a token and a head.
struct Cell {
    std::int32_t sequence;  ///< or the slot of a pool
    std::int64_t token;     ///< packed; -1: a state
    std::int32_t head;
    bool kept = false;  ///< a slot that no request names, or a pad's rows: not a bit may differ
};

/// What an output has one of.
enum class Kind { tokens, states, pool, parameters };

/// One output tensor: exact values, the twin's, and magnitudes, in row-major order with states as [N, HV, K, V].
struct Output {
    std::string name;
    Dtype dtype = Dtype::fp32;
    Kind kind = Kind::tokens;
    std::int64_t rows = 1;   ///< a token, of its batch row
    std::int64_t heads = 1;  ///< a row
    std::int64_t width = 1;  ///< elements a cell
    std::vector<Cell> cells;
    std::vector<double> exact, twin, magnitude;
    std::vector<double> stale;  ///< another seed's exact values; empty if there is none or it is the same
};

struct Expected {
    NormalForm form;  ///< views into the request
    std::vector<Output> outputs;
};

/// `request` must outlive the result.
Expected expect(const io::Bundle& request, const Twin& twin);

/// What an evaluation of `request` under `form`, its own or one with a fault in it, answers: by output of `e`, in the
/// order of Output's values.
std::vector<std::vector<double>> evaluate(const Expected& e, const io::Bundle& request, const NormalForm& form,
                                          const reference::Policy& policy);

/// A tensor of an answer as doubles, in the order of Output's values.
std::vector<double> values_of(const io::Bundle& answer, const std::string& name, const io::Bundle& request);

}  // namespace tidegate::judge
