// Included first into ggml-backend.cpp, whose large memsets are those that clear the cells of a context; see rule.cmake.
//
// A virtual machine may have given memory that nobody used back to its host, which then has to find each page anew when
// it is touched. That takes 6 ms for a huge page where 0.2 are usual, and less than 1 for as many small ones. So memory is
// cleared huge page by huge page, and where two of them in a row take that long, the rest gets small pages for now: huge
// ones are asked for again behind that, and Linux (khugepaged) makes them in its own time.
#ifndef LLAMA_PY_COLD_PAGES_H
#define LLAMA_PY_COLD_PAGES_H

#if defined(__linux__)
#include <cstdint>
#include <cstring>
#include <time.h>
#include <sys/mman.h>

#if defined(MADV_HUGEPAGE)
// A test sets it: how many milliseconds are long.
extern "C" { __attribute__((visibility("default"))) double llama_py_long_for_a_page = 3.0; }

static inline double llama_py_milliseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec*1e3 + now.tv_nsec/1e6;
}

static inline void * llama_py_clear(void * memory, int value, size_t size) {
    constexpr size_t PAGE = 2 << 20;
    if (size < 4*PAGE) {
        return memset(memory, value, size);
    }
    char * at = (char *) memory, * const end = at + size;
    char * next = (char *) (((uintptr_t) at + PAGE)/PAGE*PAGE);
    for (int slow = 0; at < end && slow < 2; at = next, next += PAGE) {
        next = next < end ? next : end;
        const double begin = llama_py_milliseconds();
        memset(at, value, (size_t) (next - at));
        slow = llama_py_milliseconds() - begin > llama_py_long_for_a_page ? slow + 1 : 0;
    }
    // Whole pages of the rest: what follows the buffer is not ours. A refusal is no fault.
    const size_t whole = at < end ? (size_t) (end - at)/PAGE*PAGE : 0;
    if (whole > 0 && madvise(at, whole, MADV_NOHUGEPAGE) == 0) {
        memset(at, value, whole);
        (void) madvise(at, whole, MADV_HUGEPAGE);
        at += whole;
    }
    if (at < end) {
        memset(at, value, (size_t) (end - at));
    }
    return memory;
}

#define memset(memory, value, size) llama_py_clear(memory, value, size)
#endif
#endif

#endif
