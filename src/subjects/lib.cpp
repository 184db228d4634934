#include "subjects/lib.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "subjects/child.h"
#include "subjects/exec.h"
#include "subjects/shell.h"
#include "tidegate/error.h"

namespace tidegate::subjects {
namespace {

class Lib final : public Subject {
public:
    Lib(std::string path, std::unique_ptr<Subject> child) : path_(std::move(path)), child_(std::move(child)) {}
    std::string name() const override { return "lib:" + path_; }
    bool crashes_apart() const override { return true; }
    Outcome answer(const io::Bundle& request) override { return child_->answer(request); }

private:
    std::string path_;
    std::unique_ptr<Subject> child_;
};

}  // namespace

std::string& lib_tool() {
    static std::string tool;
    return tool;
}

std::unique_ptr<Subject> make_lib(const std::string& path, const Limits& limits) {
    // Our own process by its number: the shell's /proc/self is the shell. This name outlives a rebuild of the tool.
    const std::string tool = lib_tool().empty() ? "/proc/" + std::to_string(getpid()) + "/exe" : lib_tool();
    const std::string file = std::filesystem::absolute(path).string();  // a bare name is no name on a search path
    if (std::getenv(kLibProbe) != nullptr)  // a program that is no tool probes itself, and would for ever
        throw Error("subject", "subject: lib:" + path + ": lib_tool() does not name the tidegate tool");
    Child probe({tool, "lib-child", file}, {std::string(kLibProbe) + "=1"}, false);
    const Ending ending = *probe.wait(limits);
    // A crash or hang while it is loaded is left to the cases, whose result it is.
    if (ending.how == Ending::How::exited && probe.out_tail().find(kLibReady) == std::string::npos) {
        const std::string words = probe.last_words();
        throw Error("subject", "subject: lib:" + path + ": cannot be loaded: " +
                                   (words.empty() ? "exit " + std::to_string(ending.code) : words));
    }
    return std::make_unique<Lib>(path,
                                 make_exec("exec " + in_shell(tool) + " lib-child " + in_shell(file), true, limits));
}

}  // namespace tidegate::subjects
