# Rules: how this build differs from llama.cpp's own, because measurements or a fault of a compiler say
# so. Each has an option that turns it off, and build_info.json tells what became of it (llama-py inspect
# shows it):
#
#     applied          it is part of this build
#     without effect   this compiler, or the CPU that the build is for, does not need it
#     off              its option says so

function(llama_py_note_rule name state)
    set_property(GLOBAL APPEND PROPERTY LLAMA_PY_RULES "${name}|${state}")
    message(STATUS "Rule ${name}: ${state}")
endfunction()

# The rules as a JSON object: name -> state.
function(llama_py_rules_json variable)
    set(json "{}")
    get_property(rules GLOBAL PROPERTY LLAMA_PY_RULES)
    foreach (rule IN LISTS rules)
        string(REPLACE "|" ";" rule "${rule}")
        list(GET rule 0 name)
        list(GET rule 1 state)
        string(JSON json SET "${json}" ${name} "\"${state}\"")
    endforeach()
    set(${variable} "${json}" PARENT_SCOPE)
endfunction()

# Whether the CPU that the build is for satisfies a condition of the preprocessor. Further arguments are
# flags that the compiler gets elsewhere.
function(llama_py_compiles_for variable condition)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_QUIET ON)
    if (GGML_NATIVE AND NOT CMAKE_CROSSCOMPILING AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        set(CMAKE_REQUIRED_FLAGS "-march=native")
    endif()
    string(JOIN " " CMAKE_REQUIRED_FLAGS ${CMAKE_REQUIRED_FLAGS} ${ARGN})
    unset(${variable} CACHE)  # flags may have changed since the last time
    check_cxx_source_compiles("
        #if !(${condition})
        #error not so
        #endif
        int main() { return 0; }" ${variable})
endfunction()

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
# tests/native/test_avx512fp16.py says whether the step is still longer than a head.
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

# Prefetches in llamafile's kernels. For two or more columns (streams that generate together) they read
# four rows of weights side by side, and short rows, of 612 bytes in a model of 135M parameters, are over
# before the processor's own prefetcher has noticed them.
#
# Measured on two cores of an AMD EPYC with AVX2, GCC 12, 135M parameters in Q8_0, tokens per second of 1,
# 2, 4, 8 and 16 streams, without prefetches 126, 93, 126, 222, 385 / with them 127, 116, 171, 252, 390.
# With AVX-512 there is nothing to be had: 74, 114, 173, 244, 312 / 75, 114, 176, 244, 313 on two cores of
# an Intel Xeon without its AMX; with it, prompts without flash attention are 1 to 2 % slower. So this is
# for CPUs without AVX-512.
#
# It can go when the kernels prefetch themselves.
option(LLAMA_PY_LLAMAFILE_PREFETCH
    "Compile llamafile's kernels with prefetches, without which few streams are slow on CPUs with AVX2" ON)

function(llama_py_llamafile_prefetch)
    set(source "${LLAMA_PY_SOURCE_DIR}/ggml/src/ggml-cpu/llamafile/sgemm.cpp")
    if (NOT LLAMA_PY_LLAMAFILE_PREFETCH)
        llama_py_note_rule(LLAMA_PY_LLAMAFILE_PREFETCH "off")
        return()
    endif()
    llama_py_compiles_for(LLAMA_PY_HAS_AVX2_ONLY "defined(__AVX2__) && !defined(__AVX512F__)")
    if (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND LLAMA_PY_HAS_AVX2_ONLY AND EXISTS "${source}")
        set_property(SOURCE "${source}" TARGET_DIRECTORY ggml-base
            APPEND PROPERTY COMPILE_OPTIONS -fprefetch-loop-arrays)
        llama_py_note_rule(LLAMA_PY_LLAMAFILE_PREFETCH "applied")
    else()
        llama_py_note_rule(LLAMA_PY_LLAMAFILE_PREFETCH "without effect")
    endif()
endfunction()

llama_py_llamafile_prefetch()
