// io_copy IN OUT: reads a .safetensors or .npy file and writes it in the same format; for io_cross_check.py.
#include <cstdio>
#include <exception>
#include <string_view>

#include "io/npy.h"
#include "io/safetensors.h"

int main(int argc, char** argv) {
    if (argc != 3) return std::fputs("usage: io_copy IN OUT\n", stderr), 2;
    try {
        if (std::string_view(argv[1]).ends_with(".npy"))
            tidegate::io::write_npy(argv[2], tidegate::io::read_npy(argv[1]));
        else
            tidegate::io::write_safetensors(argv[2], tidegate::io::read_safetensors(argv[1]));
    } catch (const std::exception& e) {
        return std::fprintf(stderr, "%s\n", e.what()), 2;
    }
}
