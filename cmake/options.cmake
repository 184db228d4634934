# Flags of our own code alone; never exported.
add_library(tidegate_options INTERFACE)
set(flags -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast
    # Products must not be contracted into FMAs behind our back: bits would differ between instruction sets.
    -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND flags -Wno-restrict)  # g++ 12 sees overlaps in std::string that are not there (GCC bug 105651)
endif()
if(PROJECT_IS_TOP_LEVEL)
    list(APPEND flags -Werror)
endif()
foreach(flag IN LISTS flags)
    target_compile_options(tidegate_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${flag}>)
endforeach()

# Kernel files are compiled once for every instruction set by Highway; -mssse3 is the baseline (g++ 12's SCALAR target
# does not compile fixed-size tags, and it is dropped where SSSE3 is given).
function(tidegate_kernel_files)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -mssse3)
    endif()
endfunction()
