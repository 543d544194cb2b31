# Corrections of single files of llama.cpp, whose source is not ours to change: headers that the
# compiler includes before anything else. Each can be turned off, for another llama.cpp or compiler.
option(LLAMA_PY_AMX_TILE_CONFIG
    "Correct GCC's _tile_loadconfig in ggml's AMX code; off when GCC or llama.cpp does it" ON)
option(LLAMA_PY_TENSOR_ALIGNMENT
    "Align tensors in the CPU's buffers to cache lines; off when ggml does, or it does not compile" ON)
option(LLAMA_PY_HUGE_PAGES
    "Ask Linux for transparent huge pages for weights, cells and graphs in RAM" ON)
option(LLAMA_PY_ATTENTION_TILES
    "Choose tiles of flash attention by what tokens attend to; off when ggml does, or it does not compile" ON)
option(LLAMA_PY_ATTENTION_HEADS
    "Compute flash attention for all heads that share cells at once; needs AVX2, and LLAMA_PY_ATTENTION_TILES" ON)
option(LLAMA_PY_GELU
    "Compute GELU in vectors, in single precision; off: look it up in a table" ON)
option(LLAMA_PY_HALF_PRODUCTS
    "Multiply matrices in F16 with rows that were converted and interleaved once; needs AVX2" ON)
option(LLAMA_PY_Q8_PRODUCTS
    "Multiply matrices in Q8_0 with as many rows at once as vectors have numbers; needs VNNI" ON)
option(LLAMA_PY_PRINTS_TO_LOG
    "What llama.cpp prints on standard error goes to its log; off when it does not compile" ON)

# Call it with the target whose directory the files belong to. The CPU backend and all variants of it
# are targets of one directory: a file is changed in each of them.
function(llama_py_include_first header target)
    foreach (source IN LISTS ARGN)
        if (EXISTS "${LLAMA_PY_SOURCE_DIR}/${source}")
            set_property(SOURCE "${LLAMA_PY_SOURCE_DIR}/${source}" TARGET_DIRECTORY ${target}
                APPEND PROPERTY COMPILE_OPTIONS
                -include "${CMAKE_CURRENT_SOURCE_DIR}/cmake/${header}")
        endif()
    endforeach()
endfunction()

# The flags by which ggml turns instructions on, where it does not take those of this machine.
set(instructions "")
if (NOT GGML_NATIVE)
    foreach (each IN ITEMS AVX AVX2 FMA F16C AVX_VNNI)
        if (GGML_${each})
            string(REPLACE "_" "" flag "${each}")
            string(TOLOWER "-m${flag}" flag)
            list(APPEND instructions "${flag}")
        endif()
    endforeach()
    if (GGML_AVX512)
        list(APPEND instructions -mavx512f -mavx512cd -mavx512vl -mavx512dq -mavx512bw)
    endif()
    if (GGML_AVX512_VNNI)
        list(APPEND instructions -mavx512vnni)
    endif()
endif()

# Whether a header is compiled to anything: a condition of the preprocessor, true for a CPU that the build
# is for. A backend for each kind of CPU has every instruction in one of them.
function(llama_py_reaches variable possible condition)
    if (possible AND NOT GGML_CPU_ALL_VARIANTS)
        llama_py_compiles_for(found "${condition}" ${instructions})
        set(${variable} ${found} PARENT_SCOPE)
    else()
        set(${variable} ${possible} PARENT_SCOPE)
    endif()
endfunction()

# The same as a rule (see Rules.cmake): it has no effect with compilers, systems and CPUs where it is not
# ``possible``, and where none of the files is there.
function(llama_py_header_rule rule possible header target)
    set(sources "")
    foreach (source IN LISTS ARGN)
        if (EXISTS "${LLAMA_PY_SOURCE_DIR}/${source}")
            list(APPEND sources "${source}")
        endif()
    endforeach()
    if (NOT ${rule})
        llama_py_note_rule(${rule} "off")
    elseif (possible AND sources)
        llama_py_include_first(${header} ${target} ${ARGN})
        llama_py_note_rule(${rule} "applied")
    else()
        llama_py_note_rule(${rule} "without effect")
    endif()
endfunction()

set(gcc OFF)
set(gcc_or_clang OFF)
set(gcc_or_clang_on_linux OFF)
set(gcc_or_clang_for_x86 OFF)
if (CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(gcc ON)
endif()
if (CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT MSVC)
    set(gcc_or_clang ON)
endif()
if (CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
    set(gcc_or_clang_on_linux ON)
endif()
if (gcc_or_clang AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    set(gcc_or_clang_for_x86 ON)
endif()

# The conditions that the headers themselves ask.
llama_py_reaches(has_attention_heads ${gcc_or_clang_for_x86}
    "(defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))")
llama_py_reaches(has_gelu ${gcc_or_clang_for_x86}
    "(defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__))")
llama_py_reaches(has_half_products ${gcc_or_clang_for_x86}
    "defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))")
llama_py_reaches(has_q8_products ${gcc_or_clang_for_x86}
    "(defined(__AVX512VNNI__) && defined(__AVX512BW__)) || (defined(__AVXVNNI__) && defined(__F16C__) && defined(__FMA__))")

# Clang's _tile_loadconfig is an intrinsic that may read any memory, and needs no correction.
llama_py_header_rule(LLAMA_PY_AMX_TILE_CONFIG ${gcc} amx_tile_config.h ggml-base
    ggml/src/ggml-cpu/amx/mmq.cpp)

# Two cores of an Intel Xeon (AVX-512, AMX), GCC 12, 135M parameters in Q8_0, heads of 64, milliseconds for
# a prompt of 500 tokens, tensors at multiples of 32 / 64 bytes: flash attention 320 to 460, depending on
# n_ubatch and n_seq_max / 360; without it 480 to 640 / 490 to 515.
llama_py_header_rule(LLAMA_PY_TENSOR_ALIGNMENT ${gcc_or_clang} tensor_alignment.h ggml-base
    ggml/src/ggml-backend.cpp
    ggml/src/ggml-cpu/amx/amx.cpp
    ggml/src/ggml-cpu/repack.cpp)

# The same machine and model, seven pairs of processes of llama-bench, huge pages by small ones: replies
# 1.025 (with flash attention 1.027), prompts of 512 tokens 1.015.
llama_py_header_rule(LLAMA_PY_HUGE_PAGES ${gcc_or_clang_on_linux} huge_pages.h ggml-base
    ggml/src/ggml.c)

# Two cores of an AMD EPYC with AVX-512, GCC 12, the operation alone, one thread, microseconds without / with
# the rule: one token of 9 heads of 64, of which 3 share cells, behind 1,024: 180 / 44; of 32 heads of 128, of
# which 4 share cells, behind 4,096: 11,300 / 2,400; 64 conversations in one buffer of 2,048 cells: 2,000 / 147;
# a token of a prompt of 64 / of 512 behind 1,024: 57, 67 / 27, 33. The squared error of logits behind 700
# tokens is 50 times smaller.
llama_py_header_rule(LLAMA_PY_ATTENTION_HEADS ${has_attention_heads} attention_heads.h ggml-base
    ggml/src/ggml-cpu/ops.cpp)

# Two cores of an AMD EPYC with AVX-512, GCC 12, 135M parameters in Q8_0, heads of 64, flash attention. A turn
# of 12, 16, 20, 24, 32, 48 tokens behind 1,024, tokens per second as ggml chooses: 170, 168, 176, 176, 191,
# 184; with the rule: 164, 170, 216, 249, 280, 360. Replies to 64 conversations of 128 tokens in one buffer: 78 /
# 198 tokens per second; to 8 and 32 of them as before.
llama_py_header_rule(LLAMA_PY_ATTENTION_TILES ${gcc_or_clang} attention_tiles.h ggml-base
    ggml/src/ggml-cpu/ops.cpp)

# Two cores of an AMD EPYC with AVX-512, GCC 12, 135M parameters in Q8_0, a prompt of 512 tokens, tokens per
# second, llama.cpp's default build / with this rule and that for heads: 900 / 2,750; with VNNI of 256 bits
# (AVX-VNNI) two thirds of that.
llama_py_header_rule(LLAMA_PY_Q8_PRODUCTS ${has_q8_products} q8_products.h ggml-base
    ggml/src/ggml-cpu/llamafile/sgemm.cpp)

# The same machine, 22M parameters in F16 in the shape of MiniLM: GELU takes 11 % of the time as a table, and 1 %.
llama_py_header_rule(LLAMA_PY_GELU ${has_gelu} gelu.h ggml-base
    ggml/src/ggml-cpu/ops.cpp)

# The same machine, 22M parameters in F16 in the shape of MiniLM, sentences per second of one thread: 36 / 44.
llama_py_header_rule(LLAMA_PY_HALF_PRODUCTS ${has_half_products} half_products.h ggml-base
    ggml/src/ggml-cpu/llamafile/sgemm.cpp)

if (LLAMA_PY_PRINTS_TO_LOG AND gcc_or_clang)
    llama_py_include_first(prints_to_log.h ggml-base
        ggml/src/ggml-quants.c
        ggml/src/ggml-cpu/ggml-cpu.c
        ggml/src/ggml-cpu/amx/amx.cpp
        ggml/src/ggml-cpu/amx/mmq.cpp)
    llama_py_include_first(prints_to_log.h llama src/llama-grammar.cpp src/unicode.cpp)
    llama_py_include_first(prints_to_log.h llama_py_chat common/json-schema-to-grammar.cpp)
endif()
