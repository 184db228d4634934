#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "ledger/import.h"
#include "ledger/import_xml.h"

namespace tidegate::ledger {
namespace {

constexpr int kMaxDepth = 64;  // of suites in suites
constexpr const char* kTeardown = "failed on teardown with";

// What a writer may mean by "failures": elements, or testcases with one of them.
struct Count {
    std::int64_t elements = 0, cases = 0;
    void operator+=(const Count& other) { elements += other.elements, cases += other.cases; }
};

struct Totals {
    std::int64_t tests = 0, disabled = 0;
    Count failures, errors, skipped;
    void operator+=(const Totals& other) {
        tests += other.tests, disabled += other.disabled;
        failures += other.failures, errors += other.errors, skipped += other.skipped;
    }
};

class JunitReader {
public:
    JunitReader(const std::string& text, const std::string& source) : document_(text, source) {}

    Imported read() {
        const auto root = document_.root();
        const std::string name = value_of(root, nullptr);
        if (name != "testsuites" && name != "testsuite")
            document_.fail(root, "found a root <" + clipped(name, 80) + ">, expected <testsuites> or <testsuite>" +
                                     (name == "Site" ? "; this looks like CTest's Test.xml" : ""));
        suite(root, 0);
        number_attempts(out_.results);
        return std::move(out_);
    }

private:
    struct Last {
        std::size_t place = 0;
        bool torn_down = false;  // has its error of teardown
    };

    Totals suite(pugi::xml_node node, int depth) {
        if (depth > kMaxDepth)
            document_.fail(node, "found suites nested " + std::to_string(depth) + " deep, expected at most " +
                                     std::to_string(kMaxDepth));
        if (out_.started.empty()) out_.started = time_from(value_of(node, "timestamp"));
        Totals totals;
        std::vector<std::size_t> places;  // of this suite's own results
        std::int64_t own = 0;
        last_.clear();
        for (const auto child : node.children()) {
            const std::string_view kind = child.name();
            if (kind == "testcase") {
                const auto before = out_.results.size();
                totals += testcase(child, node);
                for (auto i = before; i < out_.results.size(); ++i) places.push_back(i);
                ++own;
            } else if (kind == "properties") {
                for (const auto property : child.children("property"))
                    out_.notes.push_back(name_of_suite(node) + ": " + value_of(property, "name") + " = " +
                                         clipped(property_value(property), 200));
            }
        }
        mark_reruns(node, own, places);
        for (const auto child : node.children("testsuite")) totals += suite(child, depth + 1);
        check_totals(node, totals);
        return totals;
    }

    static std::string name_of_suite(pugi::xml_node node) { return "suite " + in_quotes(value_of(node, "name")); }

    static std::string property_value(pugi::xml_node property) {
        return property.attribute("value") ? value_of(property, "value") : text_of(property);
    }

    // pytest-rerunfailures writes what it runs again as a testcase without an outcome, and leaves it out of "tests".
    void mark_reruns(pugi::xml_node node, std::int64_t own, const std::vector<std::size_t>& places) {
        const auto tests = number_from(value_of(node, "tests"));
        if (!tests || *tests >= static_cast<double>(own)) return;
        for (const auto place : places) {
            auto& result = out_.results[place];
            if (result.verdict != Verdict::pass || last_[result.test].place == place) continue;
            result.verdict = Verdict::fail;
            result.reason = "run again; the file does not say why";
        }
    }

    void check_totals(pugi::xml_node node, const Totals& found) {
        const auto check = [&](const char* word, std::initializer_list<std::int64_t> known) {
            const auto attribute = node.attribute(word);
            if (!attribute) return;
            const auto said = number_from(attribute.value());
            const auto same = [&](std::int64_t n) { return said && *said == static_cast<double>(n); };
            if (std::any_of(known.begin(), known.end(), same)) return;
            out_.notes.push_back(name_of_suite(node) + " says " + word + "=" + in_quotes(value_of(node, word)) +
                                 ", its testcases give " + std::to_string(*known.begin()));
        };
        check("tests", {found.tests});
        check("failures", {found.failures.cases, found.failures.elements});
        check("errors", {found.errors.cases, found.errors.elements});
        check("skipped", {found.skipped.cases, found.skipped.elements, found.skipped.cases + found.disabled});
    }

    std::string test_name(pugi::xml_node node, pugi::xml_node suite) const {
        const auto name = value_of(node, "name"), group = value_of(node, "classname");
        if (name.empty()) {  // GoogleTest: a failure outside of any test
            const auto of_suite = value_of(suite, "name");
            return document_.checked_name(node, !group.empty() ? group : of_suite.empty() ? "(no name)" : of_suite);
        }
        return document_.checked_name(node, group.empty() || by_ctest(node) ? name : group + "::" + name);
    }

    // CTest repeats the name as class. So does pytest for test_x of test_x.py (without status), and GoogleTest for
    // TEST(X, X) (with result).
    static bool by_ctest(pugi::xml_node node) {
        return node.attribute("status") && !node.attribute("result") &&
               value_of(node, "classname") == value_of(node, "name");
    }

    static std::string told(pugi::xml_node node) {
        std::string text = text_of(node);
        for (const auto trace : node.children("stackTrace")) text += text_of(trace);  // surefire
        return text;
    }

    // A failure or an error; `log` stands in for one that says nothing, as CTest's do.
    static void add_failure(Result& result, pugi::xml_node node, const std::string& log) {
        const auto message = value_of(node, "message");
        auto text = told(node);
        const bool silent = trimmed(message).empty() && trimmed(text).empty();
        if (silent) text = log;
        append_reason(result, reason_from(message, text));
        if (result.verdict != Verdict::crashed) result.verdict = Verdict::fail;
        // Messages and texts quote source, where any word may stand. What a runner writes itself tells of a crash, and
        // an error of the device; of a failure that says nothing, the log.
        const auto first = message + "\n" + text.substr(0, text.find('\n'));
        const auto has = [&](const char* words) { return first.find(words) != std::string::npos; };
        const bool asserted = message.starts_with("assert") || message.starts_with("AssertionError");
        const bool by_runner = !asserted && (has("' crashed while running") ||
                                             has("running the test CRASHED with signal") || has("CUDA error"));
        const auto crash = silent ? crash_in(text) : by_runner ? crash_in(first) : std::nullopt;
        if (crash && result.fingerprint.empty())
            mark(result, *crash);
        else if (message.starts_with("Failed: Timeout") && result.verdict != Verdict::crashed)
            result.verdict = Verdict::hung;  // pytest-timeout
    }

    // A crash that ended a process others did not share.
    void note_process(const Result& result) {
        constexpr const char* kOthers[] = {"' crashed while running", "running the test CRASHED with signal"};
        for (const auto words : kOthers)
            if (result.reason.find(words) != std::string::npos) out_.one_process = false;
    }

    Totals testcase(pugi::xml_node node, pugi::xml_node suite) {
        Totals totals;
        totals.tests = 1;
        Result result;
        result.test = test_name(node, suite);
        result.seconds = document_.seconds(node, "time");
        result.verdict = Verdict::pass;
        const std::string status = value_of(node, "status");
        const bool ctest = by_ctest(node);
        if (ctest) out_.one_process = false;

        std::vector<Figure> figures;
        std::vector<Result> earlier, later;  // surefire's attempts
        std::string skip;
        std::optional<std::string> log;
        bool torn_down = false;
        for (const auto child : node.children()) {
            const std::string kind = value_of(child, nullptr);
            if (kind == "failure" || kind == "error") {
                if (!log) log = log_of(node);
                add_failure(result, child, *log);
                ++(kind == "failure" ? totals.failures : totals.errors).elements;
                torn_down |= value_of(child, "message").starts_with(kTeardown);
            } else if (kind == "skipped") {
                ++totals.skipped.elements;
                skip = skip_reason(child);
            } else if (kind == "properties") {
                for (const auto property : child.children("property"))
                    if (value_of(property, "name") == "asserts")
                        result.asserts = clipped(property_value(property), 400);
                    else if (const auto value = number_from(property_value(property)))
                        figures.push_back({value_of(property, "name"), *value});
            } else if (kind == "flakyFailure" || kind == "flakyError") {
                earlier.push_back(attempt(result.test, child));
            } else if (kind == "rerunFailure" || kind == "rerunError") {
                later.push_back(attempt(result.test, child));
            }
        }
        totals.failures.cases = totals.failures.elements > 0;
        totals.errors.cases = totals.errors.elements > 0;
        const bool failed = totals.failures.cases + totals.errors.cases > 0;
        totals.skipped.cases = totals.skipped.elements > 0 && !failed;
        if (failed)
            add_parameter(result, node);
        else
            judge_quiet(result, node, status, ctest, totals, skip);
        add_figures(result, figures);
        note_process(result);
        const bool only_teardown = torn_down && totals.failures.elements == 0 && totals.errors.elements == 1;
        if (only_teardown && earlier.empty() && later.empty() && merge(result)) return totals;
        for (auto& r : earlier) push(std::move(r), false);
        push(std::move(result), torn_down);
        for (auto& r : later) push(std::move(r), false);
        return totals;
    }

    static std::string log_of(pugi::xml_node node) {
        return text_of(node.child("system-out")) + text_of(node.child("system-err"));
    }

    static std::string skip_reason(pugi::xml_node node) {
        auto reason = value_of(node, "message");
        if (trimmed(reason).empty()) reason = text_of(node);
        const bool xfail = value_of(node, "type") == "pytest.xfail";
        return clipped((xfail ? "xfail: " : "") + std::string(trimmed(reason)), kMaxText);
    }

    // GoogleTest numbers the cases of a parameter; the value tells more, but is at times an address.
    static void add_parameter(Result& result, pugi::xml_node node) {
        const auto value = value_of(node, "value_param");
        if (!value.empty()) append_reason(result, "value_param: " + clipped(value, 200));
    }

    // The verdict of a testcase without failure or error.
    static void judge_quiet(Result& result, pugi::xml_node node, const std::string& status, bool ctest, Totals& totals,
                            const std::string& skip) {
        if (status == "disabled" || value_of(node, "result") == "suppressed" ||
            (status == "notrun" && totals.skipped.elements == 0)) {
            totals.disabled = 1;
            result.verdict = Verdict::skipped;
            result.reason = "disabled";
        } else if (totals.skipped.elements > 0) {
            // CTest calls a test skipped that it could not start, too.
            const bool asked = !ctest || skip.starts_with("SKIP_");
            result.verdict = asked ? Verdict::skipped : Verdict::not_run;
            result.reason = asked && !ctest ? skip : reason_from(skip, log_of(node));
        } else if (status == "fail") {
            result.verdict = Verdict::fail;
            result.reason = reason_from("", log_of(node));
        }
    }

    Result attempt(const std::string& test, pugi::xml_node node) const {
        Result result;
        result.test = test;
        result.seconds = document_.seconds(node, "time");
        add_failure(result, node, "");
        return result;
    }

    void push(Result&& result, bool torn_down) {
        last_[result.test] = {out_.results.size(), torn_down};
        out_.results.push_back(std::move(result));
    }

    // pytest writes an error of teardown behind the failure of the same call as one more testcase.
    bool merge(const Result& teardown) {
        const auto found = last_.find(teardown.test);
        if (found == last_.end() || found->second.torn_down) return false;
        auto& result = out_.results[found->second.place];
        found->second.torn_down = true;
        append_reason(result, teardown.reason);
        result.seconds += teardown.seconds;
        if (result.verdict != Verdict::crashed && result.verdict != Verdict::hung) {
            result.verdict = teardown.verdict;
            result.signal = teardown.signal;
            result.fingerprint = teardown.fingerprint;
        }
        std::vector<Figure> figures;
        for (const auto& m : teardown.measures) figures.push_back({m.name, m.value});
        add_figures(result, figures);
        return true;
    }

    Document document_;
    Imported out_;
    std::unordered_map<std::string, Last> last_;  // of the suite that is being read
};

}  // namespace

Imported read_junit(const std::string& text, const std::string& source) { return JunitReader(text, source).read(); }

}  // namespace tidegate::ledger
