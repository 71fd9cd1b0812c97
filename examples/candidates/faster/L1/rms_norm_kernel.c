/* RMSNorm over contiguous rows: y = x / sqrt(mean(x^2) + eps) * weight, float32 and bfloat16.
 *
 * One pass sums the squares (and adds the residual), a second one scales, while the row is still in the L1 cache.
 * Squares are summed in LANES float32 accumulators, which is what lets the compiler use vector registers without
 * -ffast-math and what keeps the rounding error small: NaN, infinities and signed zeros behave as IEEE says.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 64

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

static inline float reciprocal_rms(const float lanes[LANES], long width, float eps) {
    float total = 0;
    for (int j = 0; j < LANES; j++) total += lanes[j];
    return 1.0f / sqrtf(total / (float)width + eps);
}

/* residual and sum are NULL without a residual add. */
void rms_norm_f32(const float *x, const float *residual, const float *weight, float *y, float *sum, long rows, long width,
                  float eps) {
    for (long row = 0; row < rows; row++, x += width, y += width) {
        float lanes[LANES] = {0};
        const float *s = x;
        long i = 0;
        if (residual) {
            for (long k = 0; k < width; k++) sum[k] = x[k] + residual[k];
            s = sum;
            residual += width;
            sum += width;
        }
        for (; i + LANES <= width; i += LANES)
            for (int j = 0; j < LANES; j++) lanes[j] += s[i + j] * s[i + j];
        for (int j = 0; i < width; i++, j++) lanes[j] += s[i] * s[i];
        float scale = reciprocal_rms(lanes, width, eps);
        for (long k = 0; k < width; k++) y[k] = s[k] * scale * weight[k];
    }
}

/* The sum is rounded to bfloat16 before it is normalised, and the normalised row before it meets the weight. */
void rms_norm_bf16(const bf16 *x, const bf16 *residual, const bf16 *weight, bf16 *y, bf16 *sum, long rows, long width,
                   float eps) {
    for (long row = 0; row < rows; row++, x += width, y += width) {
        float lanes[LANES] = {0};
        const bf16 *s = x;
        long i = 0;
        if (residual) {
            for (long k = 0; k < width; k++) sum[k] = narrow(widen(x[k]) + widen(residual[k]));
            s = sum;
            residual += width;
            sum += width;
        }
        for (; i + LANES <= width; i += LANES)
            for (int j = 0; j < LANES; j++) lanes[j] += widen(s[i + j]) * widen(s[i + j]);
        for (int j = 0; i < width; i++, j++) lanes[j] += widen(s[i]) * widen(s[i]);
        float scale = reciprocal_rms(lanes, width, eps);
        for (long k = 0; k < width; k++) y[k] = narrow(widen(narrow(widen(s[k]) * scale)) * widen(weight[k]));
    }
}
