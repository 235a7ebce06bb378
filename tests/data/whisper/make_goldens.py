#!/usr/bin/env python3
"""Makes what test_mel.c and test_tokens.c compare with: log-mel features of a chirp by the Python
reference (tools/check/whisper_pipeline.py), and token ids by Hugging Face's tokenizers.
Needs numpy, onnxruntime and tokenizers.

usage: make_goldens.py TOKENIZER_JSON   (of tiny.en; writes into its own folder)"""
import json
import pathlib
import sys

import numpy as np
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "tools" / "check"))
from whisper_pipeline import log_mel  # noqa: E402

TEXTS = [
    "Hello, world!", " It was the best of times, it was the worst of times.", "a", " ", "  ", "   x",
    "x   ", "tabs\tand\nlines\r\n", " \n \n end", "I'm you're we've they'll he'd it's don't",
    "I'M YOU'RE", "'s", "''s", "12345 6789", "3.14159, 2^10", "v1.2-rc3 (beta)", "R&B <b>bold</b>",
    "snake_case camelCase", "¿Qué tal? Ñandú", "naïve café", "Überraschung, größer", "Привет, мир",
    "你好，世界", "こんにちは世界", "안녕하세요", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดี", "😀 emoji 👩‍👩‍👧 🇩🇪", "½ ² ⅷ ١٢٣",
    "a\u00a0b", "a\u3000b", "x\u200by", "e\u0301", "<|endoftext|>", "<|startoftranscript|><|en|>",
    "♪♪ la la ♪", "\"quoted\" 'single' “curly”", "--- === ...", "http://example.org/a?b=c&d=e",
    "a" * 100, " supercalifragilisticexpialidocious antidisestablishmentarianism", "\u0000", "\x7f",
    "𝒜𝓁𝓅𝒽𝒶 𐍈", "O'Brien's o'clock 'twas", "\u2028line\u2029para", "tail ",
]


def chirp(count):
    t = np.arange(count) / 16000
    x = 0.3 * np.sin(2 * np.pi * (200 * t + 900 * t * t)) + 0.05 * np.sin(2 * np.pi * 3000 * t)
    x[count // 2:count // 2 + 1600] = 0
    return x.astype(np.float32)


def main(path):
    for mels, count in ((80, 16123), (128, 8000)):
        log_mel(chirp(count), mels).T.astype("<f4").tofile(HERE / f"mel_chirp_{mels}.f32")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True  # text is text, whatever it looks like
    cases = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
             for text in TEXTS]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / "tokens_en.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
