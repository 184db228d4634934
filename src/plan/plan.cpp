// Plans as text.
#include "tidegate/plan.h"

#include <cmath>

namespace tidegate {

std::string Plan::text() const {
    const auto& a = arithmetic;
    const auto& s = schedule;
    const auto number = [](auto n) { return std::to_string(n); };
    const auto word = [](std::string_view w) { return std::string(w); };
    return "arithmetic: path=" + word(a.path) + " isa=" + word(a.isa) + " bucket=" + number(a.bucket_k) + "x" +
           number(a.bucket_v) + " pass=" + number(a.pass) + " operands=" + word(a.operands) +
           " accumulate=" + word(a.accumulate) + "\nschedule:   threads=" + number(s.threads) +
           " round=" + number(s.round) + " tasks=" + number(s.tasks) + " slice_v=" + number(s.slice_v) +
           " workspace=" + number(s.workspace_bytes) + " bytes" +
           (s.spacing == 0 ? ""
                           : " spacing=" + number(s.spacing) +
                                 " extra_flop=" + number(static_cast<int>(std::lround(s.extra_flop * 100))) + "%");
}

}  // namespace tidegate
