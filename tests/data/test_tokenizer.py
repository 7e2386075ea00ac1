"""GPT-2's byte-level BPE: ids, round trips, the library's own result, and bad files."""

import itertools
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus_tools.train_vocabulary import train_merges
from minimegatron.data.tokenizer import GPT2BPETokenizer, build_tokenizer, byte_alphabet
from minimegatron.data.vocabulary import END_OF_DOCUMENT, pad_vocab_size
from minimegatron.errors import UserError

fixed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_the_byte_alphabet_is_gpt2s():
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == 256
    # The first and last of each stretch of GPT-2's vocab.json.
    assert (alphabet[0], alphabet[93], alphabet[94], alphabet[105], alphabet[106],
            alphabet[187], alphabet[188], alphabet[220], alphabet[198], alphabet[255]) == (
        "!", "~", "¡", "¬", "®", "ÿ", "Ā", "Ġ", "Ċ", "Ń")


def test_files_are_gpt2s(vocabulary):
    vocab_file, merge_file = vocabulary
    ids = json.loads(vocab_file.read_text())
    tokens = sorted(ids, key=ids.get)
    lines = merge_file.read_text(encoding="utf-8").split("\n")
    assert lines[0] == "#version: 0.2" and lines[-1] == ""
    assert tokens[:256] == byte_alphabet()
    assert tokens[256:-1] == [line.replace(" ", "") for line in lines[1:-1]]
    assert tokens[-1] == END_OF_DOCUMENT and ids[END_OF_DOCUMENT] == 999
    assert list(ids.values()) == list(range(1000))


def test_sizes(tokenizer):
    assert tokenizer.vocab_size == 1000 and tokenizer.eod == 999


@fixed
@given(st.text())
def test_every_text_comes_back(tokenizer, text):
    ids = tokenizer.tokenize(text)
    assert tokenizer.detokenize(ids) == text
    assert all(0 <= token < tokenizer.eod for token in ids)


@fixed
@given(st.lists(st.text(alphabet="ab \n'é<|>endoftext", max_size=30)))
def test_a_batch_is_the_texts_one_by_one(tokenizer, texts):
    assert tokenizer.tokenize_batch(texts) == [tokenizer.tokenize(text) for text in texts]


def test_equal_to_the_librarys_own_reading(vocabulary, tokenizer, texts):
    from tokenizers import ByteLevelBPETokenizer

    theirs = ByteLevelBPETokenizer(*map(str, vocabulary))
    for text in texts:
        assert tokenizer.tokenize(text) == theirs.encode(text).ids


def test_equal_to_merging_by_hand(vocabulary, tokenizer):
    """Apply the best-ranked merge again and again, as the paper says, to one word."""
    ids = json.loads(vocabulary[0].read_text())
    lines = vocabulary[1].read_text(encoding="utf-8").split("\n")[1:-1]
    ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(lines)}
    for word in ("tokenizer", "vocabulary", "zebra", "documents"):
        parts = list(word)
        while pairs := [p for p in itertools.pairwise(parts) if p in ranks]:
            best = min(pairs, key=ranks.get)
            merged, at = [], 0
            while at < len(parts):
                both = tuple(parts[at : at + 2]) == best
                merged.append("".join(best) if both else parts[at])
                at += 2 if both else 1
            parts = merged
        assert tokenizer.tokenize(word) == [ids[part] for part in parts]


def test_the_end_token_in_text_is_text(tokenizer):
    for text in (END_OF_DOCUMENT, f"a {END_OF_DOCUMENT}{END_OF_DOCUMENT} b"):
        ids = tokenizer.tokenize(text)
        assert tokenizer.eod not in ids and tokenizer.detokenize(ids) == text
    assert tokenizer.detokenize([tokenizer.eod]) == END_OF_DOCUMENT


def test_no_blank_is_added_in_front(tokenizer):
    assert tokenizer.tokenize("def") != tokenizer.tokenize(" def")


def test_training_is_deterministic_and_smaller_is_the_beginning(texts):
    merges = train_merges(texts, 300)
    assert merges == train_merges(iter(texts), 300)
    assert merges[:100] == train_merges(texts, 100)
    assert len(merges) == 300
    assert len(train_merges(["abab"], 300)) < 10


@pytest.mark.parametrize(("size", "parts", "padded"), [
    (50257, 1, 50304), (50257, 2, 50432), (50257, 4, 50688), (50257, 8, 51200), (50304, 1, 50304),
])
def test_padded_vocabulary(size, parts, padded):
    assert pad_vocab_size(size, 128, parts) == padded


def change_ids(vocabulary):
    vocabulary["!"] = 5000
    return vocabulary


def without(token):
    def change(vocabulary):
        kept = sorted((t for t in vocabulary if t != token), key=vocabulary.get)
        return {t: number for number, t in enumerate(kept)}

    return change


@pytest.mark.parametrize(("change", "says"), [
    (lambda v: list(v), "does not map tokens to ids"),
    (lambda v: dict.fromkeys(v, "x"), "does not map tokens to ids"),
    (lambda v: {}, "no <|endoftext|>"),
    (change_ids, "1,000 ids are not 0 to 999"),
    (without(END_OF_DOCUMENT), "no <|endoftext|>"),
    (without("!"), "lacks 1 of the 256 byte tokens"),
    (without("se"), "'se' is not in"),
])
def test_a_bad_vocabulary_is_named(vocabulary, tmp_path, change, says):
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(change(json.loads(vocabulary[0].read_text()))))
    with pytest.raises(UserError) as caught:
        GPT2BPETokenizer(bad, vocabulary[1])
    assert says in str(caught.value) and str(bad) in str(caught.value)
    assert "lab data" in str(caught.value)


@pytest.mark.parametrize(("change", "says"), [
    (lambda text: text.replace("\n", "\nnonsense\n", 1), "line 2: 'nonsense' is not two tokens"),
    (lambda text: text.replace("\n", "\nq\u0120 q\u0120\n", 1), "line 2: 'qĠ' is not in"),
    (lambda text: text[: len(text) // 2].rsplit("\n", 1)[0], "entries of"),
    (lambda text: "", "produces only 0 tokens"),
])
def test_bad_merges_are_named(vocabulary, tmp_path, change, says):
    bad = tmp_path / "bad.txt"
    bad.write_text(change(vocabulary[1].read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        GPT2BPETokenizer(vocabulary[0], bad)
    assert says in str(caught.value) and str(bad) in str(caught.value)


def test_swapped_files_are_told(vocabulary):
    with pytest.raises(UserError, match=r"not JSON .*swapped"):
        GPT2BPETokenizer(vocabulary[1], vocabulary[0])


@pytest.mark.parametrize("which", [0, 1])
def test_missing_and_binary_files_are_named(vocabulary, tmp_path, which):
    files = list(vocabulary)
    files[which] = tmp_path / "file"
    flag = ("--vocab-file", "--merge-file")[which]
    with pytest.raises(UserError, match=rf"{flag} .*file does not exist.*lab data"):
        GPT2BPETokenizer(*files)
    files[which].write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=rf"{flag} .*not UTF-8"):
        GPT2BPETokenizer(*files)
    os.remove(files[which])
    files[which].mkdir()
    with pytest.raises(UserError, match=rf"cannot read {flag}"):
        GPT2BPETokenizer(*files)


def test_windows_line_ends_are_read(vocabulary, tmp_path, tokenizer):
    crlf = tmp_path / "merges.txt"
    crlf.write_bytes(vocabulary[1].read_bytes().replace(b"\n", b"\r\n"))
    assert GPT2BPETokenizer(vocabulary[0], crlf).tokenize("self") == tokenizer.tokenize("self")


def test_build_by_name(vocabulary):
    assert build_tokenizer("GPT2BPETokenizer", *vocabulary).vocab_size == 1000
    with pytest.raises(UserError, match="--tokenizer-type BertWordPieceLowerCase"):
        build_tokenizer("BertWordPieceLowerCase", *vocabulary)
    with pytest.raises(UserError, match="needs --merge-file"):
        build_tokenizer("GPT2BPETokenizer", vocabulary[0], None)
