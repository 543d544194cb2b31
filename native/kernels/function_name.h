// For headers that change a macro within some functions of a file only.
#ifndef LLAMA_PY_FUNCTION_NAME_H
#define LLAMA_PY_FUNCTION_NAME_H

static constexpr bool llama_py_ends_in(const char * text, const char * end) {
    const char * t = text;
    const char * e = end;
    while (*t) {
        ++t;
    }
    while (*e) {
        ++e;
    }
    while (t != text && e != end && t[-1] == e[-1]) {
        --t;
        --e;
    }
    return e == end;
}

#endif
