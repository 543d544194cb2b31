// Products of quantized matrices whose rows lie in panels; see rule.cmake and weight_panels.cpp.
//
// A number of a vector is a row (panel_vectors.h). So each instruction multiplies four weights of all rows of a panel
// with four numbers of a column, which are the same for all of them, and nothing has to be summed across a vector. A
// panel holds blocks of its rows behind one another, in as many bytes as they had: the bytes of all rows that are used
// together lie together, and in the order in which they are used: memory is read as fast as it goes only if each
// address is beyond the last one.
//
// Weights are bytes without a sign, as the instructions want them. What a type subtracts from them (8 of Q4_0, 32 of
// Q6_K) is subtracted as a multiple of the sum of the column's numbers, with which sums begin.
//
// A column is quantized as ggml does it: to bytes, with one scale for as many numbers as a block of the weights has.
// Whether a column is multiplied alone or with others, its sums are made in the same order: the result is the same.
#ifndef LLAMA_PY_PANELS_H
#define LLAMA_PY_PANELS_H

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include "panel_vectors.h"

#include <utility>

namespace llama_py_panels {

// ---- columns -------------------------------------------------------------------------------------------------

// A block of a column: bytes, their scale, and what sums begin with.
template <int SIZE, int SUB> struct ColumnBlock {
    int8_t  q[SIZE];
    int32_t begin[SIZE/SUB];      // the type's offset times the sum of SUB numbers, negative
    int16_t sums[SIZE/SUB < 2 ? 2 : SIZE/SUB];  // of SUB numbers each
    float   d;
    float   sum;                  // of all numbers, scaled; for types with one minimum for a block
};

template <int SIZE, int SUB>
static void quantize(const float * x, int offset, ColumnBlock<SIZE, SUB> & out) {
    Floats most = all(0.0f);
    for (int i = 0; i < SIZE; i += ROWS) {
        most = greater(most, x + i);
    }
    const float largest = greatest(most);
    const float scale   = largest > 0 ? 127.0f/largest : 0.0f;
    int sums[SIZE/16];
    for (int i = 0; i < SIZE; i += 16) {
        sums[i/16] = round_16(x + i, scale, out.q + i);
    }
    int sum = 0;
    for (int i = 0; i < SIZE/SUB; ++i) {
        out.sums[i]  = (int16_t) (SUB == 16 ? sums[i] : sums[2*i] + sums[2*i + 1]);
        out.begin[i] = -offset*out.sums[i];
        sum += out.sums[i];
    }
    out.d   = largest > 0 ? 1.0f/scale : 0.0f;
    out.sum = out.d*(float) sum;
}

// ---- types ---------------------------------------------------------------------------------------------------
//
// Of each: SIZE numbers of a block, and of a part of it that has a scale of its own (SUB); what is subtracted from the
// bytes (OFFSET), and the largest of these (GREATEST; negative: the largest magnitude of bytes with a sign); how a block of
// a panel is put together (`fill`, from one block of each row); and, of such a block, four weights of each row
// (`weights`) and the scale of a part (`scale`; `whole_scale` where it is an integer times `d`: WHOLE_SCALES).
//
// Without VNNI, the parts of a block with whole scales are multiplied in TURNS that execute the same instructions: those
// of a whole block are more than the cache of decoded ones has room for, which other threads of the core use as well.
#ifdef LLAMA_PY_PANELS_VNNI
static constexpr bool IN_TURNS = false;
#else
static constexpr bool IN_TURNS = true;
#endif

// The bytes `from` to `from + count` of each row, four at a time.
template <typename Row>
static void interleave(uint8_t * to, const Row * const * rows, const uint8_t * (*bytes_of)(const Row &), int count) {
    for (int step = 0; step < count/4; ++step) {
        for (int r = 0; r < ROWS; ++r) {
            memcpy(to + VECTOR*step + 4*r, bytes_of(*rows[r]) + 4*step, 4);
        }
    }
}
// One byte of each row at a time.
template <typename Row>
static void beside(uint8_t * to, const Row * const * rows, const uint8_t * (*bytes_of)(const Row &), int count, int width) {
    for (int i = 0; i < count; ++i) {
        for (int r = 0; r < ROWS; ++r) {
            memcpy(to + (ROWS*i + r)*width, bytes_of(*rows[r]) + i*width, width);
        }
    }
}

// The scales and minima of Q4_K and Q5_K: eight of each, in six bits.
struct SixBits {
    Integers scales[2], minima[2];  // each four bytes of each row

    explicit SixBits(const uint8_t * packed) {
        const Integers a = load(packed), b = load(packed + VECTOR), c = load(packed + 2*VECTOR);
        scales[0] = both(a, bytes(63));
        minima[0] = both(b, bytes(63));
        scales[1] = choose(bytes(15), c, both(right(a, 2), bytes(48)));
        minima[1] = choose(bytes(15), right(c, 4), both(right(b, 2), bytes(48)));
    }
    template <int i> FORCED_INLINE Integers scale() const { return widen<i % 4>(scales[i/4]); }
    // Two minima beside each other, as words.
    template <int i> FORCED_INLINE Integers two_minima() const {
        return either(widen<2*i % 4>(minima[i/2]), left_whole(widen<2*i % 4 + 1>(minima[i/2]), 16));
    }
};

// Weights of four bits: a byte has one of the first and one of the second half of a part or of a pair of parts.
static FORCED_INLINE Integers nibbles(Integers x, bool second) { return second ? high4(x) : low4(x); }

struct Q4K {
    using Row = block_q4_K;
    static constexpr int  SIZE = 256, SUB = 32, OFFSET = 0, GREATEST = 15;
    static constexpr bool MINIMA = true, MINIMUM = false, WHOLE_SCALES = true;
    static constexpr int  TURNS = 4;
    static constexpr int  SCALES = 0, D = SCALES + 12*ROWS, DMIN = D + 2*ROWS, LOW = DMIN + 2*ROWS;

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
    FORCED_INLINE void next_turn() { at += 8*VECTOR; }

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        return nibbles(load(at + LOW + VECTOR*(8*(sub/2) + step)), sub % 2);
    }
    template <int sub> FORCED_INLINE Integers whole_scale() const { return six.scale<sub>(); }
    FORCED_INLINE Floats minimum() const { return halves(at + DMIN); }
    template <int i> FORCED_INLINE Integers two_minima() const { return six.two_minima<i>(); }
};

struct Q5K {
    using Row = block_q5_K;
    static constexpr int  SIZE = 256, SUB = 32, OFFSET = 0, GREATEST = 31;
    static constexpr bool MINIMA = true, MINIMUM = false, WHOLE_SCALES = true;
    static constexpr int  TURNS = 2;
    static constexpr int  SCALES = 0, D = SCALES + 12*ROWS, DMIN = D + 2*ROWS, HIGH = DMIN + 2*ROWS, LOW = HIGH + 32*ROWS;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to + LOW, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 128);
        interleave<Row>(to + HIGH, rows, [](const Row & r) { return (const uint8_t *) r.qh; }, 32);
        beside<Row>(to + SCALES, rows, [](const Row & r) { return (const uint8_t *) r.scales; }, 12, 1);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r; }, 1, 2);
        beside<Row>(to + DMIN, rows, [](const Row & r) { return (const uint8_t *) &r + 2; }, 1, 2);
    }

    const uint8_t * at;
    const uint8_t * high;
    SixBits six;
    Floats d;
    int gone = 0;  // parts of the turns before
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE Q5K(const uint8_t * at) : at(at), high(at + HIGH), six(at + SCALES), d(halves(at + D)) {}
    FORCED_INLINE void next_turn() {
        at += 16*VECTOR;
        gone += 4;
    }

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        const Integers eight = load(high + VECTOR*step);  // bit `sub` belongs to bit 4
        const Integers bits  = IN_TURNS ? right(eight, gone) : eight;
        const Integers bit   = sub < 4 ? left(bits, 4 - sub % 4) : right(bits, sub % 4);
        return with_bits(nibbles(load(at + LOW + VECTOR*(8*(sub/2) + step)), sub % 2), bit, bytes(16));
    }
    template <int sub> FORCED_INLINE Integers whole_scale() const { return six.scale<sub>(); }
    FORCED_INLINE Floats minimum() const { return halves(at + DMIN); }
    template <int i> FORCED_INLINE Integers two_minima() const { return six.two_minima<i>(); }
};

struct Q6K {
    using Row = block_q6_K;
    static constexpr int  SIZE = 256, SUB = 16, OFFSET = 32, GREATEST = 63;
    static constexpr bool MINIMA = false, MINIMUM = false, WHOLE_SCALES = true;
    static constexpr int  SCALES = 0, D = SCALES + 16*ROWS, PART = 16*ROWS, QUARTERS = D + 2*ROWS;
    static constexpr int  TURNS = 4;

    // Sixteen weights of each half of a half have their high bits in the same bytes: these, and the two times
    // sixteen bytes with their low bits, are one of four quarters.
    static void fill(uint8_t * to, const Row * const * rows) {
        beside<Row>(to + SCALES, rows, [](const Row & r) { return (const uint8_t *) r.scales; }, 16, 1);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r.d; }, 1, 2);
        uint8_t low[8*PART], high[4*PART];
        interleave<Row>(low, rows, [](const Row & r) { return (const uint8_t *) r.ql; }, 128);
        interleave<Row>(high, rows, [](const Row & r) { return (const uint8_t *) r.qh; }, 64);
        to += QUARTERS;
        for (int quarter = 0; quarter < 4; ++quarter, to += 3*PART) {
            memcpy(to, high + PART*quarter, PART);
            memcpy(to + PART, low + PART*(4*(quarter/2) + quarter % 2), PART);
            memcpy(to + 2*PART, low + PART*(4*(quarter/2) + quarter % 2 + 2), PART);
        }
    }

    const uint8_t * at;
    Floats d;
    explicit FORCED_INLINE Q6K(const uint8_t * at) : at(at), d(halves(at + D)) {}
    FORCED_INLINE void next_turn() { at += 3*PART; }

    // The part that is the i-th in memory.
    static constexpr int part(int i) { return 8*(i/8) + 2*(i % 4) + i/4 % 2; }

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        constexpr int quarter = 2*(sub/8) + sub % 2, place = sub % 8/2;
        const uint8_t * from = at + QUARTERS + 3*PART*quarter + VECTOR*step;
        const Integers low   = load(from + PART + PART*(place % 2));
        const Integers high  = load(from);
        const Integers bits  = place < 2 ? left(high, 4 - 2*(place % 2))
                                         : right(high, 2*(place % 2));
        return with_bits(nibbles(low, place >= 2), bits, bytes(48));
    }
    template <int sub> FORCED_INLINE Integers whole_scale() const { return widen_signed(at + SCALES + ROWS*sub); }
    // Those of two parts beside each other, as words.
    template <int pair> FORCED_INLINE Integers two_scales() const {
        return beside_each_other(whole_scale<2*pair>(), whole_scale<2*pair + 1>());
    }
};

// Types with blocks of 32: the first half of a block is in the low bits, the second one in the high bits.
template <typename Quantized, int subtracted> struct FourBits {
    using Row = Quantized;
    static constexpr int  SIZE = 32, SUB = 32, OFFSET = subtracted, GREATEST = 15;
    static constexpr bool MINIMA = false, MINIMUM = false, WHOLE_SCALES = false;
    static constexpr int  D = 16*ROWS;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 16);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r.d; }, 1, 2);
    }

    const uint8_t * at;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE FourBits(const uint8_t * at) : at(at) {}

    template <int, int step> FORCED_INLINE Integers weights() const {
        return nibbles(load(at + VECTOR*(step % 4)), step >= 4);
    }
    FORCED_INLINE Floats scale() const { return halves(at + D); }
};
using Q40 = FourBits<block_q4_0, 8>;

struct Q41 {
    using Row = block_q4_1;
    static constexpr int  SIZE = 32, SUB = 32, OFFSET = 0, GREATEST = 15;
    static constexpr bool MINIMA = false, MINIMUM = true, WHOLE_SCALES = false;
    static constexpr int  D = 16*ROWS, M = D + 2*ROWS;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 16);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r; }, 1, 2);
        beside<Row>(to + M, rows, [](const Row & r) { return (const uint8_t *) &r + 2; }, 1, 2);
    }

    const uint8_t * at;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE Q41(const uint8_t * at) : at(at) {}

    template <int, int step> FORCED_INLINE Integers weights() const {
        return nibbles(load(at + VECTOR*(step % 4)), step >= 4);
    }
    FORCED_INLINE Floats scale() const { return halves(at + D); }
    FORCED_INLINE Floats minimum() const { return halves(at + M); }
};

// Swaps bits with those `distance` places above them: `lower` has the places of the lower ones.
static inline uint32_t with_swapped(uint32_t bits, int distance, uint32_t lower) {
    const uint32_t differ = (bits ^ bits >> distance) & lower;
    return bits ^ differ ^ differ << distance;
}
// The fifth bits of four weights are one of eight bits of four bytes, so that a shift brings them to their places: the
// bit 4 step + i becomes 8 i + step. As bits of the place, (s2 s1 s0 i1 i0) becomes (i1 i0 s2 s1 s0); each swap exchanges two.
static inline uint32_t fifth_bits(uint32_t bits) {
    bits = with_swapped(bits, 16 - 2, 0x0000cccc);
    bits = with_swapped(bits, 8 - 1, 0x00aa00aa);
    bits = with_swapped(bits, 4 - 2, 0x0c0c0c0c);
    return with_swapped(bits, 2 - 1, 0x22222222);
}
template <typename Row> static void interleave_fifth_bits(uint8_t * to, const Row * const * rows) {
    uint32_t bits[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        memcpy(&bits[r], rows[r]->qh, 4);
    }
    for (uint32_t & each : bits) {
        each = fifth_bits(each);
    }
    memcpy(to, bits, sizeof(bits));
}
template <int step> static FORCED_INLINE Integers five_bits(const uint8_t * at, int high) {
    const Integers bits = load(at + high);
    const Integers bit = step < 4 ? left(bits, 4 - step % 4) : right(bits, step % 4);
    return with_bits(nibbles(load(at + VECTOR*(step % 4)), step >= 4), bit, bytes(16));
}

struct Q50 {
    using Row = block_q5_0;
    static constexpr int  SIZE = 32, SUB = 32, OFFSET = 16, GREATEST = 31;
    static constexpr bool MINIMA = false, MINIMUM = false, WHOLE_SCALES = false;
    static constexpr int  HIGH = 16*ROWS, D = HIGH + 4*ROWS;

    static void fill(uint8_t * to, const Row * const * rows) {
        interleave<Row>(to, rows, [](const Row & r) { return (const uint8_t *) r.qs; }, 16);
        interleave_fifth_bits(to + HIGH, rows);
        beside<Row>(to + D, rows, [](const Row & r) { return (const uint8_t *) &r.d; }, 1, 2);
    }

    const uint8_t * at;
    static constexpr int part(int i) { return i; }
    explicit FORCED_INLINE Q50(const uint8_t * at) : at(at) {}

    template <int, int step> FORCED_INLINE Integers weights() const { return five_bits<step>(at, HIGH); }
    FORCED_INLINE Floats scale() const { return halves(at + D); }
};

struct Q51 {
    using Row = block_q5_1;
    static constexpr int  SIZE = 32, SUB = 32, OFFSET = 0, GREATEST = 31;
    static constexpr bool MINIMA = false, MINIMUM = true, WHOLE_SCALES = false;
    static constexpr int  HIGH = 16*ROWS, D = HIGH + 4*ROWS, M = D + 2*ROWS;

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
    FORCED_INLINE Floats scale() const { return halves(at + D); }
    FORCED_INLINE Floats minimum() const { return halves(at + M); }
};

// IQ4_NL and IQ4_XS: four bits are the place of a weight in a table, to which 128 is added where instructions take
// whole bytes without a sign.
#ifdef LLAMA_PY_PANELS_VNNI
static constexpr int ADDED = 128, OF_TABLE = 255;
#else
static constexpr int ADDED = 0, OF_TABLE = -127;
#endif
static FORCED_INLINE Integers from_table(Integers places) {
    const __m128i values = _mm_loadu_si128((const __m128i *) kvalues_iq4nl);
    return look_up(_mm_add_epi8(values, _mm_set1_epi8((char) ADDED)), places);
}

struct IQ4NL : FourBits<block_iq4_nl, ADDED> {
    static constexpr int GREATEST = OF_TABLE;
    using FourBits::FourBits;

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        return from_table(FourBits::weights<sub, step>());
    }
};

struct IQ4XS {
    using Row = block_iq4_xs;
    static constexpr int  SIZE = 256, SUB = 32, OFFSET = ADDED, GREATEST = OF_TABLE;
    static constexpr bool MINIMA = false, MINIMUM = false, WHOLE_SCALES = true;
    static constexpr int  D = 0, HIGH = D + 2*ROWS, LOW = HIGH + 2*ROWS, PLACES = LOW + 4*ROWS;
    static constexpr int  TURNS = 4;

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
        : at(at), d(halves(at + D)), high(widen_words(at + HIGH)) {}
    FORCED_INLINE void next_turn() { at += 8*VECTOR; }

    template <int sub, int step> FORCED_INLINE Integers weights() const {
        return from_table(nibbles(load(at + PLACES + VECTOR*(4*sub + step % 4)), step >= 4));
    }
    template <int sub> FORCED_INLINE Integers whole_scale() const {
        const Integers two = widen_bytes(at + LOW + ROWS*(sub/2));
        const Integers low = both(right_whole(two, 4*(sub % 2)), all(15));
        const Integers up  = both(right_whole(high, 2*sub), all(3));
        return minus(either(low, left_whole(up, 4)), all(32));
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

// Sums of the products of a part of a block, of all rows, with a column.
template <typename Type> struct Part {
    Integers sum;

    FORCED_INLINE void begin(int32_t first) { sum = Type::OFFSET ? all(first) : zero(); }
#ifdef LLAMA_PY_PANELS_VNNI
    template <int> FORCED_INLINE void add(Integers weights, const int8_t * four, Integers) {
        sum = add_products(sum, weights, four);
    }
#else
    static constexpr int SIGNED = Type::GREATEST < 0;
    // Words have room for the products of so many steps.
    static constexpr int STEPS = 32767/(2*127*(SIGNED ? -Type::GREATEST : Type::GREATEST));
    Integers words;

    // The sum gets the words times `factors`, which each row has twice.
    template <int step> FORCED_INLINE void add(Integers weights, const int8_t * four, Integers factors) {
        const Integers two = SIGNED ? byte_products(magnitudes(weights), with_sign_of(all_of(four), weights))
                                    : byte_products(weights, all_of(four));
        words = step % STEPS ? plus_words(words, two) : two;
        if (step % STEPS == STEPS - 1 || step == Type::SUB/4 - 1) {
            sum = plus(sum, word_products(words, factors));
        }
    }
#endif
};

template <typename Type> using Column = ColumnBlock<Type::SIZE, Type::SUB>;

// The most columns whose sums fit into the registers.
static constexpr int MOST_COLUMNS = 8;

// What words are multiplied with so that two of them are summed.
static FORCED_INLINE Integers ones() { return all(0x00010001); }

// Steps of a part of a block, of all rows, with `n` columns.
template <typename Type, int n, int sub>
static FORCED_INLINE void add_part(
        const Type & block, const Column<Type> * columns, int from, Integers factors, Part<Type> * parts) {
    times<Type::SUB/4>([&](auto step) LLAMA_PY_INLINED {
        const Integers weights = block.template weights<sub, step>();
        times<n>([&](auto i) LLAMA_PY_INLINED {
            parts[i].template add<step>(weights, columns[i].q + from + Type::SUB*sub + 4*step, factors);
        });
    });
}

template <typename Type, int sub> static FORCED_INLINE Floats scale_of(const Type & block) {
    if constexpr (Type::WHOLE_SCALES) {
        return product(number(block.template whole_scale<sub>()), block.d);
    } else {
        return block.scale();
    }
}

// Sums of the products of a block, of all rows, with `n` columns.
template <typename Type, int n>
static FORCED_INLINE void multiply_block(const Type & block, const Column<Type> * columns, Floats * sums) {
    Part<Type> parts[n];
    times<Type::SIZE/Type::SUB>([&](auto place) LLAMA_PY_INLINED {
        constexpr int sub = Type::part(place);
        times<n>([&](auto i) LLAMA_PY_INLINED { parts[i].begin(columns[i].begin[sub]); });
        add_part<Type, n, sub>(block, columns, 0, ones(), parts);
        const Floats scale = scale_of<Type, sub>(block);
        times<n>([&](auto i) LLAMA_PY_INLINED {
            const Floats part = number(parts[i].sum);
            sums[i] = place == 0 ? product(part, scale) : fma(part, scale, sums[i]);
        });
    });
}

// The same where scales are integers, in turns: sums are integers to their end, at most 256*127*63*128 of Q6_K.
template <typename Type, int n>
static FORCED_INLINE void multiply_in_turns(const Type & block, const Column<Type> * columns, Floats * sums) {
    Part<Type> parts[n];
    times<n>([&](auto i) LLAMA_PY_INLINED { parts[i].sum = zero(); });
    if constexpr (Type::OFFSET) {
        times<Type::SIZE/Type::SUB/2>([&](auto pair) LLAMA_PY_INLINED {
            const Integers scales = block.template two_scales<pair>();
            times<n>([&](auto i) LLAMA_PY_INLINED {
                parts[i].sum = add_word_products(parts[i].sum, scales, columns[i].sums + 2*pair);
            });
        });
        times<n>([&](auto i) LLAMA_PY_INLINED {
            parts[i].sum = minus(zero(), left_whole(parts[i].sum, __builtin_ctz(Type::OFFSET)));
        });
    }
    constexpr int PARTS = Type::SIZE/Type::SUB, EACH = PARTS/Type::TURNS;
    Integers scales[PARTS];
    times<PARTS>([&](auto place) LLAMA_PY_INLINED {
        scales[place] = twice(block.template whole_scale<Type::part(place)>());
    });
    Type rest = block;
    for (int turn = 0; turn < Type::TURNS; ++turn, rest.next_turn()) {
        times<EACH>([&](auto place) LLAMA_PY_INLINED {
            add_part<Type, n, Type::part(place)>(
                rest, columns, Type::SUB*Type::part(turn*EACH), scales[turn*EACH + place], parts);
        });
    }
    times<n>([&](auto i) LLAMA_PY_INLINED { sums[i] = product(number(parts[i].sum), block.d); });
}

// With so few columns, steps wait for memory, and a CPU with AVX2 alone does not ask early enough for what comes: so many
// bytes ahead.
static constexpr int FEW_COLUMNS = 4, AHEAD = 2048;

template <int n> static FORCED_INLINE void fetch(const uint8_t * from, int bytes) {
    if constexpr (IN_TURNS && n <= FEW_COLUMNS) {
        for (int line = 0; line < bytes; line += 64) {
            _mm_prefetch((const char *) from + line, _MM_HINT_T0);
        }
    }
}

// A panel by `n` columns, whose blocks lie beside each other: a number for each row goes to each `out`.
template <typename Type, int n>
static void multiply(const uint8_t * panel, int64_t blocks, const Column<Type> * columns, float * const * out) {
    constexpr int BYTES = ROWS*sizeof(typename Type::Row);
    Floats totals[n];
    times<n>([&](auto i) LLAMA_PY_INLINED { totals[i] = all(0.0f); });
    for (int64_t b = 0; b < blocks; ++b, panel += BYTES, columns += n) {
        fetch<n>(panel + AHEAD, BYTES);
        const Type block(panel);
        Floats sums[n];
        if constexpr (IN_TURNS && Type::WHOLE_SCALES) {
            multiply_in_turns<Type, n>(block, columns, sums);
        } else {
            multiply_block<Type, n>(block, columns, sums);
        }
        if constexpr (Type::MINIMA) {
            Integers parts[n];
            times<n>([&](auto i) LLAMA_PY_INLINED { parts[i] = zero(); });
            times<Type::SIZE/64>([&](auto pair) LLAMA_PY_INLINED {
                const Integers minima = block.template two_minima<pair>();
                times<n>([&](auto i) LLAMA_PY_INLINED {
                    parts[i] = add_word_products(parts[i], minima, columns[i].sums + 2*pair);
                });
            });
            const Floats minimum = block.minimum();
            times<n>([&](auto i) LLAMA_PY_INLINED {
                sums[i] = fnma(number(parts[i]), minimum, sums[i]);
            });
        }
        times<n>([&](auto i) LLAMA_PY_INLINED {
            totals[i] = fma(sums[i], all(columns[i].d), totals[i]);
        });
        if constexpr (Type::MINIMUM) {
            const Floats minimum = block.minimum();
            times<n>([&](auto i) LLAMA_PY_INLINED {
                totals[i] = fma(minimum, all(columns[i].sum), totals[i]);
            });
        }
    }
    times<n>([&](auto i) LLAMA_PY_INLINED { store(out[i], totals[i]); });
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
