# The CUDA backend, or a stub that says it is absent. Kernels are compiled ahead of time, for Hopper alone.
if(NOT TIDEGATE_CUDA)
    target_sources(tidegate PRIVATE src/cuda/absent.cpp)
    return()
endif()
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# nvcc knows C++20; CMake 3.25 does not know that it does.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
file(GLOB cuda CONFIGURE_DEPENDS src/cuda/*/*.cu)
add_library(tidegate_cuda OBJECT ${cuda})
target_include_directories(tidegate_cuda PRIVATE src include ${PROJECT_BINARY_DIR}/generated)
target_compile_options(tidegate_cuda PRIVATE --expt-relaxed-constexpr
    -Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow,-Werror -Werror=all-warnings)
target_sources(tidegate PRIVATE $<TARGET_OBJECTS:tidegate_cuda>)
target_link_libraries(tidegate PRIVATE CUDA::cudart_static)
