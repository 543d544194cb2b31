// Whether code of ours was ever called: a flag that the library exports, and llama-py inspect reads (core/rules.py).
// For C and C++; the name is that of the rule.
#ifndef LLAMA_PY_REACHED_H
#define LLAMA_PY_REACHED_H

// One for each library, although several of its files may have it.
#if defined(_WIN32)
#define LLAMA_PY_FLAG __declspec(dllexport) __attribute__((selectany))
#else
#define LLAMA_PY_FLAG __attribute__((weak, visibility("default")))
#endif

#ifdef __cplusplus
#define LLAMA_PY_REACHABLE(rule) \
    extern "C" { LLAMA_PY_FLAG unsigned char llama_py_reached_##rule = 0; }
#else
#define LLAMA_PY_REACHABLE(rule) LLAMA_PY_FLAG unsigned char llama_py_reached_##rule = 0;
#endif

// Written once: threads that read it share its cache line.
static inline void llama_py_mark(unsigned char * reached) {
    if (!__atomic_load_n(reached, __ATOMIC_RELAXED)) {
        __atomic_store_n(reached, 1, __ATOMIC_RELAXED);
    }
}

#define LLAMA_PY_REACHED(rule) llama_py_mark(&llama_py_reached_##rule)

#endif
