/* cuda_check.c - which models the CUDA kernels take, told when a model is loaded.
 *
 * What a kernel refuses at run time (berth_parakeet_cuda_refuse) and depends on the config alone
 * stands here too, as a row of a table: a model that loads runs. A kernel that takes more changes
 * both. Lengths and rows are the engine's own, and within what the kernels take.
 */
#include "base/mem.h"
#include "engine/cuda/gpu.h"
#include "engine/parakeet/cuda/cuda_device.h"
#include "engine/parakeet/cuda/linear.h"

/* The products with scales that linear.c asks for are Hopper's alone. */
#define NARROW_CAPABILITY 90

/* A field, and whether the kernels take it. */
struct rule {
    const char *field;
    uint32_t value;
    bool good;
    const char *taken;
};

enum berth_code berth_parakeet_cuda_check(const struct berth_parakeet_config *config,
                                          struct berth_err *err)
{
    const bool ctc = config->head == BERTH_PARAKEET_CTC;
    const uint32_t kernel = config->kernel, prediction = config->prediction;
    const struct rule rules[] = {
        {"encoder_config.hidden_size over num_attention_heads", config->head_dim,
         config->head_dim == 64 || config->head_dim == 128, "64 and 128"}, /* attention.cu */
        {"encoder_config.hidden_size", config->hidden,
         config->hidden % 8 == 0 && config->hidden <= 4096,
         "multiples of 8 up to 4096"}, /* norm.cu */
        {"encoder_config.intermediate_size", config->inner, config->inner % 8 == 0,
         "multiples of 8"}, /* linear.c: rows of 16 bytes */
        {"encoder_config.conv_kernel_size", kernel, kernel % 2 == 1 && kernel <= 31,
         "odd numbers up to 31"}, /* convolve.cu */
        {"encoder_config.subsampling_conv_channels", config->channels, config->channels % 8 == 0,
         "multiples of 8"}, /* subsample.cu */
        {"encoder_config.num_mel_bins", config->mels, config->mels % 8 == 0 && config->mels <= 128,
         "multiples of 8 up to 128"}, /* features.cu, subsample.cu */
        {"decoder_hidden_size", prediction, ctc || (prediction > 0 && prediction % 8 == 0),
         "multiples of 8"}, /* decode.cu; of CTC it is hidden_size */
        {"n_fft", config->fft, config->fft == 512, "512"},          /* features.cu */
        {"win_length", config->window, config->window == 400, "400"},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rules); i++) {
        if (!rules[i].good) {
            return berth_fail(err, BERTH_UNSUPPORTED, "%s is %u; the GPU's kernels take %s",
                              rules[i].field, rules[i].value, rules[i].taken);
        }
    }
    return BERTH_OK;
}

enum berth_code berth_parakeet_cuda_narrow(const char *device,
                                           const struct berth_parakeet_config *config,
                                           struct berth_err *err)
{
    const uint32_t hidden = config->hidden, inner = config->inner;
    int ordinal = 0, capability = 0;
    BERTH_TRY(berth_gpu_parse(device, &ordinal, err));
    BERTH_TRY(berth_gpu_capability(ordinal, &capability, err));
    if (capability != NARROW_CAPABILITY) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "precision fp8 needs a GPU of compute capability 9.0 (H100, H200); "
                          "%s has %d.%d",
                          device, capability / 10, capability % 10);
    }
    if (hidden % 16 != 0 || inner % 16 != 0 || inner > BERTH_PARAKEET_CUDA_NARROW_MAX) {
        return berth_fail(err, BERTH_UNSUPPORTED,
                          "encoder_config.hidden_size is %u, intermediate_size %u; precision fp8 "
                          "takes multiples of 16, the latter up to %d",
                          hidden, inner, BERTH_PARAKEET_CUDA_NARROW_MAX);
    }
    return BERTH_OK;
}
