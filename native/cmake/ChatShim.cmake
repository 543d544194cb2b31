# libllama_py_chat: a C ABI over llama.cpp's chat code, which is C++ only.
#
# The part of llama.cpp's common/ that it needs is compiled into it, and hidden: the wheel gets
# one small library instead of libllama-common with its thousands of exported symbols, and the
# build is spared argument parsers, downloaders and an HTTP library.
find_package(Threads REQUIRED)

set(shim_dir "${CMAKE_CURRENT_SOURCE_DIR}/native/shim")
set(common_dir "${LLAMA_PY_SOURCE_DIR}/common")

include("${common_dir}/parsers/sources.cmake")
file(GLOB common_chat CONFIGURE_DEPENDS "${common_dir}/chat*.cpp" "${common_dir}/json*.cpp")
# Compiled with other lines (TemplateRenderer.cmake), and without common/jinja.
list(REMOVE_ITEM common_chat "${common_dir}/chat.cpp")
set(common_helpers common.cpp log.cpp peg-parser.cpp trie.cpp unicode.cpp)

# common.cpp also has functions that load models and draft tokens. Nothing here calls them, and
# these linkers drop them before they look for what they would need. Another linker has to be
# given the rest.
if (CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT WIN32)
    set(drops_unused_code ON)
else()
    set(drops_unused_code OFF)
    list(APPEND common_helpers fit.cpp llguidance.cpp ngram-cache.cpp ngram-map.cpp ngram-mod.cpp
        reasoning-budget.cpp sampling.cpp speculative.cpp)
endif()
list(TRANSFORM common_helpers PREPEND "${common_dir}/")

add_library(llama_py_chat SHARED
    "${shim_dir}/llama_py_chat.cpp"
    "${shim_dir}/llama_py_abort.cpp"
    "${shim_dir}/llama_py_arena.cpp"
    "${shim_dir}/llama_py_grammar.cpp"
    "${shim_dir}/llama_py_importance.cpp"
    "${shim_dir}/llama_py_loading.cpp"
    "${shim_dir}/llama_py_log.cpp"
    "${shim_dir}/llama_py_logits.cpp"
    "${shim_dir}/llama_py_memory.cpp"
    "${shim_dir}/llama_py_nextn.cpp"
    "${shim_dir}/llama_py_steps.cpp"
    "${shim_dir}/llama_py_strings.cpp"
    "${shim_dir}/llama_py_vocab.cpp"
    ${common_helpers}
    ${common_chat}
    ${LLAMA_CHAT_PARSERS_SOURCES})
# src/ for the struct that holds a grammar's state (llama-grammar.h).
target_include_directories(llama_py_chat PRIVATE
    "${shim_dir}" "${common_dir}" "${LLAMA_PY_SOURCE_DIR}/src")
target_link_libraries(llama_py_chat PRIVATE llama vendor::nlohmann vendor::sheredom Threads::Threads)
target_compile_features(llama_py_chat PRIVATE cxx_std_17)
target_compile_definitions(llama_py_chat PRIVATE LLAMA_PY_CHAT_BUILD)
set_target_properties(llama_py_chat PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
# Explicit specializations have to come before any use: these are compiled by themselves.
llama_py_unity_build(llama_py_chat 12
    "${shim_dir}/llama_py_chat.cpp"
    "${shim_dir}/llama_py_grammar.cpp"
    "${common_dir}/common.cpp"
    "${common_dir}/json.cpp")

# The work of each token.
llama_py_quick_compile(llama_py_chat
    "${shim_dir}/llama_py_chat.cpp"
    "${shim_dir}/llama_py_grammar.cpp"
    "${shim_dir}/llama_py_logits.cpp")
if (CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT MSVC)
    # Else GCC does not vectorize a loop that compares.
    set_property(SOURCE "${shim_dir}/llama_py_logits.cpp"
        APPEND PROPERTY COMPILE_OPTIONS -fno-trapping-math)
endif()

if (drops_unused_code)
    target_compile_options(llama_py_chat PRIVATE -ffunction-sections -fdata-sections)
    if (APPLE)
        target_link_options(llama_py_chat PRIVATE LINKER:-dead_strip)
    else()
        # A missing function is an error here, not when the library is loaded; and templates of
        # the standard library, which are visible whatever the preset says, stay inside.
        set(exports "${shim_dir}/llama_py_chat.map")
        target_link_options(llama_py_chat PRIVATE
            LINKER:--gc-sections LINKER:-z,defs "LINKER:--version-script=${exports}")
        set_property(TARGET llama_py_chat APPEND PROPERTY LINK_DEPENDS "${exports}")
    endif()
endif()
