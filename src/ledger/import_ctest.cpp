#include <charconv>
#include <csignal>
#include <map>
#include <set>

#include "ledger/import.h"
#include "ledger/import_xml.h"

namespace tidegate::ledger {
namespace {

struct Word {
    std::string_view text;
    int signal;
};
// "Exit Code" as CTest words it; other signals go by their own names.
constexpr Word kExits[] = {{"SEGFAULT", SIGSEGV},          {"ILLEGAL", SIGILL},
                           {"NUMERICAL", SIGFPE},          {"INTERRUPT", SIGINT},
                           {"User interrupt", SIGINT},     {"Subprocess aborted", SIGABRT},
                           {"Subprocess killed", SIGKILL}, {"Subprocess terminated", SIGTERM},
                           {"Bus error", SIGBUS}};
constexpr int kShellCrashes[] = {SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV};

int signal_of(const std::string& word) {
    for (const auto& w : kExits)
        if (word == w.text) return w.signal;
    for (int n = 1; is_signal(n); ++n)
        if (word == signal_name(n)) return n;
    return 0;
}

std::optional<int> integer_from(const std::string& text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return {};
    return value;
}

class CtestReader {
public:
    CtestReader(const std::string& text, const std::string& source) : document_(text, source) {}

    Imported read() {
        const auto root = document_.root();
        const auto name = value_of(root, nullptr);
        if (name != "Site")
            document_.fail(root, "found a root <" + clipped(name, 80) + ">, expected <Site> of CTest's Test.xml" +
                                     (name.starts_with("testsuite") ? "; this looks like JUnit XML" : ""));
        const auto testing = root.child("Testing");
        if (!testing) document_.fail(root, "found a <Site> without <Testing>, expected CTest's Test.xml");
        out_.one_process = false;
        out_.started = time_from_epoch(text_of(testing.child("StartTestTime")));
        // Folders may have tests of one name: those go by their paths.
        std::map<std::string, std::set<std::string>> paths;
        std::set<std::string> done;
        for (const auto node : testing.children("Test")) {
            const auto path = text_of(node.child("FullName"));
            paths[text_of(node.child("Name"))].insert(path);
            done.insert(path);
        }
        for (const auto node : testing.children("Test"))
            test(node, paths[text_of(node.child("Name"))].size() > 1 ? "FullName" : "Name");
        for (const auto listed : testing.child("TestList").children("Test"))
            if (const auto path = text_of(listed); !done.contains(path))
                out_.notes.push_back("test " + in_quotes(path) + " is listed and has no result");
        number_attempts(out_.results);
        return std::move(out_);
    }

private:
    struct Said {
        std::string exit_code, exit_value, completion, why, log;
        std::vector<Figure> figures;
        double seconds = 0;
    };

    void test(pugi::xml_node node, const char* key) {
        Result result;
        result.test = document_.checked_name(node, text_of(node.child(key)));
        if (result.test.empty()) document_.fail(node, "found a <Test> without <Name>, expected one");
        const auto said = read_results(node.child("Results"), result.test);
        result.seconds = said.seconds;
        result.exit_code = integer_from(said.exit_value);
        add_figures(result, said.figures);
        const auto status = value_of(node, "Status");
        if (status == "passed")
            result.verdict = Verdict::pass;
        else if (status == "failed")
            judge_failed(result, said);
        else if (status == "notrun")
            judge_not_run(result, said);
        else
            document_.fail(node, "found Status=" + in_quotes(status) + ", expected passed, failed or notrun");
        out_.results.push_back(std::move(result));
    }

    Said read_results(pugi::xml_node results, const std::string& test) {
        Said said;
        for (const auto node : results.children("NamedMeasurement")) {
            const auto name = value_of(node, "name"), value = text_of(node.child("Value"));
            if (name == "Exit Code") said.exit_code = value;
            if (name == "Exit Value") said.exit_value = value;
            if (name == "Completion Status") said.completion = value;
            if (name == "Fail Reason") said.why = value;
            if (!value_of(node, "type").starts_with("numeric/") || name == "Processors") continue;
            const auto number = number_from(value);
            if (name == "Execution Time") {
                if (!number || !(*number - *number == 0))
                    document_.fail(node, "found an Execution Time of " + in_quotes(value) + ", expected seconds");
                said.seconds = *number;
            } else if (number) {
                said.figures.push_back({name, *number});
            } else {
                out_.notes.push_back("test " + in_quotes(test) + ": measurement " + in_quotes(name) + " is " +
                                     in_quotes(value) + ", which is no number");
            }
        }
        const auto log = results.child("Measurement").child("Value");
        said.log = log.attribute("compression") ? "(the log is compressed: ctest --no-compress-output)" : text_of(log);
        return said;
    }

    static void judge_failed(Result& result, const Said& said) {
        result.verdict = Verdict::fail;
        int signal = signal_of(said.exit_code);
        // A script in between tells of its child's signal as a shell does.
        for (const int s : kShellCrashes)
            if (said.exit_code == "Failed" && result.exit_code == 128 + s) signal = s;
        if (said.exit_code == "Timeout")
            result.verdict = Verdict::hung;
        else if (said.exit_code == "BAD_COMMAND" || said.exit_code == "Not Run")
            result.verdict = Verdict::not_run;
        else if (signal)
            mark(result, crash_by(signal, said.log));
        else if (said.exit_code == "OTHER_FAULT" || said.exit_code.find("Exception") != std::string::npos ||
                 said.exit_code.starts_with("Signal "))
            mark(result, {{}, clipped(said.exit_code, kMaxText)});
        if (signal && said.exit_code != "Failed") result.exit_code.reset();  // CTest writes 0
        if (result.verdict == Verdict::hung) result.exit_code.reset();
        append_reason(result, !said.why.empty()            ? clipped(trimmed(said.why), kMaxText)
                              : said.exit_code == "Failed" ? "exit value " + said.exit_value
                              : said.exit_code.empty()     ? said.completion
                                                           : said.exit_code);
        append_reason(result, reason_from("", said.log));
    }

    static void judge_not_run(Result& result, const Said& said) {
        const bool disabled = said.completion == "Disabled", skipped = said.completion.starts_with("SKIP_");
        result.verdict = disabled || skipped ? Verdict::skipped : Verdict::not_run;
        result.reason = disabled ? "disabled" : reason_from(said.completion, said.log);
    }

    Document document_;
    Imported out_;
};

}  // namespace

Imported read_ctest(const std::string& text, const std::string& source) { return CtestReader(text, source).read(); }

}  // namespace tidegate::ledger
