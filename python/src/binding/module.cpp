// The extension module: calls of the library, and `check` (check.cpp). What users see is the Python around it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "binding.h"
#include "tensors.h"
#include "tidegate/tidegate.h"

namespace tidegate::python {
namespace {

std::optional<double> number(const nb::dict& options, const char* name) {
    return option<double>(options, name, "a number");
}

bool flag(const nb::dict& options, const char* name) {
    return option<bool>(options, name, "True or False").value_or(false);
}

/// The index of a word among those known; the first is the default.
std::size_t choice(const nb::dict& options, const char* name, std::initializer_list<const char*> known) {
    const std::string word = option<std::string>(options, name, "a word").value_or(*known.begin());
    std::size_t i = 0;
    std::string all;
    for (const char* each : known) {
        if (word == each) return i;
        all += std::string(i++ == 0 ? "" : " or ") + each;
    }
    throw Error(name, std::string(name) + ": given '" + word + "', expected " + all);
}

/// What every operation takes. Arguments that one does not have are never in `options`.
void read(Inputs& p, Tensors& tensors, const nb::dict& options) {
    p.rule = rule_from(option<std::string>(options, "rule", "a rule's name").value_or("gdn"));
    const std::pair<const char*, Tensor Inputs::*> inputs[] = {
        {"q", &Inputs::q}, {"k", &Inputs::k},         {"v", &Inputs::v},
        {"g", &Inputs::g}, {"beta", &Inputs::beta},   {"a", &Inputs::a},
        {"b", &Inputs::b}, {"A_log", &Inputs::A_log}, {"dt_bias", &Inputs::dt_bias}};
    for (const auto& [name, member] : inputs) p.*member = tensors.input(name);
    p.scale = number(options, "scale");
    p.qk_l2norm = flag(options, "use_qk_l2norm_in_kernel");
    p.gate_form = choice(options, "gate_form", {"softplus", "bounded"}) == 1 ? GateForm::bounded : GateForm::softplus;
    p.lower_bound = number(options, "lower_bound").value_or(p.lower_bound);
    p.gate_min = number(options, "gate_min");
    p.allow_neg_eigval = flag(options, "allow_neg_eigval");
    p.head_map = choice(options, "head_map", {"grouped", "tiled"}) == 1 ? HeadMap::tiled : HeadMap::grouped;
    p.state_v_first = flag(options, "state_v_first");
    p.check_values = flag(options, "check_values");
}

template <class Problem>
void read_pool(Problem& p, Tensors& tensors, const nb::dict& options) {
    p.state = tensors.output("state");
    p.state_indices = tensors.input("state_indices");
    p.null_slot = option<std::int64_t>(options, "null_slot", "a slot's number");
}

void read(Forward& p, Tensors& tensors, const nb::dict& options) {
    read(static_cast<Inputs&>(p), tensors, options);
    p.initial_state = tensors.input("initial_state");
    p.cu_seqlens = tensors.input("cu_seqlens");
    p.final_state = tensors.output("final_state");
    p.o = tensors.output("out");
}

void read(Decode& p, Tensors& tensors, const nb::dict& options) {
    read(static_cast<Inputs&>(p), tensors, options);
    read_pool(p, tensors, options);
    p.num_accepted = tensors.input("num_accepted");
    p.state_tokens = tensors.output("state_tokens");
    p.o = tensors.output("out");
}

void read(PackedDecode& p, Tensors& tensors, const nb::dict& options) {
    read(static_cast<Inputs&>(p), tensors, options);
    read_pool(p, tensors, options);
    p.mixed_qkv = tensors.input("mixed_qkv");
    p.o = tensors.output("out");
}

void run(const Forward& p, const Options& options) { forward(p, options); }
void run(const Decode& p, const Options& options) { decode(p, options); }
void run(const PackedDecode& p, const Options& options) { packed_decode(p, options); }

/// Runs a problem, or says what would run: a plan's text, else "".
template <class Problem>
std::string call(const nb::dict& given, const nb::set& bf16, const nb::dict& options, bool only_plan) {
    Tensors tensors(given, bf16);
    Problem problem;
    read(problem, tensors, options);
    Options how;
    how.threads = option<int>(options, "threads", "a number of threads, 0 for all cores").value_or(0);
    if (const auto stream = option<std::uintptr_t>(options, "stream", "a stream's address"))
        how.stream = reinterpret_cast<void*>(*stream);
    const nb::gil_scoped_release free;
    if (only_plan) return plan(problem, how).text();
    run(problem, how);
    return "";
}

/// tidegate::Error as the Python class of that name, which carries the argument too.
void translate(const std::exception_ptr& thrown, void*) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Error& e) {
        const nb::object type = nb::module_::import_("tidegate._error").attr("Error");
        const nb::object error = type(e.argument(), e.what());
        PyErr_SetObject(type.ptr(), error.ptr());
    }
}

}  // namespace
}  // namespace tidegate::python

NB_MODULE(_core, m) {
    using namespace tidegate::python;
    nb::register_exception_translator(translate);
    m.attr("version") = TIDEGATE_VERSION;
    m.def("forward", &call<tidegate::Forward>);
    m.def("decode", &call<tidegate::Decode>);
    m.def("packed_decode", &call<tidegate::PackedDecode>);
    bind_check(m);
}
