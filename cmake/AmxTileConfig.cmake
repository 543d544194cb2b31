# Keeps libraries that GCC compiles alive on CPUs with AMX: amx_tile_config.h says why and how long.
#
# Clang's _tile_loadconfig is an intrinsic that may read any memory, and needs none of this.
option(LLAMA_PY_AMX_TILE_CONFIG
    "Correct GCC's _tile_loadconfig in ggml's AMX code; off when GCC or llama.cpp does it" ON)

set(amx_source "${LLAMA_PY_SOURCE_DIR}/ggml/src/ggml-cpu/amx/mmq.cpp")
if (LLAMA_PY_AMX_TILE_CONFIG AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND EXISTS "${amx_source}")
    # The CPU backend and all variants of it are targets of one directory: this reaches each of them.
    set_property(SOURCE "${amx_source}" TARGET_DIRECTORY ggml-base APPEND PROPERTY
        COMPILE_OPTIONS -include "${CMAKE_CURRENT_SOURCE_DIR}/cmake/amx_tile_config.h")
endif()
