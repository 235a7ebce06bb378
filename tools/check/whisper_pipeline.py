"""Runs berth's Whisper graphs in Python: the reference for the C engine, and what checks the
converter. Needs numpy and onnxruntime. Greedy, the rules of faster-whisper with beam 1,
temperature 0 and condition_on_previous_text off."""
import json
import math
import os
import pathlib
import wave

import numpy as np

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read when the library is loaded
import onnxruntime as ort  # noqa: E402

RATE, FFT, HOP, WINDOW = 16000, 400, 160, 3000


def load_wav(path):
    """Any PCM16 WAV -> mono f32 at 16 kHz."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"{path}: not 16 bit")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        samples = samples.astype(np.float32).reshape(-1, file.getnchannels()).mean(1) / 32768
        return resample(samples, file.getframerate(), RATE)


def resample(x, source, target, half=32):
    """Rational windowed-sinc resampler, Kaiser window with beta 9."""
    if source == target:
        return x
    common = math.gcd(source, target)
    up, down = target // common, source // common
    ratio = min(1.0, target / source)
    cutoff, taps = ratio * 0.95, int(half / ratio)
    count = int(np.ceil(len(x) * up / down))
    y, padded = np.zeros(count, np.float32), np.pad(x, (taps, taps + down))
    k = np.arange(-taps + 1, taps + 1)
    for phase in range(min(up, count)):  # output phase + up*m sits at time (phase + up*m)*down/up
        at = np.arange(phase, count, up) * down / up
        first = np.floor(at).astype(np.int64)
        u = k - (at[0] - first[0])
        window = np.i0(9 * np.sqrt(np.clip(1 - (u / (taps + 1)) ** 2, 0, 1))) / np.i0(9)
        index = np.clip(first[:, None] + k[None] + taps, 0, len(padded) - 1)
        y[phase::up] = (padded[index] * (cutoff * np.sinc(cutoff * u) * window)).sum(1)
    return y


def mel_filters(mels):
    """Slaney scale and area normalisation, 0 to 8000 Hz: (mels, 201)."""
    def to_mel(f):
        return f / (200 / 3) if f < 1000 else 15 + np.log(f / 1000) / (np.log(6.4) / 27)

    points = np.linspace(0, to_mel(8000.0), mels + 2)
    hertz = np.where(points < 15, points * (200 / 3),
                     1000 * np.exp((np.log(6.4) / 27) * (points - 15)))
    ramps, width = hertz[:, None] - np.fft.rfftfreq(FFT, 1 / RATE)[None], np.diff(hertz)
    filters = np.maximum(0, np.minimum(-ramps[:-2] / width[:-1, None], ramps[2:] / width[1:, None]))
    return (filters * (2 / (hertz[2:] - hertz[:-2]))[:, None]).astype(np.float32)


def log_mel(samples, mels=80):
    """-> (mels, frames); the ceiling of the dynamic range is the whole file's maximum."""
    x = np.pad(np.pad(samples.astype(np.float32), (0, 160)), (FFT // 2, FFT // 2), mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(x, FFT)[::HOP]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)).astype(np.float32)
    power = (np.abs(np.fft.rfft(frames * hann, axis=-1).astype(np.complex64)) ** 2)[:-1].T
    mel = np.log10(np.maximum(mel_filters(mels) @ power, 1e-10))
    return ((np.maximum(mel, mel.max() - 8) + 4) / 4).astype(np.float32)


class Tokens:
    """ids -> text, from tokenizer.json."""

    def __init__(self, path):
        data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.text = {i: t for t, i in data["model"]["vocab"].items()}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in printable]
        self.byte = {chr(b): b for b in printable}
        self.byte.update({chr(256 + n): b for n, b in enumerate(others)})

    def decode(self, ids, stop):
        data = bytes(self.byte[c] for i in ids if i < stop for c in self.text[i])
        return data.decode("utf-8", "replace")


class Slots:
    """Caches of up to `count` rows; the graphs write them in place."""

    def __init__(self, model, count):
        self.model, self.lengths = model, np.zeros(count, np.int32)
        self.past = [np.zeros((count, model.heads, model.capacity, 64), np.float32)
                     for _ in model.past]
        self.cross = [np.zeros((count, *shape), dtype) for _, shape, dtype in model.cross]


class Whisper:
    def __init__(self, folder, threads=1, capacity=448):
        folder = pathlib.Path(folder)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3

        def session(path):
            return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

        self.pieces = [session(folder / f"encoder_{i}.onnx")
                       for i in range(len(list(folder.glob("encoder_*.onnx"))))]
        self.decoder = session(folder / "decoder.onnx")
        self.config = json.loads((folder / "config.json").read_text())
        self.generation = json.loads((folder / "generation_config.json").read_text())
        self.tokens = Tokens(folder / "tokenizer.json")
        self.heads, self.capacity = self.config["decoder_attention_heads"], capacity
        inputs = self.decoder.get_inputs()
        self.past = [i.name for i in inputs if i.name.startswith("past_")]
        self.cross = [(i.name, i.shape[1:], np.float32 if "float16" not in i.type else np.float16)
                      for i in inputs if i.name.startswith("cross_")]
        self.aligns = "align_scores" in [o.name for o in self.decoder.get_outputs()]
        g = self.generation
        self.eot, self.sot = g["eos_token_id"], g["decoder_start_token_id"]
        self.no_timestamps = g["no_timestamps_token_id"]
        self.first_time, self.no_speech = self.no_timestamps + 1, self.no_timestamps - 1

    def encode(self, mel):
        """(1,mels,3000) -> the cross caches of one row, in the decoder's order."""
        x = {"input_features": mel}
        for piece in self.pieces[:-1]:
            x = {"hidden_in": piece.run(["hidden_out"], x)[0]}
        return self.pieces[-1].run([name for name, _, _ in self.cross], x)

    def join(self, slots, row, cross):
        for own, new in zip(slots.cross, cross):
            own[row] = new[0]
        slots.lengths[row] = 0

    def run(self, slots, ids, first=0, logit_rows=None, align=False):
        """One call over the slots first..first+B-1; ids (B,T). -> logits (R,V), align_scores
        where asked for."""
        batch, steps = ids.shape
        rows = slice(first, first + batch)
        binding = self.decoder.io_binding()
        keep = []

        def bind(name, array):
            keep.append(array)  # the binding holds a bare address
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

        if logit_rows is None:
            logit_rows = np.arange(batch, dtype=np.int64) * steps + steps - 1
        bind("input_ids", np.ascontiguousarray(ids, np.int64))
        bind("lengths", slots.lengths[rows])
        bind("logit_rows", np.asarray(logit_rows, np.int64))
        bind("align", np.array(align))
        for (name, _, _), own in zip(self.cross, slots.cross):
            bind(name, own[rows])
        for name, own in zip(self.past, slots.past):
            view = own[rows]
            bind(name, view)
            binding.bind_output(name.replace("past", "present"), "cpu", 0, np.float32, view.shape,
                                view.ctypes.data)
        binding.bind_output("logits")
        if align and self.aligns:
            binding.bind_output("align_scores")
        self.decoder.run_with_iobinding(binding)
        slots.lengths[rows] += steps
        found = [o.numpy() for o in binding.get_outputs()[len(self.past):]]
        return found[0], found[1] if len(found) > 1 else None


class Row:
    """One window being decoded: masks, picks, and knows when it is done."""

    def __init__(self, model, timestamps=True):
        self.model, self.timestamps = model, timestamps
        self.out, self.logprob, self.no_speech, self.done = [], 0.0, 0.0, False
        self.prompt = [model.sot] if timestamps else [model.sot, model.no_timestamps]
        self.fed, self.next = 0, self.prompt[0]

    def _mask(self, logits):
        m, out = self.model, self.out
        logits[m.generation["suppress_tokens"]] = -np.inf
        if not out:
            logits[m.generation["begin_suppress_tokens"]] = -np.inf
        if not self.timestamps:
            return
        logits[m.no_timestamps] = -np.inf
        first = m.first_time
        if not out:
            logits[:first] = -np.inf
            logits[first + m.generation["max_initial_timestamp_index"] + 1:] = -np.inf
            return
        stamps = [t for t in out if t >= first]
        if stamps:
            logits[first:stamps[-1]] = -np.inf
        if out[-1] >= first:
            if len(out) < 2 or out[-2] >= first:
                logits[first:] = -np.inf
                return
            logits[:m.eot] = -np.inf
        peak = logits.max()
        total = np.exp(logits[first:] - peak).sum()
        if np.log(max(total, 1e-38)) + peak > logits[:first].max():
            logits[:first] = -np.inf

    def take(self, logits):
        """The logits (V) of the token just fed: sets `next`, or `done`."""
        if self.fed == 0:
            e = np.exp(logits - logits.max())
            self.no_speech = float(e[self.model.no_speech] / e.sum())
        self.fed += 1
        if self.fed < len(self.prompt):
            self.next = self.prompt[self.fed]
            return
        logits = logits.copy()
        self._mask(logits)
        token, peak = int(logits.argmax()), logits.max()
        self.logprob += float(logits[token] - peak - np.log(np.exp(logits - peak).sum()))
        if token == self.model.eot or len(self.out) + 1 >= 224:
            if token != self.model.eot:
                self.out.append(token)
            self.done = True
            return
        self.out.append(token)
        self.next = token

    @property
    def average(self):
        return self.logprob / (len(self.out) + 1)


def decode(model, slots, rows):
    """Steps the rows, row i in slot i, until all are done."""
    while not all(row.done for row in rows):
        before = slots.lengths.copy()
        logits, _ = model.run(slots, np.array([[row.next] for row in rows]))
        for i, row in enumerate(rows):
            if row.done:
                slots.lengths[i] = before[i]
            else:
                row.take(logits[i])


def segments(row, offset, size):
    """(start, end, tokens) of a window of `size` frames, and how far to seek."""
    out, first = row.out, row.model.first_time
    cuts = [i for i in range(1, len(out)) if out[i] >= first and out[i - 1] >= first]
    single = len(out) >= 2 and out[-2] < first <= out[-1]
    if cuts:
        found, last = [], 0
        for cut in cuts + ([len(out)] if single else []):
            part = out[last:cut]
            start, end = ((part[i] - first) * .02 for i in (0, -1))
            found.append((offset + start, offset + end, part))
            last = cut
        return found, size if single else (out[last - 1] - first) * 2
    stamps, length = [t for t in out if t >= first], size / 100
    if stamps and stamps[-1] != first:
        length = (stamps[-1] - first) * .02
    return [(offset, offset + length, out)], size


def transcribe(model, samples, timestamps=True):
    """-> [(start, end, tokens, average log probability, no_speech)]"""
    mel, found, seek = log_mel(samples, model.config["num_mel_bins"]), [], 0
    count, slots = mel.shape[1] - 1, Slots(model, 1)
    while seek < count:
        size = min(WINDOW, count - seek)
        window = np.pad(mel[:, seek:seek + size], ((0, 0), (0, WINDOW - size)))[None]
        model.join(slots, 0, model.encode(window))
        row = Row(model, timestamps)
        decode(model, slots, [row])
        if row.no_speech > 0.6 and row.average <= -1:
            seek += size
            continue
        parts, step = segments(row, seek / 100, size)
        found += [(*part, row.average, row.no_speech) for part in parts]
        seek += step
    return [s for s in found if s[0] != s[1] and model.tokens.decode(s[2], model.eot).strip()]
