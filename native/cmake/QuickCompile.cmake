# Less optimization for code that computes nothing: templates, parsers and JSON of llama.cpp's chat code,
# and what builds mtmd's graphs. The compiler spends most of its time there, on templates of the standard
# library that -O3 inlines and unrolls.
option(LLAMA_PY_QUICK_COMPILE
    "Compile chat code and mtmd with -O1, but for the files that compute" ON)

# Call it with the target and the files that keep the build's own level.
function(llama_py_quick_compile target)
    if (NOT LLAMA_PY_QUICK_COMPILE OR NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" OR MSVC)
        return()
    endif()
    target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O1>")
    # Options of a file come behind those of its target.
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target}
        APPEND PROPERTY COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
endfunction()
