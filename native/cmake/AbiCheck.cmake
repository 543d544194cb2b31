# abi_check.c is written from the ctypes classes and compiled against the headers of this build:
# a struct field that moved is a compile error here, not a crash at run time.
set(abi_check_source "${CMAKE_CURRENT_SOURCE_DIR}/native/abi_check.c")
add_library(llama_py_abi_check OBJECT "${abi_check_source}")
# Only the include directories: linking would order this behind the libraries, and a mismatch is
# to be known before minutes of compiling.
foreach (library ggml llama mtmd)
    target_include_directories(llama_py_abi_check PRIVATE
        $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
endforeach()
target_include_directories(llama_py_abi_check PRIVATE
    "${LLAMA_PY_SOURCE_DIR}/ggml/include"
    "${CMAKE_CURRENT_SOURCE_DIR}/native/shim")
add_dependencies(ggml-base llama_py_abi_check)
# The digest of the declarations, which the loader compares before it calls anything.
set_target_properties(llama_py_abi_check PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_sources(ggml-base PRIVATE $<TARGET_OBJECTS:llama_py_abi_check>)
