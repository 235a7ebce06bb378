/* product_lt.c - see product_lt.h.
 *
 * Row by row, out [n][out] = in [n][in] x weight [out][in]^T; cublasLt counts columns first, so it
 * is asked for out^T = weight x in^T, with sums in float32. Bias and ReLU are its epilogues, a
 * residual is its C (often D itself).
 */
#include "engine/parakeet/cuda/product_lt.h"

#define ALIGNMENT 16u

static cublasStatus_t attribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(desc, which, value, bytes);
}

static cublasStatus_t layout_make(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                  uint64_t columns)
{
    return cublasLtMatrixLayoutCreate(out, type, rows, columns, (int64_t)rows);
}

static cublasStatus_t layouts_make(struct berth_parakeet_cuda_lt *product)
{
    const struct berth_parakeet_cuda_key *key = &product->key;
    const cudaDataType_t in_type =
        key->operands == BERTH_PARAKEET_CUDA_HALVES ? CUDA_R_16F : CUDA_R_8F_E4M3;
    const cudaDataType_t out_type = key->stream ? CUDA_R_32F : CUDA_R_16F;
    cublasStatus_t status = layout_make(&product->weight, in_type, key->in, key->out);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout_make(&product->in, in_type, key->in, key->n);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout_make(&product->out, out_type, key->out, key->n);
    }
    return status;
}

cublasStatus_t berth_parakeet_cuda_lt_make(const struct berth_parakeet_cuda_key *key, float alpha,
                                           struct berth_parakeet_cuda_lt *out)
{
    const cublasOperation_t turned = CUBLAS_OP_T;
    const cublasLtMatmulMatrixScale_t outer = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    cublasLtEpilogue_t epilogue = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (key->activation == BERTH_PARAKEET_RELU) {
        epilogue = key->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    }
    *out = (struct berth_parakeet_cuda_lt){
        .key = *key, .alpha = alpha, .beta = key->residual ? 1.0f : 0.0f};
    cublasStatus_t status = cublasLtMatmulDescCreate(&out->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = attribute(out->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = attribute(out->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    }
    if (status == CUBLAS_STATUS_SUCCESS && key->operands == BERTH_PARAKEET_CUDA_SCALED) {
        status = attribute(out->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &outer, sizeof(outer));
    }
    if (status == CUBLAS_STATUS_SUCCESS && key->operands == BERTH_PARAKEET_CUDA_SCALED) {
        status = attribute(out->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &outer, sizeof(outer));
    }
    return status == CUBLAS_STATUS_SUCCESS ? layouts_make(out) : status;
}

void berth_parakeet_cuda_lt_finish(struct berth_parakeet_cuda_lt *product)
{
    if (product->out != NULL) {
        (void)cublasLtMatrixLayoutDestroy(product->out);
    }
    if (product->in != NULL) {
        (void)cublasLtMatrixLayoutDestroy(product->in);
    }
    if (product->weight != NULL) {
        (void)cublasLtMatrixLayoutDestroy(product->weight);
    }
    if (product->desc != NULL) {
        (void)cublasLtMatmulDescDestroy(product->desc);
    }
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = BERTH_PARAKEET_CUDA_WORKSPACE_BYTES;
    const uint32_t alignment = ALIGNMENT;
    /* Parts of a sum are added by a second step in float32, in order; or there are none. */
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes));
    }
    for (size_t i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++) {
        status = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment,
                                                      sizeof(alignment));
    }
    return status;
}

/* Vectors are read through the description. */
static cublasStatus_t vectors_set(const struct berth_parakeet_cuda_lt *product,
                                  const struct berth_parakeet_cuda_lt_memory *memory)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (product->key.bias) {
        status = attribute(product->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &memory->bias,
                           sizeof(memory->bias));
    }
    if (status == CUBLAS_STATUS_SUCCESS && product->key.operands == BERTH_PARAKEET_CUDA_SCALED) {
        status = attribute(product->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                           &memory->weight_scale, sizeof(memory->weight_scale));
    }
    if (status == CUBLAS_STATUS_SUCCESS && product->key.operands == BERTH_PARAKEET_CUDA_SCALED) {
        status = attribute(product->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &memory->in_scale,
                           sizeof(memory->in_scale));
    }
    return status;
}

cublasStatus_t berth_parakeet_cuda_lt_ways(const struct berth_parakeet_device *device,
                                           const struct berth_parakeet_cuda_lt *product,
                                           struct berth_parakeet_cuda_way *ways, int *count)
{
    cublasLtMatmulHeuristicResult_t results[BERTH_PARAKEET_CUDA_LT_WAYS_MAX];
    /* There has to be something where scales are read. */
    const struct berth_parakeet_cuda_lt_memory any = {.bias = device->workspace,
                                                      .weight_scale = device->workspace,
                                                      .in_scale = device->workspace};
    cublasLtMatmulPreference_t preference = NULL;
    int found = 0;
    cublasStatus_t status = vectors_set(product, &any);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulPreferenceCreate(&preference);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = prefer(preference);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulAlgoGetHeuristic(device->blas, product->desc, product->weight,
                                                product->in, product->out, product->out,
                                                preference, BERTH_PARAKEET_CUDA_LT_WAYS_MAX,
                                                results, &found);
    }
    *count = 0;
    for (int i = 0; i < found && status == CUBLAS_STATUS_SUCCESS; i++) {
        if (results[i].state == CUBLAS_STATUS_SUCCESS) {
            ways[(*count)++] = (struct berth_parakeet_cuda_way){.algorithm = results[i].algo};
        }
    }
    if (preference != NULL) {
        (void)cublasLtMatmulPreferenceDestroy(preference);
    }
    return status == CUBLAS_STATUS_SUCCESS && *count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

cublasStatus_t berth_parakeet_cuda_lt_run(const struct berth_parakeet_device *device,
                                          const struct berth_parakeet_cuda_lt *product,
                                          const struct berth_parakeet_cuda_way *way,
                                          const struct berth_parakeet_cuda_lt_memory *memory,
                                          cudaStream_t stream)
{
    cublasStatus_t status = vectors_set(product, memory);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    return cublasLtMatmul(device->blas, product->desc, &product->alpha, memory->weight,
                          product->weight, memory->in, product->in, &product->beta,
                          product->key.residual ? memory->residual : memory->out, product->out,
                          memory->out, product->out, &way->algorithm, memory->workspace,
                          BERTH_PARAKEET_CUDA_WORKSPACE_BYTES, stream);
}
