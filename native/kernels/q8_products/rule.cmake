# Two cores of an AMD EPYC with AVX-512, GCC 12, 135M parameters in Q8_0, a prompt of 512 tokens, tokens per
# second, llama.cpp's default build / with this rule and that for heads: 900 / 2,750; with VNNI of 256 bits
# (AVX-VNNI) two thirds of that.
option(LLAMA_PY_Q8_PRODUCTS
    "Multiply matrices in Q8_0 with as many rows at once as vectors have numbers; needs AVX2" ON)

llama_py_header_rule(LLAMA_PY_Q8_PRODUCTS q8_products.h
    FOR ${gcc_or_clang_for_x86}
    INSTRUCTIONS
        "(defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)) || (!(defined(__AVX512F__) && defined(__AVX512DQ__)) && defined(__AVX2__) && defined(__F16C__) && defined(__FMA__))"
    SOURCES ggml/src/ggml-cpu/llamafile/sgemm.cpp)
