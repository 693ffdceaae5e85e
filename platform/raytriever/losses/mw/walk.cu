// Kernels of the Mann-Whitney loss on a GPU; `cuda_kernel.py` compiles and calls them.
//
// walk: the pass over scores. It locates each score in an even grid of subcells, adds it to the sums of its subcell,
// and reads its derivative from a cubic of that subcell. Positions x are measured from the middle of a subcell, from
// -1/2 to 1/2. The sums of 1, x (in units of 2^-15) and x^2 (in units of 2^-16) are integers, so they have the same
// bits in any order, on any GPU.
//
// SHARED: the cubics and a block's own sums are in shared memory (28 bytes a subcell). A block adds its sums to those
// of all blocks after each tile of at most 2^16 scores, before 32 bits can overflow. Without SHARED, for grids that are
// too large, cubics and sums stay in global memory.
//
// place: adds the positives to the nodes of their cells and, for the AUC, to their subcells.
// finish: computes the derivative of each positive, the loss and the AUC from the sums of `walk` and `place`.
//
// The tests also compile this file for a CPU, so it includes no CUDA header.

const int THREADS = 1024;
const int AT_ONCE = 4;  // loads in flight for each thread
const int MOMENTS = 3;

struct alignas(2) Bfloat16 {
    unsigned short bits;
};

#ifdef __CUDACC__
__device__ __forceinline__ unsigned short bfloat16_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

__device__ __forceinline__ void store(float* to, float value) { *to = value; }

__device__ __forceinline__ void store(Bfloat16* to, float value) { to->bits = bfloat16_bits(value); }

// Adds a score to its subcell and returns its derivative: NaN for a score that is NaN or outside the grid.
template <bool SHARED>
__device__ __forceinline__ float add(
    float score, const float4* cubics, void* sums, int subcells, int first, float scale, float remainder, int sign) {
    const int nearest = __float2int_rn(score * scale);
    // scale + remainder has twice the digits of a float; the products are exact.
    const float x = fmaf(score, remainder, fmaf(score, scale, -(float)nearest));
    const unsigned subcell = nearest - first;
    if (!(fabsf(x) <= 0.75f && subcell < (unsigned)subcells)) return __int_as_float(0x7fc00000);
    const int moments[MOMENTS] = {1, __float2int_rn(x * 32768.f), __float2int_rn(x * x * 65536.f)};
#pragma unroll
    for (int k = 0; k < MOMENTS; ++k) {
        if (SHARED)
            atomicAdd((unsigned*)sums + k * subcells + subcell, (unsigned)moments[k]);
        else
            atomicAdd((unsigned long long*)sums + k * subcells + subcell, (unsigned long long)(moments[k] * sign));
    }
    const float4 cubic = cubics[subcell];
    return fmaf(fmaf(fmaf(cubic.w, x, cubic.z), x, cubic.y), x, cubic.x);
}

template <typename Derivative, bool SHARED>
__device__ __forceinline__ void walk(
    const float* scores, Derivative* derivatives, long long count, int tile, const float4* cubics,
    unsigned long long* sums, int subcells, int first, float scale, float remainder, int sign) {
    extern __shared__ float4 room[];
    unsigned* own = (unsigned*)(room + subcells);
    if (SHARED) {
        for (int i = threadIdx.x; i < subcells; i += blockDim.x) room[i] = cubics[i];
        for (int i = threadIdx.x; i < MOMENTS * subcells; i += blockDim.x) own[i] = 0;
        __syncthreads();
    }
    const float4* table = SHARED ? room : cubics;
    void* totals = SHARED ? (void*)own : (void*)sums;
    for (long long start = (long long)blockIdx.x * tile; start < count; start += (long long)gridDim.x * tile) {
        const int size = count - start < tile ? (int)(count - start) : tile;
        for (int base = threadIdx.x; base < size; base += AT_ONCE * blockDim.x) {
            // All are read before any is written: `derivatives` may be `scores`.
            float some[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const int i = base + k * blockDim.x;
                if (i < size) some[k] = scores[start + i];
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const int i = base + k * blockDim.x;
                if (i < size)
                    store(derivatives + start + i,
                          add<SHARED>(some[k], table, totals, subcells, first, scale, remainder, sign));
            }
        }
        if (SHARED) {
            __syncthreads();
            for (int i = threadIdx.x; i < MOMENTS * subcells; i += blockDim.x) {
                if (own[i]) atomicAdd(sums + i, (unsigned long long)((long long)(int)own[i] * sign));
                own[i] = 0;
            }
            __syncthreads();
        }
    }
}

#define KERNEL(name, Derivative, SHARED)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(                                             \
        const float* scores, Derivative* derivatives, long long count, int tile, const float4* cubics,         \
        unsigned long long* sums, int subcells, int first, float scale, float remainder, int sign) {           \
        walk<Derivative, SHARED>(                                                                              \
            scores, derivatives, count, tile, cubics, sums, subcells, first, scale, remainder, sign);          \
    }

KERNEL(walk_float32_shared, float, true)
KERNEL(walk_float32_global, float, false)
KERNEL(walk_bfloat16_shared, Bfloat16, true)
KERNEL(walk_bfloat16_global, Bfloat16, false)

// ---------------------------------------------------------------------------------------------------- the positives

const int NODES = 8;
const int SUBCELLS = 16;
const int TERMS = 4;
// Units of the integer sums: weights of nodes, and positions in a subcell.
const double WEIGHT_UNIT = 1.0 / (1ll << 40);
const double POSITION_UNIT = 1.0 / (1ll << 32);
const int SUMMING = 256;  // threads that add up a block's numbers one after another

// Even cells from `start`, and the nodes of a cell on [-1, 1], followed by the factors of their Lagrange polynomials.
struct Cells {
    double start, inverse;  // of the width
    int count;
    const double* nodes;
};

// Returns the cell of a score, and the weights that interpolate a function there from its node values.
__device__ __forceinline__ int interpolate(double score, Cells cells, double* weights) {
    const double along = (score - cells.start) * cells.inverse;
    const int cell = (int)fmin(fmax(along, 0.0), cells.count - 1.0);
    const double x = 2 * (along - cell) - 1;
#pragma unroll
    for (int i = 0; i < NODES; ++i) {
        weights[i] = cells.nodes[NODES + i];
#pragma unroll
        for (int j = 0; j < NODES; ++j)
            if (j != i) weights[i] *= x - cells.nodes[j];
    }
    return cell;
}

__device__ __forceinline__ void add_fixed(unsigned long long* to, double value, double unit) {
    atomicAdd(to, (unsigned long long)__double2ll_rn(value / unit));
}

// A positive that is NaN is an empty slot. `areas` has the number of positives of each subcell, then their positions.
extern "C" __global__ void __launch_bounds__(THREADS) place(
    const double* positives, int count, double start, double inverse, int cells, const double* nodes,
    unsigned long long* by_node, unsigned long long* areas) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        if (positives[i] != positives[i]) continue;
        double weights[NODES];
        const int cell = interpolate(positives[i], Cells{start, inverse, cells, nodes}, weights);
#pragma unroll
        for (int k = 0; k < NODES; ++k) add_fixed(by_node + cell * NODES + k, weights[k], WEIGHT_UNIT);
        const double along = (positives[i] - start) * (inverse * SUBCELLS);
        const int subcell = (int)fmin(fmax(along, 0.0), cells * SUBCELLS - 1.0);
        atomicAdd(areas + subcell, 1ull);
        add_fixed(areas + cells * SUBCELLS + subcell, along - subcell, POSITION_UNIT);
    }
}

// Writes the loss, the AUC, and after them the derivative of each positive; see `mann_whitney.auc`. All sums have a
// fixed order. `slopes` are the sums F at the nodes; `negatives` the sums of 1, x, x^2, x^3 in the subcells.
extern "C" __global__ void __launch_bounds__(THREADS) finish(
    const double* positives, int count, double start, double inverse, int cells, const double* nodes,
    const unsigned long long* areas, const double* negatives, const double* slopes, const double* total,
    const double* own, double weight, float* results) {
    if (blockIdx.x) {
        for (int i = (blockIdx.x - 1) * blockDim.x + threadIdx.x; i < count; i += (gridDim.x - 1) * blockDim.x) {
            double weights[NODES], sum = 0;
            if (positives[i] == positives[i]) {
                const int cell = interpolate(positives[i], Cells{start, inverse, cells, nodes}, weights);
#pragma unroll
                for (int k = 0; k < NODES; ++k) sum += weights[k] * slopes[cell * NODES + k];
            }
            results[2 + i] = (float)(-sum * weight);
        }
        return;
    }
    extern __shared__ float4 room[];
    double* parts = (double*)room;  // of each thread: negatives, positives, won pairs, loss
    const int threads = blockDim.x < SUMMING ? blockDim.x : SUMMING, subcells = cells * SUBCELLS, t = threadIdx.x;
    const int first = (long long)subcells * t / threads, last = (long long)subcells * (t + 1) / threads;
    double sums[4] = {0, 0, 0, 0};
    if (t < threads) {
        for (int i = first; i < last; ++i) sums[0] += negatives[i * TERMS], sums[1] += (double)areas[i];
        for (int i = t; i < cells * NODES; i += threads) sums[3] += own[i] * total[i];
        for (int k = 0; k < 4; ++k) parts[k * threads + t] = sums[k];
    }
    __syncthreads();
    if (t < threads) {
        double below = 0;
        for (int other = 0; other < t; ++other) below += parts[other];
        for (int i = first; i < last; ++i) {
            const double negative = negatives[i * TERMS], positive = (double)areas[i], pairs = negative * positive;
            const double position = (double)areas[subcells + i] * POSITION_UNIT;
            const double lead = negative * position - positive * negatives[i * TERMS + 1];
            sums[2] += positive * below + fmin(fmax(pairs / 2 + lead, 0.0), pairs);
            below += negative;
        }
        parts[2 * threads + t] = sums[2];
    }
    __syncthreads();
    if (t) return;
    for (int k = 0; k < 4; ++k) {
        sums[k] = 0;
        for (int other = 0; other < threads; ++other) sums[k] += parts[k * threads + other];
    }
    results[0] = (float)sums[3];
    results[1] = (float)(sums[2] / (sums[0] * sums[1]));
}
