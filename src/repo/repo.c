/* repo.c - see repo.h.
 *
 * Every job reads the disk anew: a scan is a list of what is there now, with a stamp for each
 * version's files, and whoever asked compares. One thread does all jobs in turn, so a slow disk
 * delays other repository work only.
 *
 * Entries with a leading dot are not looked at. Symbolic links are followed wherever they lead: the
 * repository is the operator's, and both Hugging Face's cache and mounted volumes are made of them;
 * what a client sends is only ever one name (berth_repo_check_name), and names inside a config are
 * kept inside the model's folder. Depth and count of entries are limited, which also ends loops.
 *
 * A model without a version folder but with a config.json is a Hugging Face folder: its version 1.
 */
#include "repo/repo.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/config_tree.h"
#include "repo/model_config.h"
#include "repo/pbtxt.h"

#define PATH_BYTES 4096
#define MODELS_MAX 100000
#define ENTRIES_MAX 100000 /* files of one version */
#define DEPTH_MAX 8
#define TOLD_MAX 4096
#define TOLD_NEAR 8
#define CONFIG_FILE "config.pbtxt"
#define HASH_START UINT64_C(0xcbf29ce484222325)
#define HASH_FACTOR UINT64_C(0x100000001b3)

struct berth_repo {
    char *path;
    struct berth_queue jobs;
    atomic_bool stopping;
    pthread_t thread;
    uint64_t told[TOLD_MAX]; /* configs that were warned of, by their hash; 0: none */
};

/* One model being read. */
struct reading {
    struct berth_repo *repo;
    struct berth_repo_job *job;
    const char *name;
    char folder[PATH_BYTES];
    char label[PATH_BYTES]; /* of the config */
    char *text;             /* owned; the config file's, or NULL */
    size_t text_length;
    uint64_t versions[BERTH_VERSIONS_MAX]; /* folders found, rising */
    size_t version_count;
    bool plain;  /* a Hugging Face folder: the model's folder is its version's */
    bool warned; /* the config's warnings were given */
};

struct files {
    uint64_t bytes;
    uint64_t hash; /* a sum, since a folder's order is not its own */
    size_t count;
};

static void *repo_main(void *argument);
static void job_scan(struct berth_repo *repo, struct berth_repo_job *job);
static void job_read(struct berth_repo *repo, struct berth_repo_job *job);
static enum berth_code names_list(const char *path, char ***out, size_t *count,
                                  struct berth_err *err);
static void names_free(char **names, size_t count);
static enum berth_code model_read(struct reading *reading, struct berth_err *err);
static enum berth_code paths_make(struct reading *reading, struct berth_err *err);
static enum berth_code config_load(struct reading *reading, struct berth_err *err);
static enum berth_code versions_list(struct reading *reading, struct berth_err *err);
static enum berth_code refuse_bare(const struct reading *reading, struct berth_err *err);
static enum berth_code refuse_nemo(const char *file, struct berth_err *err);
static enum berth_code versions_serve(struct reading *reading, struct berth_err *err);
static bool version_served(const struct reading *reading, const struct berth_version_policy *policy,
                           size_t index);
static enum berth_code spec_read(struct reading *reading, uint64_t version,
                                 struct berth_version_policy *policy,
                                 struct berth_model_spec **out, struct berth_err *err);
static enum berth_code spec_complete(const struct reading *reading, struct berth_model_spec *spec,
                                     struct berth_err *err);
static enum berth_code backend_guess(struct berth_model_spec *spec, struct berth_err *err);
static bool find_nemo(const char *folder, char out[BERTH_MODEL_NAME_MAX + 1]);
static bool has_file(const char *folder, const char *name);
static void warn_of_a_model(const char *path);
static enum berth_code model_kind_read(struct berth_model_spec *spec, const char **out,
                                       struct berth_err *err);
static const char *kind_of(const json_t *json);
static void files_walk(const char *folder, unsigned depth, struct files *files);
static enum berth_code found_add(struct berth_repo_job *job, const char *name, uint64_t version,
                                 struct berth_repo_found **out, struct berth_err *err);

enum berth_code berth_repo_open(const char *path, struct berth_repo **out, struct berth_err *err)
{
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return berth_fail(err, errno == ENOENT ? BERTH_NOT_FOUND : BERTH_INVALID,
                          "cannot read the model repository %s: %s", path, strerror(errno));
    }
    closedir(folder);
    struct berth_repo *repo = berth_alloc(sizeof(*repo));
    if (repo == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory for the model repository");
    }
    repo->path = berth_strdup(path);
    enum berth_code code = repo->path == NULL
                               ? berth_fail(err, BERTH_UNAVAILABLE, "no memory for a path")
                               : berth_queue_init(&repo->jobs, 0, err);
    if (code != BERTH_OK) {
        goto out;
    }
    for (size_t length = strlen(repo->path); length > 1 && repo->path[length - 1] == '/';) {
        repo->path[--length] = '\0';
    }
    if (pthread_create(&repo->thread, NULL, repo_main, repo) != 0) {
        berth_queue_finish(&repo->jobs);
        code = berth_fail(err, BERTH_UNAVAILABLE, "cannot start the repository's thread");
        goto out;
    }
    warn_of_a_model(repo->path);
    *out = repo;
    repo = NULL;
out:
    if (repo != NULL) {
        berth_free(repo->path);
        berth_free(repo);
    }
    return code;
}

void berth_repo_close(struct berth_repo *repo)
{
    if (repo == NULL) {
        return;
    }
    atomic_store(&repo->stopping, true);
    berth_queue_nudge(&repo->jobs);
    pthread_join(repo->thread, NULL);
    berth_queue_finish(&repo->jobs);
    berth_free(repo->path);
    berth_free(repo);
}

const char *berth_repo_path(const struct berth_repo *repo)
{
    return repo->path;
}

void berth_repo_submit(struct berth_repo *repo, struct berth_repo_job *job)
{
    berth_queue_post(&repo->jobs, &job->post.link);
}

void berth_repo_run(struct berth_repo *repo, struct berth_repo_job *job)
{
    job->err = (struct berth_err){.code = BERTH_OK};
    job->found = NULL;
    job->found_count = 0;
    if (job->kind == BERTH_REPO_SCAN) {
        job_scan(repo, job);
    } else {
        job_read(repo, job);
    }
}

void berth_repo_job_finish(struct berth_repo_job *job)
{
    for (size_t i = 0; i < job->found_count; i++) {
        berth_spec_release(job->found[i].spec);
        berth_free(job->found[i].name);
    }
    berth_free(job->found);
    job->found = NULL;
    job->found_count = 0;
}

enum berth_code berth_repo_check_name(const char *name, size_t length, struct berth_err *err)
{
    bool good = length >= 1 && length <= BERTH_MODEL_NAME_MAX && name[0] != '.' &&
                berth_utf8_valid_length(name, length) == length;
    for (size_t i = 0; i < length && good; i++) {
        unsigned char byte = (unsigned char)name[i];
        bool control = byte < 0x20 || byte == 0x7F ||
                       (byte == 0xC2 && i + 1 < length && (unsigned char)name[i + 1] < 0xA0);
        good = !control && byte != '/' && byte != '\\';
    }
    if (!good) {
        return berth_fail_field(err, BERTH_INVALID, "model",
                                "a model's name is 1 to %d bytes of text without '/', '\\', "
                                "control characters or a leading '.'",
                                BERTH_MODEL_NAME_MAX);
    }
    return BERTH_OK;
}

static void *repo_main(void *argument)
{
    struct berth_repo *repo = argument;
    struct berth_link taken;
    berth_list_init(&taken);
    for (;;) {
        while (berth_queue_take(&repo->jobs, &taken)) {
            for (struct berth_link *link = berth_list_pop(&taken); link != NULL;
                 link = berth_list_pop(&taken)) {
                struct berth_post *post = BERTH_CONTAINER_OF(link, struct berth_post, link);
                struct berth_repo_job *job =
                    BERTH_CONTAINER_OF(post, struct berth_repo_job, post);
                berth_repo_run(repo, job);
                berth_queue_post(job->reply, &job->post.link);
            }
        }
        if (atomic_load(&repo->stopping)) {
            return NULL;
        }
        berth_queue_wait(&repo->jobs, 0);
    }
}

static void job_scan(struct berth_repo *repo, struct berth_repo_job *job)
{
    char **names = NULL;
    size_t count = 0;
    if (names_list(repo->path, &names, &count, &job->err) != BERTH_OK) {
        return;
    }
    for (size_t i = 0; i < count && job->err.code == BERTH_OK; i++) {
        struct reading *reading = berth_alloc(sizeof(*reading));
        if (reading == NULL) {
            berth_fail(&job->err, BERTH_UNAVAILABLE, "no memory to read the model repository");
            break;
        }
        *reading = (struct reading){.repo = repo, .job = job, .name = names[i]};
        model_read(reading, &job->err);
        berth_free(reading->text);
        berth_free(reading);
    }
    names_free(names, count);
}

static void job_read(struct berth_repo *repo, struct berth_repo_job *job)
{
    struct stat folder;
    if (berth_repo_check_name(job->name, strlen(job->name), &job->err) != BERTH_OK) {
        return;
    }
    struct reading *reading = berth_alloc(sizeof(*reading));
    if (reading == NULL) {
        berth_fail(&job->err, BERTH_UNAVAILABLE, "no memory to read the model");
        return;
    }
    *reading = (struct reading){.repo = repo, .job = job, .name = job->name};
    if (paths_make(reading, &job->err) == BERTH_OK) {
        if (stat(reading->folder, &folder) != 0 || !S_ISDIR(folder.st_mode)) {
            berth_fail(&job->err, BERTH_NOT_FOUND, "it is not in the repository");
        } else {
            model_read(reading, &job->err);
        }
    }
    berth_free(reading->text);
    berth_free(reading);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Folders of the repository, sorted. */
static enum berth_code names_list(const char *path, char ***out, size_t *count,
                                  struct berth_err *err)
{
    char **names = NULL;
    size_t used = 0;
    size_t capacity = 0;
    enum berth_code code = BERTH_OK;
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot read the model repository %s: %s", path,
                          strerror(errno));
    }
    for (struct dirent *entry = readdir(folder); entry != NULL && code == BERTH_OK;
         entry = readdir(folder)) {
        struct stat status;
        if (entry->d_name[0] == '.' || fstatat(dirfd(folder), entry->d_name, &status, 0) != 0 ||
            !S_ISDIR(status.st_mode)) {
            continue;
        }
        if (berth_repo_check_name(entry->d_name, strlen(entry->d_name), NULL) != BERTH_OK) {
            berth_log_warn("repo", 0, "a folder of %s has a name that no model may have", path);
            continue;
        }
        if (used == MODELS_MAX) {
            code = berth_fail(err, BERTH_TOO_LARGE, "%s has more than %d models", path, MODELS_MAX);
            break;
        }
        if (used == capacity) {
            size_t more = capacity == 0 ? 64 : capacity * 2;
            char **grown =
                berth_resize(names, capacity * sizeof(*names), more * sizeof(*names));
            names = grown == NULL ? names : grown;
            capacity = grown == NULL ? capacity : more;
        }
        char *name = used == capacity ? NULL : berth_strdup(entry->d_name);
        if (name == NULL) {
            code = berth_fail(err, BERTH_UNAVAILABLE, "no memory for the models of %s", path);
        } else {
            names[used++] = name;
        }
    }
    closedir(folder);
    if (code != BERTH_OK) {
        names_free(names, used);
        return code;
    }
    if (used > 0) {
        qsort(names, used, sizeof(*names), by_text);
    }
    *out = names;
    *count = used;
    return BERTH_OK;
}

static void names_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        berth_free(names[i]);
    }
    berth_free(names);
}

/* Adds what is found of one model; what is wrong with it becomes its entry's error. An error here
 * is the whole job's. */
static enum berth_code model_read(struct reading *reading, struct berth_err *err)
{
    struct berth_err wrong = {.code = BERTH_OK};
    struct berth_repo_found *found = NULL;
    enum berth_code code = paths_make(reading, &wrong);
    if (code == BERTH_OK) {
        code = versions_list(reading, &wrong);
    }
    if (code == BERTH_OK) {
        code = config_load(reading, &wrong);
    }
    if (code == BERTH_OK) {
        code = versions_serve(reading, &wrong);
    }
    if (code == BERTH_OK) {
        return BERTH_OK;
    }
    uint64_t version =
        reading->version_count == 0 ? 1 : reading->versions[reading->version_count - 1];
    BERTH_TRY(found_add(reading->job, reading->name, version, &found, err));
    found->err = wrong;
    return BERTH_OK;
}

static enum berth_code paths_make(struct reading *reading, struct berth_err *err)
{
    int length = snprintf(reading->folder, sizeof(reading->folder), "%s/%s", reading->repo->path,
                          reading->name);
    int label = snprintf(reading->label, sizeof(reading->label), "%s/" CONFIG_FILE, reading->name);
    if (length < 0 || label < 0 || (size_t)length + BERTH_MODEL_NAME_MAX > PATH_BYTES) {
        return berth_fail(err, BERTH_INVALID, "the path of its folder is too long");
    }
    return BERTH_OK;
}

static enum berth_code config_load(struct reading *reading, struct berth_err *err)
{
    char path[PATH_BYTES + 16];
    if (reading->job->config_json != NULL) {
        snprintf(reading->label, sizeof(reading->label), "%s/config (given)", reading->name);
        return BERTH_OK;
    }
    snprintf(path, sizeof(path), "%s/" CONFIG_FILE, reading->folder);
    enum berth_code code = berth_file_load(path, BERTH_PBTXT_BYTES_MAX, &reading->text,
                                           &reading->text_length, err);
    return code == BERTH_NOT_FOUND ? BERTH_OK : code; /* then the files have to say all */
}

/* A version's number: digits without a leading zero. 0: it is none. */
static uint64_t version_parse(const char *name)
{
    uint64_t version = 0;
    if (name[0] < '1' || name[0] > '9' || strlen(name) > 18) {
        return 0;
    }
    for (const char *at = name; *at != '\0'; at++) {
        if (*at < '0' || *at > '9') {
            return 0;
        }
        version = version * 10 + (uint64_t)(*at - '0');
    }
    return version;
}

static int by_number(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static enum berth_code versions_list(struct reading *reading, struct berth_err *err)
{
    DIR *folder = opendir(reading->folder);
    struct stat status;
    if (folder == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "cannot read its folder: %s", strerror(errno));
    }
    enum berth_code code = BERTH_OK;
    bool has_config_json = false;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        uint64_t version = version_parse(entry->d_name);
        has_config_json = has_config_json || strcmp(entry->d_name, "config.json") == 0;
        if (version == 0 || fstatat(dirfd(folder), entry->d_name, &status, 0) != 0 ||
            !S_ISDIR(status.st_mode)) {
            continue;
        }
        if (reading->version_count == BERTH_VERSIONS_MAX) {
            code = berth_fail(err, BERTH_TOO_LARGE, "it has more than %d versions",
                              BERTH_VERSIONS_MAX);
            break;
        }
        reading->versions[reading->version_count++] = version;
    }
    closedir(folder);
    qsort(reading->versions, reading->version_count, sizeof(reading->versions[0]), by_number);
    if (reading->version_count == 0) {
        reading->plain = has_config_json;
        reading->versions[0] = 1;
    }
    return code;
}

static enum berth_code refuse_bare(const struct reading *reading, struct berth_err *err)
{
    char nemo[BERTH_MODEL_NAME_MAX + 1];
    if (find_nemo(reading->folder, nemo)) {
        return refuse_nemo(nemo, err);
    }
    return berth_fail(err, BERTH_INVALID,
                      "it has no version folder (such as %.100s/1), nor a config.json of Hugging "
                      "Face's layout",
                      reading->name);
}

static enum berth_code refuse_nemo(const char *file, struct berth_err *err)
{
    return berth_fail(err, BERTH_INVALID,
                      "%.100s is no file that berth reads: turn it into a folder with "
                      "tools/nemo_to_hf.py",
                      file);
}

static enum berth_code versions_serve(struct reading *reading, struct berth_err *err)
{
    struct berth_version_policy policy;
    struct berth_model_spec *spec = NULL;
    bool no_files = reading->version_count == 0 && !reading->plain;
    size_t served = 0;
    bool told = false;
    BERTH_TRY(spec_read(reading, reading->versions[0], &policy, &spec, err));
    bool needs_files = strcmp(spec->engine, "null") != 0;
    if (no_files && needs_files) {
        berth_spec_release(spec);
        return refuse_bare(reading, err);
    }
    enum berth_code code = BERTH_OK;
    size_t count = reading->version_count == 0 ? 1 : reading->version_count;
    for (size_t i = 0; i < count && code == BERTH_OK; i++) {
        if (!version_served(reading, &policy, i)) {
            continue;
        }
        struct berth_version_policy again;
        struct berth_model_spec *one = NULL;
        struct berth_repo_found *found = NULL;
        struct berth_err wrong = {.code = BERTH_OK};
        code = spec_read(reading, reading->versions[i], &again, &one, err);
        if (code == BERTH_OK) {
            spec_complete(reading, one, &wrong);
            code = found_add(reading->job, reading->name, reading->versions[i], &found, err);
        }
        if (code == BERTH_OK) {
            served++;
            found->err = wrong;
            if (wrong.code == BERTH_OK) {
                one->quiet = told; /* what describe warns of is the same for all versions */
                told = true;
                found->spec = one;
                one = NULL;
            }
        }
        berth_spec_release(one);
    }
    berth_spec_release(spec); /* and with it the policy's array */
    if (code == BERTH_OK && served == 0) {
        return berth_fail(err, BERTH_INVALID,
                          "it has none of the versions that its version_policy serves");
    }
    return code;
}

static bool version_served(const struct reading *reading, const struct berth_version_policy *policy,
                           size_t index)
{
    size_t count = reading->version_count == 0 ? 1 : reading->version_count;
    if (policy->kind == BERTH_VERSIONS_LATEST) {
        return count - index <= policy->latest_count;
    }
    for (size_t i = 0; i < policy->specific_count; i++) {
        if (policy->specific[i] == reading->versions[index]) {
            return true;
        }
    }
    return policy->kind == BERTH_VERSIONS_ALL;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ at[i]) * HASH_FACTOR;
    }
    return hash;
}

/* Where the hash stands or may: the first of some places that has it or is empty, else the last. */
static uint64_t *told_place(struct berth_repo *repo, uint64_t hash)
{
    size_t at = 0;
    while (at < TOLD_NEAR - 1 && repo->told[(hash + at) % TOLD_MAX] != hash &&
           repo->told[(hash + at) % TOLD_MAX] != 0) {
        at++;
    }
    return &repo->told[(hash + at) % TOLD_MAX];
}

/* A spec as far as the config says. */
static enum berth_code spec_read(struct reading *reading, uint64_t version,
                                 struct berth_version_policy *policy,
                                 struct berth_model_spec **out, struct berth_err *err)
{
    char path[PATH_BYTES + 32];
    bool warned = false;
    const char *json = reading->job->config_json;
    struct berth_model_config config = {
        .text = json != NULL ? json : reading->text,
        .length = json != NULL ? strlen(json) : reading->text_length,
        .label = reading->label,
        .json = json != NULL,
        .warned = &warned,
    };
    uint64_t hash = hash_bytes(HASH_START, reading->name, strlen(reading->name));
    hash = config.text == NULL ? hash : hash_bytes(hash, config.text, config.length);
    uint64_t *told = told_place(reading->repo, hash);
    config.quiet = reading->warned || (reading->job->kind == BERTH_REPO_SCAN && *told == hash);
    reading->warned = true;
    struct berth_model_spec *spec = berth_spec_create();
    if (spec == NULL) {
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to read the model");
    }
    snprintf(path, sizeof(path), "%s/%llu", reading->folder, (unsigned long long)version);
    spec->version = version;
    spec->name = berth_arena_strdup(&spec->arena, reading->name);
    spec->folder = berth_arena_strdup(&spec->arena, reading->folder);
    spec->folder_version =
        berth_arena_strdup(&spec->arena, reading->plain ? reading->folder : path);
    enum berth_code code = BERTH_OK;
    if (spec->name == NULL || spec->folder == NULL || spec->folder_version == NULL) {
        code = berth_fail(err, BERTH_UNAVAILABLE, "no memory to read the model");
    } else {
        code = berth_model_config_read(&config, spec, policy, err);
        *told = warned ? hash : *told; /* so that looking again and again does not warn each time */
    }
    if (code != BERTH_OK) {
        berth_spec_release(spec);
        return code;
    }
    *out = spec;
    return BERTH_OK;
}

/* What the files say: the backend where the config does not, their size, their stamp. */
static enum berth_code spec_complete(const struct reading *reading, struct berth_model_spec *spec,
                                     struct berth_err *err)
{
    struct files files = {0};
    const char *json = reading->job->config_json;
    if (spec->engine[0] == '\0') {
        BERTH_TRY(backend_guess(spec, err));
    }
    char nemo[BERTH_MODEL_NAME_MAX + 1];
    if (strcmp(spec->engine, "parakeet") == 0 && !has_file(spec->folder_version, "config.json") &&
        find_nemo(spec->folder_version, nemo)) {
        return refuse_nemo(nemo, err);
    }
    files_walk(spec->folder_version, 0, &files);
    uint64_t hash = hash_bytes(HASH_START, &files, sizeof(files));
    if (json != NULL) {
        hash = hash_bytes(hash, json, strlen(json));
    } else if (reading->text != NULL) {
        hash = hash_bytes(hash, reading->text, reading->text_length);
    }
    spec->files_bytes = files.bytes;
    spec->files_stamp = hash == 0 ? 1 : hash;
    return BERTH_OK;
}

static bool has_file(const char *folder, const char *name)
{
    char path[PATH_BYTES + 512];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return length > 0 && (size_t)length < sizeof(path) && access(path, F_OK) == 0;
}

static enum berth_code backend_guess(struct berth_model_spec *spec, struct berth_err *err)
{
    const char *file = spec->default_model_filename;
    size_t length = strlen(file);
    bool onnx_named = length > 5 && strcmp(file + length - 5, ".onnx") == 0;
    if (onnx_named || (length == 0 && has_file(spec->folder_version, "model.onnx"))) {
        spec->backend = "onnxruntime";
        spec->platform = "onnxruntime_onnx";
    } else if (has_file(spec->folder_version, "config.json")) {
        BERTH_TRY(model_kind_read(spec, &spec->backend, err));
    }
    spec->engine = berth_model_config_engine(spec->backend, spec->platform);
    char nemo[BERTH_MODEL_NAME_MAX + 1];
    if (spec->engine[0] == '\0' && find_nemo(spec->folder_version, nemo)) {
        return refuse_nemo(nemo, err);
    }
    if (spec->engine[0] == '\0') {
        return berth_fail(err, BERTH_INVALID,
                          "what runs it cannot be told: no backend or platform in its config, no "
                          "model.onnx and no model_type in a config.json, nor architectures that "
                          "are known");
    }
    return BERTH_OK;
}

/* The first file NAME.nemo there; false: there is none. */
static bool find_nemo(const char *folder, char out[BERTH_MODEL_NAME_MAX + 1])
{
    DIR *entries = opendir(folder);
    out[0] = '\0';
    for (struct dirent *entry = entries == NULL ? NULL : readdir(entries);
         entry != NULL && out[0] == '\0'; entry = readdir(entries)) {
        size_t length = strlen(entry->d_name);
        if (length > 5 && length <= BERTH_MODEL_NAME_MAX && entry->d_name[0] != '.' &&
            strcmp(entry->d_name + length - 5, ".nemo") == 0 &&
            berth_utf8_valid_length(entry->d_name, length) == length) {
            memcpy(out, entry->d_name, length + 1);
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return out[0] != '\0';
}

/* A model's own folder given for the repository is the likeliest mistake: it then is empty, or its
 * versions are models named "1" without versions. */
static void warn_of_a_model(const char *path)
{
    bool is_version = has_file(path, "1") && !has_file(path, "1/1") &&
                      !has_file(path, "1/config.pbtxt");
    const char *mark = has_file(path, CONFIG_FILE)     ? "a " CONFIG_FILE
                       : has_file(path, "config.json") ? "a config.json"
                       : is_version                    ? "a version folder, 1"
                                                       : NULL;
    if (mark != NULL) {
        berth_log_warn("repo", 0,
                       "%s has %s: it looks like a model, and a repository is a folder of such "
                       "folders; give its parent",
                       path, mark);
    }
}

/* What a Hugging Face config says that the model is; "" where it does not. */
static enum berth_code model_kind_read(struct berth_model_spec *spec, const char **out,
                                       struct berth_err *err)
{
    char path[PATH_BYTES + 64];
    char *text = NULL;
    size_t length = 0;
    json_t *json = NULL;
    json_error_t where;
    snprintf(path, sizeof(path), "%s/config.json", spec->folder_version);
    BERTH_TRY(berth_file_load(path, BERTH_PBTXT_BYTES_MAX, &text, &length, err));
    enum berth_code code = berth_json_read(text, length, 0, &json, &where);
    if (code != BERTH_OK) {
        (void)berth_fail(err, code, "%s: line %d: %s", path, where.line, where.text);
    }
    const char *word = kind_of(json);
    *out = "";
    if (code == BERTH_OK && word != NULL && strlen(word) < 64) {
        char *copy = berth_arena_strdup(&spec->arena, word);
        *out = copy == NULL ? "" : copy;
        code = copy == NULL ? berth_fail(err, BERTH_UNAVAILABLE, "no memory to read %s", path)
                            : BERTH_OK;
    }
    json_decref(json);
    berth_free(text);
    return code;
}

/* model_type if an engine of ours goes by it; else the first of architectures that one does; else
 * model_type all the same, so that it is refused by that name. */
static const char *kind_of(const json_t *json)
{
    static const struct {
        const char *architecture;
        const char *type;
    } known[] = {
        {"ParakeetForTDT", "parakeet_tdt"},
        {"ParakeetForRNNT", "parakeet_rnnt"},
        {"ParakeetForCTC", "parakeet_ctc"},
        {"WhisperForConditionalGeneration", "whisper"},
    };
    const char *type = json_string_value(json_object_get(json, "model_type"));
    const json_t *list = json_object_get(json, "architectures");
    for (size_t i = 0; type != NULL && i < BERTH_COUNT_OF(known); i++) {
        if (strcmp(type, known[i].type) == 0) {
            return type;
        }
    }
    for (size_t at = 0; at < json_array_size(list); at++) {
        const char *name = json_string_value(json_array_get(list, at));
        for (size_t i = 0; name != NULL && i < BERTH_COUNT_OF(known); i++) {
            if (strcmp(name, known[i].architecture) == 0) {
                return known[i].type;
            }
        }
    }
    return type;
}

static void files_walk(const char *folder, unsigned depth, struct files *files)
{
    DIR *entries = opendir(folder);
    if (entries == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(entries); entry != NULL && files->count < ENTRIES_MAX;
         entry = readdir(entries)) {
        struct stat status;
        if (entry->d_name[0] == '.' || fstatat(dirfd(entries), entry->d_name, &status, 0) != 0) {
            continue;
        }
        files->count++;
        uint64_t facts[] = {(uint64_t)status.st_size, (uint64_t)status.st_mtim.tv_sec,
                            (uint64_t)status.st_mtim.tv_nsec, depth};
        uint64_t hash = hash_bytes(HASH_START, entry->d_name, strlen(entry->d_name));
        if (S_ISREG(status.st_mode)) {
            files->bytes += (uint64_t)status.st_size;
            files->hash += hash_bytes(hash, facts, sizeof(facts));
        } else if (S_ISDIR(status.st_mode) && depth < DEPTH_MAX) {
            char path[PATH_BYTES + 512];
            int length = snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
            files->hash += hash;
            if (length > 0 && (size_t)length < sizeof(path)) {
                files_walk(path, depth + 1, files);
            }
        }
    }
    closedir(entries);
}

static enum berth_code found_add(struct berth_repo_job *job, const char *name, uint64_t version,
                                 struct berth_repo_found **out, struct berth_err *err)
{
    char *copy = berth_strdup(name);
    struct berth_repo_found *grown =
        copy == NULL ? NULL
                     : berth_resize(job->found, job->found_count * sizeof(*grown),
                                    (job->found_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        berth_free(copy);
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to read a model");
    }
    job->found = grown;
    *out = &grown[job->found_count++];
    (*out)->name = copy;
    (*out)->version = version;
    return BERTH_OK;
}
