// Which tokens llama.cpp may take for a mark (the end of a turn, the middle of an infill ...) by their text: each
// text that it compares with has one of these beginnings, which rule.cmake checks.
#ifndef LLAMA_PY_MARKS_H
#define LLAMA_PY_MARKS_H

#include <string>

#if defined(_WIN32)
#define LLAMA_PY_FLAG __declspec(dllexport)
#else
#define LLAMA_PY_FLAG __attribute__((visibility("default")))
#endif

// A test sets it: whether every token is compared with every text, as without the rule.
extern "C" { LLAMA_PY_FLAG unsigned char llama_py_compare_all_tokens = 0; }

static inline bool llama_py_may_be_a_mark(const std::string & text) {
    const char * begin = text.c_str();
    if (begin[0] == '<' || begin[0] == '[' || llama_py_compare_all_tokens) {
        return true;
    }
    // _<EOT>, and U+2581 before a <PRE>.
    return begin[0] == '_' ? begin[1] == '<' : text.compare(0, 4, "\xe2\x96\x81<") == 0;
}

#endif
