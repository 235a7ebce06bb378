/* process.c - what a decode process is started with.
 *
 * The server's own executable, and an environment of two variables at most: the server's own may
 * hold secrets. Everything else it gives up by itself (sandbox.c).
 */
#include "media/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

void berth_process_init(struct berth_process *process)
{
    *process = (struct berth_process){0};
    berth_child_init(&process->child, 0);
}

enum berth_code berth_process_start(struct berth_process *process,
                                    const struct berth_process_options *options, uint64_t now_ns,
                                    struct berth_err *err)
{
    static const char variable[] = "LD_LIBRARY_PATH=";
    char memory[24], cpu[24], libraries[4096 + sizeof(variable)];
    char name[] = "berth", verb[] = "decode", zone[] = "TZ=UTC0";
    char *argv[] = {name, verb, memory, cpu, NULL};
    char *environment[3] = {zone, NULL, NULL};
    const char *path = getenv("LD_LIBRARY_PATH");
    snprintf(memory, sizeof(memory), "%llu", (unsigned long long)options->memory_max);
    snprintf(cpu, sizeof(cpu), "%llu", (unsigned long long)options->cpu_s_max);
    if (path != NULL && strlen(path) < sizeof(libraries) - sizeof(variable)) {
        snprintf(libraries, sizeof(libraries), "%s%s", variable, path);
        environment[1] = libraries;
    }
    process->talk = (struct berth_talk){.state = BERTH_TALK_STARTING};
    process->job_count = 0;
    struct berth_child_options child = {.what = "a decode process",
                                        .program = options->program,
                                        .argv = argv,
                                        .environment = environment};
    return berth_child_start(&process->child, &child, now_ns, err);
}

void berth_process_ready(struct berth_process *process)
{
    process->child.failed_in_row = 0;
    berth_child_ready(&process->child, berth_clock_now_ns());
}

void berth_process_kill(struct berth_process *process)
{
    berth_child_kill(&process->child, berth_clock_now_ns());
}
