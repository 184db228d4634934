// The ledger through the tool: a real record reproduced, kills, many writers, files that are no ledger.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "ledger/query.h"
#include "ledger/stats.h"
#include "tidegate/error.h"
#include "tool.h"

namespace tidegate {
namespace {

using ledger::Json;
using ledger::Store;
using test::Ran;
using test::tool;

class LedgerTest : public testing::Test {
protected:
    void SetUp() override {
        std::string name = testing::TempDir() + "ledger_XXXXXX";
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        folder_ = name;
        db_ = folder_ + "/l.db";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string write(const std::string& name, const std::string& text) const {
        std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
        return folder_ + "/" + name;
    }
    static std::string read(const std::string& path) {
        if (std::filesystem::is_directory(path)) return "";
        std::ifstream file(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    /// The answer of a ledger verb.
    Json ask(const std::string& arguments, int code = 0) const {
        const Ran ran = tool("ledger " + arguments + " --ledger '" + db_ + "' --json -");
        EXPECT_EQ(ran.code, code) << ran.out;
        return Json::parse(ran.out, nullptr, false);
    }
    std::string folder_, db_;
};

const Json* run_of(const Json& show, const std::string& build, const std::string& started, const std::string& label) {
    for (const Json& r : show["runs"])
        if (r["build"] == build && r["label"] == label && (started.empty() || r["started"] == started)) return &r;
    return nullptr;
}

class LedgerFacts : public LedgerTest {
protected:
    void SetUp() override {
        LedgerTest::SetUp();
        const std::string command =
            "'" TIDEGATE_ROOT "/examples/ledger/import.sh' '" + db_ + "' '" TIDEGATE_TOOL "' >/dev/null";
        ASSERT_EQ(std::system(command.c_str()), 0);
    }
};

TEST_F(LedgerFacts, EveryRunsCounts) {
    const Json show = ask("show --build 00e39ab5,a9c66ddb,725cf45d,69300ffc,d0906c3e,88d8b965,048d0427");
    struct Row {
        const char *build, *started;
        int collected, passed, failed, skipped;
    };
    for (const Row& want : {Row{"00e39ab5", "2026-09-08", 10, 5, 0, 5}, Row{"a9c66ddb", "2026-09-14", 26, 13, 0, 13},
                            Row{"725cf45d", "2026-09-14", 26, 2, 11, 13}, Row{"69300ffc", "2026-09-14", 26, 12, 1, 13},
                            Row{"d0906c3e", "2026-09-08", 26, 12, 1, 13}, Row{"d0906c3e", "2026-09-14", 26, 12, 1, 13},
                            Row{"048d0427", "2026-09-08", 28, 15, 0, 13}}) {
        const Json* run = run_of(show, want.build, want.started, "CGDR");
        ASSERT_NE(run, nullptr) << want.build;
        EXPECT_EQ((*run)["collected"], want.collected) << want.build;
        EXPECT_EQ((*run)["counts"]["pass"], want.passed) << want.build;
        EXPECT_EQ((*run)["counts"]["fail"], want.failed) << want.build;
        EXPECT_EQ((*run)["counts"]["skipped"], want.skipped) << want.build;
        EXPECT_EQ((*run)["executable"], want.passed + want.failed) << want.build;
        EXPECT_TRUE((*run)["flags"].empty()) << (*run)["flags"].dump();
    }
    EXPECT_EQ((*run_of(show, "048d0427", "", "CGDR"))["collected_is"], "derived");
    EXPECT_EQ((*run_of(show, "00e39ab5", "", "CGDR"))["collected_is"], "given");
    EXPECT_EQ((*run_of(show, "88d8b965", "", "CGDR"))["measured"], false);
    EXPECT_EQ((*run_of(show, "69300ffc", "", "CGDR"))["failing"][0],
              "test_cgdr::test_accuracy_recurrent_reference[fp16]");
    EXPECT_EQ(show["failures_by_run"]["CGDR"], "0 -> 11 -> 1 -> 0");
    int performance = 0;
    for (const Json& r : show["performance"])
        if (r["label"] == "CGDR perf") performance += r["counts"]["pass"].get<int>();
    EXPECT_EQ(performance, 6 * 6);
}

TEST_F(LedgerFacts, CountsThatChangeOrDoNotAddUpAreExplainedOrFlagged) {
    const Json show = ask("show --build d0906c3e,048d0427,96ea3f55");
    const Json& change = show["changes"][0];
    EXPECT_EQ(change["from"]["collected"], 26);
    EXPECT_EQ(change["to"]["collected"], 28);
    EXPECT_EQ(change["executable"]["new"], 2);
    EXPECT_EQ(change["executable"]["standing"], "derived");
    EXPECT_NE(change["words"].get<std::string>().find("skipped 13 -> 13"), std::string::npos);
    const Json& flags = (*run_of(show, "96ea3f55", "", "RGDR"))["flags"];
    ASSERT_EQ(flags.size(), 1U);
    EXPECT_EQ(flags[0], "4 collected, but its outcomes add up to 3");
}

TEST_F(LedgerFacts, TheAllZeroBuildIsExplainedByWhatItsCasesAssert) {
    const Json show = ask("show --build 725cf45d");
    const Json* run = nullptr;
    for (const Json& r : show["asserts"])
        if (r["by"].size() > 1) run = &r;
    ASSERT_NE(run, nullptr);
    int anchored = 0, hollow = 0;
    for (const Json& row : (*run)["by"]) {
        EXPECT_EQ(row["anchor"].get<bool>(), row["asserts"] != "isfinite");
        if (row["anchor"].get<bool>()) {
            EXPECT_FALSE(row["counts"].contains("pass")) << row.dump();
            anchored += row["counts"]["fail"].get<int>();
        } else {
            hollow += row["counts"]["pass"].get<int>();
        }
    }
    EXPECT_EQ(anchored, 11);
    EXPECT_EQ(hollow, 2);
    EXPECT_EQ((*run)["suspect"], true);
    EXPECT_EQ((*run)["passes_without_anchor"].size(), 2U);
}

TEST_F(LedgerFacts, DerivedFigures) {
    const Json better = ask("compare 69300ffc d0906c3e"), worse = ask("compare d0906c3e 69300ffc", 1);
    const auto nrmse = [](const Json& compared) -> const Json& {
        for (const Json& c : compared["same_verdict_other_numbers"])
            for (const Json& v : c["values"])
                if (v["measure"] == "nrmse") return v;
        static const Json none;
        return none;
    };
    EXPECT_NEAR(nrmse(better)["percent"].get<double>(), -15.67, 0.005);
    EXPECT_NEAR(nrmse(worse)["percent"].get<double>(), 18.59, 0.005);
    EXPECT_NEAR(nrmse(better)["a_over_limit_percent"].get<double>(), 59.5, 0.005);
    EXPECT_NEAR(nrmse(better)["b_over_limit_percent"].get<double>(), 34.5, 0.005);
    EXPECT_EQ(better["worse"], false);
    EXPECT_EQ(worse["worse"], true);
    // "Exactly the same": the same case, other numbers.
    ASSERT_EQ(better["claims"].size(), 1U);
    EXPECT_EQ(better["claims"][0]["words"], "exactly the same");
    EXPECT_EQ(better["claims"][0]["numbers_differ"], true);

    const Json plans = ask("compare 725cf45d d0906c3e");
    std::map<std::string, Json> plan;
    for (const Json& p : plans["plans"]) plan[p["name"]] = p;
    EXPECT_NEAR(plan["vStep"]["percent_the_other_way"].get<double>(), 20.0, 0.005);
    EXPECT_EQ(plan["buffer bytes"]["difference"], -27776);
    EXPECT_NEAR(plan["buffer bytes"]["percent_the_other_way"].get<double>(), 22.17, 0.005);

    const Json trend = ask("trend 'decode T=1' --measure 'max error'");
    EXPECT_NEAR(trend["cases"][0]["history"][0]["over_limit_percent"].get<double>(), 940, 0.01);  // 10.4 times
}

TEST_F(LedgerFacts, ConflictingFiguresStandSideBySide) {
    const Json show = ask("show");
    ASSERT_EQ(show["conflicts"].size(), 1U);
    const Json& conflict = show["conflicts"][0];
    EXPECT_EQ(conflict["measure"], "max error");
    ASSERT_EQ(conflict["values"].size(), 3U);
    EXPECT_EQ(conflict["values"][0]["value"], 0.0104);
    EXPECT_EQ(conflict["values"][2]["value"], 0.01);
    for (const Json& v : conflict["values"]) EXPECT_EQ(v["standing"], "quoted");
}

TEST_F(LedgerFacts, CrashesKeepTheirSequenceIntervalAndTheBuildsOwnSuffixes) {
    const Json show = ask("show");
    std::map<std::pair<std::string, std::string>, Json> crashes;
    for (const Json& c : show["crashes"]) crashes[{c["build"], c["case"]}] = c;
    const Json& third = crashes[{"d0906c3e", "perf T=2048"}];
    EXPECT_EQ(third["attempts"], "pass/crash/pass");
    EXPECT_EQ(third["crashes"], 1);
    EXPECT_EQ(third["runs"], 3);
    EXPECT_NEAR(third["rate_low"].get<double>(), 0.0084, 5e-5);
    EXPECT_NEAR(third["rate_high"].get<double>(), 0.9057, 5e-5);
    EXPECT_EQ((crashes[{"a9c66ddb", "perf"}])["fingerprints"][0]["suffixes"], "_2 = 128");
    EXPECT_EQ((crashes[{"69300ffc", "perf"}])["fingerprints"][0]["suffixes"], "_3 = 128");
    // The same suffix is another kernel in another build.
    Json buckets = ask("compare a9c66ddb 69300ffc", 1)["buckets"];
    bool found = false;
    for (const Json& b : buckets) found = found || (b["suffix"] == "_2" && b["a"] == "128" && b["b"] == "96");
    EXPECT_TRUE(found);
    const Ran same = tool("ledger flaky 'perf T=512' --build d0906c3e --other 048d0427 --ledger '" + db_ + "'");
    EXPECT_EQ(same.code, 0);
    EXPECT_TRUE(same.has("not evidence either way")) << same.out;
    const Ran apart = tool("ledger flaky --counts 20/42 1/42");
    EXPECT_TRUE(apart.has("evidence") && !apart.has("not evidence")) << apart.out;
}

TEST_F(LedgerTest, VerbsRecordWhatTheyDo) {
    ASSERT_EQ(tool("check --suite quick --rule gdn --ledger '" + db_ + "' --build one --quiet").code, 0);
    ASSERT_EQ(tool("check --suite quick --rule gdn --subject cpu+fault:zero-output --ledger '" + db_ +
                   "' --build two --quiet")
                  .code,
              1);
    ASSERT_EQ(tool("drift --steps 5 --ledger '" + db_ + "' --build one --quiet").code, 0);
    const Json show = ask("show");
    const Json& one = *run_of(show, "one", "", "quick");
    EXPECT_GT(one["counts"]["pass"].get<int>(), 10);
    EXPECT_EQ(one["collected"], one["counts"]["pass"]);
    EXPECT_EQ(one["finished"], true);
    EXPECT_EQ(show["totals"]["not run"], 0);
    const Json compared = ask("compare one two", 1);
    EXPECT_FALSE(compared["changed"].empty());
    EXPECT_EQ(compared["changed"][0]["a"], "pass");
    EXPECT_EQ(compared["changed"][0]["b"], "fail");
    const Json trend = ask("trend 'gdn/*' --measure needed --tensor o");
    EXPECT_EQ(trend["cases"][0]["history"].size(), 2U);
    EXPECT_EQ(trend["cases"][0]["history"][0]["limit"], 1);
}

TEST_F(LedgerTest, NaNAndCrashRankWorst) {
    const std::string file = write("c.csv",
                                   "build,started,case,verdict,measure:nrmse,limit:nrmse\n"
                                   "a,2026-01-01,x,pass,0.01,0.02\nb,2026-01-02,x,fail,nan,0.02\n"
                                   "c,2026-01-03,x,crashed,,\nd,2026-01-04,x,pass,0.0101,0.02\n"
                                   "e,2026-01-05,x,pass,0.019,0.02\n");
    ASSERT_EQ(tool("ledger import '" + file + "' --ledger '" + db_ + "'").code, 0);
    const Json history = ask("trend x")["cases"][0]["history"];
    ASSERT_EQ(history.size(), 5U);
    EXPECT_EQ(history[1]["value"], "nan");
    EXPECT_EQ(history[1]["worse"], true);
    EXPECT_EQ(history[2]["value"], "crashed");
    EXPECT_EQ(history[4]["worse"], true);
    EXPECT_EQ(ask("trend x")["cases"][0]["passing_but_worse_than_best"], true);
    EXPECT_EQ(ask("compare a b", 1)["worse"], true);
    EXPECT_EQ(ask("compare a c", 1)["changed"][0]["b"], "crashed");
    EXPECT_EQ(ask("compare d e", 1)["same_verdict_other_numbers"][0]["worse"], true);
}

TEST_F(LedgerTest, TheLedgerIsNotWrittenOver) {
    const std::string csv = write("c.csv", "build,started,passed\na,2026-01-01,1\n");
    ASSERT_EQ(tool("ledger import '" + csv + "' --ledger '" + db_ + "'").code, 0);
    for (const std::string& verb : {std::string("ledger show"), std::string("check --suite quick")}) {
        EXPECT_EQ(tool(verb + " --ledger '" + db_ + "' --json '" + db_ + "'").code, 2) << verb;
        EXPECT_EQ(ask("show")["runs"].size(), 1U) << verb;
    }
    EXPECT_EQ(tool("ledger import '" + csv + "' --ledger :memory:").code, 2);
    EXPECT_EQ(tool("ledger import '" + csv + "' --ledger '" + db_ + "'").code, 2);  // the same counts twice
    EXPECT_EQ(ask("show")["totals"]["pass"], 1);
}

TEST_F(LedgerTest, TheLastAttemptCountsAndCrashesStayInSight) {
    // Attempts of runs at once come in no order, and a killed run leaves gaps.
    {
        Store store(db_, Store::Mode::write);
        for (const char* build : {"a", "b"}) {
            ledger::Run run;
            run.build.name = build;
            run.started = "2026-01-01";
            const std::int64_t id = store.begin(run, {});
            for (const int attempt : {7, 1, 5, 12, 3, 9, 2, 20}) {
                ledger::Result r;
                r.test = "x";
                r.attempt = attempt;
                r.verdict = attempt == 20 || build[0] == 'a' ? ledger::Verdict::pass : ledger::Verdict::crashed;
                store.add(id, r);
            }
            store.finish(id, 0);
        }
    }
    const Json show = ask("show");
    for (const Json& run : show["runs"]) {
        EXPECT_EQ(run["collected"], 1);
        EXPECT_EQ(run["counts"]["pass"], 1);
        EXPECT_EQ(run["counts"]["crashed"], 0);
    }
    EXPECT_EQ((*run_of(show, "b", "", ""))["flags"].size(), 1U);
    const Json compared = ask("compare a b", 1);
    EXPECT_EQ(compared["changed"][0]["crashes"]["b"], 7);
    EXPECT_EQ(compared["changed"][0]["crashes"]["b_attempts"], 8);
}

TEST_F(LedgerTest, CountsBelowTheCasesAreFlagged) {
    const std::string cases = write("c.csv", "build,started,case,verdict\na,2026-01-01,x,pass\na,2026-01-01,y,pass\n");
    const std::string counts = write("n.csv", "build,started,passed\na,2026-01-01,1\n");
    ASSERT_EQ(tool("ledger import '" + cases + "' '" + counts + "' --ledger '" + db_ + "'").code, 0);
    EXPECT_EQ(ask("show")["runs"][0]["flags"][0], "pass: the record counts 1, its cases are 2");
}

TEST_F(LedgerTest, RunsOfOneLabelAreComparedTogether) {
    const std::string file = write("c.csv",
                                   "build,started,case,verdict\n"
                                   "a,2026-01-01,x,pass\na,2026-01-02,y,pass\n"
                                   "b,2026-01-03,x,fail\nb,2026-01-04,y,pass\n");
    ASSERT_EQ(tool("ledger import '" + file + "' --ledger '" + db_ + "'").code, 0);
    EXPECT_EQ(ask("compare a b", 1)["changed"][0]["case"], "x");
    const std::string counts = write("n.csv", "build,started,passed,crashed\nc,2026-01-01,10,0\nd,2026-01-02,5,5\n");
    ASSERT_EQ(tool("ledger import '" + counts + "' --ledger '" + db_ + "'").code, 0);
    EXPECT_EQ(ask("compare c d", 1)["worse"], true);
}

TEST_F(LedgerTest, WhatPytestListsIsWhatItsFileNames) {
    const std::string xml = write("r.xml",
                                  "<testsuite name=\"s\" tests=\"2\"><testcase classname=\"d.test_m\" name=\"t[1]\"/>"
                                  "<testcase classname=\"d.test_m.C\" name=\"u\"/></testsuite>");
    const std::string listed =
        write("l", "d/test_m.py::t[1]\nd/test_m.py::C::u\nd/test_m.py::v\n\n3 tests collected in 0.01s\n");
    ASSERT_EQ(tool("ledger import '" + xml + "' --build x --expected '" + listed + "' --exit-status 139 --ledger '" +
                   db_ + "'")
                  .code,
              0);
    const Json run = ask("show --cases");
    EXPECT_EQ(run["runs"][0]["counts"]["pass"], 2);
    EXPECT_EQ(run["runs"][0]["counts"]["crashed"], 1);
    EXPECT_EQ(run["cases"][2]["verdict"], "crashed");
    const std::string other = write("o", "something::else\n");
    EXPECT_EQ(tool("ledger import '" + xml + "' --build y --expected '" + other + "' --ledger '" + db_ + "'").code, 2);
    // A runner that died left no file at all.
    ASSERT_EQ(tool("ledger import --build z --expected '" + listed + "' --exit-status 137 --ledger '" + db_ + "'").code,
              0);
    EXPECT_EQ((*run_of(ask("show"), "z", "", ""))["counts"]["not run"], 2);
}

TEST_F(LedgerTest, WhatACrashSwallowedIsShown) {
    const std::string xml =
        write("r.xml", "<testsuite name=\"s\" tests=\"1\"><testcase classname=\"m\" name=\"a\"/></testsuite>");
    const std::string expected = write("expected", "m::a\nm::b\nm::c\n");
    ASSERT_EQ(tool("ledger import '" + xml + "' --build x --started 2026-01-01 --expected '" + expected +
                   "' --exit-status 139 --ledger '" + db_ + "'")
                  .code,
              0);
    const Json counts = ask("show")["runs"][0]["counts"];
    EXPECT_EQ(counts["pass"], 1);
    EXPECT_EQ(counts["crashed"], 1);
    EXPECT_EQ(counts["not run"], 1);
}

// Killed at any point, a writer loses no row that it was told is written, and leaves a ledger that can be read.
TEST_F(LedgerTest, KillsLoseNothingThatWasCommitted) {
    std::int64_t committed = 0;
    for (int i = 0; i < 200; ++i) {
        int pipe_fd[2];
        ASSERT_EQ(pipe(pipe_fd), 0);
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            close(pipe_fd[0]);
            Store store(db_, Store::Mode::write);
            ledger::Run run;
            run.build.name = "b" + std::to_string(i);
            const std::vector<ledger::Expected> expected(3, {"x", ""});
            const std::int64_t id = store.begin(run, {});
            for (int n = 0;; ++n) {
                ledger::Result r;
                r.test = "case " + std::to_string(n);
                r.verdict = ledger::Verdict::pass;
                r.measures.push_back({"o", "nrmse", 1e-3, {}, "", "", ledger::Standing::measured});
                store.add(id, r);
                if (::write(pipe_fd[1], "x", 1) != 1) _exit(1);
            }
        }
        close(pipe_fd[1]);
        char byte = 0;
        for (int n = 0; n <= i % 7; ++n) ASSERT_EQ(::read(pipe_fd[0], &byte, 1), 1);
        usleep(static_cast<useconds_t>(i % 13) * 100);
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        committed += 1 + i % 7;
        while (::read(pipe_fd[0], &byte, 1) == 1) ++committed;
        close(pipe_fd[0]);
    }
    Store store(db_, Store::Mode::write);
    EXPECT_EQ(store.database().execAndGet("PRAGMA integrity_check").getString(), "ok");
    const std::int64_t rows = store.database().execAndGet("SELECT COUNT(*) FROM result").getInt64();
    EXPECT_GE(rows, committed);
    EXPECT_LE(rows, committed + 200);  // one of each child may have been written and not yet told
    EXPECT_EQ(store.database().execAndGet("SELECT COUNT(*) FROM measure").getInt64(), rows);
}

TEST_F(LedgerTest, EightWritersLoseNoRow) {
    constexpr int kWriters = 8, kRows = 200;
    std::vector<pid_t> children;
    for (int w = 0; w < kWriters; ++w) {
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            try {
                Store store(db_, Store::Mode::write);  // all of them may be the one that makes it
                ledger::Run run;
                run.build.name = "w" + std::to_string(w);
                const std::int64_t id = store.begin(run, {});
                for (int n = 0; n < kRows; ++n) {
                    ledger::Result r;
                    r.test = "case " + std::to_string(n);
                    r.verdict = ledger::Verdict::pass;
                    store.add(id, r);
                }
                store.finish(id, 0);
                _exit(0);
            } catch (const std::exception& e) {
                std::fprintf(stderr, "%s\n", e.what());
                _exit(1);
            }
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
    Store store(db_, Store::Mode::read);
    const auto rows = ledger::runs_of(store);
    ASSERT_EQ(rows.size(), static_cast<std::size_t>(kWriters));
    for (const auto& row : rows) EXPECT_EQ(row.count(ledger::Verdict::pass), kRows);
}

TEST_F(LedgerTest, FilesThatAreNoLedgerStayAsTheyAre) {
    const std::string csv = write("c.csv", "build,passed\nx,1\n");
    const auto refused = [&](const std::string& path, const std::string& words) {
        const std::string before = read(path);
        for (const std::string& verb : {"import '" + csv + "'", std::string("show")}) {
            const Ran ran = tool("ledger " + verb + " --ledger '" + path + "'");
            EXPECT_EQ(ran.code, 2) << verb << ran.out;
            EXPECT_TRUE(ran.has(words)) << verb << ": " << ran.out;
            EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
        }
        EXPECT_EQ(read(path), before);
    };
    refused(write("text",
                  "this is no database at all, but it is long enough to have a header of one hundred bytes, so "
                  "that SQLite looks at it"),
            "ledger");
    {
        SQLite::Database other(folder_ + "/other.db", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
        other.exec("CREATE TABLE things (x INTEGER)");
    }
    refused(folder_ + "/other.db", "no ledger");
    ASSERT_EQ(tool("ledger import '" + csv + "' --ledger '" + db_ + "'").code, 0);
    {
        Store store(db_, Store::Mode::write);
        store.database().exec("PRAGMA journal_mode = DELETE");
    }
    const std::string good = read(db_);
    refused(write("truncated.db", good.substr(0, good.size() / 2)), "ledger");
    refused(write("shorter.db", good.substr(0, good.size() - 1)), "no whole ledger");
    refused(write("tiny.db", "x"), "no ledger");
    {
        SQLite::Database newer(db_, SQLite::OPEN_READWRITE);
        newer.exec("UPDATE ledger_meta SET value = '99' WHERE name = 'schema_version'");
    }
    refused(db_, "version 99");
    refused(folder_, "is no file");
    // Missing and empty are new; to look at one makes none.
    EXPECT_EQ(tool("ledger show --ledger '" + folder_ + "/new.db'").code, 0);
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/new.db"));
    EXPECT_EQ(tool("ledger import '" + csv + "' --ledger '" + write("empty.db", "") + "'").code, 0);
    EXPECT_EQ(tool("ledger import '" + csv + "' --ledger '" + folder_ + "/no/such/folder.db'").code, 2);
}

TEST_F(LedgerTest, BadImportsWriteNothing) {
    const std::pair<const char*, const char*> bad[] = {{"build,passed\nx,1\nx\n", "line 3"},
                                                       {"build,passed\nx,-1\n", "count"},
                                                       {"build,passed\nx,1e99\n", "count"},
                                                       {"some,thing\n1,2\n", "heading"},
                                                       {"build,case,verdict\nx,y,maybe\n", "verdict"},
                                                       {"build,case,measure,value\nx,y,nrmse,1\n", "result"},
                                                       {"build,passed,faild\nx,1,2\n", "faild"},
                                                       {"build,passed,passed\nx,1,2\n", "twice"},
                                                       {"build,passed\n", "no rows"},
                                                       {"\"build,passed\nx,1\n", "no end"},
                                                       {"", "empty"},
                                                       {"{\"record\":\"case\"", "JSON"},
                                                       {"<testsuite><testcase name='a'", "XML"}};
    for (const auto& [text, words] : bad) {
        const Ran ran = tool("ledger import '" + write("bad", text) + "' --build b --ledger '" + db_ + "'");
        EXPECT_EQ(ran.code, 2) << text;
        EXPECT_TRUE(ran.has(words)) << text << ": " << ran.out;
    }
    EXPECT_TRUE(!std::filesystem::exists(db_) || ask("show")["runs"].empty());
}

}  // namespace
}  // namespace tidegate
