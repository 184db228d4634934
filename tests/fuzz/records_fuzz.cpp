// Whatever the bytes: rows in a ledger or an Error, and what is written can be asked for.
#include <cstdint>
#include <string>

#include "ledger/import_csv.h"
#include "ledger/ingest.h"
#include "ledger/query.h"
#include "tidegate/error.h"

using namespace tidegate;
using namespace tidegate::ledger;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    Store store(":memory:", Store::Mode::write);
    Run base;
    base.kind = "import";
    base.build.name = "b";
    try {
        store.transact([&] {
            if (text.find('{') == 0)
                ingest_file(store, base, text, "fuzz");
            else
                import_csv(store, base, text, "fuzz");
        });
    } catch (const Error&) {
        return 0;
    }
    // No Error may come from here on.
    const Json all = show(store, {}, true);
    for (const Json& run : all["runs"])
        if (run["measured"].get<bool>() && !run["performance"].get<bool>())
            compare(store, "#" + run["run"].dump(), "#" + run["run"].dump());
    return 0;
}
