#!/usr/bin/env python3
"""A multilingual "Whisper" of a few KB whose logits follow a table, to test the rules around the
model (language detection, translation, timestamps, suppression, silence) without weights.

It has the files, names and shapes of the common export form, and in OUT_DIR/berth those of berth's
own. What it hears: a window whose low mel bands are louder than the high ones is German, else
French; silence (mean mel under -1.2) is answered with a sure no-speech probability and unsure text.
What it says, whatever the previous text: with timestamps
    <|0.00|> Guten Tag<|1.00|><|1.00|> Welt<|2.00|>    (German)
    <|0.00|> Bon jour<|1.00|><|1.00|> monde<|2.00|>    (French)
    <|0.00|> Good day<|1.00|><|1.00|> world<|2.00|>    (translate)
and the same words in one go without. The raw logits prefer tokens that the rules forbid at nearly
every place, so a missing rule shows as other text. The caches hold the ids that were fed: a lost or
foreign cache shows too. Alignment (berth form): token at position p peaks at frame 10*p.

usage: whisper_scripted.py OUT_DIR"""
import pathlib
import sys

import numpy as np
import whisper_side as side
from onnx_graph import BOOL, FLOAT, INT32, INT64, Graph

MELS, FRAMES, WIDTH = 80, 1500, 2
WORDS = ["ĠGuten", "ĠTag", "ĠWelt", "ĠBon", "Ġjour", "Ġmonde", "ĠGood", "Ġday", "Ġworld",
         "Ġnever", "Ġhum"]
LANGUAGES = ["en", "de", "fr"]


def vocabulary():
    """The byte alphabet, then every prefix of the words, which their merges need on the way."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    pieces = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    for word in WORDS:
        pieces += [p for p in (word[:n] for n in range(2, len(word) + 1)) if p not in pieces]
    return {piece: i for i, piece in enumerate(pieces)}


WORD = vocabulary()
EOT = len(WORD)
SOT = EOT + 1
LANG = {name: SOT + 1 + i for i, name in enumerate(LANGUAGES)}
TRANSLATE = SOT + 1 + len(LANGUAGES)
TRANSCRIBE, START_LM, PREV, NO_SPEECH, NO_TIMES = (TRANSLATE + i for i in range(1, 6))
VOCAB = NO_TIMES + 1 + 1501
BASE = -20.0     # every logit that the table does not name
STEPS, CHOICES = 12, 6
SILENT = -1.2


def stamp(seconds):
    return NO_TIMES + 1 + round(seconds * 50)


def script(silent, translate, plain, french):
    """For each number of tokens after SOT, the candidates (id, logit) of the token to come."""
    words = ["ĠGood", "Ġday", "Ġworld"] if translate else \
        ["ĠBon", "Ġjour", "Ġmonde"] if french else ["ĠGuten", "ĠTag", "ĠWelt"]
    first, second, third = (WORD[w] for w in words)
    heard = LANG["fr" if french else "de"]
    steps = {0: [(heard, 10), (LANG["en"], 8), (NO_SPEECH, 2), (first, 11)],
             1: [(TRANSCRIBE, 10)]}
    never, space = WORD["Ġnever"], WORD["Ġ"]
    if plain:  # SOT, language, task, no_timestamps: four tokens are forced
        steps[3] = [(never, 12), (space, 11), (EOT, 10), (first, 9)]
        steps[4] = [(never, 12), (second, 9), (first, 8)]
        steps[5] = [(third, 9), (NO_TIMES, 8)]
    else:
        steps[2] = [(NO_TIMES, 13), (first, 12), (stamp(30), 11), (stamp(1.02), 10), (stamp(0), 9)]
        steps[3] = [(stamp(.02), 12), (first, 9)]
        steps[4] = [(never, 12), (second, 9)]
        # no stamp beats the text, together they do
        steps[5] = [(third, 9), (stamp(1), 8.6), (stamp(1.02), 8.4), (stamp(1.04), 8.4)]
        steps[6] = [(third, 12), (stamp(.5), 11), (stamp(1), 9)]
        steps[7] = [(stamp(1.5), 12), (third, 9)]
        steps[8] = [(stamp(2), 9), (third, 3)]
        steps[9] = [(third, 12), (EOT, 10)]
    if silent:  # six candidates alike at every place: log probability about -1.7 each
        unsure = [(i, 1.0) for i in range(CHOICES - 1)]
        steps = {n: [(WORD["Ġhum"], 1.1)] + unsure for n in range(3, 6)}
        steps[0] = [(NO_SPEECH, 10), (LANG["en"], 6)]
        steps[2] = [(stamp(.02 * i), 1.1 - .1 * (i > 0)) for i in range(CHOICES)]
        steps[6] = [(EOT, 1.1)] + unsure
    return [steps.get(n, [(EOT, 10)]) for n in range(STEPS)]


def tables():
    """ids and logits (16*STEPS, CHOICES), a row for each state and step."""
    ids, logits = [], []
    for state in range(16):
        flags = (state >> 3 & 1, state >> 2 & 1, state >> 1 & 1, state & 1)
        for choices in script(*flags):
            used = {i for i, _ in choices}
            spare = [i for i in range(CHOICES) if i not in used]  # the scatter wants distinct ids
            choices = choices + [(i, BASE) for i in spare[:CHOICES - len(choices)]]
            ids.append([i for i, _ in choices])
            logits.append([v for _, v in choices])
    return np.array(ids, np.int64), np.array(logits, np.float32)


class ScriptGraph(Graph):
    def flag(self, value):
        return self.op("Cast", value, to=INT64)

    def logits(self, history, end, audio, out):
        """history (B,N) f32 ids, end (B,T) i64 the position of each token, audio (B,2) mean levels
        of the low and high bands -> out (B,T,V)."""
        ids, values = tables()
        count = self.op("Gather", self.op("Shape", history), self.scalar(1, np.int64), axis=0)
        index = self.op("Range", self.scalar(0, np.int64), count, self.scalar(1, np.int64))
        seen = self.op("LessOrEqual", index, self.op("Unsqueeze", end, self.ints(2)))   # (B,T,N)
        history = self.op("Unsqueeze", history, self.ints(1))                           # (B,1,N)

        def last(token):  # (B,T): where the token stands, -1 if it was not fed
            there = self.op("And", seen, self.op("Equal", history, self.scalar(float(token))))
            place = self.op("Where", there, index, self.scalar(-1, np.int64))
            return self.op("ReduceMax", place, axes=[2], keepdims=0)

        def was_fed(token):
            return self.flag(self.op("GreaterOrEqual", last(token), self.scalar(0, np.int64)))

        low, high = (self.op("Gather", audio, self.ints(i), axis=1) for i in (0, 1))    # (B,1)
        mean = self.op("Mul", self.op("Add", low, high), self.scalar(0.5))
        state = self.flag(self.op("Less", mean, self.scalar(SILENT)))
        french = self.flag(self.op("Greater", high, low))
        for bit in (was_fed(TRANSLATE), was_fed(NO_TIMES), french):
            state = self.op("Add", self.op("Add", state, state), bit)                   # (B,T)
        step = self.op("Min", self.op("Max", self.op("Sub", end, last(SOT)), self.ints(0)),
                       self.ints(STEPS - 1))
        row = self.op("Add", self.op("Mul", state, self.ints(STEPS)), step)
        shape = self.op("Concat", self.op("Shape", row), self.ints(VOCAB), axis=0)
        return self.op("ScatterElements", self.op("Expand", self.scalar(BASE), shape),
                       self.op("Gather", self.const(ids), row, axis=0),
                       self.op("Gather", self.const(values), row, axis=0), axis=2, out=out)

    def levels(self, cache, axis):
        """A cache of the encoder's -> (B,2)"""
        return self.op("ReduceMean", cache, axes=[1, axis], keepdims=0)

    def pairs_of(self, ids):
        """(B,T) ids -> (B,1,T,2) f32, the form of a cache"""
        x = self.op("Unsqueeze", self.op("Cast", ids, to=FLOAT), self.ints(1, 3))
        return self.op("Concat", x, x, axis=3)

    def hidden(self):
        """input_features -> (B,1500,2): the mean of the low and of the high bands"""
        mel = self.input("input_features", FLOAT, ["B", MELS, 2 * FRAMES])
        weight = np.zeros((2, MELS, 2), np.float32)
        weight[0, :MELS // 2], weight[1, MELS // 2:] = 1 / MELS, 1 / MELS
        x = self.op("Conv", mel, self.const(weight), kernel_shape=[2], strides=[2])
        return self.op("Transpose", x, perm=[0, 2, 1])


# --- the common export form ---

CACHES = [f"0.{s}.{p}" for s in ("decoder", "encoder") for p in ("key", "value")]


def export_inputs(g, hidden, past):
    g.input("input_ids", INT64, ["B", "T"])
    if hidden:
        g.input("encoder_hidden_states", FLOAT, ["B", FRAMES, WIDTH])
    for cache in CACHES if past else []:
        g.input("past_key_values." + cache, FLOAT, ["B", 1, cache.split(".")[1], WIDTH])


def export_outputs(g, prefix, names, inner=False):
    for name in names:
        shape = ["B", "T", VOCAB] if name == "logits" else ["B", 1, name.split(".")[2], WIDTH]
        g.output(prefix + name, FLOAT, None if inner else shape)


def export_body(g, past, prefix):
    for part in ("key", "value"):
        fed = g.pairs_of("input_ids")
        if past:
            fed = g.op("Concat", f"past_key_values.0.decoder.{part}", fed, axis=2)
        else:
            g.op("Unsqueeze", "encoder_hidden_states", g.ints(1),
                 out=f"{prefix}present.0.encoder.{part}")
        g.op("Identity", fed, out=f"{prefix}present.0.decoder.{part}")
    history = g.op("Gather", f"{prefix}present.0.decoder.key", g.scalar(0, np.int64), axis=3)
    history = g.op("Squeeze", history, g.ints(1))                                       # (B,N)
    size = [g.op("Gather", g.op("Shape", x), g.scalar(1, np.int64), axis=0)
            for x in (history, "input_ids")]
    end = g.op("Range", g.op("Sub", *size), size[0], g.scalar(1, np.int64))             # (T)
    end = g.op("Expand", g.op("Unsqueeze", end, g.ints(0)), g.op("Shape", "input_ids"))
    cache = "past_key_values.0.encoder.value" if past else prefix + "present.0.encoder.value"
    g.logits(history, end, g.levels(cache, 2), prefix + "logits")


def export_form(out):
    names = ["logits"] + ["present." + cache for cache in CACHES]
    g = ScriptGraph()
    g.op("Identity", g.hidden(), out="last_hidden_state")
    g.output("last_hidden_state", FLOAT, ["B", FRAMES, WIDTH])
    g.save(out / "encoder_model.onnx", "encoder")
    for past, name in ((False, "decoder_model"), (True, "decoder_with_past_model")):
        g = ScriptGraph()
        export_inputs(g, not past, past)
        export_body(g, past, "")
        export_outputs(g, "", names[:3] if past else names)
        g.save(out / f"{name}.onnx", name)
    g = ScriptGraph()
    export_inputs(g, True, True)
    g.input("use_cache_branch", BOOL, [1])
    branches = {}
    for past, prefix in ((True, "cached_"), (False, "first_")):
        branch = branches[past] = ScriptGraph(prefix=prefix)
        export_body(branch, past, prefix)
        for part in ("key", "value") if past else ():
            branch.op("Identity", branch.const(np.zeros((0, 1, 1, WIDTH), np.float32)),
                      out=f"{prefix}present.0.encoder.{part}")
        export_outputs(branch, prefix, names, inner=True)
    g.op("If", "use_cache_branch", out=names, then_branch=branches[True].proto("cached"),
         else_branch=branches[False].proto("first"))
    export_outputs(g, "", names)
    g.save(out / "decoder_model_merged.onnx", "decoder_merged")


# --- berth's form ---


def berth_form(out):
    g = ScriptGraph()
    x = g.op("Unsqueeze", g.hidden(), g.ints(1))                                        # (B,1,S,2)
    g.op("Transpose", x, perm=[0, 1, 3, 2], out="cross_k_0")
    g.op("Identity", x, out="cross_v_0")
    g.output("cross_k_0", FLOAT, ["B", 1, WIDTH, FRAMES])
    g.output("cross_v_0", FLOAT, ["B", 1, FRAMES, WIDTH])
    g.save(out / "encoder_0.onnx", "encoder")
    g = ScriptGraph()
    g.input("input_ids", INT64, ["B", "T"])
    g.input("lengths", INT32, ["B"])
    g.input("logit_rows", INT64, ["R"])
    g.input("align", BOOL, [])
    steps = g.op("Gather", g.op("Shape", "input_ids"), g.scalar(1, np.int64), axis=0)
    steps = g.op("Range", g.scalar(0, np.int64), steps, g.scalar(1, np.int64))
    lengths = g.op("Unsqueeze", g.op("Cast", "lengths", to=INT64), g.ints(1))
    end = g.op("Add", lengths, steps)                                                   # (B,T)
    fed = g.pairs_of("input_ids")
    place = g.op("Expand", g.op("Unsqueeze", end, g.ints(1, 3)), g.op("Shape", fed))
    for part in "kv":
        g.input(f"past_{part}_0", FLOAT, ["B", 1, "C", WIDTH])
        g.op("ScatterElements", f"past_{part}_0", place, fed, axis=2, out=f"present_{part}_0")
        g.output(f"present_{part}_0", FLOAT, ["B", 1, "C", WIDTH])
    g.input("cross_k_0", FLOAT, ["B", 1, WIDTH, FRAMES])
    g.input("cross_v_0", FLOAT, ["B", 1, FRAMES, WIDTH])
    history = g.op("Squeeze", g.op("Gather", "present_k_0", g.scalar(0, np.int64), axis=3),
                   g.ints(1))
    all_logits = g.logits(history, end, g.levels("cross_v_0", 2), None)
    g.op("Gather", g.op("Reshape", all_logits, g.ints(-1, VOCAB)), "logit_rows", axis=0,
         out="logits")
    g.output("logits", FLOAT, ["R", VOCAB])
    asked, empty = Graph(prefix="asked_"), Graph(prefix="empty_")
    frame = asked.const(np.arange(FRAMES, dtype=np.float32))
    peak = asked.op("Mul", asked.op("Cast", end, to=FLOAT), asked.scalar(10.0))
    away = asked.op("Sub", frame, asked.op("Unsqueeze", peak, asked.ints(1, 3)))
    asked.op("Mul", asked.op("Mul", away, away), asked.scalar(-0.01), out="scores_asked")
    asked.output("scores_asked", FLOAT, None)
    empty.op("Identity", empty.const(np.zeros((0, 0, 0, 0), np.float32)), out="scores_empty")
    empty.output("scores_empty", FLOAT, None)
    g.op("If", "align", out="align_scores", then_branch=asked.proto("asked"),
         else_branch=empty.proto("empty"))
    g.output("align_scores", FLOAT, ["B", 1, "T", FRAMES])
    g.save(out / "decoder.onnx", "decoder")


# --- side files ---


def side_files(out):
    config = {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper",
        "vocab_size": VOCAB, "num_mel_bins": MELS, "d_model": WIDTH, "encoder_layers": 1,
        "encoder_attention_heads": 1, "decoder_layers": 1, "decoder_attention_heads": 1,
        "max_source_positions": FRAMES, "max_target_positions": 448,
        "decoder_start_token_id": SOT, "bos_token_id": EOT, "eos_token_id": EOT,
        "pad_token_id": EOT,
    }
    generation = {
        "alignment_heads": [[0, 0]], "begin_suppress_tokens": [WORD["Ġ"], EOT],
        "decoder_start_token_id": SOT, "eos_token_id": EOT, "is_multilingual": True,
        "lang_to_id": {f"<|{name}|>": i for name, i in LANG.items()},
        "max_initial_timestamp_index": 50, "max_length": 448,
        "no_timestamps_token_id": NO_TIMES, "pad_token_id": EOT,
        "prev_sot_token_id": PREV, "return_timestamps": False,
        "suppress_tokens": [WORD["Ġnever"], SOT, *LANG.values(), TRANSLATE, TRANSCRIBE, START_LM,
                            PREV, NO_SPEECH],
        "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    }
    special = {EOT: "<|endoftext|>", SOT: "<|startoftranscript|>", TRANSLATE: "<|translate|>",
               TRANSCRIBE: "<|transcribe|>", START_LM: "<|startoflm|>", PREV: "<|startofprev|>",
               NO_SPEECH: "<|nospeech|>", NO_TIMES: "<|notimestamps|>"}
    special.update({i: f"<|{name}|>" for name, i in LANG.items()})
    added = [{"id": i, "content": text, "special": True} for i, text in sorted(special.items())]
    merges = [f"{piece[:-1]} {piece[-1]}" for piece in WORD if len(piece) > 1]
    tokenizer = {"version": "1.0", "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                 "decoder": {"type": "ByteLevel"},
                 "model": {"type": "BPE", "vocab": WORD, "merges": merges}}
    side.write(out, "config.json", config)
    side.write(out, "generation_config.json", generation)
    side.write(out, "preprocessor_config.json", side.preprocessor_config(MELS))
    side.write(out, "tokenizer.json", tokenizer)


def convert(out):
    out = pathlib.Path(out)
    for folder, form in ((out, export_form), (out / "berth", berth_form)):
        folder.mkdir(parents=True, exist_ok=True)
        form(folder)
        side_files(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    convert(sys.argv[1])
