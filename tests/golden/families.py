#!/usr/bin/env python3
"""Tiny random models of the published families, made by Hugging Face transformers, with what transformers computes.

    python3 families.py make               writes families/NAME and tokenizers/ (needs torch, transformers, tokenizers)
    python3 families.py check KEEL FOLDER  imports each with KEEL, exports it and loads the export with transformers:
                                           the same bits, the same logits, the same greedy text
"""
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

try:
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers import Gemma3TextConfig, LlamaConfig, Olmo2Config, Qwen3Config
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HERE = pathlib.Path(__file__).parent / "families"
SMALL = dict(num_hidden_layers=2, vocab_size=50, bos_token_id=None, eos_token_id=None, pad_token_id=None,
             max_position_embeddings=64, attn_implementation="eager")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e6}
# Of its four pairs one turns unscaled, one lies on the ramp (a wave of 167 positions), two are stretched.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 256, "rope_theta": 5e5}
CASES = {
    "llama3": LlamaConfig(**{**SMALL, "max_position_embeddings": 512}, hidden_size=32, intermediate_size=48,
                          num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters=LLAMA3),
    # Full-width QK-Norm, with fewer KV heads than four ranks.
    "olmo2": Olmo2Config(**SMALL, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
                         rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    # Heads wider than hidden/heads, one KV head, tied.
    "qwen3": Qwen3Config(**{**SMALL, "vocab_size": 320}, hidden_size=32, intermediate_size=48, num_attention_heads=4,
                         num_key_value_heads=1, head_dim=16, tie_word_embeddings=True,
                         rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3_yarn": Qwen3Config(**SMALL, hidden_size=32, intermediate_size=48, num_attention_heads=4,
                              num_key_value_heads=2, head_dim=8, rope_parameters=YARN),
    # Five local layers and a global one, windows shorter than the text, scaled global frequencies, soft-capped logits.
    "gemma3": Gemma3TextConfig(**{**SMALL, "num_hidden_layers": 6}, hidden_size=24, intermediate_size=32,
                               num_attention_heads=4, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=12,
                               sliding_window=4, final_logit_softcapping=5.0,
                               rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                                "full_attention": {"rope_type": "linear", "factor": 8.0,
                                                                   "rope_theta": 1e6}}),
}
TRAINED = ["qwen3", "olmo2", "gemma3"]
B, T, STEPS = 2, 12, 20
ADAMW = dict(lr=5e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0)
PROMPT = "the norm of a query"


def random_model(name, config):
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    zero_centred = config.model_type == "gemma3_text"
    with torch.no_grad():
        for key, value in model.named_parameters():
            noise = torch.randn(value.shape)
            gain = key.endswith("norm.weight")
            value.copy_(0.2 * noise + (not zero_centred) if gain else 0.25 * noise)
    return model


def batch(vocabulary, step):
    """Tokens that follow one another with some regularity, so that there is something to learn."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = [torch.randint(vocabulary, (B,), generator=generator)]
    for _ in range(T):
        jump = torch.randint(3, (B,), generator=generator)
        tokens.append((tokens[-1] * 3 + 1 + jump) % vocabulary)
    rows = torch.stack(tokens, 1)
    targets = rows[:, 1:].clone()
    targets[0, 3] = targets[1, 7] = -1  # not counted
    return rows[:, :-1], targets


def loss_of(model, tokens, targets):
    logits = model(input_ids=tokens).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    return loss, logits


def decayed(model, key):
    """What Keel's presets decay: matrices; with OLMo 2 also gains, but no embedding."""
    if model.config.model_type == "olmo2":
        return "embed_tokens" not in key
    return not key.endswith("norm.weight")


def train(model):
    groups = [dict(params=[], weight_decay=ADAMW["weight_decay"]), dict(params=[], weight_decay=0.0)]
    for key, value in model.named_parameters():
        groups[0 if decayed(model, key) else 1]["params"].append(value)
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
    losses, norms = [], []
    for step in range(STEPS):
        loss, _ = loss_of(model, *batch(model.config.vocab_size, step))
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip_norm"]).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def save(model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def make_case(name, config):
    model = random_model(name, config)
    folder = HERE / name
    save(model, folder)
    tokens, targets = batch(config.vocab_size, 0)
    loss, logits = loss_of(model, tokens, targets)
    loss.backward()
    values = {"gradient." + key: value.grad.contiguous() for key, value in model.named_parameters()}
    save_file({**values, "logits": logits.detach().contiguous()}, folder / "expected.safetensors")
    expected = {"transformers": transformers.__version__, "torch": torch.__version__, "tokens": tokens.tolist(),
                "targets": targets.tolist(), "loss": loss.item()}
    if name in TRAINED:
        steps = [batch(config.vocab_size, step) for step in range(STEPS)]
        losses, norms = train(model)
        expected["training"] = {"adamw": ADAMW, "tokens": [t.tolist() for t, _ in steps],
                                "targets": [t.tolist() for _, t in steps], "losses": losses, "gradient_norms": norms}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


# ---- tokenizers ----

TEXT = ["the norm of a query and of its key bounds every logit, whatever the weights are.\n" * 20,
        "Die Norm von Abfrage und Schl\u00fcssel begrenzt jeden Logit; 1234 + 56 = 1290.\n" * 10,
        "def f(x):\n    return x ** 2  # don't\n\n\n\tif x >= 10: y = 'it''s'\n" * 10]
HOSTILE = ["", " ", "  two  spaces  ", "a\n\n\nb\r\n", "don't WE'LL I'm", "x = 12345 * 6789", "tab\tand\x0bvertical",
           "Schl\u00fcssel Schlu\u0308ssel", "\u4f60\u597d\u4e16\u754c", "\U0001f600\u200d\U0001f468", "e\u0301\u00a0\u2003.",
           "a<|end|>b<|end|><|start|>", "<|end", "\u0661\u0662\u0663 \u216b", "q" * 40, "norm" * 9 + "!!!???\n"]
LLAMA_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
QWEN_SPLIT = LLAMA_SPLIT.replace("{1,3}", "")
# OLMo 2 removes what its pattern misses. The published one misses nothing; this one wide spaces and tabs before no letter.
OLMO_SPLIT = LLAMA_SPLIT.replace(r"|\s+(?!\S)|\s+", "| +")
MISSED = ["a\t\t1\u2003\u2003!", "\u2003", "1\t\t", "\t\t<|end|>\t\tb"]


def tokenizer_of(kind):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    else:
        split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
        if kind == "llama3":
            split = pre_tokenizers.Split(Regex(LLAMA_SPLIT), "isolated")
        if kind == "olmo2":
            split = pre_tokenizers.Split(Regex(OLMO_SPLIT), "removed", invert=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if kind == "qwen3":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=310, special_tokens=["<|end|>", "<|start|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXT, trainer)
    if kind == "llama3":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|start|> $A", pair="<|start|> $A $B", special_tokens=[("<|start|>", 1)])
    return tokenizer


def make_tokenizers():
    folder = HERE.parent / "tokenizers"
    for kind in ["gpt2", "llama3", "qwen3", "olmo2"]:
        tokenizer = tokenizer_of(kind)
        target = folder / kind
        target.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(target / "tokenizer.json"), pretty=False)
        (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}) + "\n")
        texts = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
                 for text in HOSTILE + MISSED * (kind == "olmo2")]
        start = tokenizer.encode("", add_special_tokens=True).ids
        (target / "expected.json").write_text(json.dumps(
            {"tokenizers": tokenizers.__version__, "start": start, "texts": texts}) + "\n")
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(folder / "qwen3" / name, HERE / "qwen3" / name)


def bytes_of(tokenizer, ids):
    """The text of ids as bytes, which need not be UTF-8."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in prints]
    table = {chr(byte): byte for byte in prints} | {chr(256 + i): byte for i, byte in enumerate(rest)}
    return b"".join(bytes(table[c] for c in tokenizer.id_to_token(i)) for i in ids if i > 1)


def greedy(model, tokenizer, count):
    ids = tokenizer.encode(PROMPT, add_special_tokens=False).ids
    prompt = len(ids)
    for _ in range(count):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1, :tokenizer.get_vocab_size()]
        ids.append(int(logits.argmax()))
        if ids[-1] == 0:  # <|end|>
            break
    return bytes_of(tokenizer, ids[prompt:])


def make():
    HERE.mkdir(exist_ok=True)
    for name, config in CASES.items():
        make_case(name, config)
    make_tokenizers()
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / "qwen3").eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(HERE / "qwen3" / "tokenizer.json"))
    (HERE / "qwen3" / "greedy.json").write_text(json.dumps(
        {"prompt": PROMPT, "bytes": list(greedy(model, tokenizer, 24))}) + "\n")


# ---- the way back ----

def keel(program, *arguments, cwd=None):
    ended = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)
    if ended.returncode != 0:
        sys.exit(f"keel {' '.join(map(str, arguments))}: {ended.stderr}")


MINE = """
precision: fp32
data: {train: corpus, sequence_length: 16}
batch: {sequences: 2}
train: {steps: 1}
schedule: {warmup_steps: 0}
model: {preset: PRESET, hidden: 32, layers: 1, ffn: 64, attention: {heads: 2, head_dim: 16}}
"""


def check_sentencepiece(program, folder):
    """The vocabulary that Keel trains, in transformers' hands: the same ids whatever the model's type."""
    try:
        import sentencepiece
    except ImportError as missing:
        print(f"sentencepiece models not checked: {missing}")
        return
    folder = (folder / "pieces").resolve()
    folder.mkdir()
    (folder / "text.txt").write_text("".join(TEXT), encoding="utf-8")
    keel(program, "tokenize", "text.txt", "--out", "corpus", "--sentencepiece", 330, cwd=folder)
    library = sentencepiece.SentencePieceProcessor(str(folder / "corpus.model"))
    texts = [text for text in HOSTILE if "<|" not in text]
    for preset in ["llama3", "olmo2", "qwen3", "gemma3"]:
        (folder / "run.yaml").write_text(MINE.replace("PRESET", preset))
        keel(program, "train", "run.yaml", f"name={preset}", cwd=folder)
        keel(program, "convert", f"runs/{preset}/checkpoints/step-00000001.h5", preset, cwd=folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder / preset)
        for text in texts:
            assert theirs(text).input_ids == library.encode(text), (preset, text, theirs(text).input_ids)
        print(f"{preset}: {len(texts)} texts have SentencePiece's ids")


def check(program, folder):
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    check_sentencepiece(os.path.abspath(program), folder)
    for name in CASES:
        checkpoint, exported = folder / f"{name}.h5", folder / name
        keel(program, "convert", HERE / name, checkpoint)
        keel(program, "convert", checkpoint, exported)
        ours = transformers.AutoModelForCausalLM.from_pretrained(exported, attn_implementation="eager").eval()
        theirs = transformers.AutoModelForCausalLM.from_pretrained(HERE / name, attn_implementation="eager").eval()
        mine, original = ours.state_dict(), theirs.state_dict()
        assert mine.keys() == original.keys(), (name, mine.keys() ^ original.keys())
        for key in original:
            assert torch.equal(mine[key], original[key]), (name, key)
        expected = json.loads((HERE / name / "expected.json").read_text())
        with torch.no_grad():
            tokens = torch.tensor(expected["tokens"])
            a, b = ours(input_ids=tokens).logits, theirs(input_ids=tokens).logits
        assert torch.equal(a, b), (name, (a - b).abs().max())
        difference = (a - load_file(HERE / name / "expected.safetensors")["logits"]).abs().max()
        assert difference < 1e-5, (name, difference)
        print(f"{name}: {len(original)} tensors and {a.numel()} logits are the same bits "
              f"(transformers {transformers.__version__})")


if __name__ == "__main__":
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["make"]:
        make()
    elif sys.argv[1:2] == ["check"]:
        check(*sys.argv[2:4])
    else:
        sys.exit(__doc__)
