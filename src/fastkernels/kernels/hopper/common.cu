// What both attention kernels share: barriers, the copy engine, tensor cores, and how a call describes itself.
//
// A translation unit is made for each set of constants (host.py): DIMS padded head dimension, a multiple of
// 64 · HEAD the head dimension · GROUP query heads that share a key/value head · PAGE tokens of a cache block ·
// TILE keys of a step · STAGES of the pipeline · WINDOWED, SINKS (0 none, 1 float32, 2 of the query's type) ·
// BF16 or float16.
//
// A tile in shared memory is `DIMS / 64` panels of TILE rows of 64 elements: 128 bytes a row, in the copy
// engine's 128-byte swizzle, which both kinds of matrix instructions read without bank conflicts.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

struct alignas(64) TensorMap {
    char bytes[128];
};

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

#define DEVICE __device__ __forceinline__
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// --- barriers in shared memory ---

DEVICE void barrier_init(u32 bar, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
DEVICE void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
#ifdef WATCHDOG
extern "C" __device__ int printf(const char*, ...);
DEVICE void barrier_wait(u32 bar, u32 phase) {
    for (int tries = 0;; ++tries) {
        u32 done;
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar), "r"(phase) : "memory");
        if (done) return;
        if (tries == (1 << 16)) {
            printf("block %d thread %d waits for barrier at %u, phase %u\n", (int)blockIdx.x, (int)threadIdx.x,
                   bar, phase);
            asm volatile("trap;");
        }
    }
}
#else
DEVICE void barrier_wait(u32 bar, u32 phase) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(bar), "r"(phase) : "memory");
}
#endif

// Named barriers of threads: 0 is __syncthreads.
DEVICE void threads_sync(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
DEVICE void threads_arrive(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// Wait until the kernel ahead has ended and what it wrote can be read; then let the next one begin.
DEVICE void follow() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// --- the copy engine ---

DEVICE void copy_3d(u32 to, const TensorMap* map, u32 bar, int a, int b, int c) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(to), "l"(map), "r"(bar), "r"(a), "r"(b), "r"(c) : "memory");
}
DEVICE void copy_4d(u32 to, const TensorMap* map, u32 bar, int a, int b, int c, int d) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(to), "l"(map), "r"(bar), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DEVICE void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

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

// --- arithmetic ---

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float log2_fast(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE u32 pack(float low, float high) {
    u32 y;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#endif
    return y;
}
DEVICE float unpack(u16 x) {
#if BF16
    return __int_as_float((u32)x << 16);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
#endif
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
