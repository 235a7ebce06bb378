#!/usr/bin/env python3
"""A Whisper folder -> berth's graphs and side files (numpy and onnx only). Any size, English or
multilingual, in CTranslate2's form (model.bin) or Hugging Face's (model.safetensors).

usage: whisper.py MODEL_DIR OUT_DIR [--float]"""
import argparse
import pathlib
import shutil

import ct2_reader
import hf_reader
import whisper_graphs as graphs
import whisper_side as side


def load(source):
    """-> (weights, heads, alignment pairs in the order of the graph's output, write): write(out)
    writes the side files."""
    is_ct2 = (source / "model.bin").exists()
    weights, heads, config = (ct2_reader if is_ct2 else hf_reader).load_whisper(source)
    pairs = sorted(tuple(pair) for pair in config.get("alignment_heads") or [])
    config = {**config, "alignment_heads": pairs}

    def write(out):
        names = ["tokenizer.json"]
        if is_ct2:
            side.write_all(out, weights, heads, config)
        else:
            side.write(out, "generation_config.json", config)
            names += ["config.json", "preprocessor_config.json"]
        for name in names:
            if (source / name).exists():
                shutil.copyfile(source / name, out / name)

    return weights, heads, pairs, write


def convert(source, out, int8=True):
    source, out = pathlib.Path(source), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    weights, heads, pairs, write_side_files = load(source)
    metadata = {"quantisation": "int8" if int8 else "none"}
    cuts = graphs.encoder_cuts(weights)
    for i in range(len(cuts)):
        piece = graphs.encoder_piece(weights, heads, int8, cuts, i)
        piece.save(out / f"encoder_{i}.onnx", "whisper_encoder", metadata)
    graphs.decoder(weights, heads, int8, pairs).save(out / "decoder.onnx", "whisper_decoder",
                                                     metadata)
    write_side_files(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--float", action="store_true", help="fp32 arithmetic, stored as fp16")
    arguments = parser.parse_args()
    convert(arguments.model, arguments.out, not arguments.float)
