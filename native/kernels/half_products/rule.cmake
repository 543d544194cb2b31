# Two cores of an AMD EPYC with AVX-512, GCC 12, 22M parameters in F16 in the shape of MiniLM, sentences per second
# of one thread, without / with the rule: 36 / 44.
option(LLAMA_PY_HALF_PRODUCTS
    "Multiply matrices in F16 with rows that were converted and interleaved once; needs AVX2" ON)

llama_py_header_rule(LLAMA_PY_HALF_PRODUCTS half_products.h
    FOR ${gcc_or_clang_for_x86}
    INSTRUCTIONS
        "(defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))"
    SOURCES ggml/src/ggml-cpu/llamafile/sgemm.cpp)
