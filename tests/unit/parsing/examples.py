"""What models write, in each family's own format, and what it says.

The texts are what the chat templates that the models are published with make of these messages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": ["string", "null"]},
                "where": {"type": "object"},
                "exact": {"type": "boolean"},
            },
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
TOOLS = [WEATHER, TIME]
SF = {"city": "San Francisco", "days": 3}
ULM = {"city": 'Ulm "an der Donau" \\ {Käse}\n<b>', "where": {"lat": 48.4, "near": ["Neu-Ulm"]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    parser: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    prompt_end: str = ""


def j(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def call(arguments: dict[str, Any], key: str = "arguments", name: str = "get_weather") -> str:
    return f'{{"name": "{name}", "{key}": {j(arguments)}}}'


def xml(arguments: dict[str, Any]) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else j(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function=get_weather>\n{parameters}</function>\n</tool_call>"


def glm(arguments: dict[str, Any]) -> str:
    parameters = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>"
        f"{value if isinstance(value, str) else j(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>get_weather\n{parameters}</tool_call>"


def invoke(
    arguments: dict[str, Any], tag: str = "{}", quote: str = '"', typed: bool = False
) -> str:
    def parameter(key: str, value: object) -> str:
        kind = f' string="{"true" if isinstance(value, str) else "false"}"' if typed else ""
        text = value if isinstance(value, str) else j(value)
        opened = f"<{tag.format('parameter')} name={quote}{key}{quote}{kind}>"
        return f"{opened}{text}</{tag.format('parameter')}>\n"

    parameters = "".join(parameter(key, value) for key, value in arguments.items())
    opened = f"<{tag.format('invoke')} name={quote}get_weather{quote}>"
    return f"{opened}\n{parameters}</{tag.format('invoke')}>"


def deepseek(*calls: dict[str, Any], fenced: bool) -> str:
    def one(arguments: dict[str, Any]) -> str:
        body = (
            f"function<｜tool▁sep｜>get_weather\n```json\n{j(arguments)}\n```"
            if fenced
            else f"get_weather<｜tool▁sep｜>{j(arguments)}"
        )
        return f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>"

    separator = "\n" if fenced else ""
    inner = separator.join(map(one, calls))
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


W = "get_weather"
BOTH = [(W, SF), (W, ULM)]
EXAMPLES = [
    Example(
        parser="json_calls",
        text=f"[{call(SF, 'parameters')},{call(ULM, 'parameters')}]",
        calls=BOTH,
    ),
    Example(
        parser="hermes",
        text=f"I will look.\n<tool_call>\n{call(SF)}\n</tool_call>\n<tool_call>\n{call(ULM)}\n"
        "</tool_call>",
        content="I will look.",
        calls=BOTH,
    ),
    Example(
        parser="qwen3",
        text=f"<think>\nTwo cities.\n\nSo two calls.\n</think>\n\n<tool_call>\n{call(SF)}\n"
        f"</tool_call>\n<tool_call>\n{call(ULM)}\n</tool_call>",
        reasoning="Two cities.\n\nSo two calls.",
        calls=BOTH,
    ),
    Example(parser="qwen3", text="<think>\n\n</think>\n\nIt rains. \n", content="It rains. \n"),
    Example(
        parser="qwen3",
        text=f"Hm.\n<tool_call>\n{call(SF)}\n</tool_call>",
        prompt_end="<|im_start|>assistant\n<think>\n",
        reasoning="Hm.",
        calls=[(W, SF)],
    ),
    Example(
        parser="think",
        text="Why <think> at all?",
        prompt_end="<think>\n\n</think>\n\n",
        content="Why <think> at all?",
    ),
    Example(
        parser="qwen3_coder",
        text=f"Now:\n{xml(SF)}\n{xml(ULM)}",
        content="Now:",
        calls=BOTH,
    ),
    Example(
        parser="qwen3_coder",
        text="<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        calls=[("get_time", {})],
    ),
    Example(
        parser="llama3_json",
        text=call(SF, "parameters") + "; " + call(ULM, "parameters"),
        calls=BOTH,
    ),
    Example(parser="llama3_json", text=f"<|python_tag|>{call(SF, 'parameters')}", calls=[(W, SF)]),
    Example(
        parser="llama3_json",
        text='{"name": "no_tool_of_ours", "parameters": {}}',
        content='{"name": "no_tool_of_ours", "parameters": {}}',
    ),
    Example(
        parser="llama4_json",
        text=f"<|python_start|>{call(SF, 'parameters')}<|python_end|>",
        calls=[(W, SF)],
    ),
    Example(
        parser="llama4_pythonic",
        text=f"<|python_start|>[get_weather(city='San Francisco', days=3), get_weather(city="
        f"{ULM['city']!r}, where={ULM['where']!r})]<|python_end|>",
        calls=BOTH,
    ),
    Example(
        parser="pythonic",
        text='[get_weather(city="San Francisco", days=3), get_time()]',
        calls=[(W, SF), ("get_time", {})],
    ),
    Example(
        parser="pythonic",
        text="```tool_code\nget_weather(city='San Francisco', days=3)\n```",
        calls=[(W, SF)],
    ),
    Example(parser="pythonic", text="[a link](https://x.y)", content="[a link](https://x.y)"),
    Example(
        parser="lfm2",
        text="<|tool_call_start|>[get_weather(city='San Francisco', days=3)]<|tool_call_end|>Wait.",
        calls=[(W, SF)],
        content="Wait.",
    ),
    Example(parser="mistral", text=f"[TOOL_CALLS] [{call(SF)}, {call(ULM)}]", calls=BOTH),
    Example(
        parser="mistral",
        text=f"[THINK]Two.[/THINK]Look:[TOOL_CALLS]get_weather[ARGS]{j(SF)}[TOOL_CALLS]"
        f"get_weather[CALL_ID]abcdefghi[ARGS]{j(ULM)}",
        reasoning="Two.",
        content="Look:",
        calls=BOTH,
    ),
    Example(parser="mistral", text=f"[TOOL_CALLS]get_weather{j(SF)}", calls=[(W, SF)]),
    Example(
        parser="deepseek_v3",
        text=f"Let me see. {deepseek(SF, ULM, fenced=True)}",
        content="Let me see.",
        calls=BOTH,
    ),
    Example(parser="deepseek_v31", text=deepseek(SF, ULM, fenced=False), calls=BOTH),
    Example(
        parser="deepseek_r1",
        text="First, this.\n</think>\n\nThen that.",
        reasoning="First, this.",
        content="Then that.",
    ),
    Example(
        parser="deepseek_r1",
        text="At once.",
        prompt_end="<｜Assistant｜></think>",
        content="At once.",
    ),
    Example(
        parser="deepseek_v32",
        text="<｜DSML｜function_calls>\n"
        + invoke(SF, "｜DSML｜{}", typed=True)
        + "\n"
        + invoke(ULM, "｜DSML｜{}", typed=True)
        + "\n</｜DSML｜function_calls>",
        calls=BOTH,
    ),
    Example(
        parser="gpt_oss",
        text="<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>"
        "commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions."
        f"get_weather <|constrain|>json<|message|>{j(SF)}<|call|>",
        reasoning="Need the weather.",
        content="I look.",
        calls=[(W, SF)],
    ),
    Example(
        parser="gpt_oss",
        text=f" to=functions.get_weather<|channel|>commentary json<|message|>{j(SF)}<|call|>",
        calls=[(W, SF)],
    ),
    Example(
        parser="gpt_oss",
        text="<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final"
        "<|message|>It rains.<|return|>",
        reasoning="Easy.",
        content="It rains.",
    ),
    Example(
        parser="glm45",
        text=f"<think>Two.</think>\nI look.\n{glm(SF)}\n{glm(ULM)}",
        reasoning="Two.",
        content="I look.",
        calls=BOTH,
    ),
    Example(
        parser="glm47",
        text=glm(SF).replace("\n", "") + "<tool_call>get_time</tool_call>",
        calls=[(W, SF), ("get_time", {})],
    ),
    Example(
        parser="kimi_k2",
        text="<think>Two.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions."
        f"get_weather:0<|tool_call_argument_begin|>{j(SF)}<|tool_call_end|><|tool_call_begin|>"
        f"functions.get_weather:1<|tool_call_argument_begin|>{j(ULM)}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        reasoning="Two.",
        content="I look.",
        calls=BOTH,
    ),
    Example(
        parser="minimax_m2",
        text=f"<think>\nTwo.\n</think>\n\n<minimax:tool_call>\n{invoke(SF)}\n{invoke(ULM)}\n"
        "</minimax:tool_call>",
        reasoning="Two.",
        calls=BOTH,
    ),
    Example(
        parser="minimax", text=f"<tool_calls>\n{call(SF)}\n{call(ULM)}\n</tool_calls>", calls=BOTH
    ),
    Example(parser="granite", text=f"<|tool_call|>[{call(SF)}, {call(ULM)}]", calls=BOTH),
    Example(
        parser="granite",
        text="Here is my thought process: two. Here is my response: It rains.",
        reasoning="two.",
        content="It rains.",
    ),
    Example(parser="granite", text=f"<tool_call>\n{call(SF)}\n</tool_call>", calls=[(W, SF)]),
    Example(
        parser="granite_20b_fc",
        text=f"<function_call> {call(SF)}\n<function_call> {call(ULM)}",
        calls=BOTH,
    ),
    Example(
        parser="gemma4",
        text='<|channel>thought\nTwo.\n<channel|><|tool_call>call:get_weather{city:<|"|>San '
        'Francisco<|"|>,days:3}<tool_call|><|tool_call>call:get_weather{city:<|"|>'
        f'{ULM["city"]}<|"|>,where:{{lat:48.4,near:[<|"|>Neu-Ulm<|"|>]}}}}<tool_call|>',
        reasoning="Two.",
        calls=BOTH,
    ),
    Example(
        parser="functiongemma",
        text="<start_function_call>call:get_weather{city:<escape>San Francisco<escape>,days:3}"
        "<end_function_call>",
        calls=[(W, SF)],
    ),
    Example(parser="phi4_mini_json", text=f"functools[{call(SF)}, {call(ULM)}]", calls=BOTH),
    Example(
        parser="phi4_mini_json", text=f"<|tool_call|>[{call(SF)}]<|/tool_call|>", calls=[(W, SF)]
    ),
    Example(
        parser="internlm",
        text=f"I look.<|action_start|><|plugin|>\n{call(SF, 'parameters')}<|action_end|>",
        content="I look.",
        calls=[(W, SF)],
    ),
    Example(
        parser="step3",
        text="Two.</think>\nI look.<｜tool_calls_begin｜>"
        + "".join(
            "<｜tool_call_begin｜>function<｜tool_sep｜>"
            f"{invoke(a, 'steptml:{}')}<｜tool_call_end｜>"
            for a in (SF, ULM)
        )
        + "<｜tool_calls_end｜>",
        prompt_end="<|BOT|>assistant\n<think>\n",
        reasoning="Two.",
        content="I look.",
        calls=BOTH,
    ),
    Example(
        parser="hunyuan_a13b",
        text="<think>\nTwo.\n</think>\n<answer>\nIt rains.\n</answer>",
        reasoning="Two.",
        content="It rains.",
    ),
    Example(
        parser="hunyuan_a13b",
        text=f"<think>\nTwo.\n</think>\n<answer>\n<tool_calls>[{call(SF)}, {call(ULM)}]"
        "</tool_calls>\n</answer>",
        reasoning="Two.",
        calls=BOTH,
    ),
]
