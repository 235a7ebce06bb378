/* loop_state.c - see loop_state.h.
 *
 * The timer wheel is one level of lists. A deadline that moves later, as most do, costs a store:
 * the timer is looked at in its old slot and queued anew from there.
 */
#include "net/loop_state.h"

#include <time.h>

#include "base/clock.h"

#define BLOCK_BYTES 4032 /* with its headers just under a page */
#define BLOCKS_KEPT 256

void berth_timer_set(struct berth_loop *loop, struct berth_timer *timer, uint64_t t_due_ns)
{
    uint64_t tick = t_due_ns / BERTH_LOOP_TICK_NS + 1;
    timer->t_due_ns = t_due_ns;
    if (berth_list_contains(&timer->link) && timer->tick <= tick) {
        return; /* it is looked at before, and queued anew then */
    }
    if (tick < loop->tick) {
        tick = loop->tick;
    } else if (tick > loop->tick + BERTH_LOOP_SLOTS - 1) {
        tick = loop->tick + BERTH_LOOP_SLOTS - 1;
    }
    size_t slot = tick % BERTH_LOOP_SLOTS;
    berth_list_remove(&timer->link);
    berth_list_append(&loop->slots[slot], &timer->link);
    loop->slots_used[slot / 64] |= UINT64_C(1) << (slot % 64);
    timer->tick = tick;
}

void berth_timer_clear(struct berth_timer *timer)
{
    timer->t_due_ns = 0;
}

void berth_timer_remove(struct berth_loop *loop, struct berth_timer *timer)
{
    (void)loop;
    timer->t_due_ns = 0;
    berth_list_remove(&timer->link);
}

struct berth_block *berth_block_take(struct berth_loop *loop, size_t bytes)
{
    struct berth_block *block = loop->blocks_free;
    size_t whole;
    if (bytes <= BLOCK_BYTES && block != NULL) {
        loop->blocks_free = block->next;
        loop->block_count--;
        block->at = 0;
        block->end = 0;
        return block;
    }
    bytes = bytes < BLOCK_BYTES ? BLOCK_BYTES : bytes;
    if (bytes > UINT32_MAX || !berth_add_size(bytes, sizeof(*block), &whole)) {
        return NULL;
    }
    block = berth_alloc(whole);
    if (block != NULL) {
        block->capacity = (uint32_t)bytes;
    }
    return block;
}

void berth_block_give(struct berth_loop *loop, struct berth_block *block)
{
    if (block == NULL) {
        return;
    }
    if (block->capacity != BLOCK_BYTES || loop->block_count >= BLOCKS_KEPT) {
        berth_free(block);
        return;
    }
    block->next = loop->blocks_free;
    loop->blocks_free = block;
    loop->block_count++;
}

const char *berth_loop_date(struct berth_loop *loop)
{
    if (loop->date[0] == '\0' || loop->now_ns - loop->t_date_ns >= BERTH_NS_PER_S) {
        time_t now = (time_t)(berth_clock_wall_ns() / BERTH_NS_PER_S);
        struct tm parts;
        gmtime_r(&now, &parts);
        strftime(loop->date, sizeof(loop->date), "%a, %d %b %Y %H:%M:%S GMT", &parts);
        loop->t_date_ns = loop->now_ns;
    }
    return loop->date;
}
