/* audio.c - sound out of anything FFmpeg reads, as mono float at the wanted rate.
 *
 * The file is in memory, so the reader seeks freely (an m4a whose index stands at its end is fine)
 * and opens nothing: no protocol, no second file. The container is found by content alone; a name
 * is the client's word and would let raw formats claim any bytes. The first audio stream that can
 * be decoded is taken, other streams are not even looked at.
 *
 * A file that was not understood never becomes an empty answer: no frames are fine only when the
 * container was read without an error, held no packet, and promised no length. A container that
 * was guessed on weak evidence must yield sound from half of its bytes.
 *
 * FFmpeg reads a file that is cut short as far as it goes and reports nothing. What the container
 * promised, in bytes (outline.h) or as a length that its header counts, must be there (M9).
 *
 * One thread throughout: the sandbox has no clone, and jobs run beside each other in processes.
 */
#include "media/decoder.h"

#include <errno.h>
#include <iconv.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avstring.h>
#include <libavutil/channel_layout.h>
#include <libavutil/mem.h>
#include <libavutil/opt.h>
#include <libswresample/swresample.h>

#include "base/mem.h"
#include "media/outline.h"

#define IO_BYTES 32768
#define PROBE_BYTES_FIRST 32768
#define PROBE_BYTES_MAX (1 << 20)
#define STREAMS_MAX "64"
#define READ_AGAIN_MAX 1000 /* times in a row that a container says "try again" */
#define OUT_FRAMES 8192     /* frames taken from the resampler at a time */
#define NOT_AUDIO "not audio: no known container or format"

/* Containers that only name other files, and streams without a mark that any bytes could be. */
#define REFUSED "hls,concat,dash,imf,sdp,rtsp,webm_dash_manifest,ffmetadata,tty,amrnb,amrwb,gsm"
/* The only ones that are believed on weak evidence: a short piece of a stream. */
#define GUESSED "mp3,aac,ac3,eac3,dts,loas,flac,mpegts,mpeg"
/* Lengths that do not count samples: a clock's, or the longest stream's. */
#define LENGTH_IS_VAGUE "matroska,webm,avi,mpegts,mpeg,ogg"
#define SHORT_S 0.25    /* a length may be off by the padding of codecs, and by rounding */
#define SHORT_SHARE 1e-3

struct audio {
    const struct berth_media_input *input;
    uint64_t at; /* next byte to read */
    struct berth_pcm *pcm;
    struct berth_err *err;
    enum berth_code stopped; /* what pcm's poll said while FFmpeg was reading */
    AVIOContext *io;
    AVFormatContext *format;
    AVCodecContext *codec;
    SwrContext *swr;
    AVPacket *packet;
    AVFrame *frame;
    AVChannelLayout swr_layout; /* what swr was made for */
    int swr_format;
    int swr_rate;
    int stream; /* index of the one that is decoded */
    int score;  /* certainty of the container, to AVPROBE_SCORE_MAX */
    double promised_s; /* by the container's header; 0: nothing */
    double end_s;      /* of the last packet */
    uint64_t packet_count;
    uint64_t packet_bytes; /* of packets that gave frames */
    uint64_t error_count;
};

static bool matches(const struct berth_media_input *input);
static void prepare(uint64_t memory_max);
static void open_charsets(void);
static enum berth_code decode(const struct berth_media_input *input, struct berth_pcm *pcm,
                              struct berth_err *err);
static enum berth_code audio_init(struct audio *audio);
static void audio_finish(struct audio *audio);
static enum berth_code find_container(struct audio *audio, const AVInputFormat **out);
static uint64_t tag_length(const struct berth_media_input *input);
static enum berth_code judge_outline(struct audio *audio);
static enum berth_code open_container(struct audio *audio, const AVInputFormat *container);
static double promised_s(const AVFormatContext *format);
static enum berth_code find_stream(struct audio *audio);
static void hide_other_streams(AVFormatContext *format);
static bool is_complete(const AVFormatContext *format);
static enum berth_code open_codec(struct audio *audio);
static enum berth_code judge_length(struct audio *audio);
static enum berth_code read_packets(struct audio *audio);
static void note_end(struct audio *audio, const AVPacket *packet);
static enum berth_code decode_packet(struct audio *audio, const AVPacket *packet);
static enum berth_code take_frame(struct audio *audio);
static enum berth_code swr_prepare(struct audio *audio);
static enum berth_code drain_swr(struct audio *audio, const uint8_t **in, int in_count);
static enum berth_code judge_result(struct audio *audio);
static enum berth_code judge_promise(struct audio *audio);
static enum berth_code fail_at(struct audio *audio, int status, const char *doing);
static int read_bytes(void *opaque, uint8_t *out, int size);
static int64_t seek_bytes(void *opaque, int64_t offset, int whence);
static int refuse_open(AVFormatContext *format, AVIOContext **io, const char *url, int flags,
                       AVDictionary **options);
static int is_interrupted(void *opaque);
static void note_log(void *subject, int level, const char *text, va_list args);

/* FFmpeg's last complaint, for the error message. */
static _Thread_local char complaint[96];

/* Texts inside MPEG transport streams come in these; glibc opens files for them. Kept open for the
 * life of the process. */
static const char *const charset_names[] = {
    "ISO6937",     "ISO-8859-1",  "ISO-8859-2",  "ISO-8859-3",  "ISO-8859-4", "ISO-8859-5",
    "ISO-8859-6",  "ISO-8859-7",  "ISO-8859-8",  "ISO-8859-9",  "ISO-8859-10", "ISO-8859-11",
    "ISO-8859-13", "ISO-8859-14", "ISO-8859-15", "UCS-2BE",     "KSC_5601",   "GB2312",
    "BIG5",        "UTF-16BE",    "UTF-8",       "UCS-2LE",
};
static iconv_t charsets[BERTH_COUNT_OF(charset_names)];

/* Whatever the decoders before it left. */
static bool matches(const struct berth_media_input *input)
{
    return input->length > 0;
}

static void prepare(uint64_t memory_max)
{
    av_log_set_callback(note_log);
    if (memory_max != 0) {
        av_max_alloc((size_t)memory_max);
        open_charsets();
    }
}

static void open_charsets(void)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(charset_names); i++) {
        charsets[i] = iconv_open("UTF-8", charset_names[i]);
    }
}

static enum berth_code decode(const struct berth_media_input *input, struct berth_pcm *pcm,
                              struct berth_err *err)
{
    struct audio audio = {.input = input, .pcm = pcm, .err = err, .stream = -1};
    const AVInputFormat *container = NULL;
    complaint[0] = '\0';
    enum berth_code code = audio_init(&audio);
    if (code == BERTH_OK) {
        code = find_container(&audio, &container);
    }
    if (code == BERTH_OK) {
        code = judge_outline(&audio);
    }
    if (code == BERTH_OK) {
        code = open_container(&audio, container);
    }
    if (code == BERTH_OK) {
        code = find_stream(&audio);
    }
    if (code == BERTH_OK) {
        code = open_codec(&audio);
    }
    if (code == BERTH_OK) {
        code = judge_length(&audio);
    }
    if (code == BERTH_OK) {
        code = read_packets(&audio);
    }
    if (code == BERTH_OK) {
        code = judge_result(&audio);
    }
    audio_finish(&audio);
    return code;
}

static enum berth_code audio_init(struct audio *audio)
{
    uint8_t *buffer = av_malloc(IO_BYTES);
    if (buffer != NULL) {
        audio->io =
            avio_alloc_context(buffer, IO_BYTES, 0, audio, read_bytes, NULL, seek_bytes);
    }
    if (audio->io == NULL) {
        av_free(buffer);
        return fail_at(audio, AVERROR(ENOMEM), "");
    }
    audio->format = avformat_alloc_context();
    audio->packet = av_packet_alloc();
    audio->frame = av_frame_alloc();
    if (audio->format == NULL || audio->packet == NULL || audio->frame == NULL) {
        return fail_at(audio, AVERROR(ENOMEM), "");
    }
    audio->format->pb = audio->io;
    audio->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    audio->format->io_open = refuse_open;
    audio->format->interrupt_callback = (AVIOInterruptCB){is_interrupted, audio};
    return BERTH_OK;
}

static void audio_finish(struct audio *audio)
{
    av_channel_layout_uninit(&audio->swr_layout);
    swr_free(&audio->swr);
    avcodec_free_context(&audio->codec);
    avformat_close_input(&audio->format);
    av_frame_free(&audio->frame);
    av_packet_free(&audio->packet);
    if (audio->io != NULL) {
        av_freep(&audio->io->buffer); /* FFmpeg may have put another one there */
        avio_context_free(&audio->io);
    }
}

/* By content, after any ID3 tag, first on a little and then on more of it. */
static enum berth_code find_container(struct audio *audio, const AVInputFormat **out)
{
    uint64_t skip = tag_length(audio->input);
    uint64_t left = audio->input->length - skip;
    size_t most = left < PROBE_BYTES_MAX ? (size_t)left : PROBE_BYTES_MAX;
    uint8_t *bytes = av_mallocz(most + AVPROBE_PADDING_SIZE);
    if (bytes == NULL) {
        return fail_at(audio, AVERROR(ENOMEM), "");
    }
    const AVInputFormat *found = NULL;
    int score = 0;
    for (size_t size = most < PROBE_BYTES_FIRST ? most : PROBE_BYTES_FIRST;; size = most) {
        memcpy(bytes, audio->input->bytes + skip, size);
        AVProbeData probe = {.filename = "", .buf = bytes, .buf_size = (int)size};
        score = 0;
        found = av_probe_input_format3(&probe, 1, &score);
        if (score > AVPROBE_SCORE_RETRY || size == most) {
            break;
        }
    }
    av_free(bytes);
    if (found == NULL || av_match_name(found->name, REFUSED) > 0 ||
        (score <= AVPROBE_SCORE_RETRY && av_match_name(found->name, GUESSED) == 0)) {
        return berth_fail_field(audio->err, BERTH_MEDIA, "file", NOT_AUDIO);
    }
    audio->score = score;
    *out = found;
    return BERTH_OK;
}

/* Bytes of ID3v2 tags before the file proper; pictures in them can be large. */
static uint64_t tag_length(const struct berth_media_input *input)
{
    uint64_t at = 0;
    for (int i = 0; i < 8 && input->length - at > 10; i++) {
        const uint8_t *tag = input->bytes + at;
        bool is_tag = memcmp(tag, "ID3", 3) == 0 && tag[3] != 0xFF && tag[4] != 0xFF &&
                      ((tag[6] | tag[7] | tag[8] | tag[9]) & 0x80) == 0;
        uint64_t size = (uint64_t)tag[6] << 21 | (uint64_t)tag[7] << 14 | (uint64_t)tag[8] << 7 |
                        tag[9];
        size += (tag[5] & 0x10) != 0 ? 20 : 10;
        if (!is_tag || size >= input->length - at) {
            break;
        }
        at += size;
    }
    return at;
}

/* Told before FFmpeg fails on what is missing, as the index of an m4a. */
static enum berth_code judge_outline(struct audio *audio)
{
    struct berth_outline outline;
    if (!berth_outline_is_cut(audio->input, &outline)) {
        return BERTH_OK;
    }
    return berth_fail_field(audio->err, BERTH_INVALID, "file",
                            "cut short: its %s promises %" PRIu64 " bytes, %" PRIu64 " came",
                            outline.what, outline.promised, outline.came);
}

static enum berth_code open_container(struct audio *audio, const AVInputFormat *container)
{
    AVDictionary *options = NULL;
    av_dict_set(&options, "protocol_whitelist", "", 0);
    av_dict_set(&options, "max_streams", STREAMS_MAX, 0);
    int status = avformat_open_input(&audio->format, "", container, &options);
    av_dict_free(&options);
    if (status < 0) { /* format is freed and NULL then */
        char doing[80];
        snprintf(doing, sizeof(doing), "cannot be read as %.40s", container->name);
        return fail_at(audio, status, doing);
    }
    hide_other_streams(audio->format);
    audio->promised_s = promised_s(audio->format);
    if (!is_complete(audio->format)) {
        status = avformat_find_stream_info(audio->format, NULL);
        if (status < 0) {
            return fail_at(audio, status, "no stream could be read");
        }
        bool is_told =
            audio->format->duration_estimation_method == AVFMT_DURATION_FROM_STREAM;
        if (audio->promised_s <= 0 && is_told) {
            audio->promised_s = promised_s(audio->format);
        }
    }
    return BERTH_OK;
}

/* Of the first audio stream; asked before FFmpeg looks into the file, where the header has it:
 * afterwards it may be what FFmpeg makes of the file's size. */
static double promised_s(const AVFormatContext *format)
{
    const AVStream *stream = NULL;
    for (unsigned i = 0; i < format->nb_streams && stream == NULL; i++) {
        if (format->streams[i]->codecpar->codec_type == AVMEDIA_TYPE_AUDIO) {
            stream = format->streams[i];
        }
    }
    if (stream == NULL || av_match_name(format->iformat->name, LENGTH_IS_VAGUE) > 0) {
        return 0;
    }
    if (stream->duration > 0) {
        return (double)stream->duration * av_q2d(stream->time_base);
    }
    bool is_alone = format->nb_streams == 1 && format->duration > 0;
    return is_alone ? (double)format->duration / AV_TIME_BASE : 0;
}

/* So that FFmpeg opens no picture or subtitle decoder to learn about them. */
static void hide_other_streams(AVFormatContext *format)
{
    for (unsigned i = 0; i < format->nb_streams; i++) {
        AVStream *stream = format->streams[i];
        if (stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO ||
            stream->codecpar->codec_type == AVMEDIA_TYPE_SUBTITLE) {
            stream->codecpar->codec_type = AVMEDIA_TYPE_DATA;
            stream->codecpar->codec_id = AV_CODEC_ID_NONE;
            stream->discard = AVDISCARD_ALL;
        }
    }
}

/* The header told all there is to know about the first audio stream. */
static bool is_complete(const AVFormatContext *format)
{
    for (unsigned i = 0; i < format->nb_streams; i++) {
        const AVCodecParameters *codec = format->streams[i]->codecpar;
        if (codec->codec_type == AVMEDIA_TYPE_AUDIO) {
            return codec->codec_id != AV_CODEC_ID_NONE && codec->sample_rate > 0 &&
                   codec->ch_layout.nb_channels > 0 &&
                   (format->streams[i]->duration > 0 || format->duration > 0);
        }
    }
    return false;
}

static enum berth_code find_stream(struct audio *audio)
{
    AVFormatContext *format = audio->format;
    const char *unknown = NULL;
    for (unsigned i = 0; i < format->nb_streams; i++) {
        AVStream *stream = format->streams[i];
        stream->discard = AVDISCARD_ALL;
        if (stream->codecpar->codec_type != AVMEDIA_TYPE_AUDIO || audio->stream >= 0) {
            continue;
        }
        if (avcodec_find_decoder(stream->codecpar->codec_id) == NULL) {
            unknown = avcodec_get_name(stream->codecpar->codec_id);
            continue;
        }
        stream->discard = AVDISCARD_DEFAULT;
        audio->stream = (int)i;
    }
    if (audio->stream >= 0) {
        return BERTH_OK;
    }
    if (audio->score <= AVPROBE_SCORE_RETRY) {
        return berth_fail_field(audio->err, BERTH_MEDIA, "file", NOT_AUDIO);
    }
    if (unknown != NULL) {
        return berth_fail_field(audio->err, BERTH_MEDIA, "file",
                                "no decoder for its audio stream (codec %s)", unknown);
    }
    return berth_fail_field(audio->err, BERTH_MEDIA, "file", "no audio stream in the file (%.40s)",
                            format->iformat->name);
}

static enum berth_code open_codec(struct audio *audio)
{
    const AVStream *stream = audio->format->streams[audio->stream];
    const AVCodec *codec = avcodec_find_decoder(stream->codecpar->codec_id);
    audio->codec = avcodec_alloc_context3(codec);
    if (audio->codec == NULL) {
        return fail_at(audio, AVERROR(ENOMEM), "");
    }
    int status = avcodec_parameters_to_context(audio->codec, stream->codecpar);
    audio->codec->pkt_timebase = stream->time_base;
    audio->codec->thread_count = 1;
    if (status >= 0) {
        status = avcodec_open2(audio->codec, codec, NULL);
    }
    if (status < 0) {
        return fail_at(audio, status, "its audio stream cannot be decoded");
    }
    return BERTH_OK;
}

/* A length guessed from the bit rate is believed only when it is far too long. */
static enum berth_code judge_length(struct audio *audio)
{
    const AVFormatContext *format = audio->format;
    const AVStream *stream = format->streams[audio->stream];
    struct berth_pcm_source source = {
        .seconds = -1,
        .rate = (uint32_t)stream->codecpar->sample_rate,
        .channel_count = (uint32_t)stream->codecpar->ch_layout.nb_channels,
    };
    if (stream->duration > 0) {
        source.seconds = (double)stream->duration * av_q2d(stream->time_base);
    } else if (format->duration > 0) {
        source.seconds = (double)format->duration / AV_TIME_BASE;
    }
    if (format->duration_estimation_method == AVFMT_DURATION_FROM_BITRATE &&
        source.seconds <= 2 * audio->pcm->seconds_max) {
        source.seconds = -1;
    }
    snprintf(source.format, sizeof(source.format), "%.30s %.30s", format->iformat->name,
             audio->codec->codec->name);
    return berth_pcm_expect(audio->pcm, &source, audio->err);
}

static enum berth_code read_packets(struct audio *audio)
{
    enum berth_code code = BERTH_OK;
    int again = 0;
    for (;;) {
        int status = av_read_frame(audio->format, audio->packet);
        if (audio->stopped != BERTH_OK) {
            return audio->stopped;
        }
        if (status == AVERROR(EAGAIN) && again++ < READ_AGAIN_MAX) {
            continue;
        }
        if (status == AVERROR(ENOMEM)) {
            return fail_at(audio, status, "");
        }
        if (status < 0) {
            audio->error_count += status != AVERROR_EOF;
            break;
        }
        again = 0;
        if (audio->packet->stream_index == audio->stream) {
            note_end(audio, audio->packet);
            code = decode_packet(audio, audio->packet);
        } else {
            code = berth_pcm_poll(audio->pcm, audio->err);
        }
        av_packet_unref(audio->packet);
        if (code != BERTH_OK) {
            return code;
        }
    }
    code = decode_packet(audio, NULL);
    return code == BERTH_OK && audio->swr != NULL ? drain_swr(audio, NULL, 0) : code;
}

static void note_end(struct audio *audio, const AVPacket *packet)
{
    const AVStream *stream = audio->format->streams[audio->stream];
    double end_s = (double)packet->duration * av_q2d(stream->time_base);
    if (packet->pts != AV_NOPTS_VALUE) {
        end_s += (double)packet->pts * av_q2d(stream->time_base);
        audio->end_s = end_s > audio->end_s ? end_s : audio->end_s;
    }
}

/* NULL: the end, what the codec still holds comes out. A packet that cannot be decoded is counted
 * and left out, as players do. */
static enum berth_code decode_packet(struct audio *audio, const AVPacket *packet)
{
    uint64_t count_before = audio->pcm->count;
    int status = avcodec_send_packet(audio->codec, packet);
    audio->packet_count += packet != NULL;
    while (status >= 0) {
        status = avcodec_receive_frame(audio->codec, audio->frame);
        if (status >= 0) {
            enum berth_code code = take_frame(audio);
            av_frame_unref(audio->frame);
            if (code != BERTH_OK) {
                return code;
            }
        }
    }
    if (status == AVERROR(ENOMEM)) {
        return fail_at(audio, status, "");
    }
    if (status != AVERROR(EAGAIN) && status != AVERROR_EOF) {
        audio->error_count++;
        return berth_pcm_poll(audio->pcm, audio->err);
    }
    if (packet != NULL && (audio->pcm->count > count_before || audio->swr != NULL)) {
        audio->packet_bytes += (uint64_t)packet->size;
    }
    return BERTH_OK;
}

static enum berth_code take_frame(struct audio *audio)
{
    const AVFrame *frame = audio->frame;
    if (frame->nb_samples <= 0 || frame->sample_rate <= 0 || frame->ch_layout.nb_channels <= 0) {
        return BERTH_OK;
    }
    bool is_same = audio->swr != NULL && audio->swr_format == frame->format &&
                   audio->swr_rate == frame->sample_rate &&
                   av_channel_layout_compare(&audio->swr_layout, &frame->ch_layout) == 0;
    if (!is_same) {
        if (audio->swr != NULL) {
            enum berth_code code = drain_swr(audio, NULL, 0);
            if (code != BERTH_OK) {
                return code;
            }
        }
        enum berth_code code = swr_prepare(audio);
        if (code != BERTH_OK) {
            return code;
        }
    }
    return drain_swr(audio, (const uint8_t **)frame->extended_data, frame->nb_samples);
}

/* A resampler for frames like audio->frame. Its matrix is normalised: nothing gets louder than its
 * loudest channel, as in wav.c. */
static enum berth_code swr_prepare(struct audio *audio)
{
    const AVFrame *frame = audio->frame;
    AVChannelLayout mono = AV_CHANNEL_LAYOUT_MONO;
    AVChannelLayout layout = {0};
    swr_free(&audio->swr);
    int status = av_channel_layout_copy(&audio->swr_layout, &frame->ch_layout);
    if (frame->ch_layout.order == AV_CHANNEL_ORDER_UNSPEC) {
        av_channel_layout_default(&layout, frame->ch_layout.nb_channels);
    } else if (status >= 0) {
        status = av_channel_layout_copy(&layout, &frame->ch_layout);
    }
    if (status >= 0) {
        status = swr_alloc_set_opts2(&audio->swr, &mono, AV_SAMPLE_FMT_FLT, (int)audio->pcm->rate,
                                     &layout, frame->format, frame->sample_rate, 0, NULL);
    }
    av_channel_layout_uninit(&layout);
    if (status >= 0) {
        av_opt_set_double(audio->swr, "rematrix_maxval", 1.0, 0);
        status = swr_init(audio->swr);
    }
    audio->swr_format = frame->format;
    audio->swr_rate = frame->sample_rate;
    if (status < 0) {
        swr_free(&audio->swr);
        return fail_at(audio, status, "its sound cannot be resampled");
    }
    return BERTH_OK;
}

/* in NULL: the end, what the resampler still holds comes out. */
static enum berth_code drain_swr(struct audio *audio, const uint8_t **in, int in_count)
{
    struct berth_pcm *pcm = audio->pcm;
    for (;;) {
        enum berth_code code = berth_pcm_reserve(pcm, OUT_FRAMES, audio->err);
        if (code != BERTH_OK) {
            return code;
        }
        float *frames = pcm->frames + pcm->count;
        uint8_t *out = (uint8_t *)frames;
        int made = swr_convert(audio->swr, &out, OUT_FRAMES, in, in_count);
        if (made < 0) {
            return fail_at(audio, made, "its sound cannot be resampled");
        }
        berth_pcm_clean(frames, (size_t)made);
        code = berth_pcm_commit(pcm, (size_t)made, audio->err);
        if (code != BERTH_OK || made < OUT_FRAMES) {
            return code;
        }
        in_count = 0; /* it was taken; `in` stays, NULL would mean the end */
    }
}

static enum berth_code judge_result(struct audio *audio)
{
    struct berth_pcm *pcm = audio->pcm;
    bool is_guess = audio->score <= AVPROBE_SCORE_RETRY;
    if (is_guess && audio->packet_bytes < audio->input->length / 2) {
        return berth_fail_field(audio->err, BERTH_MEDIA, "file", NOT_AUDIO);
    }
    bool is_known = pcm->frames_expected != UINT64_MAX && pcm->frames_expected > 0;
    bool is_described = audio->format->streams[audio->stream]->codecpar->sample_rate > 0;
    if (pcm->count == 0 && (audio->packet_count > 0 || audio->error_count > 0 || is_known ||
                            !is_described)) {
        return fail_at(audio, AVERROR_INVALIDDATA,
                       "no audio could be decoded; is the file complete?");
    }
    return pcm->count == 0 ? BERTH_OK : judge_promise(audio);
}

/* Packets may leave gaps where nobody spoke: the last one's end counts as well as what was decoded,
 * unless some could not be. */
static enum berth_code judge_promise(struct audio *audio)
{
    double came_s = (double)audio->pcm->count / audio->pcm->rate;
    if (audio->error_count == 0 && audio->end_s > came_s) {
        came_s = audio->end_s;
    }
    if (came_s + SHORT_S + came_s * SHORT_SHARE >= audio->promised_s) {
        return BERTH_OK;
    }
    return berth_fail_field(audio->err, BERTH_INVALID, "file",
                            "cut short or damaged: its header promises %.2f s of audio, %.2f s "
                            "came",
                            audio->promised_s, came_s);
}

/* Memory is the process' own trouble (UNAVAILABLE); everything else is the file's. */
static enum berth_code fail_at(struct audio *audio, int status, const char *doing)
{
    if (audio->stopped != BERTH_OK) {
        return audio->stopped;
    }
    if (status == AVERROR(ENOMEM)) {
        return berth_fail(audio->err, BERTH_UNAVAILABLE, "not enough memory to decode");
    }
    if (audio->score <= AVPROBE_SCORE_RETRY) {
        return berth_fail_field(audio->err, BERTH_MEDIA, "file", NOT_AUDIO);
    }
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    av_strerror(status, text, sizeof(text));
    return berth_fail_field(audio->err, BERTH_MEDIA, "file", "%s: %s", doing,
                            complaint[0] != '\0' ? complaint : text);
}

static int read_bytes(void *opaque, uint8_t *out, int size)
{
    struct audio *audio = opaque;
    uint64_t left = audio->input->length - audio->at;
    if (left == 0 || size <= 0) {
        return AVERROR_EOF;
    }
    size_t count = left < (uint64_t)size ? (size_t)left : (size_t)size;
    memcpy(out, audio->input->bytes + audio->at, count);
    audio->at += count;
    return (int)count;
}

static int64_t seek_bytes(void *opaque, int64_t offset, int whence)
{
    struct audio *audio = opaque;
    int64_t length = (int64_t)audio->input->length;
    int64_t base = 0;
    whence &= ~AVSEEK_FORCE;
    if (whence == AVSEEK_SIZE) {
        return length;
    }
    if (whence == SEEK_CUR) {
        base = (int64_t)audio->at;
    } else if (whence == SEEK_END) {
        base = length;
    } else if (whence != SEEK_SET) {
        return AVERROR(EINVAL);
    }
    if (offset < -base || offset > length - base) {
        return AVERROR(EINVAL);
    }
    audio->at = (uint64_t)(base + offset);
    return base + offset;
}

static int refuse_open(AVFormatContext *format, AVIOContext **io, const char *url, int flags,
                       AVDictionary **options)
{
    return AVERROR(EACCES);
}

/* Asked by FFmpeg in its own long loops. */
static int is_interrupted(void *opaque)
{
    struct audio *audio = opaque;
    if (audio->stopped == BERTH_OK) {
        audio->stopped = berth_pcm_poll(audio->pcm, audio->err);
    }
    return audio->stopped != BERTH_OK;
}

static void note_log(void *subject, int level, const char *text, va_list args)
{
    if (level > AV_LOG_ERROR) {
        return;
    }
    vsnprintf(complaint, sizeof(complaint), text, args);
    for (size_t i = 0; complaint[i] != '\0'; i++) {
        if (complaint[i] == '\n') {
            complaint[i] = '\0';
            break;
        }
        complaint[i] = complaint[i] >= 0x20 && complaint[i] < 0x7F ? complaint[i] : '?';
    }
}

const struct berth_decoder_ops berth_decoder_audio = {
    .name = "audio",
    .direct = false,
    .prepare = prepare,
    .matches = matches,
    .decode = decode,
};
