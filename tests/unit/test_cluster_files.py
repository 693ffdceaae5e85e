"""The clusters we describe, held to Ray's own schema and to what they promise; and what an upload leaves behind."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil

import raytriever

REPOSITORY = Path(__file__).parent.parent.parent
LAUNCHED = ["cluster.yaml", "cluster/gcp.yaml"]
MOUNT = "/mnt/raytriever"
PINS = dict(
    line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().split() if re.fullmatch(r"\S+==\S+", line)
)


def described(file: str) -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / file).read_text())


def prepared(file: str) -> dict[str, Any]:
    config = prepare_config(described(file))
    validate_config(config)
    return config


def commands(config: dict[str, Any]) -> list[str]:
    of_types = [item for kind in config["available_node_types"].values() for item in kind.items()]
    results = [item for name, item in [*config.items(), *of_types] if name.endswith("_commands")]
    return [command for several in results for command in several]


@pytest.mark.parametrize("file", LAUNCHED)
def test_ray_takes_a_description_and_adds_none_of_its_own_installation_or_open_ports(file: str) -> None:
    config = prepared(file)
    text = "\n".join(commands(config))
    assert "ray-wheels" not in text
    assert "nightly" not in text
    assert "0.0.0.0" not in text
    [start] = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--dashboard-host=127.0.0.1" in start
    for line in commands(config):
        for installed in re.findall(r"pip install.*", line):
            assert "-c ~/dist/constraints.txt" in installed or re.search(r"\S==\S+$", installed), installed
    # A schema that takes anything would prove nothing.
    with pytest.raises(Exception, match="instance_type"):
        validate_config({**config, "instance_type": "x"})


def test_images_are_pinned_to_the_versions_of_the_project(kuberay: dict[str, dict[str, Any]]) -> None:
    docker = described("cluster.yaml")["docker"]
    for image in (docker["image"], docker["head_image"], docker["worker_image"]):
        assert image.startswith(f"rayproject/ray:{PINS['ray']}-py311-")
    assert docker["worker_image"].endswith("gpu")
    dockerfile = (REPOSITORY / "cluster" / "Dockerfile").read_text()
    assert f"ARG BASE={docker['worker_image']}\n" in dockerfile
    assert "-c /tmp/dist/constraints.txt" in dockerfile
    image = f"raytriever:{raytriever.__version__}"
    assert f"-t REGISTRY/{image} dist\n" in dockerfile
    used = [described("cluster/gcp.yaml")["docker"]["image"]]
    used += [container["image"] for pod in pods(kuberay) for container in pod["spec"]["containers"]]
    assert set(used) == {f"CHANGE-ME/{image}"}


@pytest.mark.parametrize("file", LAUNCHED)
def test_every_process_wants_the_token_and_writes_to_the_mounted_storage(file: str) -> None:
    config = prepared(file)
    variables = dict(option[6:].split("=", 1) for option in config["docker"]["run_options"] if option[:6] == "--env ")
    assert variables["RAY_AUTH_MODE"] == "token"
    assert f"--volume {MOUNT}:{MOUNT}" in config["docker"]["run_options"]
    for name in ("RAYTRIEVER_HOME", "RAYTRIEVER_RUNS", "RAYTRIEVER_CACHE", "MLFLOW_TRACKING_URI"):
        assert variables[name].removeprefix("sqlite:///").startswith(MOUNT), name
    assert config["file_mounts"]["/home/ray/.ray"] == "~/.ray"
    for node in ("head", "worker"):
        assert any("chmod 600 ~/.ray/auth_token" in line for line in config[f"{node}_setup_commands"])
    for kind in config["available_node_types"].values():
        mounting = kind.get("initialization_commands", config["initialization_commands"])
        assert any("mount -t nfs4" in line and MOUNT in line for line in mounting)


@pytest.mark.parametrize("file", LAUNCHED)
def test_gpu_nodes_come_from_none_and_differ_in_their_market_alone(file: str) -> None:
    config = described(file)
    kinds = config["available_node_types"]
    assert config["head_node_type"] == "head"
    assert "GPU" not in kinds["head"]["resources"]
    spot, bought = kinds["gpu-spot"], kinds["gpu-on-demand"]
    assert spot["min_workers"] == bought["min_workers"] == 0
    assert spot["resources"] == bought["resources"]
    market = {"InstanceMarketOptions", "scheduling"}
    machines = [{k: v for k, v in kind["node_config"].items() if k not in market} for kind in (spot, bought)]
    assert machines[0] == machines[1]
    assert "spot" in str(spot["node_config"]).lower()
    assert "spot" not in str(bought["node_config"]).lower()


@pytest.mark.parametrize("file", LAUNCHED)
@pytest.mark.parametrize(("failed", "expected"), [(set(), "gpu-spot"), ({"gpu-spot"}, "gpu-on-demand")])
def test_rays_autoscaler_takes_spot_first_and_buys_where_there_is_none(
    file: str, failed: set[str], expected: str
) -> None:
    kinds = AutoscalingConfig(described(file), skip_content_hash=True).get_node_type_configs()
    wanted = [ResourceRequestUtil.make({"CPU": 1, "GPU": 1})] * 3
    asked = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=kinds,
        max_num_nodes=8,
        resource_requests=ResourceRequestUtil.group_by_count(wanted),
        recoverable_resource_availabilities=dict.fromkeys(failed, 0.0),
    )
    launched = {launch.instance_type: launch.count for launch in ResourceDemandScheduler().schedule(asked).to_launch}
    launched.pop("head", None)
    assert launched == {expected: 3}


# Of KubeRay's v1 API as its reference for 1.6 has it; what is not used here is left out.
FIELDS = {
    "RayCluster": {"rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec"}
    | {"workerGroupSpecs", "suspend", "managedBy", "gcsFaultToleranceOptions"},
    "RayJob": {"clusterSelector", "submissionMode", "entrypoint", "entrypointNumGpus", "submitterPodTemplate"}
    | {"rayClusterSpec", "runtimeEnvYAML", "shutdownAfterJobFinishes", "backoffLimit"},
    "authOptions": {"mode", "secretName", "enableK8sTokenAuth"},
    "autoscalerOptions": {"version", "upscalingMode", "idleTimeoutSeconds", "resources", "env", "volumeMounts"},
    "headGroupSpec": {"serviceType", "rayStartParams", "template", "headService", "enableIngress"},
    "workerGroupSpecs": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    | {"idleTimeoutSeconds", "numOfHosts", "scaleStrategy"},
    "pod": {"containers", "volumes", "securityContext", "nodeSelector", "tolerations", "restartPolicy"}
    | {"terminationGracePeriodSeconds", "initContainers", "serviceAccountName"},
    "container": {"name", "image", "env", "ports", "resources", "volumeMounts", "command", "args", "envFrom"},
}


@pytest.fixture(scope="module")
def kuberay() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((REPOSITORY / "cluster" / "kuberay.yaml").read_text())
    return {document["kind"]: document for document in documents}


def pods(kuberay: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    spec = kuberay["RayCluster"]["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [*(group["template"] for group in groups), kuberay["RayJob"]["spec"]["submitterPodTemplate"]]


def test_kuberay_knows_every_field_that_is_given_to_it(kuberay: dict[str, dict[str, Any]]) -> None:
    cluster, job = kuberay["RayCluster"]["spec"], kuberay["RayJob"]["spec"]
    assert kuberay["RayCluster"]["apiVersion"] == kuberay["RayJob"]["apiVersion"] == "ray.io/v1"
    assert cluster.keys() <= FIELDS["RayCluster"]
    assert job.keys() <= FIELDS["RayJob"]
    for name in ("authOptions", "autoscalerOptions", "headGroupSpec"):
        assert cluster[name].keys() <= FIELDS[name]
    for group in cluster["workerGroupSpecs"]:
        assert group.keys() <= FIELDS["workerGroupSpecs"]
        assert group["replicas"] == group["minReplicas"] == 0 < group["maxReplicas"]
    for pod in pods(kuberay):
        assert pod.keys() <= {"metadata", "spec"}
        assert pod["spec"].keys() <= FIELDS["pod"]
        for container in pod["spec"]["containers"]:
            assert container.keys() <= FIELDS["container"]
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted <= {volume["name"] for volume in pod["spec"].get("volumes", [])}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        values = group["rayStartParams"].values()
        assert all(isinstance(value, str) for value in values), "KubeRay takes texts alone"


def test_kuberay_wants_a_token_and_gives_gpus_to_workers_alone(kuberay: dict[str, dict[str, Any]]) -> None:
    cluster = kuberay["RayCluster"]["spec"]
    assert cluster["rayVersion"] == PINS["ray"]
    assert cluster["authOptions"]["mode"] == "token"
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    limits = [pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") for pod in pods(kuberay)]
    assert limits == [None, "1", "1", None]
    assert [group["groupName"] for group in cluster["workerGroupSpecs"]] == ["gpu-spot", "gpu-on-demand"]
    policy = kuberay["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    let_in = policy["podSelector"]["matchLabels"]
    assert all(let_in.items() <= pod["metadata"]["labels"].items() for pod in pods(kuberay))


def test_the_job_of_kuberay_is_given_to_that_cluster_and_writes_where_it_lasts(
    kuberay: dict[str, dict[str, Any]],
) -> None:
    cluster, job = kuberay["RayCluster"], kuberay["RayJob"]["spec"]
    assert job["clusterSelector"]["ray.io/cluster"] == cluster["metadata"]["name"]
    assert f"--output {MOUNT}/" in job["entrypoint"]
    submitter = {pod["name"]: pod for pod in pods(kuberay)[-1]["spec"]["containers"][0]["env"]}
    assert submitter["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == cluster["metadata"]["name"]
    claim = kuberay["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"]["labels"]["kind"] not in (
        item["metadata"]["labels"]["kind"] for item in (cluster, kuberay["RayJob"])
    )
    for pod in pods(kuberay)[:-1]:
        assert {"name": "runs", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in pod["spec"][
            "volumes"
        ]
        assert {"name": "runs", "mountPath": MOUNT} in pod["spec"]["containers"][0]["volumeMounts"]


PLANTED = [
    ".env", ".env.production", ".netrc", "key.pem", "id_rsa", "aws_credentials", ".aws/credentials", ".ssh/config",
    ".ray/auth_token", "client_secret.json", "hub.token", ".git/config", ".venv/bin/python", "runs/one/config.yaml",
    "mlflow.db", "mlruns/0/meta.yaml", "mlartifacts/x/model", "results/results.json", "data/corpus.jsonl",
    "embeddings/one/part.npy", "negatives/1/table.jsonl", "weights/model.safetensors", "weights/pytorch_model.bin",
    "corpus.parquet", "platform/raytriever/__pycache__/main.pyc", "dist/raytriever-0.3.0-py3-none-any.whl",
]  # fmt: skip


def test_an_upload_is_the_code_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    files = [path for top in ("platform", "jobs") for path in (REPOSITORY / top).rglob("*") if path.is_file()]
    code = [path.relative_to(REPOSITORY) for path in files if "__pycache__" not in path.parts]
    code += [Path(name) for name in (".rayignore", ".gitignore", "pyproject.toml", "constraints.txt", "settings.yaml")]
    for path in [*code, *map(Path, PLANTED)]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        ours = path not in map(Path, PLANTED) and (REPOSITORY / path).is_file()
        (folder / path).write_bytes((REPOSITORY / path).read_bytes() if ours else b"canary")
    package = tmp_path / "upload.zip"
    # What `ray job submit --working-dir` uploads.
    excludes = list(get_runtime_env_default_excludes())
    create_package(str(folder), package, include_gitignore=True, excludes=excludes)
    uploaded = set(zipfile.ZipFile(package).namelist())
    assert set(map(str, code)) <= uploaded
    assert not uploaded & set(PLANTED)
    assert uploaded - set(map(str, code)) == set()


def test_ray_takes_the_description_of_own_machines() -> None:
    described_machines = described("cluster/own-machines.yaml")
    validate_config(prepare_config(described_machines))
    started = [line for name in ("head", "worker") for line in described_machines[f"{name}_start_ray_commands"]]
    assert described_machines["min_workers"] == len(described_machines["provider"]["worker_ips"])
    assert [line for line in started if "RAY_enable_autoscaler_v2=0" in line] == [started[1]]
    assert "--dashboard-host=127.0.0.1" in started[1]
    assert all("RAY_AUTH_MODE=token" in line for line in started if "ray start" in line)
