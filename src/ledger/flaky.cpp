#include "ledger/flaky.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>

#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

/// Longer numbers are of one run: addresses, times, process ids.
constexpr std::size_t kDigits = 4;

constexpr std::string_view kLastWords = "(last words: ";
constexpr std::string_view kEnvironment = "crashed (environment): ";

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

/// One word as every run would say it. `after`: the text before it.
std::string normalised_word(std::string_view word, std::string_view after) {
    if (word.size() > 2 && (word.starts_with("0x") || word.starts_with("0X")) &&
        std::all_of(word.begin() + 2, word.end(), is_hex))
        return "<n>";
    const bool number = std::all_of(word.begin(), word.end(), is_digit);
    if (!number && word.size() >= 8 && std::all_of(word.begin(), word.end(), is_hex) &&
        std::any_of(word.begin(), word.end(), is_digit))
        return "<n>";  // an address without its 0x
    if (number) {
        if (after.ends_with("==")) return "<n>";  // a sanitizer's ==pid==
        while (!after.empty() && !is_word(after.back()) && after.back() != '>') after.remove_suffix(1);
        std::string before;
        for (; !after.empty() && is_word(after.back()); after.remove_suffix(1))
            before.insert(before.begin(), static_cast<char>(std::tolower(static_cast<unsigned char>(after.back()))));
        for (const char* id : {"pid", "tid", "process", "thread"})
            if (before == id) return "<n>";
    }
    std::string text;
    for (std::size_t i = 0; i < word.size();) {
        std::size_t end = i;
        while (end < word.size() && is_digit(word[end])) ++end;
        if (end == i) {
            text += word[i++];
        } else {
            text += end - i > kDigits ? std::string_view("<n>") : word.substr(i, end - i);
            i = end;
        }
    }
    return text;
}

std::string normalised(std::string_view text) {
    std::string all;
    for (std::size_t i = 0; i < text.size();) {
        std::size_t end = i;
        while (end < text.size() && is_word(text[end])) ++end;
        if (end == i)
            all += text[i++];
        else
            all += normalised_word(text.substr(i, end - i), text.substr(0, i)), i = end;
    }
    return all;
}

std::string signal_name(int signal) {
    const char* name = sigabbrev_np(signal);
    return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

void count(Attempts& attempts, Verdict verdict, bool follow_on, const std::string& fingerprint, std::int64_t times) {
    if (follow_on) {
        attempts.other += times;  // says nothing of this case: the process had crashed before
        return;
    }
    if (verdict == Verdict::pass)
        attempts.passed += times;
    else if (verdict == Verdict::fail)
        attempts.failed += times;
    else if (verdict != Verdict::crashed && verdict != Verdict::hung)
        attempts.other += times, attempts.blind += verdict == Verdict::blind ? times : 0;
    if (verdict != Verdict::crashed && verdict != Verdict::hung) return;
    (verdict == Verdict::crashed ? attempts.crashed : attempts.hung) += times;
    const std::string& name = fingerprint.empty() ? std::string("unknown") : fingerprint;
    auto& groups = attempts.fingerprints;
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == name; });
    if (group != groups.end())
        group->second += times;
    else
        groups.emplace_back(name, times);
}

void sort_groups(Attempts& attempts) {
    std::sort(attempts.fingerprints.begin(), attempts.fingerprints.end(),
              [](const auto& a, const auto& b) { return a.second != b.second ? a.second > b.second : a < b; });
}

/// "'a', 'b'", of a query's first column.
std::string known(SQLite::Statement& query) {
    std::string names;
    while (query.executeStep())
        names += (names.empty() ? "'" : ", '") + std::string(query.getColumn(0).getString()) + "'";
    return names.empty() ? "none" : names;
}

}  // namespace

Attempts count_attempts(std::span<const Result> results) {
    Attempts attempts;
    for (const Result& r : results) count(attempts, r.verdict, r.follow_on, r.fingerprint, 1);
    sort_groups(attempts);
    return attempts;
}

Attempts attempts_of(Store& store, const std::string& build, const std::string& test) {
    SQLite::Database& db = store.database();
    SQLite::Statement there(db, "SELECT COUNT(*) FROM build WHERE name = ?");
    there.bind(1, build);
    there.executeStep();
    if (there.getColumn(0).getInt64() == 0) {
        SQLite::Statement builds(db, "SELECT name FROM build GROUP BY name ORDER BY MAX(id) DESC LIMIT 5");
        throw Error("build", "build: given '" + build + "', which the ledger does not have; it has " + known(builds));
    }
    SQLite::Statement s(db,
                        "SELECT x.verdict, x.follow_on, x.fingerprint, COUNT(*) FROM test t"
                        " JOIN result x ON x.test_id = t.id JOIN run r ON r.id = x.run_id"
                        " JOIN build b ON b.id = r.build_id WHERE t.name = ? AND b.name = ?"
                        " GROUP BY x.verdict, x.follow_on, x.fingerprint");
    s.bind(1, test);
    s.bind(2, build);
    Attempts attempts;
    while (s.executeStep())
        count(attempts, verdict_from(s.getColumn(0).getString()), s.getColumn(1).getInt() != 0,
              s.getColumn(2).getString(), s.getColumn(3).getInt64());
    if (attempts.all() == 0) {
        SQLite::Statement tests(db,
                                "SELECT t.name FROM result x JOIN test t ON t.id = x.test_id"
                                " JOIN run r ON r.id = x.run_id JOIN build b ON b.id = r.build_id"
                                " WHERE b.name = ? GROUP BY t.name ORDER BY t.name LIMIT 5");
        tests.bind(1, build);
        throw Error("test",
                    "test: given '" + test + "', of which build '" + build + "' has no result; it has " + known(tests));
    }
    sort_groups(attempts);
    return attempts;
}

std::string fingerprint_of(Verdict verdict, int signal, const std::string& reason) {
    if (verdict == Verdict::hung) return reason.starts_with("hung") ? reason.substr(0, reason.find(':')) : "hung";
    if (verdict != Verdict::crashed) return "";
    std::string_view how = reason, words;
    std::string text;
    if (how.starts_with(kEnvironment)) {
        how.remove_prefix(kEnvironment.size());
        text = "environment: ";
    }
    for (const std::string_view end : {", in persistent process", ", without a reply"})
        if (how.ends_with(end)) how.remove_suffix(end.size());
    if (const std::size_t at = how.find(kLastWords); at != std::string_view::npos) {
        words = how.substr(at + kLastWords.size());
        if (words.ends_with(")")) words.remove_suffix(1);
        how = how.substr(0, at);
        while (how.ends_with(" ")) how.remove_suffix(1);
    }
    text += signal != 0 ? signal_name(signal) : normalised(how);
    if (!words.empty()) text += ": " + normalised(words);
    return text.empty() ? "crashed" : text;
}

Verdict2 compare_rates(std::int64_t k1, std::int64_t n1, std::int64_t k2, std::int64_t n2) {
    Verdict2 verdict;
    verdict.p = fisher_exact(k1, n1, k2, n2);
    const auto side = [](std::int64_t k, std::int64_t n) {
        const Interval i = clopper_pearson(k, n);
        return fmt::format("{}/{} [{:.4f}, {:.4f}]", k, n, i.low, i.high);
    };
    const auto rate = [](std::int64_t k, std::int64_t n) {
        return n > 0 ? static_cast<double>(k) / static_cast<double>(n) : 0;
    };
    const double larger = std::max(rate(k1, n1), rate(k2, n2));
    verdict.words = fmt::format("{}: {} against {}, p = {:.3g}; runs needed to see the larger rate with 95 %: {}",
                                verdict.p < 0.05 ? "evidence" : "not evidence either way", side(k1, n1), side(k2, n2),
                                verdict.p, larger > 0 ? std::to_string(runs_to_see(larger)) : "unknown, none was seen");
    return verdict;
}

}  // namespace tidegate::ledger
