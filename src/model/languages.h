/* languages.h - the languages speech models know: codes and English names. */
#ifndef BERTH_LANGUAGES_H
#define BERTH_LANGUAGES_H

#include <stddef.h>

/* "en" -> "english"; NULL: not one of them. Static. */
const char *berth_language_name(const char *code);
/* A code ("en", "EN"), a code with a region ("en-US") or an English name ("English") -> the code;
 * NULL: not one of them. Static. */
const char *berth_language_code(const char *text);
/* The code at a place of the table; NULL past its end. Static. */
const char *berth_language_at(size_t index);

#endif
