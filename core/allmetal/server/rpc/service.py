"""The methods of `engine.proto`."""

from __future__ import annotations

import hmac
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

import grpc

from allmetal import __version__
from allmetal.engine.output import Prompt, tokenize
from allmetal.errors import AllmetalError, RequestError
from allmetal.request import Logprobs, RequestOutput, SamplingParams
from allmetal.server import errors
from allmetal.server.openai.choices import ChoiceDelta, Progress
from allmetal.server.rpc.messages import SERVICE, message
from allmetal.server.state import ServerState

Message: TypeAlias = Any
Context: TypeAlias = "grpc.aio.ServicerContext[Message, Message]"

log = logging.getLogger(__name__)
_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""HTTP's status -> gRPC's; the others are the request's fault."""
_REPEATED = ("stop", "stop_token_ids", "allowed_token_ids", "bad_words")
_MAPS = frozenset({"logit_bias"})


class EngineService:
    """One engine, for whoever has one of the keys; without any, for everyone."""

    def __init__(self, state: ServerState, keys: Collection[str]) -> None:
        self._state = state
        self._keys = [key.encode() for key in keys]

    def handlers(self) -> grpc.GenericRpcHandler:
        unary = {
            "Tokenize": self._tokenize,
            "Detokenize": self._detokenize,
            "GetModel": self._get_model,
        }
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guarded(method),
                request_deserializer=message(f"{name}Request").FromString,
                response_serializer=message(f"{name}Response").SerializeToString,
            )
            for name, method in unary.items()
        }
        methods["Generate"] = grpc.unary_stream_rpc_method_handler(
            self._generate,
            request_deserializer=message("GenerateRequest").FromString,
            response_serializer=message("GenerateResponse").SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _guarded(
        self, method: Callable[[Message], Awaitable[Message]]
    ) -> Callable[[Message, Context], Awaitable[Message]]:
        async def call(request: Message, context: Context) -> Message:
            try:
                self._check(context)
                return await method(request)
            except Exception as error:
                await _abort(context, error)

        return call

    def _check(self, context: Context) -> None:
        """Also raises NotReadyError while the server is being stopped."""
        if self._state.phase.draining:
            raise errors.NotReadyError("the server is being stopped")
        if not self._keys:
            return
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        kind, _, key = str(given).partition(" ")
        sent = key.strip().encode() if kind.lower() == "bearer" else b""
        fits = [hmac.compare_digest(sent, known) for known in self._keys]  # each, in equal time
        if not any(fits):
            raise errors.WrongKeyError("the API key is missing or wrong")

    # ---- methods ---------------------------------------------------------------------------

    async def _generate(self, request: Message, context: Context) -> AsyncIterator[Message]:
        try:
            self._check(context)
            async with aclosing(self._outputs(request)) as outputs:
                progress = Progress()
                async for output in outputs:
                    for delta in progress.advance(output):
                        yield _response(delta, output)
        except Exception as error:
            await _abort(context, error)

    def _outputs(self, request: Message) -> AsyncGenerator[RequestOutput, None]:
        state = self._state
        state.check_model(request.model if request.HasField("model") else None)
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise RequestError("give a text or token_ids to complete")
        prompt: Prompt = request.text if kind == "text" else list(request.token_ids.ids)
        sampling = _sampling(request.sampling, dict(state.sampling_defaults))
        state.check_sequences(1, sampling.n)
        return state.generate(
            prompt,
            sampling,
            request_id=f"grpc-{uuid.uuid4().hex}",
            priority=request.priority,
            cache_salt=request.cache_salt,
        )

    async def _tokenize(self, request: Message) -> Message:
        engine = self._state.engine
        special = request.add_special_tokens if request.HasField("add_special_tokens") else True
        encode = partial(engine.tokenizer.encode, add_special_tokens=special)
        return message("TokenizeResponse")(token_ids=await engine.in_thread(encode, request.text))

    async def _detokenize(self, request: Message) -> Message:
        tokenizer = self._state.engine.tokenizer
        token_ids = tokenize(tokenizer, list(request.token_ids))
        if token_ids and max(token_ids) >= tokenizer.vocab_size:
            raise RequestError(
                f"there is no token {max(token_ids)}",
                hint=f"the vocabulary has {tokenizer.vocab_size} tokens",
            )
        decode = partial(tokenizer.decode, skip_special_tokens=request.skip_special_tokens)
        text = await self._state.engine.in_thread(decode, token_ids)
        return message("DetokenizeResponse")(text=text)

    async def _get_model(self, request: Message) -> Message:
        ready = self._state.engine.ready
        return message("GetModelResponse")(
            name=self._state.model_name,
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            platform=ready.plan.platform,
            version=__version__,
        )


async def _abort(context: Context, error: Exception) -> None:
    """End the call with what went wrong; this always raises."""
    answer = errors.answer_for(error)
    code = _CODES.get(answer.status, grpc.StatusCode.INVALID_ARGUMENT)
    if not isinstance(error, AllmetalError):
        log.exception("a call failed")
        await context.abort(code, "internal error")
    hint = getattr(error, "hint", None)
    # Metadata are ASCII.
    trailing = (("hint", hint.encode("ascii", "replace").decode()),) if hint else ()
    await context.abort(code, getattr(error, "message", ""), trailing)


def _sampling(given: Message, values: dict[str, Any]) -> SamplingParams:
    values["max_tokens"] = None
    for field in given.DESCRIPTOR.fields:
        name = field.name
        if name in _MAPS:
            values[name] = dict(getattr(given, name))
        elif name in _REPEATED:
            if many := tuple(getattr(given, name)):
                values[name] = many
        elif given.HasField(name):
            values[name] = getattr(given, name)
    return SamplingParams(**values)


def _response(delta: ChoiceDelta, output: RequestOutput) -> Message:
    made = message("GenerateResponse")(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=_logprobs(delta.logprobs or ()),
        finish_reason=delta.finish_reason or "",
    )
    if isinstance(delta.stop_reason, str):
        made.stop_text = delta.stop_reason
    elif delta.stop_reason is not None:
        made.stop_token = delta.stop_reason
    if delta.finish_reason is not None:
        made.usage.prompt_tokens = len(output.prompt_token_ids)
        made.usage.cached_tokens = output.num_cached_tokens
        made.usage.completion_tokens = len(output.outputs[delta.index].token_ids)
    return made


def _logprobs(entries: Collection[Logprobs]) -> Iterator[Message]:
    for entry in entries:
        yield message("Logprobs")(
            token_ids=entry.token_ids, logprobs=entry.logprobs, ranks=entry.ranks
        )
