"""gRPC through a client that was compiled from the `.proto`, as any user's is."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from servers import NAME, Server, until

CORE = Path(__file__).parents[2] / "core"
PROTO = "allmetal/server/rpc/engine.proto"
KEY = "s3cret"
PROMPT = "One engine, all metal"


def compiled(folder: Path, *flags: str) -> None:
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(CORE)]
    subprocess.run([*protoc, *flags, PROTO], check=True, cwd=folder)


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(messages, service) as generated Python, in a place of their own."""
    folder = tmp_path_factory.mktemp("stubs")
    flat = folder / "engine.proto"
    flat.write_text((CORE / PROTO).read_text())
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(folder)]
    outputs = [f"--python_out={folder}", f"--grpc_python_out={folder}", str(flat)]
    subprocess.run([*command, *outputs], check=True)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("engine_pb2"), importlib.import_module("engine_pb2_grpc")
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def served(tiny_llama: Path) -> Iterator[Server]:
    with Server(tiny_llama, "--grpc-port", "0") as running:
        yield running


def address(server: Server) -> str:
    until(lambda: "serving gRPC on " in server.log, 10)
    return server.log.split("serving gRPC on ")[1].split()[0]


@pytest.fixture(scope="module")
def channel(served: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address(served)) as opened:
        yield opened


@pytest.fixture
def engine(channel: grpc.Channel, stubs: Any) -> Any:
    return stubs[1].EngineStub(channel)


def greedy(pb: Any, text: str = PROMPT, **sampling: Any) -> Any:
    values = {"temperature": 0, "max_tokens": 24, **sampling}
    return pb.GenerateRequest(text=text, sampling=pb.Sampling(**values))


def test_the_compiled_description_is_current(tmp_path: Path) -> None:
    fresh = tmp_path / "engine.binpb"
    compiled(tmp_path, "--include_imports", f"--descriptor_set_out={fresh}")
    kept = (CORE / PROTO).with_suffix(".binpb")

    def files(path: Path) -> Any:
        return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())

    assert files(fresh) == files(kept), "see core/allmetal/server/rpc/messages.py for the command"


def test_generate_streams_what_http_says(engine: Any, stubs: Any, served: Server) -> None:
    expected = served.client().completions.create(
        model=NAME, prompt=PROMPT, max_tokens=24, temperature=0
    )
    parts = list(engine.Generate(greedy(stubs[0])))

    assert expected.choices[0].text == "".join(part.text for part in parts)
    assert len(parts) > 3
    last = parts[-1]
    assert expected.choices[0].finish_reason == last.finish_reason
    assert expected.usage is not None
    assert expected.usage.prompt_tokens == last.usage.prompt_tokens
    assert expected.usage.completion_tokens == last.usage.completion_tokens
    tokens = [token for part in parts for token in part.token_ids]
    assert last.usage.completion_tokens == len(tokens)


def test_token_ids_do_as_well_as_text(engine: Any, stubs: Any) -> None:
    pb = stubs[0]
    ids = engine.Tokenize(pb.TokenizeRequest(text=PROMPT)).token_ids
    bare = engine.Tokenize(pb.TokenizeRequest(text=PROMPT, add_special_tokens=False)).token_ids
    assert list(ids[1:]) == list(bare)
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids), sampling=pb.Sampling(temperature=0, max_tokens=24)
    )

    def text(request: Any) -> str:
        return "".join(part.text for part in engine.Generate(request))

    assert text(greedy(pb)) == text(request)
    assert PROMPT == engine.Detokenize(pb.DetokenizeRequest(token_ids=bare)).text
    assert f"<s>{PROMPT}" == engine.Detokenize(pb.DetokenizeRequest(token_ids=ids)).text


def test_every_sampling_field_reaches_the_engine(engine: Any, stubs: Any) -> None:
    pb = stubs[0]
    sampling = {
        "n": 2,
        "max_tokens": 12,
        "min_tokens": 2,
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "stop": ["zzz"],
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "logit_bias": {50: 1.5},
        "allowed_token_ids": list(range(40, 200)),
        "bad_words": ["engine"],
        "logprobs": 2,
        "skip_special_tokens": False,
    }
    assert {field.name for field in pb.Sampling.DESCRIPTOR.fields} == sampling.keys()

    def run() -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = {0: [], 1: []}
        for part in engine.Generate(greedy(pb, **sampling)):
            tokens[part.index] += part.token_ids
            assert len(part.token_ids) == len(part.logprobs)
            assert all(len(entry.token_ids) == 3 for entry in part.logprobs)
        return tokens

    first = run()
    assert first == run()
    assert [12, 12] == [len(tokens) for tokens in first.values()]
    assert first[0] != first[1]
    assert all(40 <= token < 200 for tokens in first.values() for token in tokens)


def test_stops_say_what_stopped(engine: Any, stubs: Any) -> None:
    pb = stubs[0]
    tokens = [t for part in engine.Generate(greedy(pb)) for t in part.token_ids]
    by_token = list(engine.Generate(greedy(pb, stop_token_ids=[tokens[4]])))[-1]
    assert ("stop", "stop_token", tokens[4]) == (
        by_token.finish_reason,
        by_token.WhichOneof("stop_reason"),
        by_token.stop_token,
    )
    by_text = list(engine.Generate(greedy(pb, stop=["e", "a", "o"])))[-1]
    assert ("stop", "stop_text") == (by_text.finish_reason, by_text.WhichOneof("stop_reason"))


def test_cancelling_a_call_ends_its_request(engine: Any, stubs: Any, served: Server) -> None:
    call = engine.Generate(greedy(stubs[0], max_tokens=3000, ignore_eos=True))
    next(call)
    assert 1 == served.get("/load").json()["running"]
    call.cancel()

    until(lambda: served.get("/load").json()["running"] == 0, 10)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "text or token_ids"),
        ({"text": "a", "model": "other"}, grpc.StatusCode.NOT_FOUND, "no model 'other'"),
        ({"text": "word " * 9000}, grpc.StatusCode.INVALID_ARGUMENT, "the prompt has"),
    ],
)
def test_what_is_wrong_has_a_code_and_a_reason(
    engine: Any, stubs: Any, fields: dict[str, Any], code: grpc.StatusCode, message: str
) -> None:
    with pytest.raises(grpc.RpcError, match=message) as raised:
        list(engine.Generate(stubs[0].GenerateRequest(**fields)))

    assert code == raised.value.code()  # type: ignore[attr-defined]


def test_bad_sampling_and_tokens_are_refused_with_a_hint(engine: Any, stubs: Any) -> None:
    pb = stubs[0]
    with pytest.raises(grpc.RpcError, match=r"temperature must be in") as raised:
        list(engine.Generate(greedy(pb, temperature=-1)))
    assert "docs/sampling.md" in dict(raised.value.trailing_metadata())["hint"]  # type: ignore[attr-defined]
    with pytest.raises(grpc.RpcError, match="no token 4000"):
        engine.Detokenize(pb.DetokenizeRequest(token_ids=[4000]))
    with pytest.raises(grpc.RpcError, match="sequences"):
        list(engine.Generate(greedy(pb, n=4000)))


def test_the_model_is_named(engine: Any, stubs: Any, served: Server) -> None:
    model = engine.GetModel(stubs[0].GetModelRequest())

    card = served.get("/v1/models").json()["data"][0]
    assert (NAME, card["max_model_len"], "cpu") == (
        model.name,
        model.max_model_len,
        model.platform,
    )


def test_health_and_reflection_answer(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", "allmetal.v1.Engine"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name))
        assert health_pb2.HealthCheckResponse.SERVING == answer.status

    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="allmetal.v1.Engine"),
    ]
    services, file = list(reflection.ServerReflectionInfo(iter(asked)))
    names = {service.name for service in services.list_services_response.service}
    assert {"allmetal.v1.Engine", "grpc.health.v1.Health"} <= names
    [described] = file.file_descriptor_response.file_descriptor_proto
    assert PROTO == descriptor_pb2.FileDescriptorProto.FromString(described).name


def test_keys_open_it_and_a_drain_lets_open_calls_end(tiny_llama: Path, stubs: Any) -> None:
    pb, service = stubs
    with Server(tiny_llama, "--grpc-port", "0", "--api-key", KEY) as own:
        with grpc.insecure_channel(address(own)) as channel:
            engine = service.EngineStub(channel)
            with pytest.raises(grpc.RpcError, match="API key") as raised:
                engine.GetModel(pb.GetModelRequest())
            assert grpc.StatusCode.UNAUTHENTICATED == raised.value.code()  # type: ignore[attr-defined]
            with pytest.raises(grpc.RpcError, match="API key"):
                list(engine.Generate(greedy(pb), metadata=(("authorization", "Bearer no"),)))
            right = (("authorization", f"Bearer {KEY}"),)
            request = greedy(pb, max_tokens=300, ignore_eos=True)
            call = engine.Generate(request, metadata=right)
            first = next(call)
            own.process.terminate()
            parts = [first, *call]

            assert 300 == parts[-1].usage.completion_tokens
            assert "length" == parts[-1].finish_reason
        assert 0 == own.wait(30)


def test_without_the_libraries_the_extra_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    """A folder that shadows grpc with something that does not import."""
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError('No module named grpc')")
    done = subprocess.run(
        [sys.executable, "-m", "allmetal", "serve", str(tiny_llama), "--grpc-port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert 2 == done.returncode
    assert "gRPC needs grpc, which is not installed" in done.stderr
    assert "pip install 'allmetal[grpc]'" in done.stderr


def test_completions_go_on_beside_it(served: Server) -> None:
    client: openai.OpenAI = served.client()
    assert client.completions.create(model=NAME, prompt="a", max_tokens=1).choices
