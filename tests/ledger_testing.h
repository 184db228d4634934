// What the tests of the ledger's readers share.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "ledger/import.h"
#include "tidegate/error.h"

namespace tidegate::ledger {

inline std::string slurp(const std::string& name) {
    std::ifstream in(std::string(TIDEGATE_ROOT) + "/tests/data/ledger/" + name, std::ios::binary);
    EXPECT_TRUE(in) << name;
    return {std::istreambuf_iterator<char>(in), {}};
}

inline Imported junit(const std::string& name) { return read_junit(slurp(name), name); }
inline Imported ctest() { return read_ctest(slurp("ctest_Test.xml"), "ctest_Test.xml"); }
inline Imported junit_text(const std::string& text) { return read_junit(text, "f.xml"); }
// Testcases of one suite.
inline Imported cases(const std::string& text, const std::string& attributes = "") {
    return junit_text("<testsuite name='s' " + attributes + ">" + text + "</testsuite>");
}

inline std::vector<const Result*> all(const Imported& imported, const std::string& test) {
    std::vector<const Result*> found;
    for (const auto& r : imported.results)
        if (r.test == test) found.push_back(&r);
    return found;
}

inline const Result& one(const Imported& imported, const std::string& test) {
    const auto found = all(imported, test);
    EXPECT_EQ(found.size(), 1u) << test;
    static const Result kNone;
    return found.empty() ? kNone : *found.front();
}

inline void expect_in(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "text: " << text << "\nexpected in it: " << part;
}

inline void expect_is(const Imported& imported, const std::string& test, Verdict verdict,
                      const std::string& reason = "") {
    const auto& r = one(imported, test);
    EXPECT_EQ(r.verdict, verdict) << test;
    EXPECT_EQ(r.attempt, 1) << test;
    if (reason.empty())
        EXPECT_EQ(r.reason, "") << test;
    else
        expect_in(r.reason, reason);
}

inline const Measure& measure(const Result& result, const std::string& name) {
    for (const auto& m : result.measures)
        if (m.name == name) return m;
    ADD_FAILURE() << "no measure " << name << " of " << result.test;
    static const Measure kNone;
    return kNone;
}

template <class Read>
std::string why(const Read& read) {
    try {
        read();
    } catch (const Error& e) {
        EXPECT_EQ(e.argument(), "import");
        return e.what();
    }
    return "";
}
inline std::string why_junit(const std::string& text) {
    return why([&] { read_junit(text, "f.xml"); });
}
inline std::string why_ctest(const std::string& text) {
    return why([&] { read_ctest(text, "f.xml"); });
}

inline std::string repeated(const std::string& text, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
}

}  // namespace tidegate::ledger
