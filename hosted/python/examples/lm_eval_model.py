"""Evaluates models with lm-evaluation-harness (`pip install lm-eval`; PyTorch is not needed).

    python lm_eval_model.py model.gguf --tasks facts,facts_written --include-path lm_eval_tasks

`Sluice` is a model class for the harness: its tasks that compare how likely answers are, and those that let the model
write. Arguments behind the file are `--tasks` (names, separated by commas), `--include-path` (a folder with tasks of
your own), `--num-fewshot`, `--limit` and `--output` (a file for all results as JSON).
"""

import argparse
import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table
from sluice import LLM, SamplingParams


class Sluice(TemplateLM):
    """A model for the harness, over `sluice.LLM`."""

    def __init__(self, model: str, max_new_tokens: int = 256, **arguments: object) -> None:
        super().__init__()
        self.llm = LLM(model, **arguments)
        self.words = self.llm.get_tokenizer()
        self.max_new_tokens = max_new_tokens

    @property
    def eot_token_id(self) -> int:
        """The token that texts begin behind."""
        return self.words.bos_token_id if self.words.bos_token_id is not None else self.words.eos_token_id

    @property
    def tokenizer_name(self) -> str:
        """Part of the names of cached requests."""
        return "sluice"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """The tokens of a text; without a marker before it, as the harness has it for decoders."""
        return self.words.encode(string, add_special_tokens=bool(add_special_tokens))

    def apply_chat_template(self, chat_history: list[dict], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation."""
        return self.words.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    def likelihoods(self, texts: list[list[int]]) -> list[list]:
        """Of each token but the first of each text, which is behind those before it."""
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0)
        found = self.llm.generate([{"prompt_token_ids": tokens} for tokens in texts], params, use_tqdm=True)
        return [
            [likely[token] for token, likely in zip(tokens[1:], output.prompt_logprobs[1:], strict=True)]
            for tokens, output in zip(texts, found, strict=True)
        ]

    def _loglikelihood_tokens(self, requests: list, **_: object) -> list[tuple[float, bool]]:
        results = []
        texts = [context + continuation for _, context, continuation in requests]
        for (_, _, continuation), likely in zip(requests, self.likelihoods(texts), strict=True):
            of_it = likely[-len(continuation) :]
            results.append((sum(one.logprob for one in of_it), all(one.rank == 1 for one in of_it)))
        return results

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        """Log-probabilities of whole texts, each behind the first token of the vocabulary."""
        texts = [[self.eot_token_id, *self.tok_encode(request.args[0])] for request in requests]
        return [sum(one.logprob for one in likely) for likely in self.likelihoods(texts)]

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        """Answers that the model writes, all at once."""
        prompts, params = [], []
        for context, given in (request.args for request in requests):
            until = given.get("until") or []
            prompts.append({"prompt_token_ids": self.tok_encode(context)})
            params.append(
                SamplingParams(
                    temperature=given.get("temperature", 0.0) if given.get("do_sample") else 0.0,
                    top_p=given.get("top_p", 1.0),
                    max_tokens=given.get("max_gen_toks", self.max_new_tokens),
                    stop=[until] if isinstance(until, str) else [text for text in until if text],
                )
            )
        found = self.llm.generate(prompts, params)
        return [output.outputs[0].text for output in found]


def main() -> None:
    """Evaluates, and prints the harness's table."""
    parser = argparse.ArgumentParser(description="lm-evaluation-harness over a model of sluice")
    parser.add_argument("model", help="GGUF or .slc file, or Hugging Face folder")
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--include-path", type=Path)
    parser.add_argument("--num-fewshot", type=int)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    tasks = TaskManager(include_path=str(args.include_path) if args.include_path else None)
    results = lm_eval.simple_evaluate(
        model=Sluice(args.model),
        tasks=args.tasks.split(","),
        task_manager=tasks,
        num_fewshot=args.num_fewshot,
        limit=args.limit,
        bootstrap_iters=1000,
    )
    sys.stdout.write(make_table(results) + "\n")
    if args.output:
        args.output.write_text(json.dumps(results["results"], indent=2, default=str))


if __name__ == "__main__":
    main()
