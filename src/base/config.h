/* config.h - the option table: flags, environment, help and docs/options.md all come from it.
 *
 * A flag --http-body-bytes-max is also BERTH_HTTP_BODY_BYTES_MAX; a flag wins over the environment,
 * the environment over the default. Byte values take K, M, G; times take ns, us, ms, s, m, h.
 */
#ifndef BERTH_CONFIG_H
#define BERTH_CONFIG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* Which commands take an option. */
enum berth_command {
    BERTH_CMD_SERVE = 1,
    BERTH_CMD_TRANSCRIBE = 2,
    BERTH_CMD_MODELS = 4,
    BERTH_CMD_DOCTOR = 8,
    BERTH_CMD_BENCH = 16,
    BERTH_CMD_ALL = 31
};

/* X(kind, field, flag, commands, default, min, max, help)
 * kind: STRING (const char *), LIST (repeatable string), FLAG (bool), COUNT (uint64_t),
 *       BYTES (uint64_t), TIME (uint64_t ns), REAL (double). min and max bound the numbers. */
#define BERTH_SERVING (BERTH_CMD_SERVE | BERTH_CMD_TRANSCRIBE)
#define BERTH_OPTIONS(X)                                                                           \
    X(STRING, models, "models", BERTH_CMD_SERVE | BERTH_CMD_TRANSCRIBE | BERTH_CMD_MODELS,         \
      "models", 0, 0, "folder of models in Triton's layout: NAME/1/model.onnx, ...")               \
    X(STRING, model, "model", BERTH_CMD_TRANSCRIBE | BERTH_CMD_BENCH, "whisper-tiny.en", 0, 0,     \
      "model to use; berth models lists them")                                                     \
    X(STRING, format, "format", BERTH_CMD_TRANSCRIBE, "text", 0, 0,                                \
      "text, json, verbose_json, srt or vtt")                                                      \
    X(STRING, language, "language", BERTH_CMD_TRANSCRIBE, "", 0, 0, "language spoken, as en")      \
    X(STRING, prompt, "prompt", BERTH_CMD_TRANSCRIBE, "", 0, 0, "words to expect")                 \
    X(FLAG, words, "words", BERTH_CMD_TRANSCRIBE, "false", 0, 0, "with verbose_json: word times")  \
    X(STRING, server, "server", BERTH_CMD_TRANSCRIBE | BERTH_CMD_MODELS, "", 0, 0,                 \
      "URL of a running berth to ask; without it --models is read")                                \
    X(STRING, key, "key", BERTH_CMD_TRANSCRIBE | BERTH_CMD_MODELS | BERTH_CMD_BENCH, "", 0, 0,     \
      "API key for the server")                                                                    \
    X(STRING, tls_ca, "tls-ca", BERTH_CMD_TRANSCRIBE | BERTH_CMD_MODELS, "", 0, 0,                 \
      "PEM file of certificates to trust at an https:// server, instead of the system's")          \
    X(LIST, listen, "listen", BERTH_CMD_SERVE, "127.0.0.1:8000", 0, 0,                             \
      "ADDR:PORT to serve on; may be given several times; port 0 takes a free one")                \
    X(FLAG, triton_ports, "triton-ports", BERTH_CMD_SERVE, "false", 0, 0,                          \
      "listen on port 8002 of the first address too, where Triton has its metrics")                \
    X(STRING, model_control_mode, "model-control-mode", BERTH_CMD_SERVE, "demand", 0, 0,           \
      "none (load all at start), poll, explicit (by API), demand (load on first request)")         \
    X(LIST, load_model, "load-model", BERTH_CMD_SERVE, "", 0, 0,                                   \
      "with explicit or demand: load this model at start; may be given several times")             \
    X(TIME, repository_poll, "repository-poll", BERTH_CMD_SERVE, "15s", 1e6, 86400e9,              \
      "with poll: how often the repository is looked at")                                          \
    X(STRING, keys_file, "keys-file", BERTH_CMD_SERVE, "", 0, 0,                                   \
      "file of API keys, one a line as sha256:HEX [name]; without it no key is asked for")         \
    X(STRING, errors, "errors", BERTH_CMD_SERVE, "triton", 0, 0,                                   \
      "KServe status codes: triton (as Triton answers) or typed (the honest ones)")                \
    X(STRING, tls_cert, "tls-cert", BERTH_CMD_SERVE, "", 0, 0,                                     \
      "PEM certificate chain for TLS; needs --tls-key")                                            \
    X(STRING, tls_key, "tls-key", BERTH_CMD_SERVE, "", 0, 0, "PEM private key of --tls-cert")      \
    X(COUNT, net_threads, "net-threads", BERTH_CMD_SERVE, "0", 0, 256,                             \
      "threads that serve connections; 0: one for each two cores, at most 8")                      \
    X(COUNT, connections_max, "connections-max", BERTH_CMD_SERVE, "20000", 1, 1000000,             \
      "open connections; more are closed at once")                                                 \
    X(BYTES, http_body_bytes_max, "http-body-bytes-max", BERTH_CMD_SERVE, "512M", 1, 0x1p40,       \
      "largest request body; larger ones get 413 before their body is read")                       \
    X(BYTES, json_bytes_max, "json-bytes-max", BERTH_CMD_SERVE, "16M", 1024, 0x1p30,               \
      "largest JSON of a KServe request or answer; larger tensors go by the binary extension")     \
    X(BYTES, http_head_bytes_max, "http-head-bytes-max", BERTH_CMD_SERVE, "32K", 1024, 10 << 20,   \
      "largest request head")                                                                      \
    X(TIME, http_head_timeout, "http-head-timeout", BERTH_CMD_SERVE, "10s", 1e6, 3600e9,           \
      "how long a request's head may take to arrive")                                              \
    X(TIME, http_body_timeout, "http-body-timeout", BERTH_CMD_SERVE, "30s", 1e6, 3600e9,           \
      "how long a body may stand still; it must also keep up --http-body-rate-min")                \
    X(BYTES, http_body_rate_min, "http-body-rate-min", BERTH_CMD_SERVE, "1K", 0, 0x1p40,           \
      "slowest body on average after the first 30 s, in bytes a second; 0: no limit")              \
    X(TIME, http_write_timeout, "http-write-timeout", BERTH_CMD_SERVE, "30s", 1e6, 3600e9,         \
      "how long a client may take no byte of its answer")                                          \
    X(TIME, http_idle_timeout, "http-idle-timeout", BERTH_CMD_SERVE, "75s", 1e6, 86400e9,          \
      "how long a connection may be silent between requests")                                      \
    X(TIME, http_admit_timeout, "http-admit-timeout", BERTH_CMD_SERVE, "5s", 0, 3600e9,            \
      "how long a body waits for room in --bytes-budget before it gets 503")                       \
    X(BYTES, bytes_budget, "bytes-budget", BERTH_SERVING, "2G", 1 << 20, 0x1p50,                   \
      "memory for bodies, audio and tensors of all requests together")                             \
    X(COUNT, queue_max, "queue-max", BERTH_SERVING, "4096", 1, 1e9,                                \
      "requests waiting in the server, all models together; more get 429")                         \
    X(COUNT, model_queue_max, "model-queue-max", BERTH_SERVING, "256", 1, 1e9,                     \
      "requests waiting for one model whose config sets no max_queue_size; more get 429")          \
    X(TIME, request_timeout, "request-timeout", BERTH_SERVING, "600s", 1e6, 86400e9,               \
      "deadline of a request that names none")                                                     \
    X(TIME, cold_wait, "cold-wait", BERTH_CMD_SERVE, "60s", 0, 86400e9,                            \
      "how long a request may wait for its model to load before it gets 503 with Retry-After")     \
    X(TIME, drain_delay, "drain-delay", BERTH_CMD_SERVE, "0s", 0, 3600e9,                          \
      "after SIGTERM: how long to go on serving while readiness is off")                           \
    X(TIME, drain_timeout, "drain-timeout", BERTH_CMD_SERVE, "30s", 0, 86400e9,                    \
      "after that: how long running requests may take to end")                                     \
    X(COUNT, cpu_workers, "cpu-workers", BERTH_SERVING, "0", 0, 1024,                              \
      "batches run at a time on the CPU; 0: one for each core")                                    \
    X(COUNT, cpu_threads, "cpu-threads", BERTH_SERVING | BERTH_CMD_BENCH, "0", 0, 1024,            \
      "threads of the one pool that all ONNX operators share, and of each Parakeet instance's "    \
      "own; 0: as --cpu-workers, but 1 with one or two of them")                                   \
    X(STRING, cpu_worker, "cpu-worker", BERTH_CMD_SERVE, "thread", 0, 0,                           \
      "where models run on the CPU: thread (of the server) or process (one of its own; a crash "   \
      "in it costs what it runs, not the server)")                                                 \
    X(STRING, cuda_worker, "cuda-worker", BERTH_CMD_SERVE, "auto", 0, 0,                           \
      "path of berth-cuda, which runs models on a GPU; auto: the one beside berth, where it sees " \
      "a GPU; none: no GPU")                                                                       \
    X(COUNT, load_threads, "load-threads", BERTH_SERVING, "2", 1, 64, "models loaded at a time")   \
    X(BYTES, device_bytes_max, "device-bytes-max", BERTH_SERVING, "0", 0, 0x1p50,                  \
      "memory the models loaded on the CPU may hold together; 0: three quarters of the machine's") \
    X(TIME, load_backoff, "load-backoff", BERTH_CMD_SERVE, "10s", 0, 86400e9,                      \
      "how long a model that failed to load is refused before it is tried again")                  \
    X(TIME, load_timeout, "load-timeout", BERTH_CMD_SERVE, "300s", 1e9, 86400e9,                   \
      "how long a load in a worker process may stand still (its thread gets no CPU time) before "  \
      "the process is replaced; no load may take twelve times that")                               \
    X(COUNT, media_processes, "media-processes", BERTH_SERVING, "2", 1, 256, "decode processes")   \
    X(FLAG, media_in_process, "media-in-process", BERTH_SERVING, "false", 0, 0,                    \
      "decode in a thread of the server, without the sandbox; for debugging only")                 \
    X(TIME, media_timeout, "media-timeout", BERTH_SERVING, "60s", 1e6, 3600e9,                     \
      "longest decoding of one file")                                                              \
    X(BYTES, media_memory_max, "media-memory-max", BERTH_SERVING, "1G", 1 << 26, 0x1p40,           \
      "memory of one decode process")                                                              \
    X(TIME, audio_max, "audio-max", BERTH_SERVING, "2h", 1e6, 360000e9,                            \
      "longest audio; longer ones get 413")                                                        \
    X(STRING, url, "url", BERTH_CMD_BENCH, "http://127.0.0.1:8000", 0, 0, "server to load")        \
    X(STRING, input, "input", BERTH_CMD_BENCH, "", 0, 0,                                           \
      "with infer: the tensor to send, NAME:TYPE:DIMS, as INPUT0:FP32:1,16")                       \
    X(REAL, rate, "rate", BERTH_CMD_BENCH, "0", 0, 1e9,                                            \
      "requests a second, Poisson arrivals; 0: closed loop of --concurrency")                      \
    X(COUNT, concurrency, "concurrency", BERTH_CMD_BENCH, "8", 1, 100000,                          \
      "connections; with --rate the most requests under way at a time")                            \
    X(TIME, duration, "duration", BERTH_CMD_BENCH, "10s", 1e6, 86400e9, "how long to load")        \
    X(TIME, warmup, "warmup", BERTH_CMD_BENCH, "1s", 0, 3600e9, "answers not counted at first")    \
    X(COUNT, pid, "pid", BERTH_CMD_BENCH, "0", 0, 4e6,                                             \
      "process of the server: its CPU time, with its children's, is printed")                      \
    X(COUNT, seed, "seed", BERTH_CMD_BENCH, "1", 0, 1e15,                                          \
      "of the arrival times; with parakeet: of the clips and the random weights")                  \
    X(STRING, random, "random", BERTH_CMD_BENCH, "", 0, 0,                                         \
      "with parakeet: instead of --model, random weights in the shape of 0.6b or nano")            \
    X(STRING, keep, "keep", BERTH_CMD_BENCH, "", 0, 0,                                             \
      "with --random: folder to write that model to, and to leave there")                          \
    X(STRING, device, "device", BERTH_CMD_BENCH, "cpu:0", 0, 0,                                    \
      "with parakeet: cpu:0, or with berth-cuda cuda:0")                                           \
    X(STRING, precision, "precision", BERTH_CMD_BENCH, "fp16", 0, 0,                               \
      "with parakeet on a GPU: fp16, or fp8, in which most of its matrices are e4m3")              \
    X(REAL, clip_seconds, "seconds", BERTH_CMD_BENCH, "10", 0.02, 600,                             \
      "with parakeet and no files: length of the clips")                                           \
    X(STRING, rows, "rows", BERTH_CMD_BENCH, "1,16,64", 0, 0,                                      \
      "with parakeet: clips at a time, one measurement each")                                      \
    X(COUNT, runs, "runs", BERTH_CMD_BENCH, "50", 1, 10000,                                        \
      "with parakeet: timed runs of each measurement")                                             \
    X(STRING, stages, "stages", BERTH_CMD_BENCH, "encoder,encoded,tokens,products", 0, 0,          \
      "with parakeet: what to time: encoder (features to encoder output), encoded (PCM to that), " \
      "tokens (PCM to tokens), products (the encoder's matrix products alone)")                    \
    X(STRING, dump, "dump", BERTH_CMD_BENCH, "", 0, 0,                                             \
      "with parakeet: folder for what went into each bucket and what came out")                    \
    X(STRING, log_level, "log-level", BERTH_CMD_ALL, "info", 0, 0, "error, warn, info or debug")   \
    X(FLAG, json, "json", BERTH_CMD_MODELS | BERTH_CMD_DOCTOR | BERTH_CMD_BENCH, "false", 0, 0,    \
      "print JSON")

/* Where one of an option's commands has another default, or its help says something else.
 * X(flag, command, default, help) */
#define BERTH_OPTIONS_OF_ONE(X)                                                                    \
    X("model", BERTH_CMD_BENCH, "",                                                                \
      "with infer and transcribe: name of a model of the server (transcribe: whisper-tiny.en if "  \
      "not given); with parakeet: a model's folder")                                               \
    X("server", BERTH_CMD_TRANSCRIBE, "",                                                          \
      "URL of a running berth that is to do it; without it this command runs the model itself")    \
    X("cpu-workers", BERTH_CMD_TRANSCRIBE, "0",                                                    \
      "batches run at a time on the CPU; 0: one, or with --cpu-threads one for each core")         \
    X("cpu-threads", BERTH_CMD_TRANSCRIBE, "0",                                                    \
      "threads of the one pool that all ONNX operators share, and of each Parakeet instance's "    \
      "own; 0: all cores, or with --cpu-workers as many as those, but 1 with one or two of them")  \
    X("cpu-threads", BERTH_CMD_BENCH, "0", "with parakeet on the CPU: its threads; 0: all cores")  \
    /* What goes wrong is told by the command, of the file that it concerns. */                    \
    X("log-level", BERTH_CMD_TRANSCRIBE, "error", "error, warn, info or debug")

struct berth_strings {
    const char **items; /* into argv, environ, static text or the config's own memory */
    size_t count;
};

/* One field for each option; made by berth_config_parse, then read-only for the process' life. */
struct berth_config {
#define BERTH_FIELD_STRING const char *
#define BERTH_FIELD_LIST struct berth_strings
#define BERTH_FIELD_FLAG bool
#define BERTH_FIELD_COUNT uint64_t
#define BERTH_FIELD_BYTES uint64_t
#define BERTH_FIELD_TIME uint64_t
#define BERTH_FIELD_REAL double
#define BERTH_OPTION_FIELD(kind, field, ...) BERTH_FIELD_##kind field;
    BERTH_OPTIONS(BERTH_OPTION_FIELD)
#undef BERTH_OPTION_FIELD
    struct berth_strings arguments; /* what is not an option, in order */
};

/* Reads defaults, then the environment, then argv (after the command's name). An unknown flag or a
 * bad value is INVALID with a message that names it, what it takes, and the nearest known flag.
 * --help is not handled here. */
enum berth_code berth_config_parse(struct berth_config *config, enum berth_command command,
                                   int argc, char **argv, struct berth_err *err) BERTH_MUST_USE;
void berth_config_finish(struct berth_config *config);
/* The options of one command, aligned, for --help. */
void berth_config_print_help(FILE *out, enum berth_command command);
/* docs/options.md: every option, its commands, environment name, default, bounds and help. */
void berth_config_print_markdown(FILE *out);

#endif
