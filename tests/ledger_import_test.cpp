// Others' files as results: documents that pytest, its plugins, GoogleTest and CTest wrote (tests/data/ledger).
#include <cmath>
#include <csignal>

#include "ledger_testing.h"

using namespace tidegate;
using namespace tidegate::ledger;

// ---- pytest --------------------------------------------------------------------------------------------------------

TEST(Pytest, EveryOutcome) {
    const auto f = junit("pytest.xml");
    EXPECT_EQ(f.results.size(), 12u);
    EXPECT_EQ(f.started, "2026-11-30T15:32:43Z");
    EXPECT_TRUE(f.notes.empty()) << f.notes.front();
    EXPECT_TRUE(f.one_process);
    expect_is(f, "test_kernels::test_x[fp16-63]", Verdict::pass);
    expect_is(f, "test_kernels::test_x[bf16-64]", Verdict::fail, "o differs <&> by \"1\"");
    expect_in(one(f, "test_kernels::test_x[bf16-64]").reason, "test_kernels.py:9: AssertionError");
    expect_is(f, "test_kernels::test_skip", Verdict::skipped, "no GPU");
    expect_is(f, "test_kernels::test_xfail", Verdict::skipped, "xfail: known wrong");
    expect_is(f, "test_kernels::test_xpass", Verdict::pass);
    expect_is(f, "test_kernels::test_xpass_strict", Verdict::fail, "[XPASS(strict)] must fail");
    expect_is(f, "test_kernels::test_setup_error", Verdict::fail, "failed on setup with \"RuntimeError: no device\"");
    expect_is(f, "test_kernels::test_teardown_error", Verdict::fail, "failed on teardown with");
    expect_is(f, "test_kernels.TestClass::test_method", Verdict::pass);
    EXPECT_DOUBLE_EQ(one(f, "test_kernels::test_x[fp16-63]").seconds, 0.001);
}

TEST(Pytest, AnErrorOfTeardownBelongsToTheSameAttempt) {
    const auto f = junit("pytest.xml");
    expect_is(f, "test_kernels::test_fail_and_teardown_error", Verdict::fail, "assert 1 == 2");
    expect_in(one(f, "test_kernels::test_fail_and_teardown_error").reason, "leaked 3 bytes");
    const std::string teardown = "<testcase name='a' time='2'><error message='failed on teardown with x'/></testcase>";
    const auto passing = cases("<testcase name='a' time='1'/>" + teardown);
    expect_is(passing, "a", Verdict::fail, "failed on teardown with x");
    EXPECT_EQ(one(passing, "a").seconds, 3);
    EXPECT_EQ(all(cases("<testcase name='a'/>" + teardown + "<testcase name='a'/>" + teardown), "a").size(), 2u);
}

TEST(Pytest, RecordedPropertiesAreMeasures) {
    const auto f = junit("pytest.xml");
    const auto& r = one(f, "test_kernels::test_x[bf16-64]");
    ASSERT_EQ(r.measures.size(), 3u);  // "device" is no number
    EXPECT_EQ(measure(r, "o.nrmse").value, 0.0768);
    EXPECT_EQ(measure(r, "o.nrmse").tensor, "");
    EXPECT_TRUE(std::isnan(measure(r, "o.max_abs").value));
    EXPECT_EQ(measure(r, "dk.max_abs").value, -INFINITY);
    const auto twice = cases(
        "<testcase name='a'><properties><property name='x' value='1'/><property name='x' value=' 2 '/>"
        "<property name='y'>3</property><property name='p' value='0x7f'/><property name='e' value=''/>"
        "</properties></testcase>");
    ASSERT_EQ(twice.results[0].measures.size(), 2u);
    EXPECT_EQ(measure(twice.results[0], "x").value, 2);
    EXPECT_EQ(measure(twice.results[0], "y").value, 3);
}

TEST(Pytest, RerunsAreAttempts) {
    const auto f = junit("pytest_rerunfailures.xml");
    const auto flaky = all(f, "test_rerun::test_flaky");
    ASSERT_EQ(flaky.size(), 3u);
    for (int i = 0; i < 3; ++i) {
        const auto& r = *flaky[static_cast<std::size_t>(i)];
        EXPECT_EQ(r.attempt, i + 1);
        EXPECT_EQ(r.verdict, i < 2 ? Verdict::fail : Verdict::pass);  // the file itself has no outcome of the first
    }
    const auto always = all(f, "test_rerun::test_always");
    ASSERT_EQ(always.size(), 2u);
    EXPECT_EQ(always[0]->verdict, Verdict::fail);
    expect_in(always[0]->reason, "run again");
    expect_in(always[1]->reason, "assert 0");
    ASSERT_EQ(f.notes.size(), 1u);
    EXPECT_EQ(f.notes[0], "suite 'pytest' says tests='4', its testcases give 7");
    // Where the file counts both, both are what they say.
    EXPECT_EQ(cases("<testcase name='a'/><testcase name='a'/>", "tests='2'").results[0].verdict, Verdict::pass);
}

TEST(Pytest, CrashesOfWorkers) {
    const auto f = junit("pytest_xdist_crash.xml");
    const auto& r = one(f, "test_segv::test_segv");
    EXPECT_EQ(r.verdict, Verdict::crashed);
    EXPECT_EQ(r.fingerprint, "worker 'gw0' crashed while running 'test_segv.py::test_segv'");
    EXPECT_FALSE(r.signal);
    EXPECT_FALSE(f.one_process);
    expect_is(f, "test_segv::test_after", Verdict::pass);
    const auto forked = junit("pytest_forked.xml");
    const auto& child = one(forked, "test_segv::test_segv");
    EXPECT_EQ(child.verdict, Verdict::crashed);
    EXPECT_EQ(child.signal, SIGSEGV);
    expect_in(child.fingerprint, "signal SIGSEGV: /work/test_segv.py:2: running the test CRASHED");
    expect_is(forked, "test_segv::test_before", Verdict::fail, "EXITED with status 3");
}

TEST(Pytest, CollectionSubtestsTimeouts) {
    expect_is(junit("pytest_collection.xml"), "test_broken_import", Verdict::fail, "collection failure");
    const auto sub = junit("pytest_subtests.xml");
    expect_is(sub, "test_sub::test_subs", Verdict::fail, "assert 1 != 1");
    expect_in(one(sub, "test_sub::test_subs").reason, "contains 1 failed subtest");
    EXPECT_EQ(sub.notes, std::vector<std::string>{"suite 'pytest' says tests='4', its testcases give 1"});
    expect_is(junit("pytest_timeout.xml"), "test_to::test_hang", Verdict::hung, "Timeout (>1.0s)");
}

// ---- GoogleTest, surefire ------------------------------------------------------------------------------------------

TEST(GoogleTest, EveryOutcome) {
    const auto f = junit("googletest.xml");
    EXPECT_EQ(f.results.size(), 10u);
    EXPECT_EQ(f.started, "2026-11-30T15:32:49");  // no zone in the file
    EXPECT_TRUE(f.notes.empty()) << f.notes.front();
    EXPECT_EQ(measure(one(f, "Kernel::Passes"), "n").value, 63);
    EXPECT_EQ(one(f, "Kernel::Passes").measures.size(), 2u);
    expect_is(f, "Kernel::FailsTwice", Verdict::fail, "second");
    EXPECT_EQ(one(f, "Kernel::FailsTwice").reason,
              "/work/g.cpp:3\nExpected equality of these values:\n  1\n  2\nfirst\n"
              "/work/g.cpp:3\nExpected: (3) < (2), actual: 3 vs 2\nsecond");
    expect_is(f, "Kernel::DISABLED_Later", Verdict::skipped, "disabled");
    expect_is(f, "Kernel::Skipped", Verdict::skipped, "no GPU");
    expect_is(f, "Kernel::FailsThenSkips", Verdict::fail, "bad");
    expect_is(f, "Sizes/Shapes::Fits/0", Verdict::pass);
    expect_is(f, "Sizes/Shapes::Fits/1", Verdict::fail, "value_param: 64");
    expect_is(f, "Typed/0::Works", Verdict::pass);
    expect_is(cases("<testcase name='X' classname='X' status='run' result='completed'/>"), "X::X", Verdict::pass);
    expect_is(cases("<testcase name='' classname=''><failure message='x'/></testcase>"), "s", Verdict::fail, "x");
}

TEST(Surefire, AttemptsOfOneTestcase) {  // by hand, after surefire's schema
    const auto f = cases(
        "<testcase name='a' classname='C' time='1,234.5'><flakyFailure message='m1'><stackTrace>t1</stackTrace>"
        "</flakyFailure><flakyError message='m2'/></testcase>"
        "<testcase name='b' classname='C'><failure message='m3'/><rerunFailure message='m4'/></testcase>",
        "tests='2' failures='1' errors='0' skipped='0'");
    ASSERT_EQ(f.results.size(), 5u);
    EXPECT_TRUE(f.notes.empty()) << f.notes.front();
    const Verdict verdicts[] = {Verdict::fail, Verdict::fail, Verdict::pass, Verdict::fail, Verdict::fail};
    const char* reasons[] = {"m1\nt1", "m2", "", "m3", "m4"};
    const int attempts[] = {1, 2, 3, 1, 2};
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(f.results[i].verdict, verdicts[i]) << i;
        EXPECT_EQ(f.results[i].reason, reasons[i]) << i;
        EXPECT_EQ(f.results[i].attempt, attempts[i]) << i;
    }
    EXPECT_EQ(f.results[2].seconds, 1234.5);
}

// ---- CTest ---------------------------------------------------------------------------------------------------------

TEST(Ctest, JunitOutcomes) {
    const auto f = junit("ctest_junit.xml");
    EXPECT_EQ(f.results.size(), 16u);
    EXPECT_TRUE(f.notes.empty()) << f.notes.front();
    EXPECT_FALSE(f.one_process);
    expect_is(f, "pass", Verdict::pass);
    expect_is(f, "fail", Verdict::fail, "running fail");
    expect_is(f, "regexfail", Verdict::fail, "Required regular expression not found");
    expect_is(f, "skip", Verdict::skipped, "SKIP_RETURN_CODE=77");
    expect_is(f, "skipregex", Verdict::skipped, "SKIPME");
    expect_is(f, "disabled", Verdict::skipped, "disabled");
    expect_is(f, "missing", Verdict::not_run, "Unable to find executable: /nonexistent/tool");
    expect_is(f, "notfix", Verdict::not_run, "Failed test dependencies: fix");
    EXPECT_NEAR(one(f, "timeout").seconds, 1.00281, 1e-9);
}

TEST(Ctest, TestXmlOutcomes) {
    const auto f = ctest();
    EXPECT_EQ(f.results.size(), 15u);
    EXPECT_TRUE(f.notes.empty()) << f.notes.front();
    EXPECT_EQ(f.started, "2026-11-30T15:32:49Z");
    expect_is(f, "pass", Verdict::pass);
    expect_is(f, "willfail", Verdict::pass);
    expect_is(f, "fail", Verdict::fail, "exit value 3\nrunning fail");
    EXPECT_EQ(one(f, "fail").exit_code, 3);
    expect_is(f, "regexfail", Verdict::fail, "Required regular expression not found");
    expect_is(f, "skip", Verdict::skipped, "SKIP_RETURN_CODE=77");
    expect_is(f, "disabled", Verdict::skipped, "disabled");
    expect_is(f, "missing", Verdict::not_run, "Unable to find executable");
    expect_is(f, "notfix", Verdict::not_run, "Fixture dependency failed");
    expect_is(f, "noexec", Verdict::not_run, "BAD_COMMAND");
    expect_is(f, "timeout", Verdict::hung, "Timeout\nrunning timeout");
    EXPECT_NEAR(one(f, "timeout").seconds, 1.00281, 1e-9);
}

TEST(Ctest, TestXmlCrashes) {
    const auto f = ctest();
    const std::pair<const char*, int> crashes[] = {
        {"segfault", SIGSEGV}, {"shsig", SIGSEGV}, {"killed", SIGKILL}, {"trap", SIGTRAP}};
    for (const auto& [test, signal] : crashes) {
        EXPECT_EQ(one(f, test).verdict, Verdict::crashed) << test;
        EXPECT_EQ(one(f, test).signal, signal) << test;
    }
    EXPECT_EQ(one(f, "shsig").fingerprint, "signal SIGSEGV: Segmentation fault");
    EXPECT_EQ(one(f, "killed").fingerprint, "signal SIGKILL");
    expect_in(one(f, "segfault").fingerprint, "<&> ]]>");
}

TEST(Ctest, TestXmlMeasures) {
    const auto f = ctest();
    const auto& r = one(f, "measure");
    ASSERT_EQ(r.measures.size(), 2u);
    EXPECT_EQ(measure(r, "o.nrmse").value, 0.0025);
    EXPECT_TRUE(std::isnan(measure(r, "dk.max_abs").value));
}

TEST(Ctest, NamesOfFoldersListsAndOddities) {
    const auto test = [](const std::string& path, const std::string& inside) {
        return "<Test Status='passed'><Name>t</Name><FullName>" + path + "</FullName><Results>" + inside +
               "</Results></Test>";
    };
    const auto file = [](const std::string& tests) {
        return read_ctest(
            "<Site><Testing><TestList><Test>./a/t</Test><Test>./u</Test></TestList>" + tests + "</Testing></Site>",
            "f.xml");
    };
    const auto both = file(test("./a/t", "") + test("./b/t", ""));
    expect_is(both, "./a/t", Verdict::pass);
    expect_is(both, "./b/t", Verdict::pass);
    EXPECT_EQ(both.notes, std::vector<std::string>{"test './u' is listed and has no result"});
    EXPECT_EQ(file(test("./a/t", "") + test("./a/t", "")).results[1].attempt, 2);
    const auto odd =
        file(test("./a/t", "<NamedMeasurement type='numeric/double' name='m'><Value>?</Value></NamedMeasurement>"));
    expect_in(odd.notes[0], "measurement 'm' is '?', which is no number");
}

// ---- what a text shows ---------------------------------------------------------------------------------------------

TEST(Junit, CrashesInTexts) {
    const auto failing = [](const std::string& text) {
        return cases("<testcase name='a'><failure message=''/><system-out>" + text + "</system-out></testcase>")
            .results[0];
    };
    const std::pair<const char*, int> crashes[] = {{"Fatal Python error: Segmentation fault", SIGSEGV},
                                                   {"Fatal Python error: Aborted", SIGABRT},
                                                   {"died with SIGBUS", SIGBUS},
                                                   {"3/4 Test #3: x ...***Exception: SegFault  0.10 sec", SIGSEGV},
                                                   {"***Exception: Numerical", SIGFPE}};
    for (const auto& [text, signal] : crashes) {
        const auto r = failing(std::string(text) + "\n\n  last words \n\n");
        EXPECT_EQ(r.verdict, Verdict::crashed) << text;
        EXPECT_EQ(r.signal, signal) << text;
        expect_in(r.fingerprint, ": last words");
    }
    EXPECT_EQ(failing("***Exception: Other\nFatal Python error: x\nSIGILL").signal, SIGILL);
    const auto unknown = failing("Fatal Python error: deadlock\nend");
    EXPECT_EQ(unknown.verdict, Verdict::crashed);
    EXPECT_EQ(unknown.fingerprint, "end");
    EXPECT_EQ(failing("CUDA error: an illegal memory access was encountered\nx").fingerprint,
              "CUDA illegal memory access");
    // What a failing test quotes of its source or of a log is no crash of its own.
    for (const char* message : {"AssertionError: 'Segmentation fault' not found in log",
                                "SIGABRT handler not installed", "assert 'CUDA error' in log"})
        EXPECT_EQ(cases("<testcase name='a'><failure message=\"" + std::string(message) +
                        "\">x = 1  # SIGSEGV\nFatal Python error: Aborted</failure></testcase>")
                      .results[0]
                      .verdict,
                  Verdict::fail)
            << message;
    // A log of a test that passes may say anything.
    EXPECT_EQ(cases("<testcase name='a'><system-out>SIGSEGV</system-out></testcase>").results[0].verdict,
              Verdict::pass);
}

TEST(Junit, LongTextsAreCutAtWholeCharacters) {
    const auto r =
        cases("<testcase name='a'><failure message='m'>" + repeated("\xC3\xA9", 5000) + "</failure></testcase>")
            .results[0];
    EXPECT_LE(r.reason.size(), 2002u);
    EXPECT_GE(r.reason.size(), 1990u);
    EXPECT_TRUE(r.reason.ends_with("\xC3\xA9..."));
    const auto many = cases("<testcase name='a'>" + repeated("<failure>x</failure>", 9000) + "</testcase>");
    EXPECT_LE(many.results[0].reason.size(), 4000u);
}

TEST(Junit, NestingTimesAndTotals) {
    const auto f = junit_text(
        "<testsuites tests='3' failures='many'><testsuite name='o' tests='2' failures='1' "
        "timestamp='2026-11-30T01:02:03+02:00'>"
        "<properties><property name='gpu' value='H200'/></properties><testcase name='a'/>"
        "<testsuite name='i' tests='1' skipped='1'><testcase classname='c' name='b'><skipped>why</skipped></testcase>"
        "</testsuite></testsuite></testsuites>");
    EXPECT_EQ(f.started, "2026-11-29T23:02:03Z");
    expect_is(f, "c::b", Verdict::skipped, "why");
    const std::vector<std::string> notes{"suite 'o': gpu = H200", "suite 'o' says failures='1', its testcases give 0",
                                         "suite '' says tests='3', its testcases give 2",
                                         "suite '' says failures='many', its testcases give 0"};
    EXPECT_EQ(f.notes, notes);
    for (const char* stamp : {"yesterday", "2026-13-01T00:00:00", "2026-11-30", ""})
        EXPECT_EQ(cases("", std::string("timestamp='") + stamp + "'").started, "") << stamp;
}

TEST(Junit, DuplicatesAreAttempts) {
    const auto f = cases("<testcase name='a'><failure/></testcase><testcase name='b'/><testcase name='a'/>");
    ASSERT_EQ(f.results.size(), 3u);
    EXPECT_EQ(f.results[0].verdict, Verdict::fail);
    EXPECT_EQ(f.results[2].attempt, 2);
    EXPECT_EQ(f.results[2].verdict, Verdict::pass);
}
