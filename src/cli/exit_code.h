// Exit codes, the same for every verb.
#pragma once

namespace tidegate::cli {

inline constexpr int kPass = 0, kWrong = 1, kUsage = 2, kNothing = 3, kCrashed = 4;

}  // namespace tidegate::cli
