#include "cli/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace tidegate::cli {
namespace {

/// A state's channel is k V + v, whatever the caller's layout.
std::string place(const std::string& tensor, const judge::Worst& w, std::int64_t columns) {
    std::string text = fmt::format("{} {}", tensor == "state" ? "slot" : "seq", w.sequence);
    if (w.token >= 0) text += fmt::format(" token {}", w.own_token);
    text += fmt::format(" head {}", w.head);
    const bool state = tensor.find("state") != std::string::npos || tensor == "dh0";
    if (!state) return text + fmt::format(" channel {}", w.channel);
    return text + fmt::format(" k {} v {}", w.channel / columns, w.channel % columns);
}

}  // namespace

void Table::print(std::FILE* to) const {
    std::vector<std::size_t> widths;
    for (const auto& row : rows_) {
        widths.resize(std::max(widths.size(), row.size()), 0);
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows_) {
        std::string line = " ";
        for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}}", row[i], widths[i]);
        line.erase(line.find_last_not_of(' ') + 1);
        fmt::print(to, "{}\n", line);
    }
}

Report::Report(std::FILE* to, bool quiet)
    : to_(to),
      quiet_(quiet),
      colour_(isatty(fileno(to)) != 0 && std::getenv("NO_COLOR") == nullptr),
      progress_(!quiet && isatty(STDERR_FILENO) != 0) {}

Report::~Report() { clear_progress(); }

void Report::clear_progress() {
    if (shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
}

void Report::progress(int done, int of, const std::string& now) {
    if (!progress_) return;
    fmt::print(stderr, "\r\033[K[{}/{}] {:.100}", done, of, now);
    std::fflush(stderr);
    shown_ = true;
}

std::string Report::coloured(judge::Verdict verdict) const {
    std::string word = fmt::format("{:<7}", judge::name_of(verdict));
    if (!colour_) return word;
    const bool good = verdict == judge::Verdict::pass;
    const bool bad =
        verdict == judge::Verdict::fail || verdict == judge::Verdict::crashed || verdict == judge::Verdict::hung;
    return fmt::format("\033[{}m{}\033[0m", good ? 32 : bad ? 31 : 33, word);
}

void Report::tensors(const Labels& labels, const judge::CaseResult& result) {
    Table table({"tensor", "verdict", "nrmse", "limit", "cosine", "size_ratio", "max_abs", "worst token nrmse",
                 "zeros nrmse", "worst/limit", "unwritten"});
    for (const judge::TensorResult& t : result.tensors) {
        const judge::Measures& m = t.measures;
        if (!t.measured) {
            table.add({t.name, judge::name_of(t.verdict), t.reason});
            continue;
        }
        table.add({t.name, judge::name_of(t.verdict), fmt::format("{:.3e}", m.nrmse), fmt::format("{:.3e}", m.limit),
                   fmt::format("{:.9f}", m.cosine), fmt::format("{:.7f}", m.size_ratio),
                   fmt::format("{:.3e}", m.max_abs), fmt::format("{:.3e}", m.worst_token_nrmse),
                   fmt::format("{:.3g}", m.zeros_nrmse), fmt::format("{:.3g}", m.needed),
                   t.unwritten < 0 ? "not checked" : std::to_string(t.unwritten)});
    }
    table.print(to_);
    for (const judge::TensorResult& t : result.tensors) {
        if (!t.measured) continue;
        const judge::Measures& m = t.measures;
        fmt::print(to_, "  {}: worst at {}; smallest tolerance that would pass: {:.3g} x the gate's", t.name,
                   place(t.name, m.worst, labels.V), m.needed);
        if (!t.reason.empty()) fmt::print(to_, "; {}", t.reason);
        if (m.first_over >= 0) fmt::print(to_, "; first row over its limit {} (packed)", m.first_over);
        if (!m.heads_over.empty()) fmt::print(to_, "; heads over {}", fmt::join(m.heads_over, ","));
        if (m.nan + m.inf > 0) fmt::print(to_, "; {} NaN, {} inf", m.nan, m.inf);
        if (m.zero_share > 0) fmt::print(to_, "; {:.3g} of its elements are exact zeros", m.zero_share);
        if (m.share_out > 0 && t.verdict == judge::Verdict::fail)
            fmt::print(to_, "; {:.3g} of its elements over their limit", m.share_out);
        fmt::print(to_, "\n");
    }
    fmt::print(
        to_,
        "  worst/limit: the largest error, over tensor, heads and tokens, by its own limit; gate {} v{}, twin {}\n",
        labels.gate.name, labels.gate.version, labels.twin);
    fmt::print(to_, "  replay: {}\n", labels.replay);
}

void Report::result(const Labels& labels, const judge::CaseResult& result, bool detail) {
    clear_progress();
    const bool passed = result.verdict == judge::Verdict::pass || result.verdict == judge::Verdict::skipped;
    if (quiet_ && passed) return;
    const judge::TensorResult* worst = nullptr;
    for (const judge::TensorResult& t : result.tensors)
        if (t.measured && (worst == nullptr || t.measures.needed > worst->measures.needed)) worst = &t;
    for (const judge::TensorResult& t : result.tensors)  // of a failure: the tensor that the reason is about
        if (result.verdict == judge::Verdict::fail && t.verdict == judge::Verdict::fail) {
            worst = t.measured ? &t : nullptr;
            break;
        }
    std::string line = fmt::format("{} {}", coloured(result.verdict), labels.id);
    if (worst != nullptr) line += fmt::format("  {} at {:.2g} x its limit", worst->name, worst->measures.needed);
    line += fmt::format("  {:.3f} s", result.seconds);
    if (!result.reason.empty()) line += "  " + result.reason;
    if (!result.first_try.empty() && result.first_try.find(result.reason) == std::string::npos)
        line += "  (first try: " + result.first_try + ")";
    fmt::print(to_, "{}\n", line);
    if (!detail && passed) return;
    if (result.tensors.empty()) {
        if (!passed) fmt::print(to_, "  replay: {}\n", labels.replay);
    } else if (detail || result.verdict == judge::Verdict::fail) {
        tensors(labels, result);
    }
    std::fflush(to_);
}

void Report::property(const Labels& labels, const judge::PropertyResult& p) {
    if (p.verdict == judge::Verdict::pass || p.verdict == judge::Verdict::skipped) return;
    clear_progress();
    fmt::print(to_, "{} {} {}: {}\n  replay: {} --properties\n", coloured(p.verdict), labels.id, p.name, p.where,
               labels.replay);
}

void Report::summary(const Counts& c, double seconds) {
    clear_progress();
    fmt::print(to_, "{} cases: {} passed, {} failed, {} blind, {} crashed, {} hung, {} skipped, {} not run; {:.2f} s\n",
               c.cases, c.passed, c.failed, c.blind, c.crashed, c.hung, c.skipped, c.not_run, seconds);
    std::fflush(to_);
}

}  // namespace tidegate::cli
