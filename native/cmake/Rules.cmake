# Rules: how this build differs from llama.cpp's own, because measurements or a fault of a compiler say
# so. Each is a folder of native/kernels/, whose rule.cmake has an option that turns it off, the condition under
# which it has an effect, and its figures; a folder that is removed is a rule that is not there. build_info.json
# tells what became of each (llama-py inspect shows it):
#
#     applied          it is part of this build
#     without effect   this compiler, or the CPU that the build is for, does not need it
#     off              its option says so
#
# What llama.cpp no longer calls, although it is part of the build, is not known here: kernels/reached.h.

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

# The targets of the CPU's backend that are for one kind of CPU each (GGML_CPU_ALL_VARIANTS).
function(llama_py_variants variable)
    set(found "")
    foreach (backend IN LISTS GGML_AVAILABLE_BACKENDS)
        if (TARGET ${backend} AND backend MATCHES "^ggml-cpu-")
            list(APPEND found ${backend})
        endif()
    endforeach()
    set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# Those of them for whose CPU a condition of the preprocessor is satisfied.
function(llama_py_variants_with variable condition)
    llama_py_variants(variants)
    set(found "")
    foreach (variant IN LISTS variants)
        llama_py_preprocessed(words ${variant} "#if ${condition}\nLLAMA_PY_SO\n#endif\n")
        if (words)
            list(APPEND found ${variant})
        endif()
    endforeach()
    set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# The variants as a JSON object: name -> the rules that are part of the build, and not of this variant, because its
# CPU lacks instructions. Which variant a process loads is known at run time.
function(llama_py_variants_json variable)
    get_property(conditions GLOBAL PROPERTY LLAMA_PY_CONDITIONS)
    set(source "")
    foreach (entry IN LISTS conditions)
        string(REGEX MATCH "^[^|]*" rule "${entry}")
        string(LENGTH "${rule}|" behind)
        string(SUBSTRING "${entry}" ${behind} -1 condition)
        if (condition)
            string(APPEND source "#if !(${condition})\n${rule}\n#endif\n")
        endif()
    endforeach()
    llama_py_variants(variants)
    set(json "{}")
    foreach (variant IN LISTS variants)
        set(without "{}")
        llama_py_preprocessed(rules ${variant} "${source}")
        foreach (rule IN LISTS rules)
            string(JSON without SET "${without}" ${rule} "\"without effect\"")
        endforeach()
        string(REPLACE "ggml-cpu-" "" name ${variant})
        string(JSON json SET "${json}" ${name} "${without}")
    endforeach()
    set(${variable} "${json}" PARENT_SCOPE)
endfunction()

# The words LLAMA_PY_... that the preprocessor leaves of a text, with the instructions of a target.
function(llama_py_preprocessed variable target text)
    set(${variable} "" PARENT_SCOPE)
    if (NOT gcc_or_clang)
        return()  # no rule has a condition there
    endif()
    set(file "${CMAKE_CURRENT_BINARY_DIR}/condition.cpp")
    file(WRITE "${file}" "${text}")
    separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_FLAGS}")
    get_target_property(options ${target} COMPILE_OPTIONS)
    list(FILTER options INCLUDE REGEX "^-m")
    if (CMAKE_CXX_COMPILER_TARGET)
        list(APPEND flags "--target=${CMAKE_CXX_COMPILER_TARGET}")
    endif()
    execute_process(
        COMMAND "${CMAKE_CXX_COMPILER}" ${flags} ${options} -E -P "${file}"
        OUTPUT_VARIABLE left
        RESULT_VARIABLE status)
    if (NOT status EQUAL 0)
        message(FATAL_ERROR "The preprocessor does not take the options of ${target}: ${options}")
    endif()
    string(REGEX MATCHALL "LLAMA_PY_[A-Z0-9_]+" words "${left}")
    set(${variable} "${words}" PARENT_SCOPE)
endfunction()

# Which compilers, systems and processors the build is for: rules ask these.
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

# Whether code that the preprocessor guards by a condition is compiled to anything, on the CPU that the build is
# for. A backend for each kind of CPU has every instruction in one of them.
function(llama_py_reaches variable condition)
    if (GGML_CPU_ALL_VARIANTS OR condition STREQUAL "")
        set(${variable} ON PARENT_SCOPE)
    else()
        llama_py_compiles_for(found "${condition}" ${instructions})
        set(${variable} ${found} PARENT_SCOPE)
    endif()
endfunction()
