/* RMSNorm over contiguous rows: y = x / sqrt(mean(x^2) + eps) * weight, float32 and bfloat16.
 *
 * One pass sums the squares (and adds the residual), a second one scales, while the row is still in the L1 cache.
 * Squares are summed in LANES float32 accumulators, which lets the compiler use vector registers without -ffast-math:
 * NaN and infinities behave as IEEE says. Every BLOCK elements the lanes are folded into a float64, so that rounding
 * does not grow with the width.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 64
#define BLOCK 1024

typedef uint16_t bf16;

static inline float widen(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Round to nearest, ties to even; a NaN stays a NaN. */
static inline bf16 narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bf16 rounded = (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    return (bits & 0x7fffffffu) > 0x7f800000u ? (bf16)0x7fc0 : rounded;
}

/* The lanes in a tree: log2(LANES) roundings instead of LANES. */
static inline double fold(float lanes[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

#define SUM_OF_SQUARES(name, type, load)                                                                    \
    static inline double name(const type *x, long width) {                                                  \
        double total = 0;                                                                                   \
        for (long start = 0; start < width; start += BLOCK) {                                               \
            long end = start + BLOCK < width ? start + BLOCK : width, i = start;                            \
            float lanes[LANES] = {0};                                                                       \
            for (; i + LANES <= end; i += LANES)                                                            \
                for (int j = 0; j < LANES; j++) lanes[j] += load(x[i + j]) * load(x[i + j]);                \
            for (int j = 0; i < end; i++, j++) lanes[j] += load(x[i]) * load(x[i]);                         \
            total += fold(lanes);                                                                           \
        }                                                                                                   \
        return total;                                                                                       \
    }

SUM_OF_SQUARES(squares_f32, float, )
SUM_OF_SQUARES(squares_bf16, bf16, widen)

static inline double reciprocal_rms(double squares, long width, double eps) {
    return 1.0 / sqrt(squares / (double)width + eps);
}

/* residual and sum are NULL without a residual add. product + rest is s * scale to twice the precision of a float32,
 * so that one rounding remains, that of the result. */
void rms_norm_f32(const float *restrict x, const float *restrict residual, const float *restrict weight,
                  float *restrict y, float *restrict sum, long rows, long width, float eps) {
    for (long row = 0; row < rows; row++, x += width, y += width) {
        const float *s = x;
        if (residual) {
            for (long i = 0; i < width; i++) sum[i] = x[i] + residual[i];
            s = sum;
            residual += width;
            sum += width;
        }
        double scale = reciprocal_rms(squares_f32(s, width), width, eps);
        float high = (float)scale, low = (float)(scale - high);
        for (long i = 0; i < width; i++) {
            float product = s[i] * high;
            float rest = fmaf(s[i], high, -product) + s[i] * low;
            y[i] = fmaf(product, weight[i], rest * weight[i]);
        }
    }
}

/* The sum is rounded to bfloat16 and normalised as rounded. */
void rms_norm_bf16(const bf16 *restrict x, const bf16 *restrict residual, const bf16 *restrict weight,
                   bf16 *restrict y, bf16 *restrict sum, long rows, long width, float eps) {
    for (long row = 0; row < rows; row++, x += width, y += width) {
        const bf16 *s = x;
        if (residual) {
            for (long i = 0; i < width; i++) sum[i] = narrow(widen(x[i]) + widen(residual[i]));
            s = sum;
            residual += width;
            sum += width;
        }
        float scale = (float)reciprocal_rms(squares_bf16(s, width), width, eps);
        for (long i = 0; i < width; i++) y[i] = narrow(widen(s[i]) * scale * widen(weight[i]));
    }
}
