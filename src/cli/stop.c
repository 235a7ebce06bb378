/* stop.c - see stop.h.
 *
 * A signal's time is when it is read. All that are pending are read at once, so that what came
 * while the process could not run counts as one stop too.
 */
#include "cli/stop.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define PENDING_MAX 8 /* there are two kinds, and each is pending once */

static bool take(struct berth_stop *stop);
static void on_signal(int number);

static uint64_t t_handled_ns; /* of the first, for the handler; one thread takes the signals */

bool berth_stop_is_another(uint64_t *t_first_ns, uint64_t now_ns)
{
    if (*t_first_ns == 0) {
        *t_first_ns = now_ns;
        return false;
    }
    return now_ns >= *t_first_ns && now_ns - *t_first_ns >= BERTH_STOP_ECHO_NS;
}

bool berth_stop_init(struct berth_stop *stop)
{
    *stop = (struct berth_stop){.signals = -1};
    sigemptyset(&stop->mask);
    sigaddset(&stop->mask, SIGTERM);
    sigaddset(&stop->mask, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stop->mask, NULL);
    stop->signals = signalfd(-1, &stop->mask, SFD_CLOEXEC);
    return stop->signals >= 0;
}

void berth_stop_finish(struct berth_stop *stop)
{
    if (stop->signals >= 0) {
        close(stop->signals);
        stop->signals = -1;
    }
}

void berth_stop_wait_first(struct berth_stop *stop)
{
    struct pollfd fd = {.fd = stop->signals, .events = POLLIN};
    while (stop->t_first_ns == 0) {
        if (poll(&fd, 1, -1) > 0) {
            (void)take(stop);
        }
    }
}

bool berth_stop_wait_another(struct berth_stop *stop, uint64_t ns)
{
    struct pollfd fd = {.fd = stop->signals, .events = POLLIN};
    uint64_t now_ns = berth_clock_now_ns();
    uint64_t t_end_ns = now_ns + ns;
    do {
        uint64_t left_ns = now_ns < t_end_ns ? t_end_ns - now_ns : 0;
        struct timespec time = {.tv_sec = (time_t)(left_ns / BERTH_NS_PER_S),
                                .tv_nsec = (long)(left_ns % BERTH_NS_PER_S)};
        if (ppoll(&fd, 1, &time, NULL) > 0 && take(stop)) {
            return true;
        }
        now_ns = berth_clock_now_ns();
    } while (now_ns < t_end_ns);
    return false;
}

void berth_stop_let_end(struct berth_stop *stop)
{
    struct sigaction action = {
        .sa_handler = on_signal, .sa_mask = stop->mask, .sa_flags = SA_RESTART};
    t_handled_ns = stop->t_first_ns;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pthread_sigmask(SIG_UNBLOCK, &stop->mask, NULL);
}

/* Was there another one among those that are pending? */
static bool take(struct berth_stop *stop)
{
    struct signalfd_siginfo infos[PENDING_MAX];
    return read(stop->signals, infos, sizeof(infos)) > 0 &&
           berth_stop_is_another(&stop->t_first_ns, berth_clock_now_ns());
}

static void on_signal(int number)
{
    (void)number;
    if (berth_stop_is_another(&t_handled_ns, berth_clock_now_ns())) {
        _exit(1);
    }
}
