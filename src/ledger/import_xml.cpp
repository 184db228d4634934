#include "ledger/import_xml.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unordered_map>

#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

constexpr std::size_t kMaxLine = 200;  // of a crash's last words
constexpr std::string_view kSpace = " \t\r\n";

struct Sign {
    std::string_view text;
    int signal;               // 0: not known
    const char* device = "";  // a GPU's context is lost: always the same words, so that follow-ons are known
};
constexpr Sign kSigns[] = {
    {"Segmentation fault", SIGSEGV},
    {"SIGSEGV", SIGSEGV},
    {"***Exception: SegFault", SIGSEGV},
    {"***Exception: Numerical", SIGFPE},
    {"***Exception: Illegal", SIGILL},
    {"***Exception", 0},
    {"SIGABRT", SIGABRT},
    {"SIGBUS", SIGBUS},
    {"SIGFPE", SIGFPE},
    {"SIGILL", SIGILL},
    {"Fatal Python error: Aborted", SIGABRT},
    {"Fatal Python error: Bus error", SIGBUS},
    {"Fatal Python error: Floating", SIGFPE},
    {"Fatal Python error: Illegal instruction", SIGILL},
    {"Fatal Python error", 0},
    {"' crashed while running", 0},  // pytest-xdist: worker 'gw1'
    {"an illegal memory access was encountered", 0, "CUDA illegal memory access"},
    {"a misaligned address was encountered", 0, "CUDA misaligned address"},
    {"device-side assert triggered", 0, "CUDA device-side assert"},
    {"unspecified launch failure", 0, "CUDA unspecified launch failure"},
};

std::string last_line(std::string_view text) {
    text = trimmed(text);
    const auto end = text.find_last_of("\r\n");
    return clipped(trimmed(end == std::string_view::npos ? text : text.substr(end + 1)), kMaxLine);
}

std::string iso(std::time_t seconds, const char* format = "%Y-%m-%dT%H:%M:%SZ") {
    std::tm utc{};
    char text[64];
    if (!gmtime_r(&seconds, &utc)) return "";
    return {text, std::strftime(text, sizeof text, format, &utc)};
}

// Bytes of the character at `at`, 0 if there is none.
std::size_t character(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t i) {
        return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
    };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t size = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    for (std::size_t i = 1; i < size; ++i)
        if ((byte(i) & 0xC0u) != 0x80u) return 0;
    const unsigned second = byte(1);
    const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    const bool surrogate = first == 0xED && second > 0x9F, beyond = first == 0xF4 && second > 0x8F;
    return overlong || surrogate || beyond ? 0 : size;
}

std::string cleaned(std::string_view text) {
    std::string out;
    for (std::size_t bad = 0; (bad = bad_utf8(text)) != std::string_view::npos; text.remove_prefix(bad + 1))
        out.append(text.substr(0, bad)) += "\xEF\xBF\xBD";
    return out.append(text);
}

}  // namespace

Document::Document(const std::string& text, const std::string& source) : text_(text), source_(source) {
    if (trimmed(text).empty()) fail_at(0, "found an empty file, expected XML");
    const auto parsed = document_.load_buffer(text.data(), text.size());
    // UTF-8 is checked here as the parser takes any bytes; of other encodings it makes UTF-8 itself.
    if (parsed.encoding == pugi::encoding_utf8) {
        const auto bad = std::min(bad_utf8(text), text.find('\0'));
        if (bad != std::string::npos) {
            char byte[8];
            std::snprintf(byte, sizeof byte, "0x%02X", static_cast<unsigned>(static_cast<unsigned char>(text[bad])));
            fail_at(static_cast<std::ptrdiff_t>(bad), std::string("found byte ") + byte + ", expected UTF-8 text");
        }
    }
    if (!parsed)
        fail_at(parsed.offset,
                std::string("found no well-formed XML (") + parsed.description() + "), expected a whole XML document");
    for (auto node = root().next_sibling(); node; node = node.next_sibling())
        if (node.type() == pugi::node_element)
            fail(node, "found a second root <" + clipped(value_of(node, nullptr), kMaxLine) + ">, expected one");
}

void Document::fail(pugi::xml_node where, const std::string& what) const { fail_at(where.offset_debug(), what); }

void Document::fail_at(std::ptrdiff_t offset, const std::string& what) const {
    std::string place;
    if (offset >= 0) {
        const auto until = text_.begin() + std::min(offset, std::ssize(text_));
        place = "line " + std::to_string(1 + std::count(text_.begin(), until, '\n')) + " (byte " +
                std::to_string(offset) + "): ";
    }
    throw Error("import", source_ + ": " + place + what);
}

double Document::seconds(pugi::xml_node node, const char* attribute) const {
    auto text = value_of(node, attribute);
    const auto given = text;
    std::erase(text, ',');  // Java's "1,234.5"
    if (trimmed(text).empty()) return 0;
    const auto value = number_from(text);
    if (!value || !std::isfinite(*value))
        fail(node, std::string("found ") + attribute + "=" + in_quotes(given) + ", expected seconds");
    return *value;
}

const std::string& Document::checked_name(pugi::xml_node where, const std::string& name) const {
    if (name.size() > kMaxName)
        fail(where, "found a test's name of " + std::to_string(name.size()) + " bytes, expected at most " +
                        std::to_string(kMaxName));
    return name;
}

std::string value_of(pugi::xml_node node, const char* attribute) {
    return cleaned(attribute ? node.attribute(attribute).value() : node.name());
}

std::string text_of(pugi::xml_node node) {
    std::string text;
    for (const auto piece : node.children())
        if (piece.type() == pugi::node_pcdata || piece.type() == pugi::node_cdata) text += piece.value();
    return cleaned(text);
}

std::size_t bad_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const auto size = character(text, at);
        if (size == 0) return at;
        at += size;
    }
    return std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(kSpace);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

std::string clipped(std::string_view text, std::size_t most) {
    if (text.size() <= most) return std::string(text);
    auto end = most - 3;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
    return std::string(text.substr(0, end)) + "...";
}

std::string in_quotes(std::string_view text) { return "'" + clipped(text, kMaxLine) + "'"; }

std::string reason_from(const std::string& message, const std::string& text) {
    const auto m = trimmed(message), t = trimmed(text);
    if (t.starts_with(m)) return clipped(t, kMaxText);
    return clipped(m, kMaxText) + (t.empty() ? "" : "\n" + clipped(t, kMaxText));
}

void append_reason(Result& result, const std::string& reason) {
    if (reason.empty() || result.reason.size() >= kMaxReason) return;
    result.reason = clipped(result.reason.empty() ? reason : result.reason + "\n" + reason, kMaxReason);
}

std::optional<double> number_from(const std::string& text) {
    const std::string word(trimmed(text));
    if (word.empty() || word.find_first_of("xX") != std::string::npos) return {};  // an address is no figure
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (end != word.c_str() + word.size()) return {};
    return value;
}

void add_figures(Result& result, const std::vector<Figure>& figures) {
    std::unordered_map<std::string, std::size_t> places;
    for (std::size_t i = 0; i < result.measures.size(); ++i) places.emplace(result.measures[i].name, i);
    for (const auto& [name, value] : figures) {
        const auto [place, is_new] = places.emplace(name, result.measures.size());
        if (is_new) {
            Measure measure;
            measure.name = name;
            result.measures.push_back(std::move(measure));
        }
        result.measures[place->second].value = value;
    }
}

std::string time_from(const std::string& stamp) {
    std::tm t{};
    int read = 0;
    if (std::sscanf(stamp.c_str(), "%4d-%2d-%2d%*1[T ]%2d:%2d:%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour,
                    &t.tm_min, &t.tm_sec, &read) != 6 ||
        read == 0 || t.tm_mon < 1 || t.tm_mon > 12 || t.tm_mday < 1 || t.tm_mday > 31)
        return "";
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    std::string_view rest = std::string_view(stamp).substr(static_cast<std::size_t>(read));
    if (rest.starts_with('.')) rest.remove_prefix(std::min(rest.find_first_not_of("0123456789", 1), rest.size()));
    std::time_t seconds = timegm(&t);
    if (trimmed(rest).empty()) return iso(seconds, "%Y-%m-%dT%H:%M:%S");
    int hours = 0, minutes = 0;
    if (rest == "Z") return iso(seconds);
    if (std::sscanf(std::string(rest.substr(1)).c_str(), "%2d:%2d", &hours, &minutes) != 2) return "";
    if (rest[0] != '+' && rest[0] != '-') return "";
    seconds += (rest[0] == '+' ? -60L : 60L) * (hours * 60 + minutes);
    return iso(seconds);
}

std::string time_from_epoch(const std::string& seconds) {
    const auto value = number_from(seconds);
    constexpr double kYear9999 = 253402300799.0;
    return value && *value > 0 && *value <= kYear9999 ? iso(static_cast<std::time_t>(*value)) : "";
}

std::string signal_name(int signal) {
    const char* name = sigabbrev_np(signal);
    return name ? std::string("SIG") + name : std::to_string(signal);
}

bool is_signal(int number) { return number > 0 && number <= SIGRTMAX; }

std::optional<Crash> crash_in(const std::string& text) {
    // The first words that name a cause, or else the first of any.
    const auto named = [](const Sign& s) { return s.signal != 0 || *s.device != '\0'; };
    const Sign* sign = nullptr;
    auto first = std::string::npos;
    for (const auto& s : kSigns) {
        const auto at = text.find(s.text);
        if (at == std::string::npos) continue;
        if (sign && (named(s) != named(*sign) ? named(*sign) : at >= first)) continue;
        sign = &s;
        first = at;
    }
    constexpr std::string_view kForked = "running the test CRASHED with signal ";  // pytest-forked
    if (const auto at = text.find(kForked); at != std::string::npos) {
        const int signal = std::atoi(text.c_str() + at + kForked.size());
        if (is_signal(signal)) return crash_by(signal, text);
    }
    if (!sign) return {};
    if (*sign->device) return Crash{{}, sign->device};
    return sign->signal ? crash_by(sign->signal, text) : Crash{{}, last_line(text)};
}

Crash crash_by(int signal, const std::string& text) {
    const auto line = last_line(text);
    return {signal, "signal " + signal_name(signal) + (line.empty() ? "" : ": " + line)};
}

void mark(Result& result, const Crash& crash) {
    result.verdict = Verdict::crashed;
    result.signal = crash.signal;
    result.fingerprint = crash.fingerprint;
}

void number_attempts(std::vector<Result>& results) {
    std::unordered_map<std::string, int> attempts;
    for (auto& result : results) result.attempt = ++attempts[result.test];
}

}  // namespace tidegate::ledger
