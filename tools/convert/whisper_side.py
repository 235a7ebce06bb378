"""The side files of a Whisper folder in Hugging Face's form, which is all the engine reads."""
import json

# The order of the language tokens in every multilingual Whisper vocabulary; yue came with large-v3.
LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da "
    "hu ta no th ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy "
    "ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht "
    "ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
).split()


def special_ids(vocab):
    """Ids of the special tokens, from the vocabulary's size alone: Whisper's layout is fixed."""
    multilingual = vocab >= 51865
    eot = 50257 if multilingual else 50256
    sot = eot + 1
    languages = vocab - 51865 + 99 if multilingual else 99
    # then: translate, transcribe, startoflm, startofprev, nospeech, notimestamps
    after = sot + 1 + languages
    return {"eot": eot, "sot": sot, "languages": languages, "multilingual": multilingual,
            "translate": after, "transcribe": after + 1, "prev": after + 3, "no_speech": after + 4,
            "no_timestamps": after + 5}


def _layers(weights, side):
    return len([name for name in weights if name.startswith(side + ".") and
                name.endswith(".fc1.weight")])


def model_config(weights, heads):
    vocab, width = weights["decoder.embed_tokens.weight"].shape
    ids = special_ids(vocab)
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": vocab,
        "num_mel_bins": weights["encoder.conv1.weight"].shape[1],
        "d_model": width,
        "encoder_layers": _layers(weights, "encoder"),
        "encoder_attention_heads": heads,
        "encoder_ffn_dim": weights["encoder.layers.0.fc1.weight"].shape[0],
        "decoder_layers": _layers(weights, "decoder"),
        "decoder_attention_heads": heads,
        "decoder_ffn_dim": weights["decoder.layers.0.fc1.weight"].shape[0],
        "max_source_positions": weights["encoder.embed_positions.weight"].shape[0],
        "max_target_positions": weights["decoder.embed_positions.weight"].shape[0],
        "activation_function": "gelu",
        "scale_embedding": False,
        "decoder_start_token_id": ids["sot"],
        "bos_token_id": ids["eot"],
        "eos_token_id": ids["eot"],
        "pad_token_id": ids["eot"],
    }


def generation_config(vocab, source):
    """source: a CTranslate2 config.json."""
    ids = special_ids(vocab)
    config = {
        "alignment_heads": source["alignment_heads"],
        "begin_suppress_tokens": source["suppress_ids_begin"],
        "bos_token_id": ids["eot"],
        "decoder_start_token_id": ids["sot"],
        "eos_token_id": ids["eot"],
        "is_multilingual": ids["multilingual"],
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "no_timestamps_token_id": ids["no_timestamps"],
        "pad_token_id": ids["eot"],
        "prev_sot_token_id": ids["prev"],
        "return_timestamps": False,
        "suppress_tokens": source["suppress_ids"],
    }
    if ids["multilingual"]:
        names = LANGUAGES[:ids["languages"]]
        config["lang_to_id"] = {f"<|{name}|>": ids["sot"] + 1 + i for i, name in enumerate(names)}
        config["task_to_id"] = {"transcribe": ids["transcribe"], "translate": ids["translate"]}
    return config


def preprocessor_config(mels):
    return {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": mels,
            "sampling_rate": 16000, "n_fft": 400, "hop_length": 160, "chunk_length": 30,
            "n_samples": 480000, "nb_max_frames": 3000, "padding_value": 0.0}


def write(folder, name, value):
    text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    (folder / name).write_text(text, encoding="utf-8")


def write_all(folder, weights, heads, source):
    """Everything but tokenizer.json; source: a CTranslate2 config.json."""
    vocab = weights["decoder.embed_tokens.weight"].shape[0]
    mels = weights["encoder.conv1.weight"].shape[1]
    write(folder, "config.json", model_config(weights, heads))
    write(folder, "generation_config.json", generation_config(vocab, source))
    write(folder, "preprocessor_config.json", preprocessor_config(mels))
