// Others' files as results of a run. Each reader takes text and throws Error("import") with the line or element for
// what it cannot read; nothing is written to a ledger before a whole file is read.
#pragma once

#include <string>
#include <vector>

#include "ledger/model.h"
#include "ledger/store.h"

namespace tidegate::ledger {

/// What a file says, before it is a run.
struct Imported {
    std::vector<Result> results;     ///< in the file's order; several of one test are its attempts
    std::vector<std::string> notes;  ///< what the file says of itself that is no result: a suite's totals that differ
    std::string started;             ///< the file's own time stamp, if it has one
    bool one_process = true;         ///< false (CTest, pytest-xdist): a crash touches no other case
};

/// JUnit XML as pytest, GoogleTest and CTest write it. A test's name is "classname::name" ("name" without a class, and
/// of CTest, which repeats it as class): parameters stay in it. pytest's xfail is skipped with its reason, an xpass is
/// what the file says; an error of setup or teardown is a fail whose reason says so; several failures of one test are
/// one fail with all of their reasons. Properties whose value is a number are measures; one
/// called "asserts" says what the test asserts.
Imported read_junit(const std::string& text, const std::string& source);
/// CTest's Test.xml, with its named measurements of numeric type.
Imported read_ctest(const std::string& text, const std::string& source);

/// Fills in what a crashed runner never wrote; returns the expected cases by the names that results have (pytest lists
/// folder/file.py::test, its JUnit says folder.file::test). `expected`: the cases in order; status as a shell reports
/// it. With no crash (status < 128), a case without result is not run. With one, the first case behind the last result
/// is crashed with the signal as its fingerprint, and those behind it are not run. Fails of the same process after a
/// crash that the file itself reports are marked follow-on.
std::vector<std::string> complete(Imported& imported, const std::vector<std::string>& listed, int exit_status);

}  // namespace tidegate::ledger
