/* models.c - `berth models`: what a repository holds, or what a running server serves. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "cli/cli.h"
#include "cli/remote.h"
#include "engine/engine.h"
#include "repo/repo.h"
#include "worker/worker.h"

static int list_folder(const struct berth_config *config);
static int list_server(const struct berth_config *config);
static enum berth_code fetch_json(const struct berth_config *config, const char *path,
                                  const char *body, json_t **out, struct berth_err *err);
static enum berth_code describe(struct berth_repo_job *job, struct berth_err *err);
static json_t *folder_json(struct berth_repo_job *job);
static json_t *server_json(json_t *index, json_t *stats);
static void print_table(json_t *rows);
static void print_folder_row(json_t *row);
static void print_server_row(json_t *row);
static void print_bytes(uint64_t bytes);

int berth_cli_models(const struct berth_config *config)
{
    return config->server != NULL && config->server[0] != '\0' ? list_server(config)
                                                               : list_folder(config);
}

/* where: for people, when there are none. */
static int show(const struct berth_config *config, json_t *rows, const char *where)
{
    if (config->json) {
        json_dumpf(rows, stdout, JSON_INDENT(2));
        puts("");
    } else if (json_array_size(rows) == 0) {
        printf("%s holds no model\n", where);
    } else {
        print_table(rows);
    }
    json_decref(rows);
    return 0;
}

static int list_folder(const struct berth_config *config)
{
    struct berth_repo *repo = NULL;
    struct berth_err err = {0};
    struct berth_repo_job job = {.kind = BERTH_REPO_SCAN};
    const char *path = config->models[0] == '\0' ? "models" : config->models;
    if (berth_repo_open(path, &repo, &err) != BERTH_OK) {
        return berth_cli_fail_models(config, &err);
    }
    berth_repo_run(repo, &job);
    int status = job.err.code == BERTH_OK && describe(&job, &job.err) == BERTH_OK
                     ? show(config, folder_json(&job), path)
                     : berth_cli_fail(&job.err);
    berth_repo_job_finish(&job);
    berth_repo_close(repo);
    return status;
}

static int list_server(const struct berth_config *config)
{
    json_t *index = NULL;
    json_t *stats = NULL;
    struct berth_err err = {0};
    int status = 1;
    if (berth_remote_check(config, &err) != BERTH_OK) {
        return berth_cli_fail(&err);
    }
    if (fetch_json(config, "/v2/repository/index", "{\"device\":true}", &index, &err) == BERTH_OK &&
        fetch_json(config, "/v2/models/stats", NULL, &stats, &err) == BERTH_OK) {
        status = show(config, server_json(index, stats), config->server);
    } else {
        berth_cli_fail(&err);
    }
    json_decref(index);
    json_decref(stats);
    return status;
}

static enum berth_code fetch_json(const struct berth_config *config, const char *path,
                                  const char *body, json_t **out, struct berth_err *err)
{
    struct berth_remote_answer answer = {0};
    enum berth_code code = berth_remote_call(config, path, body, &answer, err);
    if (code == BERTH_OK) {
        *out = json_loadb(berth_buf_text(&answer.body), answer.body.length, 0, NULL);
        if (answer.status != 200) {
            code = berth_remote_refused(&answer.body, answer.status, err);
        } else if (*out == NULL) {
            code = berth_fail(err, BERTH_UNAVAILABLE, "%s%s did not answer with JSON; is it berth?",
                              config->server, path);
        }
    }
    berth_buf_finish(&answer.body);
    return code;
}

/* As `serve` does at its start: each config against the model's own files. */
static enum berth_code describe(struct berth_repo_job *job, struct berth_err *err)
{
    struct berth_engine_env env = {.threads = 1};
    BERTH_TRY(berth_engines_start(&env, err));
    for (size_t i = 0; i < job->found_count; i++) {
        struct berth_repo_found *found = &job->found[i];
        if (found->spec != NULL &&
            berth_loaded_describe(berth_engine_find(found->spec->engine), found->spec,
                                  &found->err) != BERTH_OK) {
            berth_spec_release(found->spec);
            found->spec = NULL;
        }
    }
    berth_engines_finish();
    return BERTH_OK;
}

static json_t *folder_json(struct berth_repo_job *job)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < job->found_count; i++) {
        const struct berth_repo_found *found = &job->found[i];
        const struct berth_model_spec *spec = found->spec;
        json_t *row = json_object();
        json_object_set_new(row, "name", json_string(found->name));
        json_object_set_new(row, "version", json_integer((json_int_t)found->version));
        json_object_set_new(row, "state", json_string(spec == NULL ? "FAILED" : "ON DISK"));
        json_object_set_new(row, "engine", json_string(spec == NULL ? "" : spec->engine));
        json_object_set_new(row, "bytes",
                            json_integer(spec == NULL ? 0 : (json_int_t)spec->files_bytes));
        json_object_set_new(row, "reason", json_string(spec == NULL ? found->err.msg : ""));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Bytes come from the statistics' memory_usage of the same name and version. */
static json_int_t bytes_of(json_t *stats, const char *name, const char *version)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(stats, "model_stats"), i, item)
    {
        const char *item_name = json_string_value(json_object_get(item, "name"));
        const char *item_version = json_string_value(json_object_get(item, "version"));
        if (item_name != NULL && item_version != NULL && strcmp(name, item_name) == 0 &&
            strcmp(version, item_version) == 0) {
            json_t *usage = json_array_get(json_object_get(item, "memory_usage"), 0);
            return json_integer_value(json_object_get(usage, "byte_size"));
        }
    }
    return 0;
}

static json_t *server_json(json_t *index, json_t *stats)
{
    json_t *rows = json_array();
    size_t i;
    json_t *item;
    json_array_foreach(index, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *version = json_string_value(json_object_get(item, "version"));
        if (name == NULL || version == NULL) {
            continue;
        }
        json_t *row = json_copy(item);
        json_object_set_new(row, "bytes", json_integer(bytes_of(stats, name, version)));
        json_array_append_new(rows, row);
    }
    return rows;
}

static const char *text_of(json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text == NULL ? "" : text;
}

/* A folder has engines, a server devices. */
static void print_table(json_t *rows)
{
    size_t i;
    json_t *row;
    bool folder = json_object_get(json_array_get(rows, 0), "engine") != NULL;
    printf("%-28s %-8s %-12s %-10s %10s\n", "MODEL", "VERSION", "STATE",
           folder ? "ENGINE" : "DEVICE", "BYTES");
    json_array_foreach(rows, i, row)
    {
        if (folder) {
            print_folder_row(row);
        } else {
            print_server_row(row);
        }
    }
}

static void print_folder_row(json_t *row)
{
    const char *reason = text_of(row, "reason");
    printf("%-28s %-8" JSON_INTEGER_FORMAT " %-12s %-10s ", text_of(row, "name"),
           json_integer_value(json_object_get(row, "version")), text_of(row, "state"),
           text_of(row, "engine"));
    print_bytes((uint64_t)json_integer_value(json_object_get(row, "bytes")));
    printf("%s%s\n", reason[0] == '\0' ? "" : "  ", reason);
}

static void print_server_row(json_t *row)
{
    const char *reason = text_of(row, "reason");
    const char *fallback = text_of(row, "fallback");
    const char *device = text_of(row, "device");
    printf("%-28s %-8s %-12s %-10s ", text_of(row, "name"), text_of(row, "version"),
           text_of(row, "state"), device[0] == '\0' ? "-" : device);
    print_bytes((uint64_t)json_integer_value(json_object_get(row, "bytes")));
    if (reason[0] != '\0') {
        printf("  %s", reason);
    }
    if (fallback[0] != '\0') {
        printf("  not on the GPU: %s", fallback);
    }
    printf("\n");
}

static void print_bytes(uint64_t bytes)
{
    if (bytes == 0) {
        printf("%10s", "-");
    } else {
        printf("%7.1f %s", (double)bytes / (bytes < 1000000 ? 1e3 : 1e6),
               bytes < 1000000 ? "kB" : "MB");
    }
}
