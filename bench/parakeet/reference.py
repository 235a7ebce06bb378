"""What the Parakeet comparisons share: the reference model, its features, its greedy path, and what
`berth bench parakeet --dump` wrote.

Needs torch and transformers 5.17 (ParakeetForTDT). transformers' own feature extractor wants librosa
for the mel filters; Features does the same in torch alone, and runs on the model's device.
"""
import json
import pathlib

import numpy as np
import torch

RATE = 16000


def mel_filters(mels, fft):
    """Slaney's triangles over fft // 2 + 1 frequencies, each of unit area: (mels, fft // 2 + 1)."""
    def to_mel(hz):
        return np.where(hz < 1000, hz * 3 / 200, 15 + np.log(np.maximum(hz, 1) / 1000) * 27 / np.log(6.4))

    def to_hz(mel):
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))
    corners = to_hz(np.linspace(0, to_mel(np.float64(RATE / 2)), mels + 2))
    bins = np.linspace(0, RATE / 2, fft // 2 + 1)
    rise = (bins[None, :] - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    fall = (corners[2:, None] - bins[None, :]) / (corners[2:] - corners[1:-1])[:, None]
    triangles = np.maximum(0, np.minimum(rise, fall)) * (2 / (corners[2:] - corners[:-2]))[:, None]
    return torch.from_numpy(triangles.astype(np.float32))


class Features:
    """PCM (rows, samples) and lengths to float32 features (rows, frames, mels) and their mask."""

    def __init__(self, folder, device):
        rules = json.loads((pathlib.Path(folder) / "preprocessor_config.json").read_text())
        self.fft, self.window_length = rules.get("n_fft", 512), rules.get("win_length", 400)
        self.hop, self.emphasis = rules.get("hop_length", 160), rules.get("preemphasis", 0.97)
        self.filters = mel_filters(rules.get("feature_size", 80), self.fft).to(device)
        self.window = torch.hann_window(self.window_length, periodic=False, device=device)

    def __call__(self, pcm, lengths):
        valid = torch.arange(pcm.shape[1], device=pcm.device)[None, :] < lengths[:, None]
        pcm = torch.cat([pcm[:, :1], pcm[:, 1:] - self.emphasis * pcm[:, :-1]], dim=1) * valid
        spectrum = torch.stft(pcm, self.fft, hop_length=self.hop, win_length=self.window_length,
                              window=self.window, return_complex=True, pad_mode="constant")
        power = torch.view_as_real(spectrum).pow(2).sum(-1)
        logs = torch.log(self.filters @ power + 2.0 ** -24).transpose(1, 2)
        frames = lengths // self.hop
        mask = torch.arange(logs.shape[1], device=pcm.device)[None, :] < frames[:, None]
        inside = mask.unsqueeze(-1)
        mean = (logs * inside).sum(1) / frames[:, None]
        spread = (((logs - mean[:, None]) ** 2 * inside).sum(1) / (frames[:, None] - 1)).sqrt()
        return (logs - mean[:, None]) / (spread[:, None] + 1e-5) * inside, mask


def load(folder, dtype, device):
    from transformers import ParakeetForTDT
    return ParakeetForTDT.from_pretrained(folder, dtype=dtype).to(device).eval()


def encode(model, features, mask):
    """Encoder output (rows, frames, hidden), projected (rows, frames, prediction), in float32."""
    out = model.get_audio_features(input_features=features.to(model.dtype), attention_mask=mask)
    return out.last_hidden_state.float(), out.pooler_output.float()


class Path:
    """The greedy path of one row, a step each: the frame, and the prediction net's output there."""

    def __init__(self):
        self.frames, self.states = [], []
        self.token_logits, self.duration_logits = [], []
        self.tokens, self.durations = [], []


def logits_at(model, projected, states):
    """Joint network's logits for (n, prediction) pairs: tokens, durations."""
    out = model.joint(encoder_hidden_states=projected.to(model.dtype),
                      decoder_hidden_states=states.to(model.dtype)).float()
    return out[..., :model.config.vocab_size], out[..., model.config.vocab_size:]


def greedy(model, projected):
    """The TDT greedy path over one row's (frames, prediction); at most max_symbols_per_step tokens
    at one frame."""
    config, path = model.config, Path()
    decoder, lstm_state = model.decoder, None
    frame, symbols, state = 0, 0, None
    token = config.blank_token_id
    while frame < projected.shape[0]:
        if state is None or token != config.blank_token_id:
            ids = torch.tensor([[token]], device=projected.device)
            out, lstm_state = decoder.lstm(decoder.embedding(ids), lstm_state)
            state = decoder.decoder_projector(out)[0, 0].float()
        token_logits, duration_logits = logits_at(model, projected[frame], state)
        token = int(token_logits.argmax())
        duration = config.durations[int(duration_logits.argmax())]
        blank = token == config.blank_token_id
        if blank and duration == 0:
            duration = 1
        path.frames.append(frame)
        path.states.append(state)
        path.token_logits.append(token_logits)
        path.duration_logits.append(duration_logits)
        path.tokens.append(token)
        path.durations.append(duration)
        symbols = symbols + 1 if duration == 0 else 0
        if symbols >= config.max_symbols_per_step:
            duration, symbols = 1, 0
        frame += duration
    return path


def emitted(path, blank):
    """Tokens, frames and durations of a path, without its blanks."""
    kept = [i for i, token in enumerate(path.tokens) if token != blank]
    return ([path.tokens[i] for i in kept], [path.frames[i] for i in kept],
            [path.durations[i] for i in kept])


class Dump:
    """One bucket as --dump wrote it: ROWSxSAMPLES.json and .{pcm,features,encoded,projected}.f32."""

    def __init__(self, folder, rows):
        found = sorted(pathlib.Path(folder).glob(f"{rows}x*.json"))
        if not found:
            raise SystemExit(f"{folder} holds no bucket of {rows} rows")
        self.stem = found[-1].with_suffix("")
        facts = json.loads(found[-1].read_text())
        self.rows = facts["rows"]
        self.facts = facts
        self.lengths = torch.tensor([row["samples"] for row in self.rows])

    def _read(self, name, *shape):
        values = np.fromfile(f"{self.stem}.{name}.f32", dtype=np.float32)
        return torch.from_numpy(values.reshape(len(self.rows), *shape))

    def pcm(self):
        return self._read("pcm", self.facts["samples"])

    def features(self):
        return self._read("features", self.facts["features"], self.facts["mels"])

    def encoded(self):
        return self._read("encoded", self.facts["frames"], self.facts["hidden"])

    def projected(self):
        return self._read("projected", self.facts["frames"], self.facts["prediction"])


def relative_error(out, reference, frames):
    """||out - reference|| / ||reference|| over each row's own frames."""
    difference = sum(float((out[i][:n] - reference[i][:n]).double().square().sum())
                     for i, n in enumerate(frames))
    norm = sum(float(reference[i][:n].double().square().sum()) for i, n in enumerate(frames))
    return (difference / norm) ** 0.5


def cosines(out, reference, frames):
    """Of every frame of every row, one after the other."""
    return torch.cat([torch.nn.functional.cosine_similarity(
        out[i][:n].double(), reference[i][:n].double(), dim=-1) for i, n in enumerate(frames)])
