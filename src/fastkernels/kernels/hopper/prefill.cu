// Prefill: warpgroups of 64 rows each attend, one more warp finds work and loads queries and keys, another values.
//
// A tile of queries is TOKENS tokens of GROUP heads: row r is head r % GROUP of token r / GROUP. Keys are walked
// from the diagonal back. While one warpgroup has the tensor cores, another computes its softmax; within
// a warpgroup, the scores of the next step are computed beside the values of this one.
//
// Where tiles are few, the steps of each are split (SPLIT): every part leaves its sums, and whoever comes last
// adds them up in order, so that the result does not depend on who that was.

constexpr int ROWS = 64 * GROUPS;
constexpr int TOKENS = ROWS / GROUP;
constexpr u32 Q_PANEL_BYTES = ROWS * 128;
constexpr u32 Q_BYTES = PANELS * Q_PANEL_BYTES;
constexpr int CONSUMERS = 128 * GROUPS;  // threads of the warpgroups that attend
constexpr int PAIR = 256;  // threads of two
constexpr int LEAST_STEPS = 2;  // of a part
constexpr float NEAR = 8.f;
constexpr int AHEAD = 2;  // steps before its end at which a tile's successor is drawn

struct Work {
    int row, kv_head;
    int tokens, first_token;  // of the row from this tile on; the tile's first in the batch
    int position, first_key, end;  // of the first token; keys that any token sees
    int first_block, blocks;  // steps first_block .. blocks - 1; blocks < 0: no more work
    int unit, split, used;  // which tile and head, which of its parts
};

struct Barriers {
    u64 q_full, q_empty, work_full[2], work_empty[2];
    u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

// Where in the list of tiles the loading warp is: rows in chunks of 32, one a lane.
struct Rows {
    int chunk, before;  // which, and the tiles of those before it
    int start, length, seq_len, ends;  // the lane's row; tiles of the chunk up to its end
};

DEVICE void read_chunk(Rows& rows, const Params& p) {
    int lane = threadIdx.x % 32, row = rows.chunk * 32 + lane;
    rows.start = rows.length = rows.seq_len = 0;
    if (row < p.num_rows) {
        rows.start = p.query_starts[row];
        rows.length = p.query_starts[row + 1] - rows.start;
        rows.seq_len = p.seq_lens[row];
    }
    rows.ends = (rows.length + TOKENS - 1) / TOKENS;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(~0u, rows.ends, d);
        if (lane >= d) rows.ends += other;
    }
}

// False where no tile is left. Of a tile's parts those from `used` on are not needed.
DEVICE bool find_work(Work& work, Rows& rows, int ticket, const Params& p, int origin) {
    work.unit = SPLIT ? ticket / p.splits : ticket;
    work.split = ticket - work.unit * (SPLIT ? p.splits : 1);
    work.kv_head = work.unit % p.num_kv_heads;
    int tile = work.unit / p.num_kv_heads;
    while (true) {
        int total = __shfl_sync(~0u, rows.ends, 31);
        if (tile < rows.before + total) break;
        rows.before += total;
        if (++rows.chunk * 32 >= p.num_rows) return false;
        read_chunk(rows, p);
    }
    int at = tile - rows.before;
    int lane = __popc(__ballot_sync(~0u, rows.ends <= at));
    work.row = rows.chunk * 32 + lane;
    // A row's last tile sees the most keys: it comes first.
    int first_query = (__shfl_sync(~0u, rows.ends, lane) - 1 - at) * TOKENS;
    work.tokens = __shfl_sync(~0u, rows.length, lane) - first_query;
    work.first_token = __shfl_sync(~0u, rows.start, lane) - origin + first_query;
    work.position = __shfl_sync(~0u, rows.seq_len, lane) - work.tokens;
    work.end = work.position + min(TOKENS, work.tokens);
    work.first_key = WINDOWED ? max(work.position - p.window + 1, 0) : 0;
    work.first_block = work.first_key / TILE;
    work.blocks = (work.end + TILE - 1) / TILE;
    work.used = 1;
    if (SPLIT) {
        int steps = work.blocks - work.first_block;
        int size = max((steps + p.splits - 1) / p.splits, LEAST_STEPS);
        work.used = (steps + size - 1) / size;
        work.blocks -= work.split * size;
        work.first_block = max(work.first_block, work.blocks - size);
    }
    return true;
}

DEVICE void load(const Params& p, u32 q_tile, u32 k_tiles, Work* slots, Barriers* b) {
    int lane = threadIdx.x % 32;
    int origin = p.query_starts[0];
    Rows rows = {0, 0, 0, 0, 0, 0};
    read_chunk(rows, p);
    int ticket = blockIdx.x;
    u32 stage = 0, phase = 1;  // of an empty pipeline the phase before the first is over
    for (u32 turn = 0;; ++turn) {
        Work work;
        bool more = find_work(work, rows, ticket, p, origin);
        while (SPLIT && more && work.split >= work.used) {
            if (lane == 0) ticket = atomicAdd(p.counters, 1) + gridDim.x;
            ticket = __shfl_sync(~0u, ticket, 0);
            more = find_work(work, rows, ticket, p, origin);
        }
        if (!more) work.blocks = -1;
        u32 slot = turn % 2;
        barrier_wait(shared_address(&b->work_empty[slot]), (turn / 2 + 1) % 2);
        if (lane == 0) {
            slots[slot] = work;
            barrier_arrive(shared_address(&b->work_full[slot]));
        }
        if (!more) break;

        const int* table = p.tables + (long long)work.row * p.table_stride;
        Page next = find_page(table, (work.blocks - 1) * TILE, work.first_key, work.end);
        barrier_wait(shared_address(&b->q_empty), (turn + 1) % 2);
        u32 bar = shared_address(&b->q_full);
        if (lane == 0) barrier_expect(bar, PANELS * GROUP * TOKENS * 128);
        __syncwarp();
        if (lane < PANELS)
            copy_3d(q_tile + lane * Q_PANEL_BYTES, &p.q, bar, lane * 64, work.kv_head * GROUP, work.first_token);
        int draw = min(work.first_block + AHEAD, work.blocks) - 1;
        for (int block = work.blocks - 1; block >= work.first_block; --block) {
            // Before it is needed, but late: whoever is done first takes the next tile.
            if (block == draw && lane == 0) ticket = atomicAdd(p.counters, 1) + gridDim.x;
            Page page = next;
            if (block > work.first_block)
                next = find_page(table, (block - 1) * TILE, work.first_key, work.end);
            barrier_wait(shared_address(&b->k_empty[stage]), phase);
            load_tile(k_tiles + stage * TILE_BYTES, &p.k, shared_address(&b->k_full[stage]), page, work.kv_head);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        ticket = __shfl_sync(~0u, ticket, 0);
    }
    // Whoever leaves last has seen every ticket drawn: the next launch finds zeros.
    if (lane == 0) {
        __threadfence();
        if (atomicAdd(p.counters + 1, 1) == gridDim.x - 1) p.counters[0] = p.counters[1] = 0;
    }
}

// Values come by a warp of their own: a stage of theirs is emptied later than one of keys.
DEVICE void load_values(const Params& p, u32 v_tiles, const Work* slots, Barriers* b) {
    u32 stage = 0, phase = 1;
    for (u32 turn = 0;; ++turn) {
        u32 slot = turn % 2;
        barrier_wait(shared_address(&b->work_full[slot]), (turn / 2) % 2);
        Work work = slots[slot];
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&b->work_empty[slot]));
        if (work.blocks < 0) break;
        const int* table = p.tables + (long long)work.row * p.table_stride;
        Page next = find_page(table, (work.blocks - 1) * TILE, work.first_key, work.end);
        for (int block = work.blocks - 1; block >= work.first_block; --block) {
            Page page = next;
            if (block > work.first_block) next = find_page(table, (block - 1) * TILE, work.first_key, work.end);
            barrier_wait(shared_address(&b->v_empty[stage]), phase);
            load_tile(v_tiles + stage * TILE_BYTES, &p.v, shared_address(&b->v_full[stage]), page, work.kv_head);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

constexpr int SCORES = TILE / 2;  // of a thread: two rows, a quarter of the keys
constexpr int WEIGHTS = TILE / 4;  // registers of two
constexpr int OUTPUTS = DIMS / 2;

constexpr u64 COLUMNS_DESC = (1ull << 62) | (64ull << 32) | ((u64)(PANEL_BYTES >> 4) << 16);
template <int S> DEVICE void issue_scores(float (&s)[S], u64 q_desc, u32 k_tile) {
    u64 k_desc = ROWS_DESC | address_desc(k_tile);
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll
        for (int step = 0; step < 4; ++step)
            wgmma_scores(s, q_desc + panel * (Q_PANEL_BYTES >> 4) + step * 2,
                         k_desc + panel * (PANEL_BYTES >> 4) + step * 2, panel + step > 0);
    wgmma_commit();
}

// o = (adds: o +) weights of the first 16 STEPS keys times their values
template <int STEPS> DEVICE void issue_values(float (&o)[OUTPUTS], u32 (&w)[WEIGHTS], u32 v_tile, int adds) {
    u64 v_desc = COLUMNS_DESC | address_desc(v_tile);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        wgmma_values(o, w[4 * step], w[4 * step + 1], w[4 * step + 2], w[4 * step + 3], v_desc + step * 128,
                     step > 0 ? 1 : adds);
    wgmma_commit();
}

// Scores of keys that a row does not see become -inf. last[i]: the last key that the thread's row i sees.
template <int S> DEVICE void mask(float (&s)[S], int start, const int (&last)[2], int window) {
    int column = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        int limit = last[i] - start - column;
#pragma unroll
        for (int j = 0; j < S / 4; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                bool seen = 8 * j + e <= limit;
                if (WINDOWED) seen = seen && 8 * j + e > limit - window;
                if (!seen) s[4 * j + 2 * i + e] = NEGATIVE_INFINITY;
            }
    }
}

// Scores become weights; top and sum of both rows move on. shrink: what is there already counts for.
template <int S>
DEVICE void soften(float (&s)[S], float (&top)[2], float (&sum)[2], float (&shrink)[2], float scale_log2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float most = s[2 * i], more = s[2 * i + 1];
#pragma unroll
        for (int j = 1; j < S / 4; ++j) {
            most = fmaxf(most, s[4 * j + 2 * i]);
            more = fmaxf(more, s[4 * j + 2 * i + 1]);
        }
        most = fmaxf(top[i], quad_max(fmaxf(most, more)));
        // A top that is near stays: weights are at most 2^NEAR, and nothing shrinks.
        if ((most - top[i]) * scale_log2 <= NEAR) most = top[i];
        float base = most == NEGATIVE_INFINITY ? 0.f : most * scale_log2;
        shrink[i] = most == top[i] ? 1.f : exp2_fast(top[i] * scale_log2 - base);
        top[i] = most;
        float here = 0.f, there = 0.f;
#pragma unroll
        for (int j = 0; j < S / 4; ++j) {
            here += s[4 * j + 2 * i] = exp2_fast(s[4 * j + 2 * i] * scale_log2 - base);
            there += s[4 * j + 2 * i + 1] = exp2_fast(s[4 * j + 2 * i + 1] * scale_log2 - base);
        }
        sum[i] = sum[i] * shrink[i] + (here + there);
    }
}

template <int S> DEVICE void narrow(u32 (&w)[WEIGHTS], const float (&s)[S]) {
#pragma unroll
    for (int j = 0; j < S / 2; ++j) w[j] = pack(s[2 * j], s[2 * j + 1]);
}

// What x is made of is computed here: the compiler would move it behind the wait that follows, where the tensor
// cores idle. (x is not negative.)
DEVICE void computed(float x) { __syncwarp(x < 0.f ? 1 : ~0u); }

// Before V is read: of the tile that begins at key `start` what lies outside keys first .. end - 1. Each warpgroup
// clears all of it, for itself.
DEVICE void clear_unseen(u32 v_tile, int start, int width, int first, int end) {
    if (start + width <= end && start >= first) return;
    int thread = threadIdx.x % 128;
    clear_rows(v_tile, 0, first - start, thread, 128);
    clear_rows(v_tile, max(end - start, 0), width, thread, 128);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    threads_sync(GROUPS + 1 + threadIdx.x / 128, 128);
}

// Parts lie as the threads hold them: what a thread leaves, the thread of its number picks up.
DEVICE void leave_part(const float (&o)[OUTPUTS], const float (&top)[2], const float (&sum)[2], int slot,
                       const Params& p) {
    float* to = p.split_out + (long long)slot * OUTPUTS * CONSUMERS + threadIdx.x;
#pragma unroll
    for (int j = 0; j < OUTPUTS; ++j) __stcg(to + j * CONSUMERS, o[j]);
    float* also = p.split_lse + (long long)slot * 4 * CONSUMERS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 2; ++i) __stcg(also + i * CONSUMERS, top[i]), __stcg(also + (2 + i) * CONSUMERS, sum[i]);
}

DEVICE void add_parts(float (&o)[OUTPUTS], float (&top)[2], float (&sum)[2], int slot, int parts, const Params& p) {
    const float* also = p.split_lse + (long long)slot * 4 * CONSUMERS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        top[i] = NEGATIVE_INFINITY, sum[i] = 0.f;
        for (int part = 0; part < parts; ++part) top[i] = fmaxf(top[i], __ldcg(also + (part * 4 + i) * CONSUMERS));
    }
#pragma unroll
    for (int j = 0; j < OUTPUTS; ++j) o[j] = 0.f;
    for (int part = 0; part < parts; ++part, also += 4 * CONSUMERS) {
        float weight[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            weight[i] = exp2_fast(__ldcg(also + i * CONSUMERS) - top[i]);
            sum[i] += weight[i] * __ldcg(also + (2 + i) * CONSUMERS);
        }
        const float* from = p.split_out + (long long)(slot + part) * OUTPUTS * CONSUMERS + threadIdx.x;
#pragma unroll
        for (int j = 0; j < OUTPUTS; ++j) o[j] += weight[j / 2 % 2] * __ldcg(from + j * CONSUMERS);
    }
}

// One tile of queries, as a warpgroup sees it.
struct Tile {
    u64 q_desc;
    int position, first_key, end, last[2];
};

struct Pipe {
    u32 k_tiles, v_tiles, stage, phase;
    int mine, next;  // barriers of whose turn it is at the tensor cores
    Barriers* b;

    DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// The first step of a tile: scores of its block's first 2 S keys, and their weights.
template <int S>
DEVICE void begin(u32 (&w)[WEIGHTS], float (&top)[2], float (&sum)[2], int block, const Tile& tile, const Pipe& pipe,
                  const Params& p) {
    float s[S], shrink[2];
    barrier_wait(shared_address(&pipe.b->k_full[pipe.stage]), pipe.phase);
    if (PING_PONG) threads_sync(pipe.mine, PAIR);
    issue_scores(s, tile.q_desc, pipe.k_tiles + pipe.stage * TILE_BYTES);
    if (PING_PONG) threads_arrive(pipe.next, PAIR);
    wgmma_wait<0>(s);
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&pipe.b->k_empty[pipe.stage]));
    mask(s, block * TILE, tile.last, p.window);
    top[0] = top[1] = NEGATIVE_INFINITY;
    sum[0] = sum[1] = 0.f;
    soften(s, top, sum, shrink, p.scale_log2);
    narrow(w, s);
}

// `block` has its weights, of all its keys or the first HALF: its values come with the scores of the block before it.
template <bool HALF>
DEVICE void step(float (&o)[OUTPUTS], u32 (&w)[WEIGHTS], float (&top)[2], float (&sum)[2], int adds, int block,
                 const Tile& tile, Pipe& pipe, const Params& p) {
    float s[SCORES], shrink[2];
    bool leads = threadIdx.x % 32 == 0;
    u32 v_full = shared_address(&pipe.b->v_full[pipe.stage]), v_empty = shared_address(&pipe.b->v_empty[pipe.stage]);
    u32 v_tile = pipe.v_tiles + pipe.stage * TILE_BYTES, v_phase = pipe.phase;
    pipe.advance();
    barrier_wait(shared_address(&pipe.b->k_full[pipe.stage]), pipe.phase);
    if (PING_PONG) threads_sync(pipe.mine, PAIR);
    issue_scores(s, tile.q_desc, pipe.k_tiles + pipe.stage * TILE_BYTES);
    barrier_wait(v_full, v_phase);
    clear_unseen(v_tile, block * TILE, HALF ? TILE / 2 : TILE, tile.first_key, tile.end);
    issue_values<HALF ? TILE / 32 : TILE / 16>(o, w, v_tile, adds);
    if (PING_PONG) threads_arrive(pipe.next, PAIR);
    wgmma_wait<1>(s);
    if (leads) barrier_arrive(shared_address(&pipe.b->k_empty[pipe.stage]));
    int start = (block - 1) * TILE;
    if (start + TILE - 1 > tile.position || (WINDOWED && start <= tile.position + TOKENS - 1 - p.window))
        mask(s, start, tile.last, p.window);
    soften(s, top, sum, shrink, p.scale_log2);
    if (BESIDE) computed(sum[0] + sum[1]);
    wgmma_wait<0>(o);
    held(w);
    if (leads) barrier_arrive(v_empty);
    if (__any_sync(~0u, shrink[0] != 1.f || shrink[1] != 1.f))
#pragma unroll
        for (int j = 0; j < OUTPUTS; ++j) o[j] *= shrink[j / 2 % 2];
    narrow(w, s);
}

DEVICE void attend(const Params& p, u32 q_tile, u32 k_tiles, u32 v_tiles, const Work* slots, Barriers* b,
                   int* last_one) {
    int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    int rows[2] = {(int)(threadIdx.x / 32) * 16 + lane / 4, (int)(threadIdx.x / 32) * 16 + lane / 4 + 8};
    u64 q_desc = ROWS_DESC | address_desc(q_tile + group * 64 * 128);
    Pipe pipe = {k_tiles, v_tiles, 0, 0, 1 + group, 1 + (group + 1) % GROUPS, b};
    if (PING_PONG && group == GROUPS - 1) threads_arrive(pipe.next, PAIR);  // the first warpgroup begins
    float o[OUTPUTS], top[2], sum[2];
    u32 w[WEIGHTS];

    for (u32 turn = 0;; ++turn) {
        u32 slot = turn % 2;
        barrier_wait(shared_address(&b->work_full[slot]), (turn / 2) % 2);
        const Work& work = slots[slot];
        int blocks = work.blocks;
        if (blocks < 0) break;
        int kv_head = work.kv_head, first_block = work.first_block, position = work.position;
        int unit = work.unit, split = work.split, parts = work.used;
        int tokens = work.tokens, first_token = work.first_token;
        Tile tile = {q_desc, position, work.first_key, work.end,
                     {position + rows[0] / GROUP, position + rows[1] / GROUP}};
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&b->work_empty[slot]));

        int block = blocks - 1, adds = 0;
        barrier_wait(shared_address(&b->q_full), turn % 2);
        bool half = HALF_STEP && __any_sync(~0u, block * TILE + TILE / 2 >= tile.end);
        if (half)
            begin<SCORES / 2>(w, top, sum, block, tile, pipe, p);
        else
            begin<SCORES>(w, top, sum, block, tile, pipe, p);
        if (half && __any_sync(~0u, block > first_block)) {
            step<true>(o, w, top, sum, adds, block, tile, pipe, p);
            half = false, adds = 1, --block;
        }
        for (; block > first_block; --block, adds = 1) step<false>(o, w, top, sum, adds, block, tile, pipe, p);
        // Every score is there: the next tile's queries may come.
        if (lane == 0) barrier_arrive(shared_address(&b->q_empty));
        u32 v_tile = v_tiles + pipe.stage * TILE_BYTES;
        barrier_wait(shared_address(&b->v_full[pipe.stage]), pipe.phase);
        clear_unseen(v_tile, block * TILE, half ? TILE / 2 : TILE, tile.first_key, tile.end);
        if (half)
            issue_values<TILE / 32>(o, w, v_tile, adds);
        else
            issue_values<TILE / 16>(o, w, v_tile, adds);
        wgmma_wait<0>(o);
        if (lane == 0) barrier_arrive(shared_address(&b->v_empty[pipe.stage]));
        pipe.advance();

#pragma unroll
        for (int i = 0; i < 2; ++i) top[i] *= p.scale_log2, sum[i] = quad_sum(sum[i]);
        if (SPLIT && __any_sync(~0u, parts > 1)) {
            leave_part(o, top, sum, unit * p.splits + split, p);
            if (!comes_last(p.counters + 2 + unit * GROUPS + group, parts, last_one + group, GROUPS + 1 + group)) continue;
            add_parts(o, top, sum, unit * p.splits, parts, p);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            int token = rows[i] / GROUP, head = kv_head * GROUP + rows[i] % GROUP;
            bool there = rows[i] < TOKENS * GROUP && token < tokens;
            float factor;
#if SINKS
            float sink = sink_log2(p.sinks, there ? head : 0);
            float high = fmaxf(top[i], sink);
            float part = exp2_fast(top[i] - high);
            factor = part / (sum[i] * part + exp2_fast(sink - high));
#else
            factor = 1.f / sum[i];
#endif
            char* to = p.out + ((long long)(first_token + token) * p.num_kv_heads * GROUP + head) * HEAD * 2;
#pragma unroll
            for (int j = 0; j < OUTPUTS / 16; ++j) {
                u32 word[4];
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    word[e] = pack(o[16 * j + 4 * e + 2 * i] * factor, o[16 * j + 4 * e + 2 * i + 1] * factor);
                transpose_quad(word);
                int column = 32 * j + 8 * (lane % 4);
                if (there && column < HEAD)
                    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                                 ::"l"(to + column * 2), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                                 : "memory");
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1) prefill(const __grid_constant__ Params p) {
    extern __shared__ char memory[];
    __shared__ Work slots[2];
    __shared__ int last_one[GROUPS];
    __shared__ Barriers b;
    u32 q_tile = (shared_address(memory) + 1023) & ~1023u;
    u32 k_tiles = q_tile + Q_BYTES, v_tiles = k_tiles + STAGES * TILE_BYTES;
    if (threadIdx.x == CONSUMERS) {
        prefetch_map(&p.q), prefetch_map(&p.k), prefetch_map(&p.v);
        constexpr u32 WARPS = CONSUMERS / 32;
        barrier_init(shared_address(&b.q_full), 1);
        barrier_init(shared_address(&b.q_empty), WARPS);
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared_address(&b.work_full[i]), 1);
            barrier_init(shared_address(&b.work_empty[i]), WARPS + 1);
        }
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&b.k_full[i]), 1);
            barrier_init(shared_address(&b.k_empty[i]), WARPS);
            barrier_init(shared_address(&b.v_full[i]), 1);
            barrier_init(shared_address(&b.v_empty[i]), WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    follow();
    if (threadIdx.x >= CONSUMERS) {
#if GROUPS == 2
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
#else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
#endif
        if (threadIdx.x < CONSUMERS + 32) load(p, q_tile, k_tiles, slots, &b);
        else if (threadIdx.x < CONSUMERS + 64) load_values(p, v_tiles, slots, &b);
    } else {
#if GROUPS == 2
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
#else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
#endif
        attend(p, q_tile, k_tiles, v_tiles, slots, &b, last_one);
    }
}
