/* whisper_result.c - parts of a row's answer (engine/speech.h makes their tensors). */
#include "engine/whisper/whisper_row.h"

bool berth_whisper_row_has_news(const struct berth_whisper_row *row)
{
    return row->unsent != NULL;
}

enum berth_code berth_whisper_row_part(struct berth_whisper_row *row, bool final,
                                       struct berth_part **out, struct berth_err *err)
{
    struct berth_speech_answer answer = {
        .request = row->request, .from = final ? row->said : row->unsent,
        .first = row->unsent == row->said, .final = final, .language = row->wish.language,
        .seconds = (double)row->audio.count / BERTH_SPEECH_RATE};
    BERTH_TRY(berth_speech_part(&answer, out, err));
    row->unsent = NULL;
    return BERTH_OK;
}
