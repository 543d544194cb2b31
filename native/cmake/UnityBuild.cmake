# Fewer, larger translation units where the sources allow it; upstream does so for libllama's
# models. It saves about a third of the compile time, because the headers are parsed once.
option(LLAMA_PY_UNITY_BUILD
    "Compile several files at once; off when another llama.cpp does not compile that way" ON)

# Everything but the named files is compiled in batches.
function(llama_py_unity_build target batch_size)
    if (NOT LLAMA_PY_UNITY_BUILD)
        return()
    endif()
    set_target_properties(${target} PROPERTIES
        UNITY_BUILD ON
        UNITY_BUILD_BATCH_SIZE ${batch_size}
        # A macro that several files define, each for itself.
        UNITY_BUILD_CODE_BEFORE_INCLUDE "#undef FILENAME")
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target}
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
