/* Attention of one new token a sequence over its cached keys and values, in float32.
 *
 * Compiled at start for the model's HEAD_DIM and GROUP (query heads a key-value head), so that the
 * inner loops are unrolled. Each key and value is read from memory once for all heads of its group,
 * which is what bounds the time; torch's own kernels reach a half of that on a CPU.
 */

#include <float.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 64

/* e^x for x <= 0, with a relative error below 2e-7: 2^n times a polynomial on [-ln2/2, ln2/2]. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    float r = x - (float)n * 0.693359375f + (float)n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = (n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* One group of query heads over `length` positions: softmax(scale * q k) v, block by block with a
 * running maximum. query, output: [GROUP][HEAD_DIM]; keys, values: [length][HEAD_DIM]. */
static void attend_group(const float *restrict query, const float *restrict keys,
                         const float *restrict values, int64_t length, float scale,
                         float *restrict output) {
    float scaled[GROUP][HEAD_DIM], sums[GROUP][HEAD_DIM], weights[GROUP][BLOCK];
    float highest[GROUP], total[GROUP];
    for (int g = 0; g < GROUP; g++) {
        highest[g] = -FLT_MAX;
        total[g] = 0.0f;
        for (int d = 0; d < HEAD_DIM; d++) {
            scaled[g][d] = query[g * HEAD_DIM + d] * scale;
            sums[g][d] = 0.0f;
        }
    }
    for (int64_t start = 0; start < length; start += BLOCK) {
        int count = length - start < BLOCK ? (int)(length - start) : BLOCK;
        for (int i = 0; i < count; i++) {
            const float *key = keys + (start + i) * HEAD_DIM;
            for (int g = 0; g < GROUP; g++) {
                float score = 0.0f;
                for (int d = 0; d < HEAD_DIM; d++) score += scaled[g][d] * key[d];
                weights[g][i] = score;
            }
        }
        for (int g = 0; g < GROUP; g++) {
            float top = highest[g];
            for (int i = 0; i < count; i++) top = weights[g][i] > top ? weights[g][i] : top;
            float shrink = exponential(highest[g] - top), sum = 0.0f;
            for (int i = 0; i < count; i++) {
                weights[g][i] = exponential(weights[g][i] - top);
                sum += weights[g][i];
            }
            highest[g] = top;
            total[g] = total[g] * shrink + sum;
            for (int d = 0; d < HEAD_DIM; d++) sums[g][d] *= shrink;
        }
        for (int i = 0; i < count; i++) {
            const float *value = values + (start + i) * HEAD_DIM;
            for (int g = 0; g < GROUP; g++)
                for (int d = 0; d < HEAD_DIM; d++) sums[g][d] += weights[g][i] * value[d];
        }
    }
    for (int g = 0; g < GROUP; g++)
        for (int d = 0; d < HEAD_DIM; d++) output[g * HEAD_DIM + d] = sums[g][d] / total[g];
}

/* Store the new keys and values at position length - 1 of their slots, then attend.
 * query, output: [rows][kv_heads][GROUP][HEAD_DIM]; key, value: [rows][kv_heads][HEAD_DIM];
 * keys, values: [slots][kv_heads][context][HEAD_DIM]; slots, lengths: [rows]. */
void polar_decode(const float *query, const float *key, const float *value, float *keys,
                  float *values, const int64_t *slots, const int64_t *lengths, int64_t rows,
                  int64_t kv_heads, int64_t context, float scale, float *output) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < rows * kv_heads; task++) {
        int64_t row = task / kv_heads, head = task % kv_heads, length = lengths[row];
        int64_t base = (slots[row] * kv_heads + head) * context * HEAD_DIM;
        int64_t last = base + (length - 1) * HEAD_DIM;
        memcpy(keys + last, key + task * HEAD_DIM, HEAD_DIM * sizeof(float));
        memcpy(values + last, value + task * HEAD_DIM, HEAD_DIM * sizeof(float));
        attend_group(query + task * GROUP * HEAD_DIM, keys + base, values + base, length, scale,
                     output + task * GROUP * HEAD_DIM);
    }
}
