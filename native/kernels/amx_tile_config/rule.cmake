# Clang's _tile_loadconfig is an intrinsic that may read any memory, and needs no correction.
option(LLAMA_PY_AMX_TILE_CONFIG
    "Correct GCC's _tile_loadconfig in ggml's AMX code; off when GCC or llama.cpp does it" ON)

llama_py_header_rule(LLAMA_PY_AMX_TILE_CONFIG amx_tile_config.h
    FOR ${gcc}
    INSTRUCTIONS "defined(__AMX_TILE__)"
    SOURCES ggml/src/ggml-cpu/amx/mmq.cpp)
