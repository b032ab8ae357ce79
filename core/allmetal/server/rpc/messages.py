"""The messages of `engine.proto`, made from its compiled description.

The description (`engine.binpb`) works with every version of the protobuf library; generated
Python works from the version on that generated it.  To write it anew:

    python -m grpc_tools.protoc -I core --include_imports \
        --descriptor_set_out core/allmetal/server/rpc/engine.binpb \
        core/allmetal/server/rpc/engine.proto
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "allmetal.v1"
SERVICE = f"{PACKAGE}.Engine"
DESCRIPTION = Path(__file__).with_name("engine.binpb")


@cache
def pool() -> descriptor_pool.DescriptorPool:
    """The library's own pool, with this service in it."""
    known = descriptor_pool.Default()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTION.read_bytes()).file:
        known.Add(file)
    return known


@cache
def message(name: str) -> Any:
    """The class of a message, by its short name."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))
