/* config_schema.c - Triton's ModelConfig as a table: every message and field, in JSON order.
 *
 * Fields that berth does not act on are here too, so that an unchanged Triton folder is read, its
 * mistakes are found, and the config endpoint gives back what was written.
 */
#include "base/mem.h"
#include "model/config_tree.h"

#define FIELDS(name, list)                                                                         \
    {                                                                                              \
        (name), (list), BERTH_COUNT_OF(list)                                                       \
    }
#define STRING(n) {.name = (n), .type = BERTH_CONFIG_STRING}
#define STRINGS(n) {.name = (n), .type = BERTH_CONFIG_STRING, .label = BERTH_CONFIG_MANY}
#define SCALAR(n, t) {.name = (n), .type = BERTH_CONFIG_##t}
#define SCALARS(n, t) {.name = (n), .type = BERTH_CONFIG_##t, .label = BERTH_CONFIG_MANY}
#define CHOICE(n, t, c) {.name = (n), .type = BERTH_CONFIG_##t, .choice = (c)}
#define ENUM(n, v) {.name = (n), .type = BERTH_CONFIG_ENUM, .values = (v)}
#define MESSAGE(n, m) {.name = (n), .type = BERTH_CONFIG_MESSAGE, .message = &(m)}
#define MESSAGE_OR(n, m, a)                                                                        \
    {                                                                                              \
        .name = (n), .type = BERTH_CONFIG_MESSAGE, .message = &(m), .absent = (a)                  \
    }
#define ONE_OF(n, m, c)                                                                            \
    {                                                                                              \
        .name = (n), .type = BERTH_CONFIG_MESSAGE, .message = &(m), .choice = (c)                  \
    }
#define MESSAGES(n, m)                                                                             \
    {                                                                                              \
        .name = (n), .type = BERTH_CONFIG_MESSAGE, .label = BERTH_CONFIG_MANY, .message = &(m)     \
    }
#define MAP(n, m)                                                                                  \
    {                                                                                              \
        .name = (n), .type = BERTH_CONFIG_MESSAGE, .label = BERTH_CONFIG_MAP, .message = &(m)      \
    }

const char *const berth_config_data_types[] = {
    "TYPE_INVALID", "TYPE_BOOL",   "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64",
    "TYPE_INT8",    "TYPE_INT16",  "TYPE_INT32", "TYPE_INT64",  "TYPE_FP16",   "TYPE_FP32",
    "TYPE_FP64",    "TYPE_STRING", "TYPE_BF16",  NULL,
};
static const char *const formats[] = {"FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW", NULL};
static const char *const instance_kinds[] = {"KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL",
                                             NULL};
static const char *const secondary_kinds[] = {"KIND_NVDLA", NULL};
static const char *const batch_input_kinds[] = {
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
    NULL,
};
static const char *const batch_output_kinds[] = {"BATCH_SCATTER_WITH_INPUT_SHAPE", NULL};
static const char *const priorities[] = {"PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN", NULL};
static const char *const timeout_actions[] = {"REJECT", "DELAY", NULL};
static const char *const control_kinds[] = {"CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY",
                                            "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_CORRID",
                                            NULL};

static const struct berth_config_field string_entry_fields[] = {STRING("key"), STRING("value")};
static const struct berth_config_message string_entry = FIELDS("entry", string_entry_fields);
static const struct berth_config_message nothing = {"ModelVersionPolicy.All", NULL, 0};

/* version_policy */
static const struct berth_config_field latest_fields[] = {SCALAR("num_versions", UINT32)};
static const struct berth_config_message latest =
    FIELDS("ModelVersionPolicy.Latest", latest_fields);
static const struct berth_config_field specific_fields[] = {SCALARS("versions", INT64)};
static const struct berth_config_message specific =
    FIELDS("ModelVersionPolicy.Specific", specific_fields);
static const struct berth_config_field version_policy_fields[] = {
    ONE_OF("latest", latest, 1), ONE_OF("all", nothing, 1), ONE_OF("specific", specific, 1)};
static const struct berth_config_message version_policy =
    FIELDS("ModelVersionPolicy", version_policy_fields);

/* input, output, batch_input, batch_output */
static const struct berth_config_field reshape_fields[] = {SCALARS("shape", INT64)};
static const struct berth_config_message reshape = FIELDS("ModelTensorReshape", reshape_fields);
static const struct berth_config_field input_fields[] = {
    STRING("name"),
    ENUM("data_type", berth_config_data_types),
    ENUM("format", formats),
    SCALARS("dims", INT64),
    MESSAGE("reshape", reshape),
    SCALAR("is_shape_tensor", BOOL),
    SCALAR("allow_ragged_batch", BOOL),
    SCALAR("optional", BOOL),
    SCALAR("is_non_linear_format_io", BOOL),
};
static const struct berth_config_message input = FIELDS("ModelInput", input_fields);
static const struct berth_config_field output_fields[] = {
    STRING("name"),
    ENUM("data_type", berth_config_data_types),
    SCALARS("dims", INT64),
    MESSAGE("reshape", reshape),
    STRING("label_filename"),
    SCALAR("is_shape_tensor", BOOL),
    SCALAR("is_non_linear_format_io", BOOL),
};
static const struct berth_config_message output = FIELDS("ModelOutput", output_fields);
static const struct berth_config_field batch_input_fields[] = {
    ENUM("kind", batch_input_kinds),
    STRINGS("target_name"),
    ENUM("data_type", berth_config_data_types),
    STRINGS("source_input"),
};
static const struct berth_config_message batch_input = FIELDS("BatchInput", batch_input_fields);
static const struct berth_config_field batch_output_fields[] = {
    STRINGS("target_name"), ENUM("kind", batch_output_kinds), STRINGS("source_input")};
static const struct berth_config_message batch_output = FIELDS("BatchOutput", batch_output_fields);

/* optimization */
static const struct berth_config_field graph_fields[] = {SCALAR("level", INT32)};
static const struct berth_config_message graph =
    FIELDS("ModelOptimizationPolicy.Graph", graph_fields);
static const struct berth_config_field cuda_shape_fields[] = {SCALARS("dim", INT64)};
static const struct berth_config_message cuda_shape = FIELDS("Shape", cuda_shape_fields);
static const struct berth_config_field cuda_input_fields[] = {STRING("key"),
                                                              MESSAGE("value", cuda_shape)};
static const struct berth_config_message cuda_input = FIELDS("entry", cuda_input_fields);
static const struct berth_config_field lower_bound_fields[] = {SCALAR("batch_size", INT32),
                                                               MAP("input", cuda_input)};
static const struct berth_config_message lower_bound = FIELDS("LowerBound", lower_bound_fields);
static const struct berth_config_field graph_spec_fields[] = {
    SCALAR("batch_size", INT32), MAP("input", cuda_input),
    MESSAGE("graph_lower_bound", lower_bound)};
static const struct berth_config_message graph_spec = FIELDS("GraphSpec", graph_spec_fields);
static const struct berth_config_field cuda_fields[] = {
    SCALAR("graphs", BOOL), SCALAR("busy_wait_events", BOOL), MESSAGES("graph_spec", graph_spec),
    SCALAR("output_copy_stream", BOOL)};
static const struct berth_config_message cuda = FIELDS("ModelOptimizationPolicy.Cuda", cuda_fields);
static const struct berth_config_field accelerator_fields[] = {STRING("name"),
                                                               MAP("parameters", string_entry)};
static const struct berth_config_message accelerator = FIELDS("Accelerator", accelerator_fields);
static const struct berth_config_field accelerators_fields[] = {
    MESSAGES("gpu_execution_accelerator", accelerator),
    MESSAGES("cpu_execution_accelerator", accelerator)};
static const struct berth_config_message accelerators =
    FIELDS("ExecutionAccelerators", accelerators_fields);
static const struct berth_config_field enable_fields[] = {SCALAR("enable", BOOL)};
static const struct berth_config_message pinned = FIELDS("PinnedMemoryBuffer", enable_fields);
#define PINNED "{\"enable\":true}"
static const struct berth_config_field optimization_fields[] = {
    MESSAGE("graph", graph),
    ENUM("priority", priorities),
    MESSAGE("cuda", cuda),
    MESSAGE("execution_accelerators", accelerators),
    MESSAGE_OR("input_pinned_memory", pinned, PINNED),
    MESSAGE_OR("output_pinned_memory", pinned, PINNED),
    SCALAR("gather_kernel_buffer_threshold", UINT32),
    SCALAR("eager_batching", BOOL),
};
static const struct berth_config_message optimization =
    FIELDS("ModelOptimizationPolicy", optimization_fields);
#define OPTIMIZATION                                                                               \
    "{\"priority\":\"PRIORITY_DEFAULT\",\"input_pinned_memory\":" PINNED                           \
    ",\"output_pinned_memory\":" PINNED                                                            \
    ",\"gather_kernel_buffer_threshold\":0,\"eager_batching\":false}"

/* dynamic_batching */
static const struct berth_config_field queue_policy_fields[] = {
    ENUM("timeout_action", timeout_actions), SCALAR("default_timeout_microseconds", UINT64),
    SCALAR("allow_timeout_override", BOOL), SCALAR("max_queue_size", UINT32)};
static const struct berth_config_message queue_policy =
    FIELDS("ModelQueuePolicy", queue_policy_fields);
static const struct berth_config_field policy_entry_fields[] = {SCALAR("key", UINT64),
                                                                MESSAGE("value", queue_policy)};
static const struct berth_config_message policy_entry = FIELDS("entry", policy_entry_fields);
static const struct berth_config_field dynamic_fields[] = {
    SCALARS("preferred_batch_size", INT32),
    SCALAR("max_queue_delay_microseconds", UINT64),
    SCALAR("preserve_ordering", BOOL),
    SCALAR("priority_levels", UINT64),
    SCALAR("default_priority_level", UINT64),
    MESSAGE("default_queue_policy", queue_policy),
    MAP("priority_queue_policy", policy_entry),
};
const struct berth_config_message berth_config_dynamic =
    FIELDS("ModelDynamicBatching", dynamic_fields);

/* sequence_batching */
static const struct berth_config_field direct_fields[] = {
    SCALAR("max_queue_delay_microseconds", UINT64), SCALAR("minimum_slot_utilization", FLOAT)};
static const struct berth_config_message direct = FIELDS("StrategyDirect", direct_fields);
static const struct berth_config_field oldest_fields[] = {
    SCALAR("max_candidate_sequences", INT32), SCALARS("preferred_batch_size", INT32),
    SCALAR("max_queue_delay_microseconds", UINT64), SCALAR("preserve_ordering", BOOL)};
static const struct berth_config_message oldest = FIELDS("StrategyOldest", oldest_fields);
static const struct berth_config_field control_fields[] = {
    ENUM("kind", control_kinds), SCALARS("int32_false_true", INT32),
    SCALARS("fp32_false_true", FLOAT), SCALARS("bool_false_true", BOOL),
    ENUM("data_type", berth_config_data_types)};
static const struct berth_config_message control = FIELDS("Control", control_fields);
static const struct berth_config_field control_input_fields[] = {STRING("name"),
                                                                 MESSAGES("control", control)};
static const struct berth_config_message control_input =
    FIELDS("ControlInput", control_input_fields);
static const struct berth_config_field initial_state_fields[] = {
    ENUM("data_type", berth_config_data_types), SCALARS("dims", INT64),
    CHOICE("zero_data", BOOL, 1), CHOICE("data_file", STRING, 1), STRING("name")};
static const struct berth_config_message initial_state =
    FIELDS("InitialState", initial_state_fields);
static const struct berth_config_field state_fields[] = {
    STRING("input_name"),
    STRING("output_name"),
    ENUM("data_type", berth_config_data_types),
    SCALARS("dims", INT64),
    MESSAGES("initial_state", initial_state),
    SCALAR("use_same_buffer_for_input_output", BOOL),
    SCALAR("use_growable_memory", BOOL),
};
static const struct berth_config_message state = FIELDS("State", state_fields);
static const struct berth_config_field sequence_fields[] = {
    ONE_OF("direct", direct, 1),
    ONE_OF("oldest", oldest, 1),
    SCALAR("max_sequence_idle_microseconds", UINT64),
    MESSAGES("control_input", control_input),
    MESSAGES("state", state),
    SCALAR("iterative_sequence", BOOL),
};
static const struct berth_config_message sequence =
    FIELDS("ModelSequenceBatching", sequence_fields);

/* ensemble_scheduling */
static const struct berth_config_field step_fields[] = {
    STRING("model_name"), SCALAR("model_version", INT64), MAP("input_map", string_entry),
    MAP("output_map", string_entry), STRING("model_namespace")};
static const struct berth_config_message step = FIELDS("ModelEnsembling.Step", step_fields);
static const struct berth_config_field ensemble_fields[] = {
    MESSAGES("step", step), SCALAR("max_inflight_responses", UINT32)};
static const struct berth_config_message ensemble = FIELDS("ModelEnsembling", ensemble_fields);

/* instance_group */
static const struct berth_config_field resource_fields[] = {
    STRING("name"), SCALAR("global", BOOL), SCALAR("count", UINT32)};
static const struct berth_config_message resource = FIELDS("Resource", resource_fields);
static const struct berth_config_field rate_limiter_fields[] = {MESSAGES("resources", resource),
                                                                SCALAR("priority", UINT32)};
static const struct berth_config_message rate_limiter =
    FIELDS("ModelRateLimiter", rate_limiter_fields);
static const struct berth_config_field secondary_fields[] = {ENUM("kind", secondary_kinds),
                                                             SCALAR("device_id", INT64)};
static const struct berth_config_message secondary = FIELDS("SecondaryDevice", secondary_fields);
static const struct berth_config_field group_fields[] = {
    STRING("name"),
    ENUM("kind", instance_kinds),
    SCALAR("count", INT32),
    MESSAGE("rate_limiter", rate_limiter),
    SCALARS("gpus", INT32),
    MESSAGES("secondary_devices", secondary),
    STRINGS("profile"),
    SCALAR("passive", BOOL),
    STRING("host_policy"),
};
static const struct berth_config_message group = FIELDS("ModelInstanceGroup", group_fields);

/* parameters, model_warmup and the rest */
static const struct berth_config_field parameter_fields[] = {STRING("string_value")};
static const struct berth_config_message parameter = FIELDS("ModelParameter", parameter_fields);
static const struct berth_config_field parameter_entry_fields[] = {STRING("key"),
                                                                   MESSAGE("value", parameter)};
static const struct berth_config_message parameter_entry =
    FIELDS("entry", parameter_entry_fields);
static const struct berth_config_field warmup_input_fields[] = {
    ENUM("data_type", berth_config_data_types), SCALARS("dims", INT64),
    CHOICE("zero_data", BOOL, 1), CHOICE("random_data", BOOL, 1),
    CHOICE("input_data_file", STRING, 1)};
static const struct berth_config_message warmup_input =
    FIELDS("ModelWarmup.Input", warmup_input_fields);
static const struct berth_config_field warmup_entry_fields[] = {STRING("key"),
                                                                MESSAGE("value", warmup_input)};
static const struct berth_config_message warmup_entry = FIELDS("entry", warmup_entry_fields);
static const struct berth_config_field warmup_fields[] = {
    STRING("name"), SCALAR("batch_size", UINT32), MAP("inputs", warmup_entry),
    SCALAR("count", UINT32)};
static const struct berth_config_message warmup = FIELDS("ModelWarmup", warmup_fields);
static const struct berth_config_field operations_fields[] = {STRINGS("op_library_filename")};
static const struct berth_config_message operations = FIELDS("ModelOperations", operations_fields);
static const struct berth_config_field transaction_fields[] = {SCALAR("decoupled", BOOL)};
static const struct berth_config_message transaction =
    FIELDS("ModelTransactionPolicy", transaction_fields);
static const struct berth_config_field agent_fields[] = {STRING("name"),
                                                         MAP("parameters", string_entry)};
static const struct berth_config_message agent = FIELDS("Agent", agent_fields);
static const struct berth_config_field agents_fields[] = {MESSAGES("agents", agent)};
static const struct berth_config_message agents = FIELDS("ModelRepositoryAgents", agents_fields);
static const struct berth_config_message cache = FIELDS("ModelResponseCache", enable_fields);
static const struct berth_config_field identifier_fields[] = {STRING("family")};
static const struct berth_config_message identifier =
    FIELDS("MetricIdentifier", identifier_fields);
static const struct berth_config_field histogram_fields[] = {SCALARS("buckets", DOUBLE)};
static const struct berth_config_message histogram = FIELDS("HistogramOptions", histogram_fields);
static const struct berth_config_field metric_fields[] = {
    MESSAGE("metric_identifier", identifier), ONE_OF("histogram_options", histogram, 1)};
static const struct berth_config_message metric = FIELDS("MetricControl", metric_fields);
static const struct berth_config_field metrics_fields[] = {MESSAGES("metric_control", metric)};
static const struct berth_config_message metrics = FIELDS("ModelMetrics", metrics_fields);

static const struct berth_config_field model_fields[] = {
    STRING("name"),
    STRING("platform"),
    STRING("backend"),
    STRING("runtime"),
    MESSAGE_OR("version_policy", version_policy, "{\"latest\":{\"num_versions\":1}}"),
    SCALAR("max_batch_size", INT32),
    MESSAGES("input", input),
    MESSAGES("output", output),
    MESSAGES("batch_input", batch_input),
    MESSAGES("batch_output", batch_output),
    MESSAGE_OR("optimization", optimization, OPTIMIZATION),
    ONE_OF("dynamic_batching", berth_config_dynamic, 1),
    ONE_OF("sequence_batching", sequence, 1),
    ONE_OF("ensemble_scheduling", ensemble, 1),
    MESSAGES("instance_group", group),
    STRING("default_model_filename"),
    MAP("cc_model_filenames", string_entry),
    MAP("metric_tags", string_entry),
    MAP("parameters", parameter_entry),
    MESSAGES("model_warmup", warmup),
    MESSAGE("model_operations", operations),
    MESSAGE("model_transaction_policy", transaction),
    MESSAGE("model_repository_agents", agents),
    MESSAGE("response_cache", cache),
    MESSAGE("model_metrics", metrics),
};
const struct berth_config_message berth_config_model = FIELDS("ModelConfig", model_fields);
