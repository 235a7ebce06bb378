/* random_parakeet.h - a model folder in the shape of a real Parakeet with random weights, for
 * measurements where the real one is not at hand. What it hears means nothing.
 *
 * The same shape and seed give the same bytes on every machine. transformers' ParakeetForTDT loads
 * the folder as it does the real one.
 */
#ifndef BERTH_RANDOM_PARAKEET_H
#define BERTH_RANDOM_PARAKEET_H

#include <stdint.h>

#include "base/err.h"
#include "engine/parakeet/parakeet_config.h"

/* shape: "0.6b" (parakeet-tdt-0.6b-v2: 617.8 M parameters, 1.24 GB) or "nano". The folder is made
 * if it is not there; files of the same names in it are replaced. */
enum berth_code berth_random_parakeet_write(const char *folder, const char *shape, uint64_t seed,
                                            struct berth_err *err) BERTH_MUST_USE;
/* What its config.json says, without biases; NULL: there is no such shape. */
const struct berth_parakeet_config *berth_random_parakeet_config(const char *shape);

#endif
