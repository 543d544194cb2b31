/* What is asked of every token of a vocabulary: one call instead of one for each. */
#ifndef LLAMA_PY_VOCAB_H
#define LLAMA_PY_VOCAB_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_vocab;

/* Attributes (enum llama_token_attr) of the tokens 0 .. n - 1. */
LLAMA_PY_CHAT_API void llama_py_vocab_attributes(
        const struct llama_vocab * vocab,
        int32_t                    n,
        int32_t                  * attributes);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_VOCAB_H */
