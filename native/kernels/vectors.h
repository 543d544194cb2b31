// Vectors of single precision, as wide as the processor's: sixteen numbers with AVX-512, else eight with AVX2.
//
// A header that includes this asks for the instructions itself; without any of them there is nothing here.
#ifndef LLAMA_PY_VECTORS_H
#define LLAMA_PY_VECTORS_H

#include "ggml.h"

#include <cstdint>
#include <cstring>

#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__))

#include <immintrin.h>

namespace llama_py {

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define LLAMA_PY_WIDE

using Floats = __m512;
static constexpr int64_t WIDTH = 16;

static inline Floats load(const float * x)         { return _mm512_loadu_ps(x); }
static inline Floats load(const ggml_fp16_t * x)   { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) x)); }
static inline Floats load_aligned(const float * x) { return _mm512_load_ps(x); }
static inline Floats all(float x)                  { return _mm512_set1_ps(x); }
static inline void   store(float * to, Floats x)         { _mm512_storeu_ps(to, x); }
static inline void   store_aligned(float * to, Floats x) { _mm512_store_ps(to, x); }
// The first numbers only.
static inline void   store(float * to, Floats x, int count) {
    _mm512_mask_storeu_ps(to, (__mmask16) ((1u << count) - 1), x);
}
static inline Floats plus(Floats a, Floats b)      { return _mm512_add_ps(a, b); }
static inline Floats minus(Floats a, Floats b)     { return _mm512_sub_ps(a, b); }
static inline Floats times(Floats a, Floats b)     { return _mm512_mul_ps(a, b); }
static inline Floats by(Floats a, Floats b)        { return _mm512_div_ps(a, b); }
static inline Floats greater(Floats a, Floats b)   { return _mm512_max_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
#else
using Floats = __m256;
static constexpr int64_t WIDTH = 8;

static inline Floats load(const float * x)         { return _mm256_loadu_ps(x); }
#if defined(__F16C__)
static inline Floats load(const ggml_fp16_t * x)   { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x)); }
#endif
static inline Floats load_aligned(const float * x) { return _mm256_load_ps(x); }
static inline Floats all(float x)                  { return _mm256_set1_ps(x); }
static inline void   store(float * to, Floats x)         { _mm256_storeu_ps(to, x); }
static inline void   store_aligned(float * to, Floats x) { _mm256_store_ps(to, x); }
// The first numbers only.
static inline void   store(float * to, Floats x, int count) {
    alignas(32) float whole[8];
    _mm256_store_ps(whole, x);
    memcpy(to, whole, count*sizeof(float));
}
static inline Floats plus(Floats a, Floats b)      { return _mm256_add_ps(a, b); }
static inline Floats minus(Floats a, Floats b)     { return _mm256_sub_ps(a, b); }
static inline Floats times(Floats a, Floats b)     { return _mm256_mul_ps(a, b); }
static inline Floats by(Floats a, Floats b)        { return _mm256_div_ps(a, b); }
static inline Floats greater(Floats a, Floats b)   { return _mm256_max_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
#endif

} // namespace llama_py

#endif
#endif
