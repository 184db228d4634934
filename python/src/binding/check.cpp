// `tidegate check` inside a Python process: the tool's own code, with a subject that asks Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <stdexcept>

#include "binding.h"
#include "cases/suite.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"
#include "io/safetensors.h"
#include "subjects/child.h"
#include "subjects/lib.h"
#include "subjects/poison.h"
#include "tensors.h"

namespace tidegate::python {
namespace {

/// What fprintf writes, as a string.
class Text {
public:
    Text() : file_(open_memstream(&data_, &size_)) {
        if (file_ == nullptr) throw std::bad_alloc();
    }
    ~Text() {
        std::fclose(file_);
        std::free(data_);  // NOLINT: open_memstream's buffer is malloc's
    }
    Text(const Text&) = delete;
    Text& operator=(const Text&) = delete;
    std::FILE* file() { return file_; }
    std::string str() {
        std::fflush(file_);
        return {data_, size_};
    }

private:
    char* data_ = nullptr;
    std::size_t size_ = 0;
    std::FILE* file_;
};

/// A Python callable: a request file's bytes to ("ok", an answer file's bytes), ("skip", why) or ("error", why).
class Callable final : public subjects::Subject {
public:
    Callable(nb::object ask, std::string name) : ask_(std::move(ask)), name_(std::move(name)) {}
    std::string name() const override { return name_; }

    subjects::Outcome answer(const io::Bundle& request) override {
        const std::vector<std::byte> asked = io::serialize_safetensors(request);
        const auto start = std::chrono::steady_clock::now();
        subjects::Outcome out;
        const nb::gil_scoped_acquire gil;
        const auto told = nb::cast<nb::tuple>(ask_(nb::bytes(asked.data(), asked.size())));
        out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const auto word = nb::cast<std::string>(told[0]);
        if (word == "ok") {
            const auto answer = nb::cast<nb::bytes>(told[1]);
            out.answer = io::parse_safetensors({static_cast<const std::byte*>(answer.data()), answer.size()}, "answer");
            out.unwritten = subjects::parse_unwritten(out.answer.meta("unwritten"));
        } else {
            out.status = word == "skip" ? subjects::Status::skipped : subjects::Status::failed;
            out.reason = nb::cast<std::string>(told[1]);
        }
        return out;
    }

private:
    nb::object ask_;
    std::string name_;
};

/// Another subject, until it is stopped: then no case is run any more.
class Stoppable final : public subjects::Subject {
public:
    Stoppable(subjects::Subject& inner, const std::atomic<bool>& stopped) : inner_(inner), stopped_(stopped) {}
    std::string name() const override { return inner_.name(); }
    bool crashes_apart() const override { return inner_.crashes_apart(); }
    subjects::Outcome answer(const io::Bundle& request) override {
        if (stopped_) throw std::runtime_error("stopped");
        return inner_.answer(request);
    }

private:
    subjects::Subject& inner_;
    const std::atomic<bool>& stopped_;
};

/// One check. run() blocks; stop(), from another thread, makes it end soon.
class Check {
public:
    /// `ask` is None where the subject is a specification. Returns the exit code and the text of the command line.
    nb::tuple run(const nb::dict& options, const nb::object& ask) {
        cli::CheckOptions o;
        const auto word = [&](const char* name) { return option<std::string>(options, name, "text").value_or(""); };
        o.target = word("target");
        o.suite = word("suite");
        o.subject = word("subject");
        o.rule = word("rule");
        o.dtype = word("dtype");
        o.pass = word("pass_");
        o.gate = word("gate");
        o.twin = word("twin");
        o.json = word("json");
        o.settings.limits.timeout = option<double>(options, "timeout", "seconds").value_or(o.settings.limits.timeout);
        o.settings.persistent = option<bool>(options, "persistent", "True or False").value_or(false);
        if (!ask.is_none())
            o.replay = [before = word("replay_before"), after = word("replay_after")](const std::string& id) {
                return before + id + after;
            };
        std::unique_ptr<subjects::Subject> subject;
        if (!ask.is_none()) subject = std::make_unique<Callable>(ask, o.subject);
        int code = 0;
        std::string text;
        {
            const nb::gil_scoped_release free;
            cpu::read_environment();
            if (!subject) subject = subjects::make_subject(o.subject, o.settings);
            Stoppable stoppable(*subject, stopped_);
            Text report;
            code = cli::check(o, stoppable, report.file());
            text = report.str();
        }
        return nb::make_tuple(code, text);
    }

    void stop() {
        stopped_ = true;
        subjects::kill_children();
    }

private:
    std::atomic<bool> stopped_{false};
};

}  // namespace

void bind_check(nb::module_& m) {
    nb::class_<Check>(m, "Check")
        .def(nb::init<>())
        .def("run", &Check::run, nb::arg("options"), nb::arg("ask").none())
        .def("stop", &Check::stop);
    m.def("suites", [] {
        std::vector<std::string> names;
        for (const cases::Suite& suite : cases::suites()) names.emplace_back(suite.name);
        return names;
    });
    m.def("set_tool", [](const std::string& path) { subjects::lib_tool() = path; });
}

}  // namespace tidegate::python
