/* weights_plan.h - which tensors a model's file has, and where each goes in the span.
 *
 * In: a config.   Out: the tensors in the order of the table, each with its name, shape, its form
 * in the span and its place there. weights.c checks, places and reads by it; whoever writes a model
 * takes names and shapes from it.
 */
#ifndef BERTH_WEIGHTS_PLAN_H
#define BERTH_WEIGHTS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/parakeet/parakeet_config.h"
#include "engine/parakeet/weights.h"

#define BERTH_PARAKEET_NAME_MAX 80
#define BERTH_PARAKEET_TENSOR_RANK_MAX 4
#define BERTH_PARAKEET_TENSORS_MAX 4096 /* more than any config within its limits has */

/* What becomes of a tensor on its way into the span. */
enum berth_parakeet_form {
    BERTH_PARAKEET_FORM_MATRIX,    /* elements as they are; a linear's weight */
    BERTH_PARAKEET_FORM_SCALED,    /* narrow: e4m3 and a scale a row; else as MATRIX */
    BERTH_PARAKEET_FORM_ELEMENTS,  /* elements as they are */
    BERTH_PARAKEET_FORM_FLOATS,    /* float32 as they are */
    BERTH_PARAKEET_FORM_TAPS,      /* float32, [channel][tap] turned to [tap][channel] */
    BERTH_PARAKEET_FORM_FREQUENCY, /* elements; columns [channel][frequency] turned over */
    BERTH_PARAKEET_FORM_CONV,      /* as TAPS, times gamma / sqrt(variance + eps) */
    BERTH_PARAKEET_FORM_CONV_BIAS, /* the batch norm's beta, with what else is constant */
    BERTH_PARAKEET_FORM_LSTM_BIAS, /* float32, bias_ih + bias_hh */
    BERTH_PARAKEET_FORM_FOLDED,    /* has no place: folded into one of the three above */
};

struct berth_parakeet_planned {
    char name[BERTH_PARAKEET_NAME_MAX];
    enum berth_parakeet_form form;
    uint32_t index; /* of the layer or LSTM layer */
    uint8_t rank;
    uint32_t dims[BERTH_PARAKEET_TENSOR_RANK_MAX];
    uint64_t elements;
    uint64_t offset; /* in the span */
    uint64_t bytes;  /* there; 0: FOLDED */
    uint64_t scales; /* offset in the span of float32 [dims[0]]; 0: it has none */
    size_t pointer;  /* offset in struct berth_parakeet_weights of the pointer to it */
    bool joined;     /* lies right behind the one before it, under that one's pointer */
};

/* A walk over all tensors. Zeroed but for config and element to begin with; false: past the last,
 * and `end` is the size of the span. */
struct berth_parakeet_plan {
    const struct berth_parakeet_config *config;
    enum berth_parakeet_element element;
    size_t group;   /* the walk's place: group of rows, */
    uint32_t index; /* layer */
    size_t row;     /* and row */
    uint64_t end;    /* bytes of the span so far */
    uint64_t scales; /* where the layer's next scales go */
};
bool berth_parakeet_plan_next(struct berth_parakeet_plan *plan, struct berth_parakeet_planned *out);

#endif
