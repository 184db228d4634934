// The child of a lib: subject: maps each tensor between guard pages, calls the library, looks at what it left.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

#include "cases/request.h"
#include "io/safetensors.h"
#include "subjects/lib.h"
#include "subjects/poison.h"
#include "tidegate/error.h"
#include "tidegate/subject.h"

namespace tidegate::subjects {
namespace {

using Entry = decltype(&tidegate_subject);

constexpr int kUnloadable = 2;
constexpr std::int64_t kMessage = 1024;

/// Memory of a tensor. It ends as close to inaccessible pages as its alignment allows, and begins behind some; the rest
/// of its own pages holds poison, so that what is read or written beside it shows.
class Region {
public:
    static constexpr std::size_t kGuard = std::size_t{1} << 20;  // a step of a whole row must not clear it
    static constexpr std::size_t kAlign = 64;

    Region(const char* called, Dtype type, std::int64_t count) : name(called), dtype(type), elements(count) {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), size = bytes();
        room_ = std::max(page, (size + page - 1) / page * page);
        void* mapped = mmap(nullptr, room_ + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw Error(name, fmt::format("no memory for {} ({} bytes)", name, size));
        begin_ = static_cast<std::byte*>(mapped) + kGuard;
        if (mprotect(begin_, room_, PROT_READ | PROT_WRITE) != 0) {
            munmap(mapped, room_ + 2 * kGuard);
            throw Error(name, fmt::format("no memory for {} ({} bytes)", name, size));
        }
        data = begin_ + (room_ - size) / kAlign * kAlign;
        poison(begin_, dtype, room_elements());
    }
    ~Region() { munmap(begin_ - kGuard, room_ + 2 * kGuard); }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    void fill(const io::Array& from) { std::copy(from.bytes.begin(), from.bytes.end(), data); }
    void protect() { mprotect(begin_, room_, PROT_READ); }
    std::size_t bytes() const { return static_cast<std::size_t>(elements * bytes_of(dtype)); }
    std::int64_t unwritten() const { return poisoned(data, dtype, elements); }
    std::int64_t written_outside() const {
        return room_elements() - elements - (poisoned(begin_, dtype, room_elements()) - unwritten());
    }
    /// How an access to `at` broke the rules; nullptr if this is not the region it hit.
    const char* offence(const void* at) const {
        const auto* p = static_cast<const std::byte*>(at);
        if (p < begin_ - kGuard || p >= begin_ + room_ + kGuard) return nullptr;
        return p < data ? "access before the start of" : p >= data + bytes() ? "access past the end of" : "write to";
    }

    const char* const name;
    const Dtype dtype;
    const std::int64_t elements;
    std::byte* data = nullptr;

private:
    std::int64_t room_elements() const { return static_cast<std::int64_t>(room_) / bytes_of(dtype); }
    std::byte* begin_ = nullptr;
    std::size_t room_ = 0;
};

const std::deque<Region>* in_call = nullptr;  // what on_fault() looks at; set while the library runs

/// Says which tensor it was, as the last words, and lets the signal do what it does.
void on_fault(int signal, siginfo_t* info, void*) {
    const auto say = [](const char* text) {
        if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
    };
    if (in_call != nullptr && info->si_code > 0)
        for (const Region& region : *in_call)
            if (const char* offence = region.offence(info->si_addr)) {
                for (const char* part : {"\n", offence, " ", region.name, "\n"}) say(part);
                break;
            }
    raise(signal);  // the default action: SA_RESETHAND
}

/// What a library wrote as its message: one line, whole UTF-8 characters, whatever is really there.
std::string one_line(const char* text, std::size_t size) {
    std::string line(text, strnlen(text, size));
    std::size_t last = line.size();  // where the last character starts
    while (last > 0 && (static_cast<unsigned char>(line[last - 1]) & 0xC0) == 0x80) --last;
    if (last > 0) {
        const auto lead = static_cast<unsigned char>(line[last - 1]);
        const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
        if (line.size() - (last - 1) < length) line.resize(last - 1);  // cut by the truncation
    }
    for (char& c : line)
        if ((c >= 0 && c < ' ') || c == '\x7f') c = ' ';
    return line;
}

tg_tensor described(const io::Array& array, const Region& region) {
    const Tensor view = array.view();
    tg_tensor t{};
    t.name = region.name;
    t.dtype = static_cast<std::int32_t>(array.dtype);
    t.rank = view.rank;
    std::copy(view.shape.begin(), view.shape.end(), t.shape);
    std::copy(view.stride.begin(), view.stride.end(), t.stride);
    t.data = region.data;
    return t;
}

struct Reply {
    std::string word, why;
};

Reply serve(Entry entry, const std::string& request_path, const std::string& answer_path) {
    const io::Bundle request = io::read_safetensors(request_path);
    io::Bundle answer = cases::empty_answer(request);
    std::deque<Region> regions;
    std::vector<tg_tensor> in, out;
    for (const io::Array& array : request.tensors) {
        if (array.shape.empty()) continue;
        Region& region = regions.emplace_back(array.name.c_str(), array.dtype, array.size());
        region.fill(array);
        region.protect();
        in.push_back(described(array, region));
    }
    const std::size_t first_out = regions.size();
    for (const io::Array& array : answer.tensors) {
        Region& region = regions.emplace_back(array.name.c_str(), array.dtype, array.size());
        if (const io::Array* pool = array.name == "state" ? request.find("state") : nullptr) region.fill(*pool);
        out.push_back(described(array, region));
    }
    Region& text = regions.emplace_back("message", Dtype::bf16, kMessage / 2);
    std::memset(text.data, 0, text.bytes());
    auto* message = reinterpret_cast<char*>(text.data);
    const auto metadata =
        nlohmann::json(request.metadata).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);

    in_call = &regions;
    const int code = entry(metadata.c_str(), in.data(), static_cast<int>(in.size()), out.data(),
                           static_cast<int>(out.size()), message, text.bytes());
    in_call = nullptr;
    std::fflush(nullptr);

    const std::string why = one_line(message, text.bytes());
    std::string unwritten;
    for (std::size_t i = 0; i < answer.tensors.size(); ++i) {
        const Region& region = regions[first_out + i];
        if (const auto outside = region.written_outside(); outside > 0)
            return {"error", fmt::format("wrote outside {}: {} elements", region.name, outside)};
        std::copy_n(region.data, region.bytes(), answer.tensors[i].bytes.begin());
        unwritten += fmt::format("{}{}:{}", i == 0 ? "" : ",", region.name, region.unwritten());
    }
    if (code == TG_SKIPPED) return {"skip", why};
    if (code != TG_ANSWERED) return {"error", fmt::format("error {}{}{}", code, why.empty() ? "" : ": ", why)};
    answer.metadata["unwritten"] = unwritten;
    io::write_safetensors(answer_path, answer);
    return {"ok", ""};
}

/// Exceptions have no place in a C ABI; they end here.
Reply caught(Entry entry, const std::string& request_path, const std::string& answer_path) {
    Reply reply;
    try {
        reply = serve(entry, request_path, answer_path);
    } catch (const std::exception& error) {
        reply = {"error", one_line(error.what(), kMessage)};
    } catch (...) {
        reply = {"error", "an exception that is no std::exception"};
    }
    in_call = nullptr;
    std::fflush(nullptr);
    return reply;
}

}  // namespace

int lib_child(const std::vector<std::string>& words) {
    // Requests and replies move to descriptors that the library does not know: what it prints is log, on stderr.
    std::FILE* requests = fdopen(dup(STDIN_FILENO), "r");
    std::FILE* replies = fdopen(dup(STDOUT_FILENO), "w");
    if (requests == nullptr || replies == nullptr || std::freopen("/dev/null", "r", stdin) == nullptr ||
        dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        std::perror("lib-child");
        return kUnloadable;
    }
    void* library = dlopen(words.at(0).c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto entry = reinterpret_cast<Entry>(library == nullptr ? nullptr : dlsym(library, "tidegate_subject"));
    if (entry == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return kUnloadable;
    }
    if (std::getenv(kLibProbe) != nullptr) return std::fprintf(replies, "%s\n", kLibReady) < 0 ? kUnloadable : 0;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND | SA_NODEFER);
    sigaction(SIGSEGV, &action, nullptr);

    if (words.size() > 2) {
        const Reply reply = caught(entry, words[1], words[2]);
        if (!reply.why.empty()) std::fprintf(stderr, "\n%s\n", reply.why.c_str());
        return reply.word == "ok" ? 0 : reply.word == "skip" ? TG_SKIPPED : 1;
    }
    char* text = nullptr;
    std::size_t room = 0;
    for (ssize_t length = 0; (length = getline(&text, &room, requests)) > 0;) {
        std::string line(text, static_cast<std::size_t>(length));
        if (line.back() == '\n') line.pop_back();
        const std::size_t tab = std::min(line.find('\t'), line.size() - 1);
        const Reply reply = caught(entry, line.substr(0, tab), line.substr(tab + 1));
        std::fprintf(replies, "@tidegate %s %s\n", reply.word.c_str(), reply.why.c_str());
        std::fflush(replies);
    }
    std::free(text);
    return 0;
}

}  // namespace tidegate::subjects
