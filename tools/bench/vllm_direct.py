"""vLLM's own engine in one process, for `vllm_cost.py`: `python vllm_direct.py MODEL OPTIONS`, in vLLM's environment.

Prints "ready"; then, for each line "REQUESTS TOKENS PROMPT" on standard input, computes so many requests at once and
prints the seconds that took.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    OMP_NUM_THREADS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    TORCHDYNAMO_DISABLE="1",
)

from vllm import EngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine


def main(model: str, options: dict[str, object]) -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs(model=model, enforce_eager=True, disable_log_stats=True, max_num_seqs=16, **options)
    )
    tokenizer = engine.get_tokenizer()
    print("ready", flush=True)
    for line in sys.stdin:
        requests, tokens, *words = line.split()
        turn = [{"role": "user", "content": " ".join(words)}]
        text = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        params = SamplingParams(
            temperature=0.0, max_tokens=int(tokens), ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        began = time.monotonic()
        for n in range(int(requests)):
            engine.add_request(str(n), {"prompt_token_ids": ids}, params)
        while engine.has_unfinished_requests():
            engine.step()
        print(time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
