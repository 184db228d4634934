# Sets TIDEGATE_PYTHON to a Python that has numpy and safetensors, or to nothing and says so. scripts/setup.sh makes one
# in build/venv; -DPython_EXECUTABLE=... names another. Looked up anew by every configure, never cached.
set(TIDEGATE_PYTHON "")
find_program(TIDEGATE_SYSTEM_PYTHON python3)
foreach(candidate IN ITEMS "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/build/venv/bin/python" "${TIDEGATE_SYSTEM_PYTHON}")
    if(NOT TIDEGATE_PYTHON AND EXISTS "${candidate}")
        execute_process(COMMAND "${candidate}" -c "import numpy, safetensors.numpy"
            RESULT_VARIABLE lacking OUTPUT_QUIET ERROR_QUIET)
        if(lacking EQUAL 0)
            set(TIDEGATE_PYTHON "${candidate}")
        endif()
    endif()
endforeach()
if(TIDEGATE_PYTHON)
    message(STATUS "Python tests: with ${TIDEGATE_PYTHON}")
else()
    message(STATUS "Python tests: skipped, no Python with numpy and safetensors (scripts/setup.sh test makes one)")
endif()
