// tidegate ledger: its own verbs.
#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace tidegate::cli {

class LedgerVerb {
public:
    explicit LedgerVerb(CLI::App& app);
    ~LedgerVerb();
    LedgerVerb(const LedgerVerb&) = delete;
    LedgerVerb& operator=(const LedgerVerb&) = delete;
    bool parsed() const;
    int run();

private:
    struct Options;
    std::unique_ptr<Options> o_;
};

}  // namespace tidegate::cli
