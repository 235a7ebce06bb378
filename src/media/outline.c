/* outline.c - see outline.h. Each walk ends at the first thing it does not know. */
#include "media/outline.h"

#include <string.h>

#include "base/mem.h"

#define BOX_HEAD 8
#define BOX_HEAD_LARGE 16
#define PAGE_HEAD 27
#define CAF_HEAD 8
#define CAF_CHUNK_HEAD 12
#define ASF_HEAD 24  /* of each object */
#define ASF_FLAGS 88 /* in the file's properties; bit 0: broadcast, whose sizes mean nothing */
#define ASF_SPAN 65536 /* where the properties are looked for */
#define EBML_ID 0x1A45DFA3u
#define SEGMENT_ID 0x18538067u

static bool boxes_are_cut(const struct berth_media_input *input, struct berth_outline *out);
static const char *box_name(const uint8_t *type);
static bool segment_is_cut(const struct berth_media_input *input, struct berth_outline *out);
static uint64_t read_size(const struct berth_media_input *input, uint64_t *at);
static bool pages_are_cut(const struct berth_media_input *input, struct berth_outline *out);
static bool chunks_are_cut(const struct berth_media_input *input, struct berth_outline *out);
static bool objects_are_cut(const struct berth_media_input *input, struct berth_outline *out);
static uint32_t get_u32(const uint8_t *bytes);
static uint64_t get_u64(const uint8_t *bytes);

bool berth_outline_is_cut(const struct berth_media_input *input, struct berth_outline *out)
{
    static const uint8_t asf[BOX_HEAD] = {0x30, 0x26, 0xB2, 0x75, 0x8E, 0x66, 0xCF, 0x11};
    if (input->length < BOX_HEAD) {
        return false;
    }
    if (memcmp(input->bytes, "OggS", 4) == 0) {
        return pages_are_cut(input, out);
    }
    if (memcmp(input->bytes, "caff", 4) == 0) {
        return chunks_are_cut(input, out);
    }
    if (memcmp(input->bytes, asf, sizeof(asf)) == 0) {
        return objects_are_cut(input, out);
    }
    if (get_u32(input->bytes) == EBML_ID) {
        return segment_is_cut(input, out);
    }
    return box_name(input->bytes + 4) != NULL && boxes_are_cut(input, out);
}

/* Size (with its head), type; size 1: a larger one follows, 0: to the end. */
static bool boxes_are_cut(const struct berth_media_input *input, struct berth_outline *out)
{
    uint64_t at = 0;
    while (input->length - at >= BOX_HEAD) {
        const uint8_t *box = input->bytes + at;
        uint64_t left = input->length - at;
        uint64_t size = get_u32(box);
        const char *name = box_name(box + 4);
        if (size == 1 && left >= BOX_HEAD_LARGE) {
            size = get_u64(box + BOX_HEAD);
        }
        if (name == NULL || size < BOX_HEAD) {
            return false;
        }
        if (size > left) {
            *out = (struct berth_outline){.what = name, .promised = size, .came = left};
            return true;
        }
        at += size;
    }
    return false;
}

/* Of boxes that a film or a recording has outermost; what else stands behind it is let be. */
static const char *box_name(const uint8_t *type)
{
    static const char *const names[] = {
        "ftyp box", "styp box", "moov box", "moof box", "mdat box", "mfra box", "sidx box",
        "free box", "skip box", "wide box", "udta box", "meta box", "uuid box", "pdin box",
    };
    for (size_t i = 0; i < BERTH_COUNT_OF(names); i++) {
        if (memcmp(type, names[i], 4) == 0) {
            return names[i];
        }
    }
    return NULL;
}

/* The EBML head, then the segment, which holds all the rest. */
static bool segment_is_cut(const struct berth_media_input *input, struct berth_outline *out)
{
    uint64_t at = 4;
    uint64_t size = read_size(input, &at);
    if (size >= input->length - at || input->length - at - size < 4) {
        return false;
    }
    at += size;
    if (get_u32(input->bytes + at) != SEGMENT_ID) {
        return false;
    }
    at += 4;
    size = read_size(input, &at);
    if (size == UINT64_MAX || size <= input->length - at) {
        return false;
    }
    *out = (struct berth_outline){
        .what = "segment", .promised = size, .came = input->length - at};
    return true;
}

/* The zeros before a size's first 1 tell how many bytes follow; all ones mean that it is not
 * known: UINT64_MAX, and so does a file that ends here. */
static uint64_t read_size(const struct berth_media_input *input, uint64_t *at)
{
    if (*at >= input->length || input->bytes[*at] == 0) {
        return UINT64_MAX;
    }
    uint32_t first = input->bytes[*at];
    uint32_t more = (uint32_t)__builtin_clz(first) - 24;
    if (input->length - *at <= more) {
        return UINT64_MAX;
    }
    uint64_t size = first & (0x7Fu >> more);
    uint64_t open = 0x7Fu >> more;
    for (uint32_t i = 1; i <= more; i++) {
        size = size << 8 | input->bytes[*at + i];
        open = open << 8 | 0xFF;
    }
    *at += more + 1;
    return size == open ? UINT64_MAX : size;
}

/* A page's head ends with a table of up to 255 lengths, whose sum the page's body has. */
static bool pages_are_cut(const struct berth_media_input *input, struct berth_outline *out)
{
    uint64_t at = 0;
    while (at < input->length) {
        const uint8_t *page = input->bytes + at;
        uint64_t left = input->length - at;
        if (memcmp(page, "OggS", left < 4 ? (size_t)left : 4) != 0) {
            return false;
        }
        uint64_t head = PAGE_HEAD + (left >= PAGE_HEAD ? page[PAGE_HEAD - 1] : UINT64_C(0));
        uint64_t size = head;
        for (uint64_t i = PAGE_HEAD; left >= head && i < head; i++) {
            size += page[i];
        }
        if (size > left) {
            *out = (struct berth_outline){.what = "last page", .promised = size, .came = left};
            return true;
        }
        at += size;
    }
    return false;
}

/* Type, size without head; the audio's may be -1: to the end. */
static bool chunks_are_cut(const struct berth_media_input *input, struct berth_outline *out)
{
    uint64_t at = CAF_HEAD;
    while (input->length - at >= CAF_CHUNK_HEAD) {
        const uint8_t *chunk = input->bytes + at;
        uint64_t left = input->length - at - CAF_CHUNK_HEAD;
        uint64_t size = get_u64(chunk + 4);
        if (size > INT64_MAX) {
            return false;
        }
        if (size > left) {
            bool is_audio = memcmp(chunk, "data", 4) == 0;
            *out = (struct berth_outline){
                .what = is_audio ? "data chunk" : "last chunk", .promised = size, .came = left};
            return true;
        }
        at += CAF_CHUNK_HEAD + size;
    }
    return false;
}

/* An identifier of 16 bytes, size with head, little-endian: header, data, indexes. */
static bool objects_are_cut(const struct berth_media_input *input, struct berth_outline *out)
{
    static const uint8_t properties[16] = {0xA1, 0xDC, 0xAB, 0x8C, 0x47, 0xA9, 0xCF, 0x11,
                                           0x8E, 0xE4, 0x00, 0xC0, 0x0C, 0x20, 0x53, 0x65};
    size_t span = input->length < ASF_SPAN ? (size_t)input->length : ASF_SPAN;
    const uint8_t *found = memmem(input->bytes, span, properties, sizeof(properties));
    if (found != NULL && input->bytes + span - found > ASF_FLAGS && (found[ASF_FLAGS] & 1) != 0) {
        return false;
    }
    uint64_t at = 0;
    while (input->length - at >= ASF_HEAD) {
        uint64_t left = input->length - at;
        uint64_t size = __builtin_bswap64(get_u64(input->bytes + at + 16));
        if (size < ASF_HEAD || size > INT64_MAX) {
            return false;
        }
        if (size > left) {
            *out = (struct berth_outline){
                .what = at == 0 ? "header" : "data", .promised = size, .came = left};
            return true;
        }
        at += size;
    }
    return false;
}

static uint32_t get_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 |
           (uint32_t)bytes[3];
}

static uint64_t get_u64(const uint8_t *bytes)
{
    return (uint64_t)get_u32(bytes) << 32 | get_u32(bytes + 4);
}
