#!/usr/bin/env python3
"""Writes src/engine/whisper/unicode_ranges.h: the code points of Unicode's letters (L*) and numbers
(N*), which GPT-2's word splitting asks for. Needs nothing but Python.

usage: unicode_ranges.py > src/engine/whisper/unicode_ranges.h"""
import sys
import unicodedata


def ranges(kind):
    """[(first, last)] of the code points whose category starts with `kind`."""
    found = []
    for point in range(sys.maxunicode + 1):
        if unicodedata.category(chr(point))[0] != kind:
            continue
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def table(name, kind):
    print(f"static const struct unicode_range {name}[] = {{")
    line = "   "
    for first, last in ranges(kind):
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line + item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


print(f"""/* unicode_ranges.h - made by tools/unicode_ranges.py from Unicode {unicodedata.unidata_version}; do not edit. */
#ifndef BERTH_UNICODE_RANGES_H
#define BERTH_UNICODE_RANGES_H

#include <stdint.h>

struct unicode_range {{
    uint32_t first;
    uint32_t last;
}};
""")
table("unicode_letters", "L")
print()
table("unicode_numbers", "N")
print("\n#endif")
