#!/usr/bin/env python3
"""A CTranslate2 Whisper folder -> berth's graphs and side files (numpy and onnx only).

usage: whisper.py MODEL_DIR OUT_DIR [--float]"""
import argparse
import pathlib
import shutil

import ct2_reader
import whisper_graphs as graphs
import whisper_side as side


def convert(source, out, int8=True):
    source, out = pathlib.Path(source), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    weights, heads, config = ct2_reader.load_whisper(source)
    pairs = sorted(tuple(pair) for pair in config["alignment_heads"])
    config["alignment_heads"] = [list(pair) for pair in pairs]
    metadata = {"quantisation": "int8" if int8 else "none"}
    cuts = graphs.encoder_cuts(weights)
    for i in range(len(cuts)):
        piece = graphs.encoder_piece(weights, heads, int8, cuts, i)
        piece.save(out / f"encoder_{i}.onnx", "whisper_encoder", metadata)
    graphs.decoder(weights, heads, int8, pairs).save(out / "decoder.onnx", "whisper_decoder",
                                                     metadata)
    side.write_all(out, weights, heads, config)
    shutil.copyfile(source / "tokenizer.json", out / "tokenizer.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--float", action="store_true", help="fp32 arithmetic, stored as fp16")
    arguments = parser.parse_args()
    convert(arguments.model, arguments.out, not arguments.float)
