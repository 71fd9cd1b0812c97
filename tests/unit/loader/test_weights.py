"""Folders, shards, ties, corrupt files, the Hub without network, and random weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM as HfLlama

from fastkernels import registry
from fastkernels.errors import FileFormatError, NotFoundError, UsageError, WeightsError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import ModelSource, find, load_model
from fastkernels.nn.weights import export_weights, load_weights

CPU = torch.device("cpu")


def hf_model(is_tied: bool = False) -> HfLlama:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=is_tied,
        eos_token_id=2,
    )
    return HfLlama(config).eval()


def load(source: ModelSource) -> torch.nn.Module:
    return load_model(source, Overlay.over_baseline(), CPU, torch.float32, seed=0)


def assert_same(model: torch.nn.Module, reference: HfLlama) -> None:
    weights = dict(export_weights(model))
    state = reference.state_dict()
    assert set(weights) == set(state) - (
        {"lm_head.weight"} if reference.config.tie_word_embeddings else set()
    )
    for name, tensor in weights.items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("shard", ["1GB", "20KB"], ids=["one-file", "sharded"])
def test_folder_as_transformers_saves_it(tmp_path, is_tied, shard):
    reference = hf_model(is_tied)
    reference.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").is_file() == (shard == "20KB")
    source = find(tmp_path)
    assert source.architecture.task == "L4/llama"
    assert source.stop_ids == (2,)
    assert_same(load(source), reference)


@pytest.mark.parametrize("is_sharded", [False, True], ids=["one-file", "sharded"])
def test_folder_as_diffusers_saves_it(tmp_path, is_sharded):
    entry = registry.architecture("flux")
    written = load(ModelSource("written", entry, entry.configs["tiny"].config, None))
    config = {
        key: v
        for key, v in entry.configs["tiny"].config.items()
        if key not in ("architectures", "model_type")
    }
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "FluxTransformer2DModel", **config}))
    weights = {name: tensor.contiguous() for name, tensor in export_weights(written)}
    shards = [dict(list(weights.items())[i::2]) for i in (0, 1)] if is_sharded else [weights]
    names = [f"diffusion_pytorch_model-{i}-of-2.safetensors" for i in (1, 2)]
    names = names if is_sharded else ["diffusion_pytorch_model.safetensors"]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, tmp_path / name)
    if is_sharded:
        placed = {tensor: name for name, shard in zip(names, shards) for tensor in shard}
        index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": placed}))
    source = find(tmp_path)
    assert source.architecture.task == "L4/flux"
    for ours, theirs in zip(load(source).parameters(), written.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_tied_model_whose_checkpoint_repeats_the_head(tmp_path):
    reference = hf_model(is_tied=True)
    reference.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    assert_same(load(find(tmp_path)), reference)


def test_one_safetensors_file_of_another_name(tmp_path):
    reference = hf_model()
    reference.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert_same(load(find(tmp_path)), reference)


def test_missing_tensor_is_named(tmp_path):
    hf_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load(find(tmp_path))


@pytest.mark.parametrize("keep", [0, 4, 300, -100], ids=["empty", "no-header", "half-header", "short-data"])
def test_truncated_file_is_named(tmp_path, keep):
    hf_model().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match=r"model\.safetensors, header"):
        load(find(tmp_path))


def test_shard_without_the_tensor_that_the_index_places_there(tmp_path):
    hf_model().save_pretrained(tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    name = "model.norm.weight"
    shard = tmp_path / index["weight_map"][name]
    weights = load_file(shard)
    del weights[name]
    save_file(weights, shard)
    with pytest.raises(FileFormatError) as caught:
        load(find(tmp_path))
    assert caught.value.path == shard
    assert caught.value.where == f"tensor {name}"


def test_missing_shard_is_named(tmp_path):
    hf_model().save_pretrained(tmp_path, max_shard_size="20KB")
    next(iter(sorted(tmp_path.glob("model-00002*")))).unlink()
    with pytest.raises(FileFormatError, match=r"model-00002.* is missing"):
        load(find(tmp_path))


def test_all_tensors_that_are_not_where_the_index_places_them_are_named_with_their_shapes(tmp_path):
    hf_model().save_pretrained(tmp_path, max_shard_size="20KB")
    placed = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    lost = {"model.norm.weight": [32], "model.layers.0.mlp.up_proj.weight": [48, 32]}
    assert len({placed[name] for name in lost}) == 2
    for name in lost:
        weights = load_file(tmp_path / placed[name])
        del weights[name]
        save_file(weights, tmp_path / placed[name])
    with pytest.raises(FileFormatError, match=r"so with 1 more: .*Download it again") as caught:
        load(find(tmp_path))
    for name, shape in lost.items():
        assert f"missing     {name}, expected {shape}" in str(caught.value)


def test_tensors_in_another_shard_than_the_index_says_are_named(tmp_path):
    """All are there, so that the model would be complete: but who wrote the index meant other files."""
    hf_model().save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first, *_, last = sorted(set(content["weight_map"].values()))
    moved = [name for name, file in content["weight_map"].items() if file == first]
    content["weight_map"] |= dict.fromkeys(moved, last)
    index.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=rf"{last}, tensor {moved[0]}: the index places it here"):
        load(find(tmp_path))


def test_all_missing_shards_are_named(tmp_path):
    hf_model().save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))[1:3]
    for shard in shards:
        shard.unlink()
    with pytest.raises(FileFormatError, match=f"2 files are missing: {shards[0].name}, {shards[1].name}"):
        load(find(tmp_path))


@pytest.mark.parametrize("file", [3, None, ["model.safetensors"]], ids=str)
def test_an_index_that_names_no_file(tmp_path, file):
    hf_model().save_pretrained(tmp_path)
    index = {"weight_map": {"model.norm.weight": file}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileFormatError, match=r"tensor model\.norm\.weight: .* is no file's name"):
        load(find(tmp_path))


def test_weights_that_do_not_fit_are_told_with_their_folder(tmp_path):
    hf_model().save_pretrained(tmp_path)
    save_file({"model.norm.weight": torch.zeros(32)}, tmp_path / "model.safetensors")
    with pytest.raises(
        WeightsError, match=rf"^{tmp_path}: The weights do not fit LlamaForCausalLM: 20 missing"
    ):
        load(find(tmp_path))


@pytest.mark.parametrize("ids", ["x", [[1]], {}, 1.5, True], ids=str)
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_ends_of_sequences_that_are_no_token_ids(tmp_path, file, ids):
    hf_model().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / file).write_text(json.dumps({**content, "eos_token_id": ids}))
    with pytest.raises(FileFormatError, match=f"{file}, eos_token_id: .*expected a token id"):
        _ = find(tmp_path).stop_ids


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", "[" * 100_000, "config.json: nested too deeply"),
        (
            "config.json",
            '{"_class_name": ["a"]}',
            "config.json: _class_name: .* expected the name of a class",
        ),
        ("config.json", '{"architectures": "Llama"}', "config.json: architectures: .* in a list"),
        ("config.json", "{}", "config.json names neither architectures"),
        ("model_index.json", '{"_class_name": 5}', "model_index.json: _class_name: 5"),
        ("model_index.json", "{}", "model_index.json names neither"),
        (
            "model_index.json",
            '{"_class_name": "FluxPipeline"}',
            "model_index.json: names no part of transformer",
        ),
        (
            "model_index.json",
            '{"_class_name": "FluxPipeline", "vae": 3}',
            "model_index.json, vae: 3: expected",
        ),
    ],
    ids=["deep", "class", "classes", "none", "index-class", "index-none", "index-parts", "part"],
)
def test_configurations_that_are_none(tmp_path, file, content, says):
    (tmp_path / file).write_text(content)
    with pytest.raises(UsageError, match=says):
        find(tmp_path)


@pytest.mark.parametrize("config", [{"architectures": 5}, {"_class_name": ["a"]}], ids=str)
def test_a_configuration_that_names_no_class(config):
    with pytest.raises(UsageError, match="expected"):
        find(config)


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("config.json", find),
        ("model.safetensors.index.json", lambda folder: load(find(folder))),
        ("generation_config.json", lambda folder: find(folder).stop_ids),
    ],
)
def test_corrupt_json_is_named_with_its_line(tmp_path, file, read):
    hf_model().save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / file).write_text('{\n "weight_map": {,}\n}')
    with pytest.raises(FileFormatError, match=rf"{file}, line 2"):
        read(tmp_path)


def test_index_without_a_map(tmp_path):
    hf_model().save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(FileFormatError, match="weight_map"):
        load(find(tmp_path))


def test_folder_without_weights_says_what_it_expected(tmp_path):
    hf_model().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.bin")
    with pytest.raises(UsageError, match=r"no model\.safetensors and no pytorch_model\.bin"):
        load(find(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(UsageError, match=r"no config\.json"):
        find(tmp_path)


def as_pickles(folder: Path, is_new_format: bool = True) -> None:
    """The folder's weights as `.bin` files, with an index where there was one."""
    for file in folder.glob("*.safetensors"):
        name = file.name.replace("model", "pytorch_model").replace(".safetensors", ".bin")
        torch.save(load_file(file), folder / name, _use_new_zipfile_serialization=is_new_format)
        file.unlink()
    if (index := folder / "model.safetensors.index.json").is_file():
        text = index.read_text().replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
        (folder / "pytorch_model.bin.index.json").write_text(text)
        index.unlink()


@pytest.mark.parametrize("is_new_format", [True, False], ids=["zip", "before-zip"])
@pytest.mark.parametrize("shard", ["1GB", "20KB"], ids=["one-file", "sharded"])
def test_weights_in_bin_files(tmp_path, shard, is_new_format):
    reference = hf_model()
    reference.save_pretrained(tmp_path, max_shard_size=shard)
    as_pickles(tmp_path, is_new_format)
    assert not list(tmp_path.glob("*safetensors*"))
    assert_same(load(find(tmp_path)), reference)
    if shard == "20KB":
        next(tmp_path.glob("*-00001-of-*.bin")).unlink()
        with pytest.raises(FileFormatError, match=r"pytorch_model\.bin\.index\.json.*-00001-of-.*is missing"):
            load(find(tmp_path))


def test_safetensors_are_preferred_to_bin_files(tmp_path):
    reference = hf_model()
    reference.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read")
    assert_same(load(find(tmp_path)), reference)


class Hostile:
    """Runs a command where a plain unpickler reads it."""

    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self):
        return os.system, (f"touch {self.touched}",)


@pytest.mark.parametrize("is_new_format", [True, False], ids=["zip", "before-zip"])
def test_code_in_a_bin_file_is_refused_and_not_run(tmp_path, is_new_format):
    hf_model().save_pretrained(tmp_path)
    as_pickles(tmp_path)
    file, touched = tmp_path / "pytorch_model.bin", tmp_path / "touched"
    weights = {**torch.load(file), "model.norm.weight": Hostile(touched)}
    torch.save(weights, file, _use_new_zipfile_serialization=is_new_format)
    with pytest.raises(
        FileFormatError, match=r"pytorch_model\.bin, contents: asks for \w+\.system: .*no code is run"
    ):
        load(find(tmp_path))
    assert not touched.exists()
    torch.load(file, weights_only=False)
    assert touched.exists(), "the file was harmless"


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (b"", "contents: no readable file of tensors. Download it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "contents: no readable file of tensors"),
        (torch.ones(2), "contents: a Tensor: expected names and tensors"),
        ({"state_dict": {"a": torch.ones(2)}}, "tensor state_dict: is no dense tensor"),
        ({"model.norm.weight": torch.ones(2).to_sparse()}, "tensor model.norm.weight: is no dense tensor"),
        (None, "contents: no readable file of tensors. Download it again"),
    ],
    ids=["empty", "pointer", "tensor", "nested", "sparse", "cut"],
)
def test_bin_files_that_are_no_tensors(tmp_path, held, says):
    hf_model().save_pretrained(tmp_path)
    as_pickles(tmp_path)
    file = tmp_path / "pytorch_model.bin"
    if held is None:
        file.write_bytes(file.read_bytes()[:-3000])
    elif isinstance(held, bytes):
        file.write_bytes(held)
    else:
        torch.save(held, file)
    with pytest.raises(FileFormatError, match=rf"pytorch_model\.bin, {says}"):
        load(find(tmp_path))


def test_a_head_that_differs_from_the_embedding_it_is_tied_to(tmp_path):
    """transformers would use both, vLLM the embedding alone: neither is chosen in silence."""
    hf_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    says = r'lm_head\.weight differs from model\.embed_tokens\.weight.*"tie_word_embeddings": false'
    with pytest.raises(WeightsError, match=says):
        load(find(tmp_path))


def test_a_tied_head_that_stands_for_the_embedding(tmp_path):
    reference = hf_model(is_tied=True)
    reference.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_same(load(find(tmp_path)), reference)


def test_unknown_names_say_what_is_near():
    with pytest.raises(NotFoundError, match="Did you mean llama"):
        find("lama")
    with pytest.raises(NotFoundError, match="Did you mean tiny"):
        find("llama", config="tinyy")
    with pytest.raises(UsageError, match="No folder"):
        find("./nowhere")
    with pytest.raises(NotFoundError, match="resnet"):
        find({"model_type": "resnet"})


def test_architecture_id_chooses_by_size_and_configuration():
    assert find("llama", size="tiny").config["hidden_size"] == 64
    assert find("llama", size="full").config["hidden_size"] == 4096
    assert find("llama", config="tiny-qwen3").config["model_type"] == "qwen3"
    assert find("llama", size="full").dtype(torch.device("cuda")) == torch.bfloat16
    assert find("llama", size="full").dtype(CPU) == torch.float32


def test_random_weights_follow_the_seed():
    config = registry.architecture("llama").configs["tiny"].config
    first, again = (dict(load(find(dict(config))).named_parameters()) for _ in range(2))
    other = load_model(find("llama"), Overlay.over_baseline(), CPU, torch.float32, seed=1)
    for name, parameter in other.named_parameters():
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], parameter)


@pytest.mark.parametrize(
    ("init", "says"),
    [
        ("self.weight = torch.ones(hidden_size)", "lacks layers.0.input_layernorm.weight (64,)"),
        ("self.weight = nn.Parameter(torch.empty(hidden_size, 1))", "input_layernorm.weight is (64, 1), the"),
        (
            "self.weight, self.more = (nn.Parameter(torch.empty(hidden_size)) for _ in range(2))",
            "has layers.0.input_layernorm.more (64,), which the baseline has not",
        ),
    ],
)
def test_random_weights_of_other_parameters_are_refused_as_a_checkpoint_is(tmp_path, init, says):
    """They would be other weights than the baseline's: a wrong answer, and nobody would say why."""
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass RMSNorm(nn.Module):\n"
        f"    def __init__(self, hidden_size, eps=1e-6):\n        super().__init__()\n        {init}\n"
    )
    overlay = Overlay.over_baseline([tmp_path])
    with pytest.raises(WeightsError, match=re.escape(says)):
        load_model(find("llama", size="tiny"), overlay, CPU, torch.float32, seed=0)


def _find_with_hub(home: Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """huggingface_hub reads its variables at import, so a fresh process."""
    code = f"from fastkernels.loader.weights import find\n{body}"
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PATH": "", "OMP_NUM_THREADS": "1", **environment},
    )


def test_hub_id_that_is_not_cached_while_offline_is_a_clear_error(tmp_path):
    body = (
        "from fastkernels.errors import UsageError\n"
        "try:\n    find('someone/some-model')\n"
        "except UsageError as error:\n    print(type(error).__name__, error)"
    )
    done = _find_with_hub(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UsageError someone/some-model is not in the local Hugging Face cache")


def test_hub_id_that_is_cached_is_found_offline(tmp_path):
    repository = tmp_path / "hub" / "models--someone--some-model"
    snapshot = repository / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    hf_model().save_pretrained(snapshot)
    done = _find_with_hub(tmp_path, "print(find('someone/some-model').folder)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(snapshot)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_bin_files_are_downloaded_where_there_are_no_safetensors(tmp_path, monkeypatch, kind):
    """Of a repository that holds both, only one kind is fetched."""
    hub, cache = tmp_path / "hub", tmp_path / "cache"
    cache.mkdir()
    reference = hf_model()
    reference.save_pretrained(hub)
    if kind == "bin":
        as_pickles(hub)
    for other in ("training_args.bin", "pytorch_model.bin"):
        if not (hub / other).exists():
            (hub / other).write_bytes(b"not for us")

    def fetch(repository: str, allow_patterns: list[str]) -> str:
        for file in hub.iterdir():
            if any(fnmatchcase(file.name, pattern) for pattern in allow_patterns):
                (cache / file.name).write_bytes(file.read_bytes())
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert_same(load(find("someone/some-model")), reference)
    weights = {file.name for file in cache.iterdir() if file.suffix in (".bin", ".safetensors")}
    assert weights == {"model.safetensors" if kind == "safetensors" else "pytorch_model.bin"}


@pytest.mark.parametrize(
    "name", ["llama", "mixtral", "gla", "jamba", "whisper", "mamba", "mamba2", "retnet", "rwkv7"]
)
def test_every_language_model_notices_a_head_that_is_not_its_embedding(name):
    entry = registry.architecture(name)
    tiny = {**entry.configs["tiny"].config, "tie_word_embeddings": True}
    model = load(ModelSource(name, entry, tiny, None))
    weights = dict(export_weights(model))
    ((head, embedding),) = model.weight_map.repeated.items()
    assert head not in weights
    load_weights(model, {**weights, head: weights[embedding].clone()}.items())
    with pytest.raises(WeightsError, match=f"{head} differs from {embedding}"):
        load_weights(model, {**weights, head: weights[embedding] + 1}.items())
    untied = load(ModelSource(name, entry, {**tiny, "tie_word_embeddings": False}, None))
    load_weights(untied, {**weights, head: weights[embedding] + 1}.items())
    with pytest.raises(WeightsError, match=f'missing     {head}.*"tie_word_embeddings": true'):
        load_weights(untied, weights.items())
