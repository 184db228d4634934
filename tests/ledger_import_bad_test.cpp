// What is no file of results, and what a runner that crashed has not written.
#include <csignal>

#include "ledger_testing.h"

using namespace tidegate;
using namespace tidegate::ledger;

// ---- what is no such file ------------------------------------------------------------------------------------------

TEST(BadImport, IsRefusedWithItsPlace) {
    for (const auto& refused : {why_junit, why_ctest}) {
        expect_in(refused(""), "f.xml: line 1 (byte 0): found an empty file, expected XML");
        expect_in(refused(" \n "), "found an empty file");
        expect_in(refused("not XML"), "found no well-formed XML (No document element found)");
        expect_in(refused("<a>\n<b>\n</a>"), "line 3");
        expect_in(refused("<testcases/>"), "found a root <testcases>, expected <");
        expect_in(refused("<a/>\n<b/>"), "line 2 (byte 6): found a second root <b>, expected one");
        expect_in(refused("<a>\n\xFF</a>"), "line 2 (byte 4): found byte 0xFF, expected UTF-8 text");
        expect_in(refused(std::string("<a>\0</a>", 8)), "found byte 0x00");
        expect_in(refused("{\"json\": 1}"), "expected a whole XML document");
    }
    expect_in(why_junit("<Site/>"), "this looks like CTest's Test.xml");
    expect_in(why_ctest("<testsuites/>"), "this looks like JUnit XML");
    expect_in(why_ctest("<Site><Build/></Site>"), "found a <Site> without <Testing>");
    expect_in(why_ctest("<Site><Testing>\n<Test Status='odd'><Name>a</Name></Test></Testing></Site>"),
              "line 2 (byte 17): found Status='odd', expected passed, failed or notrun");
    expect_in(why_ctest("<Site><Testing><Test Status='passed'/></Testing></Site>"), "without <Name>");
    expect_in(why_junit("<testsuite><testcase name='a' time='soon'/></testsuite>"), "time='soon', expected seconds");
    expect_in(why_junit("<testsuite><testcase name='a' time='inf'/></testsuite>"), "expected seconds");
}

TEST(BadImport, TruncatedAnywhere) {
    for (const char* name : {"googletest.xml", "ctest_junit.xml", "pytest.xml"}) {
        const auto text = slurp(name);
        for (std::size_t n = 0; n + 2 < text.size(); n += 37)
            EXPECT_NE(why_junit(text.substr(0, n)), "") << name << " cut at " << n;
    }
    const auto text = slurp("ctest_Test.xml");
    for (std::size_t n = 0; n + 2 < text.size(); n += 37) EXPECT_NE(why_ctest(text.substr(0, n)), "") << n;
}

TEST(BadImport, DeepLongAndOdd) {
    constexpr int kDeep = 100000;
    expect_in(why_junit(repeated("<testsuite>", kDeep) + repeated("</testsuite>", kDeep)), "suites nested 65 deep");
    expect_in(why_junit(repeated("<testsuite>", kDeep)), "found no well-formed XML");
    EXPECT_EQ(cases(repeated("<x>", kDeep) + repeated("</x>", kDeep)).results.size(), 0u);
    EXPECT_EQ(
        why_ctest("<Site><Testing>" + repeated("<Test>", kDeep) + repeated("</Test>", kDeep) + "</Testing></Site>"),
        "f.xml: line 1 (byte 16): found a <Test> without <Name>, expected one");
    const std::string name(1 << 20, 'n');
    expect_in(why_junit("<testsuite><testcase name='" + name + "'/></testsuite>"),
              "found a test's name of 1048576 bytes, expected at most 65536");
    expect_in(why_ctest("<Site><Testing><Test Status='passed'><Name>" + name + "</Name></Test></Testing></Site>"),
              "name of 1048576 bytes");
    EXPECT_LT(why_junit("<" + name + "/>").size(), 300u);
    // A reference may stand for what is no character.
    EXPECT_EQ(cases("<testcase name='a&#xD800;b'/>").results[0].test, "a" + repeated("\xEF\xBF\xBD", 3) + "b");
}

// ---- complete ------------------------------------------------------------------------------------------------------

namespace {

Imported of(const std::vector<std::pair<std::string, Verdict>>& results) {
    Imported out;
    for (const auto& [test, verdict] : results) {
        Result r;
        r.test = test;
        r.verdict = verdict;
        out.results.push_back(r);
    }
    return out;
}

}  // namespace

TEST(Complete, AfterACrashTheNextCaseIsToBlame) {
    auto f = of({{"a", Verdict::pass}, {"extra", Verdict::fail}, {"c", Verdict::pass}});
    complete(f, {"a", "b", "c", "d", "e", "e"}, 128 + SIGSEGV);
    ASSERT_EQ(f.results.size(), 6u);
    expect_is(f, "extra", Verdict::fail);
    expect_is(f, "b", Verdict::not_run, "signal SIGSEGV");
    expect_is(f, "d", Verdict::crashed, "signal SIGSEGV");
    EXPECT_EQ(one(f, "d").fingerprint, "signal SIGSEGV");
    EXPECT_EQ(one(f, "d").signal, SIGSEGV);
    expect_is(f, "e", Verdict::not_run, "signal SIGSEGV");
}

TEST(Complete, WithoutACrashCasesAreNotRun) {
    for (const int status : {0, 1, 127, 128, 255}) {
        auto f = of({{"a", Verdict::pass}});
        complete(f, {"a", "b"}, status);
        expect_is(f, "b", Verdict::not_run, "exit status " + std::to_string(status));
        EXPECT_TRUE(f.notes.empty());
    }
}

TEST(Complete, NothingOrAllWasWritten) {
    Imported none;
    complete(none, {"a", "b"}, 134);
    EXPECT_EQ(one(none, "a").fingerprint, "signal SIGABRT");
    expect_is(none, "b", Verdict::not_run, "SIGABRT");
    auto whole = of({{"a", Verdict::pass}});
    complete(whole, {"a"}, 139);
    EXPECT_EQ(whole.results.size(), 1u);
    expect_in(whole.notes.at(0), "signal SIGSEGV behind its last case");
    auto told = of({{"a", Verdict::crashed}});
    complete(told, {"a", "b"}, 139);
    EXPECT_EQ(one(told, "a").signal, SIGSEGV);
    EXPECT_EQ(one(told, "b").verdict, Verdict::not_run);
}

TEST(Complete, FailsBehindACrashFollowFromIt) {
    const std::vector<std::pair<std::string, Verdict>> results{
        {"a", Verdict::fail}, {"b", Verdict::crashed}, {"c", Verdict::fail}, {"d", Verdict::pass}};
    auto f = of(results);
    complete(f, {}, 1);
    EXPECT_FALSE(f.results[0].follow_on || f.results[1].follow_on || f.results[3].follow_on);
    EXPECT_TRUE(f.results[2].follow_on);
    f = of(results);
    f.one_process = false;
    complete(f, {}, 1);
    EXPECT_FALSE(f.results[2].follow_on);
}
