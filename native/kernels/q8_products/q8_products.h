// Included first into llamafile's sgemm.cpp; see rule.cmake.
//
// llamafile's product of two matrices in Q8_0 multiplies a block of 32 numbers of a row with one of a column,
// converts the eight sums, and scales them: five instructions for 32 products. Here the bytes of as many rows as
// a vector has numbers are interleaved first, so that each number is the sum of one row: a block of all of them
// takes eight instructions of VNNI and three to convert and scale, eleven for 512 products with AVX-512.
//
// VNNI multiplies unsigned bytes by signed ones: 128 is added to the weights, and sums begin at -128 times the
// sum of the column's block. AVX2 alone multiplies magnitudes of weights by bytes that have their signs, in three
// instructions more. Integers are exact, and blocks are summed in single precision, as by ggml.
//
// As many columns as have room in the registers pass at once. The first of them multiply the bytes as they are
// interleaved, while the next rows are fetched; if more follow, the bytes are kept for these.
//
// This specializes llamafile's template, which is declared here and defined in the file that follows.
#ifndef LLAMA_PY_Q8_PRODUCTS_H
#define LLAMA_PY_Q8_PRODUCTS_H

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "llamafile/sgemm.h"
#include "../reached.h"
#include "../thread_memory.h"
#include "../vectors.h"

#include <cstdint>
#include <cstring>

#if (defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)) \
    || (!(defined(__AVX512F__) && defined(__AVX512DQ__)) && defined(__AVX2__) && defined(__F16C__) && defined(__FMA__))

LLAMA_PY_REACHABLE(q8_products)

namespace {

template <typename TA, typename TB, typename TC> class tinyBLAS_Q0_AVX;

namespace llama_py_q8 {

using namespace llama_py;
using llama_py::all;    // those of integers are beside them
using llama_py::store;

// So that what is handed over stays in registers.
#define FORCED_INLINE inline __attribute__((always_inline))

#ifdef LLAMA_PY_WIDE
using Integers = __m512i;

static inline Integers load(const char * x)      { return _mm512_load_si512(x); }
static inline Integers all(int32_t x)            { return _mm512_set1_epi32(x); }
static inline Floats   to_floats(Integers x)     { return _mm512_cvtepi32_ps(x); }
// Compilers load what goes to all numbers by an instruction of its own: half of those that are executed.
static inline Integers add_products(Integers sum, Integers weights, const int32_t * four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*four));
    return sum;
}
static inline Floats   read_halves(const ggml_half * x) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) x));
}

// 16 bytes of each fourth row.
template <typename Rows>
static FORCED_INLINE Integers quarter(const Rows & rows, int row, int half) {
    const auto bytes = [&](int i) { return _mm_loadu_si128((const __m128i *) (rows.at(row + i)->qs + 16*half)); };
    Integers four = _mm512_castsi128_si512(bytes(0));
    four = _mm512_inserti32x4(four, bytes(4), 1);
    four = _mm512_inserti32x4(four, bytes(8), 2);
    return _mm512_inserti32x4(four, bytes(12), 3);
}
static inline Integers lower32(Integers a, Integers b) { return _mm512_unpacklo_epi32(a, b); }
static inline Integers upper32(Integers a, Integers b) { return _mm512_unpackhi_epi32(a, b); }
static inline Integers lower64(Integers a, Integers b) { return _mm512_unpacklo_epi64(a, b); }
static inline Integers upper64(Integers a, Integers b) { return _mm512_unpackhi_epi64(a, b); }
static inline Integers as_factors(Integers x)        { return _mm512_xor_si512(x, _mm512_set1_epi8((char) 0x80)); }
static inline void     store(char * to, Integers x)    { _mm512_store_si512(to, x); }
static constexpr int MOST_COLUMNS = 8;  // whose sums fit into the registers
#else
using Integers = __m256i;

static inline Integers load(const char * x)      { return _mm256_load_si256((const __m256i *) x); }
static inline Integers all(int32_t x)            { return _mm256_set1_epi32(x); }
static inline Floats   to_floats(Integers x)     { return _mm256_cvtepi32_ps(x); }
#ifdef __AVXVNNI__
static inline Integers add_products(Integers sum, Integers weights, const int32_t * four) {
    return _mm256_dpbusd_avx_epi32(sum, weights, all(*four));
}
static inline Integers as_factors(Integers x)  { return _mm256_xor_si256(x, _mm256_set1_epi8((char) 0x80)); }
#else
// Words have room for two products of bytes whose signs are the column's.
static inline Integers add_products(Integers sum, Integers weights, const int32_t * four) {
    const Integers words = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(all(*four), weights));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
    __asm__("" : "+x"(sum));  // added in this order: others need more registers than there are
    return sum;
}
static inline Integers as_factors(Integers x)  { return x; }
#endif
static inline Floats   read_halves(const ggml_half * x) { return _mm256_cvtph_ps(_mm_load_si128((const __m128i *) x)); }

// 16 bytes of each fourth row.
template <typename Rows>
static FORCED_INLINE Integers quarter(const Rows & rows, int row, int half) {
    const auto bytes = [&](int i) { return _mm_loadu_si128((const __m128i *) (rows.at(row + i)->qs + 16*half)); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(bytes(0)), bytes(4), 1);
}
static inline Integers lower32(Integers a, Integers b) { return _mm256_unpacklo_epi32(a, b); }
static inline Integers upper32(Integers a, Integers b) { return _mm256_unpackhi_epi32(a, b); }
static inline Integers lower64(Integers a, Integers b) { return _mm256_unpacklo_epi64(a, b); }
static inline Integers upper64(Integers a, Integers b) { return _mm256_unpackhi_epi64(a, b); }
static inline void     store(char * to, Integers x)    { _mm256_store_si256((__m256i *) to, x); }
static constexpr int MOST_COLUMNS = 4;
#endif

#if defined(LLAMA_PY_WIDE) || defined(__AVXVNNI__)
static constexpr int32_t ADDED = 128;  // to the weights
#else
static constexpr int32_t ADDED = 0;
#endif
static constexpr int ROWS   = WIDTH;
static constexpr int GROUPS = QK8_0/4;  // VNNI adds the products of four bytes
// Columns for which rows are interleaved once, and bytes of interleaved rows: what stays in the second cache.
static constexpr int64_t COLUMNS = 256;
static constexpr int64_t NEAR    = 384*1024;

static inline int32_t sum(const int8_t * block) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *) block);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return _mm_cvtsi128_si32(sum);
}

// A block of N columns that pass at once: fours of bytes, the sums to begin with (-ADDED times that of the column's
// block), and scales.
template <int N>
struct Columns {
    int32_t fours[GROUPS][N];
    int32_t begins[N];
    float scales[N];
};

static constexpr size_t COLUMN_BYTES = sizeof(Columns<1>);

// ``blocks`` times Columns<count>.
static void pack(const block_q8_0 * columns, int64_t stride, int count, int64_t blocks, char * to) {
    for (int n = 0; n < count; ++n) {
        for (int64_t i = 0; i < blocks; ++i) {
            const block_q8_0 & block = columns[n*stride + i];
            int32_t * at = (int32_t *) (to + i*count*COLUMN_BYTES) + n;
            for (int group = 0; group < GROUPS; ++group) {
                memcpy(at + group*count, block.qs + 4*group, sizeof(int32_t));
            }
            at[GROUPS*count] = ADDED ? -ADDED*sum(block.qs) : 0;
            const float scale = _cvtsh_ss(block.d);
            memcpy(at + (GROUPS + 1)*count, &scale, sizeof(scale));
        }
    }
}

// Half a block of ROWS rows, interleaved: vectors of a group each.
struct Interleaved {
    Integers groups[GROUPS/2];
};

template <typename Rows>
static FORCED_INLINE Interleaved interleave(const Rows & rows, int half) {
    const Integers a = quarter(rows, 0, half);
    const Integers b = quarter(rows, 1, half);
    const Integers c = quarter(rows, 2, half);
    const Integers d = quarter(rows, 3, half);
    const Integers ab = lower32(a, b);
    const Integers cd = lower32(c, d);
    const Integers AB = upper32(a, b);
    const Integers CD = upper32(c, d);
    return {{as_factors(lower64(ab, cd)), as_factors(upper64(ab, cd)),
             as_factors(lower64(AB, CD)), as_factors(upper64(AB, CD))}};
}

// One by one, which the compiler would not do: putting them into a vector first takes longer.
template <typename Rows>
static FORCED_INLINE void collect_scales(const Rows & rows, int ahead, ggml_half * to) {
    volatile ggml_half * scales = to;
    for (int r = 0; r < ROWS; ++r) {
        scales[r] = rows.at(r)[ahead].d;
    }
}

// GCC takes a function that only fetches for one without effect.
static FORCED_INLINE void fetch(const char * from, int64_t bytes) {
    for (int64_t byte = 0; byte < bytes; byte += 64) {
        _mm_prefetch(from + byte, _MM_HINT_T1);
    }
}

// Rows, interleaved: [block][group][row][4] bytes, and [block][row] scales.
struct Panel {
    char * bytes;
    ggml_half * scales;

    Panel(char * memory, int64_t blocks) : bytes(memory), scales((ggml_half *) (memory + blocks*ROWS*QK8_0)) {}

    static size_t size(int64_t blocks) { return GGML_PAD(blocks*ROWS*sizeof(block_q8_0), 64); }

    FORCED_INLINE void keep(const Interleaved & half, int i) const {
        for (int group = 0; group < GROUPS/2; ++group) {
            store(bytes + (i*GROUPS/2 + group)*ROWS*4, half.groups[group]);
        }
    }

    FORCED_INLINE void next() {
        bytes += ROWS*QK8_0;
        scales += ROWS;
    }
};

// Rows that are interleaved when they are multiplied, and kept in a panel or not. What follows them in memory is
// fetched meanwhile: rows far from each other are more than the processor follows by itself.
template <bool KEPT>
class FromMemory {
  public:
    struct Place {
        const block_q8_0 * first;
        int64_t stride;
        char * panel;
    };

    FromMemory(const Place & place, int64_t blocks)
        : one(place.stride*sizeof(block_q8_0)), three(3*one), five(5*one), seven(7*one),
          block((const char *) place.first), following(block + ROWS*one + AHEAD), left(blocks),
          panel(place.panel, blocks) {
        collect_scales(*this, 0, KEPT ? panel.scales : collected[left%2]);
    }

    // Scales are collected a block ahead: what was stored in pieces is not loaded as a whole before it is in the cache.
    FORCED_INLINE void begin() {
        fetch(following, ROWS*sizeof(block_q8_0));
        following += ROWS*sizeof(block_q8_0);
        --left;
        if (left > 0) {
            collect_scales(*this, 1, KEPT ? panel.scales + ROWS : collected[left%2]);
        }
    }

    FORCED_INLINE Interleaved half(int i) const {
        const Interleaved half = interleave(*this, i);
        if (KEPT) {
            panel.keep(half, i);
        }
        return half;
    }

    FORCED_INLINE Floats scales() const { return read_halves(KEPT ? panel.scales : collected[(left + 1)%2]); }

    FORCED_INLINE void next() {
        block += sizeof(block_q8_0);
        panel.next();
    }

    // By sums that are part of an instruction: there are not registers for so many addresses.
    FORCED_INLINE const block_q8_0 * at(int row) const {
        const int64_t distances[8] = {0, one, 2*one, three, 4*one, five, 2*three, seven};
        return (const block_q8_0 *) (block + row/8*(8*one) + distances[row%8]);
    }

  private:
    static constexpr int64_t AHEAD = 2048;

    const int64_t one, three, five, seven;  // rows, in bytes
    const char * block;
    const char * following;
    uint64_t left;
    Panel panel;
    alignas(64) ggml_half collected[2][ROWS];
};

// The last rows, where there are fewer than ROWS: the last one again for those that are not there.
class SomeRows {
  public:
    SomeRows(const block_q8_0 * first, int64_t stride, int count) {
        for (int r = 0; r < ROWS; ++r) {
            rows[r] = first + (r < count ? r : count - 1)*stride;
        }
    }

    const block_q8_0 * at(int row) const { return rows[row]; }

    void fill(Panel panel, int64_t blocks) {
        for (int64_t block = 0; block < blocks; ++block) {
            panel.keep(interleave(*this, 0), 0);
            panel.keep(interleave(*this, 1), 1);
            collect_scales(*this, 0, panel.scales);
            panel.next();
            for (const block_q8_0 *& row : rows) {
                ++row;
            }
        }
    }

  private:
    const block_q8_0 * rows[ROWS];
};

// Rows that were interleaved.
class FromPanel {
  public:
    using Place = char *;

    FromPanel(Place place, int64_t blocks) : panel(place, blocks) {}

    FORCED_INLINE void begin() {}

    FORCED_INLINE Interleaved half(int i) const {
        Interleaved half;
        for (int group = 0; group < GROUPS/2; ++group) {
            half.groups[group] = load(panel.bytes + (i*GROUPS/2 + group)*ROWS*4);
        }
        return half;
    }

    FORCED_INLINE Floats scales() const { return read_halves(panel.scales); }
    FORCED_INLINE void next()           { panel.next(); }

  private:
    Panel panel;
};

// Rows by N columns.
template <typename Rows, int N>
static __attribute__((noinline)) void multiply(
        const typename Rows::Place & place, int64_t blocks, const Columns<N> * columns, float * to, int64_t stride,
        int count) {
    Rows rows(place, blocks);
    Floats sums[N];
    for (int n = 0; n < N; ++n) {
        sums[n] = all(0.0f);
    }
    for (const Columns<N> * end = columns + blocks; columns < end; ++columns) {
        rows.begin();
        Integers products[N];
        for (int n = 0; n < N; ++n) {
            products[n] = all(columns->begins[n]);
        }
        for (int i = 0; i < 2; ++i) {
            const Interleaved weights = rows.half(i);
            for (int group = 0; group < GROUPS/2; ++group) {
                for (int n = 0; n < N; ++n) {
                    products[n] = add_products(
                        products[n], weights.groups[group], &columns->fours[i*GROUPS/2 + group][n]);
                }
            }
        }
        const Floats scales = rows.scales();
        for (int n = 0; n < N; ++n) {
            sums[n] = fma(to_floats(products[n]), times(scales, all(columns->scales[n])), sums[n]);
        }
        rows.next();
    }
    for (int n = 0; n < N; ++n) {
        store(to + n*stride, sums[n], count);
    }
}

template <typename Rows, int N = MOST_COLUMNS>
static void multiply(
        int columns_of, const typename Rows::Place & place, int64_t blocks, const char * columns, float * to,
        int64_t stride, int count) {
    if (columns_of == N) {
        multiply<Rows>(place, blocks, (const Columns<N> *) columns, to, stride, count);
    } else if constexpr (N > 1) {
        multiply<Rows, N - 1>(columns_of, place, blocks, columns, to, stride, count);
    }
}

#undef FORCED_INLINE

} // namespace llama_py_q8

template <> class tinyBLAS_Q0_AVX<block_q8_0, block_q8_0, float> {
  public:
    tinyBLAS_Q0_AVX(int64_t k, const block_q8_0 * A, int64_t lda, const block_q8_0 * B, int64_t ldb, float * C,
                    int64_t ldc, int ith, int nth)
        : blocks(k), rows(A), row_stride(lda), columns(B), column_stride(ldb), out(C), out_stride(ldc), thread(ith),
          threads(nth) {}

    // Each thread has a range of the m rows of the first matrix, or of the n columns if there are few rows.
    void matmul(int64_t m, int64_t n) {
        using namespace llama_py_q8;
        LLAMA_PY_REACHED(q8_products);
        const int64_t panels = (m + ROWS - 1)/ROWS;
        if (panels < 8*threads && n >= 4*MOST_COLUMNS*threads) {
            multiply_part(m, 0, panels, n*thread/threads, n*(thread + 1)/threads);
        } else {
            multiply_part(m, panels*thread/threads, panels*(thread + 1)/threads, 0, n);
        }
    }

  private:
    void multiply_part(int64_t m, int64_t first, int64_t last, int64_t column, int64_t end) const {
        using namespace llama_py_q8;
        if (first == last || column == end) {
            return;
        }
        const size_t panel_size = Panel::size(blocks);
        const int64_t most = MAX(1, MIN(last - first, NEAR/(int64_t) panel_size));
        static thread_local llama_py::ThreadMemory memory_of_thread;
        char * memory = memory_of_thread.reserve(most*panel_size + MIN(end - column, COLUMNS)*blocks*COLUMN_BYTES);
        char * packed = memory + most*panel_size;
        fetch((const char *) (rows + first*ROWS*row_stride), ROWS*blocks*sizeof(block_q8_0));
        for (; column < end; column += COLUMNS) {
            const Groups groups(MIN(COLUMNS, end - column));
            for (int64_t group = 0; group < groups.count; ++group) {
                const int64_t begin = groups.begin(group);
                pack(columns + (column + begin)*column_stride, column_stride, groups.size(group), blocks,
                     packed + begin*blocks*COLUMN_BYTES);
            }
            for (int64_t from = first; from < last; from += most) {
                multiply_some(from, MIN(from + most, last), m, column, groups, memory, packed);
            }
        }
    }

    // Groups of columns are of the same size, or one less: sums of single columns wait for each other.
    struct Groups {
        const int64_t columns;
        const int64_t count;

        explicit Groups(int64_t of) : columns(of), count((of + llama_py_q8::MOST_COLUMNS - 1)/llama_py_q8::MOST_COLUMNS) {}

        int64_t begin(int64_t group) const { return columns*group/count; }
        int size(int64_t group) const      { return (int) (begin(group + 1) - begin(group)); }
    };

    void multiply_some(
            int64_t from, int64_t to, int64_t m, int64_t column, const Groups & groups, char * memory,
            const char * packed) const {
        using namespace llama_py_q8;
        const auto panel_at = [&](int64_t i) { return memory + (i - from)*Panel::size(blocks); };
        for (int64_t i = from; i < to; ++i) {
            const block_q8_0 * first = rows + i*ROWS*row_stride;
            if (rows_of(i, m) < ROWS) {
                SomeRows(first, row_stride, rows_of(i, m)).fill(Panel(panel_at(i), blocks), blocks);
                multiply_group<FromPanel>(panel_at(i), i, m, column, groups, 0, packed);
            } else if (groups.count > 1) {
                multiply_group<FromMemory<true>>({first, row_stride, panel_at(i)}, i, m, column, groups, 0, packed);
            } else {
                multiply_group<FromMemory<false>>({first, row_stride, panel_at(i)}, i, m, column, groups, 0, packed);
            }
        }
        for (int64_t group = 1; group < groups.count; ++group) {
            for (int64_t i = from; i < to; ++i) {
                multiply_group<FromPanel>(panel_at(i), i, m, column, groups, group, packed);
            }
        }
    }

    template <typename Rows>
    void multiply_group(
            const typename Rows::Place & place, int64_t panel, int64_t m, int64_t column, const Groups & groups,
            int64_t group, const char * packed) const {
        using namespace llama_py_q8;
        const int64_t begin = groups.begin(group);
        multiply<Rows>(
            groups.size(group), place, blocks, packed + begin*blocks*COLUMN_BYTES,
            out + (column + begin)*out_stride + panel*ROWS, out_stride, rows_of(panel, m));
    }

    static int rows_of(int64_t panel, int64_t m) {
        return (int) MIN((int64_t) llama_py_q8::ROWS, m - panel*llama_py_q8::ROWS);
    }

    const int64_t blocks;
    const block_q8_0 * const rows;
    const int64_t row_stride;
    const block_q8_0 * const columns;
    const int64_t column_stride;
    float * const out;
    const int64_t out_stride;
    const int thread;
    const int threads;
};

} // namespace

// llamafile leaves a single column to the product of a row by a column, which adds in another order. It is multiplied
// here like one of several: what a token becomes does not depend on how many are computed with it.
static bool llama_py_sgemm_of_several(
        const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A, int64_t lda, const void * B,
        int64_t ldb, void * C, int64_t ldc, int Atype, int Btype, int Ctype);

bool llamafile_sgemm(
        const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A, int64_t lda, const void * B,
        int64_t ldb, void * C, int64_t ldc, int Atype, int Btype, int Ctype) {
    if (n != 1 || Atype != GGML_TYPE_Q8_0 || Btype != GGML_TYPE_Q8_0 || Ctype != GGML_TYPE_F32) {
        return llama_py_sgemm_of_several(params, m, n, k, A, lda, B, ldb, C, ldc, Atype, Btype, Ctype);
    }
    tinyBLAS_Q0_AVX<block_q8_0, block_q8_0, float> product(
        k, (const block_q8_0 *) A, lda, (const block_q8_0 *) B, ldb, (float *) C, ldc, params->ith, params->nth);
    product.matmul(m, n);
    return true;
}

#define llamafile_sgemm llama_py_sgemm_of_several

#endif
#endif
