# mingw-w64 before 11 has no THREAD_POWER_THROTTLING_STATE, which ggml's threads use for Windows 8 and newer. One file
# is compiled for Windows 7 there: its threads work the same, and Windows may park their cores.
include(CheckCSourceCompiles)

if (MINGW)
    check_c_source_compiles("
        #include <windows.h>
        int main(void) { THREAD_POWER_THROTTLING_STATE t; ZeroMemory(&t, sizeof t); return 0; }
        " LLAMA_PY_HAS_THREAD_THROTTLING)
    if (NOT LLAMA_PY_HAS_THREAD_THROTTLING)
        # The backend for the CPU, and all variants of it, belong to the directory of this target.
        set_property(SOURCE "${LLAMA_PY_SOURCE_DIR}/ggml/src/ggml-cpu/ggml-cpu.c" TARGET_DIRECTORY ggml-base
            APPEND PROPERTY COMPILE_DEFINITIONS "_WIN32_WINNT=0x0601")
    endif()
endif()
