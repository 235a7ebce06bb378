/* config.json, preprocessor_config.json and generation_config.json of Parakeet models: what is
 * read, and what is refused by its field's name. */
#include "engine/parakeet/parakeet_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "parakeet_golden.h"

static char folder[] = "/tmp/berth-config-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    unlink(path);
    if (text != NULL) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(text, file);
        fclose(file);
    }
}

static void test_nano(void **state)
{
    struct berth_parakeet_config config;
    struct berth_err err = {0};
    if (berth_parakeet_config_read(golden_model(), &config, &err) != BERTH_OK) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(config.head, BERTH_PARAKEET_TDT);
    assert_int_equal(config.mels, 128);
    assert_int_equal(config.hidden, 256);
    assert_int_equal(config.heads, 4);
    assert_int_equal(config.head_dim, 64);
    assert_int_equal(config.layers, 6);
    assert_int_equal(config.inner, 1024);
    assert_int_equal(config.kernel, 9);
    assert_int_equal(config.channels, 128);
    assert_false(config.attention_bias || config.convolution_bias || config.scale_input);
    assert_int_equal(config.vocabulary, 513);
    assert_int_equal(config.blank, 512);
    assert_int_equal(config.prediction, 320);
    assert_int_equal(config.prediction_layers, 2);
    assert_int_equal(config.duration_count, 5);
    assert_int_equal(config.durations[4], 4);
    assert_int_equal(config.symbols_max, 10);
    assert_int_equal(config.fft, 512);
    assert_int_equal(config.window, 400);
    assert_true(config.preemphasis == 0.97F);
}

#define TDT(rest) "{\"model_type\":\"parakeet_tdt\",\"encoder_config\":{" rest "}}"
#define TOP(rest) "{\"model_type\":\"parakeet_tdt\",\"encoder_config\":{}," rest "}"

static const struct {
    const char *config;
    const char *front;      /* NULL: a good one */
    const char *generation; /* NULL: none */
    const char *text;       /* in the error's; NULL: it is good */
} cases[] = {
    {TDT(""), NULL, NULL, NULL}, /* defaults */
    {"{\"architectures\":[\"ParakeetForCTC\"],\"encoder_config\":{}}", NULL, NULL, NULL},
    {"{\"model_type\":\"parakeet_rnnt\",\"encoder_config\":{},\"durations\":7}", NULL, NULL, NULL},
    {"{\"model_type\":\"mine\",\"architectures\":[\"ParakeetForRNNT\"],\"encoder_config\":{}}",
     NULL, NULL, NULL},
    {"{\"model_type\":7,\"architectures\":[7,\"Mine\",\"ParakeetForCTC\"],\"encoder_config\":{}}",
     NULL, NULL, NULL},
    {"{\"model_type\":\"mine\",\"architectures\":[\"Mine\"],\"encoder_config\":{}}", NULL, NULL,
     "the head 'mine' is none of"},
    {"{", NULL, NULL, "config.json: line 1"},
    {"[]", NULL, NULL, "config.json is no JSON object"},
    {"{\"model_type\":\"parakeet_tdt\\u0000\",\"encoder_config\":{}}", NULL, NULL,
     "/config.json: line 1: a NUL in the text of 'model_type'"},
    {TDT("\"hidden_act\":\"silu\\u0000\""), NULL, NULL, "the text of 'encoder_config.hidden_act'"},
    {TDT("\"hidden_act\\u0000\":\"silu\""), NULL, NULL, "the text of 'encoder_config.hidden_act"},
    {TDT(""), "{\"feature_extractor_type\":\"ParakeetFeatureExtractor\\u0000\"}", NULL,
     "preprocessor_config.json: line 1: a NUL in the text of 'feature_extractor_type'"},
    {TDT(""), NULL, "{\"x\":[\"\\u0000\"]}",
     "generation_config.json: line 1: a NUL in the text of 'x[0]'"},
    {"{\"model_type\":\"whisper\"}", NULL, NULL, "the head 'whisper' is none of"},
    {"{\"architectures\":[\"ParakeetForAED\"]}", NULL, NULL, "the head 'ParakeetForAED'"},
    {"{\"model_type\":7}", NULL, NULL, "the head '' is none of"},
    {"{\"model_type\":\"parakeet_tdt\",\"architectures\":[\"ParakeetForCTC\"]}", NULL, NULL,
     "model_type parakeet_tdt and architectures ParakeetForCTC differ"},
    {"{\"model_type\":\"parakeet_tdt\"}", NULL, NULL, "encoder_config is no object"},
    {TDT("\"num_mel_bins\":96"), NULL, NULL, "num_mel_bins is not 80 or 128"},
    {TDT("\"num_mel_bins\":79"), NULL, NULL, "num_mel_bins must be a number from 80 to 128"},
    {TDT("\"hidden_size\":1020"), NULL, NULL,
     "hidden_size must be a number from 8 to 8192, a mult"},
    {TDT("\"hidden_size\":8200"), NULL, NULL, "encoder_config.hidden_size must be"},
    {TDT("\"hidden_size\":8192,\"num_attention_heads\":32"), NULL, NULL, NULL},
    {TDT("\"hidden_size\":8192,\"num_attention_heads\":31"), NULL, NULL, "hidden_size 8192 over"},
    {TDT("\"num_attention_heads\":2"), NULL, NULL, "over num_attention_heads 2"},
    {TDT("\"num_attention_heads\":256"), NULL, NULL, "num_attention_heads must be"},
    {TDT("\"num_attention_heads\":0"), NULL, NULL, "num_attention_heads must be"},
    {TDT("\"num_key_value_heads\":4"), NULL, NULL, "num_key_value_heads is not 8"},
    {TDT("\"num_hidden_layers\":64"), NULL, NULL, NULL},
    {TDT("\"num_hidden_layers\":65"), NULL, NULL,
     "num_hidden_layers must be a number from 1 to 64"},
    {TDT("\"num_hidden_layers\":24.0"), NULL, NULL, "num_hidden_layers must be"},
    {TDT("\"num_hidden_layers\":null"), NULL, NULL, "num_hidden_layers must be"},
    {TDT("\"intermediate_size\":-8"), NULL, NULL, "intermediate_size must be"},
    {TDT("\"intermediate_size\":4294967304"), NULL, NULL, "intermediate_size must be"},
    {TDT("\"conv_kernel_size\":8"), NULL, NULL, "conv_kernel_size is even"},
    {TDT("\"conv_kernel_size\":63"), NULL, NULL, NULL},
    {TDT("\"conv_kernel_size\":65"), NULL, NULL, "conv_kernel_size must be"},
    {TDT("\"subsampling_conv_channels\":4"), NULL, NULL, "subsampling_conv_channels must be"},
    {TDT("\"subsampling_factor\":4"), NULL, NULL, "subsampling_factor is not 8"},
    {TDT("\"subsampling_conv_stride\":1"), NULL, NULL, "subsampling_conv_stride is not 2"},
    {TDT("\"subsampling_conv_kernel_size\":\"3\""), NULL, NULL, "kernel_size is not 3"},
    {TDT("\"hidden_act\":\"gelu\""), NULL, NULL,
     "encoder_config.hidden_act 'gelu' is not \"silu\""},
    {TDT("\"attention_bias\":1"), NULL, NULL, "attention_bias is not true or false"},
    {TOP("\"hidden_act\":\"tanh\""), NULL, NULL, "hidden_act 'tanh' is not \"relu\""},
    {TOP("\"vocab_size\":1"), NULL, NULL, "vocab_size must be"},
    {TOP("\"vocab_size\":8192"), NULL, NULL, "blank_token_id 8192 is not below vocab_size 8192"},
    {TOP("\"blank_token_id\":8193"), NULL, NULL, "blank_token_id 8193 is not below"},
    {TOP("\"blank_token_id\":-1"), NULL, NULL, "blank_token_id must be"},
    {TOP("\"decoder_hidden_size\":642"), NULL, NULL, "decoder_hidden_size must be"},
    {TOP("\"num_decoder_layers\":5"), NULL, NULL, "num_decoder_layers must be"},
    {TOP("\"max_symbols_per_step\":0"), NULL, NULL, "max_symbols_per_step must be"},
    {TOP("\"max_symbols_per_step\":101"), NULL, NULL, "max_symbols_per_step must be"},
    {TOP("\"durations\":[]"), NULL, NULL, "durations is no list of 1 to 16 numbers"},
    {TOP("\"durations\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]"), NULL, NULL, NULL},
    {TOP("\"durations\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]"), NULL, NULL, "durations is"},
    {TOP("\"durations\":[0,-1]"), NULL, NULL, "durations[1] is no number from 0 to 1000"},
    {TOP("\"durations\":[1001]"), NULL, NULL, "durations[0] is no number"},
    {"{\"model_type\":\"parakeet_ctc\",\"encoder_config\":{},\"vocab_size\":1024}", NULL, NULL,
     "pad_token_id 1024 is not below vocab_size 1024"},
    {TDT(""), NULL, "{\"decoder_start_token_id\":8192}", NULL},
    {TDT(""), NULL, "{\"decoder_start_token_id\":0}", "decoder_start_token_id is not 8192"},
    {TDT(""), NULL, "{", "generation_config.json: line 1"},
    {TDT("\"num_mel_bins\":128"), NULL, NULL, "preprocessor_config.json: feature_size is missing"},
    {TDT("\"num_mel_bins\":128"), "{\"feature_size\":80}", NULL, "feature_size is not 128"},
    {TDT(""), "{\"hop_length\":128}", NULL, "hop_length is not 160"},
    {TDT(""), "{\"sampling_rate\":8000}", NULL, "sampling_rate is not 16000"},
    {TDT(""), "{\"n_fft\":1024}", NULL, "n_fft must be"},
    {TDT(""), "{\"win_length\":514}", NULL, "win_length must be a number from 2 to 512, an even"},
    {TDT(""), "{\"preemphasis\":null}", NULL, NULL},
    {TDT(""), "{\"preemphasis\":1.01}", NULL, "preemphasis is no number from 0 to 1"},
    {TDT(""), "{\"preemphasis\":\"0.97\"}", NULL, "preemphasis is no number"},
    {TDT(""), "{\"feature_extractor_type\":\"WhisperFeatureExtractor\"}", NULL,
     "feature_extractor_type 'WhisperFeatureExtractor' is not"},
};

static void test_cases(void **state)
{
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_parakeet_config config;
        struct berth_err err = {0};
        put("config.json", cases[i].config);
        put("preprocessor_config.json", cases[i].front == NULL ? "{}" : cases[i].front);
        put("generation_config.json", cases[i].generation);
        enum berth_code code = berth_parakeet_config_read(folder, &config, &err);
        if ((code == BERTH_OK) != (cases[i].text == NULL) ||
            (code != BERTH_OK && strstr(err.msg, cases[i].text) == NULL)) {
            fail_msg("%zu: %s: %s", i, cases[i].config, err.msg);
        }
        if (code != BERTH_OK) {
            assert_true(code == BERTH_INVALID || code == BERTH_UNSUPPORTED);
            assert_non_null(strstr(err.msg, folder));
        }
    }
    put("generation_config.json", NULL);
}

/* Where later versions of transformers put what was in preprocessor_config.json: which of the two
 * is at fault is said, and how. */
static void test_processor_file(void **state)
{
    static const struct {
        const char *preprocessor; /* NULL: no such file */
        const char *processor;
        enum berth_code code;
        const char *text; /* in the error's; behind the folder and, if no blank is there, a slash */
    } rows[] = {
        {NULL, NULL, BERTH_NOT_FOUND,
         " has no preprocessor_config.json and no processor_config.json"},
        {NULL, "{}", BERTH_INVALID, "processor_config.json: feature_extractor is no object"},
        {NULL, "{", BERTH_INVALID, "processor_config.json: line 1"},
        {NULL, "[]", BERTH_INVALID, "processor_config.json is no JSON object"},
        {NULL, "", BERTH_INVALID, "processor_config.json: line 1"},
        {NULL, "{\"feature_extractor\":[]}", BERTH_INVALID, "processor_config.json: feature_ext"},
        {NULL, "{\"feature_extractor\":{\"hop_length\":80}}", BERTH_UNSUPPORTED,
         "processor_config.json: feature_extractor.hop_length"},
        {NULL, "{\"feature_extractor\":{\"preemphasis\":0.5}}", BERTH_OK, NULL},
        {"{", "{\"feature_extractor\":{}}", BERTH_INVALID, "preprocessor_config.json: line 1"},
        {"[]", "{\"feature_extractor\":{}}", BERTH_INVALID,
         "preprocessor_config.json is no JSON object"},
        {"{\"preemphasis\":0.5}", "{", BERTH_OK, NULL},
    };
    struct berth_parakeet_config config;
    put("config.json", TDT(""));
    for (size_t i = 0; i < BERTH_COUNT_OF(rows); i++) {
        struct berth_err err = {0};
        char text[300];
        put("preprocessor_config.json", rows[i].preprocessor);
        put("processor_config.json", rows[i].processor);
        assert_int_equal(berth_parakeet_config_read(folder, &config, &err), rows[i].code);
        if (rows[i].code == BERTH_OK) {
            assert_true(config.preemphasis == 0.5F);
            continue;
        }
        snprintf(text, sizeof(text), "%s%s%s", folder, rows[i].text[0] == ' ' ? "" : "/",
                 rows[i].text);
        if (strstr(err.msg, text) == NULL) {
            fail_msg("%zu: %s", i, err.msg);
        }
    }
    put("preprocessor_config.json", NULL);
    put("processor_config.json", NULL);
    put("config.json", NULL);
    struct berth_err err = {0};
    assert_int_equal(berth_parakeet_config_read(folder, &config, &err), BERTH_NOT_FOUND);
    assert_non_null(strstr(err.msg, "/config.json"));
}

static void test_lengths(void **state)
{
    static const uint32_t expected[][5] = {
        /* samples, features, half, quarter, frames */
        {0, 0, 0, 0, 0},
        {159, 0, 0, 0, 0},
        {160, 1, 1, 1, 1},
        {1280, 8, 4, 2, 1},
        {1440, 9, 5, 3, 2},
        {56735, 354, 177, 89, 45},
        {160000, 1000, 500, 250, 125},
        {UINT32_MAX, 26843545, 13421773, 6710887, 3355444},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(expected); i++) {
        struct berth_parakeet_lengths lengths = berth_parakeet_lengths_of(expected[i][0]);
        assert_int_equal(lengths.samples, expected[i][0]);
        assert_int_equal(lengths.features, expected[i][1]);
        assert_int_equal(lengths.half, expected[i][2]);
        assert_int_equal(lengths.quarter, expected[i][3]);
        assert_int_equal(lengths.frames, expected[i][4]);
    }
}

static void test_memory(void **state)
{
    put("config.json", TDT(""));
    put("preprocessor_config.json", "{}");
    for (uint64_t at = 1;; at++) {
        struct berth_parakeet_config config;
        struct berth_err err = {0};
        uint64_t live = berth_mem_bytes_live();
        berth_mem_fail_at(at, true);
        enum berth_code code = berth_parakeet_config_read(folder, &config, &err);
        berth_mem_fail_at(0, false);
        assert_int_equal(berth_mem_bytes_live(), live);
        if (code == BERTH_OK) {
            break;
        }
        assert_int_equal(code, BERTH_UNAVAILABLE);
    }
}

static int set_up(void **state)
{
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    put("config.json", NULL);
    put("preprocessor_config.json", NULL);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano),           cmocka_unit_test(test_cases),
        cmocka_unit_test(test_processor_file), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
