/* What log-probabilities, and the choice of a token, need of one row of logits, in one pass.
 *
 * A row has up to 260 000 entries, and it is read just after the weights have passed through the
 * caches: each pass over it, and each function that makes one, comes from memory again.
 */
#ifndef LLAMA_PY_LOGITS_H
#define LLAMA_PY_LOGITS_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

enum llama_py_logits_result {
    LLAMA_PY_LOGITS_OK    = 0,
    /* A NaN is among them, or the largest is infinite: nothing was written that means anything. */
    LLAMA_PY_LOGITS_WEIRD = 1,
};

/* The logarithm of the sum of exp(logits[i]), and the ids of the largest entries.
 *
 * The k largest come first in ids, the largest first, equal ones by id; k must be between 0 and n.
 * normalizer may be NULL, and then the logarithm is not computed.
 */
LLAMA_PY_CHAT_API int32_t llama_py_logits_top(
        const float * logits,
        int64_t       n,
        int32_t       k,
        int32_t     * ids,
        double      * normalizer);

/* The id of the largest entry, the first of equal ones; -1 if a NaN is among them, or all are -inf. */
LLAMA_PY_CHAT_API int32_t llama_py_logits_highest(const float * logits, int32_t n);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_LOGITS_H */
