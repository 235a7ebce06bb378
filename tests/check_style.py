#!/usr/bin/env python3
"""Checks the rules of STYLE.md that a short script can check, over the files git knows.

Prints file:line: rule: message for each finding and ends with counts; exit status 1 if there are
any. Two comments on a line, or on the line before it, lift a rule there:
  /* lib-owned */   memory that a library took or will free: its own malloc or free is right
  /* lib-shaped */  a callback whose parameters a library prescribes

usage: tests/check_style.py [FILE...]       (default: the whole tree)
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
C_FILES = (".c", ".h", ".cu", ".cuh")
LINES_MAX = 70
PARAMETERS_MAX = 5
COLUMNS_MAX = 100

CALL = r"(?<![\w>.])({})\s*\("
MEMORY = re.compile(
    CALL.format(
        "malloc|calloc|realloc|reallocarray|free|strdup|strndup|asprintf|vasprintf"
        "|posix_memalign|aligned_alloc|getline|open_memstream"
    )
)
UNSAFE = re.compile(
    CALL.format("strcpy|stpcpy|strcat|sprintf|vsprintf|atoi|atol|atoll|atof|strtok|alloca|gets")
)
EXIT = re.compile(CALL.format("exit|quick_exit"))
TYPEDEF = re.compile(r"^\s*typedef\s+(struct|union|enum)\b")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\s*\(#\d+\))")

# Words that no file of the project may hold, and why.
DENIED = [
    (re.compile(r"(?<![\w.])/(work|root|Users)/|(?<![\w.])/home/\w"), "a path of one machine"),
    (re.compile(r"\.\./shared\b|(?<![\w/])shared/\w+\.md\b"), "a path outside the project"),
    (
        re.compile(r"\b(pypi|pythonhosted|debian|ubuntu)\.(org|com)\b", re.IGNORECASE),
        "a registry's or mirror's host: the machine's own settings say which",
    ),
]
TEXT_FILES = C_FILES + (
    ".py", ".sh", ".md", ".txt", ".build", ".options", ".json", ".yaml", ".yml", ".toml", ".pbtxt",
    ".proto", ".html", ".css", ".js", ".supp", ".ini", ".cfg", "",
)


def tracked():
    """Paths of the tree's files, relative to ROOT."""
    try:
        out = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True,
        ).stdout
        paths = [name.decode() for name in out.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [f for f in folders if not f.startswith((".", "build")) and f != "models"]
            paths += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(p for p in set(paths) if os.path.isfile(os.path.join(ROOT, p)))


def blank(match):
    """Keeps a comment's or string's line ends, so that line numbers stay."""
    text = match.group(0)
    if text[0] in "\"'":
        return text[0] + " " * (len(text) - 2) + text[0]
    return re.sub(r"[^\n]", " ", text)


LEXEMES = re.compile(
    r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL
)


def code_only(text):
    """The text with comments and the insides of strings made blank."""
    return LEXEMES.sub(blank, text)


def parameter_count(signature):
    """Number of parameters of `type name(a, b)`; signature ends with the closing parenthesis.
    Functions in printf's form stand behind a macro that adds file and line: counted as 0."""
    depth, commas = 0, 0
    inside = ""
    for char in reversed(signature):
        depth += (char == ")") - (char == "(")
        if depth == 0 and char == "(":
            break
        inside = char + inside
        commas += char == "," and depth == 1
    inside = inside.rstrip(")").strip()
    return 0 if inside in ("", "void") or inside.endswith("...") else commas + 1


def functions(code):
    """Yields (first line, name, lines of the body, parameters) of each function definition."""
    depth, line, start, statement = 0, 1, 0, ""
    first = 1
    head = None
    preprocessor = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
    code = preprocessor.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), code)
    for char in code:
        if char == "{":
            if depth == 0:
                signature = statement.strip()
                name = re.search(r"(\w+)\s*\(", signature)
                is_function = signature.endswith(")") and "=" not in signature
                head = (name.group(1), parameter_count(signature)) if is_function and name else None
                start = line
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                if head is not None:
                    yield first, head[0], max(line - start - 1, 0), head[1]
                head, statement = None, ""
        elif depth == 0:
            if not statement.strip():
                first = line
            statement = "" if char == ";" else statement + char
        line += char == "\n"


def lifted(lines, number, mark):
    """Whether the mark stands on the line or on the one before it."""
    around = lines[max(number - 2, 0) : number]
    return any(f"/* {mark} */" in line for line in around)


def check_calls(path, lines, code_lines):
    in_src = path.startswith("src/")
    for number, line in enumerate(code_lines, 1):
        match = MEMORY.search(line)
        if match and in_src and path != "src/base/mem.c" and not lifted(lines, number, "lib-owned"):
            yield number, "memory", f"{match.group(1)} outside base/mem.c"
        match = UNSAFE.search(line)
        if match:
            yield number, "unsafe", f"{match.group(1)} is not used here"
        match = EXIT.search(line)
        if match and in_src and not os.path.basename(path).startswith("main"):
            yield number, "exit", f"{match.group(1)} outside main.c"
        if TYPEDEF.search(line):
            yield number, "typedef", "no typedef for structs, unions and enums"


def check_functions(path, lines, code):
    if not path.startswith(("src/", "bench/")):
        return
    for number, name, length, parameters in functions(code):
        if length > LINES_MAX:
            yield number, "length", f"{name} has {length} lines, more than {LINES_MAX}"
        if parameters > PARAMETERS_MAX and not lifted(lines, number, "lib-shaped"):
            yield number, "parameters", f"{name} takes {parameters}, more than {PARAMETERS_MAX}"


def check_shape(path, text, lines):
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            yield number, "columns", f"{len(line)} columns, more than {COLUMNS_MAX}"
        if "\t" in line:
            yield number, "tab", "tabs are not used"
        if line != line.rstrip():
            yield number, "blank", "blanks at the end of the line"
    if text and not text.endswith("\n"):
        yield len(lines), "blank", "no line end at the end of the file"
    if path.startswith("src/") and not text.startswith("/*"):
        yield 1, "purpose", "a file begins with a comment that says what it is for"
    if path.endswith((".h", ".cuh")):
        stem = os.path.splitext(os.path.basename(path))[0]
        guard = "BERTH_" + re.sub(r"\W", "_", stem).upper() + "_H"
        if not re.search(rf"^#ifndef {guard}\n#define {guard}\n", text, re.MULTILINE):
            yield 1, "guard", f"the header guard is {guard}"


def check_words(path, lines):
    for number, line in enumerate(lines, 1):
        if path != "tests/check_style.py":
            for pattern, why in DENIED:
                match = pattern.search(line)
                if match:
                    yield number, "word", f"{match.group(0)}: {why}"
            if not path.endswith(".md") and UNFINISHED.search(line):
                yield number, "todo", "write it as TODO(#N) with an issue's number"


def check_names(paths):
    """File names are unique, so that a name says which file is meant."""
    seen = {}
    for path in paths:
        name = os.path.basename(path)
        if path.startswith("src/") and name.endswith(C_FILES):
            if name in seen:
                yield path, 1, "name", f"{seen[name]} has the same name"
            seen.setdefault(name, path)
            if not re.fullmatch(r"[a-z][a-z0-9_]*\.\w+", name):
                yield path, 1, "name", "file names are snake_case"


def check_file(path):
    with open(os.path.join(ROOT, path), "rb") as file:
        raw = file.read()
    if b"\0" in raw[:8192]:
        return
    text = raw.decode("utf-8", errors="replace")
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    yield from check_words(path, lines)
    if path.endswith(C_FILES):
        code = code_only(text)
        yield from check_calls(path, lines, code.split("\n"))
        yield from check_functions(path, lines, code)
        yield from check_shape(path, text, lines)


def main():
    everything = tracked()
    wanted = [os.path.relpath(os.path.abspath(p), ROOT) for p in sys.argv[1:]] or everything
    wanted = [p for p in wanted if os.path.splitext(p)[1] in TEXT_FILES]
    findings = 0
    for path in wanted:
        for number, rule, message in check_file(path):
            print(f"{path}:{number}: {rule}: {message}")
            findings += 1
    for path, number, rule, message in check_names(everything):
        if path in wanted:
            print(f"{path}:{number}: {rule}: {message}")
            findings += 1
    print(f"check_style: {len(wanted)} files, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
