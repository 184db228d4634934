#include "subjects/poison.h"

#include <fmt/format.h>

#include <charconv>

#include "tidegate/error.h"

namespace tidegate::subjects {

std::map<std::string, std::int64_t> parse_unwritten(std::string_view text) {
    std::map<std::string, std::int64_t> counts;
    while (!text.empty()) {
        const auto item = text.substr(0, text.find(','));
        text.remove_prefix(std::min(item.size() + 1, text.size()));
        const auto colon = item.rfind(':');
        std::int64_t count = -1;
        const char* end = item.data() + item.size();
        if (colon == item.npos || std::from_chars(item.data() + colon + 1, end, count).ptr != end || count < 0) {
            throw Error("unwritten", fmt::format("metadata unwritten holds \"{}\", expected NAME:COUNT", item));
        }
        counts[std::string(item.substr(0, colon))] = count;
    }
    return counts;
}

}  // namespace tidegate::subjects
