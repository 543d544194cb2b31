# What llama.cpp is built with. Only defaults are set: what CMAKE_ARGS says comes first, because a
# cache variable that is already set stays as it is.
option(LLAMA_PY_PORTABLE
    "One wheel for many CPUs: the backends as plug-ins, the CPU backend once per instruction set" OFF)

if (LLAMA_PY_PORTABLE)
    set(GGML_NATIVE OFF CACHE BOOL "ggml: optimize the build for the current system")
    set(GGML_BACKEND_DL ON CACHE BOOL "ggml: build backends as dynamic libraries")
    set(GGML_CPU_ALL_VARIANTS ON CACHE BOOL "ggml: build all variants of the CPU backend")
endif()

# A wheel that adds one backend to the others (plugins/README.md).
set(LLAMA_PY_PLUGIN "" CACHE STRING "The only library that is installed, such as ggml-vulkan; empty: all of them")
set(LLAMA_PY_PLUGIN_PACKAGE "" CACHE STRING "The Python package that it is installed into")

if (LLAMA_PY_PLUGIN)
    set(GGML_CPU OFF CACHE BOOL "ggml: enable CPU backend")
    set(GGML_NATIVE OFF CACHE BOOL "ggml: optimize the build for the current system")
    set(GGML_BACKEND_DL ON CACHE BOOL "ggml: build backends as dynamic libraries")
endif()

set(BUILD_SHARED_LIBS ON CACHE BOOL "build shared libraries" FORCE)

# Only libraries. The chat code of llama.cpp's common/ is built by ChatShim.cmake, without the
# argument parsers, downloaders and the HTTP library that come with it upstream.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "llama: build common utils library" FORCE)
set(LLAMA_BUILD_MTMD ON CACHE BOOL "llama: build tools/mtmd library standalone" FORCE)
foreach (part TESTS TOOLS EXAMPLES SERVER APP UI)
    set(LLAMA_BUILD_${part} OFF CACHE BOOL "" FORCE)
endforeach()
set(GGML_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(GGML_BUILD_EXAMPLES OFF CACHE BOOL "" FORCE)

# Threads of ggml's own, kept by each context (core/threads.py). OpenMP gives every thread that calls
# it a team of its own: calls from two threads would be half as fast as calls from one.
set(GGML_OPENMP OFF CACHE BOOL "ggml: use OpenMP")

# Warnings about somebody else's source are noise here, and cost compile time.
set(LLAMA_ALL_WARNINGS OFF CACHE BOOL "llama: enable all compiler warnings")

# Upstream asks git for the commit, which would answer with that of the repository around the
# source. So it is told, and ggml finds no git to ask.
if (LLAMA_PY_SOURCE_COMMIT STREQUAL "unknown")
    set(LLAMA_BUILD_COMMIT "unknown")
else()
    string(SUBSTRING "${LLAMA_PY_SOURCE_COMMIT}" 0 9 LLAMA_BUILD_COMMIT)
endif()
# A release is named after the number of its build; of another commit, only upstream's history knows it.
if (LLAMA_PY_SOURCE_COMMIT MATCHES "^b([0-9]+)$")
    set(LLAMA_BUILD_NUMBER "${CMAKE_MATCH_1}")
else()
    set(LLAMA_BUILD_NUMBER 0)
endif()
set(GIT_EXE "" CACHE FILEPATH "git, for ggml's own version; not used" FORCE)

# The libraries find each other beside themselves, wherever the package is installed.
if (APPLE)
    set(CMAKE_INSTALL_RPATH "@loader_path")
else()
    set(CMAKE_INSTALL_RPATH "$ORIGIN")
endif()
if (LLAMA_PY_PLUGIN AND APPLE)
    set(CMAKE_INSTALL_RPATH "@loader_path/../../llama_py/lib")
elseif (LLAMA_PY_PLUGIN)
    set(CMAKE_INSTALL_RPATH "$ORIGIN/../../llama_py/lib")
endif()
# NVIDIA's own wheels (nvidia-cublas and its like) put CUDA's libraries here.
if (GGML_CUDA AND NOT APPLE)
    list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../../nvidia/cu13/lib")
endif()
# No second link at installation, and nothing of the build machine's paths in the wheel: neither
# in the run path nor in the texts of assertions.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH OFF)
if (CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT MSVC)
    set(prefix_map "-ffile-prefix-map=${LLAMA_PY_SOURCE_DIR}=llama.cpp")
    add_compile_options(
        "$<$<COMPILE_LANGUAGE:C,CXX>:${prefix_map}>"
        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${prefix_map}>")
endif()
# mingw-w64 exports all symbols of a library until one of them asks to be exported, as llama_py's own do.
if (MINGW)
    add_link_options("-Wl,--export-all-symbols")
endif()
