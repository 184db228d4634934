// Whatever the bytes: results or an Error, by both readers. Results are text and can be completed.
#include <cstdint>
#include <cstdlib>
#include <map>

#include "ledger/import.h"
#include "ledger/import_xml.h"
#include "tidegate/error.h"

using namespace tidegate;
using namespace tidegate::ledger;

namespace {

void check(bool holds) {
    if (!holds) std::abort();
}

bool is_text(const std::string& text) { return bad_utf8(text) == std::string_view::npos; }

void check_results(const Imported& imported) {
    std::map<std::string, int> attempts;
    for (const auto& r : imported.results) {
        check(!r.test.empty() && is_text(r.test) && is_text(r.reason) && is_text(r.fingerprint));
        check(r.attempt == ++attempts[r.test]);
        check(r.reason.size() <= kMaxReason);
        if (r.verdict == Verdict::pass) check(r.fingerprint.empty() && !r.signal);
        std::map<std::string, int> measures;
        for (const auto& m : r.measures) check(is_text(m.name) && ++measures[m.name] == 1);
    }
    for (const auto& note : imported.notes) check(is_text(note));
}

void read(Imported (*reader)(const std::string&, const std::string&), const std::string& text) {
    Imported imported;
    try {
        imported = reader(text, "fuzz");
    } catch (const Error& e) {
        check(e.argument() == "import" && is_text(e.what()));
        return;
    }
    check_results(imported);
    // No Error may come from here on: every case of a list has a result then.
    std::vector<std::string> expected{"first"};
    for (const auto& r : imported.results) expected.push_back(r.test);
    expected.push_back("last");
    for (const int status : {0, 139}) {
        auto whole = imported;
        complete(whole, expected, status);
        check_results(whole);
        check(whole.results.size() >= imported.results.size());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    read(read_junit, text);
    read(read_ctest, text);
    return 0;
}
