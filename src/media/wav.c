/* wav.c - PCM in RIFF/WAVE without a codec library, fast enough to run in the server.
 *
 * 16 kHz mono needs one pass from the file to float. Anything else goes block by block through a
 * scratch buffer: samples to float, channels to mono, rate to rate.
 *
 * What the header promises must be there (M9), but for the sizes that streaming writers leave, 0
 * and 2^32 - 1 or near it: they mean to the end of the file.
 *
 * Channels are weighted as a downmix to one speaker is (front 0.71, centre 1, surround 0.5, no LFE)
 * and scaled to a sum of 1, so that nothing gets louder than its loudest channel; without a known
 * layout all count the same.
 */
#include "media/wav.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "media/resample.h"

#define TAG_PCM 0x0001
#define TAG_FLOAT 0x0003
#define TAG_ALAW 0x0006
#define TAG_MULAW 0x0007
#define TAG_EXTENSIBLE 0xFFFE
#define SIZE_UNKNOWN 0x7FFF0000u /* this and more: written before the size was known */
#define SCRATCH_SAMPLES 16384

struct wav_kind {
    const char *name;
    uint32_t bytes; /* of one sample of one channel */
    void (*read)(const uint8_t *in, float *out, size_t count);
};

/* What a block needs on its way to mono at the wanted rate. */
struct wav_block {
    float *samples; /* (frames, channels); NULL for mono */
    float *mono;    /* (frames) */
    float *weights; /* (channels) */
    struct berth_resampler *resampler; /* NULL: the rate is right */
    size_t frames_max;
};

static bool matches(const struct berth_media_input *input);
static enum berth_code decode(const struct berth_media_input *input, struct berth_pcm *pcm,
                              struct berth_err *err);
static enum berth_code decode_straight(const struct berth_wav *wav, struct berth_pcm *pcm,
                                       struct berth_err *err);
static enum berth_code decode_blocks(const struct berth_wav *wav, struct berth_pcm *pcm,
                                     struct berth_err *err);
static enum berth_code block_init(struct wav_block *block, const struct berth_wav *wav,
                                  const struct berth_pcm *pcm, struct berth_err *err);
static void block_finish(struct wav_block *block);
static enum berth_code block_push(struct wav_block *block, size_t frames, struct berth_pcm *pcm,
                                  struct berth_err *err);
static enum berth_code block_flush(struct wav_block *block, struct berth_pcm *pcm,
                                   struct berth_err *err);
static bool is_wave(const struct berth_media_input *input);
static enum berth_code read_format(const uint8_t *chunk, uint64_t size, struct berth_wav *wav,
                                   struct berth_err *err);
static bool pick_kind(uint32_t tag, uint32_t bits, uint32_t bytes, enum berth_wav_kind *out);
static uint64_t chunk_next(const struct berth_media_input *input, uint64_t at, uint64_t size);
static uint64_t data_size(uint64_t riff, uint64_t size, uint64_t length, uint64_t there);
static void speaker_weights(const struct berth_wav *wav, float *weights);
static void mix(const float *samples, const float *weights, size_t channels, float *mono,
                size_t frames);
static void read_u8(const uint8_t *in, float *out, size_t count);
static void read_s16(const uint8_t *in, float *out, size_t count);
static void read_s24(const uint8_t *in, float *out, size_t count);
static void read_s32(const uint8_t *in, float *out, size_t count);
static void read_f32(const uint8_t *in, float *out, size_t count);
static void read_f64(const uint8_t *in, float *out, size_t count);
static void read_alaw(const uint8_t *in, float *out, size_t count);
static void read_mulaw(const uint8_t *in, float *out, size_t count);
static uint32_t get_u16(const uint8_t *bytes);
static uint32_t get_u32(const uint8_t *bytes);
static uint64_t get_u64(const uint8_t *bytes);

static const struct wav_kind kinds[BERTH_WAV_KIND_COUNT] = {
    [BERTH_WAV_U8] = {"u8", 1, read_u8},       [BERTH_WAV_S16] = {"s16", 2, read_s16},
    [BERTH_WAV_S24] = {"s24", 3, read_s24},    [BERTH_WAV_S32] = {"s32", 4, read_s32},
    [BERTH_WAV_F32] = {"f32", 4, read_f32},    [BERTH_WAV_F64] = {"f64", 8, read_f64},
    [BERTH_WAV_ALAW] = {"alaw", 1, read_alaw}, [BERTH_WAV_MULAW] = {"mulaw", 1, read_mulaw},
};

/* In the order of the mask's bits: FL FR FC LFE BL BR FLC FRC BC SL SR, then the top ones. */
static const float speakers[] = {
    0.7071f, 0.7071f, 1.0f, 0.0f, 0.5f, 0.5f, 0.7071f, 0.7071f, 0.5f,
    0.5f,    0.5f,    0.5f, 0.5f, 0.5f, 0.5f, 0.5f,    0.5f,    0.5f,
};

enum berth_code berth_wav_open(const struct berth_media_input *input, struct berth_wav *out,
                               struct berth_err *err)
{
    if (!is_wave(input)) {
        return berth_fail_field(err, BERTH_MEDIA, "file", "not a WAVE file");
    }
    struct berth_wav wav = {0};
    bool has_format = false;
    uint64_t riff = get_u32(input->bytes + 4);
    const uint8_t *sizes_64 = NULL; /* ds64: of RIFF, of data */
    uint64_t at = 12;
    for (int i = 0; i < BERTH_WAV_CHUNKS_MAX && input->length - at >= 8; i++) {
        const uint8_t *chunk = input->bytes + at + 8;
        uint64_t there = input->length - at - 8;
        uint64_t size = get_u32(input->bytes + at + 4);
        if (memcmp(chunk - 8, "fmt ", 4) == 0 && !has_format) {
            BERTH_TRY(read_format(chunk, size < there ? size : there, &wav, err));
            has_format = true;
        } else if (memcmp(chunk - 8, "ds64", 4) == 0 && size >= 16 && there >= 16) {
            sizes_64 = chunk;
        } else if (memcmp(chunk - 8, "data", 4) == 0) {
            if (!has_format) {
                return berth_fail_field(err, BERTH_MEDIA, "file",
                                        "WAVE file without a format before its audio");
            }
            if (size == UINT32_MAX && sizes_64 != NULL) {
                riff = get_u64(sizes_64);
                size = get_u64(sizes_64 + 8);
            } else if (size >= SIZE_UNKNOWN) {
                size = UINT64_MAX;
            }
            uint64_t frame_bytes = (uint64_t)wav.channel_count * kinds[wav.kind].bytes;
            wav.samples = chunk;
            wav.bytes_promised = data_size(riff, size, input->length, there);
            wav.bytes = wav.bytes_promised < there ? wav.bytes_promised : there;
            wav.frame_count = wav.bytes / frame_bytes;
            *out = wav;
            return BERTH_OK;
        }
        at = chunk_next(input, at + 8, size);
    }
    return berth_fail_field(err, BERTH_MEDIA, "file",
                            "the WAVE file ends before its audio (no data chunk)");
}

/* A WAVE file is left to others only for its codec; what is broken is said here. */
static bool matches(const struct berth_media_input *input)
{
    struct berth_wav wav;
    struct berth_err err = {0};
    return is_wave(input) && berth_wav_open(input, &wav, &err) != BERTH_UNSUPPORTED;
}

static enum berth_code decode(const struct berth_media_input *input, struct berth_pcm *pcm,
                              struct berth_err *err)
{
    struct berth_wav wav;
    BERTH_TRY(berth_wav_open(input, &wav, err));
    if (wav.bytes_promised > wav.bytes) {
        return berth_fail_field(err, BERTH_INVALID, "file",
                                "cut short: its header promises %" PRIu64
                                " bytes of audio, %" PRIu64 " came",
                                wav.bytes_promised, wav.bytes);
    }
    struct berth_pcm_source source = {
        .seconds = (double)wav.frame_count / wav.rate,
        .rate = wav.rate,
        .channel_count = wav.channel_count,
    };
    snprintf(source.format, sizeof(source.format), "wav %s", kinds[wav.kind].name);
    BERTH_TRY(berth_pcm_expect(pcm, &source, err));
    if (wav.frame_count == 0) {
        return BERTH_OK;
    }
    if (wav.channel_count == 1 && wav.rate == pcm->rate) {
        return decode_straight(&wav, pcm, err);
    }
    return decode_blocks(&wav, pcm, err);
}

static enum berth_code decode_straight(const struct berth_wav *wav, struct berth_pcm *pcm,
                                       struct berth_err *err)
{
    const struct wav_kind *kind = &kinds[wav->kind];
    for (uint64_t at = 0; at < wav->frame_count;) {
        uint64_t left = wav->frame_count - at;
        size_t count = left < BERTH_PCM_BLOCK ? (size_t)left : BERTH_PCM_BLOCK;
        BERTH_TRY(berth_pcm_reserve(pcm, count, err));
        kind->read(wav->samples + at * kind->bytes, pcm->frames + pcm->count, count);
        BERTH_TRY(berth_pcm_commit(pcm, count, err));
        at += count;
    }
    return BERTH_OK;
}

static enum berth_code decode_blocks(const struct berth_wav *wav, struct berth_pcm *pcm,
                                     struct berth_err *err)
{
    const struct wav_kind *kind = &kinds[wav->kind];
    const size_t channels = wav->channel_count;
    struct wav_block block = {0};
    enum berth_code code = block_init(&block, wav, pcm, err);
    for (uint64_t at = 0; code == BERTH_OK && at < wav->frame_count;) {
        uint64_t left = wav->frame_count - at;
        size_t count = left < block.frames_max ? (size_t)left : block.frames_max;
        const uint8_t *in = wav->samples + at * channels * kind->bytes;
        if (channels == 1) {
            kind->read(in, block.mono, count);
        } else {
            kind->read(in, block.samples, count * channels);
            mix(block.samples, block.weights, channels, block.mono, count);
        }
        code = block_push(&block, count, pcm, err);
        at += count;
    }
    if (code == BERTH_OK && block.resampler != NULL) {
        code = block_flush(&block, pcm, err);
    }
    block_finish(&block);
    return code;
}

static enum berth_code block_init(struct wav_block *block, const struct berth_wav *wav,
                                  const struct berth_pcm *pcm, struct berth_err *err)
{
    uint64_t frames = SCRATCH_SAMPLES / wav->channel_count;
    uint64_t frames_rate = (uint64_t)(BERTH_PCM_BLOCK / 2) * wav->rate / pcm->rate;
    frames = frames < frames_rate ? frames : frames_rate;
    block->frames_max = frames > 0 ? (size_t)frames : 1;
    block->mono = berth_alloc(block->frames_max * sizeof(float));
    if (wav->channel_count > 1) {
        block->weights = berth_alloc(wav->channel_count * sizeof(float));
        block->samples = berth_alloc(SCRATCH_SAMPLES * sizeof(float));
        if (block->weights == NULL || block->samples == NULL) {
            return berth_fail(err, BERTH_UNAVAILABLE, "no memory to decode");
        }
        speaker_weights(wav, block->weights);
    }
    if (block->mono == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to decode");
    }
    if (wav->rate == pcm->rate) {
        return BERTH_OK;
    }
    return berth_resampler_create(wav->rate, pcm->rate, &block->resampler, err);
}

static void block_finish(struct wav_block *block)
{
    berth_free(block->samples);
    berth_free(block->mono);
    berth_free(block->weights);
    berth_resampler_destroy(block->resampler);
}

static enum berth_code block_push(struct wav_block *block, size_t frames, struct berth_pcm *pcm,
                                  struct berth_err *err)
{
    size_t room =
        block->resampler == NULL ? frames : berth_resampler_room(block->resampler, frames);
    BERTH_TRY(berth_pcm_reserve(pcm, room, err));
    float *out = pcm->frames + pcm->count;
    size_t made = frames;
    if (block->resampler == NULL) {
        memcpy(out, block->mono, frames * sizeof(*out));
    } else {
        made = berth_resampler_push(block->resampler, block->mono, frames, out);
    }
    return berth_pcm_commit(pcm, made, err);
}

static enum berth_code block_flush(struct wav_block *block, struct berth_pcm *pcm,
                                   struct berth_err *err)
{
    for (;;) {
        const size_t room = 1024;
        BERTH_TRY(berth_pcm_reserve(pcm, room, err));
        size_t made = berth_resampler_flush(block->resampler, pcm->frames + pcm->count, room);
        BERTH_TRY(berth_pcm_commit(pcm, made, err));
        if (made == 0) {
            return BERTH_OK;
        }
    }
}

static bool is_wave(const struct berth_media_input *input)
{
    return input->length >= 12 && memcmp(input->bytes + 8, "WAVE", 4) == 0 &&
           (memcmp(input->bytes, "RIFF", 4) == 0 || memcmp(input->bytes, "RF64", 4) == 0 ||
            memcmp(input->bytes, "BW64", 4) == 0);
}

static enum berth_code read_format(const uint8_t *chunk, uint64_t size, struct berth_wav *wav,
                                   struct berth_err *err)
{
    static const uint8_t guid_tail[14] = {0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x80,
                                          0x00, 0x00, 0xAA, 0x00, 0x38, 0x9B, 0x71};
    if (size < 16) {
        return berth_fail_field(err, BERTH_MEDIA, "file", "WAVE file with a format cut short");
    }
    uint32_t tag = get_u16(chunk);
    wav->channel_count = get_u16(chunk + 2);
    wav->rate = get_u32(chunk + 4);
    uint32_t block_bytes = get_u16(chunk + 12);
    uint32_t bits = get_u16(chunk + 14);
    if (tag == TAG_EXTENSIBLE) {
        if (size < 40 || memcmp(chunk + 26, guid_tail, sizeof(guid_tail)) != 0) {
            return berth_fail_field(err, BERTH_UNSUPPORTED, "file",
                                    "WAVE file of an unknown extended format");
        }
        wav->speakers = get_u32(chunk + 20);
        tag = get_u16(chunk + 24);
    }
    if (tag != TAG_PCM && tag != TAG_FLOAT && tag != TAG_ALAW && tag != TAG_MULAW) {
        return berth_fail_field(err, BERTH_UNSUPPORTED, "file", "WAVE file of codec 0x%04x", tag);
    }
    if (wav->channel_count < 1 || wav->channel_count > BERTH_WAV_CHANNELS_MAX) {
        return berth_fail_field(err, BERTH_MEDIA, "file", "WAVE file with %u channels",
                                wav->channel_count);
    }
    if (wav->rate < BERTH_RESAMPLE_RATE_MIN || wav->rate > BERTH_RESAMPLE_RATE_MAX) {
        return berth_fail_field(err, BERTH_MEDIA, "file", "WAVE file with a rate of %u Hz",
                                wav->rate);
    }
    /* block_bytes tells the width of a sample's container; writers that leave it wrong use bits. */
    uint32_t bytes = block_bytes / wav->channel_count;
    if (block_bytes % wav->channel_count != 0 || bytes * 8 < bits) {
        bytes = (bits + 7) / 8;
    }
    if (!pick_kind(tag, bits, bytes, &wav->kind)) {
        return berth_fail_field(err, BERTH_MEDIA, "file",
                                "WAVE file with samples of %u bits in %u bytes", bits, bytes);
    }
    return BERTH_OK;
}

/* Samples stand in the upper bits of their container, so its width alone decides. */
static bool pick_kind(uint32_t tag, uint32_t bits, uint32_t bytes, enum berth_wav_kind *out)
{
    static const enum berth_wav_kind pcm[] = {BERTH_WAV_U8, BERTH_WAV_S16, BERTH_WAV_S24,
                                              BERTH_WAV_S32};
    if (bits < 1) {
        return false;
    }
    if (tag == TAG_PCM && bytes >= 1 && bytes <= BERTH_COUNT_OF(pcm)) {
        *out = pcm[bytes - 1];
        return true;
    }
    if (tag == TAG_FLOAT && (bytes == 4 || bytes == 8)) {
        *out = bytes == 4 ? BERTH_WAV_F32 : BERTH_WAV_F64;
        return true;
    }
    if ((tag == TAG_ALAW || tag == TAG_MULAW) && bytes == 1) {
        *out = tag == TAG_ALAW ? BERTH_WAV_ALAW : BERTH_WAV_MULAW;
        return true;
    }
    return false;
}

/* Where the next chunk begins; the file's length when there is none. Chunks are padded to even
 * sizes, but not by every writer: a pad byte is 0 and a chunk's name never begins with it. */
static uint64_t chunk_next(const struct berth_media_input *input, uint64_t at, uint64_t size)
{
    if (size >= input->length - at) {
        return input->length;
    }
    uint64_t next = at + size;
    return size % 2 == 1 && input->bytes[next] == 0 ? next + 1 : next;
}

/* Bytes of audio that the header promises; there: bytes to the end of the file. */
static uint64_t data_size(uint64_t riff, uint64_t size, uint64_t length, uint64_t there)
{
    bool is_unknown = size > INT64_MAX;
    if (size == 0) {
        /* A stream's header, unless the outer size covers the file too: then it is empty. */
        is_unknown = riff == 0 || riff >= SIZE_UNKNOWN || riff + 8 < length;
    }
    return is_unknown ? there : size;
}

static void speaker_weights(const struct berth_wav *wav, float *weights)
{
    uint32_t mask = wav->speakers;
    if (mask == 0 && wav->channel_count == 6) {
        mask = 0x3F; /* 5.1 */
    } else if (mask == 0 && wav->channel_count == 8) {
        mask = 0x63F; /* 7.1 */
    }
    float sum = 0;
    size_t known = 0;
    for (size_t i = 0; i < BERTH_COUNT_OF(speakers) && known < wav->channel_count; i++) {
        if ((mask >> i & 1) != 0) {
            weights[known++] = speakers[i];
            sum += speakers[i];
        }
    }
    bool is_known = known == wav->channel_count && sum > 0 &&
                    (uint32_t)__builtin_popcount(mask) == wav->channel_count;
    for (size_t i = 0; i < wav->channel_count; i++) {
        weights[i] = is_known ? weights[i] / sum : 1.0f / (float)wav->channel_count;
    }
}

static void mix(const float *samples, const float *weights, size_t channels, float *mono,
                size_t frames)
{
    if (channels == 2) {
        for (size_t i = 0; i < frames; i++) {
            mono[i] = samples[2 * i] * weights[0] + samples[2 * i + 1] * weights[1];
        }
        return;
    }
    for (size_t i = 0; i < frames; i++) {
        float sum = 0;
        for (size_t channel = 0; channel < channels; channel++) {
            sum += samples[i * channels + channel] * weights[channel];
        }
        mono[i] = sum;
    }
}

static void read_u8(const uint8_t *in, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)(in[i] - 128) * (1.0f / 128);
    }
}

static void read_s16(const uint8_t *in, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int16_t level;
        memcpy(&level, in + 2 * i, sizeof(level));
        out[i] = (float)level * (1.0f / 32768);
    }
}

static void read_s24(const uint8_t *in, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)in[3 * i] << 8 | (uint32_t)in[3 * i + 1] << 16 |
                        (uint32_t)in[3 * i + 2] << 24;
        out[i] = (float)(int32_t)bits * (1.0f / 2147483648.0f);
    }
}

static void read_s32(const uint8_t *in, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int32_t level;
        memcpy(&level, in + 4 * i, sizeof(level));
        out[i] = (float)level * (1.0f / 2147483648.0f);
    }
}

static void read_f32(const uint8_t *in, float *out, size_t count)
{
    memcpy(out, in, count * sizeof(*out));
    berth_pcm_clean(out, count);
}

static void read_f64(const uint8_t *in, float *out, size_t count)
{
    const double most = BERTH_PCM_LEVEL_MAX;
    for (size_t i = 0; i < count; i++) {
        double level;
        memcpy(&level, in + 8 * i, sizeof(level));
        level = level > most ? most : level < -most ? -most : level;
        out[i] = level == level ? (float)level : 0.0f;
    }
}

/* ITU-T G.711, both scaled as 16-bit samples are. */
static void read_alaw(const uint8_t *in, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = in[i] ^ 0x55u;
        uint32_t exponent = bits >> 4 & 7;
        int level = (int)((bits & 15) << 4) + 8;
        if (exponent > 0) {
            level = (level + 256) << (exponent - 1);
        }
        out[i] = (float)((bits & 0x80) != 0 ? level : -level) * (1.0f / 32768);
    }
}

static void read_mulaw(const uint8_t *in, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = ~(uint32_t)in[i] & 0xFF;
        int level = ((int)((bits & 15) << 3) + 132) << (bits >> 4 & 7);
        level -= 132;
        out[i] = (float)((bits & 0x80) != 0 ? -level : level) * (1.0f / 32768);
    }
}

static uint32_t get_u16(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
}

static uint32_t get_u32(const uint8_t *bytes)
{
    return get_u16(bytes) | get_u16(bytes + 2) << 16;
}

static uint64_t get_u64(const uint8_t *bytes)
{
    return get_u32(bytes) | (uint64_t)get_u32(bytes + 4) << 32;
}

const struct berth_decoder_ops berth_decoder_wav = {
    .name = "wav",
    .direct = true,
    .matches = matches,
    .decode = decode,
};
