// What both attention kernels share: cache blocks, sinks, and how a call describes itself.
//
// A translation unit is made for each set of constants (sources.py): DIMS padded head dimension, a multiple of
// 64 · HEAD the head dimension · GROUP query heads that share a key/value head · PAGE tokens of a cache block ·
// TILE keys of a step · STAGES of the pipeline · WINDOWED, SINKS (0 none, 1 float32, 2 of the query's type) ·
// BF16 or float16.
//
// A tile in shared memory is `DIMS / 64` panels of TILE rows of 64 elements: 128 bytes a row, in the copy
// engine's 128-byte swizzle, which both kinds of matrix instructions read without bank conflicts.

struct Params {
    TensorMap q, k, v;
    char* out;
    const char* query;
    const int* query_starts;
    const int* seq_lens;
    const int* tables;
    const void* sinks;
    int* counters;
    float* split_out;
    float* split_lse;
    long long q_stride_t, q_stride_h;  // elements
    float scale_log2;
    int num_rows, num_kv_heads, table_stride, window, splits;
};

constexpr int PANELS = DIMS / 64;
constexpr int BOX = PAGE < TILE ? PAGE : TILE;  // keys of one copy: a cache block, or a tile of a longer one
constexpr int BOXES = TILE / BOX;
constexpr int COPIES = BOXES * PANELS;
constexpr u32 PANEL_BYTES = TILE * 128;
constexpr u32 TILE_BYTES = PANELS * PANEL_BYTES;
static_assert(COPIES <= 32, "a lane of the loading warp starts one copy");
static_assert(TILE % PAGE == 0 || PAGE % TILE == 0, "a copy ends where its cache block does");

// A copy of this lane: which panel, which cache block of the tile, and the block's number.
struct Page {
    bool wanted;
    int block, key;
};

// Blocks that no query sees are not read: their numbers may be anything.
DEVICE Page find_page(const int* table, int start, int first, int end) {
    int slot = threadIdx.x % 32;
    int key = start + (slot % BOXES) * BOX;
    bool wanted = slot < COPIES && key < end && key + BOX > first;
    return {wanted, wanted ? table[key / PAGE] : 0, key};
}

DEVICE void load_tile(u32 to, const TensorMap* map, u32 bar, Page page, int kv_head) {
    int lane = threadIdx.x % 32;
    u32 copies = __popc(__ballot_sync(~0u, page.wanted));
    if (lane == 0) barrier_expect(bar, copies * BOX * 128);
    __syncwarp();
    if (page.wanted) {
        int panel = lane / BOXES;
        copy_4d(to + panel * PANEL_BYTES + (lane % BOXES) * BOX * 128, map, bar, panel * 64, page.key % PAGE,
                kv_head, page.block);
    }
}

// Zeros in rows from .. to - 1 of a tile of V that nothing loaded, or that no query may see: weights of 0 times what
// is there must be 0. By `threads` threads, of which this is number `thread`.
DEVICE void clear_rows(u32 tile, int from, int to, int thread, int threads) {
#pragma unroll 1
    for (int row = from + thread / 8; row < to; row += threads / 8)
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};"
                         ::"r"(tile + panel * PANEL_BYTES + row * 128 + thread % 8 * 16), "r"(0) : "memory");
}

DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
#if SINKS
constexpr float LOG2_E = 1.4426950408889634f;
DEVICE float sink_log2(const void* sinks, int head) {
#if SINKS == 1
    return ((const float*)sinks)[head] * LOG2_E;
#else
    return unpack(((const u16*)sinks)[head]) * LOG2_E;
#endif
}
#endif
