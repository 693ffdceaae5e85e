"""The dashboard, described: `python dashboards/describe.py` writes `grafana/raytriever.json`, which is committed.

What a run tells is in docs/reference/gauges.md, Ray's own metrics are in
https://docs.ray.io/en/latest/ray-observability/reference/system-metrics.html. `max by (run)`, because a worker that was
started again may tell beside the one that has just died.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from grafana_json import Panel, Row, dashboard

TARGET = Path(__file__).parent / "grafana" / "raytriever.json"


def ours(name: str) -> str:
    """The newest value of a gauge of the chosen runs, a curve a run."""
    return f'max by (run) (ray_raytriever_{name}{{run=~"$run"}})'


def evaluations() -> str:
    """Every metric of an evaluation that was told in the last hour, a curve a name and run."""
    no_metrics = "ray_raytriever_evaluation_(step|running|.*seconds)"
    metrics = f'__name__=~"ray_raytriever_evaluation_.+", __name__!~"{no_metrics}", run=~"$run"'
    return f"max by (__name__, run) (last_over_time({{{metrics}}}[1h]))"


def rate_of(total: str) -> str:
    """What a total grows by a second, over the last minute."""
    return f'max by (run) (rate(ray_raytriever_{total}{{run=~"$run"}}[1m]))'


def curves(**names: str) -> dict[str, str]:
    """Gauges by the word that the legend has before the run."""
    return {f"{word.replace('_', ' ')} {{{{run}}}}": ours(name) for word, name in names.items()}


RUN = Row(
    "Run",
    [
        Panel(
            "Steps",
            "The newest step of training, and the last one there will be.",
            "short",
            curves(done="step", of="total_steps"),
        ),
        Panel(
            "Since the newest step",
            "A saw whose teeth are as high as a step is long. Five minutes are an alert.",
            "s",
            {"{{run}}": f"time() - {ours('step_timestamp_seconds')}"},
        ),
        Panel(
            "Since the newest checkpoint",
            "What a death would cost. Above three times the interval, --checkpoint-minutes, is an alert.",
            "s",
            {
                "age {{run}}": f"time() - {ours('checkpoint_timestamp_seconds')}",
                "interval {{run}}": ours("checkpoint_interval_seconds"),
            },
        ),
        Panel(
            "Training",
            "1 while a run trains, 0 when its training has ended as it should. A curve that ends at 1 was killed.",
            "none",
            curves(state="training"),
        ),
        Panel(
            "Free disk",
            "Share of the run directory's file system that was free when the newest checkpoint was written.",
            "percentunit",
            {"{{run}}": ours("disk_free_share")},
        ),
    ],
)

TRAINING = Row(
    "Training",
    [
        Panel("Loss", "Of the newest batch, and of the dev split.", "none", curves(train="loss", dev="dev_loss"), None),
        Panel(
            "AUC in the batch",
            "Share of pairs of a positive and a negative of the batch that are in order.",
            "percentunit",
            {"{{run}}": ours("batch_auc")},
            None,
        ),
        Panel(
            "Seconds a step",
            "A step and its parts. Waiting for data should be a few percent of it; checkpoint is what a step waited to "
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
        Panel("Tokens a second", "Padding not counted, all workers.", "cps", curves(tokens="tokens_per_second")),
        Panel(
            "Gradient norm",
            "Before it is clipped. A norm that grows asks for a lower --learning-rate.",
            "none",
            curves(norm="gradient_norm"),
        ),
        Panel(
            "Arithmetic in use",
            "Share of the GPUs' peak arithmetic that training uses, where the peak is known; nothing without GPUs.",
            "percentunit",
            curves(used="model_flops_utilisation"),
        ),
        Panel("Learning rate", "Of the newest step.", "sci", curves(rate="learning_rate")),
        Panel(
            "Peak memory",
            "Of the first worker. Near the device's: a smaller --grad-cache-chunk.",
            "decmbytes",
            curves(peak="peak_memory_mb"),
        ),
        Panel(
            "Slowest worker",
            "By how many seconds a step the slowest worker holds up the others.",
            "s",
            curves(behind="straggler_seconds"),
        ),
    ],
)

INGEST = Row(
    "Ingest",
    [
        Panel("Rows a second", "Rows read, checked and tokenised.", "cps", {"{{run}}": rate_of("ingest_rows")}),
        Panel("Rows", "Rows done so far; all of a data set's files together.", "short", curves(rows="ingest_rows")),
        Panel(
            "Quarantined rows",
            "Bad rows put aside so far; each stands with its reason in quarantine.jsonl.",
            "short",
            curves(bad="ingest_quarantined"),
        ),
    ],
)

REFRESH = Row(
    "Refresh of hard negatives",
    [
        Panel("Round in use", "0 is the table training began with.", "none", curves(round="negatives_round")),
        Panel(
            "Age of the negatives",
            "Steps since the weights that found the negatives in use. Above three times --refresh-every is an alert.",
            "short",
            curves(age="refresh_age_steps", every="refresh_every_steps"),
        ),
        Panel(
            "Seconds a round",
            "The newest round: all of it, and of it encoding and mining; and what steps waited for rounds.",
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
            "Of the newest round's candidates; and the shares of queries with fewer negatives than wanted, or none.",
            "percentunit",
            curves(kept="refresh_share_kept", short="refresh_queries_short", without="refresh_queries_without"),
        ),
        Panel(
            "Overlap",
            "Share of the table's rows that the table before had. Near 1: refresh less often.",
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
            "The newest whose metrics are known, beside the newest step; training waits where it is too far behind.",
            "short",
            curves(evaluated="evaluation_step", trained="step"),
        ),
        Panel(
            "Seconds an evaluation",
            "Of the newest checkpoint, beside the training; and what steps waited for evaluations.",
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
            "Of the sweep: wanted, under way, done, failed.",
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
            "That are alive, by kind.",
            "none",
            {"{{RayNodeType}}": "count by (RayNodeType) (max by (ip, RayNodeType) (ray_node_mem_total))"},
        ),
        Panel("Processors", "In use on each node.", "percent", {"{{ip}}": "max by (ip) (ray_node_cpu_utilization)"}),
        Panel(
            "Memory",
            "Used on each node, and what it has.",
            "bytes",
            {"used {{ip}}": "max by (ip) (ray_node_mem_used)", "of {{ip}}": "max by (ip) (ray_node_mem_total)"},
        ),
        Panel(
            "Disk",
            "Used share of each node's own disk, where Ray keeps logs and spilled objects.",
            "percent",
            {"{{ip}}": "max by (ip) (ray_node_disk_utilization_percentage)"},
        ),
        Panel(
            "Object store",
            "Bytes of objects, by where they are. Spilled ones are on the disk and slow: an alert.",
            "bytes",
            {"{{Location}}": "sum by (Location) (ray_object_store_memory)"},
        ),
        Panel(
            "GPUs",
            "In use, each GPU of each node; nothing where there are none.",
            "percent",
            {"{{ip}} {{GpuIndex}}": "max by (ip, GpuIndex) (ray_node_gpus_utilization)"},
        ),
        Panel(
            "GPU memory",
            "Used share of each GPU; nothing where there are none.",
            "percentunit",
            {
                "{{ip}} {{GpuIndex}}": "max by (ip, GpuIndex) "
                "(ray_node_gram_used / (ray_node_gram_used + ray_node_gram_available))"
            },
        ),
        Panel(
            "Network",
            "Received and sent a second by each node.",
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
            "Of metrics, that the tracking server does not have yet; they are safe in steps.jsonl.",
            "short",
            curves(waiting="tracking_waiting_points"),
        ),
        Panel("Behind", "Age of the oldest point that waits.", "s", curves(behind="tracking_behind_seconds")),
        Panel("Failed requests", "To the tracking server, in this call.", "none", curves(failed="tracking_failures")),
    ],
)

ROWS = [RUN, TRAINING, INGEST, REFRESH, EVALUATION, TUNE, CLUSTER, TRACKING]


def text() -> str:
    """What the committed file holds."""
    return json.dumps(dashboard(ROWS), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
