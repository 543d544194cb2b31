/* Walking the string arrays of a GGUF file: 150,000 tokens of a vocabulary, and as many merges.
 *
 * Each string is its length, eight bytes (little-endian), and its bytes. Nothing is read outside
 * of data[0 .. size - 1], whatever the lengths are.
 */
#ifndef LLAMA_PY_STRINGS_H
#define LLAMA_PY_STRINGS_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the last of `count` strings ends, of which the first begins at `at`; -1 if the data end
 * before that. */
LLAMA_PY_CHAT_API int64_t llama_py_strings_end(
        const void * data,
        uint64_t     size,
        uint64_t     at,
        uint64_t     count);

/* The place (of its length) of a string that occurs before, too; -1 if there is none, -2 if there is
 * no memory to find out.
 *
 * Strings are compared as C strings, up to their first NUL, and empty ones are never equal: that is
 * how llama.cpp's vocabulary sees its tokens. The strings lie within the data. */
LLAMA_PY_CHAT_API int64_t llama_py_strings_twice(
        const void * data,
        uint64_t     size,
        uint64_t     at,
        uint64_t     count);

/* The least byte that begins one of the strings, and is none of them by itself; -1 if there is none.
 *
 * The strings are those of an RWKV vocabulary, in which \x41 and \n are one byte each. They lie
 * within the data. */
LLAMA_PY_CHAT_API int32_t llama_py_strings_unspelled(
        const void * data,
        uint64_t     size,
        uint64_t     at,
        uint64_t     count);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_STRINGS_H */
