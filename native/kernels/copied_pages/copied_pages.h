// Included into llama-model-loader.cpp; see rule.cmake.
#ifndef LLAMA_PY_COPIED_PAGES_H
#define LLAMA_PY_COPIED_PAGES_H

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

// A tensor was copied out of a mapped file. Pages that it shares with others stay; a refusal is no fault.
static inline void llama_py_give_back(const void * data, size_t size) {
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), at = (uintptr_t) data;
    const uintptr_t begin = (at + page - 1)/page*page, end = (at + size)/page*page;
    if (begin < end) {
        (void) madvise((void *) begin, end - begin, MADV_DONTNEED);
    }
}
#else
static inline void llama_py_give_back(const void *, size_t) {}
#endif

#endif
