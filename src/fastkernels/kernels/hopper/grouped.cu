// Grouped products: y[s] = w[s] W[e(s)] x[s / SHARING], or the gated unit of W's two halves. A warpgroup loads,
// two multiply.
//
// A tile is ROWS rows of an expert's weight by up to SLOTS of its slots. The weight is the first factor of the
// tensor cores, so that few slots cost little: the second factor is about as wide as a tile has slots. An expert's
// slots are shared evenly by its tiles. Rows of x lie anywhere: threads ask for them 16 bytes at a time,
// the copy engine brings the weight. With UNIT, eight rows of gates and eight of what they multiply take turns in a
// tile, so that a thread has both.
//
// Programs walk over the tiles of all experts; those that run together share rows of weights, and slots. Where tiles
// are few, their steps are split (SPLIT): every part leaves its sums, and whoever comes last adds them up in order.

struct Params {
    TensorMap weight;
    const char* x;
    char* y;
    const int* order;
    const int* starts;
    const float* slot_weights;
    float* partial;
    int* counters;
    long long x_stride;  // bytes, a multiple of 16
    int inputs, outputs, most_parts;
};

constexpr int ROWS = 128;
constexpr int INPUTS = 64 * PANELS;  // of a step: 128 bytes in each panel
constexpr u32 WEIGHT_BYTES = ROWS * 128, PANEL_BYTES = WEIGHT_BYTES + SLOTS * 128, STAGE_BYTES = PANELS * PANEL_BYTES;
constexpr int OUTPUTS = UNIT ? ROWS / 2 : ROWS;  // columns of y
constexpr int CONSUMERS = 256, LOADERS = 128;
constexpr int LAG = STAGES / 2;  // steps after which rows of x have come
constexpr int MOST_PARTS = 8, LEAST_STEPS = 8 / PANELS;  // of a tile; of a part
constexpr int WAVES = 4;  // tiles and parts for each program, at least about so many
constexpr int DRAWN = 3;  // steps before its end at which a tile's successor is drawn

struct Work {
    int tile, slots, steps;  // which OUTPUTS of y, how many slots; steps 0: no more work
    int unit, part;
};
// Slots of each expert, and its tiles of slots, by where they begin.
struct Plan {
    int starts[EXPERTS + 1], tiles[EXPERTS + 1];
    int column_tiles, parts;
};
struct Barriers {
    u64 full[STAGES], empty[STAGES], work_full[2], work_empty[2];
};

// By one warp.
DEVICE void make_plan(Plan& plan, const Params& p) {
    int lane = threadIdx.x % 32, before = 0;
    for (int first = 0; first < EXPERTS; first += 32) {
        int e = first + lane, begin = 0, end = 0;
        if (e < EXPERTS) begin = p.starts[e], end = p.starts[e + 1];
        int tiles = (end - begin + SLOTS - 1) / SLOTS, ends = tiles;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            int other = __shfl_up_sync(~0u, ends, d);
            if (lane >= d) ends += other;
        }
        if (e < EXPERTS) {
            plan.starts[e] = begin, plan.tiles[e] = before + ends - tiles;
            if (e == EXPERTS - 1) plan.starts[e + 1] = end, plan.tiles[e + 1] = before + ends;
        }
        before += __shfl_sync(~0u, ends, 31);
    }
    if (lane == 0) {
        plan.column_tiles = (p.outputs + OUTPUTS - 1) / OUTPUTS;
        int units = before * plan.column_tiles, steps = (p.inputs + INPUTS - 1) / INPUTS;
        int parts = 1;
        while (SPLIT && parts < MOST_PARTS && units * parts < WAVES * (int)gridDim.x &&
               units * (parts + 1) <= p.most_parts && steps >= (parts + 1) * LEAST_STEPS)
            ++parts;
        plan.parts = parts;
    }
}

struct Place {
    int expert, first_slot, first_step;
};

// By whole warps, for all the same.
DEVICE bool find_work(Work& work, Place& place, int ticket, const Plan& plan, const Params& p) {
    int column_tiles = plan.column_tiles;
    work.unit = SPLIT ? ticket / plan.parts : ticket;
    work.part = SPLIT ? ticket % plan.parts : 0;
    work.steps = 0;
    if (work.unit >= plan.tiles[EXPERTS] * column_tiles) return false;
    int lane = threadIdx.x % 32, expert = 0;
    for (int first = 0; first < EXPERTS; first += 32) {
        bool before = first + lane < EXPERTS && plan.tiles[first + lane + 1] * column_tiles <= work.unit;
        expert += __popc(__ballot_sync(~0u, before));
        if (expert < first + 32) break;
    }
    int begin = plan.starts[expert], slots = plan.starts[expert + 1] - begin;
    int tiles = plan.tiles[expert + 1] - plan.tiles[expert];
    int inside = work.unit - plan.tiles[expert] * column_tiles;
    int group = inside / (TOGETHER * column_tiles);
    inside -= group * TOGETHER * column_tiles;
    int width = min(TOGETHER, tiles - group * TOGETHER);
    int slot_tile = group * TOGETHER + inside % width;
    int each = (slots + tiles - 1) / tiles;
    work.tile = inside / width;
    work.slots = min(each, slots - slot_tile * each);
    place = {expert, begin + slot_tile * each, 0};
    work.steps = (p.inputs + INPUTS - 1) / INPUTS;
    if (SPLIT) {
        int all = work.steps;
        place.first_step = all * work.part / plan.parts;
        work.steps = all * (work.part + 1) / plan.parts - place.first_step;
    }
    return true;
}

// --- the warpgroup that loads ---

DEVICE void copy_16(u32 to, const void* from, int bytes) {  // zeros past `bytes`
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

DEVICE void advance(u32& stage, u32& phase) {
    if (++stage == STAGES) stage = 0, phase ^= 1;
}

// What this thread asked for has come, as this warp's: the tensor cores may read it.
DEVICE void pass_on(Barriers* b, u32 stage) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&b->full[stage]));
}

DEVICE void load_weight(u32 to, u32 bar, int k, int tile, int expert, const Params& p) {
    barrier_expect(bar, PANELS * WEIGHT_BYTES);
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel, to += PANEL_BYTES, k += 64)
        if (UNIT)
            copy_4d(to, &p.weight, bar, k, 0, 2 * expert, tile * (OUTPUTS / 8));
        else
            copy_3d(to, &p.weight, bar, k, tile * OUTPUTS, expert);
}
// Into L2 alone.
DEVICE void ask_for_weight(int k, int tile, int expert, const Params& p) {
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel, k += 64)
        if (UNIT)
            prefetch_4d(&p.weight, k, 0, 2 * expert, tile * (OUTPUTS / 8));
        else
            prefetch_3d(&p.weight, k, tile * OUTPUTS, expert);
}

DEVICE void load(const Params& p, u32 tiles, const Plan& plan, Work* works, int (*slots)[SLOTS],
                 float (*weights)[SLOTS], volatile int* tickets, Barriers* b) {
    constexpr int AT_ONCE = LOADERS / 8, EACH = (SLOTS + AT_ONCE - 1) / AT_ONCE;  // rows: of all, of a thread
    constexpr int SHARE = (SLOTS + LOADERS - 1) / LOADERS;  // slots of a thread
    int thread = threadIdx.x - CONSUMERS, row = thread / 8, chunk = thread % 8;
    u32 to = WEIGHT_BYTES + row * 128 + ((chunk ^ row % 8) << 4);
    u32 stage = 0, phase = 1;  // of an empty pipeline the phase before the first is over
    u32 behind = 0, waiting = 0;  // the first stage that is not passed on, and how many are not
    int ticket = blockIdx.x, next = 0;
    for (u32 turn = 0;; ++turn) {
        Work work;
        Place place;
        bool more = find_work(work, place, ticket, plan, p);
        u32 from[EACH];  // in units of 16 bytes
        int mine = 0;
        int slot[SHARE];
        float weight[SHARE];
        if (more) {
            mine = (work.slots - row + AT_ONCE - 1) / AT_ONCE;
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (i < mine)
                    from[i] = (u32)(p.order[place.first_slot + row + i * AT_ONCE] / SHARING * (p.x_stride >> 4)) + chunk;
#pragma unroll
            for (int i = 0; i < SHARE; ++i) {
                slot[i] = 0, weight[i] = 0.f;
                if (thread + i * LOADERS >= work.slots) continue;
                slot[i] = p.order[place.first_slot + thread + i * LOADERS];
                if (WEIGHTED) weight[i] = p.slot_weights[slot[i]];
            }
        }
        // Nothing is held back while this waits for those who multiply.
        copies_wait<0>();
        for (; waiting > 0; --waiting) {
            pass_on(b, behind);
            if (++behind == STAGES) behind = 0;
        }
        int at = turn % 2;
        barrier_wait(shared_address(&b->work_empty[at]), (turn / 2 + 1) % 2);
        if (thread == 0) works[at] = work;
#pragma unroll
        for (int i = 0; i < SHARE; ++i)
            if (thread + i * LOADERS < work.slots)
                slots[at][thread + i * LOADERS] = slot[i], weights[at][thread + i * LOADERS] = weight[i];
        barrier_arrive(shared_address(&b->work_full[at]));
        if (!more) break;

        for (int step = 0; step < work.steps; ++step) {
            if (waiting == LAG) {
                copies_wait<LAG - 1>();
                pass_on(b, behind);
                if (++behind == STAGES) behind = 0;
                --waiting;
            }
            barrier_wait(shared_address(&b->empty[stage]), phase);
            int k = (place.first_step + step) * INPUTS;
            u32 begin = tiles + stage * STAGE_BYTES;
            if (thread == 0) {
                load_weight(begin, shared_address(&b->full[stage]), k, work.tile, place.expert, p);
                // Before it is needed, but late: whoever is done first takes the next tile.
                if (step == max(work.steps - DRAWN, 0)) next = atomicAdd(p.counters, 1) + gridDim.x;
                for (int ahead = step > 0 ? AHEAD : 1; AHEAD > 0 && ahead <= AHEAD; ++ahead)
                    if (step + ahead < work.steps) ask_for_weight(k + ahead * INPUTS, work.tile, place.expert, p);
            }
#pragma unroll
            for (int panel = 0; panel < PANELS; ++panel, k += 64, begin += PANEL_BYTES) {
                int bytes = k + chunk * 8 < p.inputs ? 16 : 0;
                const char* x = bytes ? p.x + 2 * k : p.x;
#pragma unroll
                for (int i = 0; i < EACH; ++i)
                    if (i < mine) copy_16(begin + to + i * AT_ONCE * 128, x + (bytes ? (u64)from[i] << 4 : 0), bytes);
            }
            copies_commit();
            ++waiting;
            advance(stage, phase);
        }
        if (thread == 0) tickets[at] = next;
        threads_sync(3, LOADERS);
        ticket = tickets[at];
    }
    // Whoever leaves last has seen every ticket drawn: the next launch finds zeros.
    if (thread == 0) {
        __threadfence();
        if (atomicAdd(p.counters + 1, 1) == gridDim.x - 1) p.counters[0] = p.counters[1] = 0;
    }
}

// --- the warpgroups that multiply ---

// The matrix of eight rows and columns that a warp holds, a row in four lanes, by columns.
DEVICE u32 transposed(u32 pair) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(pair));
    return y;
}
DEVICE float rounded(float x) { return unpack((u16)pack(x, 0.f)); }
DEVICE float activated(float x) {
    constexpr float LOG2_E = 1.4426950408889634f;
    if (UNIT == 1) return __fdividef(x, 1.f + exp2_fast(-LOG2_E * x));  // silu
    // gelu_tanh
    return __fdividef(x, 1.f + exp2_fast(-LOG2_E * 1.5957691216057308f * (x + 0.044715f * x * x * x)));
}

// Sums of a thread: two neighbouring slots in each eight, of rows lane / 4 and lane / 4 + 8 of its warp's sixteen.
template <int N>
DEVICE void store(const float (&sum)[N / 2], const Work& work, const int* slots, const float* weights, const Params& p) {
    constexpr int HALVES = UNIT ? 1 : 2;  // eights of outputs of a warp
    constexpr int WORDS = N / 8 * HALVES;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int column = work.tile * OUTPUTS + (warp * HALVES + lane % HALVES) * 8;
#pragma unroll
    for (int first = 0; first < WORDS; first += 4) {
        u32 word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            word[i] = 0;
            if (first + i >= WORDS) continue;
            const int eight = (first + i) / HALVES, at = eight * 4 + (first + i) % HALVES * 2;
            float low = sum[at], high = sum[at + 1];
            if (UNIT) {
                low = activated(rounded(low)) * rounded(sum[at + 2]);
                high = activated(rounded(high)) * rounded(sum[at + 3]);
            }
            if (WEIGHTED) low *= weights[eight * 8 + lane % 4 * 2], high *= weights[eight * 8 + lane % 4 * 2 + 1];
            word[i] = transposed(pack(low, high));
        }
        transpose_quad(word);
        int place = (first + lane % 4) / HALVES * 8 + lane / 4;
        if (place < work.slots && column < p.outputs) {
            char* to = p.y + ((long long)slots[place] * p.outputs + column) * 2;
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                         ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]) : "memory");
        }
    }
}

// Parts lie as the threads hold them: what a thread leaves, the thread of its number picks up.
template <int N> DEVICE void leave_part(const float (&sum)[N / 2], int slot, const Params& p) {
    float* to = p.partial + (long long)slot * (SLOTS / 2) * CONSUMERS + threadIdx.x;
#pragma unroll
    for (int j = 0; j < N / 2; ++j) __stcg(to + j * CONSUMERS, sum[j]);
}
template <int N> DEVICE void add_parts(float (&sum)[N / 2], int slot, int parts, const Params& p) {
    const float* from = p.partial + (long long)slot * (SLOTS / 2) * CONSUMERS + threadIdx.x;
#pragma unroll
    for (int j = 0; j < N / 2; ++j) sum[j] = 0.f;
    for (int part = 0; part < parts; ++part, from += SLOTS / 2 * CONSUMERS)
#pragma unroll
        for (int j = 0; j < N / 2; ++j) sum[j] += __ldcg(from + j * CONSUMERS);
}

struct Pipe {
    u32 tiles, stage, phase;
    Barriers* b;
};

template <int N>
DEVICE void walk(const Work& work, const int* slots, const float* weights, Pipe& pipe, int parts, int* last_one,
                     const Params& p) {
    constexpr int FIRST = N < 256 ? N : 256, REST = N - FIRST;  // 256 is the widest second factor
    int group = threadIdx.x / 128;
    bool leads = threadIdx.x % 32 == 0;
    float sum[N / 2];
#pragma unroll
    for (int j = 0; j < N / 2; ++j) sum[j] = 0.f;
    u32 before = 0;
#pragma unroll 1
    for (int step = 0; step < work.steps; ++step) {
        barrier_wait(shared_address(&pipe.b->full[pipe.stage]), pipe.phase);
        u32 tile = pipe.tiles + pipe.stage * STAGE_BYTES;
        u64 rows = ROWS_DESC | address_desc(tile + group * 64 * 128), of_x = ROWS_DESC | address_desc(tile + WEIGHT_BYTES);
        wgmma_fence();
#pragma unroll
        for (int at = 0; at < 4 * PANELS; ++at) {
            u32 offset = at / 4 * (PANEL_BYTES >> 4) + at % 4 * 2;
            wgmma_scores(*(float(*)[FIRST / 2])sum, rows + offset, of_x + offset, 1);
            if constexpr (REST > 0)
                wgmma_scores(*(float(*)[REST / 2])(sum + FIRST / 2), rows + offset,
                             of_x + offset + (FIRST * 128 >> 4), 1);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (leads && step > 0) barrier_arrive(shared_address(&pipe.b->empty[before]));
        before = pipe.stage;
        advance(pipe.stage, pipe.phase);
    }
    wgmma_wait<0>(sum);
    if (leads) barrier_arrive(shared_address(&pipe.b->empty[before]));
    if (SPLIT && __any_sync(~0u, parts > 1)) {
        leave_part<N>(sum, work.unit * parts + work.part, p);
        if (!comes_last(p.counters + 2 + work.unit * 2 + group, parts, last_one + group, 1 + group)) return;
        add_parts<N>(sum, work.unit * parts, parts, p);
    }
    store<N>(sum, work, slots, weights, p);
}

// Widths of the second factor, from SLOTS down. Several tiles of an expert have half of SLOTS each, or more; with less
// than 64, the weight takes longer to come than to be multiplied.
DEVICE constexpr int narrower(int width) { return width <= 64 ? 0 : width <= SLOTS / 2 ? 64 : width - 32; }
static_assert(SLOTS <= 64 || SLOTS % 32 == 0, "widths are multiples of 32");

template <int N, class... Rest> DEVICE void walk_some(const Work& work, Rest&&... rest) {
    if constexpr (narrower(N) > 0) {
        if (work.slots <= narrower(N)) return walk_some<narrower(N)>(work, rest...);
    }
    walk<N>(work, rest...);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + LOADERS, 1) grouped(const __grid_constant__ Params p) {
    extern __shared__ char memory[];
    __shared__ Plan plan;
    __shared__ Work works[2];
    __shared__ int slots[2][SLOTS];
    __shared__ float weights[2][SLOTS];
    __shared__ int last_one[2], tickets[2];
    __shared__ Barriers b;
    u32 tiles = (shared_address(memory) + 1023) & ~1023u;
    if (threadIdx.x == CONSUMERS) {
        prefetch_map(&p.weight);
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared_address(&b.work_full[i]), LOADERS);
            barrier_init(shared_address(&b.work_empty[i]), CONSUMERS / 32);
        }
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&b.full[i]), 1 + LOADERS / 32);
            barrier_init(shared_address(&b.empty[i]), CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    follow();
    if (threadIdx.x < 32) make_plan(plan, p);
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        load(p, tiles, plan, works, slots, weights, tickets, &b);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        Pipe pipe = {tiles, 0, 0, &b};
        for (u32 turn = 0;; ++turn) {
            int at = turn % 2;
            barrier_wait(shared_address(&b.work_full[at]), turn / 2 % 2);
            Work work = works[at];
            work.steps = __shfl_sync(~0u, work.steps, 0);
            if (work.steps == 0) break;
            work.slots = __shfl_sync(~0u, work.slots, 0);
            walk_some<SLOTS>(work, slots[at], weights[at], pipe, plan.parts, last_one, p);
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&b.work_empty[at]));
        }
    }
}
