# Without AVX512-FP16. With it, ggml's loops over half-precision numbers take 128 values a turn
# (GGML_F16_STEP in simd-mappings.h) and leave what remains to a scalar loop: all of a head of 64.
# Without it they take 64, and convert to single precision, which rounds less.
#
# Measured on two cores of an Intel Xeon (Sapphire Rapids), GCC 12, 135M parameters in Q8_0, heads of 64,
# flash attention, tokens per second with the instructions / without them: generating at depth 1,024
# 26-31 / 74, at 2,048 19 / 52, at 4,096 9.2 / 26; a prompt of 512 at depth 0 1,047 / 1,253. Heads of 256:
# 1.3 to 1.8 times as fast without. The logits were the same to all digits compared.
#
# It can go when ggml takes remainders of fewer than GGML_F16_STEP values with vectors as well;
# test_no_avx512fp16.py says whether the step is still longer than a head.
option(LLAMA_PY_NO_AVX512FP16
    "Compile the CPU backend without AVX512-FP16, with which heads of 64 are slow" ON)

function(llama_py_no_avx512fp16)
    if (NOT LLAMA_PY_NO_AVX512FP16)
        llama_py_note_rule(LLAMA_PY_NO_AVX512FP16 "off")
        return()
    endif()
    llama_py_compiles_for(LLAMA_PY_HAS_AVX512FP16 "defined(__AVX512FP16__)")
    if (NOT LLAMA_PY_HAS_AVX512FP16)
        llama_py_note_rule(LLAMA_PY_NO_AVX512FP16 "without effect")
        return()
    endif()
    foreach (backend IN LISTS GGML_AVAILABLE_BACKENDS)
        if (TARGET ${backend} AND backend MATCHES "^ggml-cpu")
            target_compile_options(${backend} PRIVATE
                "$<$<COMPILE_LANGUAGE:C,CXX>:-mno-avx512fp16>")
        endif()
    endforeach()
    llama_py_note_rule(LLAMA_PY_NO_AVX512FP16 "applied")
endfunction()

llama_py_no_avx512fp16()
