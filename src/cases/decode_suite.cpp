// Cases of the passes decode and packed. A packed call has one token and logits; most lists serve both.
#include "cases/decode_suite.h"

namespace tidegate::cases {
namespace {

Tails quick(bool packed) {
    Tails list{"3,1,2,4,80,96/7", "4,1,2,4,48,32/l2norm=1/pool=3/slots=1,2,0,-1/2",
               "4,1,2,4,32,32/form=bounded/layout=vk/slots=3,0,1,2/null=0/3",
               "2,1,2,4,16,16/map=tiled/pool=2100/slots=2060,5/5", "2,1,2,4,33,65/state=bf16/6"};
    if (packed) return list;
    list.insert(list.end(), {"2,4,2,4,64,64/columns=5/accepted=2,1/each=1/1", "2,70,1,2,32,40/h0=1/4",
                             "2,2,1,2,16,16/gb=fp16/9", "2,5,1,2,16,16/gate=half-zero/out=fp32/8"});
    return list;
}

Tails tails(bool packed) {
    Tails list;
    for (const int K :
         {1, 2, 7, 15, 16, 17, 31, 33, 60, 63, 65, 79, 80, 81, 96, 100, 127, 128, 129, 160, 192, 256, 257}) {
        const std::string k = std::to_string(K);
        list.push_back("2,1,1,2," + k + "," + k + "/2");
        list.push_back("1,1,1,1," + k + ",64/3");
        list.push_back("1,1,1,1,64," + k + "/4");
    }
    for (const int B : {1, 2, 3, 5, 33}) list.push_back(std::to_string(B) + ",1,1,2,24,40/5");
    list.push_back("2,1,2,4,72,56/strides=padded/6");
    if (packed) return list;
    for (const char* n : {"1", "3", "4", "17"}) list.push_back("2,3,1,2,24,40/householder=" + std::string(n) + "/9");
    for (const int T : {2, 3, 4, 5, 7, 8, 15, 16, 17, 33}) {
        const std::string t = std::to_string(T);
        list.push_back("2," + t + ",1,2,24,40/7");
        list.push_back("2," + t + ",1,2,24,40/columns=" + t + "/each=1/8");
    }
    return list;
}

Tails gates(bool packed, bool vector) {
    Tails list;
    const std::string tokens = packed ? "3,1" : "3,4";
    for (const char* keys : {"l2norm=1", "neg=1", "gate_min=-0.5", "form=bounded", "form=bounded/gate_min=-1",
                             "A_log=100/a=-200", "A_log=89", "a=-30", "a=30", "A_log=-30/a=80", "params=fp32",
                             "params=bf16", "params=fp16", "scale=1", "scale=0.3", "b=0.5", "b=-6.85", "b=0.1"})
        list.push_back(tokens + ",2,4,32,24/gates=logits/" + std::string(keys) + "/3");
    if (packed) return list;
    for (const char* gate : {"zero", "half-zero", "const:-0.001", "const:-1", "const:-20", "const:-1000", "spike:-90",
                             "spike:-1e4", "spike:-inf", "mild-spike:-104", "mild-spike:-inf"})
        list.push_back("2,5,1,2,32,40/gate=" + std::string(gate) + "/1");
    if (vector)
        for (const char* x : {"-6", "-20", "-1000", "-inf"})
            list.push_back("2,5,1,2,32,40/gate=channel:" + std::string(x) + "/2");
    for (const char* keys : {"gate_min=-0.25", "gb=bf16", "gb=fp16", "l2norm=1", "scale=1"})
        list.push_back("2,5,2,4,32,24/" + std::string(keys) + "/4");
    return list;
}

/// Pools: slots, pads, layouts, types, speculative columns.
Tails states(bool packed) {
    Tails list;
    for (const char* keys : {"h0=1e-6",
                             "h0=1e4",
                             "layout=vk",
                             "state=bf16",
                             "state=fp16",
                             "layout=vk/state=bf16",
                             "layout=vk/state=fp16",
                             "out=fp32",
                             "out=bf16",
                             "out=fp16",
                             "strides=padded",
                             "strides=padded/state=bf16",
                             "strides=interleaved",
                             "map=tiled",
                             "slots=0,1,2,3",
                             "slots=3,1,2,0",
                             "slots=1,-1,2,0",
                             "slots=-1,-1,-1,5",
                             "slots=1,2,0,3/null=0",
                             "slots=1,2,0,-1/null=0",
                             "slots=4,2,0,-1/null=2",
                             "slots=9,0,5,7/pool=64"})
        list.push_back("4,1,2,4,40,24/" + std::string(keys) + "/1");
    // Many heads of whole blocks: other schedules on a device.
    for (const char* keys : {"", "layout=vk", "state=bf16", "layout=vk/state=fp16", "slots=8,7,-1,5,4,3,2,1,0/null=3"})
        list.push_back("9,1,16,32,64,64/" + (*keys != 0 ? std::string(keys) + "/" : "") + "4");
    list.push_back("9,1,16,32,128,128/5");
    list.push_back("9,1,16,32,128,40/layout=vk/6");
    if (packed) return list;
    for (const char* keys :
         {"columns=3", "columns=4", "columns=4/accepted=1,2", "columns=4/accepted=4,3", "columns=4/accepted=0,5",
          "columns=4/accepted=0,2", "columns=4/accepted=2,2/each=1", "each=1", "each=1/layout=vk", "each=1/state=bf16",
          "columns=3/layout=vk/accepted=3,1", "columns=3/state=fp16", "columns=3/strides=padded", "columns=3/null=2",
          "slots=-1,3", "slots=-1,3/each=1", "slots=0,3/null=0/each=1"})
        list.push_back("2,3,2,4,40,24/" + std::string(keys) + "/2");
    for (const char* keys : {"each=1", "columns=2/accepted=2,1/each=1", "columns=1", "layout=vk/each=1"})
        list.push_back("2,1,2,4,64,32/" + std::string(keys) + "/3");
    return list;
}

/// The numbers are those of docs/cases.md; kinds that need two calls are tests or properties, not cases.
Tails field(bool packed, Dtype dtype, bool vector) {
    Tails list{"1,1,3,6,32,32/4",
               "1,1,2,4,32,32/5",
               "3,1,2,2,32,32/gates=logits/strides=interleaved/6",
               "2,1,1,2,32,32/gates=logits/b=split:8/7",
               "2,1,1,2,32,32/h0=1/7",
               "2,1,2,2,60,60/strides=padded/8",
               "2,1,2,2,96,96/strides=padded/8",
               "2,1,2,2,100,100/strides=padded/8",
               "2,1,1,2,64,128/8",
               "2,1,1,2,128,32/8",
               "2,1,1,2,1,1/8",
               "3,1,1,2,32,32/strides=padded/9",
               "1025,1,2,2,1,1/13",
               "2,1,1,2,32,32/h0=1/gates=logits/A_log=100/a=-200/18",
               "2,1,1,2,32,32/h0=1/gates=logits/A_log=89/18",
               "2,1,1,2,32,32/h0=1/gates=logits/a=-30/18",
               "2,1,1,2,32,32/h0=1/gates=logits/a=30/18",
               "3,1,1,2,32,32/nan=1/22",
               "3,1,1,2,32,32/inf=1/22",
               "1,1,1,1,1,1/h0=0/x=ones/gates=logits/b=0.5/23",
               "2,1,1,2,32,32/h0=1/gates=logits/b=-6.85/27",
               "2,1,1,2,32,32/h0=1/gates=logits/b=0.1/27",
               "4,1,1,2,32,32/pool=3/slots=1,2,0,-1/28",
               "4,1,1,2,32,32/pool=3/slots=1,2,0,-1/null=0/28",
               "2,1,1,2,16,16/pool=4200/slots=4096,4199/30"};
    for (const char* type : {"fp32", "bf16", "fp16"})
        list.push_back("2,1,1,2,32,32/gates=logits/params=" + std::string(type) + "/26");
    if (dtype == Dtype::fp16) list.push_back("1,1,1,2,32,32/h0=1e5/gates=logits/a=-30/25");
    if (packed) return list;
    list.insert(list.end(),
                {"5,2,1,2,32,32/same=1/13", "2,6,1,2,32,32/gate=zero/15", "2,6,1,2,32,32/gate=half-zero/15"});
    for (const char* x : {"-90", "-104", "-1e4", "-inf"})
        for (const char* kind : {"spike:", "mild-spike:"})
            list.push_back("1,6,1,2,32,32/gate=" + std::string(kind) + x + "/16");
    for (const char* x : {"-6", "-20", "-1000"}) {
        list.push_back("1,6,1,2,32,32/h0=1/gate=const:" + std::string(x) + "/17");
        if (vector) list.push_back("1,6,1,2,32,32/h0=1/gate=channel:" + std::string(x) + "/17");
    }
    list.insert(list.end(), {"1,64,1,2,32,32/x=alike/gate=zero/beta=1/20", "3,6,1,2,32,32/nan=1/22",
                             "1,1000,1,1,1,1/h0=0/x=ones/gates=logits/b=0.5/23", "1,64,1,2,32,32/h0=1/24",
                             "2,2,1,2,32,32/columns=4/accepted=0,5/32", "2,4,1,2,32,32/columns=4/accepted=1,3/32"});
    return list;
}

/// H = 32, D = 128: the shape of the field's benchmark tables.
Tails peers(Dtype dtype) {
    Tails list;
    for (const char* B : {"1", "32"})
        if (dtype == Dtype::fp32) list.push_back(std::string(B) + ",1,32,32,128,128/1");
    return list;
}

/// 32 value heads of 128 x 128, as the field's decode tables have them; bf16 activations.
Tails peers_cuda(bool packed, Dtype dtype) {
    Tails list;
    if (dtype != Dtype::bf16) return list;
    for (const char* state : {"", "/state=bf16"})
        for (const char* layout : {"", "/layout=vk"})
            for (const char* B : {"1", "8", "32", "64", "128", "256"})
                list.push_back(std::string(B) + ",1,16,32,128,128/gates=logits" + layout + state + "/1");
    if (!packed)
        for (const char* T : {"1", "2", "4"}) list.push_back("64," + std::string(T) + ",16,32,128,128/gates=logits/1");
    return list;
}

/// Every kernel and path once.
Tails sanitize(bool packed, Dtype dtype) {
    if (dtype != Dtype::bf16) return {};
    Tails list{"3,1,2,4,128,64/slots=1,-1,2/1", "2,1,2,4,64,64/state=bf16/2", "2,1,2,4,128,64/layout=vk/3",
               "2,1,2,4,64,32/layout=vk/state=fp16/4", "2,1,2,4,80,33/5"};
    if (!packed) list.insert(list.end(), {"2,3,2,4,64,64/columns=4/accepted=2,0/each=1/6", "2,2,2,4,257,16/7"});
    return list;
}

/// A packed call's logits need no saying.
Tails packed_ids(Tails list) {
    for (std::string& tail : list)
        if (const std::size_t at = tail.find("/gates=logits"); at != std::string::npos) tail.erase(at, 13);
    return list;
}

}  // namespace

Tails decode_tails(const std::string& name, const std::string& pass, Dtype dtype, bool vector) {
    const bool packed = pass == "packed";
    Tails list;
    if (name == "quick") list = quick(packed);
    if (name == "tails") list = tails(packed);
    if (name == "gates") list = gates(packed, vector);
    if (name == "states") list = states(packed);
    if (name == "field") list = field(packed, dtype, vector);
    if (name == "peers-cpu") list = peers(dtype);
    if (name == "peers-cuda") list = peers_cuda(packed, dtype);
    if (name == "sanitize") list = sanitize(packed, dtype);
    if (name == "all")
        for (const char* part : {"quick", "tails", "gates", "states", "field"})
            for (const std::string& tail : decode_tails(part, pass, dtype, vector)) list.push_back(tail);
    if (!packed) {  // the front end's keys say logits
        for (std::string& tail : list)
            for (const char* key : {"/form=bounded", "/neg=1"})
                if (tail.find(key) != std::string::npos && tail.find("gates=logits") == std::string::npos)
                    tail.insert(tail.find('/'), "/gates=logits");
        return list;
    }
    return packed_ids(list);
}

}  // namespace tidegate::cases
