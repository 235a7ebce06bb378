/* protocol.c - judging what a decode process says, and sending with descriptors. */
#include "media/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_allowed(const struct berth_talk *talk, const struct berth_say_message *message);
static void make_printable(char *text, size_t size);

void berth_talk_begin(struct berth_talk *talk, uint64_t job, uint64_t frames_max)
{
    *talk = (struct berth_talk){.state = BERTH_TALK_WORKING, .job = job, .frames_max = frames_max};
}

enum berth_code berth_talk_accept(struct berth_talk *talk, const void *bytes, size_t length,
                                  struct berth_say_message *out, struct berth_err *err)
{
    struct berth_say_message message;
    if (length != sizeof(message)) {
        return berth_fail(err, BERTH_INVALID, "a message of %zu bytes", length);
    }
    memcpy(&message, bytes, sizeof(message));
    if (message.magic != BERTH_PROTOCOL_MAGIC || !is_allowed(talk, &message)) {
        return berth_fail(err, BERTH_INVALID, "message %u out of turn or out of bounds",
                          message.say);
    }
    make_printable(message.text, sizeof(message.text));
    switch ((enum berth_say)message.say) {
    case BERTH_SAY_FOUND:
        talk->has_found = true;
        break;
    case BERTH_SAY_READY:
    case BERTH_SAY_DONE:
        talk->state = BERTH_TALK_IDLE;
        break;
    default:
        break;
    }
    *out = message;
    return BERTH_OK;
}

enum berth_code berth_say_code(uint32_t code)
{
    switch (code) {
    case BERTH_OK:
    case BERTH_INVALID:
    case BERTH_TOO_LARGE:
    case BERTH_UNAVAILABLE:
    case BERTH_INTERNAL:
        return (enum berth_code)code;
    default:
        return BERTH_MEDIA;
    }
}

void berth_say_text(struct berth_say_message *message, const char *text)
{
    snprintf(message->text, sizeof(message->text), "%s", text);
}

bool berth_say_send(int socket_fd, const struct berth_say_message *message, int fd, bool waits)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = sizeof(*message)};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        head.msg_control = control.bytes;
        head.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *item = CMSG_FIRSTHDR(&head);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(item), &fd, sizeof(fd));
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket_fd, &head, MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT));
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof(*message);
}

bool berth_say_receive(int socket_fd, struct berth_say_message *message, int *fd_out)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr head = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    ssize_t got;
    *fd_out = -1;
    do {
        got = recvmsg(socket_fd, &head, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    struct cmsghdr *item = got > 0 ? CMSG_FIRSTHDR(&head) : NULL;
    if (item != NULL && item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS &&
        item->cmsg_len == CMSG_LEN(sizeof(int))) {
        memcpy(fd_out, CMSG_DATA(item), sizeof(*fd_out));
    }
    return got == (ssize_t)sizeof(*message) && message->magic == BERTH_PROTOCOL_MAGIC;
}

static bool is_allowed(const struct berth_talk *talk, const struct berth_say_message *message)
{
    if (talk->state == BERTH_TALK_STARTING) {
        return message->say == BERTH_SAY_READY ||
               (message->say == BERTH_SAY_DONE && message->code != BERTH_OK);
    }
    if (talk->state != BERTH_TALK_WORKING || message->job != talk->job) {
        return false;
    }
    switch (message->say) {
    case BERTH_SAY_FOUND:
        return !talk->has_found;
    case BERTH_SAY_ROOM:
        return message->frames > talk->capacity && message->frames <= talk->frames_max;
    case BERTH_SAY_DONE:
        return message->frames <= talk->capacity;
    default:
        return false;
    }
}

/* The text goes into an answer and the log. */
static void make_printable(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (size_t i = 0; text[i] != '\0'; i++) {
        text[i] = text[i] >= 0x20 && text[i] < 0x7F ? text[i] : '?';
    }
}
