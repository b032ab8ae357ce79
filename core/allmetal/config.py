"""Every option of the engine and the server, once: field, default, doc.

The command line, the server and the docs are derived from these dataclasses.  A config is frozen;
what the machine makes of it is the `Plan`.  This is the only file that reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from allmetal.errors import ConfigError

DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat: TypeAlias = Literal["auto", "safetensors", "gguf", "dummy"]
AskedTask: TypeAlias = Literal["auto", "generate", "embed", "classify"]
Policy: TypeAlias = Literal["fcfs", "priority"]
LogFormat: TypeAlias = Literal["text", "json"]
Fallback: TypeAlias = Literal["error", "warn", "allow"]
Fallbacks: TypeAlias = Fallback | Mapping[str, Fallback]
ALL_FEATURES = "*"
"""Stands for every feature that is not named."""
PluginKind: TypeAlias = Literal["platforms", "plugins"]


def option(default: Any = MISSING, doc: str = "", **meta: Any) -> Any:
    """A config field with its doc.  `meta`: choices, metavar, group, short, const (the value of the
    bare flag)."""
    metadata = {"doc": doc, **meta}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: MappingProxyType(dict(default)), metadata=metadata)
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def parse_fallback(text: str) -> tuple[str, str]:
    """`error` or `FEATURE=error`.  ConfigError judges the rest."""
    name, _, policy = text.rpartition("=")
    return name or ALL_FEATURES, policy


_MOST_THREADS = 1024
"""More than machines have cores; thread libraries crash where they run out of stacks."""

_AT_LEAST_ONE = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_prompt_tokens",
    "max_waiting",
    "block_size",
    "tensor_parallel_size",
    "threads",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to serve, on what, and within which bounds."""

    model: str = option(
        doc="a folder with config.json and safetensors, a .gguf file, or a hub name", group="model"
    )
    tokenizer: str | None = option(
        None, "folder or file of the tokenizer; default: the model's", group="model"
    )
    chat_template: str | None = option(
        None, "a Jinja file to use instead of the model's chat template", group="model"
    )
    revision: str | None = option(None, "branch, tag or commit of a hub model", group="model")
    load_format: LoadFormat = option(
        "auto", "how weights are read; dummy makes random ones of the right shape", group="model"
    )
    dtype: DType = option("auto", "type of activations and dense weights", group="model")
    quantization: str | None = option(
        None,
        "quantise dense weights while loading: to 8-bit integers (w8a8: activations too, of each "
        "token while running) or floating point",
        choices=("int8", "w8a8", "fp8"),
        group="model",
    )
    task: AskedTask = option(
        "auto",
        "continue texts (generate), make vectors of them (embed) or score labels (classify); "
        "default: what the checkpoint is for",
        group="model",
    )
    max_model_len: int | None = option(
        None, "longest sequence, prompt and output together; default: the model's", group="model"
    )

    platform: str = option(
        "auto", "platform plugin to run on; auto takes the one with a device", group="platform"
    )
    device: int = option(0, "index of the device among the platform's", group="platform")
    threads: int | None = option(
        None, "threads for kernels that run on the host; default: the cores given", group="platform"
    )
    kernel: Mapping[str, str] = option(
        {},
        "use this kernel for an op family; never replaced",
        metavar="FAMILY=NAME",
        group="platform",
    )
    tensor_parallel_size: int = option(
        1, "devices that share each layer of the model", group="platform"
    )
    fallback: Fallbacks = option(
        {},
        "error, warn or allow: what happens where a feature cannot be had; with FEATURE= for that "
        "one, also where it was asked for; default: each feature's own",
        metavar="[FEATURE=]POLICY",
        parse=parse_fallback,
        group="platform",
    )
    strict: bool = option(False, "a fallback that would be warned of is an error", group="platform")

    block_size: int | None = option(
        None, "tokens in a cache block; default: the platform's", group="memory"
    )
    kv_cache_dtype: str = option("auto", "type of cached keys and values", group="memory")
    kv_cache_memory: int | None = option(
        None, "bytes for cached keys and values; default: a share of what is free", group="memory"
    )
    memory_fraction: float | None = option(
        None, "share of the free device memory that weights and cache may take", group="memory"
    )

    max_num_seqs: int | None = option(None, "sequences running at once", group="scheduling")
    max_num_batched_tokens: int | None = option(
        None, "tokens computed in one step, prompts and outputs together", group="scheduling"
    )
    prefix_caching: bool | None = option(
        None,
        "share cache blocks of equal prefixes; default: where it can be had",
        group="scheduling",
    )
    max_prompt_tokens: int | None = option(
        None, "the longest prompt that is taken; default: what the model holds", group="scheduling"
    )
    max_waiting: int | None = option(
        None,
        "sequences that may wait for room; more are refused; default: any number",
        group="scheduling",
    )
    scheduling_policy: Policy = option(
        "fcfs",
        "order of waiting requests: first come, or priority then first come",
        group="scheduling",
    )
    async_scheduling: bool | None = option(
        None,
        "prepare the next step while one runs; default: where it can be had",
        group="scheduling",
    )
    graph_capture: bool | None = option(
        None,
        "record decode steps once and replay them; default: where it can be had",
        group="scheduling",
    )
    seed: int = option(0, "seed of requests that bring none", group="scheduling")

    structured_provider: str = option(
        "auto",
        "plugin that holds outputs to schemas and grammars; auto takes the first that can",
        group="output",
    )
    structured_timeout: float = option(
        10.0, "seconds that a schema or grammar may take to be compiled", group="output"
    )

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise ConfigError(f"threads must be at most {_MOST_THREADS}, not {self.threads}")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed must fit into 64 bits, {self.seed} does not")
        if self.kv_cache_memory is not None and self.kv_cache_memory <= 0:
            raise ConfigError(
                f"kv_cache_memory must be positive, not {self.kv_cache_memory}",
                hint="without cache memory no token can be computed; leave it out for the default",
            )
        if not self.structured_timeout > 0:
            raise ConfigError(f"structured_timeout must be positive, not {self.structured_timeout}")
        said = [self.fallback] if isinstance(self.fallback, str) else self.fallback.values()
        for policy in said:
            if policy not in get_args(Fallback):
                raise ConfigError(
                    f"{policy!r} is no fallback policy",
                    hint=f"one of {', '.join(get_args(Fallback))}",
                )
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise ConfigError(f"memory_fraction must be in (0, 1], not {self.memory_fraction}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where the server listens and how it behaves."""

    host: str = option("127.0.0.1", "address to listen on", group="server")
    port: int = option(8000, "port to listen on; 0 takes a free one", group="server")
    grpc_port: int | None = option(
        None, "port for gRPC beside it; 0 takes a free one; default: none", group="server"
    )
    served_model_name: str | None = option(
        None, "name clients use; default: the model as given", group="server"
    )
    api_key: tuple[str, ...] = option(
        (),
        "a key that clients may send; may be given again; default: anyone may ask",
        metavar="KEY",
        group="server",
    )
    api_key_file: str | None = option(
        None, "a file with such keys, one a line; other users cannot see them there", group="server"
    )
    cors_origin: tuple[str, ...] = option(
        (),
        "an origin whose web pages may call, * for any; may be given again",
        metavar="ORIGIN",
        group="server",
    )
    tls_cert: str | None = option(
        None, "a PEM file with the certificate chain: serve HTTPS", group="server"
    )
    tls_key: str | None = option(None, "a PEM file with the certificate's key", group="server")
    tls_client_ca: str | None = option(
        None,
        "a PEM file of authorities: clients must bring a certificate of theirs",
        group="server",
    )
    api_processes: int = option(
        1, "processes that speak HTTP before the one engine", group="server"
    )
    restart: int = option(
        0,
        "how often in a row the engine is started again after it died; bare: 5",
        const=5,
        group="server",
    )
    generation_defaults: bool = option(
        True,
        "sample as the model's generation_config.json says where a request is silent",
        group="server",
    )
    admin: bool = option(
        False,
        "answer /admin: pause, sleep, abort, drain; needs an API key, which opens it",
        group="server",
    )
    tool_parser: str = option(
        "auto",
        "parser of tool calls; auto goes by the chat template, none leaves them in the text",
        group="server",
    )
    reasoning_parser: str = option(
        "auto",
        "parser of reasoning; auto goes by the chat template, none leaves it in the text",
        group="server",
    )
    drain_timeout: float = option(
        30.0, "seconds that open requests get to end when the server is stopped", group="server"
    )

    drain_delay: float = option(
        0.0,
        "seconds before that in which requests are still taken, but /ready says no, so that a "
        "balancer looks elsewhere first",
        group="server",
    )

    max_body_bytes: int = option(
        32 << 20, "the longest body that is read", metavar="SIZE", group="limits"
    )
    max_sequences_per_request: int = option(
        1024, "prompts times completions that one request may ask for", group="limits"
    )
    max_stored_responses: int = option(
        1000,
        "answers of the Responses API kept in memory, oldest out first; 256 MiB at most",
        group="limits",
    )
    request_timeout: float | None = option(
        None, "seconds after which a request ends with an error; default: never", group="limits"
    )
    keep_alive: float = option(
        15.0,
        "seconds of silence after which a stream sends a comment, so that no proxy closes it;"
        " 0: never",
        group="limits",
    )

    log_format: LogFormat = option("text", "how log lines look", group="logs")
    log_requests: bool = option(False, "a line with the figures of each request", group="logs")
    otlp_endpoint: str | None = option(
        None,
        "where OpenTelemetry traces go, such as http://localhost:4318/v1/traces",
        metavar="URL",
        group="logs",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, not {self.port}")
        if not self.drain_timeout >= 0:
            raise ConfigError(f"drain_timeout must not be negative, not {self.drain_timeout}")
        for name in ("api_processes", "max_body_bytes", "max_sequences_per_request"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.grpc_port is not None and not 0 <= self.grpc_port <= 65535:
            raise ConfigError(f"grpc_port must be from 0 to 65535, not {self.grpc_port}")
        if self.grpc_port == 0 and self.api_processes > 1:
            raise ConfigError(
                "several API processes need one gRPC port, not any free one", hint="name the port"
            )
        if self.admin and not (self.api_key or self.api_key_file):
            raise ConfigError(
                "the admin API needs an API key", hint="add --api-key or --api-key-file"
            )
        for name in ("drain_delay", "restart", "keep_alive", "max_stored_responses"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.request_timeout is not None and not self.request_timeout > 0:
            raise ConfigError(f"request_timeout must be positive, not {self.request_timeout}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError(
                "a certificate serves only with its key", hint="give both --tls-cert and --tls-key"
            )
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError("tls_client_ca needs HTTPS", hint="add --tls-cert and --tls-key")
        if any(not key.isascii() or not key.isprintable() or " " in key for key in self.api_key):
            raise ConfigError("an API key must be of printable ASCII without spaces")


def docs_of(config: type[Any]) -> dict[str, Field[Any]]:
    """Field name -> field, for generators of help and docs."""
    return {f.name: f for f in fields(config)}


def metrics_dir() -> str | None:
    """Where the processes that speak HTTP add up their metrics; None: there is one process."""
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR")


def environment_with(**more: str) -> dict[str, str]:
    """For a process that is to be started: this one's environment, and `more`."""
    return {**os.environ, **more}


def let_threads_sleep() -> None:
    """What torch's threads do without work: they sleep, unless this says otherwise.

    OpenMP's default is to turn round for some milliseconds after each parallel loop, which takes
    the cores from whoever has work, the engine's own threads included.  An $OMP_WAIT_POLICY that
    is set stays as it is.  To be called before torch is loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def loader_path() -> tuple[str, ...]:
    """Folders that the user has the dynamic loader look into first."""
    return tuple(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))


def cache_dir() -> Path:
    """Where derived files live: $ALLMETAL_CACHE, else $XDG_CACHE_HOME/allmetal, else ~/.cache."""
    if explicit := os.environ.get("ALLMETAL_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "allmetal"


def plugin_lists(kind: PluginKind) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Names with commas between, allowed (default: all) and denied: of platforms, of other plugins.

    $ALLMETAL_PLATFORMS, $ALLMETAL_PLATFORMS_DENY, $ALLMETAL_PLUGINS, $ALLMETAL_PLUGINS_DENY.
    Gives (allowed or None for all, denied).
    """
    allow = os.environ.get(f"ALLMETAL_{kind.upper()}")
    deny = os.environ.get(f"ALLMETAL_{kind.upper()}_DENY", "")
    return (None if allow is None else _names(allow), _names(deny))


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, text.split(","))))
