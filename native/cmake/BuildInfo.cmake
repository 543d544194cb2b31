# build_info.json: what the libraries beside it were built from and how.

# The value as a JSON string.
function(llama_py_json_string variable text)
    string(REPLACE "\\" "\\\\" text "${text}")
    string(REPLACE "\"" "\\\"" text "${text}")
    set(${variable} "\"${text}\"" PARENT_SCOPE)
endfunction()

# The options of what is built that are neither off nor empty, as a JSON object. Paths, and options
# of backends that are not built, stay out of it.
function(llama_py_options_json variable)
    set(json "{}")
    get_cmake_property(names CACHE_VARIABLES)
    set(wanted "NATIVE|OPENMP|LLAMAFILE|BACKEND_DL|CPU|CPU_.*|SSE42|AVX.*|BMI2|FMA|F16C|AMX.*")
    foreach (backend IN LISTS backends)
        # The variants of the CPU backend (ggml-cpu-haswell, ...) have no options of their own.
        if (NOT backend MATCHES "^ggml-cpu")
            string(REGEX REPLACE "^ggml-" "" backend "${backend}")
            string(TOUPPER "${backend}" backend)
            string(APPEND wanted "|${backend}|${backend}_.*")
        endif()
    endforeach()
    list(FILTER names INCLUDE REGEX
        "^(GGML_(${wanted})|LLAMA_PY_PORTABLE|MTMD_VIDEO|CMAKE_CUDA_ARCHITECTURES)$")
    foreach (name IN LISTS names)
        get_property(type CACHE ${name} PROPERTY TYPE)
        if (type MATCHES "^(BOOL|STRING|UNINITIALIZED)$" AND ${name})
            llama_py_json_string(value "${${name}}")
            string(JSON json SET "${json}" ${name} "${value}")
        endif()
    endforeach()
    set(${variable} "${json}" PARENT_SCOPE)
endfunction()

function(llama_py_write_build_info path)
    set(version "${SKBUILD_PROJECT_VERSION_FULL}")
    if (NOT version)  # a build by hand
        file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/llama_py/version.py" version
            REGEX "^__version__ = ")
        string(REGEX REPLACE "^__version__ = \"(.*)\"" "\\1" version "${version}")
    endif()
    set(json "{}")
    set(flags "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE}")
    string(STRIP "${flags}" flags)
    foreach (entry
            "version|${version}"
            "llama_cpp_commit|${LLAMA_PY_SOURCE_COMMIT}"
            "llama_cpp_version|${LLAMA_PY_SOURCE_VERSION}"
            "llama_cpp_origin|${LLAMA_PY_SOURCE_ORIGIN}"
            "build_type|${CMAKE_BUILD_TYPE}"
            "compiler|${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
            "compiler_flags|${flags}"
            "cmake|${CMAKE_VERSION}"
            "system|${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR}")
        string(REGEX MATCH "^[^|]*" key "${entry}")
        string(REGEX REPLACE "^[^|]*\\|" "" value "${entry}")
        llama_py_json_string(value "${value}")
        string(JSON json SET "${json}" ${key} "${value}")
    endforeach()
    list(JOIN backends "\", \"" names)
    string(JSON json SET "${json}" backends "[\"${names}\"]")
    llama_py_options_json(options)
    string(JSON json SET "${json}" options "${options}")
    llama_py_rules_json(rules)
    string(JSON json SET "${json}" rules "${rules}")
    if (GGML_CPU_ALL_VARIANTS)
        llama_py_variants_json(variants)
        string(JSON json SET "${json}" variants "${variants}")
    endif()
    file(WRITE "${path}" "${json}\n")
endfunction()
