"""`make demo`: four Vision Transformers that differ in one word, trained on the digits that come with scikit-learn, side by side."""

from __future__ import annotations

from favorit.cli.allocator import keep_large_buffers
from favorit.cli.console import open_console, open_table
from favorit.cli.listen import listener
from favorit.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from favorit.training import Run, train

QUESTION = "Does attention matter on 8x8 digits read pixel by pixel, and does it have to be softmax?"
MIXERS = ("softmax", "favor(m=64)", "relu(m=64)", "uniform")


def configuration(mixer: str) -> RunConfig:
    """One run of the comparison: all that varies is the mixer of every layer."""
    return RunConfig(
        model=ModelConfig(stem="patch(1)", dim=48, depth=4, heads=4, mlp_dim=96, layout=mixer, head="mean"),
        data=DataConfig(name="digits", validation=0.15),
        train=TrainConfig(epochs=14, batch_size=64, optimizer="muon", lr=5e-3, warmup=1),
    )


def main(out: str = "runs/demo") -> None:
    """Trains what is missing and prints the comparison."""
    keep_large_buffers()
    console = open_console()
    console.print(f"{QUESTION}\n")
    done: dict[str, Run] = {}
    for mixer in MIXERS:
        console.print(f"[bold]{mixer}[/bold]")
        with listener(console) as listen:
            done[mixer] = train(configuration(mixer), out=out, listen=listen)
    table = open_table(mixer="left", test="right", validation="right", parameters="right", s_per_epoch="right", against_softmax="right")
    base = done["softmax"].result["train_seconds_per_epoch"]
    for mixer, run in done.items():
        result = run.result
        seconds = result["train_seconds_per_epoch"]
        table.add_row(
            mixer,
            f"{result['test']['accuracy']:.2%}",
            f"{result['validation']['accuracy']:.2%}",
            f"{result['parameters']:,}",
            f"{seconds:.2f}",
            f"{seconds / base:.2f}x",
        )
    console.print("", table)
    console.print(f"\nOne seed and 360 test images: differences under 3 points mean nothing. `favorit runs {out}` lists these runs.")


if __name__ == "__main__":
    main()
