// Included first into llamafile's sgemm.cpp; see IncludedFirst.cmake.
//
// llamafile's product of two matrices in Q8_0 multiplies a block of 32 numbers of a row with one of a column,
// converts the eight sums, and scales them: five instructions for 32 products. Here the bytes of as many rows as
// a vector has numbers are interleaved first, so that each number is the sum of one row: a block of all of them
// takes eight instructions of VNNI and three to convert and scale, eleven for 512 products with AVX-512.
//
// VNNI multiplies unsigned bytes by signed ones: 128 is added to the weights, and sums begin at -128 times the
// sum of the column's block. Integers are exact, and blocks are summed in single precision, as by ggml.
//
// This specializes llamafile's template, which is declared here and defined in the file that follows.
#ifndef LLAMA_PY_Q8_PRODUCTS_H
#define LLAMA_PY_Q8_PRODUCTS_H

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml-impl.h"
#include "thread_memory.h"

#include <cstdint>
#include <cstring>

#if (defined(__AVX512VNNI__) && defined(__AVX512BW__)) || (defined(__AVXVNNI__) && defined(__F16C__) && defined(__FMA__))

#include <immintrin.h>

namespace {

template <typename TA, typename TB, typename TC> class tinyBLAS_Q0_AVX;

namespace llama_py {

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
using Integers = __m512i;
using Floats   = __m512;

static inline Integers load(const uint8_t * x)   { return _mm512_load_si512(x); }
static inline Floats   load(const float * x)     { return _mm512_load_ps(x); }
static inline Integers all(int32_t x)            { return _mm512_set1_epi32(x); }
static inline Floats   all(float x)              { return _mm512_set1_ps(x); }
static inline Floats   times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats   to_floats(Integers x)     { return _mm512_cvtepi32_ps(x); }
static inline Floats   fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline void     store(float * to, Floats x, int count) {
    _mm512_mask_storeu_ps(to, (__mmask16) ((1u << count) - 1), x);
}
static inline Integers add_products(Integers sum, Integers weights, Integers column) {
    return _mm512_dpbusd_epi32(sum, weights, column);
}
static inline void     store_floats(float * to, const ggml_half * x) {
    _mm512_store_ps(to, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) x)));
}

// 16 bytes of each fourth row.
static inline Integers quarter(const block_q8_0 * const * rows, int64_t block, int row, int half) {
    const auto bytes = [&](int i) { return _mm_loadu_si128((const __m128i *) (rows[row + i][block].qs + 16*half)); };
    Integers four = _mm512_castsi128_si512(bytes(0));
    four = _mm512_inserti32x4(four, bytes(4), 1);
    four = _mm512_inserti32x4(four, bytes(8), 2);
    return _mm512_inserti32x4(four, bytes(12), 3);
}
static inline Integers lower32(Integers a, Integers b) { return _mm512_unpacklo_epi32(a, b); }
static inline Integers upper32(Integers a, Integers b) { return _mm512_unpackhi_epi32(a, b); }
static inline Integers lower64(Integers a, Integers b) { return _mm512_unpacklo_epi64(a, b); }
static inline Integers upper64(Integers a, Integers b) { return _mm512_unpackhi_epi64(a, b); }
static inline void     store_unsigned(uint8_t * to, Integers x) {
    _mm512_store_si512(to, _mm512_xor_si512(x, _mm512_set1_epi8((char) 0x80)));
}
static constexpr int MOST_COLUMNS = 8;  // whose sums fit into the registers
#else
using Integers = __m256i;
using Floats   = __m256;

static inline Integers load(const uint8_t * x)   { return _mm256_load_si256((const __m256i *) x); }
static inline Floats   load(const float * x)     { return _mm256_load_ps(x); }
static inline Integers all(int32_t x)            { return _mm256_set1_epi32(x); }
static inline Floats   all(float x)              { return _mm256_set1_ps(x); }
static inline Floats   times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
static inline Floats   to_floats(Integers x)     { return _mm256_cvtepi32_ps(x); }
static inline Floats   fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline void     store(float * to, Floats x, int count) {
    alignas(32) float whole[8];
    _mm256_store_ps(whole, x);
    memcpy(to, whole, count*sizeof(float));
}
static inline Integers add_products(Integers sum, Integers weights, Integers column) {
    return _mm256_dpbusd_avx_epi32(sum, weights, column);
}
static inline void     store_floats(float * to, const ggml_half * x) {
    _mm256_store_ps(to, _mm256_cvtph_ps(_mm_load_si128((const __m128i *) x)));
}

// 16 bytes of each fourth row.
static inline Integers quarter(const block_q8_0 * const * rows, int64_t block, int row, int half) {
    const auto bytes = [&](int i) { return _mm_loadu_si128((const __m128i *) (rows[row + i][block].qs + 16*half)); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(bytes(0)), bytes(4), 1);
}
static inline Integers lower32(Integers a, Integers b) { return _mm256_unpacklo_epi32(a, b); }
static inline Integers upper32(Integers a, Integers b) { return _mm256_unpackhi_epi32(a, b); }
static inline Integers lower64(Integers a, Integers b) { return _mm256_unpacklo_epi64(a, b); }
static inline Integers upper64(Integers a, Integers b) { return _mm256_unpackhi_epi64(a, b); }
static inline void     store_unsigned(uint8_t * to, Integers x) {
    _mm256_store_si256((__m256i *) to, _mm256_xor_si256(x, _mm256_set1_epi8((char) 0x80)));
}
static constexpr int MOST_COLUMNS = 4;
#endif

static constexpr int ROWS   = sizeof(Floats)/sizeof(float);
static constexpr int GROUPS = QK8_0/4;  // VNNI adds the products of four bytes
// Columns for which rows are interleaved once, and bytes of interleaved rows: what stays in the second cache.
static constexpr int64_t COLUMNS = 256;
static constexpr int64_t NEAR    = 384*1024;

// Of a block of a column.
struct Factor {
    float scale;
    int32_t begin;  // -128 times the sum of its numbers
};

// The rows of a panel, interleaved: [block][group][row][4] bytes, and [block][row] scales.
struct Panel {
    uint8_t * bytes;
    float * scales;
};

static size_t panel_bytes(int64_t blocks) {
    return blocks*ROWS*(QK8_0 + sizeof(float));
}

static void interleave(const block_q8_0 * first, int64_t stride, int count, int64_t blocks, const Panel & panel) {
    const block_q8_0 * rows[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        rows[r] = first + (r < count ? r : count - 1)*stride;
    }
    const char * next = (const char *) (first + ROWS*stride);
    for (int64_t block = 0; block < blocks; ++block) {
        for (int byte = 0; byte < ROWS*(int) sizeof(block_q8_0); byte += 64) {
            _mm_prefetch(next + block*ROWS*sizeof(block_q8_0) + byte, _MM_HINT_T1);
        }
        uint8_t * to = panel.bytes + block*ROWS*QK8_0;
        for (int half = 0; half < 2; ++half) {
            const Integers a = quarter(rows, block, 0, half);
            const Integers b = quarter(rows, block, 1, half);
            const Integers c = quarter(rows, block, 2, half);
            const Integers d = quarter(rows, block, 3, half);
            const Integers ab = lower32(a, b);
            const Integers cd = lower32(c, d);
            const Integers AB = upper32(a, b);
            const Integers CD = upper32(c, d);
            store_unsigned(to + (4*half + 0)*ROWS*4, lower64(ab, cd));
            store_unsigned(to + (4*half + 1)*ROWS*4, upper64(ab, cd));
            store_unsigned(to + (4*half + 2)*ROWS*4, lower64(AB, CD));
            store_unsigned(to + (4*half + 3)*ROWS*4, upper64(AB, CD));
        }
    }
    for (int64_t block = 0; block < blocks; ++block) {
        alignas(32) ggml_half scales[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            scales[r] = rows[r][block].d;
        }
        store_floats(panel.scales + block*ROWS, scales);
    }
}

static void read_factors(const block_q8_0 * column, int64_t blocks, Factor * factors) {
    const __m256i ones = _mm256_set1_epi8(1);
    for (int64_t block = 0; block < blocks; ++block) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *) column[block].qs);
        const __m256i pairs = _mm256_maddubs_epi16(ones, bytes);
        const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
        factors[block] = {_cvtsh_ss(column[block].d), -128*_mm_cvtsi128_si32(sum)};
    }
}

// A panel by N columns.
template <int N>
static void multiply(
        const Panel & panel, int64_t blocks, const block_q8_0 * columns, int64_t stride, const Factor * factors,
        float * to, int64_t to_stride, int rows) {
    Floats sums[N];
    for (int n = 0; n < N; ++n) {
        sums[n] = all(0.0f);
    }
    for (int64_t block = 0; block < blocks; ++block) {
        Integers products[N];
        for (int n = 0; n < N; ++n) {
            products[n] = all(factors[n*blocks + block].begin);
        }
        const uint8_t * weights = panel.bytes + block*ROWS*QK8_0;
        for (int group = 0; group < GROUPS; ++group) {
            const Integers weight = load(weights + group*ROWS*4);
            for (int n = 0; n < N; ++n) {
                int32_t four;
                memcpy(&four, columns[n*stride + block].qs + 4*group, sizeof(four));
                products[n] = add_products(products[n], weight, all(four));
            }
        }
        const Floats scale = load(panel.scales + block*ROWS);
        for (int n = 0; n < N; ++n) {
            const Floats both = times(scale, all(factors[n*blocks + block].scale));
            sums[n] = fma(to_floats(products[n]), both, sums[n]);
        }
    }
    for (int n = 0; n < N; ++n) {
        store(to + n*to_stride, sums[n], rows);
    }
}

template <int N>
static void multiply(
        int columns_of, const Panel & panel, int64_t blocks, const block_q8_0 * columns, int64_t stride,
        const Factor * factors, float * to, int64_t to_stride, int rows) {
    if (columns_of == N) {
        multiply<N>(panel, blocks, columns, stride, factors, to, to_stride, rows);
    } else if constexpr (N > 1) {
        multiply<N - 1>(columns_of, panel, blocks, columns, stride, factors, to, to_stride, rows);
    }
}

} // namespace llama_py

template <> class tinyBLAS_Q0_AVX<block_q8_0, block_q8_0, float> {
  public:
    tinyBLAS_Q0_AVX(int64_t k, const block_q8_0 * A, int64_t lda, const block_q8_0 * B, int64_t ldb, float * C,
                    int64_t ldc, int ith, int nth)
        : blocks(k), rows(A), row_stride(lda), columns(B), column_stride(ldb), out(C), out_stride(ldc), thread(ith),
          threads(nth) {}

    // Each thread has a range of the m rows of the first matrix, or of the n columns if there are few rows.
    void matmul(int64_t m, int64_t n) {
        using namespace llama_py;
        const int64_t panels = (m + ROWS - 1)/ROWS;
        if (panels < 8*threads && n >= 4*MOST_COLUMNS*threads) {
            multiply_part(m, 0, panels, n*thread/threads, n*(thread + 1)/threads);
        } else {
            multiply_part(m, panels*thread/threads, panels*(thread + 1)/threads, 0, n);
        }
    }

  private:
    void multiply_part(int64_t m, int64_t first, int64_t last, int64_t column, int64_t end) const {
        using namespace llama_py;
        if (first == last || column == end) {
            return;
        }
        const size_t panel_size = panel_bytes(blocks);
        // Panels are kept for the next group of columns. Where there is none, each is multiplied at once, and memory is
        // read meanwhile.
        const int64_t kept = end - column <= MOST_COLUMNS ? 1 : NEAR/(int64_t) panel_size;
        const int64_t most = MAX(1, MIN(last - first, kept));
        static thread_local ThreadMemory memory_of_thread;
        char * memory = memory_of_thread.reserve(most*panel_size + MIN(end - column, COLUMNS)*blocks*sizeof(Factor));
        Factor * factors = (Factor *) (memory + most*panel_size);
        for (; column < end; column += COLUMNS) {
            const int64_t count = MIN(COLUMNS, end - column);
            for (int64_t i = 0; i < count; ++i) {
                read_factors(columns + (column + i)*column_stride, blocks, factors + i*blocks);
            }
            for (int64_t from = first; from < last; from += most) {
                multiply_some(from, MIN(from + most, last), m, column, count, memory, factors);
            }
        }
    }

    void multiply_some(
            int64_t from, int64_t to, int64_t m, int64_t column, int64_t count, char * memory,
            const llama_py::Factor * factors) const {
        using namespace llama_py;
        const size_t size = panel_bytes(blocks);
        const auto panel_at = [&](int64_t i) {
            char * place = memory + (i - from)*size;
            return Panel{(uint8_t *) place, (float *) (place + blocks*ROWS*QK8_0)};
        };
        for (int64_t i = from; i < to; ++i) {
            const int64_t row = i*ROWS;
            interleave(rows + row*row_stride, row_stride, (int) MIN((int64_t) ROWS, m - row), blocks, panel_at(i));
        }
        // Groups of columns are of the same size, or one less: sums of single columns wait for each other.
        const int64_t groups = (count + MOST_COLUMNS - 1)/MOST_COLUMNS;
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t begin = count*group/groups;
            const int64_t end   = count*(group + 1)/groups;
            for (int64_t i = from; i < to; ++i) {
                const int64_t row = i*ROWS;
                multiply<MOST_COLUMNS>(
                    (int) (end - begin), panel_at(i), blocks, columns + (column + begin)*column_stride, column_stride,
                    factors + begin*blocks, out + (column + begin)*out_stride + row, out_stride,
                    (int) MIN((int64_t) ROWS, m - row));
            }
        }
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

#endif
#endif
