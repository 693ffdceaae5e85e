"""Train one step with `SentenceTransformerTrainer`, in one process or in those of `torchrun`: MODEL OUTPUT KIND."""

import sys

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from tiny_models import text_of

from raytriever.sentence_transformers import MannWhitneyLoss

ROWS = 8


def main(folder: str, output: str, cached: bool) -> None:
    """Train on all rows in one step, divided among the processes."""
    from accelerate import PartialState

    processes = PartialState(cpu=True).num_processes
    model = SentenceTransformer(folder, device="cpu", local_files_only=True)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    rows = {
        "anchor": [text_of(4, 20 + row) for row in range(ROWS)],
        # Rows 1 and 6, of different processes, share a positive.
        "positive": [text_of(6 + row, 50 + row % 5) for row in range(ROWS)],
    }
    settings = {"mini_batch_size": 2} if cached else {}
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=f"{output}-run",
            use_cpu=True,
            per_device_train_batch_size=ROWS // processes,
            max_steps=1,
            optim="sgd",
            learning_rate=1.0,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_strategy="no",
            log_to="none",
        ),
        train_dataset=Dataset.from_dict(rows),
        loss=MannWhitneyLoss(model, temperature=0.2, gather_across_devices=processes > 1, **settings),
    )
    trainer.train()
    if trainer.is_world_process_zero():
        torch.save({name: item.detach() for name, item in model.named_parameters()}, output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "cached" in sys.argv)
