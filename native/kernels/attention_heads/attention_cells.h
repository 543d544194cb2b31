// Included by attention_heads.h: how the numbers of a cell become single precision, whatever its type.
#ifndef LLAMA_PY_ATTENTION_CELLS_H
#define LLAMA_PY_ATTENTION_CELLS_H

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

namespace llama_py {

using Widen = void (*)(const char * cell, int64_t n, float * to);

template <typename T>
static void widen_numbers(const char * cell, int64_t n, float * to) {
    for (int64_t d = 0; d < n; d += WIDTH) {
        store(to + d, load((const T *) cell + d));
    }
}

// Sixteen bytes with a sign, times a scale.
static inline void store_bytes(float * to, __m128i bytes, Floats scale) {
#ifdef LLAMA_PY_WIDE
    store(to, times(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale));
#else
    store(to, times(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale));
    store(to + 8, times(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))), scale));
#endif
}

static void widen_bf16(const char * cell, int64_t n, float * to) {
    for (int64_t d = 0; d < n; d += 8) {
        const __m128i words = _mm_loadu_si128((const __m128i *) (cell + 2*d));
        _mm256_storeu_si256((__m256i *) (to + d), _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
    }
}

static void widen_q8_0(const char * cell, int64_t n, float * to) {
    const block_q8_0 * block = (const block_q8_0 *) cell;
    for (int64_t d = 0; d < n; d += QK8_0, ++block) {
        const Floats scale = all(_cvtsh_ss(block->d));
        store_bytes(to + d, _mm_loadu_si128((const __m128i *) block->qs), scale);
        store_bytes(to + d + 16, _mm_loadu_si128((const __m128i *) (block->qs + 16)), scale);
    }
}

// The first half of a block is in the low bits, the second one in the high bits.
static void widen_q4_0(const char * cell, int64_t n, float * to) {
    const block_q4_0 * block = (const block_q4_0 *) cell;
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i offset = _mm_set1_epi8(8);
    for (int64_t d = 0; d < n; d += QK4_0, ++block) {
        const Floats scale = all(_cvtsh_ss(block->d));
        const __m128i bits = _mm_loadu_si128((const __m128i *) block->qs);
        store_bytes(to + d, _mm_sub_epi8(_mm_and_si128(bits, mask), offset), scale);
        store_bytes(to + d + 16, _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(bits, 4), mask), offset), scale);
    }
}

template <ggml_type type>
static void widen_by_ggml(const char * cell, int64_t n, float * to) {
    ggml_get_type_traits(type)->to_float(cell, to, n);
}

// Or none, for a type that no cell has.
static Widen widens(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:    return widen_numbers<float>;
        case GGML_TYPE_F16:    return widen_numbers<ggml_fp16_t>;
        case GGML_TYPE_BF16:   return widen_bf16;
        case GGML_TYPE_Q8_0:   return widen_q8_0;
        case GGML_TYPE_Q4_0:   return widen_q4_0;
        case GGML_TYPE_Q4_1:   return widen_by_ggml<GGML_TYPE_Q4_1>;
        case GGML_TYPE_Q5_0:   return widen_by_ggml<GGML_TYPE_Q5_0>;
        case GGML_TYPE_Q5_1:   return widen_by_ggml<GGML_TYPE_Q5_1>;
        case GGML_TYPE_IQ4_NL: return widen_by_ggml<GGML_TYPE_IQ4_NL>;
        default:               return nullptr;
    }
}

} // namespace llama_py

#endif
