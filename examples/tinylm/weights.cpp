#include "weights.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "io/file.h"
#include "io/safetensors.h"
#include "problem/number.h"
#include "tidegate/error.h"

namespace tinylm {
namespace {

using tidegate::io::Array;
using Shape = std::vector<std::int64_t>;

class File {
public:
    explicit File(const std::string& path) : path_(path), bundle_(tidegate::io::read_safetensors(path)) {}

    [[noreturn]] void fail(const std::string& what) const { throw tidegate::Error("model", path_ + ": " + what); }

    /// The extents of a tensor of `rank` dimensions, none of them empty.
    const Shape& shape_of(const std::string& name, std::size_t rank) const {
        const Shape& shape = array(name).shape;
        if (shape.size() != rank || std::count(shape.begin(), shape.end(), 0) != 0)
            fail(name + " is " + tidegate::io::shape_text(shape) + ", expected " + std::to_string(rank) +
                 " dimensions, none empty");
        return shape;
    }

    /// The values of a tensor of that shape, widened exactly.
    std::vector<float> take(const std::string& name, const Shape& shape) {
        const Array& from = array(name);
        if (from.shape != shape)
            fail(name + " is " + tidegate::io::shape_text(from.shape) + ", expected " +
                 tidegate::io::shape_text(shape));
        if (from.dtype != tidegate::Dtype::bf16 && from.dtype != tidegate::Dtype::fp32)
            fail(name + " is " + tidegate::name_of(from.dtype) + ", expected bf16 or fp32");
        std::vector<float> values(static_cast<std::size_t>(from.size()));
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double x = tidegate::load_element(from.bytes.data(), from.dtype, static_cast<std::int64_t>(i));
            if (!std::isfinite(x)) fail(name + " holds a value that is not finite");
            values[i] = static_cast<float>(x);
        }
        taken_.insert(name);
        return values;
    }

    Matrix take_matrix(const std::string& name, std::int64_t out, std::int64_t in) {
        return Matrix(out, in, take(name, {out, in}));
    }

    /// One more than the highest number in a name, so that a block whose tensors are lacking is missed.
    std::size_t blocks() const {
        std::size_t count = 0;
        for (const Array& tensor : bundle_.tensors)
            if (tensor.name.rfind("blocks.", 0) == 0)
                count = std::max<std::size_t>(count, std::strtoul(tensor.name.c_str() + 7, nullptr, 10) + 1);
        return count;
    }

    /// Every tensor must have been taken, and the blocks must be those that the metadata lists, if it does.
    void finish(const std::string& layers) const {
        for (const Array& tensor : bundle_.tensors)
            if (taken_.count(tensor.name) == 0)
                fail(tidegate::io::in_quotes(tensor.name) + " is no tensor of this model");
        const std::string listed = bundle_.meta("layers", layers);
        if (listed != layers)
            fail("the metadata lists the layers " + tidegate::io::in_quotes(listed) + ", the tensors are those of '" +
                 layers + "'");
    }

private:
    const Array& array(const std::string& name) const {
        const Array* found = bundle_.find(name);
        if (found == nullptr) fail("tensor " + name + " is missing");
        return *found;
    }

    std::string path_;
    tidegate::io::Bundle bundle_;
    std::set<std::string> taken_;
};

std::vector<float> transposed(const std::vector<float>& from, std::int64_t rows, std::int64_t columns) {
    std::vector<float> to(from.size());
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
            to[static_cast<std::size_t>(c * rows + r)] = from[static_cast<std::size_t>(r * columns + c)];
    return to;
}

Block load_block(File& file, const std::string& at, std::int64_t width) {
    Block b;
    b.head_dim = file.shape_of(at + "mix.norm", 1)[0];
    b.value_heads = file.shape_of(at + "mix.A_log", 1)[0];
    b.key_heads = file.shape_of(at + "mix.q.weight", 2)[0] / b.head_dim;
    if (b.key_heads == 0 || b.value_heads % b.key_heads != 0)
        file.fail(at + "mix: " + std::to_string(b.value_heads) + " value heads and " + std::to_string(b.key_heads) +
                  " key heads, expected a multiple");
    // One decay a head, or one for every channel of its keys.
    const std::int64_t decays = file.shape_of(at + "mix.a.weight", 2)[0];
    b.rule = decays == b.value_heads ? tidegate::Rule::gdn : tidegate::Rule::kda;
    const std::int64_t gates = b.value_heads * (b.rule == tidegate::Rule::gdn ? 1 : b.head_dim);
    const std::int64_t hidden = file.shape_of(at + "down.weight", 2)[1];

    struct Part {
        const char* name;
        std::int64_t rows;
    };
    std::vector<float> in;
    std::int64_t rows = 0;
    for (const Part& part : {Part{"q", b.keys()}, Part{"k", b.keys()}, Part{"v", b.values()}, Part{"gate", b.values()},
                             Part{"a", gates}, Part{"b", b.value_heads}}) {
        const std::vector<float> weight = file.take(at + "mix." + part.name + ".weight", {part.rows, width});
        in.insert(in.end(), weight.begin(), weight.end());
        rows += part.rows;
    }
    b.in = Matrix(rows, width, in);
    b.o = file.take_matrix(at + "mix.o.weight", width, b.values());
    b.up = file.take_matrix(at + "up.weight", 2 * hidden, width);
    b.down = file.take_matrix(at + "down.weight", width, hidden);
    b.conv = transposed(file.take(at + "mix.conv", {b.channels(), kTaps}), b.channels(), kTaps);
    b.n1 = file.take(at + "n1.weight", {width});
    b.n2 = file.take(at + "n2.weight", {width});
    b.norm = file.take(at + "mix.norm", {b.head_dim});
    b.A_log = file.take(at + "mix.A_log", {b.value_heads});
    b.dt_bias = file.take(at + "mix.dt_bias", {gates});
    return b;
}

}  // namespace

Model load_model(const std::string& path) {
    File file(path);
    Model model;
    model.width = file.shape_of("emb.weight", 2)[1];
    model.embedding = file.take("emb.weight", {kBytes, model.width});
    model.logits = Matrix(kBytes, model.width, model.embedding);
    model.nf = file.take("nf.weight", {model.width});
    std::string layers;
    for (std::size_t i = 0; i < file.blocks(); ++i) {
        const Block& b = model.blocks.emplace_back(load_block(file, "blocks." + std::to_string(i) + ".", model.width));
        layers += (i == 0 ? "" : " ") + std::string(tidegate::name_of(b.rule)) + "(" + std::to_string(b.key_heads) +
                  "," + std::to_string(b.value_heads) + ")";
    }
    if (model.blocks.empty()) file.fail("no blocks");
    file.finish(layers);
    return model;
}

}  // namespace tinylm
