// Vectors of panels.h: a number is a row of a panel. There are as many rows as a register has numbers of 32 bits,
// sixteen with AVX-512 and VNNI, else eight with AVX2, or with AVX-VNNI.
//
// LLAMA_PY_PANELS says that the CPU that this is compiled for has what one of them needs.
#ifndef LLAMA_PY_PANEL_VECTORS_H
#define LLAMA_PY_PANEL_VECTORS_H

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define LLAMA_PY_PANELS
#define LLAMA_PY_PANELS_WIDE
#define LLAMA_PY_PANELS_VNNI
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LLAMA_PY_PANELS
#ifdef __AVXVNNI__
#define LLAMA_PY_PANELS_VNNI
#endif
#endif

#ifdef LLAMA_PY_PANELS

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace llama_py_panels {

#define FORCED_INLINE inline __attribute__((always_inline))

#ifdef LLAMA_PY_PANELS_WIDE

static constexpr int ROWS = 16;

using Integers = __m512i;
using Floats   = __m512;

static FORCED_INLINE Integers load(const uint8_t * x)           { return _mm512_loadu_si512(x); }
static FORCED_INLINE Integers bytes(int x)                      { return _mm512_set1_epi8((char) x); }
static FORCED_INLINE Integers all(int32_t x)                    { return _mm512_set1_epi32(x); }
static FORCED_INLINE Integers both(Integers a, Integers b)      { return _mm512_and_si512(a, b); }
static FORCED_INLINE Integers either(Integers a, Integers b)    { return _mm512_or_si512(a, b); }
static FORCED_INLINE Integers minus(Integers a, Integers b)     { return _mm512_sub_epi32(a, b); }
// `a`, and those bits of `b` where the mask has ones.
static FORCED_INLINE Integers with_bits(Integers a, Integers b, Integers mask) {
    return _mm512_ternarylogic_epi64(a, b, mask, 0xf8);
}
// Bits of `a` where the mask has ones, else those of `b`.
static FORCED_INLINE Integers choose(Integers mask, Integers a, Integers b) {
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}
// Words, and whole numbers, by `n` bits; those that go to another byte are for others to mask.
static FORCED_INLINE Integers left(Integers x, int n)           { return _mm512_slli_epi16(x, n); }
static FORCED_INLINE Integers right(Integers x, int n)          { return _mm512_srli_epi16(x, n); }
static FORCED_INLINE Integers left_whole(Integers x, int n)     { return _mm512_slli_epi32(x, n); }
static FORCED_INLINE Integers right_whole(Integers x, int n)    { return _mm512_srli_epi32(x, n); }
static FORCED_INLINE Integers look_up(__m128i table, Integers places) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), places);
}
// A number of each row.
static FORCED_INLINE Integers widen_bytes(const uint8_t * x) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) x));
}
static FORCED_INLINE Integers widen_signed(const uint8_t * x) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) x));
}
static FORCED_INLINE Integers widen_words(const uint8_t * x) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) x));
}
static FORCED_INLINE Floats halves(const uint8_t * x) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) x));
}
// Bytes of a vector that has four for each row, one after the other for all rows.
template <int quarter> static FORCED_INLINE Integers widen(Integers x) {
    return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(x, quarter));
}

static FORCED_INLINE Floats all(float x)                        { return _mm512_set1_ps(x); }
static FORCED_INLINE Floats number(Integers x)                  { return _mm512_cvtepi32_ps(x); }
static FORCED_INLINE Floats product(Floats a, Floats b)         { return _mm512_mul_ps(a, b); }
static FORCED_INLINE Floats fma(Floats a, Floats b, Floats c)   { return _mm512_fmadd_ps(a, b, c); }
static FORCED_INLINE Floats fnma(Floats a, Floats b, Floats c)  { return _mm512_fnmadd_ps(a, b, c); }
static FORCED_INLINE void   store(float * to, Floats x)         { _mm512_storeu_ps(to, x); }

// Compilers load what goes to all numbers by an instruction of its own: half of those that are executed.
static FORCED_INLINE Integers add_products(Integers sum, Integers weights, const int8_t * four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*(const int32_t *) four));
    return sum;
}
static FORCED_INLINE Integers add_word_products(Integers sum, Integers words, const int16_t * two) {
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(words), "m"(*(const int32_t *) two));
    return sum;
}

// The greatest magnitude of a vector's numbers, and of those of a column.
static FORCED_INLINE Floats greater(Floats a, const float * x)  { return _mm512_max_ps(a, _mm512_abs_ps(_mm512_loadu_ps(x))); }
static FORCED_INLINE float  greatest(Floats x)                  { return _mm512_reduce_max_ps(x); }
// Rounds sixteen numbers, by a scale, to bytes; returns their sum.
static FORCED_INLINE int round_16(const float * x, float scale, int8_t * to) {
    const Integers q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(scale)));
    _mm_storeu_si128((__m128i *) to, _mm512_cvtsepi32_epi8(q));
    return _mm512_reduce_add_epi32(q);
}

#else

static constexpr int ROWS = 8;

using Integers = __m256i;
using Floats   = __m256;

static FORCED_INLINE Integers load(const uint8_t * x)           { return _mm256_loadu_si256((const __m256i *) x); }
static FORCED_INLINE Integers bytes(int x)                      { return _mm256_set1_epi8((char) x); }
static FORCED_INLINE Integers all(int32_t x)                    { return _mm256_set1_epi32(x); }
static FORCED_INLINE Integers both(Integers a, Integers b)      { return _mm256_and_si256(a, b); }
static FORCED_INLINE Integers either(Integers a, Integers b)    { return _mm256_or_si256(a, b); }
static FORCED_INLINE Integers minus(Integers a, Integers b)     { return _mm256_sub_epi32(a, b); }
static FORCED_INLINE Integers with_bits(Integers a, Integers b, Integers mask) { return either(a, both(b, mask)); }
static FORCED_INLINE Integers choose(Integers mask, Integers a, Integers b) {
    return either(both(mask, a), _mm256_andnot_si256(mask, b));
}
static FORCED_INLINE Integers left(Integers x, int n)           { return _mm256_slli_epi16(x, n); }
static FORCED_INLINE Integers right(Integers x, int n)          { return _mm256_srli_epi16(x, n); }
static FORCED_INLINE Integers left_whole(Integers x, int n)     { return _mm256_slli_epi32(x, n); }
static FORCED_INLINE Integers right_whole(Integers x, int n)    { return _mm256_srli_epi32(x, n); }
static FORCED_INLINE Integers look_up(__m128i table, Integers places) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), places);
}
static FORCED_INLINE Integers widen_bytes(const uint8_t * x) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) x));
}
static FORCED_INLINE Integers widen_signed(const uint8_t * x) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) x));
}
static FORCED_INLINE Integers widen_words(const uint8_t * x) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) x));
}
static FORCED_INLINE Floats halves(const uint8_t * x) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x));
}
template <int quarter> static FORCED_INLINE Integers widen(Integers x) {
    const __m128i half = quarter < 2 ? _mm256_castsi256_si128(x) : _mm256_extracti128_si256(x, 1);
    return _mm256_cvtepu8_epi32(quarter % 2 ? _mm_unpackhi_epi64(half, half) : half);
}

static FORCED_INLINE Floats all(float x)                        { return _mm256_set1_ps(x); }
static FORCED_INLINE Floats number(Integers x)                  { return _mm256_cvtepi32_ps(x); }
static FORCED_INLINE Floats product(Floats a, Floats b)         { return _mm256_mul_ps(a, b); }
static FORCED_INLINE Floats fma(Floats a, Floats b, Floats c)   { return _mm256_fmadd_ps(a, b, c); }
static FORCED_INLINE Floats fnma(Floats a, Floats b, Floats c)  { return _mm256_fnmadd_ps(a, b, c); }
static FORCED_INLINE void   store(float * to, Floats x)         { _mm256_storeu_ps(to, x); }

// The same four bytes for every row.
static FORCED_INLINE Integers all_of(const void * four) {
    int32_t x;
    memcpy(&x, four, sizeof(x));
    return _mm256_set1_epi32(x);
}
#ifdef LLAMA_PY_PANELS_VNNI
static FORCED_INLINE Integers add_products(Integers sum, Integers weights, const int8_t * four) {
    return _mm256_dpbusd_avx_epi32(sum, weights, all_of(four));
}
static FORCED_INLINE Integers add_word_products(Integers sum, Integers words, const int16_t * two) {
    return _mm256_dpwssd_avx_epi32(sum, words, all_of(two));
}
#else
// In the order in which they are written: compilers that are free to choose it make many products before they add the first
// of them, and have no registers for those.
static FORCED_INLINE Integers in_order(Integers x) {
    __asm__("" : "+x"(x));
    return x;
}
static FORCED_INLINE Integers plus(Integers a, Integers b)       { return in_order(_mm256_add_epi32(a, b)); }
static FORCED_INLINE Integers plus_words(Integers a, Integers b) { return in_order(_mm256_add_epi16(a, b)); }
// Sums of two products each: of words, and of bytes of which the first have no sign.
static FORCED_INLINE Integers word_products(Integers a, Integers b) { return _mm256_madd_epi16(a, b); }
static FORCED_INLINE Integers byte_products(Integers a, Integers b) { return _mm256_maddubs_epi16(a, b); }
static FORCED_INLINE Integers magnitudes(Integers a)                { return _mm256_abs_epi8(a); }
static FORCED_INLINE Integers with_sign_of(Integers a, Integers b)  { return _mm256_sign_epi8(a, b); }
static FORCED_INLINE Integers add_word_products(Integers sum, Integers words, const int16_t * two) {
    return plus(sum, word_products(words, all_of(two)));
}
#endif

static FORCED_INLINE Floats greater(Floats a, const float * x) {
    const __m256 plain = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return _mm256_max_ps(a, _mm256_and_ps(_mm256_loadu_ps(x), plain));
}
static FORCED_INLINE float greatest(Floats x) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}
static FORCED_INLINE int round_16(const float * x, float scale, int8_t * to) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(scale)));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), _mm256_set1_ps(scale)));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128((__m128i *) to, _mm_packs_epi16(low, high));
    __m128i sum = _mm_madd_epi16(_mm_add_epi16(low, high), _mm_set1_epi16(1));
    sum = _mm_add_epi32(sum, _mm_unpackhi_epi64(sum, sum));
    return _mm_cvtsi128_si32(sum) + _mm_extract_epi32(sum, 1);
}

#endif

static constexpr int VECTOR = 4*ROWS;  // bytes

static FORCED_INLINE Integers low4(Integers x)  { return both(x, bytes(15)); }
static FORCED_INLINE Integers high4(Integers x) { return both(right(x, 4), bytes(15)); }
static FORCED_INLINE Integers zero()            { return all((int32_t) 0); }
// Two numbers of 16 bits as words of one of 32; the first one may have a sign, which the second one covers.
static FORCED_INLINE Integers beside_each_other(Integers first, Integers second) {
    return either(both(first, all(0xffff)), left_whole(second, 16));
}
static FORCED_INLINE Integers twice(Integers x) { return beside_each_other(x, x); }

} // namespace llama_py_panels

#endif
#endif
