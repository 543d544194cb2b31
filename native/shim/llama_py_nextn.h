/* The hidden states that a model's next-token heads (MTP) start from.
 *
 * llama.cpp has these functions as C++ only, in a header that is not installed (src/llama-ext.h).
 */
#ifndef LLAMA_PY_NEXTN_H
#define LLAMA_PY_NEXTN_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context;

/* Lets each llama_decode from now on give hidden states, or not.
 *
 * every  those of all tokens of a batch; else of the tokens that are outputs.
 */
LLAMA_PY_CHAT_API void llama_py_nextn_enable(struct llama_context * context, bool on, bool every);

/* Of the last batch, with `every`: a row of llama_model_n_embd_out() floats for each token, in the
 * order of the batch. Else, and where there are none, NULL. They last until the next llama_decode.
 */
LLAMA_PY_CHAT_API const float * llama_py_nextn_rows(struct llama_context * context);

/* Of the last batch, without `every`: the row of its index-th token, or NULL if that is no output. */
LLAMA_PY_CHAT_API const float * llama_py_nextn_row(struct llama_context * context, int32_t index);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_NEXTN_H */
