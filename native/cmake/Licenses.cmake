# llama_py/lib/licenses/: the licence of llama.cpp and of the third-party code inside it.

# Some single-file libraries carry their licence in a comment only: from `start` to the end of it.
function(llama_py_license_from_comment target path start)
    if (NOT EXISTS "${path}")
        return()
    endif()
    file(READ "${path}" text)
    string(FIND "${text}" "${start}" begin REVERSE)
    if (begin EQUAL -1)
        message(WARNING "No licence found in ${path}")
        return()
    endif()
    string(SUBSTRING "${text}" ${begin} 6000 text)
    string(REGEX REPLACE "\\*/.*" "" text "${text}")
    # Line comments: up to the first line that is none.
    string(REGEX REPLACE "\n[^/].*" "" line_comment "${text}")
    if (line_comment MATCHES "\n//")
        string(REGEX REPLACE "\n// ?" "\n" text "${line_comment}")
    endif()
    file(WRITE "${target}" "${text}\n")
endfunction()

set(licenses "${CMAKE_CURRENT_BINARY_DIR}/licenses")
set(third_party "${LLAMA_PY_SOURCE_DIR}/vendor")

foreach (entry
        "llama.cpp|LICENSE"
        "llama.cpp-AUTHORS|AUTHORS"
        "nlohmann-json|licenses/LICENSE-jsonhpp"
        "sha256|vendor/hash/sha256/LICENSE"
        "rotate-bits|vendor/hash/rotate-bits/LICENSE.md"
        "xxhash|vendor/hash/xxhash/LICENSE")
    string(REPLACE "|" ";" entry "${entry}")
    list(GET entry 0 name)
    list(GET entry 1 path)
    # A later llama.cpp may have dropped one of them; its own licence has to be there.
    if (EXISTS "${LLAMA_PY_SOURCE_DIR}/${path}" OR name STREQUAL "llama.cpp")
        configure_file("${LLAMA_PY_SOURCE_DIR}/${path}" "${licenses}/${name}.txt" COPYONLY)
    endif()
endforeach()
llama_py_license_from_comment("${licenses}/miniaudio.txt"
    "${third_party}/miniaudio/miniaudio.h" "This software is available")
llama_py_license_from_comment("${licenses}/stb_image.txt"
    "${third_party}/stb/stb_image.h" "This software is available")
llama_py_license_from_comment("${licenses}/sheredom-subprocess.txt"
    "${third_party}/sheredom/subprocess.h" "This is free and unencumbered")
llama_py_license_from_comment("${licenses}/llamafile.txt"
    "${LLAMA_PY_SOURCE_DIR}/ggml/src/ggml-cpu/llamafile/sgemm.cpp" "Copyright 2024 Mozilla")

install(DIRECTORY "${licenses}" DESTINATION "${destination}" COMPONENT llama_py)
