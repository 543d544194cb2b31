// Included first into ggml's ops.cpp; see rule.cmake.
//
// ggml's flash attention on a CPU has two ways for several tokens: a row at a time, which reads every cell
// anew for every token, but skips masked ones; and tiles of 64 tokens by 64 cells, which are several times
// as fast for a token, but compute the masked cells of a tile with the others. It takes tiles from 64
// tokens on, whatever they attend to. So a turn of a conversation, which is often shorter, took as long
// with 20 tokens as with 64; and 64 conversations that share a buffer of cells computed each other's.
//
// This decides for each tile, by what its tokens attend to, and lets tiles that are not full compute only
// the rows that they have. It hooks in at three places:
//
// * ggml_fa_tile_config::Q is the height of a tile, in the function whose name ends in _tiled, and the
//   least number of tokens, in the one that chooses. Only the latter is changed.
// * The latter passes numbers of rows as int64_t, and the former takes int. The overload for int64_t, here,
//   comes in between.
// * simd_gemm is called with the height of a tile as its number of rows, in nothing but the function that
//   ends in _tiled, where tile_rows says how many of them there are. The rest stay zero, or are not read.
//
// It can go when ggml chooses so itself; test_attention_tiles.py says whether what this
// relies on is still there.
#ifndef LLAMA_PY_ATTENTION_TILES_H
#define LLAMA_PY_ATTENTION_TILES_H

#include "common.h"
#include "../function_name.h"
#include "../reached.h"
#include "ops.h"
#include "simd-gemm.h"

LLAMA_PY_REACHABLE(attention_tiles)

// A row over the cells of a tile costs 1 by itself, and a quarter in a tile, which costs 10 before its first
// row. Measured on an AMD EPYC with heads of 64, 128 and 256: a quarter or less, and 6 to 7 where the cells
// lie close together, as in no model.
static constexpr float llama_py_row_in_tile = 0.25f;
static constexpr float llama_py_tile        = 10.0f;
// With fewer rows no tile pays.
static constexpr size_t llama_py_least_rows = 13;

// Which share of the cells in those tiles that are not masked altogether a row attends to: 1 for a prompt
// behind its conversation, 1/8 for eight replies whose cells lie among each other. Eight rows are looked at.
static float llama_py_attended(const ggml_tensor * dst, int64_t first, int64_t rows) {
    const ggml_tensor * q    = dst->src[0];
    const ggml_tensor * mask = dst->src[3];
    if (!mask) {
        return 1.0f;
    }
    const uint16_t minus_infinity = 0xfc00;
    const int64_t token = first % q->ne[1];
    const int64_t head  = first / q->ne[1] % q->ne[2];
    const int64_t batch = first / (q->ne[1]*q->ne[2]);
    const char * data = (const char *) mask->data + (head%mask->ne[2])*mask->nb[2] + (batch%mask->ne[3])*mask->nb[3];

    const int64_t cells = dst->src[1]->ne[1];
    const int64_t width = ggml_fa_tile_config::KV;
    const int64_t step  = (rows + 7)/8;
    int64_t looked_at = 0;
    int64_t attended  = 0;
    for (int64_t cell = 0; cell < cells; cell += width) {
        const int64_t end = MIN(cells, cell + width);
        int64_t of_tile = 0;
        for (int64_t row = 0; row < rows; row += step) {
            const uint16_t * values = (const uint16_t *) (data + (token + row)*mask->nb[1]);
            int of_row = 0;
            for (int64_t i = cell; i < end; ++i) {
                of_row += values[i] != minus_infinity;
            }
            of_tile += of_row;
        }
        attended  += of_tile;
        looked_at += of_tile ? width*((rows + step - 1)/step) : 0;
    }
    return looked_at ? (float) attended/looked_at : 0.0f;
}

// From 64 tokens on ggml takes tiles, whose sums are in single precision, and in half precision in rows. So
// it does here, in small pieces and at the beginning of a prompt too, unless next to all of it is masked.
static bool llama_py_tile_pays(int64_t tokens, int64_t rows, float attended) {
    if (tokens >= (int64_t) ggml_fa_tile_config::Q) {
        return attended >= 0.125f;
    }
    return rows*(attended - llama_py_row_in_tile) >= llama_py_tile;
}

static void ggml_compute_forward_flash_attn_ext_tiled(
        const ggml_compute_params * params, ggml_tensor * dst, int ir0, int ir1);

static void ggml_compute_forward_flash_attn_ext_f16_one_chunk(
        const ggml_compute_params * params, ggml_tensor * dst, int ir0, int ir1,
        int64_t ic_start, int64_t ic_end, float * partials, int64_t partial_stride);

// Both ways have memory of each thread's own in one buffer, but a tile needs more of it: rows are computed
// where the thread's tiles are, since other threads may be computing tiles meanwhile.
static ggml_compute_params llama_py_params_for_rows(const ggml_compute_params * params, const ggml_tensor * dst) {
    const size_t dk     = dst->src[1]->ne[0];
    const size_t dv     = dst->src[2]->ne[0];
    const size_t height = ggml_fa_tile_config::Q;
    const size_t width  = ggml_fa_tile_config::KV;
    const size_t tile   = (height + width)*(dk + dv) + 2*height*width + CACHE_LINE_SIZE_F32;
    ggml_compute_params own = *params;
    own.wdata = (float *) params->wdata + params->ith*tile;
    own.ith   = 0;
    return own;
}

static void ggml_compute_forward_flash_attn_ext_tiled(
        const ggml_compute_params * params, ggml_tensor * dst, int64_t ir0, int64_t ir1) {
    LLAMA_PY_REACHED(attention_tiles);
#ifdef LLAMA_PY_ATTENDS  // attention_heads.h, which is faster than tiles
    if (llama_py::can_attend(params, dst)) {
        llama_py::attend_whole(params, dst, ir0, ir1);
        return;
    }
#endif
    const ggml_compute_params for_rows = llama_py_params_for_rows(params, dst);
    const int64_t tokens = dst->src[0]->ne[1];
    const int64_t cells  = dst->src[1]->ne[1];
    const int64_t height = ggml_fa_tile_config::Q;
    while (ir0 < ir1) {
        // As tiles are cut there: none goes on into the next head.
        const int64_t rows = MIN(MIN(height, ir1 - ir0), tokens - ir0%tokens);
        const int from = (int) ir0;
        const int to   = (int) (ir0 + rows);
        if (llama_py_tile_pays(tokens, rows, llama_py_attended(dst, ir0, rows))) {
            ggml_compute_forward_flash_attn_ext_tiled(params, dst, from, to);
        } else {
            ggml_compute_forward_flash_attn_ext_f16_one_chunk(&for_rows, dst, from, to, 0, cells, nullptr, 0);
        }
        ir0 = to;
    }
}

template <bool in_tiles> struct llama_py_fa_tile_config {
    static constexpr size_t Q  = in_tiles ? ggml_fa_tile_config::Q : llama_py_least_rows;
    static constexpr size_t KV = ggml_fa_tile_config::KV;
};

#define ggml_fa_tile_config llama_py_fa_tile_config<llama_py_ends_in(__func__, "_tiled")>
#define simd_gemm(C, A, B, M, K, N) (simd_gemm)(C, A, B, tile_rows, K, N)

#endif
