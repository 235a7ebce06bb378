/* test_wav.c - headers of WAVE files, good, odd and hostile; samples of every kind. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "media/wav.h"

/* A file under construction. */
struct file {
    uint8_t bytes[8192];
    size_t length;
};

static void put(struct file *file, const void *bytes, size_t length)
{
    assert_true(file->length + length <= sizeof(file->bytes));
    memcpy(file->bytes + file->length, bytes, length);
    file->length += length;
}

static void put_u16(struct file *file, uint32_t value)
{
    put(file, (uint8_t[]){(uint8_t)value, (uint8_t)(value >> 8)}, 2);
}

static void put_u32(struct file *file, uint32_t value)
{
    put_u16(file, value & 0xFFFF);
    put_u16(file, value >> 16);
}

static void begin(struct file *file, const char *name, uint32_t riff_size)
{
    file->length = 0;
    put(file, name, 4);
    put_u32(file, riff_size);
    put(file, "WAVE", 4);
}

static void chunk(struct file *file, const char *name, uint32_t size)
{
    put(file, name, 4);
    put_u32(file, size);
}

static void format_chunk(struct file *file, uint32_t tag, uint32_t channels, uint32_t rate,
                         uint32_t bits)
{
    chunk(file, "fmt ", 16);
    put_u16(file, tag);
    put_u16(file, channels);
    put_u32(file, rate);
    put_u32(file, rate * channels * bits / 8);
    put_u16(file, channels * ((bits + 7) / 8));
    put_u16(file, bits);
}

static enum berth_code open_file(const struct file *file, struct berth_wav *wav,
                                 struct berth_err *err)
{
    /* A copy of exactly its length, so that a sanitizer sees every byte read past it. */
    static uint8_t *copy;
    free(copy);
    copy = malloc(file->length + 1);
    memcpy(copy, file->bytes, file->length);
    struct berth_media_input input = {.bytes = copy, .length = file->length};
    *wav = (struct berth_wav){0};
    *err = (struct berth_err){0};
    enum berth_code code = berth_wav_open(&input, wav, err);
    if (code == BERTH_OK) { /* all that is claimed lies inside */
        assert_true(wav->samples >= copy && wav->samples <= copy + file->length);
    }
    if (file->length == 0) {
        assert_int_not_equal(code, BERTH_OK);
    }
    return code;
}

/* A berth_pcm over plain memory. */
struct memory_pcm {
    struct berth_pcm pcm;
    float *frames;
    uint64_t room_max;
    uint64_t room_calls;
    uint64_t poll_calls;
    uint64_t poll_fails_at;
};

static enum berth_code memory_room(struct berth_pcm *pcm, uint64_t capacity, struct berth_err *err)
{
    struct memory_pcm *memory = BERTH_CONTAINER_OF(pcm, struct memory_pcm, pcm);
    memory->room_calls++;
    if (memory->room_max != 0 && capacity > memory->room_max) {
        return berth_fail(err, BERTH_BUSY, "no room");
    }
    memory->frames = realloc(memory->frames, capacity * sizeof(float));
    pcm->frames = memory->frames;
    pcm->capacity = capacity;
    return BERTH_OK;
}

static enum berth_code memory_poll(struct berth_pcm *pcm, struct berth_err *err)
{
    struct memory_pcm *memory = BERTH_CONTAINER_OF(pcm, struct memory_pcm, pcm);
    memory->poll_calls++;
    return memory->poll_calls == memory->poll_fails_at
               ? berth_fail(err, BERTH_CANCELLED, "cancelled")
               : BERTH_OK;
}

static const struct berth_pcm_ops memory_ops = {.room = memory_room, .poll = memory_poll};

static enum berth_code decode(const struct file *file, struct memory_pcm *memory,
                              struct berth_err *err)
{
    struct berth_media_input input = {.bytes = file->bytes, .length = file->length};
    *memory = (struct memory_pcm){0};
    berth_pcm_init(&memory->pcm, &memory_ops, 16000, 60);
    return berth_decoder_wav.decode(&input, &memory->pcm, err);
}

static void test_headers(void **state)
{
    struct file file;
    struct berth_wav wav;
    struct berth_err err;
    begin(&file, "RIFF", 40);
    format_chunk(&file, 1, 1, 16000, 16);
    chunk(&file, "data", 4);
    put_u32(&file, 0);
    assert_int_equal(open_file(&file, &wav, &err), BERTH_OK);
    assert_int_equal(wav.kind, BERTH_WAV_S16);
    assert_int_equal(wav.rate, 16000);
    assert_int_equal(wav.frame_count, 2);
    assert_int_equal(wav.bytes_promised, 4);
    /* Cut anywhere: an error before the data chunk, fewer frames after it. */
    for (size_t length = 0; length < 48; length++) {
        struct file cut = file;
        cut.length = length;
        enum berth_code code = open_file(&cut, &wav, &err);
        assert_int_equal(code, length < 44 ? BERTH_MEDIA : BERTH_OK);
        if (code == BERTH_OK) {
            assert_int_equal(wav.frame_count, (length - 44) / 2);
            assert_int_equal(wav.bytes_promised, 4);
            assert_int_equal(wav.bytes, length - 44);
        } else {
            assert_string_equal(err.field, "file");
        }
    }
}

static void test_chunks(void **state)
{
    struct file file;
    struct berth_wav wav;
    struct berth_err err;
    /* Junk before and between, one of an odd size, padded and not padded. */
    for (int padded = 0; padded < 2; padded++) {
        begin(&file, "RIFF", 1000);
        chunk(&file, "JUNK", 5);
        put(&file, "abcde\0", padded ? 6 : 5);
        format_chunk(&file, 1, 2, 8000, 8);
        chunk(&file, "LIST", 0);
        chunk(&file, "fact", 4);
        put_u32(&file, 99);
        chunk(&file, "data", 7);
        put(&file, "1234567", 7);
        assert_int_equal(open_file(&file, &wav, &err), BERTH_OK);
        assert_int_equal(wav.frame_count, 3);
        assert_memory_equal(wav.samples, "1234567", 7);
    }
    /* No format; a format cut short; data first; endless chunks of nothing. */
    begin(&file, "RIFF", 1000);
    chunk(&file, "data", 4);
    put_u32(&file, 0);
    assert_int_equal(open_file(&file, &wav, &err), BERTH_MEDIA);
    begin(&file, "RIFF", 1000);
    chunk(&file, "fmt ", 14);
    put(&file, "01234567890123", 14);
    chunk(&file, "data", 0);
    assert_int_equal(open_file(&file, &wav, &err), BERTH_MEDIA);
    begin(&file, "RIFF", 1000);
    for (int i = 0; i < 1000; i++) {
        chunk(&file, "JUNK", 0);
    }
    assert_int_equal(open_file(&file, &wav, &err), BERTH_MEDIA);
    begin(&file, "RIFF", 1000);
    chunk(&file, "JUNK", 0xFFFFFFFF);
    format_chunk(&file, 1, 1, 16000, 16);
    assert_int_equal(open_file(&file, &wav, &err), BERTH_MEDIA);
    begin(&file, "RIFX", 1000);
    assert_int_equal(open_file(&file, &wav, &err), BERTH_MEDIA);
}

/* What was promised and did not come is an error that tells both; all else is decoded. */
static void check_promise(const struct file *file, const struct berth_wav *wav)
{
    struct memory_pcm memory;
    struct berth_err err = {0};
    char says[120];
    enum berth_code code = decode(file, &memory, &err);
    if (wav->bytes_promised <= wav->bytes) {
        assert_int_equal(code, BERTH_OK);
        assert_int_equal(memory.pcm.count, wav->frame_count);
    } else {
        assert_int_equal(code, BERTH_INVALID);
        assert_string_equal(err.field, "file");
        snprintf(says, sizeof(says),
                 "cut short: its header promises %llu bytes of audio, %llu came",
                 (unsigned long long)wav->bytes_promised, (unsigned long long)wav->bytes);
        assert_string_equal(err.msg, says);
        assert_int_equal(memory.pcm.count, 0);
    }
    free(memory.frames);
}

/* Sizes of the data chunk that streaming and careless writers leave. */
static void test_sizes(void **state)
{
    static const struct {
        uint32_t riff_size, data_size;
        uint64_t frames, promised; /* of 8 frames, 16 bytes, that are there */
    } rows[] = {
        {52, 16, 8, 16},         {52, 14, 7, 14},         {52, 17, 8, 17},
        {52, 18, 8, 18},         {0, 18, 8, 18},          {0xFFFFFFFF, 18, 8, 18},
        {0, 0, 8, 16},           {0xFFFFFFFF, 0, 8, 16},  {52, 0, 0, 0},
        {36, 0, 8, 16},          {52, 0xFFFFFFFF, 8, 16}, {0xFFFFFFFF, 0xFFFFFFFF, 8, 16},
        {52, 0x7FFFF000, 8, 16}, {52, 15, 7, 15},         {52, 1000000, 8, 1000000},
        {52, 0x7FFF0000, 8, 16}, {52, 0x7FFEFFFF, 8, 0x7FFEFFFF},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        struct file file;
        struct berth_wav wav;
        struct berth_err err;
        begin(&file, "RIFF", rows[i].riff_size);
        format_chunk(&file, 1, 1, 16000, 16);
        chunk(&file, "data", rows[i].data_size);
        put(&file, "0123456789abcdef", 16);
        assert_int_equal(open_file(&file, &wav, &err), BERTH_OK);
        assert_int_equal(wav.frame_count, rows[i].frames);
        assert_int_equal(wav.bytes_promised, rows[i].promised);
        check_promise(&file, &wav);
    }
}

static void test_rf64(void **state)
{
    static const struct {
        const char *name;
        uint32_t riff_size, data_size, data_size_high;
        uint64_t frames, promised; /* of 4 frames, 8 bytes, that are there */
    } rows[] = {
        {"RF64", 1000, 4, 0, 2, 4},
        {"BW64", 80, 4, 7, 4, (UINT64_C(7) << 32) + 4},
        {"RF64", 80, 9, 0, 4, 9},
        {"RF64", 0, 0, 0, 4, 8}, /* a stream's */
        {"RF64", 80, 0xFFFFFFFF, 0xFFFFFFFF, 4, 8},
        {"RF64", 80, 0, 0, 0, 0}, /* empty */
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        struct file file;
        struct berth_wav wav;
        struct berth_err err;
        begin(&file, rows[i].name, 0xFFFFFFFF);
        chunk(&file, "ds64", 28);
        put_u32(&file, rows[i].riff_size), put_u32(&file, 0);
        put_u32(&file, rows[i].data_size), put_u32(&file, rows[i].data_size_high);
        put_u32(&file, 2), put_u32(&file, 0), put_u32(&file, 0);
        format_chunk(&file, 1, 1, 16000, 16);
        chunk(&file, "data", 0xFFFFFFFF);
        put(&file, "01234567", 8);
        assert_int_equal(open_file(&file, &wav, &err), BERTH_OK);
        assert_int_equal(wav.frame_count, rows[i].frames);
        assert_int_equal(wav.bytes_promised, rows[i].promised);
        check_promise(&file, &wav);
    }
}

static void test_formats(void **state)
{
    static const struct {
        uint32_t tag, channels, rate, bits;
        enum berth_code code;
    } rows[] = {
        {1, 1, 16000, 8, BERTH_OK},      {1, 1, 16000, 12, BERTH_OK},
        {1, 1, 16000, 24, BERTH_OK},     {1, 1, 16000, 32, BERTH_OK},
        {1, 1, 16000, 33, BERTH_MEDIA},  {1, 1, 16000, 0, BERTH_MEDIA},
        {1, 1, 16000, 64, BERTH_MEDIA},  {1, 1, 16000, 65535, BERTH_MEDIA},
        {1, 0, 16000, 16, BERTH_MEDIA},  {1, 1024, 16000, 16, BERTH_OK},
        {1, 1025, 16000, 16, BERTH_MEDIA}, {1, 65535, 16000, 16, BERTH_MEDIA},
        {1, 1, 99, 16, BERTH_MEDIA},     {1, 1, 100, 16, BERTH_OK},
        {1, 1, 768000, 16, BERTH_OK},    {1, 1, 768001, 16, BERTH_MEDIA},
        {1, 1, 0, 16, BERTH_MEDIA},      {3, 1, 16000, 32, BERTH_OK},
        {3, 1, 16000, 64, BERTH_OK},     {3, 1, 16000, 16, BERTH_MEDIA},
        {6, 1, 8000, 8, BERTH_OK},       {7, 1, 8000, 8, BERTH_OK},
        {7, 1, 8000, 16, BERTH_MEDIA},   {2, 1, 8000, 4, BERTH_UNSUPPORTED},
        {0x55, 1, 8000, 0, BERTH_UNSUPPORTED}, {0, 1, 8000, 16, BERTH_UNSUPPORTED},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        struct file file;
        struct berth_wav wav;
        struct berth_err err;
        begin(&file, "RIFF", 36);
        format_chunk(&file, rows[i].tag, rows[i].channels, rows[i].rate, rows[i].bits);
        chunk(&file, "data", 0);
        enum berth_code code = open_file(&file, &wav, &err);
        if (code != rows[i].code) {
            fail_msg("row %zu: %s (%s)", i, berth_code_name(code), err.msg);
        }
    }
}

static void test_extensible(void **state)
{
    static const uint8_t tail[14] = {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71};
    for (int bad = 0; bad < 3; bad++) {
        struct file file;
        struct berth_wav wav;
        struct berth_err err;
        begin(&file, "RIFF", 60);
        format_chunk(&file, 0xFFFE, 6, 48000, 24);
        file.bytes[16] = bad == 1 ? 38 : 40; /* the chunk's size */
        put_u16(&file, 22);
        put_u16(&file, 24);
        put_u32(&file, 0x3F);
        put_u16(&file, bad == 2 ? 0x161 : 1);
        put(&file, tail, sizeof(tail));
        chunk(&file, "data", 18);
        put(&file, "012345678901234567", 18);
        enum berth_code code = open_file(&file, &wav, &err);
        assert_int_equal(code, bad == 0 ? BERTH_OK : BERTH_UNSUPPORTED);
        if (bad == 0) {
            assert_int_equal(wav.speakers, 0x3F);
            assert_int_equal(wav.kind, BERTH_WAV_S24);
            assert_int_equal(wav.frame_count, 1);
        }
    }
}

/* One value of every kind, as float. */
static void test_samples(void **state)
{
    static const struct {
        uint32_t tag, bits;
        uint8_t bytes[8];
        float level;
    } rows[] = {
        {1, 8, {0}, -1.0f},
        {1, 8, {128}, 0.0f},
        {1, 8, {192}, 0.5f},
        {1, 16, {0x00, 0x80}, -1.0f},
        {1, 16, {0x00, 0x40}, 0.5f},
        {1, 24, {0x00, 0x00, 0x80}, -1.0f},
        {1, 24, {0x00, 0x00, 0x20}, 0.25f},
        {1, 32, {0x00, 0x00, 0x00, 0x80}, -1.0f},
        {1, 32, {0x00, 0x00, 0x00, 0xC0}, -0.5f},
        {3, 32, {0x00, 0x00, 0x80, 0x3F}, 1.0f},
        {3, 32, {0x00, 0x00, 0xC0, 0x7F}, 0.0f},                /* NaN */
        {3, 32, {0x00, 0x00, 0x80, 0x7F}, BERTH_PCM_LEVEL_MAX}, /* infinity */
        {3, 32, {0x00, 0x00, 0x80, 0xFF}, -BERTH_PCM_LEVEL_MAX},
        {3, 64, {0, 0, 0, 0, 0, 0, 0xE0, 0xBF}, -0.5f},
        {3, 64, {0, 0, 0, 0, 0, 0, 0xF8, 0x7F}, 0.0f},
        {3, 64, {0, 0, 0, 0, 0, 0, 0xF0, 0xFF}, -BERTH_PCM_LEVEL_MAX},
        {6, 8, {0xD5}, 8.0f / 32768},
        {6, 8, {0x55}, -8.0f / 32768},
        {6, 8, {0xAA}, 32256.0f / 32768},
        {6, 8, {0x2A}, -32256.0f / 32768},
        {7, 8, {0xFF}, 0.0f},
        {7, 8, {0x7F}, 0.0f},
        {7, 8, {0x80}, 32124.0f / 32768},
        {7, 8, {0x00}, -32124.0f / 32768},
        {7, 8, {0xF0}, 120.0f / 32768},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        struct file file;
        struct memory_pcm memory;
        struct berth_err err = {0};
        begin(&file, "RIFF", 1000);
        format_chunk(&file, rows[i].tag, 1, 16000, rows[i].bits);
        chunk(&file, "data", rows[i].bits / 8);
        put(&file, rows[i].bytes, rows[i].bits / 8);
        assert_int_equal(decode(&file, &memory, &err), BERTH_OK);
        assert_int_equal(memory.pcm.count, 1);
        if (memory.frames[0] != rows[i].level) {
            fail_msg("row %zu: %.9g", i, (double)memory.frames[0]);
        }
        free(memory.frames);
    }
}

static void test_downmix(void **state)
{
    static const struct {
        uint32_t channels;
        float levels[8]; /* of one frame; 16-bit steps of 1/8 */
        float mono;
    } rows[] = {
        {2, {0.5f, 0.25f}, 0.375f},
        {3, {0.75f, 0, 0}, 0.25f},
        {6, {0, 0, 0, 0.5f, 0, 0}, 0.0f},                   /* LFE is left out */
        {6, {0, 0, 0.5f, 0, 0, 0}, 0.5f / 3.4142f},         /* centre */
        {6, {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f}, 0.5f},
        {8, {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f}, 0.5f},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        struct file file;
        struct memory_pcm memory;
        struct berth_err err = {0};
        begin(&file, "RIFF", 1000);
        format_chunk(&file, 1, rows[i].channels, 16000, 16);
        chunk(&file, "data", rows[i].channels * 2);
        for (uint32_t k = 0; k < rows[i].channels; k++) {
            put_u16(&file, (uint32_t)(int32_t)(rows[i].levels[k] * 32768));
        }
        assert_int_equal(decode(&file, &memory, &err), BERTH_OK);
        assert_int_equal(memory.pcm.count, 1);
        assert_true(fabsf(memory.frames[0] - rows[i].mono) < 1e-4f);
        free(memory.frames);
    }
}

/* The limits: length before decoding, room, and a poll that says stop. */
static void test_limits(void **state)
{
    struct file file;
    struct berth_err err = {0};
    struct memory_pcm memory = {0};
    begin(&file, "RIFF", 1000);
    format_chunk(&file, 1, 1, 100, 8);
    chunk(&file, "data", 8000);
    memset(file.bytes + file.length, 128, 8000);
    file.length += 8000;
    struct berth_media_input input = {.bytes = file.bytes, .length = file.length};
    berth_pcm_init(&memory.pcm, &memory_ops, 16000, 79.9);
    assert_int_equal(berth_decoder_wav.decode(&input, &memory.pcm, &err), BERTH_TOO_LARGE);
    assert_int_equal(memory.room_calls, 0);
    berth_pcm_init(&memory.pcm, &memory_ops, 16000, 80);
    assert_int_equal(berth_decoder_wav.decode(&input, &memory.pcm, &err), BERTH_OK);
    assert_int_equal(memory.pcm.count, 1280000);
    assert_true(memory.room_calls <= 3);
    memory.room_max = 1000000;
    berth_pcm_init(&memory.pcm, &memory_ops, 16000, 80);
    assert_int_equal(berth_decoder_wav.decode(&input, &memory.pcm, &err), BERTH_BUSY);
    memory.room_max = 0;
    memory.poll_fails_at = memory.poll_calls + 2;
    berth_pcm_init(&memory.pcm, &memory_ops, 16000, 80);
    assert_int_equal(berth_decoder_wav.decode(&input, &memory.pcm, &err), BERTH_CANCELLED);
    for (uint64_t at = 1; at <= 5; at++) {
        memory.poll_fails_at = 0;
        berth_mem_fail_at(at, false);
        berth_pcm_init(&memory.pcm, &memory_ops, 16000, 80);
        assert_int_equal(berth_decoder_wav.decode(&input, &memory.pcm, &err), BERTH_UNAVAILABLE);
        berth_mem_fail_at(0, false);
        assert_int_equal(berth_mem_bytes_live(), 0);
    }
    free(memory.frames);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_rf64),
        cmocka_unit_test(test_formats), cmocka_unit_test(test_extensible),
        cmocka_unit_test(test_samples), cmocka_unit_test(test_downmix),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests_name("wav", tests, NULL, NULL);
}
