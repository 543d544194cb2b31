# Two cores of an AMD EPYC with AVX-512, GCC 12, 22M parameters in F16 in the shape of MiniLM: GELU takes 11 % of
# the time as a table, and 1 %.
option(LLAMA_PY_GELU
    "Compute GELU in vectors, in single precision; off: look it up in a table" ON)

llama_py_header_rule(LLAMA_PY_GELU gelu.h
    FOR ${gcc_or_clang_for_x86}
    INSTRUCTIONS
        "(defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__))"
    SOURCES ggml/src/ggml-cpu/ops.cpp)
