// CUDA C++ on a CPU: what the Hopper kernels call, for threads that take turns in an order drawn by dice.
//
// Threads of a block, or of a cluster's blocks, are fibers. One runs until it waits for others; which goes on next is drawn anew, so that
// orders come up that a GPU shows rarely. Where all wait, the block is stuck: it says who waits for what. The tensor
// cores answer at once: what is read before it is there, or written while it is still read, is not found here.
// bfloat16 only. Shared memory holds NaN before a block begins.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

using std::max;
using std::min;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ static

struct Dim {
    int x, y, z;
};
static Dim threadIdx, blockIdx, gridDim, blockDim;
struct uint2 {
    u32 x, y;
};
struct float4 {
    float x, y, z, w;
};
static uint2 make_uint2(u32 a, u32 b) { return {a, b}; }
static float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }

// --- threads ---

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 17);
    std::function<bool()> ready;
    int thread, rank;  // rank: of its block in the cluster
    bool done = false;
    const char* waits_for;
    int which;
};
struct Meeting {
    int count, generation;
};
static std::vector<Fiber*> fibers;
static Fiber* current;
static ucontext_t scheduler;
static std::function<void()> body;
static std::mt19937 dice(7);
constexpr int MOST_BLOCKS = 4;  // of a cluster
static Meeting all_meetings_of_warps[MOST_BLOCKS][16], all_meetings[MOST_BLOCKS][16];  // of a warp; a named barrier
static Meeting meeting_of_cluster;
#define meetings_of_warps all_meetings_of_warps[current->rank]
#define meetings all_meetings[current->rank]
static u64 all_brought[MOST_BLOCKS][16][32];
#define brought all_brought[current->rank]
static int block_threads;
#define WARP (current->thread / 32)
#define LANE (current->thread % 32)

static void wait_until(const char* waits_for, int which, std::function<bool()> ready) {
    if (ready()) return;
    Fiber* me = current;
    me->ready = ready, me->waits_for = waits_for, me->which = which;
    swapcontext(&me->context, &scheduler);
}
static void enter() {
    body();
    current->done = true;
}
// `blocks` of them from blockIdx on, along z.
static void run_cluster(int blocks, int threads) {
    block_threads = threads;
    memset(all_meetings_of_warps, 0, sizeof all_meetings_of_warps);
    memset(all_meetings, 0, sizeof all_meetings);
    meeting_of_cluster = {0, 0};
    int first = blockIdx.z;
    for (int thread = 0; thread < blocks * threads; ++thread) {
        Fiber* one = new Fiber;
        one->thread = thread % threads, one->rank = thread / threads;
        getcontext(&one->context);
        one->context.uc_stack.ss_sp = one->stack.data();
        one->context.uc_stack.ss_size = one->stack.size();
        one->context.uc_link = &scheduler;
        makecontext(&one->context, enter, 0);
        fibers.push_back(one);
    }
    for (bool moved = true; moved;) {
        moved = false;
        std::shuffle(fibers.begin(), fibers.end(), dice);
        for (Fiber* one : fibers) {
            if (one->done || (one->ready && !one->ready())) continue;
            one->ready = nullptr;
            current = one;
            threadIdx = {one->thread, 0, 0};
            blockIdx.z = first + one->rank;
            moved = true;
            swapcontext(&scheduler, &one->context);
        }
    }
    for (Fiber* one : fibers) {
        if (!one->done) {
            fprintf(stderr, "stuck: block %d, thread %d waits for %s %d\n", blockIdx.x, one->thread, one->waits_for,
                    one->which);
            _exit(9);
        }
        delete one;
    }
    fibers.clear();
}

static void meet(Meeting& meeting, int threads) {
    if (++meeting.count == threads) meeting.count = 0, ++meeting.generation;
}
static void meet_and_wait(Meeting& meeting, int threads, const char* what, int which) {
    int generation = meeting.generation;
    meet(meeting, threads);
    wait_until(what, which, [&meeting, generation] { return meeting.generation != generation; });
}
static void __syncwarp(u32 = ~0u) { meet_and_wait(meetings_of_warps[WARP], 32, "warp", WARP); }
static void __syncthreads() { meet_and_wait(meetings[0], block_threads, "named barrier", 0); }
static void threads_sync(int name, int threads) { meet_and_wait(meetings[name], threads, "named barrier", name); }
static void threads_arrive(int name, int threads) { meet(meetings[name], threads); }
static void meet() { meet_and_wait(meeting_of_cluster, CLUSTER * 128, "cluster", 0); }  // attending warps of decode

template <class T> T exchanged(T value, int from) {
    T answer;
    brought[WARP][LANE] = 0;
    memcpy(&brought[WARP][LANE], &value, sizeof value);
    __syncwarp();
    memcpy(&answer, &brought[WARP][from], sizeof answer);
    __syncwarp();
    return answer;
}
template <class T> T __shfl_sync(u32, T value, int lane) { return exchanged(value, lane); }
template <class T> T __shfl_xor_sync(u32, T value, int mask) { return exchanged(value, LANE ^ mask); }
template <class T> T __shfl_up_sync(u32, T value, int by) { return exchanged(value, LANE >= by ? LANE - by : LANE); }
static u32 __ballot_sync(u32, bool value) {
    u32 answer = 0;
    brought[WARP][LANE] = value;
    __syncwarp();
    for (int lane = 0; lane < 32; ++lane) answer |= (u32)(brought[WARP][lane] != 0) << lane;
    __syncwarp();
    return answer;
}
static bool __any_sync(u32, bool value) { return __ballot_sync(~0u, value) != 0; }

// --- memory ---

alignas(1024) static char memories[MOST_BLOCKS][256 * 1024];
#define memory memories[current->rank]
static u32 shared_address(const void* p) { return (u32)((const char*)p - memory); }
static char* at(u32 address) { return memory + (int)address; }
static int swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }
static void __threadfence() {}
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> void __stcg(T* p, T value) { *p = value; }
static int atomicAdd(int* p, int value) {
    int before = *p;
    *p += value;
    return before;
}
static void clear_16(u32 address) { memset(at(address), 0, 16); }
static void store_16(char* to, u32 a, u32 b, u32 c, u32 d) {
    u32 words[] = {a, b, c, d};
    memcpy(to, words, 16);
}

struct Barrier {
    int expected, missing;
    long bytes;
    u32 phase;
    void change(int arrivals, long more) {
        missing -= arrivals, bytes += more;
        if (missing < 0) fprintf(stderr, "too many arrivals at a barrier\n"), _exit(9);
        if (missing == 0 && bytes == 0) phase ^= 1, missing = expected;
    }
};
static std::map<u32, Barrier> all_barriers[MOST_BLOCKS];
#define barriers all_barriers[current->rank]
static void barrier_init(u32 address, u32 arrivals) { barriers[address] = {(int)arrivals, (int)arrivals, 0, 0}; }
static void barrier_expect(u32 address, u32 bytes) { barriers.at(address).change(1, bytes); }
static void barrier_arrive(u32 address) { barriers.at(address).change(1, 0); }
static void barrier_wait(u32 address, u32 phase) {
    Barrier* barrier = &barriers.at(address);
    wait_until("barrier", (int)address, [=] { return barrier->phase != phase; });
}

struct Map {  // as emulation.py describes a tensor
    char* data;
    long rank, sizes[4], strides[4], box[4];
};
static void copy(u32 to, const void* described, u32 barrier, std::vector<long> origin) {
    Map map;
    memcpy(&map, described, sizeof map);
    long count = 1;
    for (int d = 0; d < map.rank; ++d) count *= map.box[d];
    for (long index = 0; index < count; ++index) {
        long rest = index, offset = 0;
        bool inside = true;
        for (int d = 0; d < map.rank; ++d) {
            long x = origin[d] + rest % map.box[d];
            rest /= map.box[d];
            inside = inside && 0 <= x && x < map.sizes[d];
            offset += x * map.strides[d];
        }
        u16 value = 0;
        if (inside) memcpy(&value, map.data + offset, 2);
        memcpy(at(swizzled(to + 2 * index)), &value, 2);
    }
    barriers.at(barrier).change(0, -2 * count);
}
static void copy_3d(u32 to, const void* map, u32 barrier, int a, int b, int c) { copy(to, map, barrier, {a, b, c}); }
static void copy_4d(u32 to, const void* map, u32 barrier, int a, int b, int c, int d) {
    copy(to, map, barrier, {a, b, c, d});
}
static void prefetch_map(const void*) {}
static void prefetch_3d(const void*, int, int, int) {}
static void prefetch_4d(const void*, int, int, int, int) {}
static void follow() {}

// Another block of the cluster: its variable lies beside, or at the same place of its memory.
template <class T> const T* in_program(int rank, const T* mine) {
    size_t offset = (const char*)mine - memory;
    return offset < sizeof memory ? (const T*)(memories[rank] + offset) : mine + (rank - current->rank);
}

// cp.async: what a thread asked for comes when it waits, no sooner.
typedef std::vector<std::function<void()>> Copies;
static std::vector<Copies> asked[384];  // by thread: groups, the last one open
static Copies& open_group() {
    std::vector<Copies>& groups = asked[current->thread];
    if (groups.empty()) groups.emplace_back();
    return groups.back();
}
static void copy_16(u32 to, const void* from, int bytes) {
    open_group().push_back([=] {
        memset(at(to), 0, 16);
        memcpy(at(to), from, bytes);
    });
}
static void copies_commit() { open_group(), asked[current->thread].emplace_back(); }
template <int N> void copies_wait() {
    std::vector<Copies>& groups = asked[current->thread];
    while ((int)groups.size() - 1 > N) {
        for (auto& copy : groups.front()) copy();
        groups.erase(groups.begin());
    }
}

// --- arithmetic ---

static float __int_as_float(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static int __popc(u32 x) { return __builtin_popcount(x); }
static float __fdividef(float a, float b) { return a / b; }
static float exp2_fast(float x) { return exp2f(x); }
static float log2_fast(float x) { return log2f(x); }
static u32 narrowed(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static u32 pack(float low, float high) { return narrowed(low) | narrowed(high) << 16; }
static float unpack(u16 x) { return __int_as_float((u32)x << 16); }
static float half_of(u32 word, int which) { return unpack(word >> 16 * which); }
static float element_at(u32 address) {
    u16 x;
    memcpy(&x, at(swizzled(address)), 2);
    return unpack(x);
}

// wgmma: a thread's registers, and descriptors of swizzled tiles. Also: threads of a warp do this together.
static void wgmma_fence() { __syncwarp(); }
static void wgmma_commit() { __syncwarp(); }
template <int N, int R> void wgmma_wait(float (&)[R]) { __syncwarp(); }
template <int N> void wgmma_wait() { __syncwarp(); }
template <int R> void held(u32 (&)[R]) {}
static u32 begin_of(u64 desc) { return (desc & 0x3fff) << 4; }
static u32 along_of(u64 desc) { return (desc >> 16 & 0x3fff) << 4; }
static u32 groups_of(u64 desc) { return (desc >> 32 & 0x3fff) << 4; }
static float row_major(u64 desc, int row, int k) {
    return element_at(begin_of(desc) + row / 8 * groups_of(desc) + row % 8 * 128 + 2 * k);
}
static float column_major(u64 desc, int k, int column) {
    return element_at(begin_of(desc) + column / 64 * along_of(desc) + k / 8 * groups_of(desc) + k % 8 * 128 +
                      column % 64 * 2);
}
template <int R> void wgmma_scores(float (&r)[R], u64 a, u64 b, int adds) {
    for (int at = 0; at < R; ++at) {
        int row = WARP % 4 * 16 + LANE / 4 + at / 2 % 2 * 8, column = at / 4 * 8 + LANE % 4 * 2 + at % 2;
        float sum = adds ? r[at] : 0.f;
        for (int k = 0; k < 16; ++k) sum += row_major(a, row, k) * row_major(b, column, k);
        r[at] = sum;
    }
}
// A row of sixteen weights is held by four lanes.
static void gathered(float (&rows)[2][16], const u32* a) {
    for (int lane = 0; lane < 4; ++lane)
        for (int i = 0; i < 4; ++i) {
            u32 word = exchanged(a[i], LANE / 4 * 4 + lane);
            for (int e = 0; e < 2; ++e) rows[i % 2][i / 2 * 8 + lane * 2 + e] = half_of(word, e);
        }
}
template <int R> void wgmma_values(float (&r)[R], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int adds) {
    u32 a[] = {a0, a1, a2, a3};
    float rows[2][16];
    gathered(rows, a);
    for (int at = 0; at < R; ++at) {
        float sum = adds ? r[at] : 0.f;
        for (int k = 0; k < 16; ++k)
            sum += rows[at / 2 % 2][k] * column_major(b, k, at / 4 * 8 + LANE % 4 * 2 + at % 2);
        r[at] = sum;
    }
}

// ldmatrix and mma: addresses are swizzled by the kernel.
static u16 plain(u32 address) {
    u16 x;
    memcpy(&x, at(address), 2);
    return x;
}
static u32 transposed(u32 pair) {
    u32 answer = 0;
    for (int i = 0; i < 2; ++i) {
        u32 word = exchanged(pair, (LANE % 4 * 2 + i) * 4 + LANE / 8);
        answer |= (word >> 16 * (LANE / 4 % 2) & 0xffff) << 16 * i;
    }
    return answer;
}
static void matrix_load(u32 (&r)[4], u32 from) {
    for (int i = 0; i < 4; ++i) {
        u32 row = exchanged(from, i * 8 + LANE / 4) + LANE % 4 * 4;
        r[i] = plain(row) | (u32)plain(row + 2) << 16;
    }
}
static void matrix_load_transposed(u32 (&r)[4], u32 from) {
    for (int i = 0; i < 4; ++i) {
        u32 low = exchanged(from, i * 8 + LANE % 4 * 2), high = exchanged(from, i * 8 + LANE % 4 * 2 + 1);
        r[i] = plain(low + LANE / 4 * 2) | (u32)plain(high + LANE / 4 * 2) << 16;
    }
}
static void multiply(float* c, const u32* a, u32 b0, u32 b1) {
    float rows[2][16], columns[2][16];
    gathered(rows, a);
    for (int e = 0; e < 2; ++e)
        for (int q = 0; q < 4; ++q) {
            int from = (LANE % 4 * 2 + e) * 4 + q;
            u32 low = exchanged(b0, from), high = exchanged(b1, from);
            for (int i = 0; i < 2; ++i) {
                columns[e][q * 2 + i] = half_of(low, i);
                columns[e][8 + q * 2 + i] = half_of(high, i);
            }
        }
    for (int at = 0; at < 4; ++at)
        for (int k = 0; k < 16; ++k) c[at] += rows[at / 2][k] * columns[at % 2][k];
}
