/* test_audio.c - files of many containers and codecs against what the ffmpeg program makes of them,
 * whole, cut short and damaged, through real decode processes.
 *
 * The files are made by the ffmpeg program in a temporary folder; without it the test is skipped,
 * as is a single format that this ffmpeg cannot write. The program is its own decode process.
 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "media/decoder.h"
#include "media/media.h"

#define RATE 16000
#define BUDGET (UINT64_C(512) << 20)

struct format {
    const char *file;
    const char *arguments; /* of ffmpeg, between input and output */
    double snr_min;        /* dB against ffmpeg's own decoding and resampling */
};

static const struct format formats[] = {
    {"s16_16k.wav", "-ar 16000 -ac 1 -c:a pcm_s16le", 120},
    {"s16_44k.wav", "-ar 44100 -ac 2 -c:a pcm_s16le", 55},
    {"s24_96k.wav", "-ar 96000 -ac 2 -c:a pcm_s24le", 55},
    {"s32_48k.wav", "-ar 48000 -ac 1 -c:a pcm_s32le", 55},
    {"f32_48k.wav", "-ar 48000 -ac 2 -c:a pcm_f32le", 55},
    {"f64_22k.wav", "-ar 22050 -ac 1 -c:a pcm_f64le", 55},
    {"u8_16k.wav", "-ar 16000 -ac 1 -c:a pcm_u8", 120},
    {"mulaw_8k.wav", "-ar 8000 -ac 1 -c:a pcm_mulaw", 45},
    {"alaw_8k.wav", "-ar 8000 -ac 1 -c:a pcm_alaw", 45},
    {"surround.wav", "-ar 48000 -ac 6 -c:a pcm_s16le", 50},
    {"adpcm.wav", "-ar 16000 -ac 1 -c:a adpcm_ms", 100},
    {"mono.flac", "-ar 44100 -ac 1 -c:a flac", 80},
    {"surround.flac", "-ar 48000 -ac 6 -c:a flac", 80},
    {"cbr.mp3", "-ar 44100 -ac 2 -c:a libmp3lame -b:a 128k -write_xing 0", 80},
    {"vbr.mp3", "-ar 48000 -ac 1 -c:a libmp3lame -q:a 4", 80},
    {"plain.m4a", "-ar 44100 -ac 2 -c:a aac", 80},
    {"faststart.m4a", "-ar 44100 -ac 2 -c:a aac -movflags +faststart", 80},
    {"fragments.mp4", "-ar 48000 -ac 1 -c:a aac -movflags +frag_keyframe+empty_moov", 80},
    {"alac.m4a", "-ar 44100 -ac 2 -c:a alac", 80},
    {"plain.aac", "-ar 32000 -ac 1 -c:a aac -f adts", 80},
    {"vorbis.ogg", "-ar 44100 -ac 2 -c:a libvorbis", 80},
    {"opus.ogg", "-ar 48000 -ac 1 -c:a libopus", 80},
    {"opus.webm", "-ar 48000 -ac 2 -c:a libopus", 80},
    {"vorbis.mka", "-ar 48000 -ac 1 -c:a libvorbis", 80},
    {"speex.ogg", "-ar 16000 -ac 1 -c:a libspeex", 80},
    {"film.mp4", "-f lavfi -i testsrc=size=320x240:rate=10 -shortest -map 0:a -map 1:v "
                 "-c:v mpeg4 -ar 44100 -ac 2 -c:a aac", 80},
    {"film.webm", "-f lavfi -i testsrc=size=160x120:rate=5 -shortest -map 1:v -map 0:a "
                  "-c:v libvpx -ar 48000 -ac 1 -c:a libopus", 80},
    {"film.ts", "-f lavfi -i testsrc=size=160x120:rate=25 -shortest -map 1:v -map 0:a "
                "-c:v mpeg2video -ar 48000 -ac 2 -c:a mp2", 80},
    {"film.avi", "-f lavfi -i testsrc=size=160x120:rate=10 -shortest -map 1:v -map 0:a "
                 "-c:v mpeg4 -ar 44100 -ac 2 -c:a ac3", 80},
    {"film.mpg", "-f lavfi -i testsrc=size=160x120:rate=25 -shortest -map 1:v -map 0:a "
                 "-c:v mpeg1video -ar 48000 -ac 2 -c:a mp2", 80},
    {"plain.wma", "-ar 44100 -ac 2 -c:a wmav2", 80},
    {"plain.aiff", "-ar 44100 -ac 2 -c:a pcm_s16be", 80},
    {"plain.caf", "-ar 44100 -ac 1 -c:a pcm_s16be", 80},
    {"plain.au", "-ar 8000 -ac 1 -c:a pcm_mulaw", 80},
    {"plain.wv", "-ar 44100 -ac 2 -c:a wavpack", 80},
    {"narrow.amr", "-ar 8000 -ac 1 -c:a libopencore_amrnb", 80},
    {"plain.flv", "-ar 44100 -ac 2 -c:a libmp3lame", 80},
    {"plain.3gp", "-ar 44100 -ac 1 -c:a aac", 80},
    {"cover.mp3", "-f lavfi -i 'nullsrc=s=1024x1024:d=0.04,geq=random(1)*255:128:128' "
                  "-map 0:a -map 1:v -c:v png -frames:v 1 -disposition:v attached_pic "
                  "-ar 44100 -ac 2 -c:a libmp3lame", 80},
    {"cover.m4a", "-f lavfi -i testsrc=size=320x240:duration=0.04 -map 0:a -map 1:v -c:v mjpeg "
                  "-pix_fmt yuvj420p -frames:v 1 -disposition:v attached_pic -ar 44100 -ac 2 "
                  "-c:a aac", 80},
    {"piped.wav", "-ar 44100 -ac 2 -c:a pcm_s16le -f wav - >", 55},
    {"piped.flac", "-ar 16000 -ac 1 -c:a flac -f flac - >", 80},
    {"piped.mp3", "-ar 44100 -ac 1 -c:a libmp3lame -f mp3 - >", 80},
    {"piped.webm", "-f lavfi -i testsrc=size=160x120:rate=5 -shortest -map 0:a -map 1:v "
                   "-c:v libvpx-vp9 -ar 48000 -ac 1 -c:a libopus -f webm - >", 80},
    {"piped_adpcm.wav", "-ar 16000 -ac 1 -c:a adpcm_ms -f wav - >", 100},
    {"piped.au", "-ar 8000 -ac 1 -c:a pcm_mulaw -f au - >", 80},
    {"piped.mka", "-ar 48000 -ac 1 -c:a libvorbis -f matroska - >", 80},
    {"piped.flv", "-ar 44100 -ac 2 -c:a libmp3lame -f flv - >", 80},
    {"piped.wma", "-ar 44100 -ac 2 -c:a wmav2 -f asf - >", 80},
    {"piped.ogg", "-ar 48000 -ac 1 -c:a libopus -f ogg - >", 80},
    {"piped.mp4", "-ar 48000 -ac 1 -c:a aac -movflags +frag_keyframe+empty_moov -f mp4 - >", 80},
    {"chained.ogg", "-f null - && cat opus.ogg opus.ogg >", 80},
    {"twice.mp3", "-f null - && cat cbr.mp3 vbr.mp3 >", -99}, /* only its length */
};

/* In these nothing tells that their end is missing. */
static const char *const open_ended[] = {
    "cbr.mp3", "plain.aac", "film.ts",    "film.avi",  "film.mpg", "piped.wav", "piped.flac",
    "piped.mp3", "piped.webm", "twice.mp3", "piped_adpcm.wav", "piped.au",
    "piped.mka", "piped.flv", "piped.wma",
};

static char folder[64];
static bool has_ffmpeg;
static bool is_made[BERTH_COUNT_OF(formats)];

static uint8_t *read_all(const char *name, size_t *length)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*length + 1);
    assert_int_equal(fread(bytes, 1, *length, file), *length);
    fclose(file);
    return bytes;
}

/* Three seconds below 3.4 kHz, louder and softer, so that a shift in time shows. */
static void write_source(void)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/source.f32", folder);
    FILE *file = fopen(path, "wb");
    for (int i = 0; i < 48000 * 3; i++) {
        double t = i / 48000.0;
        double envelope = 0.6 + 0.4 * sin(2 * M_PI * 1.7 * t);
        float level = (float)(envelope * (0.25 * sin(2 * M_PI * 310 * t) +
                                          0.2 * sin(2 * M_PI * (700 + 200 * t) * t) +
                                          0.1 * sin(2 * M_PI * 2900 * t)));
        fwrite(&level, sizeof(level), 1, file);
    }
    fclose(file);
}

static bool ffmpeg(const char *in, const char *arguments, const char *out)
{
    char command[1024];
    snprintf(command, sizeof(command), "cd %s && ffmpeg -nostdin -v error -y %s %s %s 2>>log",
             folder, in, arguments, out);
    return system(command) == 0;
}

static int make_files(void **state)
{
    snprintf(folder, sizeof(folder), "/tmp/berth-audio-XXXXXX");
    assert_non_null(mkdtemp(folder));
    write_source();
    has_ffmpeg = system("ffmpeg -version >/dev/null 2>&1") == 0;
    for (size_t i = 0; has_ffmpeg && i < BERTH_COUNT_OF(formats); i++) {
        is_made[i] = ffmpeg("-f f32le -ar 48000 -ac 1 -i source.f32", formats[i].arguments,
                            formats[i].file);
        if (!is_made[i]) {
            print_message("this ffmpeg does not write %s\n", formats[i].file);
        }
    }
    return 0;
}

static int remove_files(void **state)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

struct rig {
    struct berth_slabs *slabs;
    struct berth_media *media;
    struct berth_queue replies;
};

static void rig_start(struct rig *rig, bool in_process)
{
    struct berth_err err = {0};
    struct berth_slabs_options slabs_options = {.bytes_budget = BUDGET};
    memset(rig, 0, sizeof(*rig));
    assert_int_equal(berth_slabs_create(&slabs_options, &rig->slabs, &err), BERTH_OK);
    assert_int_equal(berth_queue_init(&rig->replies, 0, &err), BERTH_OK);
    struct berth_media_options options = {
        .processes = 2,
        .in_process = in_process,
        .timeout_ns = 60 * BERTH_NS_PER_S,
        .memory_max = UINT64_C(512) << 20,
        .queue_max = 16,
        .slabs = rig->slabs,
    };
    assert_int_equal(berth_media_create(&options, &rig->media, &err), BERTH_OK);
}

static void rig_stop(struct rig *rig)
{
    struct berth_slabs_stats stats;
    berth_media_destroy(rig->media);
    berth_slabs_stats(rig->slabs, &stats);
    assert_int_equal(stats.bytes_out, 0);
    berth_queue_finish(&rig->replies);
    berth_slabs_destroy(rig->slabs);
}

static enum berth_code run(struct rig *rig, struct berth_media_job *job, const uint8_t *bytes,
                           size_t length)
{
    struct berth_err err = {0};
    struct berth_link taken;
    memset(job, 0, sizeof(*job));
    assert_int_equal(berth_slabs_take_private(rig->slabs, length, &job->in, &err), BERTH_OK);
    memcpy(berth_slabs_pointer(rig->slabs, &job->in), bytes, length);
    job->reply = &rig->replies;
    job->rate = RATE;
    job->seconds_max = 3600;
    assert_int_equal(berth_media_submit(rig->media, job, &err), BERTH_OK);
    berth_list_init(&taken);
    while (!berth_queue_take(&rig->replies, &taken)) {
        berth_queue_wait(&rig->replies, 0);
    }
    berth_slabs_give(rig->slabs, &job->in);
    return job->err.code;
}

/* dB, after the gain that fits best: ffmpeg's downmix to float is not normalised, ours is. */
static double snr(const float *got, const float *want, size_t count)
{
    double dot = 0, power = 0, noise = 0, signal = 0;
    for (size_t i = 0; i < count; i++) {
        dot += (double)got[i] * want[i];
        power += (double)want[i] * want[i];
    }
    double gain = dot / power;
    for (size_t i = 0; i < count; i++) {
        double error = got[i] - gain * want[i];
        noise += error * error;
        signal += gain * want[i] * gain * want[i];
    }
    return 10 * log10((signal + 1e-30) / (noise + 1e-15 * signal + 1e-30));
}

static void check_file(struct rig *rig, const struct format *format)
{
    size_t length = 0, want_bytes = 0;
    char in[128];
    struct berth_media_job job;
    snprintf(in, sizeof(in), "-i %s", format->file);
    assert_true(ffmpeg(in, "-map 0:a:0 -ar 16000 -ac 1 -f f32le", "want.f32"));
    uint8_t *bytes = read_all(format->file, &length);
    float *want = (float *)(void *)read_all("want.f32", &want_bytes);
    size_t want_count = want_bytes / sizeof(float);
    if (run(rig, &job, bytes, length) != BERTH_OK) {
        fail_msg("%s: %s", format->file, job.err.msg);
    }
    size_t count = job.frame_count < want_count ? job.frame_count : want_count;
    double got_snr = snr(berth_slabs_pointer(rig->slabs, &job.out), want, count);
    print_message("%-16s %6zu frames, ffmpeg %6zu, %5.1f dB, %.1f ms\n", format->file,
                  (size_t)job.frame_count, want_count, got_snr, (double)job.decode_ns / 1e6);
    assert_true(got_snr >= format->snr_min);
    assert_in_range(job.frame_count, want_count - 40, want_count + 40);
    berth_slabs_give(rig->slabs, &job.out);
    free(bytes);
    free(want);
}

static void check_formats(bool in_process, size_t step)
{
    struct rig rig;
    if (!has_ffmpeg) {
        skip();
    }
    rig_start(&rig, in_process);
    for (size_t i = 0; i < BERTH_COUNT_OF(formats); i += step) {
        if (is_made[i]) {
            check_file(&rig, &formats[i]);
        }
    }
    rig_stop(&rig);
}

static void test_formats(void **state)
{
    check_formats(false, 1);
}

static void test_formats_in_process(void **state)
{
    check_formats(true, 4);
}

static bool is_open_ended(const char *file)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(open_ended); i++) {
        if (strcmp(file, open_ended[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Cut anywhere: an error of the client's; where the container promised what is missing, INVALID
 * that says so. The rest is told by nobody, and gives what is there: never nothing. */
static void check_cut(struct rig *rig, const struct format *format, const uint8_t *bytes,
                      size_t length, size_t cut)
{
    struct berth_media_job job;
    enum berth_code code = run(rig, &job, bytes, cut);
    bool is_told = code == BERTH_INVALID && strncmp(job.err.msg, "cut short", 9) == 0 &&
                   strstr(job.err.msg, " promises ") != NULL &&
                   strstr(job.err.msg, " came") != NULL;
    bool is_empty = code == BERTH_INVALID && strncmp(job.err.msg, "no audio: ", 10) == 0;
    double missing_s = 3 - (double)job.frame_count / RATE;
    bool is_open = is_open_ended(format->file);
    if (code == BERTH_OK ? job.frame_count == 0 || (!is_open && missing_s > 0.35)
                         : code != BERTH_MEDIA && !is_told && !is_empty) {
        fail_msg("%s cut at %zu of %zu: %s, %zu frames, %s", format->file, cut, length,
                 berth_code_name(code), (size_t)job.frame_count, job.err.msg);
    }
    if (code != BERTH_OK) {
        assert_string_equal(job.err.field, "file");
    }
    if (cut == length * 8 / 9) {
        print_message("%-16s %zu of %zu bytes: %zu frames %s\n", format->file, cut, length,
                      (size_t)job.frame_count, job.err.msg);
        assert_true(is_open ? job.frame_count > 2 * RATE - 200
                                    : is_told || strcmp(format->file, "cover.mp3") == 0 ||
                                          strcmp(format->file, "cover.m4a") == 0);
    }
    berth_slabs_give(rig->slabs, &job.out);
}

static void test_cut(void **state)
{
    struct rig rig;
    if (!has_ffmpeg) {
        skip();
    }
    rig_start(&rig, false);
    for (size_t i = 0; i < BERTH_COUNT_OF(formats); i++) {
        size_t length = 0;
        uint8_t *bytes = is_made[i] ? read_all(formats[i].file, &length) : NULL;
        for (size_t k = 1; bytes != NULL && k < 26; k++) {
            size_t cut = k < 10   ? (size_t)4 << k
                         : k < 18 ? length * (k - 9) / 9
                                  : length - (k - 17);
            if (cut < length) {
                check_cut(&rig, &formats[i], bytes, length, cut);
            }
        }
        free(bytes);
    }
    struct berth_media_stats stats;
    berth_media_stats(rig.media, &stats);
    assert_int_equal(stats.crashed, 0);
    rig_stop(&rig);
}

/* What is missing is told in bytes even where FFmpeg would stop at the lost index. */
static void test_m4a_without_index(void **state)
{
    struct rig rig;
    struct berth_media_job job;
    size_t length = 0;
    uint8_t *bytes = has_ffmpeg ? read_all("plain.m4a", &length) : NULL;
    if (bytes == NULL) {
        skip();
    }
    rig_start(&rig, false);
    assert_int_equal(run(&rig, &job, bytes, length / 2), BERTH_INVALID);
    assert_non_null(strstr(job.err.msg, "its mdat box promises "));
    assert_string_equal(job.err.field, "file");
    rig_stop(&rig);
    free(bytes);
}

static void test_damaged(void **state)
{
    struct rig rig;
    struct berth_media_job job;
    if (!has_ffmpeg) {
        skip();
    }
    rig_start(&rig, false);
    srand(7);
    for (size_t i = 0; i < BERTH_COUNT_OF(formats); i++) {
        size_t length = 0;
        uint8_t *bytes = is_made[i] ? read_all(formats[i].file, &length) : NULL;
        for (int k = 0; bytes != NULL && k < 8; k++) {
            for (int n = 0; n < 6; n++) { /* damage adds up, half of it near the header */
                size_t span = n % 2 == 0 && length > 512 ? 512 : length;
                bytes[(size_t)rand() % span] = (uint8_t)rand();
            }
            enum berth_code code = run(&rig, &job, bytes, length);
            if (code != BERTH_OK && code != BERTH_MEDIA && code != BERTH_TOO_LARGE &&
                code != BERTH_INVALID) {
                fail_msg("%s: %s", formats[i].file, job.err.msg);
            }
            assert_true(code != BERTH_OK || job.frame_count > 0);
            berth_slabs_give(rig.slabs, &job.out);
        }
        free(bytes);
    }
    struct berth_media_stats stats;
    berth_media_stats(rig.media, &stats);
    print_message("%d damaged files, %d refused, %d crashed a decoder\n", (int)stats.jobs,
                  (int)stats.failed, (int)stats.crashed);
    rig_stop(&rig);
}

static void test_not_audio(void **state)
{
    static const char *const texts[] = {
        "hello", "<html><body>Not found</body></html>", "{\"error\": \"no\"}",
        "#EXTM3U\n/etc/passwd\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nfile:///etc/passwd\n",
        "ffconcat version 1.0\nfile '/etc/passwd'\n", "%PDF-1.4 x", "GIF89a", "\x89PNG\r\n\x1a\n",
        "<?xml version=\"1.0\"?><MPD/>", "[Script Info]\nTitle: x\n",
        "1\n00:00:00,000 --> 00:00:01,000\nx\n",
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nm=audio 5000 RTP/AVP 0\r\n",
        "ID3", "OggS", "fLaC", "RIFF", ";FFMETADATA1\ntitle=x\n", "\xff\xfb\x90\x64",
        "RIFF\x04\x01\x01\x01WAVE", "\x1a\x45\xdf\xa3",
    };
    struct rig rig;
    struct berth_media_job job;
    uint8_t noise[65536];
    rig_start(&rig, false);
    for (size_t i = 0; i < BERTH_COUNT_OF(texts); i++) {
        enum berth_code code = run(&rig, &job, (const uint8_t *)texts[i], strlen(texts[i]));
        print_message("%-28.28s %s\n", i < 7 ? texts[i] : "", job.err.msg);
        assert_int_equal(code, BERTH_MEDIA);
        assert_string_equal(job.err.field, "file");
    }
    srand(5);
    for (size_t i = 0; i < 256; i += 3) {
        for (size_t k = 0; k < sizeof(noise); k++) {
            noise[k] = (uint8_t)(rand() >> 8);
        }
        enum berth_code code = run(&rig, &job, noise, 1 + (size_t)rand() % sizeof(noise));
        assert_int_equal(code, BERTH_MEDIA);
        memset(noise, (int)i, sizeof(noise));
        code = run(&rig, &job, noise, sizeof(noise));
        if (code != BERTH_MEDIA) {
            fail_msg("64 KiB of byte %zu: %s, %zu frames", i, berth_code_name(code),
                     (size_t)job.frame_count);
        }
    }
    struct berth_media_stats stats;
    berth_media_stats(rig.media, &stats);
    assert_int_equal(stats.crashed, 0);
    rig_stop(&rig);
}

/* Files without a frame of sound, with a picture alone, and longer than the limit. */
static void test_special(void **state)
{
    static const struct {
        const char *file;
        const char *arguments;
    } empty[] = {
        {"none.wav", "-t 0 -c:a pcm_s16le"}, {"none.flac", "-t 0 -c:a flac"},
        {"none.aiff", "-t 0 -c:a pcm_s16be"}, {"none.au", "-t 0 -c:a pcm_mulaw"},
    };
    struct rig rig;
    struct berth_media_job job;
    size_t length = 0;
    if (!has_ffmpeg) {
        skip();
    }
    rig_start(&rig, false);
    for (size_t i = 0; i < BERTH_COUNT_OF(empty); i++) {
        ffmpeg("-f f32le -ar 48000 -ac 1 -i source.f32", empty[i].arguments, empty[i].file);
        uint8_t *bytes = read_all(empty[i].file, &length);
        enum berth_code code = run(&rig, &job, bytes, length);
        print_message("%s: %zu bytes, %s %s\n", empty[i].file, length, berth_code_name(code),
                      job.err.msg);
        assert_int_equal(code, BERTH_INVALID);
        assert_string_equal(job.err.field, "file");
        assert_non_null(strstr(job.err.msg, "no audio: "));
        free(bytes);
    }
    assert_true(ffmpeg("-f lavfi -i testsrc=size=160x120:rate=10:duration=1", "-an -c:v mpeg4",
                       "silent.mp4"));
    uint8_t *film = read_all("silent.mp4", &length);
    assert_int_equal(run(&rig, &job, film, length), BERTH_MEDIA);
    assert_non_null(strstr(job.err.msg, "no audio stream"));
    free(film);
    rig_stop(&rig);
}

static void test_too_long(void **state)
{
    static const char *const names[] = {"long.mp3", "long.m4a", "long.ogg", "long.flac",
                                        "long.mka"};
    struct rig rig;
    struct berth_media_job job;
    struct berth_err err = {0};
    if (!has_ffmpeg) {
        skip();
    }
    rig_start(&rig, false);
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        size_t length = 0;
        struct berth_link taken;
        if (!ffmpeg("-f lavfi -i sine=frequency=400:duration=150", "-ar 16000 -ac 1", names[i])) {
            continue;
        }
        uint8_t *bytes = read_all(names[i], &length);
        memset(&job, 0, sizeof(job));
        assert_int_equal(berth_slabs_take_private(rig.slabs, length, &job.in, &err), BERTH_OK);
        memcpy(berth_slabs_pointer(rig.slabs, &job.in), bytes, length);
        job.reply = &rig.replies;
        job.rate = RATE;
        job.seconds_max = 60;
        assert_int_equal(berth_media_submit(rig.media, &job, &err), BERTH_OK);
        berth_list_init(&taken);
        while (!berth_queue_take(&rig.replies, &taken)) {
            berth_queue_wait(&rig.replies, 0);
        }
        print_message("%s: %s, %.1f ms\n", names[i], job.err.msg, (double)job.decode_ns / 1e6);
        assert_int_equal(job.err.code, BERTH_TOO_LARGE);
        assert_string_equal(job.err.field, "file");
        berth_slabs_give(rig.slabs, &job.in);
        free(bytes);
    }
    rig_stop(&rig);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "decode") == 0) {
        return berth_media_decode_main(argc, argv);
    }
    berth_log_set_level(BERTH_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats), cmocka_unit_test(test_formats_in_process),
        cmocka_unit_test(test_cut),     cmocka_unit_test(test_m4a_without_index),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_not_audio),
        cmocka_unit_test(test_special), cmocka_unit_test(test_too_long),
    };
    return cmocka_run_group_tests_name("audio", tests, make_files, remove_files);
}
