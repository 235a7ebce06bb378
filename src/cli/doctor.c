/* doctor.c - `berth doctor`: what this machine has and lacks, in words a person can act on. */
#include <dlfcn.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/gpu_probe.h"
#include "engine/engine.h"
#include "media/media.h"

#define DESCRIPTORS_WANTED 20000
#define TEXT_MAX 256

enum verdict { GOOD, WEAK, MISSING };

struct finding {
    const char *what;
    enum verdict verdict;
    char text[TEXT_MAX];
};

static void look_at_processor(struct finding *finding);
static void look_at_memory(struct finding *finding);
static void look_at_descriptors(struct finding *finding);
static void look_at_sandbox(struct finding *finding);
static void look_at_media(struct finding *finding);
static void look_at_engines(struct finding *finding);
static void look_at_gpu(struct finding *finding);
static void look_at_models(struct finding *finding);

static const struct {
    const char *what;
    void (*look)(struct finding *finding);
} looks[] = {
    {"processor", look_at_processor}, {"memory", look_at_memory},
    {"descriptors", look_at_descriptors}, {"sandbox", look_at_sandbox},
    {"media", look_at_media},         {"engines", look_at_engines},
    {"gpu", look_at_gpu},             {"models", look_at_models},
};

int berth_cli_doctor(const struct berth_config *config)
{
    static const char *const marks[] = {"ok", "weak", "missing"};
    json_t *all = json_array();
    for (size_t i = 0; i < BERTH_COUNT_OF(looks); i++) {
        struct finding finding = {.what = looks[i].what};
        looks[i].look(&finding);
        if (!config->json) {
            printf("%-12s %-8s %s\n", finding.what, marks[finding.verdict], finding.text);
        }
        json_array_append_new(all, json_pack("{s:s, s:s, s:s}", "what", finding.what, "verdict",
                                             marks[finding.verdict], "text", finding.text));
    }
    if (config->json) {
        json_dumpf(all, stdout, JSON_INDENT(2));
        puts("");
    }
    json_decref(all);
    return 0;
}

static void look_at_processor(struct finding *finding)
{
    struct utsname name;
    uname(&name);
    const char *vectors = "";
#if defined(__x86_64__)
    vectors = __builtin_cpu_supports("avx512f") ? ", AVX-512"
              : __builtin_cpu_supports("avx2")  ? ", AVX2"
                                                : ", no AVX2: inference will be slow";
    finding->verdict = __builtin_cpu_supports("avx2") ? GOOD : WEAK;
#endif
    snprintf(finding->text, TEXT_MAX, "%ld cores, %s%s, Linux %s", sysconf(_SC_NPROCESSORS_ONLN),
             name.machine, vectors, name.release);
}

static void look_at_memory(struct finding *finding)
{
    double whole = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9;
    double free_now = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9;
    finding->verdict = whole < 2 ? WEAK : GOOD;
    snprintf(finding->text, TEXT_MAX,
             "%.1f GB, %.1f free; models may hold three quarters (--device-bytes-max)", whole,
             free_now);
}

static void look_at_descriptors(struct finding *finding)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    finding->verdict = limit.rlim_max < DESCRIPTORS_WANTED ? WEAK : GOOD;
    snprintf(finding->text, TEXT_MAX, "up to %llu open files%s", (unsigned long long)limit.rlim_max,
             finding->verdict == WEAK ? "; raise it (ulimit -n) to hold many connections" : "");
}

static void look_at_sandbox(struct finding *finding)
{
    bool has = prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
    finding->verdict = has ? GOOD : MISSING;
    snprintf(finding->text, TEXT_MAX, "%s",
             has ? "seccomp: media is decoded in processes that can open nothing"
                 : "no seccomp in this kernel: decode processes will not start");
}

static void look_at_media(struct finding *finding)
{
    snprintf(finding->text, TEXT_MAX, "%s", berth_media_describe());
}

static void look_at_engines(struct finding *finding)
{
    size_t length = 0;
    bool onnx = false;
    for (size_t i = 0; berth_engine_name(i) != NULL; i++) {
        length += (size_t)snprintf(finding->text + length, TEXT_MAX - length, "%s%s",
                                   length == 0 ? "" : ", ", berth_engine_name(i));
        onnx = onnx || strcmp(berth_engine_name(i), "onnx") == 0;
    }
    finding->verdict = onnx ? GOOD : MISSING;
    snprintf(finding->text + length, TEXT_MAX - length, "%s",
             onnx ? "" : "; built without ONNX Runtime: run ./setup onnxruntime and build again");
}

/* berth-cuda knows; without it the driver's own library tells whether it is worth building. */
static void look_at_gpu(struct finding *finding)
{
    struct berth_gpu_found gpu;
    struct berth_err err = {0};
    enum berth_code code = berth_gpu_probe("auto", &gpu, &err);
    finding->verdict = code == BERTH_OK ? GOOD : MISSING;
    if (code == BERTH_OK) {
        snprintf(finding->text, TEXT_MAX, "%s %s, %.1f GB, %.1f free; runs parakeet (berth-cuda)",
                 gpu.device, gpu.name, (double)gpu.bytes / 1e9, (double)gpu.bytes_free / 1e9);
        return;
    }
    if (code != BERTH_NOT_FOUND) {
        snprintf(finding->text, TEXT_MAX,
                 "berth-cuda is here, but %.180s; models run on the processor", err.msg);
        return;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    snprintf(finding->text, TEXT_MAX, "%s",
             driver == NULL ? "no NVIDIA driver; models run on the processor"
                            : "an NVIDIA driver is here, but no berth-cuda beside berth: make cuda "
                              "builds it; models run on the processor");
    if (driver != NULL) {
        dlclose(driver);
    }
}

static void look_at_models(struct finding *finding)
{
    bool here = access("models", R_OK | X_OK) == 0;
    finding->verdict = here ? GOOD : MISSING;
    snprintf(finding->text, TEXT_MAX, "%s",
             here ? "folder models/ is here; berth models lists it"
                  : "no folder models/ here; make models prepares one");
}
