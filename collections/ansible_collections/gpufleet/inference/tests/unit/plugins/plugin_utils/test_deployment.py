# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings become a command that the engine takes, or one message."""

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import deployment
from ansible_collections.gpufleet.inference.plugins.plugin_utils.profiles import DeploymentError

SM120 = {"gpu_class": "sm120_pcie", "model_path": "/models/kimi-k2.5"}


def test_the_default_of_a_gpu_class():
    built = deployment.build(SM120)
    assert built["profile"] == "triton_nccl_tuned"
    assert built["ladder"] == ["triton_nccl_tuned", "safe"]
    assert built["command"][:3] == ["python3", "-m", "sglang.launch_server"]
    command = " ".join(built["command"])
    for words in (
        "--model-path /models/kimi-k2.5 --served-model-name kimi-k2.5 --host 0.0.0.0 --port 30000 --tp-size 8 --context-length 98304",
        "--mem-fraction-static 0.85 --trust-remote-code --reasoning-parser kimi_k2 --tool-call-parser kimi_k2 --enable-metrics",
        "--attention-backend triton --num-continuous-decode-steps 4 --disable-custom-all-reduce",
    ):
        assert words in command
    assert built["environment"]["NCCL_P2P_LEVEL"] == "SYS"
    assert built["effective"]["attention_backend"] == "triton"


def test_empty_settings_take_their_defaults():
    assert deployment.build({**SM120, "profile": None, "ladder": None, "gpu_model": "", "extra_flags": {}}) == deployment.build(SM120)


def test_a_profile_names_its_gpu_class():
    assert deployment.build({"profile": "nvlink_triton", "model_path": "/m"})["gpu_class"] == "nvlink"


def test_a_host_without_gpus_has_ranks_all_the_same():
    built = deployment.build({"gpu_class": "cpu", "gpus": 0, "tp_size": 2, "model_path": "/m"})
    assert (built["profile"], built["ladder"]) == ("cpu", ["cpu"])
    assert "--tp-size 2" in " ".join(built["command"]) and "--device cpu --attention-backend torch_native --sleep-on-idle" in " ".join(
        built["command"]
    )
    assert built["environment"]["SGLANG_USE_CPU_ENGINE"] == "1"


def test_extra_flags_and_environment_add_and_drop():
    extra = {
        "extra_flags": {"num_continuous_decode_steps": None, "--log-level": "debug", "cuda-graph-bs-decode": [1, 2], "sleep-on-idle": True},
        "extra_environment": {"NCCL_PROTO": None, "OMP_NUM_THREADS": 8, "NCCL_DEBUG": "INFO"},
    }
    built = deployment.build({**SM120, **extra})
    assert "--num-continuous-decode-steps" not in built["command"]
    assert " ".join(built["command"]).endswith("--log-level debug --cuda-graph-bs-decode 1 2 --sleep-on-idle")
    assert "NCCL_PROTO" not in built["environment"]
    assert built["environment"]["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profile": "fast"}, "unknown profile 'fast'; known are cpu, flashinfer, nvlink, nvlink_triton, safe, triton_nccl_tuned"),
        ({"profile": "nvlink"}, "profile 'nvlink' is for GPU class nvlink, this host is sm120_pcie"),
        ({"ladder": ["safe", "nvlink"]}, "profile 'nvlink' is for GPU class nvlink"),
        ({"ladder": "safe"}, "ladder: expected a list"),
        ({"gpu_class": "l4"}, "unknown GPU class 'l4'"),
        ({"gpu_class": None, "gpu_model": "NVIDIA L4"}, "the GPU class of 'NVIDIA L4' is not known"),
        ({"engine_version": "0.5.6"}, "SGLang 0.5.6 is older than the floor 0.5.9"),
        ({"model_path": None}, "model_path is not set"),
        ({"modelpath": "/m"}, "unknown setting 'modelpath'"),
        ({"tp_size": "all"}, "tp_size: expected a whole number from 1 to 64, found 'all'"),
        ({"tp_size": 3}, "tp_size: expected a divisor of the 64 attention heads, found 3"),
        ({"tp_size": 16, "gpus": 8}, "tp_size: 16 ranks need as many GPUs, this host is to have 8"),
        ({"tp_size": 8, "gpus": 0}, "tp_size: 8 ranks need as many GPUs, this host is to have 0"),
        ({"gpu_class": "cpu", "gpus": 8}, "GPU class cpu is for hosts without a GPU, this host is to have 8"),
        ({"profile": "cpu"}, "profile 'cpu' is for GPU class cpu, this host is sm120_pcie"),
        ({"port": 70000}, "port: expected a whole number from 1 to 65535, found 70000"),
        ({"port": True}, "port: expected a whole number"),
        ({"context_length": -1}, "context_length: expected a whole number from 1 to 262144, found -1"),
        ({"extra_environment": {"A": [1]}}, "extra_environment: A: expected text or a number, found [1]"),
        ({"mem_fraction_static": 85}, "mem_fraction_static: expected a number between 0 and 1"),
        ({"mem_fraction_static": "much"}, "mem_fraction_static: expected a number between 0 and 1"),
        ({"extra_flags": {"cuda-graph-max-bs": 16}}, "use --cuda-graph-max-bs-decode"),
        ({"extra_flags": {"port": 1}}, "--port has a setting of its own, port"),
        ({"extra_flags": {"tensor-parallel-size": 4}}, "--tp-size has a setting of its own"),
        ({"extra_flags": ["x"]}, "extra_flags: expected a dictionary"),
        ({"extra_environment": {"A B": 1}}, "'A B' is no name for a variable"),
        ({"extra_environment": {"A": "1\n[Install]"}}, "A holds a control character"),
        ({"extra_environment": {"NCCL_P2P_LEVEL": "NODE"}}, "NCCL_P2P_LEVEL=NODE: accepted are LOC, NVL, PIX, PXB, PHB, SYS"),
        ({"extra_environment": {"NCCL_P2P_LEVEL": 4}}, "NCCL_P2P_LEVEL=4: accepted are"),
        ({"extra_environment": {"NCCL_PROTO": "LL128"}}, "refused: alone it can corrupt data"),
        ({"extra_environment": {"NCCL_MAX_NCHANNELS": 4}}, "NCCL_MIN_NCHANNELS=8 is larger than NCCL_MAX_NCHANNELS=4"),
        ({"extra_environment": {"NCCL_BUFFSIZE": 5000000}}, "needs a power of two"),
        ({"extra_environment": {"NCCL_MIN_CTAS": 65}}, "needs a number from 1 to 64"),
        ({"extra_environment": {"NCCL_MIN_CTAS": "-1"}}, "needs a whole number"),
        ({"extra_environment": {"NCCL_NTREADS": 64}}, "NCCL_NTREADS is not on the list of NCCL variables"),
        ({"gpu_class": "nvlink", "extra_environment": {"NCCL_ALGO": "Ring"}}, "it would switch NVLS off"),
    ],
)
def test_one_message_for_what_would_not_work(settings, message):
    with pytest.raises(DeploymentError) as caught:
        deployment.build({**SM120, **settings})
    assert message in str(caught.value)


@pytest.mark.parametrize("backend", ["trtllm_mla", "cutlass_mla", "cutedsl_mla", "tokenspeed_mla", "fa3", "fa4", "flashmla"])
@pytest.mark.parametrize("flag", ["attention-backend", "prefill-attention-backend", "decode-attention-backend"])
def test_backends_without_kernels_for_sm120_are_refused_there_only(flag, backend):
    with pytest.raises(DeploymentError, match=f"--{flag}"):
        deployment.build({**SM120, "engine_version": "0.5.16", "extra_flags": {flag: backend}})
    assert deployment.build({**SM120, "gpu_class": "nvlink", "engine_version": "0.5.16", "extra_flags": {flag: backend}})


def test_no_backend_is_triton_on_sm120():
    unset = deployment.effective(["--tp", "8"], {}, "sm120_pcie", "0.5.23")
    triton = deployment.effective(
        ["--tp-size", "8", "--attention-backend", "triton", "--disable-custom-all-reduce"], {}, "sm120_pcie", "0.5.23"
    )
    assert deployment.differs(unset, triton) == []


def test_the_incidents_fallback_differs_in_one_thing():
    primary, fallback = (deployment.build({**SM120, "profile": name})["effective"] for name in ("flashinfer", "triton_nccl_tuned"))
    assert deployment.differs(primary, fallback) == ["attention_backend: flashinfer -> triton"]


def test_variables_without_effect_are_no_difference():
    plain = deployment.effective([], {"NCCL_P2P_DISABLE": "1", "PATH": "/bin"}, "sm120_pcie", "0.5.23")
    moot = {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS", "NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "INFO", "NCCL_NVLS_ENABLE": "0"}
    assert deployment.differs(plain, deployment.effective(["--port", "1"], moot, "sm120_pcie", "0.5.23")) == []


def test_the_engines_choice_with_nvlink_depends_on_the_model():
    def backend(model):
        return deployment.effective([], {}, "nvlink", "0.5.23", model).get("attention_backend")

    assert [backend("NVIDIA H200"), backend("NVIDIA B200"), backend(None)] == ["fa3", "trtllm_mla", None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 99999}, "port: expected a whole number from 1 to 65535, found 99999"),
        ({"context_length": -5}, "context_length: expected a whole number from 1 to 262144, found -5"),
        ({"host": "0.0.0.0:30000"}, "host: expected an address to bind such as 0.0.0.0, found '0.0.0.0:30000'"),
        ({"host": "256.1.1.1"}, "found '256.1.1.1'"),
        ({"host": "http://gpu01"}, "found 'http://gpu01'"),
        ({"host": "gpu 01"}, "found 'gpu 01'"),
        ({"extra_flags": {"nnodes": 2, "node-rank": 2}}, "--node-rank 2: expected less than --nnodes, which is 2"),
        ({"extra_flags": {"node-rank": 1}}, "--node-rank 1: expected less than --nnodes, which is 1"),
        ({"extra_flags": {"node-rank": -1}}, "--node-rank: expected 0 or more, found -1"),
        ({"extra_flags": {"dist-init-addr": "10.0.0.1"}}, "--dist-init-addr: expected ADDRESS:PORT, found '10.0.0.1'"),
        ({"extra_flags": {"nccl-init-addr": "10.0.0.1:99999"}}, "--dist-init-addr: expected ADDRESS:PORT"),
        ({"extra_flags": {"max-running-requests": -1}}, "--max-running-requests: expected 1 or more, found -1"),
    ],
)
def test_what_the_engines_parser_takes_and_nothing_can_run_with(settings, message):
    with pytest.raises(DeploymentError) as error:
        deployment.build({**SM120, **settings})
    assert message in str(error.value)


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "127.0.0.1", "fe80::1%eth0", "gpu01", "gpu01.example.com", "gpu_01", "10-0-0-1.local"]
)
def test_addresses(address):
    assert deployment.is_address(address)


@pytest.mark.parametrize(
    "address", ["", "1.2.3", "1.2.3.4.5", "[::1]", "gpu01:1", "a..b", "-gpu", "gpu-", "gpu01.", "g\u00fc.example", "x" * 254, "gpu01\n"]
)
def test_no_addresses(address):
    assert not deployment.is_address(address)


def test_two_nodes():
    flags = {"nnodes": 2, "node-rank": 1, "dist-init-addr": "[fd00::1]:5000"}
    built = deployment.build({**SM120, "extra_flags": flags})
    assert built["arguments"] == built["command"][3:] and "[fd00::1]:5000" in built["arguments"]
