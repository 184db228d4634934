#include "ledger/words.h"

#include <ctime>

#include "ledger/model.h"
#include "tidegate/error.h"

namespace tidegate::ledger {

std::string now() {
    const std::time_t seconds = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

Verdict verdict_from(const std::string& word) {
    std::string known;
    for (const Verdict v : kVerdicts) {
        if (word == judge::name_of(v)) return v;
        known += std::string(known.empty() ? "" : ", ") + judge::name_of(v);
    }
    throw Error("verdict", "verdict: given '" + word + "', expected one of " + known);
}

const char* name_of(Standing s) {
    return s == Standing::measured ? "measured" : s == Standing::quoted ? "quoted" : "derived";
}

Standing standing_from(const std::string& word) {
    for (const Standing s : {Standing::measured, Standing::quoted, Standing::derived})
        if (word == name_of(s)) return s;
    throw Error("standing", "standing: given '" + word + "', expected measured, quoted or derived");
}

}  // namespace tidegate::ledger
