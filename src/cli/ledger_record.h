// A verb's records, as they come, into a ledger.
#pragma once

#include <string>

#include "cli/records.h"
#include "ledger/ingest.h"

namespace tidegate::cli {

/// What `--ledger` and its companions give.
struct LedgerOptions {
    std::string file;   ///< empty: no ledger
    std::string build;  ///< empty: the commit of the working directory's git checkout
    std::string machine, note;
};

/// A build as it is: the commit of the git checkout here, whether it is dirty, and how this tool was compiled.
ledger::Build build_here(const std::string& name);
/// xxh3, 16 hex digits, of what a subject's SPEC names: a library's file, a command, this tool.
std::string subject_hash(const std::string& spec);
/// Host name and processor.
std::string machine_here();

/// Throws Error("json") if the records would be written over the ledger.
void not_the_ledger(const std::string& json, const std::string& ledger);

class LedgerSink : public Sink {
public:
    LedgerSink(const LedgerOptions& options, const std::string& subject, const std::string& command);
    void line(const std::string& json) override { ingest_.line(json); }
    void end(int exit_status) { ingest_.end(exit_status); }
    /// Which run of which build was written.
    std::string words() const;

private:
    LedgerSink(const LedgerOptions& options, const ledger::Run& run);
    std::string file_, build_;
    ledger::Store store_;
    ledger::Ingest ingest_;
};

}  // namespace tidegate::cli
