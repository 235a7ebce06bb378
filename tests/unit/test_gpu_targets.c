/* Which GPUs there is machine code for, by the list that a build was given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/mem.h"
#include "engine/cuda/gpu_targets.c"

#define ALL "80,89,90a,120"

static void test_suit(void **state)
{
    static const struct {
        const char *targets;
        int capability;
        bool suits;
    } cases[] = {
        {ALL, 80, true},   {ALL, 86, true}, /* A10, RTX 30: by the code for 8.0 */
        {ALL, 87, true},   {ALL, 89, true},      {ALL, 90, true},      {ALL, 120, true},
        {ALL, 121, true},  {ALL, 75, false},     {ALL, 70, false},     {ALL, 100, false},
        {ALL, 103, false}, {ALL, 110, false},    {ALL, 130, false},    {ALL, 0, false},
        {"90a", 90, true}, {"90a", 91, false},   {"90a", 89, false},   {"90a", 120, false},
        {"90", 90, true},  {"90", 100, false},   {"89", 80, false},    {"89", 86, false},
        {"89", 89, true},  {"120", 90, false},   {"120", 121, true},   {"121", 120, false},
        {"120a", 121, false}, {"120a", 120, true},
        {"80, 89", 89, true}, /* as a person writes it */
        {"", 90, false},   {",", 90, false},     {",,90", 90, true},   {"90,", 90, true},
        {"90x", 90, false}, {"90aa", 90, false}, {"a90", 90, false},   {"a", 0, false},
        {"-80", 80, false}, {"9999", 90, false}, {"99999999999999999999", 90, false},
        {"0", 0, false},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        if (berth_gpu_targets_suit(cases[i].targets, cases[i].capability) != cases[i].suits) {
            fail_msg("case %zu: '%s' and %d", i, cases[i].targets, cases[i].capability);
        }
    }
}

static void test_print(void **state)
{
    static const struct {
        const char *targets;
        const char *text;
    } cases[] = {
        {ALL, "8.0, 8.9, 9.0, 12.0"}, {"90a", "9.0"},     {"90,90a", "9.0"},  {"121a", "12.1"},
        {"80, 89", "8.0, 8.9"},       {"", "none"},       {",", "none"},      {"90x", "none"},
        {"x,75,", "7.5"},             {"1000", "none"},   {"999", "99.9"},    {"-80,80", "8.0"},
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(cases); i++) {
        struct berth_buf text = {0};
        berth_gpu_targets_print(cases[i].targets, &text);
        assert_string_equal(berth_buf_text(&text), cases[i].text);
        berth_buf_finish(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_suit), cmocka_unit_test(test_print)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
