// What kernels for Hopper in CUDA C++ share: barriers, the copy engine, conversions. BF16 or float16.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

struct alignas(64) TensorMap {
    char bytes[128];
};

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
// Boxes into L2 alone.
DEVICE void prefetch_3d(const TensorMap* map, int a, int b, int c) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];"
                 ::"l"(map), "r"(a), "r"(b), "r"(c) : "memory");
}
DEVICE void prefetch_4d(const TensorMap* map, int a, int b, int c, int d) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];"
                 ::"l"(map), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DEVICE void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
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

// --- tensor cores ---

constexpr u64 ROWS_DESC = (1ull << 62) | (64ull << 32) | (1ull << 16);  // 128-byte swizzle, rows of 64 elements
DEVICE u64 address_desc(u32 address) { return (address & 0x3FFFF) >> 4; }

// --- warpgroups ---

// The four lanes of a quad hold two neighbouring columns in each of four groups of eight: afterwards each lane
// holds one group.
DEVICE void transpose_quad(u32 (&w)[4]) {
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 other = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
        (odd ? w[i] : w[i + 1]) = other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        u32 other = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
        (high ? w[i] : w[i + 2]) = other;
    }
}

// For a warpgroup, which has a named barrier to itself: whether the other parts are there. The counter is left at zero.
DEVICE bool comes_last(int* counter, int parts, volatile int* last_one, int name) {
    __threadfence();
    threads_sync(name, 128);
    if (threadIdx.x % 128 == 0) {
        bool last = atomicAdd(counter, 1) == parts - 1;
        if (last) *counter = 0;
        __threadfence();
        *last_one = last;
    }
    threads_sync(name, 128);
    return __any_sync(~0u, *last_one);
}
