// Products of quantized matrices whose rows lie in panels of sixteen; see rule.cmake and weight_panels.cpp.
//
// A number of a vector of AVX-512 is a row. So each instruction of VNNI multiplies four weights of sixteen rows with
// four numbers of a column, which it reads from memory for all rows at once, and nothing has to be summed across a
// vector. A panel holds blocks of sixteen rows behind one another, in as many bytes as they had: the bytes of all
// rows that are used together lie together, and in the order in which they are used: memory is read as fast as it goes
// only if each address is beyond the last one.
//
// Weights are bytes without a sign, as VNNI wants them. What a type subtracts from them (8 of Q4_0, 32 of Q6_K) is
// subtracted as a multiple of the sum of the column's numbers, with which sums begin.
//
// A column is quantized as ggml does it: to bytes, with one scale for as many numbers as a block of the weights has.
// Whether a column is multiplied alone or with others, its sums are made in the same order: the result is the same.
#ifndef LLAMA_PY_PANELS_H
#define LLAMA_PY_PANELS_H

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace llama_py_panels {

#define FORCED_INLINE inline __attribute__((always_inline))

static constexpr int ROWS = 16;

using Integers = __m512i;
using Floats   = __m512;

static FORCED_INLINE Integers load(const uint8_t * x) { return _mm512_loadu_si512(x); }
static FORCED_INLINE Integers bytes(int x)            { return _mm512_set1_epi8((char) x); }
static FORCED_INLINE Integers both(Integers a, Integers b) { return _mm512_and_si512(a, b); }
static FORCED_INLINE Integers low4(Integers x)        { return both(x, bytes(15)); }
static FORCED_INLINE Integers high4(Integers x)       { return both(_mm512_srli_epi16(x, 4), bytes(15)); }
// Bits of `a` where the mask has ones, else those of `b`.
static FORCED_INLINE Integers choose(Integers mask, Integers a, Integers b) {
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}
static FORCED_INLINE Floats halves(const uint8_t * x) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) x));
}
template <int quarter> static FORCED_INLINE Integers widen(Integers x) {
    return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(x, quarter));
}

// ---- columns -------------------------------------------------------------------------------------------------

// A block of a column: bytes, their scale, and what sums begin with.
template <int SIZE, int SUB> struct ColumnBlock {
    int8_t  q[SIZE];
    int32_t begin[SIZE/SUB];      // the type's offset times the sum of SUB numbers, negative
    int16_t sums[SIZE/32 < 2 ? 2 : SIZE/32];  // of 32 numbers each
    float   d;
    float   sum;                  // of all numbers, scaled; for types with one minimum for a block
};

template <int SIZE, int SUB>
static void quantize(const float * x, int offset, ColumnBlock<SIZE, SUB> & out) {
    Floats most = _mm512_setzero_ps();
    for (int i = 0; i < SIZE; i += 16) {
        most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    }
    const float largest = _mm512_reduce_max_ps(most);
    const float scale   = largest > 0 ? 127.0f/largest : 0.0f;
    int sums[SIZE/16];
    for (int i = 0; i < SIZE; i += 16) {
        const Integers q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(scale)));
        _mm_storeu_si128((__m128i *) (out.q + i), _mm512_cvtsepi32_epi8(q));
        sums[i/16] = _mm512_reduce_add_epi32(q);
    }
    int all = 0;
    for (int i = 0; i < SIZE/32; ++i) {
        out.sums[i] = (int16_t) (sums[2*i] + sums[2*i + 1]);
        all += out.sums[i];
    }
    for (int i = 0; i < SIZE/SUB; ++i) {
        out.begin[i] = -offset*(SUB == 16 ? sums[i] : sums[2*i] + sums[2*i + 1]);
    }
    out.d   = largest > 0 ? 1.0f/scale : 0.0f;
    out.sum = out.d*(float) all;
}

// ---- types ---------------------------------------------------------------------------------------------------
//
// Of each: SIZE numbers of a block, and of a part of it that has a scale of its own (SUB); the bytes of a block of
// sixteen rows; what is subtracted from the bytes (OFFSET); how a block is put together (`fill`, from one block of
// each row); and, of a block of sixteen rows, four weights of each (`weights`) and the scale of a part (`scale`).

// The bytes `from` to `from + count` of each row, four at a time.
template <typename Row>
static void interleave(uint8_t * to, const Row * const * rows, const uint8_t * (*bytes_of)(const Row &), int count) {
    for (int step = 0; step < count/4; ++step) {
        for (int r = 0; r < ROWS; ++r) {
            memcpy(to + 64*step + 4*r, bytes_of(*rows[r]) + 4*step, 4);
        }
    }
}
// One byte of each row at a time.
template <typename Row>
static void beside(uint8_t * to, const Row * const * rows, const uint8_t * (*bytes_of)(const Row &), int count, int width) {
    for (int i = 0; i < count; ++i) {
        for (int r = 0; r < ROWS; ++r) {
            memcpy(to + (16*i + r)*width, bytes_of(*rows[r]) + i*width, width);
        }
    }
}

// The scales and minima of Q4_K and Q5_K: eight of each, in six bits.
struct SixBits {
    Integers scales[2], minima[2];  // each four times sixteen bytes

    explicit SixBits(const uint8_t * packed) {
        const Integers a = load(packed), b = load(packed + 64), c = load(packed + 128);
        scales[0] = both(a, bytes(63));
        minima[0] = both(b, bytes(63));
        scales[1] = choose(bytes(15), c, both(_mm512_srli_epi16(a, 2), bytes(48)));
        minima[1] = choose(bytes(15), _mm512_srli_epi16(c, 4), both(_mm512_srli_epi16(b, 2), bytes(48)));
    }
    template <int i> FORCED_INLINE Floats scale() const { return _mm512_cvtepi32_ps(widen<i % 4>(scales[i/4])); }
    // Two minima beside each other, as words.
    template <int i> FORCED_INLINE Integers two_minima() const {
        return _mm512_or_si512(
            widen<2*i % 4>(minima[i/2]), _mm512_slli_epi32(widen<2*i % 4 + 1>(minima[i/2]), 16));
    }
};

// Weights of four bits: a byte has one of the first and one of the second half of a part or of a pair of parts.
static FORCED_INLINE Integers nibbles(Integers x, bool second) { return second ? high4(x) : low4(x); }

struct Q4K {
    using Row = block_q4_K;
    static constexpr int  SIZE = 256, SUB = 32, OFFSET = 0;
    static constexpr bool MINIMA = true, MINIMUM = false;
    static constexpr int  SCALES = 0, D = SCALES + 192, DMIN = D + 32, LOW = DMIN + 32;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to + LOW, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 128);
        beside<Row>(to + SCALES, rows, [](const Row & r) { return (const uint8_t *) r.scales; }, 12, 1);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r; }, 1, 2);
        beside<Row>(to + DMIN, rows, [](const Row & r) { return (const uint8_t *) &r + 2; }, 1, 2);
    }

    const uint8_t * at;
    SixBits six;
    Floats d;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE Q4K(const uint8_t * at) : at(at), six(at + SCALES), d(halves(at + D)) {}

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        return nibbles(load(at + LOW + 64*(8*(sub/2) + step)), sub % 2);
    }
    template <int sub> FORCED_INLINE Floats scale() const { return _mm512_mul_ps(six.scale<sub>(), d); }
    FORCED_INLINE Floats minimum() const { return halves(at + DMIN); }
    template <int i> FORCED_INLINE Integers two_minima() const { return six.two_minima<i>(); }
};

struct Q5K {
    using Row = block_q5_K;
    static constexpr int  SIZE = 256, SUB = 32, OFFSET = 0;
    static constexpr bool MINIMA = true, MINIMUM = false;
    static constexpr int  SCALES = 0, D = SCALES + 192, DMIN = D + 32, HIGH = DMIN + 32, LOW = HIGH + 512;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to + LOW, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 128);
        interleave<Row>(to + HIGH, rows, [](const Row & r) { return (const uint8_t *) r.qh; }, 32);
        beside<Row>(to + SCALES, rows, [](const Row & r) { return (const uint8_t *) r.scales; }, 12, 1);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r; }, 1, 2);
        beside<Row>(to + DMIN, rows, [](const Row & r) { return (const uint8_t *) &r + 2; }, 1, 2);
    }

    const uint8_t * at;
    SixBits six;
    Floats d;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE Q5K(const uint8_t * at) : at(at), six(at + SCALES), d(halves(at + D)) {}

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        const Integers high = load(at + HIGH + 64*step);  // bit `sub` belongs to bit 4
        const Integers bit  = sub < 4 ? _mm512_slli_epi16(high, 4 - sub % 4) : _mm512_srli_epi16(high, sub % 4);
        return _mm512_ternarylogic_epi64(
            nibbles(load(at + LOW + 64*(8*(sub/2) + step)), sub % 2), bit, bytes(16), 0xf8);  // a | (b & c)
    }
    template <int sub> FORCED_INLINE Floats scale() const { return _mm512_mul_ps(six.scale<sub>(), d); }
    FORCED_INLINE Floats minimum() const { return halves(at + DMIN); }
    template <int i> FORCED_INLINE Integers two_minima() const { return six.two_minima<i>(); }
};

struct Q6K {
    using Row = block_q6_K;
    static constexpr int  SIZE = 256, SUB = 16, OFFSET = 32;
    static constexpr bool MINIMA = false, MINIMUM = false;
    static constexpr int  SCALES = 0, D = SCALES + 256, QUARTERS = D + 32;

    // Sixteen weights of each half of a half have their high bits in the same bytes: these, and the two times
    // sixteen bytes with their low bits, are one of four quarters.
    static void fill(uint8_t * to, const Row * const * rows) {
        beside<Row>(to + SCALES, rows, [](const Row & r) { return (const uint8_t *) r.scales; }, 16, 1);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r.d; }, 1, 2);
        uint8_t low[2048], high[1024];
        interleave<Row>(low, rows, [](const Row & r) { return (const uint8_t *) r.ql; }, 128);
        interleave<Row>(high, rows, [](const Row & r) { return (const uint8_t *) r.qh; }, 64);
        to += QUARTERS;
        for (int quarter = 0; quarter < 4; ++quarter, to += 768) {
            memcpy(to, high + 256*quarter, 256);
            memcpy(to + 256, low + 1024*(quarter/2) + 256*(quarter % 2), 256);
            memcpy(to + 512, low + 1024*(quarter/2) + 256*(quarter % 2) + 512, 256);
        }
    }

    const uint8_t * at;
    Floats d;
    explicit FORCED_INLINE Q6K(const uint8_t * at) : at(at), d(halves(at + D)) {}

    // The part that is the i-th in memory.
    static constexpr int part(int i) { return 8*(i/8) + 2*(i % 4) + i/4 % 2; }

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        constexpr int quarter = 2*(sub/8) + sub % 2, place = sub % 8/2;
        const uint8_t * from = at + QUARTERS + 768*quarter + 64*step;
        const Integers low   = load(from + 256 + 256*(place % 2));
        const Integers high  = load(from);
        const Integers bits  = place < 2 ? _mm512_slli_epi16(high, 4 - 2*(place % 2))
                                         : _mm512_srli_epi16(high, 2*(place % 2));
        return _mm512_ternarylogic_epi64(nibbles(low, place >= 2), bits, bytes(48), 0xf8);
    }
    template <int sub> FORCED_INLINE Floats scale() const {
        const __m128i scales = _mm_loadu_si128((const __m128i *) (at + SCALES + 16*sub));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)), d);
    }
};

// Types with blocks of 32: the first half of a block is in the low bits, the second one in the high bits.
template <typename Quantized, int subtracted> struct FourBits {
    using Row = Quantized;
    static constexpr int  SIZE = 32, SUB = 32, OFFSET = subtracted;
    static constexpr bool MINIMA = false, MINIMUM = false;
    static constexpr int  D = 256;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 16);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r.d; }, 1, 2);
    }

    const uint8_t * at;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE FourBits(const uint8_t * at) : at(at) {}

    template <int, int step> FORCED_INLINE Integers weights() const {
        return nibbles(load(at + 64*(step % 4)), step >= 4);
    }
    template <int> FORCED_INLINE Floats scale() const { return halves(at + D); }
};
using Q40 = FourBits<block_q4_0, 8>;

struct Q41 {
    using Row = block_q4_1;
    static constexpr int  SIZE = 32, SUB = 32, OFFSET = 0;
    static constexpr bool MINIMA = false, MINIMUM = true;
    static constexpr int  D = 256, M = D + 32;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 16);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r; }, 1, 2);
        beside<Row>(to + M, rows, [](const Row & r) { return (const uint8_t *) &r + 2; }, 1, 2);
    }

    const uint8_t * at;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE Q41(const uint8_t * at) : at(at) {}

    template <int, int step> FORCED_INLINE Integers weights() const {
        return nibbles(load(at + 64*(step % 4)), step >= 4);
    }
    template <int> FORCED_INLINE Floats scale() const { return halves(at + D); }
    FORCED_INLINE Floats minimum() const { return halves(at + M); }
};

// The fifth bits of four weights are one of eight bits of four bytes, so that a shift brings them to their places.
static inline uint32_t fifth_bits(const uint8_t * qh) {
    uint32_t bits, out = 0;
    memcpy(&bits, qh, 4);
    for (int step = 0; step < 8; ++step) {
        for (int i = 0; i < 4; ++i) {
            out |= (bits >> (4*step + i) & 1) << (8*i + step);
        }
    }
    return out;
}
template <typename Row> static void interleave_fifth_bits(uint8_t * to, const Row * const * rows) {
    for (int r = 0; r < ROWS; ++r) {
        const uint32_t bits = fifth_bits(rows[r]->qh);
        memcpy(to + 4*r, &bits, 4);
    }
}
template <int step> static FORCED_INLINE Integers five_bits(const uint8_t * at, int high) {
    const Integers all = load(at + high);
    const Integers bit = step < 4 ? _mm512_slli_epi16(all, 4 - step % 4) : _mm512_srli_epi16(all, step % 4);
    return _mm512_ternarylogic_epi64(nibbles(load(at + 64*(step % 4)), step >= 4), bit, bytes(16), 0xf8);
}

struct Q50 {
    using Row = block_q5_0;
    static constexpr int  SIZE = 32, SUB = 32, OFFSET = 16;
    static constexpr bool MINIMA = false, MINIMUM = false;
    static constexpr int  HIGH = 256, D = HIGH + 64;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 16);
        interleave_fifth_bits(to + HIGH, rows);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r.d; }, 1, 2);
    }

    const uint8_t * at;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE Q50(const uint8_t * at) : at(at) {}

    template <int, int step> FORCED_INLINE Integers weights() const { return five_bits<step>(at, HIGH); }
    template <int> FORCED_INLINE Floats scale() const { return halves(at + D); }
};

struct Q51 {
    using Row = block_q5_1;
    static constexpr int  SIZE = 32, SUB = 32, OFFSET = 0;
    static constexpr bool MINIMA = false, MINIMUM = true;
    static constexpr int  HIGH = 256, D = HIGH + 64, M = D + 32;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 16);
        interleave_fifth_bits(to + HIGH, rows);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r; }, 1, 2);
        beside<Row>(to + M, rows, [](const Row & r) { return (const uint8_t *) &r + 2; }, 1, 2);
    }

    const uint8_t * at;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE Q51(const uint8_t * at) : at(at) {}

    template <int, int step> FORCED_INLINE Integers weights() const { return five_bits<step>(at, HIGH); }
    template <int> FORCED_INLINE Floats scale() const { return halves(at + D); }
    FORCED_INLINE Floats minimum() const { return halves(at + M); }
};

// IQ4_NL and IQ4_XS: four bits are the place of a weight in a table, to which 128 was added.
static FORCED_INLINE Integers from_table(Integers places) {
    const __m128i values = _mm_add_epi8(_mm_loadu_si128((const __m128i *) kvalues_iq4nl), _mm_set1_epi8((char) 128));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), places);
}

struct IQ4NL : FourBits<block_iq4_nl, 128> {
    using FourBits::FourBits;

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        return from_table(FourBits::weights<sub, step>());
    }
};

struct IQ4XS {
    using Row = block_iq4_xs;
    static constexpr int  SIZE = 256, SUB = 32, OFFSET = 128;
    static constexpr bool MINIMA = false, MINIMUM = false;
    static constexpr int  D = 0, HIGH = D + 32, LOW = HIGH + 32, PLACES = LOW + 64;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to + PLACES, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 128);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r.d; }, 1, 2);
        beside<Row>(to + HIGH, rows, [](const Row & r) { return (const uint8_t *) &r.scales_h; }, 1, 2);
        beside<Row>(to + LOW, rows, [](const Row & r) { return (const uint8_t *) r.scales_l; }, 4, 1);
    }

    const uint8_t * at;
    Floats d;
    Integers high;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE IQ4XS(const uint8_t * at)
        : at(at), d(halves(at + D)), high(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) (at + HIGH)))) {}

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        return from_table(nibbles(load(at + PLACES + 64*(4*sub + step % 4)), step >= 4));
    }
    template <int sub> FORCED_INLINE Floats scale() const {
        const Integers two = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) (at + LOW + 16*(sub/2))));
        const Integers low = both(_mm512_srli_epi32(two, 4*(sub % 2)), _mm512_set1_epi32(15));
        const Integers up  = both(_mm512_srli_epi32(high, 2*sub), _mm512_set1_epi32(3));
        const Integers six = _mm512_or_si512(low, _mm512_slli_epi32(up, 4));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32))), d);
    }
};

// ---- products ------------------------------------------------------------------------------------------------

// Calls f with 0 to count - 1, each known to the compiler.
template <typename F, int... i> static FORCED_INLINE void each(std::integer_sequence<int, i...>, F && f) {
    (f(std::integral_constant<int, i>()), ...);
}
template <int count, typename F> static FORCED_INLINE void times(F && f) {
    each(std::make_integer_sequence<int, count>(), f);
}
#define LLAMA_PY_INLINED __attribute__((always_inline))

// Compilers load what goes to all numbers by an instruction of its own: half of those that are executed.
static FORCED_INLINE Integers add_products(Integers sum, Integers weights, const int8_t * four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*(const int32_t *) four));
    return sum;
}
static FORCED_INLINE Integers add_word_products(Integers sum, Integers words, const int16_t * two) {
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(words), "m"(*(const int32_t *) two));
    return sum;
}

template <typename Type> using Column = ColumnBlock<Type::SIZE, Type::SUB>;

// The most columns whose sums fit into the registers.
static constexpr int MOST_COLUMNS = 8;

// A panel by `n` columns, whose blocks lie beside each other: sixteen numbers of each go to its `out`.
template <typename Type, int n>
static void multiply(const uint8_t * panel, int64_t blocks, const Column<Type> * columns, float * const * out) {
    constexpr int BYTES = ROWS*sizeof(typename Type::Row);
    Floats totals[n];
    times<n>([&](auto i) LLAMA_PY_INLINED { totals[i] = _mm512_setzero_ps(); });
    for (int64_t b = 0; b < blocks; ++b, panel += BYTES, columns += n) {
        const Type block(panel);
        Floats sums[n];
        times<Type::SIZE/Type::SUB>([&](auto place) LLAMA_PY_INLINED {
            constexpr int sub = Type::part(place);
            Integers parts[n];
            times<n>([&](auto i) LLAMA_PY_INLINED {
                parts[i] = Type::OFFSET ? _mm512_set1_epi32(columns[i].begin[sub]) : _mm512_setzero_si512();
            });
            times<Type::SUB/4>([&](auto step) LLAMA_PY_INLINED {
                const Integers weights = block.template weights<sub, step>();
                times<n>([&](auto i) LLAMA_PY_INLINED {
                    parts[i] = add_products(parts[i], weights, columns[i].q + Type::SUB*sub + 4*step);
                });
            });
            const Floats scale = block.template scale<sub>();
            times<n>([&](auto i) LLAMA_PY_INLINED {
                const Floats part = _mm512_cvtepi32_ps(parts[i]);
                sums[i] = place == 0 ? _mm512_mul_ps(part, scale) : _mm512_fmadd_ps(part, scale, sums[i]);
            });
        });
        if constexpr (Type::MINIMA) {
            Integers parts[n];
            times<n>([&](auto i) LLAMA_PY_INLINED { parts[i] = _mm512_setzero_si512(); });
            times<Type::SIZE/64>([&](auto pair) LLAMA_PY_INLINED {
                const Integers minima = block.template two_minima<pair>();
                times<n>([&](auto i) LLAMA_PY_INLINED {
                    parts[i] = add_word_products(parts[i], minima, columns[i].sums + 2*pair);
                });
            });
            const Floats minimum = block.minimum();
            times<n>([&](auto i) LLAMA_PY_INLINED {
                sums[i] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(parts[i]), minimum, sums[i]);
            });
        }
        times<n>([&](auto i) LLAMA_PY_INLINED {
            totals[i] = _mm512_fmadd_ps(sums[i], _mm512_set1_ps(columns[i].d), totals[i]);
        });
        if constexpr (Type::MINIMUM) {
            const Floats minimum = block.minimum();
            times<n>([&](auto i) LLAMA_PY_INLINED {
                totals[i] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(columns[i].sum), totals[i]);
            });
        }
    }
    times<n>([&](auto i) LLAMA_PY_INLINED { _mm512_storeu_ps(out[i], totals[i]); });
}

template <typename Type>
static void multiply_group(
        int n, const uint8_t * panel, int64_t blocks, const Column<Type> * columns, float * const * out) {
    switch (n) {
        case 1: return multiply<Type, 1>(panel, blocks, columns, out);
        case 2: return multiply<Type, 2>(panel, blocks, columns, out);
        case 3: return multiply<Type, 3>(panel, blocks, columns, out);
        case 4: return multiply<Type, 4>(panel, blocks, columns, out);
        case 5: return multiply<Type, 5>(panel, blocks, columns, out);
        case 6: return multiply<Type, 6>(panel, blocks, columns, out);
        case 7: return multiply<Type, 7>(panel, blocks, columns, out);
        case 8: return multiply<Type, 8>(panel, blocks, columns, out);
    }
}

} // namespace llama_py_panels
#endif
