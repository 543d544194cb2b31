// Included first into those files of llama.cpp that print on standard error in a program's normal
// life (rule.cmake names them): what they say goes to ggml's log instead, from which Python
// gets it. A library prints nothing, and reasons belong into exceptions.
//
// Files that print only while the process ends are not among them.
#ifndef LLAMA_PY_PRINTS_TO_LOG_H
#define LLAMA_PY_PRINTS_TO_LOG_H

#ifdef __cplusplus
#include <cstdio>  // which undefines the names of macros
extern "C" {
#else
#include <stdio.h>
#endif

#include "ggml.h"

// ggml-impl.h, exported by ggml-base
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
void ggml_log_internal(enum ggml_log_level level, const char * format, ...);

#ifdef __cplusplus
}
#endif

#undef fprintf
#define fprintf(stream, ...)                                                                      \
    ((stream) == stderr ? (ggml_log_internal(GGML_LOG_LEVEL_ERROR, __VA_ARGS__), 0)               \
                        : (fprintf)((stream), __VA_ARGS__))

#endif
