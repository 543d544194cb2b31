/* The two steps of llama.cpp's grammar sampler, with a limit on what they may cost.
 *
 * llama.cpp follows each way of reading a text by itself, and an ambiguous grammar can have so many
 * that one token takes minutes. Here ways that have become the same are followed once, and the work
 * is counted. What the grammar allows is the same.
 */
#ifndef LLAMA_PY_GRAMMAR_H
#define LLAMA_PY_GRAMMAR_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_sampler;
struct llama_token_data_array;

/* What these functions return. Only TOO_MUCH and MISFIT set *error. */
#define LLAMA_PY_GRAMMAR_OK       0
#define LLAMA_PY_GRAMMAR_MISFIT   1
#define LLAMA_PY_GRAMMAR_TOO_MUCH 2

/* Sets the logits of candidates that do not fit to -infinity, as llama_sampler_apply does.
 *
 * grammar  a grammar sampler of llama.cpp's.
 * most     the work that this may take: about so many comparisons of a character.
 * After TOO_MUCH the candidates are as they were.
 */
LLAMA_PY_CHAT_API int32_t llama_py_grammar_apply(
        struct llama_sampler          * grammar,
        struct llama_token_data_array * candidates,
        int64_t                         most,
        char                         ** error);

/* Advances past a token, as llama_sampler_accept does, which ends the process for some tokens that
 * do not fit. After MISFIT and TOO_MUCH the grammar is where it was, unless it was a lazy one that
 * waited for its trigger: that one must not be used any more.
 */
LLAMA_PY_CHAT_API int32_t llama_py_grammar_accept(
        struct llama_sampler * grammar,
        int32_t                token,
        int64_t                most,
        char                ** error);

/* Whether a lazy grammar sampler can be made with this trigger pattern; llama.cpp would throw.
 * MISFIT if not.
 */
LLAMA_PY_CHAT_API int32_t llama_py_grammar_check_trigger(const char * pattern, char ** error);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_GRAMMAR_H */
