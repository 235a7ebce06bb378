/* fuzz_protocol.c - any messages from a decode process: the server's reader never takes one that
 * is out of turn or past the room it gave. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "media/protocol.h"

#define FRAMES_MAX 100000

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

/* The first byte of each step says what is varied: raw bytes, or a message that is nearly right. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct berth_talk talk = {.state = BERTH_TALK_STARTING};
    struct berth_err err = {0};
    uint64_t job = 0;
    while (length >= 8) {
        struct berth_say_message message = {.magic = BERTH_PROTOCOL_MAGIC}, got;
        uint8_t raw[sizeof(message) + 8] = {0};
        size_t size = sizeof(message);
        message.say = bytes[1] % 9;
        message.job = job + bytes[2] % 2;
        message.frames = bytes[3] == 255 ? UINT64_MAX : (uint64_t)bytes[3] * 1000;
        message.code = bytes[4];
        memset(message.text, bytes[5], sizeof(message.text));
        memcpy(raw, &message, sizeof(message));
        if (bytes[0] % 4 == 0) {
            size = bytes[6] % 8 == 0 ? bytes[7] : sizeof(message);
            memcpy(raw, bytes, length < sizeof(raw) ? length : sizeof(raw));
        }
        struct berth_talk before = talk;
        if (berth_talk_accept(&talk, raw, size, &got, &err) != BERTH_OK) {
            return 0; /* the server ends the process here */
        }
        BERTH_ASSERT(memchr(got.text, '\0', sizeof(got.text)) != NULL);
        BERTH_ASSERT(berth_say_code(got.code) < BERTH_CODE_COUNT);
        if (got.say == BERTH_SAY_ROOM) {
            BERTH_ASSERT(got.frames > before.capacity && got.frames <= FRAMES_MAX);
            talk.capacity = got.frames;
        } else if (got.say == BERTH_SAY_DONE || got.say == BERTH_SAY_READY) {
            BERTH_ASSERT(before.state != BERTH_TALK_WORKING || got.frames <= before.capacity);
            BERTH_ASSERT(talk.state == BERTH_TALK_IDLE);
            berth_talk_begin(&talk, ++job, FRAMES_MAX);
        } else {
            BERTH_ASSERT(got.say == BERTH_SAY_FOUND && talk.has_found && !before.has_found);
        }
        bytes += 8;
        length -= 8;
    }
    return 0;
}
