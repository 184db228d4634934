#include "cli/records.h"

#include <fmt/format.h>

#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tidegate/error.h"

namespace tidegate::cli {
namespace {

std::string histogram(const std::map<int, std::int64_t>& counts) {
    std::string text = "{";
    for (const auto& [exponent, count] : counts) {
        const std::string key = exponent == INT_MIN ? "zero" : exponent == INT_MAX ? "inf" : std::to_string(exponent);
        text += fmt::format("{}\"{}\":{}", text.size() > 1 ? "," : "", key, count);
    }
    return text + "}";
}

std::string head(const char* record, const Labels& l) {
    return fmt::format(R"("record":"{}","protocol":1,"case":{},"rule":"{}","pass":"{}","dtype":"{}","subject":{})",
                       record, quoted(l.id), l.rule, l.pass, l.dtype, quoted(l.subject));
}

}  // namespace

std::string quoted(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string number(double x) {
    if (std::isnan(x)) return "\"nan\"";
    if (std::isinf(x)) return x > 0 ? "\"inf\"" : "\"-inf\"";
    return fmt::format("{:.9g}", x);
}

void Counts::add(judge::Verdict verdict) {
    ++cases;
    switch (verdict) {
        case judge::Verdict::pass:
            ++passed;
            break;
        case judge::Verdict::fail:
            ++failed;
            break;
        case judge::Verdict::blind:
            ++blind;
            break;
        case judge::Verdict::crashed:
            ++crashed;
            break;
        case judge::Verdict::hung:
            ++hung;
            break;
        case judge::Verdict::skipped:
            ++skipped;
            break;
        case judge::Verdict::not_run:
            ++not_run;
            break;
    }
}

Records::Records(const std::string& path, Sink* sink) : path_(path), sink_(sink) {
    if (path.empty()) return;
    file_ = path == "-" ? stdout : std::fopen(path.c_str(), "w");
    if (file_ == nullptr)
        throw Error("json", "json: given '" + path + "', which cannot be written: " + std::strerror(errno));
}

Records::~Records() {
    if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

void Records::line(const std::string& json) {
    if (sink_ != nullptr) sink_->line("{" + json + "}");
    if (file_ == nullptr) return;
    const std::string text = "{" + json + "}\n";
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
        throw Error("json", "json: '" + path_ + "' cannot be written: " + std::strerror(errno));
}

void Records::run(const RunRecord& r) {
    std::string list;
    for (const auto& [id, hash] : r.cases)
        list += fmt::format(R"({}{{"case":{},"hash":"{}"}})", list.empty() ? "" : ",", quoted(id), hash);
    line(fmt::format(R"("record":"run","protocol":1,"kind":"{}","label":{},"subject":{},)"
                     R"("gate":{{"name":"{}","version":{}}},"generator":{},"cases":[{}])",
                     r.kind, quoted(r.label), quoted(r.subject), r.gate.name, r.gate.version, cases::kGeneratorVersion,
                     list));
}

void Records::tensors(const Labels& l, const judge::CaseResult& result) {
    if (file_ == nullptr && sink_ == nullptr) return;
    for (const judge::TensorResult& t : result.tensors) {
        std::string json = head("tensor", l) + fmt::format(R"(,"tensor":"{}","verdict":"{}","reason":{})", t.name,
                                                           judge::name_of(t.verdict), quoted(t.reason));
        {
            judge::Measures m = t.measures;
            if (!t.measured)  // missing, misshapen or mistyped: the fields are there, and are no numbers
                for (double* x :
                     {&m.nrmse, &m.cosine, &m.size_ratio, &m.max_abs, &m.absmax_out, &m.absmax_ref,
                      &m.worst_token_nrmse, &m.min_token_cosine, &m.worst_sequence_nrmse, &m.worst_head_nrmse,
                      &m.zeros_nrmse, &m.share_out, &m.zero_share, &m.needed, &m.limit})
                    *x = std::nan("");
            const std::pair<const char*, double> numbers[] = {{"nrmse", m.nrmse},
                                                              {"cos", m.cosine},
                                                              {"size_ratio", m.size_ratio},
                                                              {"max_abs", m.max_abs},
                                                              {"absmax_out", m.absmax_out},
                                                              {"absmax_ref", m.absmax_ref},
                                                              {"worst_token_nrmse", m.worst_token_nrmse},
                                                              {"min_token_cos", m.min_token_cosine},
                                                              {"worst_sequence_nrmse", m.worst_sequence_nrmse},
                                                              {"worst_head_nrmse", m.worst_head_nrmse},
                                                              {"zeros_nrmse", m.zeros_nrmse},
                                                              {"share_out", m.share_out},
                                                              {"zero_share", m.zero_share},
                                                              {"needed", m.needed}};
            for (const auto& [name, value] : numbers) json += fmt::format(R"(,"{}":{})", name, number(value));
            json += fmt::format(R"(,"nan":{},"inf":{},"mismatched":{},"unwritten":{})", m.nan, m.inf, m.mismatched,
                                t.unwritten < 0 ? "\"not checked\"" : std::to_string(t.unwritten));
            json += fmt::format(R"(,"worst":{{"seq":{},"token":{},"head":{},"channel":{}}})", m.worst.sequence,
                                m.worst.token, m.worst.head, m.worst.channel);
            json += fmt::format(R"(,"hist_abs":{},"hist_rel":{})", histogram(m.hist_abs), histogram(m.hist_rel));
        }
        json += fmt::format(R"(,"twin":"{}","gate":{{"name":"{}","version":{},"limit":{}}},"replay":{})", l.twin,
                            l.gate.name, l.gate.version, number(t.measured ? t.measures.limit : std::nan("")),
                            quoted(l.replay));
        line(json);
    }
}

void Records::result(const Labels& l, const judge::CaseResult& r) {
    line(head("case", l) +
         fmt::format(R"(,"verdict":"{}","reason":{},"signal":{},"seconds":{},"first_try":{},"replay":{})",
                     judge::name_of(r.verdict), quoted(r.reason), r.signal, number(r.seconds), quoted(r.first_try),
                     quoted(l.replay)) +
         (l.plan.empty() ? "" : fmt::format(R"(,"plan":{})", quoted(l.plan))));
}

void Records::mutant(const Labels& l, const char* name, judge::Sight sight) {
    line(fmt::format(R"("record":"mutant","protocol":1,"case":{},"rule":"{}","mutant":"{}","sight":"{}","gate":"{}")",
                     quoted(l.id), l.rule, name, judge::name_of(sight), l.gate.name));
}

void Records::property(const Labels& l, const judge::PropertyResult& p) {
    line(
        fmt::format(R"("record":"property","protocol":1,"name":"{}","case":{},"rule":"{}","subject":{},"verdict":"{}",)"
                    R"("bit_exact":{},"where":{},"replay":{})",
                    p.name, quoted(l.id), l.rule, quoted(l.subject), judge::name_of(p.verdict), p.bit_for_bit,
                    quoted(p.where), quoted(l.replay + " --properties")));
}

void Records::plan(const std::string& rule, const Plan& plan) {
    const auto& a = plan.arithmetic;
    const auto& s = plan.schedule;
    line(fmt::format(
        R"("record":"plan","protocol":1,"rule":"{}","arithmetic":{{"path":"{}","isa":"{}","bucket_k":{},)"
        R"("bucket_v":{},"pass":{},"operands":"{}","accumulate":"{}"}},"schedule":{{"threads":{},"round":{},"tasks":{},)"
        R"("slice_v":{},"workspace_bytes":{},"spacing":{},"extra_flop":{}}})",
        rule, a.path, a.isa, a.bucket_k, a.bucket_v, a.pass, a.operands, a.accumulate, s.threads, s.round, s.tasks,
        s.slice_v, s.workspace_bytes, s.spacing, number(s.extra_flop)));
}

void Records::summary(const Counts& c, double seconds) {
    line(fmt::format(
        R"("record":"summary","protocol":1,"cases":{},"passed":{},"failed":{},"blind":{},"crashed":{},"hung":{},)"
        R"("skipped":{},"not_run":{},"seconds":{})",
        c.cases, c.passed, c.failed, c.blind, c.crashed, c.hung, c.skipped, c.not_run, number(seconds)));
}

}  // namespace tidegate::cli
