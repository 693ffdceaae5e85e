// The part of CUDA C++ that `walk.cu` uses, for a processor: blocks run one after another, each with real threads.
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(16) float4 {
    float x, y, z, w;
};

struct Index {
    unsigned x;
};

static thread_local Index threadIdx, blockIdx;
static Index blockDim, gridDim;
static std::barrier<>* threads_of_block;

// Shared memory: garbage when a block starts, as on a GPU.
float4 room[1 << 14];

static void __syncthreads() { threads_of_block->arrive_and_wait(); }

template <typename T>
static T atomicAdd(T* to, T value) {
    return std::atomic_ref<T>(*to).fetch_add(value);
}

static int __float2int_rn(float value) {
    if (std::isnan(value)) return 0;
    if (value >= 2147483648.f) return 2147483647;
    return value < -2147483648.f ? -2147483647 - 1 : (int)std::nearbyint(value);
}

static long long __double2ll_rn(double value) { return std::llrint(value); }

static float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Rounds to the nearest bfloat16, ties to even.
static unsigned short bfloat16_bits(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

using std::fmax;
using std::fmin;

#include SOURCE

template <typename... Arguments>
static void run(unsigned blocks, unsigned threads, void (*function)(Arguments...), Arguments... arguments) {
    gridDim.x = blocks, blockDim.x = threads;
    for (unsigned block = 0; block < blocks; ++block) {
        std::memset(room, 0xa5, sizeof room);
        std::barrier<> barrier(threads);
        threads_of_block = &barrier;
        std::vector<std::thread> all;
        for (unsigned thread = 0; thread < threads; ++thread)
            all.emplace_back([=] {
                threadIdx.x = thread, blockIdx.x = block;
                function(arguments...);
            });
        for (auto& thread : all) thread.join();
    }
}

#define RUN_WALK(Derivative, function)                                                                              \
    extern "C" void function##_on_host(                                                                             \
        unsigned blocks, unsigned threads, const float* scores, Derivative* derivatives, long long count, int tile, \
        const float4* cubics, unsigned long long* sums, int subcells, int first, float scale, float remainder,      \
        int sign) {                                                                                                 \
        run(blocks, threads, function, scores, derivatives, count, tile, cubics, sums, subcells, first, scale,      \
            remainder, sign);                                                                                       \
    }

RUN_WALK(float, walk_float32_shared)
RUN_WALK(float, walk_float32_global)
RUN_WALK(Bfloat16, walk_bfloat16_shared)
RUN_WALK(Bfloat16, walk_bfloat16_global)

extern "C" void place_on_host(
    unsigned blocks, unsigned threads, const double* positives, int count, double start, double inverse, int cells,
    const double* nodes, unsigned long long* by_node, unsigned long long* areas) {
    run(blocks, threads, place, positives, count, start, inverse, cells, nodes, by_node, areas);
}

extern "C" void finish_on_host(
    unsigned blocks, unsigned threads, const double* positives, int count, double start, double inverse, int cells,
    const double* nodes, const unsigned long long* areas, const double* negatives, const double* slopes,
    const double* total, const double* own, double weight, float* results) {
    run(blocks, threads, finish, positives, count, start, inverse, cells, nodes, areas, negatives, slopes, total, own,
        weight, results);
}
