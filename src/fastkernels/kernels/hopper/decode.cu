// Decode: a program attends to a part of a row's keys for the GROUP query heads that share them.
//
// One warp loads, four attend: each to its quarter of every tile, with its own softmax. At the end the warps of
// CLUSTER neighbouring programs are added up, each program some of the heads. What clusters find of a head is left
// in memory, and whoever comes last adds it up in order, so the result does not depend on who that was.

constexpr int WARPS = 4;
constexpr int KEYS = TILE / WARPS;  // of a tile, one warp's
constexpr int CHUNK = KEYS / 8;
constexpr int TOGETHER = 16;  // parts of a row that a thread reads at once
constexpr int MINE = GROUP / CLUSTER;  // heads that a program adds up: its rank's, each CLUSTER-th
static_assert(GROUP % CLUSTER == 0, "programs of a cluster add up as many heads each");
static_assert(GROUP <= 16 && KEYS >= 16, "16 rows of queries, 16 keys of a matrix product");

struct Barriers {
    u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

constexpr int LINE = DIMS + 4;  // floats of a row of a warp's part: rows start at different banks
static_assert(WARPS * GROUP * LINE * 4 <= 2 * STAGES * TILE_BYTES, "parts of the warps lie where tiles lay");

struct Part {
    int first, begin, end, used;  // used: clusters that have keys
};

// As kernels/decode_attention/triton.py cuts a row, into whole tiles.
DEVICE Part find_part(int seq_len, int split, int splits, int window) {
    Part part;
    part.first = WINDOWED ? max(seq_len - window, 0) : 0;
    int start = part.first / TILE * TILE, keys = seq_len - start;
    int size = ((keys + splits - 1) / splits + TILE - 1) / TILE * TILE;
    size = max(size, TILE);  // of a row without keys, too
    part.begin = start + split * size;
    part.end = min(part.begin + size, seq_len);
    part.used = (keys + size * CLUSTER - 1) / (size * CLUSTER);
    return part;
}

DEVICE void matrix_load(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
DEVICE void matrix_load_transposed(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
#if BF16
#define HALF "bf16"
#else
#define HALF "f16"
#endif
DEVICE void multiply(float* c, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Where a row's eight elements from `dim` on lie in a tile.
DEVICE u32 element(u32 tile, int row, int dim) {
    return tile + dim / 64 * PANEL_BYTES + row * 128 + ((dim % 64 * 2) ^ (row % 8 * 16));
}

DEVICE void load(const Params& p, u32 k_tiles, u32 v_tiles, Barriers* b, Part part, int row, int kv_head) {
    const int* table = p.tables + (long long)row * p.table_stride;
    u32 stage = 0, phase = 1;
    Page next = find_page(table, part.begin, part.first, part.end);
    for (int start = part.begin; start < part.end; start += TILE) {
        Page page = next;
        if (start + TILE < part.end) next = find_page(table, start + TILE, part.first, part.end);
        barrier_wait(shared_address(&b->k_empty[stage]), phase);
        load_tile(k_tiles + stage * TILE_BYTES, &p.k, shared_address(&b->k_full[stage]), page, kv_head);
        barrier_wait(shared_address(&b->v_empty[stage]), phase);
        load_tile(v_tiles + stage * TILE_BYTES, &p.v, shared_address(&b->v_full[stage]), page, kv_head);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
}

struct Sums {
    float top[WARPS][16], sum[WARPS][16];
    int last;
};

// Waits for the attending warps of the cluster. Loading warps have left by then, or will without a word.
DEVICE void meet() {
    if constexpr (CLUSTER == 1)
        threads_sync(1, WARPS * 32);
    else
        asm volatile("barrier.cluster.arrive.release.aligned;\n"
                     "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What another program of the cluster has where this one has `mine` in shared memory.
template <class T> DEVICE const T* in_program(int rank, const T* mine) {
    if constexpr (CLUSTER == 1) return mine;
    u64 theirs;
    asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(rank));
    return (const T*)theirs;
}

DEVICE void attend(const Params& p, u32 k_tiles, u32 v_tiles, Barriers* b, Part part, int row, int kv_head,
                   int split, int splits, float* parts, Sums* sums) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 q[DIMS / 16][4];
    const u16* query = (const u16*)p.query + row * p.q_stride_t + kv_head * GROUP * p.q_stride_h;
#pragma unroll
    for (int k = 0; k < DIMS / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int head = lane / 4 + i % 2 * 8, dim = 16 * k + lane % 4 * 2 + i / 2 * 8;
            q[k][i] = head < GROUP && dim < HEAD ? *(const u32*)(query + head * p.q_stride_h + dim) : 0;
        }
    float o[DIMS / 8][4], top[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, sum[2] = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < DIMS / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[j][i] = 0.f;

    u32 stage = 0, phase = 0;
    for (int start = part.begin; start < part.end; start += TILE) {
        float s[CHUNK][4];
#pragma unroll
        for (int n = 0; n < CHUNK; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[n][i] = 0.f;
        u32 tile = k_tiles + stage * TILE_BYTES;
        barrier_wait(shared_address(&b->k_full[stage]), phase);
#pragma unroll
        for (int k = 0; k < DIMS / 32; ++k)
#pragma unroll
            for (int n = 0; n < CHUNK; ++n) {
                u32 r[4];
                matrix_load(r, element(tile, warp * KEYS + n * 8 + lane % 8, k * 32 + lane / 8 * 8));
                multiply(s[n], q[2 * k], r[0], r[1]);
                multiply(s[n], q[2 * k + 1], r[2], r[3]);
            }
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&b->k_empty[stage]));

        int key = start + warp * KEYS;
        bool edge = key + KEYS > part.end || key < part.first;
        if (edge) {
            int limit = part.end - key - lane % 4 * 2, least = part.first - key - lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < CHUNK; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (8 * n + i % 2 >= limit || 8 * n + i % 2 < least) s[n][i] = NEGATIVE_INFINITY;
        }
        float shrink[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float most = top[i];
#pragma unroll
            for (int n = 0; n < CHUNK; ++n) most = fmaxf(most, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
            most = quad_max(most);
            float base = most == NEGATIVE_INFINITY ? 0.f : most * p.scale_log2;
            shrink[i] = exp2_fast(top[i] * p.scale_log2 - base);
            top[i] = most;
            float here = 0.f;
#pragma unroll
            for (int n = 0; n < CHUNK; ++n) {
                here += s[n][2 * i] = exp2_fast(s[n][2 * i] * p.scale_log2 - base);
                here += s[n][2 * i + 1] = exp2_fast(s[n][2 * i + 1] * p.scale_log2 - base);
            }
            sum[i] = sum[i] * shrink[i] + here;
        }
#pragma unroll
        for (int j = 0; j < DIMS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) o[j][i] *= shrink[i / 2];

        tile = v_tiles + stage * TILE_BYTES;
        barrier_wait(shared_address(&b->v_full[stage]), phase);
        if (edge) {
            int base = warp * KEYS;
            clear_rows(tile, base, base + min(part.first - key, KEYS), lane, 32);
            clear_rows(tile, base + max(part.end - key, 0), base + KEYS, lane, 32);
            __syncwarp();
        }
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) {
            u32 w[4] = {pack(s[2 * k][0], s[2 * k][1]), pack(s[2 * k][2], s[2 * k][3]),
                        pack(s[2 * k + 1][0], s[2 * k + 1][1]), pack(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int j = 0; j < DIMS / 16; ++j) {
                u32 r[4];
                matrix_load_transposed(
                    r, element(tile, warp * KEYS + k * 16 + lane / 8 % 2 * 8 + lane % 8, j * 16 + lane / 16 * 8));
                multiply(o[2 * j], w, r[0], r[1]);
                multiply(o[2 * j + 1], w, r[2], r[3]);
            }
        }
        // What was cleared is written by these threads, and next by the copy engine.
        if (edge) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&b->v_empty[stage]));
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }

    // Every tile is read: parts of the warps take their place.
    threads_sync(1, WARPS * 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        int head = lane / 4 + 8 * i;
        float total = quad_sum(sum[i]);
        if (head < GROUP) {
            if (lane % 4 == 0) sums->top[warp][head] = top[i] * p.scale_log2, sums->sum[warp][head] = total;
            float* to = parts + (warp * GROUP + head) * LINE + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < DIMS / 8; ++j) {
                to[8 * j] = o[j][2 * i];
                to[8 * j + 1] = o[j][2 * i + 1];
            }
        }
    }
    meet();

    int unit = row * p.num_kv_heads + kv_head, rank = split % CLUSTER, clusters = splits / CLUSTER;
    u16* out = (u16*)p.out + (long long)unit * GROUP * HEAD;
    long long slot = (long long)unit * clusters + split / CLUSTER;
    constexpr int QUADS = HEAD / 4;
    for (int at = threadIdx.x; at < MINE * QUADS; at += WARPS * 32) {
        int head = at / QUADS * CLUSTER + rank, dim = at % QUADS * 4;
        float tops[CLUSTER * WARPS], high = NEGATIVE_INFINITY;
#pragma unroll
        for (int i = 0; i < CLUSTER * WARPS; ++i) {
            tops[i] = in_program(i / WARPS, sums)->top[i % WARPS][head];
            high = fmaxf(high, tops[i]);
        }
#if SINKS
        float sink = split < CLUSTER ? sink_log2(p.sinks, kv_head * GROUP + head) : NEGATIVE_INFINITY;
        high = fmaxf(high, sink);
#endif
        float total = 0.f, x[4] = {0.f, 0.f, 0.f, 0.f};
#if SINKS
        total = exp2_fast(sink - high);
#endif
#pragma unroll
        for (int i = 0; i < CLUSTER * WARPS; ++i) {
            float weight = exp2_fast(tops[i] - high);
            total += weight * in_program(i / WARPS, sums)->sum[i % WARPS][head];
            const float* part_of_warp = in_program(i / WARPS, parts) + (i % WARPS * GROUP + head) * LINE;
            float4 y = *(const float4*)(part_of_warp + dim);
            x[0] += weight * y.x, x[1] += weight * y.y, x[2] += weight * y.z, x[3] += weight * y.w;
        }
        float factor = 1.f / total;
        if (part.used == 1) {
            *(uint2*)(out + head * HEAD + dim) =
                make_uint2(pack(x[0] * factor, x[1] * factor), pack(x[2] * factor, x[3] * factor));
        } else {
            *(float4*)(p.split_out + (slot * GROUP + head) * HEAD + dim) =
                make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
            if (dim == 0) p.split_lse[slot * GROUP + head] = high + log2_fast(total);
        }
    }
    if (CLUSTER == 1 && part.used == 1) return;

    __threadfence();
    meet();  // then nobody reads this program's shared memory any more
    if (part.used == 1) return;
    if (threadIdx.x == 0) {
        int* counter = p.counters + unit * CLUSTER + rank;
        sums->last = atomicAdd(counter, 1) == part.used - 1;
        if (sums->last) *counter = 0;
        __threadfence();
    }
    threads_sync(1, WARPS * 32);
    if (!sums->last) return;
    // Weights of the parts first, side by side: each read of what others left takes as long as many.
    const float* lse = p.split_lse + (long long)unit * clusters * GROUP + rank;
    const float* from = p.split_out + (long long)unit * clusters * GROUP * HEAD;
    for (int at = threadIdx.x; at < part.used * MINE; at += WARPS * 32) parts[at] = __ldcg(lse + at * CLUSTER);
    threads_sync(1, WARPS * 32);
    for (int at = threadIdx.x; at < MINE * QUADS; at += WARPS * 32) {
        int mine = at / QUADS, head = mine * CLUSTER + rank, dim = at % QUADS * 4;
        float high = NEGATIVE_INFINITY;
        for (int i = 0; i < part.used; ++i) high = fmaxf(high, parts[i * MINE + mine]);
        float total = 0.f, x[4] = {0.f, 0.f, 0.f, 0.f};
        for (int first = 0; first < part.used; first += TOGETHER) {
            float4 y[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i)
                if (first + i < part.used)
                    y[i] = __ldcg((const float4*)(from + ((first + i) * GROUP + head) * HEAD + dim));
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i)
                if (first + i < part.used) {
                    float weight = exp2_fast(parts[(first + i) * MINE + mine] - high);
                    total += weight;
                    x[0] += weight * y[i].x, x[1] += weight * y[i].y;
                    x[2] += weight * y[i].z, x[3] += weight * y[i].w;
                }
        }
        float factor = 1.f / total;
        *(uint2*)(out + head * HEAD + dim) =
            make_uint2(pack(x[0] * factor, x[1] * factor), pack(x[2] * factor, x[3] * factor));
    }
}

#if CLUSTER > 1
#define OF_CLUSTERS __cluster_dims__(1, 1, CLUSTER)
#else
#define OF_CLUSTERS
#endif
extern "C" __global__ void OF_CLUSTERS __launch_bounds__(WARPS * 32 + 32) decode(const __grid_constant__ Params p) {
    extern __shared__ char memory[];
    __shared__ Barriers b;
    __shared__ Sums sums;
    u32 k_tiles = (shared_address(memory) + 1023) & ~1023u;
    u32 v_tiles = k_tiles + STAGES * TILE_BYTES;
    if (threadIdx.x == WARPS * 32) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&b.k_full[i]), 1);
            barrier_init(shared_address(&b.k_empty[i]), WARPS);
            barrier_init(shared_address(&b.v_full[i]), 1);
            barrier_init(shared_address(&b.v_empty[i]), WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        prefetch_map(&p.k), prefetch_map(&p.v);
    }
    __syncthreads();
    follow();
    int kv_head = blockIdx.x, row = blockIdx.y, split = blockIdx.z;
    int seq_len = p.seq_lens[row];
    Part part = find_part(seq_len, split, gridDim.z, p.window);
    if (split / CLUSTER >= part.used) {
        if (split == 0)
            for (int at = threadIdx.x; at < GROUP * HEAD / 2; at += blockDim.x)
                ((u32*)p.out)[(long long)(row * p.num_kv_heads + kv_head) * (GROUP * HEAD / 2) + at] = 0;
        return;
    }
    if (threadIdx.x >= WARPS * 32)
        load(p, k_tiles, v_tiles, &b, part, row, kv_head);
    else
        attend(p, k_tiles, v_tiles, &b, part, row, kv_head, split, gridDim.z,
               (float*)(memory + (k_tiles - shared_address(memory))), &sums);
}
