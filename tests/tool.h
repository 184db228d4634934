// Runs the tool as a user would. TIDEGATE_TOOL is the executable.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace tidegate::test {

struct Ran {
    int code;
    std::string out;  ///< stdout and stderr together
    bool has(const std::string& words) const { return out.find(words) != std::string::npos; }
};

inline Ran tool(const std::string& arguments) {
    const std::string command = "'" TIDEGATE_TOOL "' " + arguments + " 2>&1";
    std::FILE* pipe = popen(command.c_str(), "r");
    Ran run{-1, ""};
    std::array<char, 4096> buffer;
    while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) run.out.append(buffer.data(), n);
    const int status = pclose(pipe);
    run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return run;
}

}  // namespace tidegate::test
