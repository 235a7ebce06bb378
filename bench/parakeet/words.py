"""What does fp8 cost in words? Both precisions of one Parakeet model, served side by side.

usage: words.py --make 400 --clips DIR                  (speaks sentences; needs espeak-ng and flite)
       words.py --clips DIR --berth PROGRAM --model FOLDER [--clients 8] [--out DIR]

--make takes synopses of Debian's packages (apt-cache) and speaks them with the voices in turn:
DIR/NNNN.wav, DIR/sentences.json. Without it they are sent to `berth serve`,
8 at a time, to the model as fp16 and as fp8; printed are the word errors of both against what was
spoken, and how many words differ between the two. Exits with 1 if fp8's errors are more than 0.2
points above fp16's. DIR of --out gets the texts.
"""
import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from common import Server, free_port  # noqa: E402
from speech import text_of_berth, word_edits, words  # noqa: E402

PRECISIONS = ("fp16", "fp8")
POINTS = 0.2
VOICES = ("en-us+f2", "slt", "en-us+m3", "rms", "en-gb+f5", "awb", "en-us", "en-us+m7", "kal16", "en-gb")
FLITE = {"slt", "rms", "awb", "kal16"}


def sentences(count):
    """Of the packages' synopses, in the order of their names: plain ones of 5 to 18 words."""
    text = subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True, text=True).stdout
    found = dict.fromkeys(line for line in re.findall(r"^Description: (.*)", text, re.MULTILINE)
                          if re.fullmatch(r"[A-Za-z][a-z]+( [a-z]+){4,17}", line))
    chosen = list(found)
    return chosen[::max(1, len(chosen) // count)][:count]


def make(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    spoken = {}
    for i, sentence in enumerate(sentences(count)):
        voice, path = VOICES[i % len(VOICES)], folder / f"{i:04}.wav"
        command = (["flite", "-voice", voice, "-t", sentence, "-o", str(path)] if voice in FLITE
                   else ["espeak-ng", "-v", voice, "-w", str(path), sentence])
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        spoken[path.name] = sentence
    (folder / "sentences.json").write_text(json.dumps(spoken, indent=1))
    print(f"{len(spoken)} sentences, {sum(len(words(s)) for s in spoken.values())} words in {folder}")


def make_models(folder, model):
    """A repository with the model once for each precision."""
    for precision in PRECISIONS:
        (folder / precision).mkdir()
        (folder / precision / "1").symlink_to(model.resolve())
        (folder / precision / "config.pbtxt").write_text(
            'backend: "parakeet"\n'
            f'parameters {{ key: "precision" value {{ string_value: "{precision}" }} }}\n')


def transcribe(options, spoken):
    """{precision: [text]}"""
    with tempfile.TemporaryDirectory() as scratch:
        make_models(pathlib.Path(scratch), options.model)
        port = free_port()
        command = [str(options.berth), "serve", "--models", scratch, "--listen", f"127.0.0.1:{port}"]
        with Server("words", command, port) as server, \
                concurrent.futures.ThreadPoolExecutor(options.clients) as pool:
            server.wait_ready()
            return {precision: list(pool.map(
                lambda name, p=precision: text_of_berth(server, options.clips / name, p), spoken))
                for precision in PRECISIONS}


def compare(options):
    spoken = json.loads((options.clips / "sentences.json").read_text())
    references = list(spoken.values())
    texts = transcribe(options, spoken)
    count = sum(len(words(reference)) for reference in references)
    share = {}
    for precision, ours in texts.items():
        edits = sum(map(word_edits, ours, references))
        share[precision] = 100 * edits / count
        print(f"{precision}: {edits} of {count} words wrong, {share[precision]:.2f} %")
    apart = sum(map(word_edits, texts["fp8"], texts["fp16"]))
    same = sum(a == b for a, b in zip(texts["fp8"], texts["fp16"]))
    print(f"fp8 beside fp16: {apart} words apart, {same} of {len(references)} texts the same")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "words.json").write_text(json.dumps({"spoken": spoken, **texts}, indent=1))
    return 0 if share["fp8"] <= share["fp16"] + POINTS else 1


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--make", type=int)
    parser.add_argument("--clips", type=pathlib.Path, required=True)
    parser.add_argument("--berth", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.make:
        return make(options.clips, options.make)
    if not options.berth or not options.model:
        parser.error("--berth and --model, or --make")
    return compare(options)


if __name__ == "__main__":
    sys.exit(main())
