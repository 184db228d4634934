// What the readers of others' XML share: a document with lines for its errors, words of a crash, figures, times.
#pragma once

#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ledger/model.h"

namespace tidegate::ledger {

inline constexpr std::size_t kMaxText = 2000;    ///< of one message or text
inline constexpr std::size_t kMaxReason = 4000;  ///< of all reasons of a result
inline constexpr std::size_t kMaxName = 65536;

class Document {
public:
    /// Throws Error("import") for what is not one XML element in valid encoding. `text` must outlive this.
    Document(const std::string& text, const std::string& source);
    pugi::xml_node root() const { return document_.document_element(); }
    /// Throws Error("import"): source, the line of `where`, and `what`.
    [[noreturn]] void fail(pugi::xml_node where, const std::string& what) const;
    /// An attribute that holds seconds; 0 without one.
    double seconds(pugi::xml_node node, const char* attribute) const;
    /// `name` as it is, if it is short enough for a test's.
    const std::string& checked_name(pugi::xml_node where, const std::string& name) const;

private:
    [[noreturn]] void fail_at(std::ptrdiff_t offset, const std::string& what) const;

    const std::string& text_;
    const std::string& source_;
    pugi::xml_document document_;
};

/// Values as valid UTF-8: a reference such as &#xD800; passes the parser.
std::string value_of(pugi::xml_node node, const char* attribute);
/// The node's own text, in all of its pieces.
std::string text_of(pugi::xml_node node);

/// The first byte that is no UTF-8, or npos.
std::size_t bad_utf8(std::string_view text);
std::string_view trimmed(std::string_view text);
/// At most `most` bytes of it, ending with a whole character.
std::string clipped(std::string_view text, std::size_t most);
std::string in_quotes(std::string_view text);
/// A message and its text, once where the one repeats the other.
std::string reason_from(const std::string& message, const std::string& text);
/// Adds a line to a result's reason.
void append_reason(Result& result, const std::string& reason);

/// The whole text as a number; NaN and infinities are numbers.
std::optional<double> number_from(const std::string& text);
struct Figure {
    std::string name;
    double value = 0;
};
/// Adds measures; of one name, the last one stays, as a ledger holds one of each source.
void add_figures(Result& result, const std::vector<Figure>& figures);

/// "2026-11-30T15:32:43.27+01:00" as ISO 8601 in UTC; without an offset as it is, to the second; "" if it is none.
std::string time_from(const std::string& stamp);
std::string time_from_epoch(const std::string& seconds);

/// "SIGSEGV", or the number where it has no name.
std::string signal_name(int signal);
bool is_signal(int number);
struct Crash {
    std::optional<int> signal;
    std::string fingerprint;
};
/// The crash that a text tells of, if any.
std::optional<Crash> crash_in(const std::string& text);
/// A crash by a signal, with its last words.
Crash crash_by(int signal, const std::string& text);
void mark(Result& result, const Crash& crash);

/// Numbers the results of each test.
void number_attempts(std::vector<Result>& results);

}  // namespace tidegate::ledger
