// The verbs and what the command line gives them.
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cases/case.h"
#include "subjects/spec.h"

namespace tidegate::cli {

class Sink;

struct CheckOptions {
    std::string target;  ///< FILE or case id; empty with a suite
    std::string suite;
    std::string subject = "cpu";
    std::string pass, rule, dtype, gates;
    std::string gate = "derived";
    std::string twin;  ///< empty: what the subject declares, else recurrent
    std::string isa;   ///< forced; for the replay command
    std::string json;  ///< path, or "-"
    bool allow_nan = false, mutants = false, properties = false, bit_exact = false, list = false, quiet = false;
    subjects::Settings settings;
    Sink* sink = nullptr;                                      ///< also gets the records
    std::function<std::string(const std::string& id)> replay;  ///< how a case is shown again; empty: by this command
};
int check(const CheckOptions& options);
/// With a subject of the caller's, and the report to a file of the caller's.
int check(const CheckOptions& options, subjects::Subject& subject, std::FILE* to);

struct RunOptions {
    std::string in, out, subject = "cpu";
    bool allow_nan = false;
    subjects::Settings settings;
};
int run(const RunOptions& options);

struct PlanOptions {
    std::string rule, pass = "forward", dtype = "bf16", subject = "cpu", json;
    std::int64_t K = 0, V = 0, tokens = 1, heads = 1, n_householder = 1;
    std::int64_t memory_limit = 0;  ///< bytes, of backward
    int threads = 0;
};
int plan(const PlanOptions& options);

struct BenchOptions {
    std::string target, suite, rule, dtype, pass, json, peer, subject = "cpu";
    std::vector<int> threads;
    double seconds = 1.5;           ///< a row
    std::int64_t memory_limit = 0;  ///< bytes, of backward
    Sink* sink = nullptr;
};
int bench(const BenchOptions& options);
int bench_backward(const BenchOptions& options, const std::vector<cases::Case>& list, const std::vector<int>& threads);
int bench_cuda(const BenchOptions& options, const std::vector<cases::Case>& list);

struct DriftOptions {
    std::string rule = "gdn", dtype = "bf16", subject = "cpu", json, svg;
    std::int64_t steps = 1000, heads = 2, K = 64, V = 64;
    std::uint64_t seed = 1;
    bool quiet = false;
    subjects::Settings settings;
    Sink* sink = nullptr;
};
int drift(const DriftOptions& options);

}  // namespace tidegate::cli
