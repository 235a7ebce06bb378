/* inflate.c - see inflate.h. zlib takes its memory from base/mem.h, so that tests can fail it. */
#include "net/inflate.h"

#include <limits.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"

struct berth_inflate {
    z_stream stream;
    bool done;
};

static void *take(void *subject, unsigned items, unsigned size);
static void give(void *subject, void *memory);

struct berth_inflate *berth_inflate_create(bool gzip)
{
    struct berth_inflate *coder = berth_alloc(sizeof(*coder));
    if (coder == NULL) {
        return NULL;
    }
    coder->stream.zalloc = take;
    coder->stream.zfree = give;
    if (inflateInit2(&coder->stream, gzip ? MAX_WBITS + 16 : MAX_WBITS) != Z_OK) {
        berth_free(coder);
        return NULL;
    }
    return coder;
}

void berth_inflate_destroy(struct berth_inflate *coder)
{
    if (coder == NULL) {
        return;
    }
    inflateEnd(&coder->stream);
    berth_free(coder);
}

enum berth_code berth_inflate_run(struct berth_inflate *coder, struct berth_inflate_io *io,
                                  struct berth_err *err)
{
    z_stream *stream = &coder->stream;
    io->in_used = 0;
    io->out_made = 0;
    if (coder->done) {
        return io->in_length == 0
                   ? BERTH_OK
                   : berth_fail(err, BERTH_INVALID, "bytes after the end of the compressed body");
    }
    if (io->out_length == 0) {
        return BERTH_OK;
    }
    /* Without input there may still be output that found no room before. */
    size_t in_length = io->in_length < INT_MAX ? io->in_length : INT_MAX;
    size_t out_length = io->out_length < INT_MAX ? io->out_length : INT_MAX;
    stream->next_in = (z_const Bytef *)io->in;
    stream->avail_in = (uInt)in_length;
    stream->next_out = io->out;
    stream->avail_out = (uInt)out_length;
    int result = inflate(stream, Z_NO_FLUSH);
    io->in_used = in_length - stream->avail_in;
    io->out_made = out_length - stream->avail_out;
    switch (result) {
    case Z_STREAM_END:
        coder->done = true;
        return BERTH_OK;
    case Z_OK:
    case Z_BUF_ERROR: /* no progress was possible: more input or room will do */
        return BERTH_OK;
    case Z_MEM_ERROR:
        return berth_fail(err, BERTH_UNAVAILABLE, "no memory to inflate the body");
    default:
        return berth_fail_field(err, BERTH_INVALID, "Content-Encoding",
                                "the body is not what its Content-Encoding says");
    }
}

bool berth_inflate_done(const struct berth_inflate *coder)
{
    return coder->done;
}

static void *take(void *subject, unsigned items, unsigned size)
{
    size_t bytes;
    (void)subject;
    return berth_mul_size(items, size, &bytes) ? berth_alloc(bytes) : NULL;
}

static void give(void *subject, void *memory)
{
    (void)subject;
    berth_free(memory);
}
