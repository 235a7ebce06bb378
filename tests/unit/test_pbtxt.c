/* Tests of the text format's reader, the table of ModelConfig, and what both make of a config. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/config_tree.h"
#include "repo/model_config.h"
#include "repo/pbtxt.h"

static struct berth_arena arena;

static enum berth_code parse(const char *text, size_t length, struct berth_config_node **root,
                             struct berth_err *err)
{
    struct berth_pbtxt source = {.text = text, .length = length, .label = "c.pbtxt"};
    return berth_pbtxt_parse(&source, &arena, root, err);
}

/* A tree as a line: name=token:text(children). */
static void print(struct berth_buf *out, const struct berth_config_node *message)
{
    for (const struct berth_config_node *node = message->children; node != NULL;
         node = node->next) {
        berth_buf_printf(out, "%s%s", node == message->children ? "" : " ", node->name);
        if (node->token == BERTH_CONFIG_TOKEN_MESSAGE) {
            berth_buf_puts(out, "(");
            print(out, node);
            berth_buf_puts(out, ")");
        } else {
            berth_buf_printf(out, "=%s", node->token == BERTH_CONFIG_TOKEN_STRING ? "'" : "");
            berth_buf_append(out, node->text, node->length);
        }
    }
}

static void reads_the_text_format(void **state)
{
    static const struct {
        const char *text;
        const char *tree;
    } cases[] = {
        {"", ""},
        {"# only a comment", ""},
        {"\xEF\xBB\xBF" "a:1", "a=1"},
        {"a: 1", "a=1"},
        {"a:1 b:2,c:3;d:4", "a=1 b=2 c=3 d=4"},
        {"a: -  5", "a=-5"},
        {"a: 0x1F b: -017 c: 1.5e+3 d: .5f e: 2e-3F", "a=0x1F b=-017 c=1.5e+3 d=.5f e=2e-3F"},
        {"a: inf b: -nan c: TYPE_FP32 d: true", "a=inf b=-nan c=TYPE_FP32 d=true"},
        {"a { b: 1 }", "a(b=1)"},
        {"a: { b: 1 }", "a(b=1)"},
        {"a < b: 1 >", "a(b=1)"},
        {"a: < b { } >", "a(b())"},
        {"a: [1, 2,3]", "a=1 a=2 a=3"},
        {"a: []", ""},
        {"a []", ""},
        {"a [ { b: 1 }, < b: 2 > ]", "a(b=1) a(b=2)"},
        {"a: 'x' b: \"y\"", "a='x b='y"},
        {"a: 'x' \"y\"\n # between\n 'z'", "a='xyz"},
        {"a: '\\\\ \\' \\\" \\?'", "a='\\ ' \" ?"},
        {"a: '\\a\\b\\f\\n\\r\\t\\v'", "a='\a\b\f\n\r\t\v"},
        {"a: '\\101\\x42\\X4\\7'", "a='AB\x04\x07"},
        {"a: '\\u20AC\\U0001F6A2'", "a='\xE2\x82\xAC\xF0\x9F\x9A\xA2"},
        {"a: \"it's\" b: 'say \"so\"'", "a='it's b='say \"so\""},
        {"[a.b/c] { d: 1 } e: 2", "[a.b/c](d=1) e=2"},
        {"a\n:\n1", "a=1"},
        {"a:1\tb:2\r\nc:3\v\f", "a=1 b=2 c=3"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_buf out = {0};
        struct berth_config_node *root = NULL;
        if (parse(cases[i].text, strlen(cases[i].text), &root, &err) != BERTH_OK) {
            fail_msg("case %zu: %s", i, err.msg);
        }
        print(&out, root);
        assert_string_equal(berth_buf_text(&out), cases[i].tree);
        berth_buf_finish(&out);
    }
}

static void says_where_the_text_is_wrong(void **state)
{
    static const struct {
        const char *text;
        size_t length; /* 0: strlen */
        const char *message;
    } cases[] = {
        {"a", 0, "c.pbtxt:1:2: expected ':' before the value"},
        {"a 1", 0, "c.pbtxt:1:3: expected ':' before the value"},
        {"a [1]", 0, "c.pbtxt:1:4: expected ':' before the value"},
        {"a:", 0, "c.pbtxt:1:3: expected a value"},
        {"a: -", 0, "c.pbtxt:1:5: expected a value"},
        {"a: %", 0, "c.pbtxt:1:4: expected a value"},
        {"1: a", 0, "c.pbtxt:1:1: expected a field's name"},
        {"a: 1\n\n  }", 0, "c.pbtxt:3:3: expected a field's name"},
        {"a: 1\n  b { c: 1", 0, "c.pbtxt:2:5: 'b' is not closed by '}'"},
        {"a { b: 1 >", 0, "c.pbtxt:1:10: expected a field's name"},
        {"a: [1 2]", 0, "c.pbtxt:1:7: expected ',' or ']' in a list"},
        {"a: [1,", 0, "c.pbtxt:1:7: expected a value"},
        {"a: [,]", 0, "c.pbtxt:1:5: expected a value"},
        {"a: 'x", 0, "c.pbtxt:1:6: a string has no closing quote"},
        {"a: 'x\ny'", 0, "c.pbtxt:1:6: a string ends with its line"},
        {"a: '\\q'", 0, "c.pbtxt:1:6: an unknown escape"},
        {"a: '\\x'", 0, "c.pbtxt:1:7: an escape in a string lacks digits"},
        {"a: '\\u12'", 0, "lacks digits"},
        {"a: '\\uD800'", 0, "is no character"},
        {"a: '\\U00110000'", 0, "is no character"},
        {"a: '\\400'", 0, "past \\377"},
        {"a: '\\", 0, "no closing quote"},
        {"[a", 0, "not closed by ']'"},
        {"[a%]: 1", 0, "a name in brackets"},
        {"a: 1\0b: 2", 9, "c.pbtxt:1:5: expected a field's name"},
        {"\xFF: 1", 0, "c.pbtxt:1:1: expected a field's name"},
        {",", 0, "c.pbtxt:1:1: expected a field's name"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_config_node *root = NULL;
        size_t length = cases[i].length != 0 ? cases[i].length : strlen(cases[i].text);
        assert_int_equal(parse(cases[i].text, length, &root, &err), BERTH_INVALID);
        if (strstr(err.msg, cases[i].message) == NULL) {
            fail_msg("case %zu: '%s' lacks '%s'", i, err.msg, cases[i].message);
        }
    }
}

static void keeps_to_its_limits(void **state)
{
    (void)state;
    struct berth_err err = {0};
    struct berth_config_node *root = NULL;
    for (int over = 0; over < 2; over++) { /* depth */
        struct berth_buf text = {0};
        for (int i = 0; i < BERTH_PBTXT_DEPTH_MAX + over; i++) {
            berth_buf_puts(&text, "a{");
        }
        for (int i = 0; i < BERTH_PBTXT_DEPTH_MAX + over; i++) {
            berth_buf_puts(&text, "}");
        }
        assert_int_equal(parse(text.bytes, text.length, &root, &err),
                         over == 0 ? BERTH_OK : BERTH_INVALID);
        berth_buf_finish(&text);
    }
    for (int over = 0; over < 2; over++) { /* nodes, of which the root is one */
        struct berth_buf text = {0};
        for (int i = 0; i < BERTH_PBTXT_NODES_MAX - 1 + over; i++) {
            berth_buf_puts(&text, "a:1\n");
        }
        assert_int_equal(parse(text.bytes, text.length, &root, &err),
                         over == 0 ? BERTH_OK : BERTH_INVALID);
        berth_buf_finish(&text);
    }
    char *large = berth_alloc(BERTH_PBTXT_BYTES_MAX + 1); /* bytes */
    assert_non_null(large);
    memset(large, ' ', BERTH_PBTXT_BYTES_MAX + 1);
    assert_int_equal(parse(large, BERTH_PBTXT_BYTES_MAX, &root, &err), BERTH_OK);
    assert_int_equal(parse(large, BERTH_PBTXT_BYTES_MAX + 1, &root, &err), BERTH_TOO_LARGE);
    berth_free(large);
}

/* --- the table --- */

static enum berth_code read_config(const char *text, bool json, struct berth_model_spec **out,
                                   struct berth_version_policy *policy, struct berth_err *err)
{
    struct berth_model_config config = {
        .text = text, .length = strlen(text), .label = "m/config.pbtxt", .json = json};
    struct berth_model_spec *spec = berth_spec_create();
    assert_non_null(spec);
    spec->name = "m";
    spec->version = 1;
    enum berth_code code = berth_model_config_read(&config, spec, policy, err);
    if (code != BERTH_OK) {
        berth_spec_release(spec);
        return code;
    }
    *out = spec;
    return BERTH_OK;
}

static void says_what_a_config_has_wrong(void **state)
{
    static const struct {
        const char *text;
        enum berth_code code;
        const char *message;
    } cases[] = {
        {"name: m", BERTH_INVALID, "m/config.pbtxt:1:1: 'name' must be a string in quotes"},
        {"name: 'other'", BERTH_INVALID, ":1:1: 'other' is not the name of its folder"},
        {"name: 'm' name: 'm'", BERTH_INVALID, ":1:11: 'name' is given a second time"},
        {"\n  max_batch_size: 'x'", BERTH_INVALID, ":2:3: 'max_batch_size' must be a whole number"},
        {"max_batch_size: 1.5", BERTH_INVALID, "must be a whole number"},
        {"max_batch_size: 09", BERTH_INVALID, "must be a whole number"},
        {"max_batch_size: 2147483648", BERTH_INVALID,
         "'max_batch_size' is 2147483648; it must be a whole number from -2147483648 to "
         "2147483647"},
        {"max_batch_size: -2147483649", BERTH_INVALID, "'max_batch_size' is -2147483649; it must"},
        {"max_batch_size: 99999999999999999999", BERTH_INVALID, "must be a whole number"},
        {"max_batch_size: -1", BERTH_INVALID, ":1:1: 'max_batch_size' is -1; it takes 0 to 65536"},
        {"max_batch_size { }", BERTH_INVALID, "must be a whole number"},
        {"input: 5", BERTH_INVALID, "'input' must be fields in braces"},
        {"input { dims: 1 data_type: TYPE_FP32 }", BERTH_INVALID, "'input' has no name"},
        {"input { name: 'x' dims: 1 }", BERTH_INVALID, "input 'x' has no data_type"},
        {"input { name: 'x' data_type: TYPE_FP32 }", BERTH_INVALID, "input 'x' has no dims"},
        {"input { name: 'x' data_type: TYPE_FP33 dims: 1 }", BERTH_INVALID,
         ":1:19: 'data_type' cannot be 'TYPE_FP33'"},
        {"input { name: 'x' data_type: 99 dims: 1 }", BERTH_INVALID, "cannot be '99'"},
        {"input { name: 'x' data_type: 'TYPE_FP32' dims: 1 }", BERTH_INVALID, "must be a name"},
        {"input { name: 'x' data_type: TYPE_FP32 dims: [1,\n 0] }", BERTH_INVALID,
         ":2:2: a dimension is a number from 1 on, or -1"},
        {"input { name: 'x' data_type: TYPE_FP32 dims: -2 }", BERTH_INVALID, "a dimension"},
        {"input { name: 'x' data_type: TYPE_FP32 dims: [1,1,1,1,1,1,1,1,1] }", BERTH_INVALID,
         "more than 8 dimensions"},
        {"max_batch_size: 2 input { name: 'x' data_type: TYPE_FP32 dims: [1,1,1,1,1,1,1,1] }",
         BERTH_INVALID, "the batch included"},
        {"input { name: 'x' data_type: TYPE_FP32 dims: 1 }\n"
         "input { name: 'x' data_type: TYPE_FP32 dims: 1 }",
         BERTH_INVALID, ":2:1: the input 'x' is there twice"},
        {"input { name: 'x' optional: 2 }", BERTH_INVALID, "'optional' must be true or false"},
        {"dynamic_batching { } sequence_batching { }", BERTH_INVALID,
         ":1:22: 'sequence_batching' excludes 'dynamic_batching'"},
        {"version_policy { latest { } all { } }", BERTH_INVALID, "'all' excludes 'latest'"},
        {"version_policy { specific { versions: 0 } }", BERTH_INVALID, "a version is a number"},
        {"version_policy { specific { } }", BERTH_INVALID, "must list 1 to"},
        {"sequence_batching { }", BERTH_UNSUPPORTED,
         ":1:1: it uses sequence_batching, which is not supported"},
        {"platform: 'ensemble' ensemble_scheduling { step { model_name: 'a' model_version: -1 } }",
         BERTH_UNSUPPORTED, ":1:22: it is an ensemble (ensemble_scheduling)"},
        {"name: 'm' platform: 'ensemble'", BERTH_UNSUPPORTED, ":1:11: it is an ensemble"},
        {"max_batch_size: 4 dynamic_batching { preferred_batch_size: [2, 8] }", BERTH_INVALID,
         ":1:64: 'preferred_batch_size' is 8; it takes 1 to max_batch_size (4)"},
        {"dynamic_batching { priority_levels: 2 }", BERTH_INVALID,
         ":1:20: 'default_priority_level' is 0; it takes 1 to priority_levels (2)"},
        {"dynamic_batching { priority_levels: 65 default_priority_level: 1 }", BERTH_INVALID,
         "'priority_levels' is 65; it takes 0 to 64"},
        {"dynamic_batching { priority_levels: 1 default_priority_level: 1\n"
         "priority_queue_policy { key: 2 value { } } }",
         BERTH_INVALID, ":2:1: a policy's key is 2; it takes 1 to"},
        {"dynamic_batching { max_queue_delay_microseconds: -1 }", BERTH_INVALID,
         "is -1; it must be a whole number from 0 to 18446744073709551615"},
        {"instance_group { count: -1 }", BERTH_INVALID, "'count' is -1; it takes 0 to 64"},
        {"instance_group { kind: KIND_CPU gpus: 0 }", BERTH_INVALID, "'gpus' is for KIND_GPU"},
        {"default_model_filename: '../../etc/passwd'", BERTH_INVALID, "inside the model's folder"},
        {"default_model_filename: '/etc/passwd'", BERTH_INVALID, "inside the model's folder"},
        {"default_model_filename: 'a/..'", BERTH_INVALID, "inside the model's folder"},
        {"output { name: 'y' data_type: TYPE_FP32 dims: 1 label_filename: '../x' }", BERTH_INVALID,
         "inside the model's folder"},
        {"max_batch_size: 2 model_warmup { batch_size: 3 }", BERTH_INVALID,
         ":1:34: 'batch_size' is 3; it takes 1 to 2"},
        {"model_warmup { batch_size: 65537 }", BERTH_INVALID, "is 65537; it takes 1 to 65536"},
        {"model_warmup { count: 10001 }", BERTH_INVALID,
         ":1:16: 'count' is 10001; it takes 1 to 10000"},
        {"model_warmup { inputs { key: 'x' value { dims: 1 } } }", BERTH_INVALID,
         "the warm-up's input 'x' has no data_type"},
        {"model_warmup { inputs { key: 'x' value { data_type: TYPE_FP32 dims: -1 } } }",
         BERTH_INVALID, "a warm-up's dimension must be known"},
        {"model_warmup { inputs { key: 'x' value { data_type: TYPE_FP32 zero_data: true "
         "input_data_file: 'a' } } }",
         BERTH_INVALID, "'input_data_file' excludes 'zero_data'"},
        {"name: '\\377'", BERTH_INVALID, "'name' is not valid UTF-8 text"},
        {"name: 'm\\0'", BERTH_INVALID, "'name' is not valid UTF-8 text"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL;
        enum berth_code code = read_config(cases[i].text, false, &spec, &policy, &err);
        if (code != cases[i].code || strstr(err.msg, cases[i].message) == NULL) {
            fail_msg("case %zu: %s '%s' lacks '%s'", i, berth_code_name(code), err.msg,
                     cases[i].message);
        }
    }
}

/* Triton has no such limits: the most there can be is taken. */
static void takes_the_most_there_can_be(void **state)
{
    static const struct {
        const char *text;
        uint64_t batch_size, cpu, gpu; /* instances; 0: the config says none */
    } cases[] = {
        {"max_batch_size: 65536 instance_group { count: 64 }", 65536, 64, 64},
        {"max_batch_size: 65537 instance_group { count: 65 }", 65536, 64, 64},
        {"max_batch_size: 2147483647 instance_group { count: 2147483647 }", 65536, 64, 64},
        {"instance_group [ { count: 60 kind: KIND_CPU }, { count: 5 kind: KIND_CPU },"
         " { count: 1 kind: KIND_CPU }, { count: 64 kind: KIND_GPU }, { count: 1 } ]", 0, 64, 64},
        {"instance_group [ { count: 63 kind: KIND_GPU }, { count: 2 }, { count: 9 kind: KIND_CPU },"
         " { count: 99 kind: KIND_MODEL } ]", 0, 10, 64},
        {"instance_group { count: 0 }", 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL;
        assert_int_equal(read_config(cases[i].text, false, &spec, &policy, &err), BERTH_OK);
        assert_int_equal(spec->batch_size_max, cases[i].batch_size);
        assert_int_equal(berth_spec_instances(spec, false, 0), cases[i].cpu);
        assert_int_equal(berth_spec_instances(spec, true, 0), cases[i].gpu);
        uint64_t sums[2] = {0, 0}; /* as they stand, not as berth_spec_instances bounds them */
        for (size_t g = 0; g < spec->group_count; g++) {
            enum berth_instance_kind kind = spec->groups[g].kind;
            uint64_t count = kind == BERTH_KIND_MODEL ? 0 : spec->groups[g].count;
            sums[0] += kind == BERTH_KIND_GPU ? 0 : count;
            sums[1] += kind == BERTH_KIND_CPU ? 0 : count;
        }
        assert_int_equal(sums[0], cases[i].cpu);
        assert_int_equal(sums[1], cases[i].gpu);
        berth_spec_release(spec);
    }
}

/* What is found wrong after the reading gets its place; what has none stays as it is. */
static void locates_what_is_found_later(void **state)
{
    static const struct {
        const char *text;
        bool json;
        const char *key, *message;
    } cases[] = {
        {"parameters { key: 'k'\n  value { string_value: 'v' } }", false, "k",
         "m/config.pbtxt:2:11: why"},
        {"parameters { key: 'k' }", false, "k", "m/config.pbtxt:1:1: why"},
        {"parameters { key: 'k' }\nparameters { key: 'k' }", false, "k", "m/config.pbtxt:2:1: why"},
        {"parameters { key: 'k' }", false, "l", "why"},
        {"{\"parameters\": {\"k\": {\"string_value\": \"v\"}}}", true, "k", "why"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL;
        assert_int_equal(read_config(cases[i].text, cases[i].json, &spec, &policy, &err), BERTH_OK);
        (void)berth_fail_field(&err, BERTH_UNSUPPORTED, "audio", "why");
        const struct berth_config_node *node = berth_config_parameter(spec, cases[i].key);
        assert_int_equal(berth_config_locate(spec, node, BERTH_UNSUPPORTED, &err),
                         BERTH_UNSUPPORTED);
        assert_string_equal(err.msg, cases[i].message);
        assert_string_equal(err.field, "audio");
        assert_int_equal(err.code, BERTH_UNSUPPORTED);
        assert_int_equal(berth_config_locate(spec, node, BERTH_INVALID, NULL), BERTH_INVALID);
        assert_int_equal(berth_config_locate(spec, node, BERTH_OK, &err), BERTH_OK);
        assert_string_equal(err.msg, cases[i].message);
        berth_spec_release(spec);
    }
}

static const char whole_config[] =
    "name: \"m\" platform: \"onnxruntime_onnx\" backend: \"onnxruntime\"\n"
    "version_policy: { specific: { versions: [1, 3] } }\n"
    "max_batch_size: 8\n"
    "input [ { name: \"x\" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, 5 ]\n"
    "  reshape { shape: [ -1, 15 ] } allow_ragged_batch: true optional: true },\n"
    "  { name: \"s\" data_type: TYPE_STRING dims: 1 reshape { shape: [ ] } } ]\n"
    "output < name: \"y\" data_type: TYPE_INT64 dims: [ 10 ] label_filename: \"labels.txt\" >\n"
    "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100\n"
    "  preserve_ordering: true priority_levels: 2 default_priority_level: 2\n"
    "  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000000000\n"
    "    allow_timeout_override: true max_queue_size: 9 }\n"
    "  priority_queue_policy [ { key: 1 value { timeout_action: REJECT max_queue_size: 3 } } ] }\n"
    "instance_group [ { count: 2 kind: KIND_CPU }, { name: \"g\" count: 1 kind: KIND_GPU\n"
    "  gpus: [ 0, 1 ] } ]\n"
    "default_model_filename: \"net.onnx\"\n"
    "parameters { key: \"a\" value { string_value: \"1\" } }\n"
    "parameters { key: \"b\" value { string_value: \"2\" } }\n"
    "parameters { key: \"a\" value { string_value: \"3\" } }\n"
    "metric_tags { key: \"team\" value: \"ocr\" }\n"
    "optimization { execution_accelerators {\n"
    "  cpu_execution_accelerator : [ { name : \"openvino\" } ] }\n"
    "  graph { level: -1 } }\n"
    "model_warmup [ { name: \"w\" batch_size: 2 count: 3 inputs { key: \"x\" value {\n"
    "  data_type: TYPE_FP32 dims: [3, 4, 5] random_data: true } } } ]\n"
    "response_cache { enable: true }\n"
    "model_transaction_policy { decoupled: false }\n"
    "unheard_of { anything: [ 1, 2 ] }\n";

static void check_whole(const struct berth_model_spec *spec,
                        const struct berth_version_policy *policy)
{
    assert_string_equal(spec->engine, "onnx");
    assert_int_equal(policy->kind, BERTH_VERSIONS_SPECIFIC);
    assert_int_equal(policy->specific_count, 2);
    assert_int_equal(policy->specific[1], 3);
    assert_int_equal(spec->batch_size_max, 8);
    assert_true(spec->batch_size_set);
    assert_int_equal(spec->input_count, 2);
    assert_int_equal(spec->inputs[0].rank, 3);
    assert_int_equal(spec->inputs[0].dims[1], -1);
    assert_true(spec->inputs[0].has_reshape);
    assert_int_equal(spec->inputs[0].reshape_rank, 2);
    assert_true(spec->inputs[0].optional);
    assert_true(spec->inputs[0].allow_ragged_batch);
    assert_string_equal(spec->inputs[0].format, "FORMAT_NCHW");
    assert_int_equal(spec->inputs[1].dtype, BERTH_DTYPE_BYTES);
    assert_true(spec->inputs[1].has_reshape);
    assert_int_equal(spec->inputs[1].reshape_rank, 0);
    assert_string_equal(spec->outputs[0].label_filename, "labels.txt");
    assert_int_equal(spec->batching, BERTH_BATCHING_DYNAMIC);
    assert_int_equal(spec->dynamic.preferred_count, 2);
    assert_int_equal(spec->dynamic.preferred[0], 4);
    assert_int_equal(spec->dynamic.delay_us_max, 100);
    assert_true(spec->dynamic.preserve_ordering);
    assert_int_equal(spec->dynamic.priority_level_default, 2);
    assert_int_equal(spec->dynamic.policies[0].count_max, 3);
    assert_int_equal(spec->dynamic.policies[0].timeout_action, BERTH_TIMEOUT_REJECT);
    assert_int_equal(spec->dynamic.policies[1].count_max, 9);
    assert_int_equal(spec->dynamic.policies[1].timeout_us_default, 5000000000);
    assert_int_equal(spec->group_count, 2);
    assert_int_equal(spec->groups[0].kind, BERTH_KIND_CPU);
    assert_int_equal(spec->groups[0].count, 2);
    assert_int_equal(spec->groups[1].gpus[1], 1);
    assert_string_equal(spec->default_model_filename, "net.onnx");
    assert_int_equal(spec->parameter_count, 2);
    assert_string_equal(berth_spec_parameter(spec, "a", ""), "3");
    assert_int_equal(spec->warmup_count, 1);
    assert_int_equal(spec->warmups[0].inputs[0].source, BERTH_WARMUP_RANDOM);
    assert_int_equal(spec->warmups[0].inputs[0].dims[2], 5);
}

static void maps_a_whole_config(void **state)
{
    (void)state;
    struct berth_err err = {0};
    struct berth_version_policy policy;
    struct berth_model_spec *spec = NULL;
    if (read_config(whole_config, false, &spec, &policy, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    check_whole(spec, &policy);
    /* What the config endpoint answers is a config of the same meaning. */
    char *json = berth_spec_config_json(spec, BERTH_KIND_AUTO);
    assert_non_null(json);
    struct berth_model_spec *again = NULL;
    if (read_config(json, true, &again, &policy, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    check_whole(again, &policy);
    char *json_again = berth_spec_config_json(again, BERTH_KIND_AUTO);
    assert_string_equal(json, json_again);
    assert_non_null(strstr(json, "\"optimization\":{\"graph\":{\"level\":-1},"
                                 "\"priority\":\"PRIORITY_DEFAULT\",\"execution_accelerators\":"));
    assert_non_null(strstr(json, "\"input_pinned_memory\":{\"enable\":true}"));
    assert_non_null(strstr(json, "\"priority_queue_policy\":{\"1\":{\"timeout_action\":\"REJECT\","
                                 "\"default_timeout_microseconds\":0,"));
    assert_non_null(strstr(json, "\"parameters\":{\"b\":{\"string_value\":\"2\"},"
                                 "\"a\":{\"string_value\":\"3\"}}"));
    assert_non_null(strstr(json, "\"instance_group\":[{\"name\":\"\",\"kind\":\"KIND_CPU\""));
    assert_null(strstr(json, "unheard_of"));
    berth_free(json);
    berth_free(json_again);
    berth_spec_release(spec);
    berth_spec_release(again);
}

/* Of instance groups that leave it open, and of numbers that JSON readers may refuse. */
static void what_is_written_reads_the_same(void **state)
{
    static const struct {
        const char *text;
        enum berth_instance_kind ran;
        const char *json; /* a part of it */
    } cases[] = {
        {"", BERTH_KIND_AUTO, "\"instance_group\":[]"},
        {"", BERTH_KIND_GPU, "[{\"name\":\"m\",\"kind\":\"KIND_GPU\",\"count\":1,"},
        {"instance_group { count: 2 }", BERTH_KIND_AUTO,
         "[{\"name\":\"\",\"kind\":\"KIND_AUTO\",\"count\":2,\"gpus\":[]"},
        {"instance_group { gpus: 1 }", BERTH_KIND_AUTO,
         "[{\"name\":\"\",\"kind\":\"KIND_AUTO\",\"count\":0,\"gpus\":[1]"},
        {"instance_group { gpus: 1 }", BERTH_KIND_GPU,
         "[{\"name\":\"m_0\",\"kind\":\"KIND_GPU\",\"count\":1,\"gpus\":[1]"},
        {"instance_group { kind: KIND_CPU }", BERTH_KIND_GPU, "\"kind\":\"KIND_CPU\""},
        {"dynamic_batching { max_queue_delay_microseconds: 9223372036854775807 }", BERTH_KIND_AUTO,
         "\"max_queue_delay_microseconds\":9223372036854775807,"},
        {"dynamic_batching { max_queue_delay_microseconds: 9223372036854775808 }", BERTH_KIND_AUTO,
         "\"max_queue_delay_microseconds\":\"9223372036854775808\","},
        {"dynamic_batching { default_queue_policy { default_timeout_microseconds: "
         "18446744073709551615 } }", BERTH_KIND_AUTO,
         "\"default_timeout_microseconds\":\"18446744073709551615\","},
        {"model_metrics { metric_control { histogram_options { buckets: [ -0, 0, -0.0, 1e17,"
         " 0.1, 4.9e-324, 1e999, -inf, nan ] } } }", BERTH_KIND_AUTO,
         "\"buckets\":[-0.0,0,-0.0,1e+17,0.10000000000000001,4.9406564584124654e-324,"
         "\"Infinity\",\"-Infinity\",\"NaN\"]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL, *again = NULL;
        assert_int_equal(read_config(cases[i].text, false, &spec, &policy, &err), BERTH_OK);
        char *shown = berth_spec_config_json(spec, cases[i].ran);
        assert_non_null(strstr(shown, cases[i].json));
        char *json = berth_spec_config_json(spec, BERTH_KIND_AUTO);
        if (read_config(json, true, &again, &policy, &err) != BERTH_OK) {
            fail_msg("%s", err.msg);
        }
        assert_int_equal(again->group_count, spec->group_count);
        for (size_t g = 0; g < spec->group_count; g++) {
            assert_int_equal(again->groups[g].kind, spec->groups[g].kind);
            assert_int_equal(again->groups[g].count, spec->groups[g].count);
            assert_int_equal(again->groups[g].gpu_count, spec->groups[g].gpu_count);
        }
        assert_int_equal(again->dynamic.delay_us_max, spec->dynamic.delay_us_max);
        assert_int_equal(again->dynamic.policy_default.timeout_us_default,
                         spec->dynamic.policy_default.timeout_us_default);
        char *json_again = berth_spec_config_json(again, BERTH_KIND_AUTO);
        assert_string_equal(json, json_again);
        berth_free(shown);
        berth_free(json);
        berth_free(json_again);
        berth_spec_release(spec);
        berth_spec_release(again);
    }
}

/* Of entries with the same key the last counts, as protobuf has it. */
static void last_of_equal_keys_counts(void **state)
{
    static const char text[] =
        "parameters [ { key: \"k\" value { string_value: \"1\" } }, { key: \"l\" },"
        " { key: \"k\" value { string_value: \"2\" } } ]\n"
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy ["
        " { key: 2 value { max_queue_size: 3 } }, { key: 2 value { max_queue_size: 4 } } ] }\n"
        "model_warmup { name: \"w\" inputs [ { key: \"x\" value { data_type: TYPE_FP32 dims: 1"
        " input_data_file: \"f\" } }, { key: \"y\" value { data_type: TYPE_INT8 } },"
        " { key: \"x\" value { data_type: TYPE_BOOL dims: [ 2, 3 ] } } ] }\n";
    struct berth_err err = {0};
    struct berth_version_policy policy;
    struct berth_model_spec *specs[2] = {NULL, NULL};
    (void)state;
    assert_int_equal(read_config(text, false, &specs[0], &policy, &err), BERTH_OK);
    char *json = berth_spec_config_given(specs[0]);
    assert_int_equal(read_config(json, true, &specs[1], &policy, &err), BERTH_OK);
    for (size_t i = 0; i < 2; i++) {
        const struct berth_model_spec *spec = specs[i];
        assert_int_equal(spec->parameter_count, 2);
        assert_string_equal(berth_spec_parameter(spec, "k", ""), "2");
        assert_int_equal(spec->dynamic.policies[1].count_max, 4);
        assert_int_equal(spec->warmups[0].input_count, 2);
        const struct berth_warmup_input *input = spec->warmups[0].inputs;
        input += strcmp(input->name, "x") != 0;
        assert_string_equal(input->name, "x");
        assert_int_equal(input->dtype, BERTH_DTYPE_BOOL);
        assert_int_equal(input->rank, 2);
        assert_int_equal(input->source, BERTH_WARMUP_ZERO);
        assert_string_equal(input->file, "");
        berth_spec_release(specs[i]);
    }
    berth_free(json);
}

#define ENTRIES_MAX 4096 /* of the maps of one message */

/* parameters of keys k0 to k(keys - 1), over and over. JSON has each key once. */
static char *many_parameters(size_t count, size_t keys, bool json)
{
    struct berth_buf text = {0};
    berth_buf_puts(&text, json ? "{\"parameters\":{" : "");
    for (size_t i = 0; i < count; i++) {
        if (json) {
            berth_buf_printf(&text, "%s\"k%zu\":{\"string_value\":\"%zu\"}", i == 0 ? "" : ",",
                             i % keys, i);
        } else {
            berth_buf_printf(&text, "parameters{key:'k%zu' value{string_value:'%zu'}}\n", i % keys,
                             i);
        }
    }
    berth_buf_puts(&text, json ? "}}" : "");
    return berth_buf_release(&text, NULL);
}

static void maps_have_a_limit(void **state)
{
    static const struct {
        size_t count, keys;
        bool json;
        enum berth_code code;
    } cases[] = {
        {ENTRIES_MAX, ENTRIES_MAX, false, BERTH_OK},
        {ENTRIES_MAX, ENTRIES_MAX, true, BERTH_OK},
        {ENTRIES_MAX, 1, false, BERTH_OK},
        {ENTRIES_MAX, 7, false, BERTH_OK},
        {ENTRIES_MAX + 1, ENTRIES_MAX + 1, false, BERTH_INVALID},
        {ENTRIES_MAX + 1, ENTRIES_MAX + 1, true, BERTH_INVALID},
        {ENTRIES_MAX + 1, 1, false, BERTH_INVALID},
    };
    (void)state;
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL;
        char *text = many_parameters(cases[i].count, cases[i].keys, cases[i].json);
        assert_non_null(text);
        assert_int_equal(read_config(text, cases[i].json, &spec, &policy, &err), cases[i].code);
        berth_free(text);
        if (cases[i].code != BERTH_OK) {
            assert_non_null(strstr(err.msg, "more than 4096 entries"));
            continue;
        }
        assert_int_equal(spec->parameter_count, cases[i].keys);
        for (size_t k = 0; k < cases[i].keys; k++) { /* each has the last value that it was given */
            char key[32], value[32];
            size_t last = k + (cases[i].count - 1 - k) / cases[i].keys * cases[i].keys;
            snprintf(key, sizeof(key), "k%zu", k);
            snprintf(value, sizeof(value), "%zu", last);
            assert_string_equal(berth_spec_parameter(spec, key, ""), value);
        }
        berth_spec_release(spec);
    }
}

/* A worker process describes the model itself, so what describe completed here is not told. */
static void what_is_given_reads_the_same(void **state)
{
    static const struct {
        const char *text;
        uint64_t completed; /* what describe made of the batch size */
        const char *json;   /* a part of it; NULL: max_batch_size is not in it */
    } cases[] = {
        {"max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 8, 16 ] }", 0,
         "\"max_batch_size\":16,"},
        {"max_batch_size: 16 model_warmup { name: \"w\" batch_size: 9 }", 0,
         "\"max_batch_size\":16,"},
        {"max_batch_size: 0", 0, "\"max_batch_size\":0,"},
        {"dynamic_batching { preferred_batch_size: 8 }", 4, NULL},
        {"model_warmup { name: \"w\" batch_size: 9 }", 4, NULL},
        {"input { name: \"x\" data_type: TYPE_FP32 dims: 1 is_non_linear_format_io: true }", 4,
         "\"is_non_linear_format_io\":true"},
        {"parameters { key: \"slots\" value { string_value: \"3\" } }", 0,
         "\"slots\":{\"string_value\":\"3\"}"},
        {"", 4, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL, *again = NULL;
        assert_int_equal(read_config(cases[i].text, false, &spec, &policy, &err), BERTH_OK);
        uint64_t batch_size = spec->batch_size_max;
        spec->batch_size_max = cases[i].completed;
        spec->batching = BERTH_BATCHING_DYNAMIC;
        spec->backend = "completed";
        spec->default_model_filename = "completed";
        char *json = berth_spec_config_given(spec);
        assert_non_null(json);
        assert_non_null(strstr(json, cases[i].json == NULL ? "{" : cases[i].json));
        assert_true(cases[i].json != NULL || strstr(json, "max_batch_size") == NULL);
        assert_null(strstr(json, "completed"));
        if (read_config(json, true, &again, &policy, &err) != BERTH_OK) {
            fail_msg("%s: %s", cases[i].text, err.msg);
        }
        assert_int_equal(again->batch_size_max, batch_size);
        assert_int_equal(again->batch_size_set, spec->batch_size_set);
        assert_int_equal(again->batching_set, spec->batching_set);
        assert_int_equal(again->input_count, spec->input_count);
        assert_int_equal(again->dynamic.preferred_count, spec->dynamic.preferred_count);
        assert_int_equal(again->warmup_count, spec->warmup_count);
        assert_int_equal(again->parameter_count, spec->parameter_count);
        berth_free(json);
        berth_spec_release(spec);
        berth_spec_release(again);
    }
}

/* A speech model's batch size is 0 in the answer, and what was written is its parameter `slots`. */
static void shows_what_a_batch_size_became(void **state)
{
    static const struct {
        const char *text;
        const char *slots; /* what describe added; NULL: nothing */
        const char *json;
    } cases[] = {
        {"max_batch_size: 16", "16", "\"parameters\":{\"slots\":{\"string_value\":\"16\"}},"},
        {"max_batch_size: 16 parameters { key: 'a' value { string_value: '1' } }", "16",
         "\"parameters\":{\"a\":{\"string_value\":\"1\"},\"slots\":{\"string_value\":\"16\"}},"},
        {"max_batch_size: 16 parameters { key: 'slots' value { string_value: '3' } }", NULL,
         "\"parameters\":{\"slots\":{\"string_value\":\"3\"}},"},
        {"max_batch_size: 0", "8", "\"parameters\":{},"}, /* by default; a GPU has more */
        {"name: 'm'", "8", "\"parameters\":{},"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL;
        struct berth_key_value parameters[2] = {{"", ""}};
        assert_int_equal(read_config(cases[i].text, false, &spec, &policy, &err), BERTH_OK);
        spec->batch_size_max = 0;
        if (cases[i].slots != NULL) {
            if (spec->parameter_count > 0) {
                parameters[0] = spec->parameters[0];
            }
            parameters[spec->parameter_count++] =
                (struct berth_key_value){"slots", cases[i].slots};
            spec->parameters = parameters;
        }
        char *json = berth_spec_config_json(spec, BERTH_KIND_AUTO);
        char *given = berth_spec_config_given(spec);
        assert_non_null(strstr(json, "\"max_batch_size\":0,"));
        if (strstr(json, cases[i].json) == NULL) {
            fail_msg("case %zu: %s", i, json);
        }
        assert_true(cases[i].slots == NULL || strstr(given, "slots") == NULL);
        berth_free(json);
        berth_free(given);
        berth_spec_release(spec);
    }
}

static void reads_json_configs(void **state)
{
    static const struct {
        const char *text;
        const char *message; /* NULL: good */
    } cases[] = {
        {"{\"name\": \"m\", \"backend\": \"python\", \"max_batch_size\": 16, \"input\": "
         "[{\"name\": \"I\", \"data_type\": \"TYPE_FP32\", \"dims\": [\"-1\", 2]}]}",
         NULL},
        {"{\"max_batch_size\": \"16\", \"parameters\": {\"k\": {\"string_value\": \"v\"}}, "
         "\"dynamic_batching\": {}, \"output\": null, \"runtime\": \"\", \"extra\": [{}]}",
         NULL},
        {"{x", "m/config.pbtxt:1:2: "},
        {"[]", "is not a JSON object"},
        {"{\"name\": \"m\\u0000\"}", "a NUL in the text of 'name'"},
        {"{\"parameters\": {\"k\\u0000\": {\"string_value\": \"v\"}}}", "a NUL in the text of "},
        {"{\"input\": [{\"name\": \"I\\u0000\"}]}", "a NUL in the text of 'input[0].name'"},
        {"{\"max_batch_size\": 1.5}", "'max_batch_size' must be a whole number"},
        {"{\"max_batch_size\": [1]}", "'max_batch_size' has the wrong type"},
        {"{\"max_batch_size\": {}}", "'max_batch_size' has the wrong type"},
        {"{\"input\": [5]}", "'input' must be fields in braces"},
        {"{\"input\": [[]]}", "'input' has the wrong type"},
        {"{\"input\": [null]}", "no name"},
        {"{\"parameters\": {\"a\": \"b\"}}", "'value' must be fields in braces"},
        {"{\"name\": \"n\"}", "'n' is not the name of its folder"},
        {"{\"name\": \"m\", \"name\": \"m\"}", "duplicate"},
        {"{\"input\": [{\"name\": \"I\", \"data_type\": \"FP32\"}]}", "cannot be 'FP32'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL;
        enum berth_code code = read_config(cases[i].text, true, &spec, &policy, &err);
        if ((code == BERTH_OK) != (cases[i].message == NULL) ||
            (code != BERTH_OK && strstr(err.msg, cases[i].message) == NULL)) {
            fail_msg("case %zu: '%s'", i, err.msg);
        }
        if (code == BERTH_OK) {
            assert_int_equal(spec->batch_size_max, 16);
        }
        berth_spec_release(spec);
    }
}

/* What Triton 2.51 answered for these two configs, byte for byte (python backend, default file
 * name completed by it). */
static void writes_the_config_as_triton_does(void **state)
{
    static const struct {
        const char *text;
        const char *json;
    } cases[] = {
        {"name: \"m\"\nbackend: \"python\"\nmax_batch_size: 32\n"
         "input [ { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] } ]\n"
         "output [ { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] } ]\n"
         "instance_group [ { kind: KIND_CPU count: 1 } ]\ndynamic_batching { }\n"
         "parameters { key: \"workspace-path\" value: { string_value: \"PREFIX\" } }\n",
         "{\"name\":\"m\",\"platform\":\"\",\"backend\":\"python\",\"runtime\":\"\","
         "\"version_policy\":{\"latest\":{\"num_versions\":1}},\"max_batch_size\":32,"
         "\"input\":[{\"name\":\"INPUT0\",\"data_type\":\"TYPE_FP32\",\"format\":\"FORMAT_NONE\","
         "\"dims\":[-1],\"is_shape_tensor\":false,\"allow_ragged_batch\":false,"
         "\"optional\":false,\"is_non_linear_format_io\":false}],\"output\":[{\"name\":"
         "\"OUTPUT0\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1],\"label_filename\":\"\","
         "\"is_shape_tensor\":false,\"is_non_linear_format_io\":false}],\"batch_input\":[],"
         "\"batch_output\":[],\"optimization\":{\"priority\":\"PRIORITY_DEFAULT\","
         "\"input_pinned_memory\":{\"enable\":true},\"output_pinned_memory\":{\"enable\":true},"
         "\"gather_kernel_buffer_threshold\":0,\"eager_batching\":false},\"dynamic_batching\":"
         "{\"preferred_batch_size\":[32],\"max_queue_delay_microseconds\":0,"
         "\"preserve_ordering\":false,\"priority_levels\":0,\"default_priority_level\":0,"
         "\"priority_queue_policy\":{}},\"instance_group\":[{\"name\":\"m_0\",\"kind\":"
         "\"KIND_CPU\",\"count\":1,\"gpus\":[],\"secondary_devices\":[],\"profile\":[],"
         "\"passive\":false,\"host_policy\":\"\"}],\"default_model_filename\":\"model.py\","
         "\"cc_model_filenames\":{},\"metric_tags\":{},\"parameters\":{\"workspace-path\":"
         "{\"string_value\":\"PREFIX\"}},\"model_warmup\":[]}"},
        {"name: \"m\"\nbackend: \"python\"\nmax_batch_size: 8\n"
         "input [ { name: \"x\" data_type: TYPE_FP32 dims: [ 3, 48, 320 ] } ]\n"
         "output [ { name: \"y\" data_type: TYPE_FP32 dims: [ 40, 6625 ] } ]\n"
         "instance_group [ { kind: KIND_CPU count: 1 } ]\ndynamic_batching { }\n"
         "parameters [ { key: \"onnx\" value: { string_value: \"rec_infer.onnx\" } } ]\n",
         "{\"name\":\"m\",\"platform\":\"\",\"backend\":\"python\",\"runtime\":\"\","
         "\"version_policy\":{\"latest\":{\"num_versions\":1}},\"max_batch_size\":8,\"input\":"
         "[{\"name\":\"x\",\"data_type\":\"TYPE_FP32\",\"format\":\"FORMAT_NONE\",\"dims\":"
         "[3,48,320],\"is_shape_tensor\":false,\"allow_ragged_batch\":false,\"optional\":false,"
         "\"is_non_linear_format_io\":false}],\"output\":[{\"name\":\"y\",\"data_type\":"
         "\"TYPE_FP32\",\"dims\":[40,6625],\"label_filename\":\"\",\"is_shape_tensor\":false,"
         "\"is_non_linear_format_io\":false}],\"batch_input\":[],\"batch_output\":[],"
         "\"optimization\":{\"priority\":\"PRIORITY_DEFAULT\",\"input_pinned_memory\":"
         "{\"enable\":true},\"output_pinned_memory\":{\"enable\":true},"
         "\"gather_kernel_buffer_threshold\":0,\"eager_batching\":false},\"dynamic_batching\":"
         "{\"preferred_batch_size\":[8],\"max_queue_delay_microseconds\":0,"
         "\"preserve_ordering\":false,\"priority_levels\":0,\"default_priority_level\":0,"
         "\"priority_queue_policy\":{}},\"instance_group\":[{\"name\":\"m_0\",\"kind\":"
         "\"KIND_CPU\",\"count\":1,\"gpus\":[],\"secondary_devices\":[],\"profile\":[],"
         "\"passive\":false,\"host_policy\":\"\"}],\"default_model_filename\":\"model.py\","
         "\"cc_model_filenames\":{},\"metric_tags\":{},\"parameters\":{\"onnx\":"
         "{\"string_value\":\"rec_infer.onnx\"}},\"model_warmup\":[]}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct berth_err err = {0};
        struct berth_version_policy policy;
        struct berth_model_spec *spec = NULL;
        assert_int_equal(read_config(cases[i].text, false, &spec, &policy, &err), BERTH_OK);
        spec->default_model_filename = "model.py";
        char *json = berth_spec_config_json(spec, BERTH_KIND_CPU);
        assert_string_equal(json, cases[i].json);
        berth_free(json);
        berth_spec_release(spec);
    }
}

static void writes_a_model_without_a_config(void **state)
{
    (void)state;
    struct berth_model_spec *spec = berth_spec_create();
    struct berth_io io = {.name = "x\"y", .dtype = BERTH_DTYPE_BYTES, .rank = 1, .dims = {-1}};
    spec->name = "bare";
    spec->inputs = &io;
    spec->input_count = 1;
    char *json = berth_spec_config_json(spec, BERTH_KIND_CPU);
    assert_non_null(strstr(json, "{\"name\":\"bare\",\"platform\":\"\""));
    assert_non_null(strstr(json, "{\"name\":\"x\\\"y\",\"data_type\":\"TYPE_STRING\""));
    assert_non_null(strstr(json, "\"instance_group\":[{\"name\":\"bare\",\"kind\":\"KIND_CPU\","
                                 "\"count\":1,"));
    assert_null(strstr(json, "dynamic_batching"));
    assert_non_null(strstr(json, "\"batch_output\":[],\"optimization\":{"));
    berth_free(json);
    berth_spec_release(spec);
}

/* Each allocation fails once: an error, nothing lost. */
static void survives_failing_allocations(void **state)
{
    (void)state;
    uint64_t live = berth_mem_bytes_live();
    for (int json = 0; json < 2; json++) {
        bool clean = false;
        for (uint64_t nth = 1; !clean; nth++) {
            struct berth_err err = {0};
            struct berth_version_policy policy;
            const char *text =
                json ? "{\"name\":\"m\",\"parameters\":{\"a\":{\"string_value\":\"b\"}}}"
                     : whole_config;
            struct berth_model_config config = {.text = text, .length = strlen(text),
                                                .label = "c", .json = json != 0, .quiet = true};
            uint64_t calls = berth_mem_call_count();
            berth_mem_fail_at(nth, false);
            char *written = NULL;
            struct berth_model_spec *spec = berth_spec_create();
            if (spec != NULL) {
                spec->name = "m";
                if (berth_model_config_read(&config, spec, &policy, &err) == BERTH_OK) {
                    written = berth_spec_config_given(spec);
                    berth_free(written);
                    written = berth_spec_config_json(spec, BERTH_KIND_CPU);
                }
            }
            clean = berth_mem_call_count() - calls < nth;
            berth_mem_fail_at(0, false);
            assert_true(!clean || written != NULL);
            berth_free(written);
            berth_spec_release(spec);
            assert_true(nth < 10000);
        }
    }
    assert_int_equal(berth_mem_bytes_live(), live);
}

static int setup(void **state)
{
    (void)state;
    berth_log_set_level(BERTH_LOG_ERROR);
    berth_arena_init(&arena, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    berth_arena_finish(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_text_format),
        cmocka_unit_test(says_where_the_text_is_wrong),
        cmocka_unit_test(keeps_to_its_limits),
        cmocka_unit_test(says_what_a_config_has_wrong),
        cmocka_unit_test(takes_the_most_there_can_be),
        cmocka_unit_test(locates_what_is_found_later),
        cmocka_unit_test(maps_a_whole_config),
        cmocka_unit_test(what_is_written_reads_the_same),
        cmocka_unit_test(what_is_given_reads_the_same),
        cmocka_unit_test(shows_what_a_batch_size_became),
        cmocka_unit_test(last_of_equal_keys_counts),
        cmocka_unit_test(maps_have_a_limit),
        cmocka_unit_test(reads_json_configs),
        cmocka_unit_test(writes_the_config_as_triton_does),
        cmocka_unit_test(writes_a_model_without_a_config),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
