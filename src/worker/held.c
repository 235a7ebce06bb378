/* held.c - growth told once a second at most, but for what grows by much, and in the end exactly.
 *
 * After news the keeper shuts the gate (`quiet`) to all that is less than a MiB more, and looks
 * again a second later; if nothing has come by then it opens the gate. Who tells raises `bytes`
 * first and looks at the gate then, the keeper opens the gate first and looks at `bytes` then: so
 * nothing is lost between them. Rejected: a clock on the side of who tells (the last small piece
 * would never be told), and a look at each model once a second (a server with nothing to do would
 * wake up for it).
 */
#include "worker/held.h"

#include "base/clock.h"

#define PAUSE_NS BERTH_NS_PER_S

static uint64_t news(struct berth_held *held, uint64_t now_ns);

void berth_held_init(struct berth_held *held, void (*deliver)(struct berth_post *post))
{
    *held = (struct berth_held){.post.deliver = deliver, .t_look_ns = UINT64_MAX};
    atomic_store(&held->quiet, UINT64_MAX);
}

uint64_t berth_held_begin(struct berth_held *held, uint64_t bytes)
{
    uint64_t told = bytes;
    do {
        held->known = told > held->known ? told : held->known;
        atomic_store(&held->quiet, held->known);
        told = atomic_load(&held->bytes);
    } while (told > held->known);
    return held->known;
}

void berth_held_tell(struct berth_held *held, struct berth_queue *keeper, uint64_t bytes)
{
    uint64_t before = atomic_load(&held->bytes);
    while (before < bytes && !atomic_compare_exchange_weak(&held->bytes, &before, bytes)) {
    }
    if (bytes > atomic_load(&held->quiet) && !atomic_exchange(&held->out, true)) {
        berth_queue_post(keeper, &held->post.link);
    }
}

uint64_t berth_held_take(struct berth_held *held, uint64_t now_ns)
{
    atomic_store(&held->out, false);
    return atomic_load(&held->bytes) > atomic_load(&held->quiet) ? news(held, now_ns) : 0;
}

uint64_t berth_held_look(struct berth_held *held, uint64_t now_ns)
{
    if (now_ns < held->t_look_ns) {
        return 0;
    }
    uint64_t bytes = news(held, now_ns);
    if (bytes == 0) {
        held->t_look_ns = UINT64_MAX;
        atomic_store(&held->quiet, held->known);
        bytes = news(held, now_ns); /* what came before the gate was open */
    }
    return bytes;
}

static uint64_t news(struct berth_held *held, uint64_t now_ns)
{
    uint64_t bytes = atomic_load(&held->bytes);
    if (bytes <= held->known) {
        return 0;
    }
    held->known = bytes;
    held->t_look_ns = now_ns + PAUSE_NS;
    atomic_store(&held->quiet, bytes > UINT64_MAX - BERTH_HELD_NEWS_BYTES
                                   ? UINT64_MAX
                                   : bytes + BERTH_HELD_NEWS_BYTES - 1);
    return bytes;
}
