/* loop.h - one thread of the front: epoll, its timers, its posts, its connections in turn.
 *
 * In:      connections from the acceptor, posts from other threads.   Out: events to conn.c.
 * Owns:    its connections and what they share (loop_state.h).
 * Threads: everything here belongs to the loop's thread.
 * Rules:   README.md, N6 to N8.
 *
 * A turn of the loop: wait, deliver events, posts, timers, retry those who wait for bytes of the
 * budget, then run every connection that is ready. Handlers only mark connections ready, so no
 * callback runs inside another and a connection is closed in its own run alone. A test or a fuzzer
 * can turn a loop by hand, without a thread, under a clock of its own.
 */
#ifndef BERTH_LOOP_H
#define BERTH_LOOP_H

#include "net/loop_state.h"

/* Without a thread. On error nothing is left. */
enum berth_code berth_loop_init(struct berth_loop *loop, struct berth_http *http,
                                struct berth_err *err) BERTH_MUST_USE;
/* Closes all connections and delivers what was posted. Zeroed memory is fine. */
void berth_loop_finish(struct berth_loop *loop);
enum berth_code berth_loop_start(struct berth_loop *loop, struct berth_err *err) BERTH_MUST_USE;
/* Waits for the thread; berth_http.stopping is set. */
void berth_loop_join(struct berth_loop *loop);
/* Everything of a turn but waiting and events, at loop->now_ns. */
void berth_loop_settle(struct berth_loop *loop);
/* True if a turn is to follow at once. */
bool berth_loop_busy(const struct berth_loop *loop);

#endif
