// The extension module: calls of the library, and `check` (check.cpp). What users see is the Python around it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <utility>

#include "binding.h"
#include "problem/gradients.h"
#include "reference/adjoint.h"
#include "reference/recurrence.h"
#include "tensors.h"
#include "tidegate/tidegate.h"

namespace tidegate::python {
namespace {

/// One row a tensor of Inputs.
constexpr std::pair<const char*, Tensor Inputs::*> kInputs[] = {{"q", &Inputs::q},
                                                                {"k", &Inputs::k},
                                                                {"v", &Inputs::v},
                                                                {"g", &Inputs::g},
                                                                {"beta", &Inputs::beta},
                                                                {"erase", &Inputs::erase},
                                                                {"write", &Inputs::write},
                                                                {"lr_a", &Inputs::lr_a},
                                                                {"lr_b", &Inputs::lr_b},
                                                                {"a", &Inputs::a},
                                                                {"b", &Inputs::b},
                                                                {"A_log", &Inputs::A_log},
                                                                {"dt_bias", &Inputs::dt_bias}};

/// What every operation takes. Arguments that one does not have are never in `given`.
void read(Inputs& p, const Given& given) {
    p.rule = rule_from(given.option<std::string>("rule", "a rule's name").value_or("gdn"));
    for (const auto& [name, member] : kInputs) p.*member = given.input(name);
    p.n_householder = given.option<std::int64_t>("n_householder", "a number of steps").value_or(p.n_householder);
    p.scale = given.option<double>("scale", "a number");
    p.qk_l2norm = given.flag("use_qk_l2norm_in_kernel");
    p.gate_form = given.choice("gate_form", {"softplus", "bounded"}) == 1 ? GateForm::bounded : GateForm::softplus;
    p.lower_bound = given.option<double>("lower_bound", "a number").value_or(p.lower_bound);
    p.gate_min = given.option<double>("gate_min", "a number");
    p.allow_neg_eigval = given.flag("allow_neg_eigval");
    p.head_map = given.choice("head_map", {"grouped", "tiled"}) == 1 ? HeadMap::tiled : HeadMap::grouped;
    p.state_v_first = given.flag("state_v_first");
    p.check_values = given.flag("check_values");
}

template <class Problem>
void read_sequences(Problem& p, const Given& given) {
    p.initial_state = given.input("initial_state");
    p.cu_seqlens = given.input("cu_seqlens");
}

template <class Problem>
void read_pool(Problem& p, const Given& given) {
    p.state = given.output("state");
    p.state_indices = given.input("state_indices");
    p.null_slot = given.option<std::int64_t>("null_slot", "a slot's number");
    p.o = given.output("out");
}

void read_own(Forward& p, const Given& given) {
    read_sequences(p, given);
    p.final_state = given.output("final_state");
    p.o = given.output("out");
}

void read_own(Backward& p, const Given& given) {
    read_sequences(p, given);
    p.d_o = given.input("do");
    p.dht = given.input("dht");
    for (const GradientRow& row : gradients()) p.*row.gradient = given.output(row.name);
}

void read_own(Decode& p, const Given& given) {
    read_pool(p, given);
    p.num_accepted = given.input("num_accepted");
    p.state_tokens = given.output("state_tokens");
}

void read_own(PackedDecode& p, const Given& given) {
    read_pool(p, given);
    p.mixed_qkv = given.input("mixed_qkv");
}

void run(const Forward& p, const Options& options) { forward(p, options); }
void run(const Backward& p, const Options& options) { backward(p, options); }
void run(const Decode& p, const Options& options) { decode(p, options); }
void run(const PackedDecode& p, const Options& options) { packed_decode(p, options); }

/// The oracle: every sum in double, token by token, results rounded once to their types, which may be fp64.
void refer(const NormalForm& nf) {
    if (nf.q.device == Device::cuda)
        throw Error("reference", "reference: given CUDA tensors, expected tensors in CPU memory");
    reference::store(reference::recurrence<double>(nf), nf);
}
void refer(const BackwardForm& form) { reference::store(reference::adjoint<double>(form), form); }
template <class Problem>
void run_reference(const Problem& p) {
    check(p, true);
    refer(lower(p));
}
void run_reference(const PackedDecode& p) { run_reference(unpack(p)); }

/// Runs a problem, or says what would run: a plan's text, else "".
template <class Problem>
std::string call(const nb::dict& arguments, const nb::set& bf16, bool only_plan) {
    const Given given(arguments, bf16);
    Problem problem;
    read(problem, given);
    read_own(problem, given);
    Options how;
    how.threads = given.option<int>("threads", "a number of threads, 0 for all cores").value_or(0);
    how.memory_limit = given.option<std::int64_t>("memory_limit", "a number of bytes, 0 for no limit").value_or(0);
    if (const auto stream = given.option<std::uintptr_t>("stream", "a stream's address"))
        how.stream = reinterpret_cast<void*>(*stream);
    const bool oracle = given.flag("reference");
    if (oracle && only_plan) throw Error("reference", "reference: given it with plan(), expected a call that runs");
    const nb::gil_scoped_release free;
    if (only_plan) return plan(problem, how).text();
    if (oracle)
        run_reference(problem);
    else
        run(problem, how);
    return "";
}

nb::tuple gradient_names() {
    nb::list names;
    for (const GradientRow& row : gradients()) names.append(row.name);
    return nb::tuple(names);
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
    m.attr("gradients") = gradient_names();
    m.def("forward", &call<tidegate::Forward>);
    m.def("backward", &call<tidegate::Backward>);
    m.def("decode", &call<tidegate::Decode>);
    m.def("packed_decode", &call<tidegate::PackedDecode>);
    bind_check(m);
}
