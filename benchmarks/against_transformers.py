"""allmetal and transformers in turn on one checkpoint, in bfloat16.

    python benchmarks/against_transformers.py [--ours FOLDER] [--static]

What each figure is: benchmarks/contest/load.py.  Without --ours a random checkpoint of Qwen3-0.6B's
shape is made (1.2 GB).  Many requests run in transformers' continuous batching
(`generate_batch`), or with --static as two static batches of 16 (`generate`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from contest.load import AT_ONCE
from contest.sides import Script
from contest.turns import in_turn, parser
from contest.worker import work


class Transformers:
    def __init__(self, model: str, static: bool) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        self._torch, self._t, self._static = torch, transformers, static
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16
        ).eval()

    def generate(self, prompts: list[list[int]], count: int) -> None:
        config = self._t.GenerationConfig(
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )
        if len(prompts) > 1 and not self._static:
            out = self._model.generate_batch(inputs=prompts, generation_config=config)
            assert len(out) == len(prompts)
            assert all(len(one.generated_tokens) == count for one in out.values())
            return
        for first in range(0, len(prompts), AT_ONCE):
            ids = self._torch.tensor(prompts[first : first + AT_ONCE])
            with self._torch.inference_mode():
                out = self._model.generate(
                    ids, attention_mask=self._torch.ones_like(ids), generation_config=config
                )
            assert out.shape[1] == ids.shape[1] + count


def make_model(folder: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    if not (folder / "model.safetensors").exists():
        config = Qwen3Config(
            hidden_size=1024,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=3072,
            vocab_size=151_936,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
    return folder


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("--work", "--startup"):
        job, model, static = sys.argv[1:]
        work(lambda: Transformers(model, static == "static"), startup=job == "--startup")
        return
    options = parser(__doc__, ours_is_required=False)
    options.add_argument("--static", action="store_true", help="many requests in static batches")
    args = options.parse_args()
    if args.ours is None:
        from allmetal.config import cache_dir

        args.ours = str(make_model(cache_dir() / "bench" / "qwen3-0.6b"))
    arguments = [args.ours, "static" if args.static else "continuous"]
    weights = Path(args.ours) / "model.safetensors"
    in_turn(args, Script("transformers", sys.executable, Path(__file__), arguments, weights))


if __name__ == "__main__":
    main()
