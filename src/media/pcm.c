/* pcm.c - growing room for decoded sound, and the limit on its length.
 *
 * The length is judged twice: by the header before decoding, so that a long file costs nothing,
 * and by the frames that came out, because headers lie. The room is the smaller of what the header
 * promises and twice what is there, from a first step of BERTH_PCM_STEP_S.
 */
#include "media/pcm.h"

static enum berth_code fail_too_long(const struct berth_pcm *pcm, double seconds,
                                     struct berth_err *err);

void berth_pcm_init(struct berth_pcm *pcm, const struct berth_pcm_ops *ops, uint32_t rate,
                    double seconds_max)
{
    *pcm = (struct berth_pcm){
        .ops = ops,
        .rate = rate,
        .seconds_max = seconds_max,
        .frames_max = berth_pcm_frames_max(rate, seconds_max),
        .frames_expected = UINT64_MAX,
    };
}

uint64_t berth_pcm_frames_max(uint32_t rate, double seconds_max)
{
    double frames = seconds_max * rate + 0.5;
    if (!(frames > 0)) {
        return 0;
    }
    return frames < 1e15 ? (uint64_t)frames : (uint64_t)1e15;
}

enum berth_code berth_pcm_expect(struct berth_pcm *pcm, const struct berth_pcm_source *source,
                                 struct berth_err *err)
{
    if (source->seconds >= 0) {
        if (source->seconds * pcm->rate >= (double)pcm->frames_max + 1) {
            return fail_too_long(pcm, source->seconds, err);
        }
        pcm->frames_expected = (uint64_t)(source->seconds * pcm->rate + 0.5);
    }
    return pcm->ops->found == NULL ? BERTH_OK : pcm->ops->found(pcm, source, err);
}

enum berth_code berth_pcm_reserve(struct berth_pcm *pcm, size_t more, struct berth_err *err)
{
    BERTH_ASSERT(more <= BERTH_PCM_BLOCK);
    uint64_t need = pcm->count + more;
    if (need <= pcm->capacity) {
        return BERTH_OK;
    }
    uint64_t step = (uint64_t)pcm->rate * BERTH_PCM_STEP_S;
    uint64_t want = pcm->capacity * 2 > step ? pcm->capacity * 2 : step;
    if (pcm->frames_expected < want) {
        want = pcm->frames_expected;
    }
    if (want > pcm->frames_max) {
        want = pcm->frames_max;
    }
    if (want < need) {
        /* The end is near: a block of slack, so that the last frames do not ask one by one. */
        want = need - more + BERTH_PCM_BLOCK;
    }
    if (want > pcm->frames_max + BERTH_PCM_BLOCK) {
        want = pcm->frames_max + BERTH_PCM_BLOCK;
    }
    return pcm->ops->room(pcm, want, err);
}

enum berth_code berth_pcm_commit(struct berth_pcm *pcm, size_t more, struct berth_err *err)
{
    pcm->count += more;
    if (pcm->count > pcm->frames_max) {
        return fail_too_long(pcm, -1, err);
    }
    return berth_pcm_poll(pcm, err);
}

enum berth_code berth_pcm_poll(struct berth_pcm *pcm, struct berth_err *err)
{
    return pcm->ops->poll == NULL ? BERTH_OK : pcm->ops->poll(pcm, err);
}

void berth_pcm_clean(float *frames, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float level = frames[i];
        level = level == level ? level : 0.0f;
        level = level > BERTH_PCM_LEVEL_MAX ? BERTH_PCM_LEVEL_MAX : level;
        frames[i] = level < -BERTH_PCM_LEVEL_MAX ? -BERTH_PCM_LEVEL_MAX : level;
    }
}

/* seconds below 0: the header did not tell. */
static enum berth_code fail_too_long(const struct berth_pcm *pcm, double seconds,
                                     struct berth_err *err)
{
    if (seconds < 0) {
        return berth_fail_field(err, BERTH_TOO_LARGE, "file",
                                "the audio is longer than the limit of %.1f s", pcm->seconds_max);
    }
    return berth_fail_field(err, BERTH_TOO_LARGE, "file",
                            "the audio is %.1f s long, more than the limit of %.1f s", seconds,
                            pcm->seconds_max);
}
