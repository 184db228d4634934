# Flags of our own code alone; never exported.
add_library(tidegate_options INTERFACE)
target_compile_options(tidegate_options INTERFACE
    -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast
    # Products must not be contracted into FMAs behind our back: bits would differ between instruction sets.
    -ffp-contract=off)
if(PROJECT_IS_TOP_LEVEL)
    target_compile_options(tidegate_options INTERFACE -Werror)
endif()
