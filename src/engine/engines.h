/* engines.h - the engines of this build, for engine.c's table only. */
#ifndef BERTH_ENGINES_H
#define BERTH_ENGINES_H

#include "engine/engine.h"

extern const struct berth_engine_ops berth_engine_null;
extern const struct berth_engine_ops berth_engine_onnx;
extern const struct berth_engine_ops berth_engine_parakeet;
extern const struct berth_engine_ops berth_engine_whisper;

#endif
