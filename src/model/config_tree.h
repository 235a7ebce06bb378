/* config_tree.h - a model's config as written: a tree of fields with their places, and the table
 * that says which fields Triton's ModelConfig has, of what type and with what default.
 *
 * repo/ parses a file into nodes and checks them against the table (berth_config_check), then reads
 * the spec out of them; config_json.c writes the config endpoint's answer from both.
 * Nodes live in the spec's arena and never change after the check.
 */
#ifndef BERTH_CONFIG_TREE_H
#define BERTH_CONFIG_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/model.h"

enum berth_config_type {
    BERTH_CONFIG_STRING,
    BERTH_CONFIG_BOOL,
    BERTH_CONFIG_INT32,
    BERTH_CONFIG_INT64,
    BERTH_CONFIG_UINT32,
    BERTH_CONFIG_UINT64,
    BERTH_CONFIG_FLOAT,
    BERTH_CONFIG_DOUBLE,
    BERTH_CONFIG_ENUM,
    BERTH_CONFIG_MESSAGE
};

enum berth_config_label {
    BERTH_CONFIG_ONE,
    BERTH_CONFIG_MANY,
    BERTH_CONFIG_MAP /* many messages of {key, value}; an object in JSON */
};

struct berth_config_message;

struct berth_config_field {
    const char *name;
    enum berth_config_type type;
    enum berth_config_label label;
    const struct berth_config_message *message; /* of a MESSAGE; of a map, its entry */
    const char *const *values;                  /* of an ENUM: names by number, ended by NULL */
    uint8_t choice;     /* fields with the same number exclude each other; 0: none */
    const char *absent; /* JSON where a message is not there; NULL: left out */
};

struct berth_config_message {
    const char *name;
    const struct berth_config_field *fields; /* in the order of the JSON form */
    size_t field_count;
};

extern const struct berth_config_message berth_config_model;      /* ModelConfig */
extern const struct berth_config_message berth_config_dynamic;    /* ModelDynamicBatching */
extern const char *const berth_config_data_types[];               /* "TYPE_INVALID", ... */

/* What the parser saw. */
enum berth_config_token {
    BERTH_CONFIG_TOKEN_MESSAGE,
    BERTH_CONFIG_TOKEN_STRING, /* text is what the quotes held, escapes resolved */
    BERTH_CONFIG_TOKEN_NUMBER, /* text with its sign */
    BERTH_CONFIG_TOKEN_WORD    /* true, TYPE_FP32, -inf */
};

struct berth_config_node {
    const char *name;
    enum berth_config_token token;
    const char *text; /* NUL-terminated; may hold NULs where length says so */
    size_t length;
    uint32_t line; /* 0: from JSON, which keeps no places */
    uint32_t column;
    struct berth_config_node *children; /* of a message, in the order written */
    struct berth_config_node *last;
    struct berth_config_node *next;
    /* Set by the check. */
    const struct berth_config_field *field; /* NULL: not a field of Triton's */
    bool shadowed; /* of a map's entry: a later one has the same key and counts, as in protobuf */
    union {
        bool boolean;
        int64_t integer;       /* INT32, INT64, ENUM */
        uint64_t unsigned_integer;
        double real;
    } value;
};

void berth_config_append(struct berth_config_node *message, struct berth_config_node *child);

/* Who reads: named in errors and warnings. */
struct berth_config_source {
    const char *label; /* "models/x/config.pbtxt" */
    bool quiet;        /* no warnings */
    bool *warned;      /* set to true with a warning; NULL: nobody asks */
};

/* Types, values, repeated and exclusive fields. A field that ModelConfig does not have is a warning
 * with its line and column. INVALID with both otherwise; UNAVAILABLE: no memory. */
enum berth_code berth_config_check(struct berth_config_node *root,
                                   const struct berth_config_source *source,
                                   struct berth_err *err) BERTH_MUST_USE;
/* Warns of each parameter whose key is not in known (ended by NULL), unless the spec is quiet. */
void berth_config_check_parameters(const struct berth_model_spec *spec, const char *const *known);
/* Likewise, of a model that runs in steps, of what only gathers batches. */
void berth_config_check_steps(const struct berth_model_spec *spec);
/* INVALID: "label:line:column: text". */
enum berth_code berth_config_fail(const struct berth_config_node *node,
                                  const struct berth_config_source *source, struct berth_err *err,
                                  const char *format, ...) BERTH_PRINTF(4, 5);

/* A warning with the node's place, unless the source is quiet. */
void berth_config_note(const struct berth_config_node *node,
                       const struct berth_config_source *source, const char *format, ...)
    BERTH_PRINTF(3, 4);
/* The same once the file is read: of a spec, unless it is quiet. */
void berth_config_warn(const struct berth_model_spec *spec, const struct berth_config_node *node,
                       const char *format, ...) BERTH_PRINTF(3, 4);
/* Puts the node's place before what err says, where there is one (in a config from JSON, and for
 * node NULL, there is none). Returns code. */
enum berth_code berth_config_locate(const struct berth_model_spec *spec,
                                    const struct berth_config_node *node, enum berth_code code,
                                    struct berth_err *err);

/* The value of a parameter as written; NULL: the config does not have it. */
const struct berth_config_node *berth_config_parameter(const struct berth_model_spec *spec,
                                                       const char *key);
/* What names the engine in the config; NULL: nothing does. */
const struct berth_config_node *berth_config_engine(const struct berth_model_spec *spec);
/* The first child of that name, or NULL; message may be NULL. With berth_config_again the next. */
const struct berth_config_node *berth_config_find(const struct berth_config_node *message,
                                                  const char *name);
const struct berth_config_node *berth_config_again(const struct berth_config_node *node);
size_t berth_config_count(const struct berth_config_node *message, const char *name);
/* Of a checked tree: the value, or what an absent field means. */
const char *berth_config_string(const struct berth_config_node *message, const char *name);
int64_t berth_config_integer(const struct berth_config_node *message, const char *name);
uint64_t berth_config_unsigned(const struct berth_config_node *message, const char *name);
bool berth_config_boolean(const struct berth_config_node *message, const char *name);

/* The answer of GET /v2/models/NAME/config, in Triton's form and order: what was written, completed
 * by the spec. ran: KIND_CPU or KIND_GPU, where the model is loaded, which instance groups that
 * leave it open are shown with; KIND_AUTO: groups as they are written. berth_alloc'd and the
 * caller's; NULL: no memory. Any thread that may read the spec. */
char *berth_spec_config_json(const struct berth_model_spec *spec,
                             enum berth_instance_kind ran) BERTH_MUST_USE;
/* The config as it was read, without what describe completed: who reads and describes it gets the
 * same spec. Of a spec without a config, that of berth_spec_config_json. Likewise the caller's. */
char *berth_spec_config_given(const struct berth_model_spec *spec) BERTH_MUST_USE;

#endif
