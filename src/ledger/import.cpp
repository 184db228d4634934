#include "ledger/import.h"

#include <unordered_map>
#include <unordered_set>

#include "ledger/import_xml.h"
#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

void mark_follow_ons(std::vector<Result>& results) {
    const Result* crash = nullptr;
    for (auto& result : results) {
        if (!crash) {
            if (result.verdict == Verdict::crashed) crash = &result;
            continue;
        }
        // A lost GPU context shows up as the same crash in every case behind it.
        const bool same = result.verdict == Verdict::crashed && !result.signal && !crash->signal &&
                          result.fingerprint == crash->fingerprint;
        if (result.verdict == Verdict::fail || same) result.follow_on = true;
    }
}

/// pytest lists a test as folder/file.py::Class::test; its JUnit names it folder.file.Class::test.
std::string junit_name(const std::string& id) {
    const std::size_t file = id.find(".py::"), parameters = id.find('[');
    if (file == std::string::npos || (parameters != std::string::npos && parameters < file)) return id;
    std::string group = id.substr(0, file), rest = id.substr(file + 5);
    for (char& c : group)
        if (c == '/') c = '.';
    for (std::size_t next = rest.find("::"); next != std::string::npos && next < rest.find('[');
         next = rest.find("::")) {
        group += "." + rest.substr(0, next);
        rest.erase(0, next + 2);
    }
    return group + "::" + rest;
}

/// The expected cases, by the names that results have. A list of which no result is one is of something else.
std::vector<std::string> as_results_name_them(const Imported& imported, const std::vector<std::string>& listed) {
    std::unordered_set<std::string> names;
    for (const Result& r : imported.results) names.insert(r.test);
    std::vector<std::string> expected;
    bool any = names.empty() || listed.empty();
    for (const std::string& id : listed) {
        // The last line of `pytest --collect-only -q`.
        if (id.find(" collected in ") != std::string::npos && id.find("::") == std::string::npos) continue;
        const std::string other = junit_name(id);
        expected.push_back(names.contains(id) ? id : other);
        any = any || names.contains(expected.back());
    }
    if (!any)
        throw Error("import", "import: the expected cases ('" + listed[0] + "', ..) name none of the results ('" +
                                  imported.results[0].test + "', ..): expected names as the file has them");
    return expected;
}

}  // namespace

std::vector<std::string> complete(Imported& imported, const std::vector<std::string>& listed, int exit_status) {
    std::vector<std::string> expected = as_results_name_them(imported, listed);
    if (imported.one_process) mark_follow_ons(imported.results);
    const int signal = exit_status - 128;
    const bool crashed = is_signal(signal);
    const std::string end =
        crashed ? "signal " + signal_name(signal) : "the run's end with exit status " + std::to_string(exit_status);

    std::unordered_map<std::string, std::size_t> last;  // each test's last attempt
    for (std::size_t i = 0; i < imported.results.size(); ++i) last[imported.results[i].test] = i;
    std::size_t behind = 0;  // the place in `expected` behind the last result
    for (std::size_t i = 0; i < expected.size(); ++i)
        if (last.contains(expected[i])) behind = i + 1;

    bool blamed = !crashed;
    if (crashed && behind > 0) {
        auto& result = imported.results[last[expected[behind - 1]]];
        // The runner was able to write that this case crashes: the signal is its own.
        if (result.verdict == Verdict::crashed && (!result.signal || *result.signal == signal)) {
            blamed = true;
            result.signal = signal;
            if (result.fingerprint.empty()) result.fingerprint = end;
        }
    }
    std::unordered_set<std::string> added;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        if (last.contains(expected[i]) || !added.insert(expected[i]).second) continue;
        Result result;
        result.test = expected[i];
        if (!blamed && i >= behind) {
            blamed = true;
            mark(result, {signal, end});
            result.reason = "no result: the run ended by " + end;
        } else {
            result.reason = "not run before " + end;
        }
        imported.results.push_back(std::move(result));
    }
    if (!blamed) imported.notes.push_back("the run ended by " + end + " behind its last case");
    return expected;
}

}  // namespace tidegate::ledger
