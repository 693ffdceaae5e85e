"""Panels of the dashboard: `python dashboards/panels.py` writes `grafana/raytriever.json`, which is committed.

The gauges of a run are in docs/reference/gauges.md, Ray's own metrics are in
https://docs.ray.io/en/latest/ray-observability/reference/system-metrics.html. `max by (run)`, because a worker that was
started again may report at the same time as the one that has just died.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from grafana_json import Panel, Row, dashboard

TARGET = Path(__file__).parent / "grafana" / "raytriever.json"


def ours(name: str) -> str:
    """Return the newest value of a gauge of the chosen runs, one curve per run."""
    return f'max by (run) (ray_raytriever_{name}{{run=~"$run"}})'


def evaluations() -> str:
    """Return every evaluation metric of the last hour, one curve per name and run."""
    no_metrics = "ray_raytriever_evaluation_(step|running|.*seconds)"
    metrics = f'__name__=~"ray_raytriever_evaluation_.+", __name__!~"{no_metrics}", run=~"$run"'
    return f"max by (__name__, run) (last_over_time({{{metrics}}}[1h]))"


def rate_of(total: str) -> str:
    """Return the growth of a total per second over the last minute."""
    return f'max by (run) (rate(ray_raytriever_{total}{{run=~"$run"}}[1m]))'


def curves(**names: str) -> dict[str, str]:
    """Return gauges by the word before the run in the legend."""
    return {f"{word.replace('_', ' ')} {{{{run}}}}": ours(name) for word, name in names.items()}


RUN = Row(
    "Run",
    [
        Panel(
            "Steps",
            "The newest training step, and the last step of the run.",
            "short",
            curves(done="step", of="total_steps"),
        ),
        Panel(
            "Since the newest step",
            "A sawtooth: its height is the duration of a step. Above five minutes there is an alert.",
            "s",
            {"{{run}}": f"time() - {ours('step_timestamp_seconds')}"},
        ),
        Panel(
            "Since the newest checkpoint",
            "The work lost if the run dies now. Alert above three times the interval, --checkpoint-minutes.",
            "s",
            {
                "age {{run}}": f"time() - {ours('checkpoint_timestamp_seconds')}",
                "interval {{run}}": ours("checkpoint_interval_seconds"),
            },
        ),
        Panel(
            "Training",
            "1 while a run trains, 0 after its training has ended normally. A run whose curve ends at 1 was killed.",
            "none",
            curves(state="training"),
        ),
        Panel(
            "Free disk",
            "Fraction of the run directory's file system that was free when the newest checkpoint was written.",
            "percentunit",
            {"{{run}}": ours("disk_free_fraction")},
        ),
    ],
)

TRAINING = Row(
    "Training",
    [
        Panel("Loss", "Of the newest batch, and of the dev split.", "none", curves(train="loss", dev="dev_loss"), None),
        Panel(
            "AUC in the batch",
            "Fraction of the pairs of a positive and a negative of the batch in which the positive scores higher.",
            "percentunit",
            {"{{run}}": ours("batch_auc")},
            None,
        ),
        Panel(
            "Seconds a step",
            "A step and its parts. Waiting for data should be a few percent; checkpoint is the time a step waits to "
            "begin one.",
            "s",
            curves(
                step="step_seconds",
                data="data_wait_seconds",
                encode="encode_seconds",
                loss="loss_seconds",
                backward="backward_seconds",
                optimizer="optimizer_seconds",
                checkpoint="checkpoint_seconds",
            ),
        ),
        Panel(
            "Queries a second",
            "Of the global batch, all workers together.",
            "cps",
            curves(queries="queries_per_second"),
        ),
        Panel("Tokens a second", "Without padding, all workers together.", "cps", curves(tokens="tokens_per_second")),
        Panel(
            "Gradient norm",
            "Before clipping. If the norm grows, use a lower --learning-rate.",
            "none",
            curves(norm="gradient_norm"),
        ),
        Panel(
            "Arithmetic in use",
            "Fraction of the GPUs' peak arithmetic that training uses, if the peak is known; empty without GPUs.",
            "percentunit",
            curves(used="model_flops_utilization"),
        ),
        Panel("Learning rate", "Of the newest step.", "sci", curves(rate="learning_rate")),
        Panel(
            "Peak memory",
            "Of the first worker. If it is near the memory of the device, use a smaller --grad-cache-chunk.",
            "decmbytes",
            curves(peak="peak_memory_mb"),
        ),
        Panel(
            "Slowest worker",
            "Seconds per step for which the other workers wait for the slowest one.",
            "s",
            curves(behind="straggler_seconds"),
        ),
    ],
)

INGEST = Row(
    "Ingest",
    [
        Panel("Rows a second", "Rows read, checked and tokenized.", "cps", {"{{run}}": rate_of("ingest_rows")}),
        Panel("Rows", "Rows finished so far, of all files of a data set.", "short", curves(rows="ingest_rows")),
        Panel(
            "Quarantined rows",
            "Bad rows so far; quarantine.jsonl has each one with its reason.",
            "short",
            curves(bad="ingest_quarantined"),
        ),
    ],
)

REFRESH = Row(
    "Refresh of hard negatives",
    [
        Panel("Round in use", "0 is the table at the start of the training.", "none", curves(round="negatives_round")),
        Panel(
            "Age of the negatives",
            "Steps since the weights that mined the current negatives. Alert above three times --refresh-every.",
            "short",
            curves(age="refresh_age_steps", every="refresh_every_steps"),
        ),
        Panel(
            "Seconds a round",
            "The newest round in total, its encoding and its mining; and the time that steps waited for rounds.",
            "s",
            curves(
                all="refresh_seconds",
                encode="refresh_encode_seconds",
                mine="refresh_mine_seconds",
                steps_waited="refresh_wait_seconds",
            ),
        ),
        Panel(
            "Kept share",
            "Of the newest round's candidates; and the fractions of queries with too few negatives, or none.",
            "percentunit",
            curves(kept="refresh_fraction_kept", short="refresh_queries_short", without="refresh_queries_without"),
        ),
        Panel(
            "Overlap",
            "Fraction of the table's rows that were in the table before. Near 1, refresh less often.",
            "percentunit",
            curves(overlap="refresh_overlap"),
        ),
        Panel("Failed rounds", "Rounds without a table, in the whole run.", "none", curves(failed="refresh_failures")),
    ],
)

EVALUATION = Row(
    "Evaluation",
    [
        Panel(
            "Texts encoded a second", "By all actors of a job together.", "cps", {"{{run}}": rate_of("encoding_texts")}
        ),
        Panel(
            "Newest metrics",
            "Of a run's newest checkpoint on dev data; of jobs/evaluate.py NAME/MODEL/DATASET. They stay for an hour.",
            "none",
            {"{{__name__}} {{run}}": evaluations()},
        ),
        Panel(
            "Evaluated checkpoint",
            "The newest checkpoint with metrics, and the newest step; training waits if the difference is too large.",
            "short",
            curves(evaluated="evaluation_step", trained="step"),
        ),
        Panel(
            "Seconds an evaluation",
            "Of the newest checkpoint, during training; and the time that steps waited for evaluations.",
            "s",
            curves(evaluation="evaluation_seconds", steps_waited="evaluation_wait_seconds"),
        ),
    ],
)

TUNE = Row(
    "Tune",
    [
        Panel(
            "Trials",
            "Of the sweep: all, running, finished, failed.",
            "none",
            curves(
                all="tune_trials", running="tune_trials_running", done="tune_trials_done", failed="tune_trials_failed"
            ),
        ),
        Panel("Best metric", "Of the trials so far.", "none", curves(best="tune_best_metric"), None),
    ],
)

CLUSTER = Row(
    "Cluster",
    [
        Panel(
            "Nodes",
            "Nodes that are alive, by kind.",
            "none",
            {"{{RayNodeType}}": "count by (RayNodeType) (max by (ip, RayNodeType) (ray_node_mem_total))"},
        ),
        Panel("Processors", "In use on each node.", "percent", {"{{ip}}": "max by (ip) (ray_node_cpu_utilization)"}),
        Panel(
            "Memory",
            "Used memory of each node, and its total.",
            "bytes",
            {"used {{ip}}": "max by (ip) (ray_node_mem_used)", "of {{ip}}": "max by (ip) (ray_node_mem_total)"},
        ),
        Panel(
            "Disk",
            "Used fraction of each node's own disk, where Ray keeps logs and spilled objects.",
            "percent",
            {"{{ip}}": "max by (ip) (ray_node_disk_utilization_percentage)"},
        ),
        Panel(
            "Object store",
            "Bytes of objects, by location. Spilled objects are on the disk and slow: there is an alert.",
            "bytes",
            {"{{Location}}": "sum by (Location) (ray_object_store_memory)"},
        ),
        Panel(
            "GPUs",
            "In use, for each GPU of each node; empty without GPUs.",
            "percent",
            {"{{ip}} {{GpuIndex}}": "max by (ip, GpuIndex) (ray_node_gpus_utilization)"},
        ),
        Panel(
            "GPU memory",
            "Used fraction of each GPU; empty without GPUs.",
            "percentunit",
            {
                "{{ip}} {{GpuIndex}}": "max by (ip, GpuIndex) "
                "(ray_node_gram_used / (ray_node_gram_used + ray_node_gram_available))"
            },
        ),
        Panel(
            "Network",
            "Bytes received and sent per second by each node.",
            "Bps",
            {
                "in {{ip}}": "max by (ip) (ray_node_network_receive_speed)",
                "out {{ip}}": "max by (ip) (ray_node_network_send_speed)",
            },
        ),
    ],
)

TRACKING = Row(
    "Tracking",
    [
        Panel(
            "Points that wait",
            "Points of metrics that the tracking server does not have yet; they are safe in steps.jsonl.",
            "short",
            curves(waiting="tracking_waiting_points"),
        ),
        Panel("Behind", "Age of the oldest waiting point.", "s", curves(behind="tracking_behind_seconds")),
        Panel(
            "Failed requests",
            "Requests to the tracking server that failed since the command started.",
            "none",
            curves(failed="tracking_failures"),
        ),
    ],
)

ROWS = [RUN, TRAINING, INGEST, REFRESH, EVALUATION, TUNE, CLUSTER, TRACKING]


def text() -> str:
    """Return the content of the committed file."""
    return json.dumps(dashboard(ROWS), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
