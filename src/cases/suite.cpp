// The one list of cases.
#include "cases/suite.h"

#include <array>
#include <set>

#include "cases/decode_suite.h"
#include "problem/rules.h"
#include "tidegate/error.h"

namespace tidegate::cases {
namespace {

constexpr std::array kSuites{
    Suite{"quick", "a few cases in which every fault of the table is caught"},
    Suite{"tails", "K, V and T around every bucket and chunk length"},
    Suite{"gates", "decays from none to total, front ends, parameter types"},
    Suite{"varlen", "packed sequences: empty, short, many, identical"},
    Suite{"states", "initial and final states, layouts, types"},
    Suite{"field", "inputs that have broken real kernels"},
    Suite{"peers-cpu", "shapes that `bench` times beside a peer (fp32; not part of all)", false},
    Suite{"peers-cuda", "decode shapes that `bench --subject cuda` times (not part of all)", false},
    Suite{"sanitize", "a few cases for slow checkers (not part of all)", false},
    Suite{"all", "all of the above but the last three", false},
};

Tails quick() {
    return {"1,70,2,4,80,96/h0=1/7",
            "2,65,2,2,64,64/1",
            "1,139,2,4,32,64/lengths=3,0,70,1,65/h0=1/2",
            "1,66,1,2,48,32/gates=logits/l2norm=1/gate_min=-0.05/3",
            "1,33,2,4,64,64/h0=1/gates=logits/form=bounded/layout=vk/4",
            "2,1,2,4,64,64/h0=1/5",
            "1,70,2,4,33,65/h0=1/gate=mild-spike:-90/map=tiled/6",
            "1,20,1,1,16,16/gate=half-zero/out=fp32/8"};
}

Tails tails() {
    Tails list{"1,64,2,2,64,32/1"};  // the probe case
    for (const int K :
         {1, 2, 7, 15, 16, 17, 31, 33, 60, 63, 65, 79, 80, 81, 95, 96, 97, 100, 127, 128, 129, 160, 192, 256, 257}) {
        const std::string k = std::to_string(K);
        // With one value a head every factor 1 - beta k^2 may cancel, and over many tokens some do.
        list.push_back((K == 1 ? "1,3,1,2," : "1,9,1,2,") + k + "," + k + "/h0=1/2");
        list.push_back("1,9,1,1," + k + ",64/3");
        list.push_back("1,9,1,1,64," + k + "/h0=1/4");
    }
    for (const int T : {1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 193})
        list.push_back("1," + std::to_string(T) + ",1,2,24,40/h0=1/5");
    list.push_back("2,65,2,4,72,56/strides=padded/6");
    for (const char* n : {"1", "3", "4", "8", "17", "64"})
        list.push_back("1,9,1,2,24,40/h0=1/householder=" + std::string(n) + "/7");
    return list;
}

Tails gates(bool vector) {
    Tails list;
    for (const char* gate : {"zero", "half-zero", "const:-0.001", "const:-1", "const:-6", "const:-20", "const:-27.6",
                             "const:-1000", "spike:-90", "spike:-104", "spike:-1e4", "spike:-inf", "mild-spike:-90",
                             "mild-spike:-104", "mild-spike:-1e4", "mild-spike:-inf"})
        list.push_back("1,70,1,2,32,40/h0=1/gate=" + std::string(gate) + "/1");
    if (vector)
        for (const char* x : {"-6", "-20", "-1000", "-inf"})
            list.push_back("1,70,1,2,32,40/h0=1/gate=channel:" + std::string(x) + "/2");
    for (const char* keys : {"gates=logits",
                             "gates=logits/l2norm=1",
                             "gates=logits/neg=1",
                             "gates=logits/gate_min=-0.5",
                             "gates=logits/form=bounded",
                             "gates=logits/form=bounded/gate_min=-1",
                             "gates=logits/A_log=100/a=-200",
                             "gates=logits/A_log=89",
                             "gates=logits/a=-30",
                             "gates=logits/a=30",
                             "gates=logits/A_log=-30/a=80",
                             "gates=logits/params=fp32",
                             "gates=logits/params=bf16",
                             "gates=logits/params=fp16",
                             "gate_min=-0.25",
                             "gb=bf16",
                             "gb=fp16",
                             "l2norm=1",
                             "scale=1",
                             "scale=0.3"})
        list.push_back("1,40,2,4,32,24/h0=1/" + std::string(keys) + "/3");
    return list;
}

Tails varlen() {
    return {"1,9,1,2,32,32/lengths=5,4/1",
            "1,3,2,4,32,32/lengths=0,3,0/h0=1/2",
            "1,3,1,1,16,16/lengths=0,0,3/3",
            "1,0,1,2,16,16/lengths=0/h0=1/4",
            "1,0,1,2,16,16/lengths=0,0/h0=1/5",
            "1,194,1,2,32,32/lengths=64,65,1,63,1/6",
            "1,140,2,4,24,40/lengths=1*140/h0=1/7",
            "1,80,2,2,32,48/lengths=20*4/same=1/8",
            "3,20,2,2,32,48/same=1/9",
            "4,17,2,4,32,32/h0=1/10",
            "1,150,2,4,32,32/lengths=130,0,20/h0=1/gates=logits/11",
            "1,90,2,4,32,32/lengths=10,70,10/h0=1/map=tiled/12"};
}

Tails states() {
    Tails list;
    for (const char* keys :
         {"h0=1", "h0=1e-6", "h0=1e4", "h0=1/layout=vk", "layout=vk", "h0=1/state=bf16", "h0=1/state=fp16",
          "h0=1/layout=vk/state=bf16", "h0=1/out=fp32", "h0=1/out=bf16", "h0=1/out=fp16", "h0=1/beta=0",
          "h0=1/gate=zero/beta=0", "h0=1/beta=1", "h0=1/strides=padded", "h0=1/map=tiled"})
        list.push_back("2,37,2,4,40,24/" + std::string(keys) + "/1");
    return list;
}

/// The numbers are those of docs/cases.md; kinds that need two calls are tests or properties, not cases.
Tails field(Dtype dtype, bool vector) {
    Tails list;
    for (const char* T : {"1", "63", "64", "65"})  // 1
        list.push_back("1," + std::string(T) + ",1,2,32,32/gate=const:-1/1");
    list.insert(list.end(), {"2,65,2,2,32,32/gate=zero/2",
                             "2,65,2,2,32,32/2",  // 2
                             "1,6,1,2,32,32/h0=1/3",
                             "1,69,1,2,32,32/h0=1/3",                             // 3
                             "1,5,3,6,32,32/4",                                   // 4
                             "1,2,2,4,32,32/5",                                   // 5
                             "3,7,2,2,32,32/gates=logits/strides=interleaved/6",  // 6
                             "3,7,2,2,32,32/strides=interleaved/6",
                             "2,9,1,2,32,32/gates=logits/b=split:8/7",
                             "2,9,1,2,32,32/h0=1/7",  // 7
                             "1,12,2,2,60,60/strides=padded/8",
                             "1,12,2,2,96,96/strides=padded/8",  // 8
                             "1,12,2,2,100,100/strides=padded/8",
                             "1,12,1,2,64,128/8",
                             "1,12,1,2,128,32/8",
                             "1,12,1,2,1,1/8",
                             "1,3,1,2,16,16/lengths=0,3,0/h0=1/10",
                             "1,0,1,2,16,16/lengths=0/h0=1/10",  // 10
                             "1,0,1,2,16,16/lengths=0,0/h0=1/10",
                             "1,0,1,2,16,16/lengths=0,0/10",
                             "1,9,1,2,32,32/lengths=5,4/12",  // 12
                             "1,21,1,2,32,32/lengths=7*3/same=1/13",
                             "1,42,1,2,32,32/lengths=7*6/same=1/13",  // 13
                             "1,1025,64,64,1,1/lengths=1*1025/13",
                             "1,192,1,2,32,32/gate=zero/15",
                             "1,192,1,2,32,32/gate=half-zero/15"});  // 15
    for (const char* x : {"-90", "-104", "-1e4", "-inf"})            // 16
        for (const char* kind : {"spike:", "mild-spike:"})
            list.push_back("1,64,1,2,32,32/gate=" + std::string(kind) + x + "/16");
    list.push_back("1,64,1,2,32,32/gate=const:-27.6/16");
    for (const char* x : {"-6", "-20", "-1000"}) {  // 17
        list.push_back("1,64,1,2,32,32/h0=1/gate=const:" + std::string(x) + "/17");
        if (vector) list.push_back("1,64,1,2,32,32/h0=1/gate=channel:" + std::string(x) + "/17");
    }
    list.insert(list.end(), {"1,24,1,2,32,32/h0=1/gates=logits/A_log=100/a=-200/18",  // 18
                             "1,24,1,2,32,32/h0=1/gates=logits/A_log=89/18",
                             "1,24,1,2,32,32/h0=1/gates=logits/a=-30/18", "1,24,1,2,32,32/h0=1/gates=logits/a=30/18",
                             "1,64,1,2,32,32/x=alike/gate=zero/beta=1/20",                                        // 20
                             "1,84,1,2,32,32/lengths=5,70,9/nan=1/22", "1,84,1,2,32,32/lengths=5,70,9/inf=1/22",  // 22
                             "3,20,1,2,32,32/nan=1/22"});
    if (dtype != Dtype::fp16) list.push_back("1,8,1,2,16,16/x=raw/beta=1/out=fp32/20");
    list.insert(list.end(),
                {"1,1,1,1,1,1/x=ones/gates=logits/b=0.5/23", "1,1000,1,1,1,1/x=ones/gates=logits/b=0.5/23",  // 23
                 "1,64,1,2,32,32/h0=1/24", "1,1,1,2,32,32/h0=1/24"});                                        // 24
    if (dtype == Dtype::fp16) list.push_back("1,4,1,2,32,32/h0=1e5/gate=zero/25");                           // 25
    for (const char* type : {"fp32", "bf16", "fp16"})                                                        // 26
        list.push_back("1,24,1,2,32,32/gates=logits/params=" + std::string(type) + "/26");
    for (const char* b : {"-6.85", "0.1"})  // 27
        list.push_back("1,24,1,2,32,32/h0=1/gates=logits/b=" + std::string(b) + "/27");
    return list;
}

/// H = 32, D = 128: the shape of the field's benchmark tables.
Tails peers(Dtype dtype) {
    Tails list;
    for (const char* T : {"1", "64", "256", "1024"})
        if (dtype == Dtype::fp32) list.push_back("1," + std::string(T) + ",32,32,128,128/h0=1/1");
    return list;
}

Tails tails_of(const std::string& name, Dtype dtype, bool vector) {
    if (name == "peers-cpu") return peers(dtype);
    if (name == "peers-cuda" || name == "sanitize") return {};
    if (name == "quick") return quick();
    if (name == "tails") return tails();
    if (name == "gates") return gates(vector);
    if (name == "varlen") return varlen();
    if (name == "states") return states();
    if (name == "field") return field(dtype, vector);
    Tails all;
    for (const Suite& part : kSuites)
        if (part.in_all)
            for (const std::string& tail : tails_of(part.name, dtype, vector)) all.push_back(tail);
    return all;
}

/// Of a pass. Backward has forward's, with a gradient of the final state where there is an initial one.
Tails tails_of(const std::string& name, const std::string& pass, Dtype dtype, bool vector) {
    if (pass == "decode" || pass == "packed") return decode_tails(name, pass, dtype, vector);
    Tails list = tails_of(name, dtype, vector);
    for (std::string& tail : list)
        if (pass == "backward" && tail.find("/h0=") != std::string::npos) tail.insert(tail.find('/'), "/dht=1");
    return list;
}

}  // namespace

std::span<const Suite> suites() { return kSuites; }

std::vector<Case> suite(const std::string& name, const Filter& filter) {
    std::string known;
    bool found = false;
    for (const Suite& s : kSuites) {
        found = found || name == s.name;
        known += std::string(known.empty() ? "" : ", ") + s.name;
    }
    if (!found) throw Error("suite", "suite: given '" + name + "', expected one of " + known);
    std::vector<Case> cases;
    std::set<std::string> seen;
    for (const RuleRow& row : rules())
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
            if ((filter.rule && *filter.rule != row.rule) || (filter.dtype && *filter.dtype != dtype)) continue;
            if (filter.pass == "packed" && !packs(row)) continue;
            const bool vector = row.decay == Decay::vector;
            for (const std::string& tail : tails_of(name, filter.pass, dtype, vector)) {
                if (!takes(row, filter.pass, tail)) continue;
                const Case c = parse(std::string(row.name) + "/" + filter.pass + "/" + name_of(dtype) + "/" + tail);
                if (seen.insert(id_of(c)).second) cases.push_back(c);
            }
        }
    return cases;
}

}  // namespace tidegate::cases
