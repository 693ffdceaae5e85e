// Pass over scores on a GPU for the Mann-Whitney loss; `cuda.py` compiles and calls it.
//
// Each score is located in an even grid of subcells, added to the sums of its subcell, and its derivative is read from
// a cubic of that subcell. Positions x are measured from the middle of a subcell, from -1/2 to 1/2. The sums of 1, x
// and x^2 are integers, so they have the same bits in any order, on any GPU: x in units of 2^-15, x^2 in units of 2^-16.
//
// SHARED: the cubics and a block's own sums are in shared memory (28 bytes a subcell). A block adds its sums to those
// of all blocks after each tile, of at most 2^16 scores, before 32 bits can overflow. Without SHARED, cubics and sums
// stay in global memory, for grids that are too large.
//
// The tests compile this file for a processor too, so it includes no header of CUDA.

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
